/* All that is compiled. */

#include "products.h"

#include "layers.h"

#include "encode.h"
#include "step.h"
