/* The whole engine as one translation unit, so that every kernel can be inlined; compiled once for each instruction set,
   whose name is part of each function's: `EXPORT(search)` becomes `heed_avx2_search`. */

#ifdef _WIN32
#define EXPORTED __attribute__((dllexport))
#else
#define EXPORTED __attribute__((visibility("default")))
#endif
#define JOIN(isa, name) heed_##isa##_##name
#define EXPORT_FOR(isa, name) EXPORTED JOIN(isa, name)
#define EXPORT(name) EXPORT_FOR(HEED_ISA, name)

#include "memory.h"
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
