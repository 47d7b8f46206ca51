/* All that is compiled. */

#include "products.h"

#include "layers.h"

#include "dropout.h"
#include "matrices.h"

#include "attend.h"
#include "cut.h"
#include "encode.h"
#include "loss.h"
#include "rank.h"

#include "grow.h"
#include "step.h"
