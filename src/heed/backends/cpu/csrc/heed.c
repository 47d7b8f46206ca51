/* The whole library as one translation unit, so that every kernel can be inlined. */

#include "threads.h"

#include "linear.h"

#include "layers.h"

#include "dropout.h"
#include "gemm.h"

#include "attention.h"
#include "bpe.h"
#include "encoder.h"
#include "loss.h"
#include "topk.h"

#include "beam.h"
#include "decoder.h"
#include "next_tokens.h"

#include "slots.h"

#include "search.h"
