/* The whole engine as one translation unit, so that every kernel can be inlined; compiled once for each instruction set
   HEED_ISA. All names are static but the table of its functions. */

#include "heed.h"
#include "memory.h"
#include "old_glibc.h"
#include "threads.h"
#include "vectors.h"

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

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)
#define ENGINE_OF(isa) heed_engine_##isa
#define ENGINE(isa) ENGINE_OF(isa)

const HeedEngine ENGINE(HEED_ISA) = {
    .isa = TEXT(HEED_ISA), .self_test = heed_self_test_of_isa, .linear = heed_linear, .encode = heed_encode,
    .decoder_step = heed_decoder_step, .search = heed_search, .beam_step = heed_beam_step, .topk = heed_topk,
    .attention = heed_attention, .gemm = heed_gemm, .cross_entropy = heed_cross_entropy, .dropout = heed_dropout,
    .bpe = heed_bpe};
