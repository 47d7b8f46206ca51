/* heed's engine for CPUs: the whole interface of the library. It needs libc, libm and threads, and no Python.

   The engine is compiled once for each instruction set. `heed_engine` gives the functions of one of them:

       const HeedEngine *engine = heed_engine(NULL);                the fastest that this processor has
       int error = engine->search(encoder, decoder, &settings, &input);

   The library has no state: what a call needs is passed to it, and the caller owns all memory. Any function may run in
   several threads at once, also with the same model. It uses at most `threads` threads: of a pool if there is one that
   no other call uses, else threads that it starts and ends.

   Arrays are contiguous unless they have strides. Ids, lengths and indices are checked, addresses and sizes of arrays
   cannot be. Functions that return an int return 0 or an error code. Names in shapes are fields or arguments. The
   Python modules of `backends/cpu` mirror the structures. */

#ifndef HEED_H
#define HEED_H

#include <stdint.h>

#ifdef _WIN32
#define HEED_API __declspec(dllexport)
#else
#define HEED_API __attribute__((visibility("default")))
#endif

enum {                                            /* error codes */
    HEED_NO_MEMORY = 1,
    HEED_INVALID = 2,                             /* an id, a length or an index is out of bounds */
    HEED_CANCELLED = 3,                           /* by `before_step` */
    HEED_NO_HYPOTHESIS = 4                        /* a sentence has no output, or one that is not a number */
};
enum { HEED_RELU, HEED_GELU, HEED_SWISH, HEED_SWIGLU }; /* activations */
enum { HEED_POST, HEED_PRE, HEED_SANDWICH };      /* positions of the norms */
enum { HEED_PANEL = 32, HEED_GROUP = 4 };         /* outputs per panel; inputs per group (int8) */

typedef struct HeedPool HeedPool;                 /* threads that wait for calls */

/* An OpenMP runtime, by its functions GOMP_parallel, omp_get_thread_num and omp_get_num_threads, which GNU's and LLVM's
   have. */
typedef struct {
    void (*parallel)(void (*function)(void *), void *argument, unsigned threads, unsigned flags);
    int (*thread_index)(void);
    int (*thread_count)(void);
} HeedOpenMP;

/* ---- models ------------------------------------------------------------------------------------------------------ */

/* A linear layer for inference, y = x Wᵀ + b, in float32 or with W quantised to int8.

   W is packed into panels of 32 outputs, zero-padded: for each input (float32), or each group of 4 inputs (int8), the
   weights of the 32 outputs are contiguous. In int8 a weight is `output_scales` times its value of -127 to 127. Scales,
   sums and bias are zero-padded to whole panels, too. */
typedef struct {
    const void *weight;                           /* (panels, inputs, 32) float; or (panels, inputs / 4, 32, 4) int8 */
    const float *output_scales;                   /* int8: scale of each row of W; NULL: float32 */
    const int32_t *output_sums;                   /* int8: sum of each row of W */
    const float *bias;                            /* or NULL */
    int64_t outputs, inputs;
} HeedMatrix;

typedef struct {                                  /* layer norm */
    const float *weight, *bias;                   /* NULL: identity */
    float eps;
} HeedNorm;

typedef struct {                                  /* self-attention, cross-attention (decoder), feed-forward */
    HeedMatrix qkv, o_self;                       /* query weights are multiplied by 1 / √head_width */
    HeedMatrix q_cross, kv_cross, o_cross;
    HeedMatrix ffn_in, ffn_gate, ffn_out;         /* ffn_gate: SwiGLU */
    HeedNorm norm[3], outer_norm[3];              /* of each sub-layer; outer_norm: of its output (sandwich) */
} HeedLayer;

typedef struct {                                  /* an encoder or a decoder */
    const HeedLayer *layers;
    int64_t layer_count, d_model, d_ff, heads, activation, norm_order;
    const float *embedding;                       /* (vocabulary, d_model) */
    int64_t vocabulary;
    float embedding_scale;
    HeedNorm final_norm;
    HeedMatrix output;                            /* decoder: output projection to logits */
} HeedModel;

typedef struct {                                  /* positional encodings of positions 0 to count - 1 */
    const float *embedding;                       /* (count, d_model), or NULL */
    const float *cos, *sin;                       /* (count, head_width / 2): rotary angles, or NULL */
    int64_t count;
} HeedPositions;

typedef struct {                                  /* packed sentences */
    const int64_t *ids, *cu_seqlens;              /* tokens; first token of each sentence, then their number */
    int64_t sentences;
    HeedPositions positions;
} HeedEncoderInput;

typedef struct {                                  /* one step of hypotheses of equal length */
    const int64_t *ids;                           /* (sentences, beam): the newest tokens */
    int64_t sentences, beam, length;              /* length: tokens of each hypothesis, the newest included */
    int64_t cached;                               /* sentences in kv_cache and source_kv */
    const int64_t *sentence_index;                /* (sentences): which of the cached ones, or NULL: all, in order */
    HeedPositions positions;                      /* of at least `length` positions */
    float *kv_cache;                              /* (layers, 2, cached, heads, capacity, head_width) */
    int64_t capacity, used;                       /* columns per sentence; those taken before this step */
    const int64_t *kv_index;                      /* (sentences, beam, length): columns of each hypothesis, or NULL */
    float *source_kv;                             /* (layers, 2, cached, heads, max_source, head_width) */
    int64_t max_source;
    const int64_t *source_lengths;                /* (sentences): tokens without padding */
    float *logits;                                /* result: (sentences, beam, vocabulary) */
} HeedStepInput;

/* ---- search ------------------------------------------------------------------------------------------------------ */

/* Called between steps with the sentences being translated; not 0: stop the search. */
typedef int64_t (*HeedBeforeStep)(const int64_t *sentences, int64_t count);

typedef struct {
    int64_t beam, nbest, min_length, no_repeat_ngram, stop_first; /* as in `SearchConfig`; 0: off */
    double length_penalty;
    int64_t pad, bos, eos;
} HeedSearchSettings;

typedef struct {
    HeedEncoderInput source;                      /* each sentence with its eos */
    const int64_t *prefix_ids, *prefix_starts;    /* as ids and cu_seqlens of the source */
    const int64_t *max_lengths;                   /* (sentences) */
    HeedPositions positions;                      /* of the decoder */
    int64_t slots;                                /* sentences that are translated at a time; others wait */
    HeedPool *pool;                               /* or NULL */
    int64_t threads;
    HeedBeforeStep before_step;
    int64_t steps_between;                        /* calls of before_step */
    const uint8_t *cancelled;                     /* (sentences): not 0: end this sentence; before_step may change it */
    int64_t *tokens;                              /* result: nbest hypotheses of each sentence, max_length apart */
    const int64_t *token_starts;                  /* (sentences): of its first hypothesis in `tokens` */
    int64_t *lengths;                             /* (sentences, nbest): -1: there is no such hypothesis */
    double *log_probs;                            /* (sentences, nbest) */
    int64_t *truncated;                           /* (sentences, nbest): ended by max_length */
} HeedSearchInput;

/* ---- training ---------------------------------------------------------------------------------------------------- */

typedef struct {                                  /* element (i, j) is data[i * row_stride + j * col_stride] */
    const float *data;
    int64_t row_stride, col_stride;
} HeedStrided;

typedef struct {                                  /* contiguous rows */
    float *data;
    int64_t stride;
} HeedRows;

typedef struct {                                  /* an element is dropped by a hash of seed, row and column */
    uint32_t seed, threshold;                     /* dropped: hash below the threshold */
    float keep_scale;                             /* 1 / (1 - rate), multiplies the kept elements */
} HeedDropout;

typedef struct {                                  /* C = A B + bias, or C += A B */
    HeedStrided a, b;
    float *c;                                     /* (rows, columns), contiguous */
    int64_t rows, depth, columns;
    const float *bias;                            /* added to each row, or NULL */
    int64_t accumulate;                           /* C += A B */
    int64_t relu;                                 /* C = dropout(max(C, 0)) in the end */
    HeedDropout dropout;
    const float *gate;                            /* or NULL; (rows, columns): in the end C = gate > 0 ? scale C : 0 */
    float gate_scale;
} HeedGemm;

typedef struct {                                  /* between packed sentences; a row is a token, (heads, head_width) */
    HeedRows queries, keys, values, output;
    HeedRows grad_output, grad_queries, grad_keys, grad_values; /* grad_output.data is NULL in the forward pass */
    const int64_t *cu_seqlens, *key_cu_seqlens;   /* (sentences + 1): first token of each sentence, then the total */
    int64_t tokens, key_tokens;
    int64_t sentences, heads, head_width, max_keys; /* max_keys: of one sentence */
    int64_t causal;                               /* a query attends to no later key */
    HeedDropout dropout;
} HeedAttention;

typedef struct {                                  /* a BPE merge: an entry of a hash table with 2^bits entries */
    int64_t pair;                                 /* left symbol << 32 | right symbol; -1: empty */
    int32_t rank, merged;                         /* priority, lowest first; the merged symbol */
} HeedMerge;

/* ---- functions --------------------------------------------------------------------------------------------------- */

typedef struct {
    const char *isa;                              /* the instruction set: "avx2", ... */

    /* Small matmuls with known results: 0 if they are right. Run it by `heed_self_test`. */
    int (*self_test)(void);

    /* y = x Wᵀ + b of any number of rows. */
    int (*linear)(const HeedMatrix *matrix, const float *x, float *y, int64_t rows, HeedPool *pool, int64_t threads);

    /* output: (tokens, d_model). */
    int (*encode)(
        const HeedModel *model, const HeedEncoderInput *input, float *output, HeedPool *pool, int64_t threads);

    int (*decoder_step)(const HeedModel *model, const HeedStepInput *input, HeedPool *pool, int64_t threads);

    int (*search)(
        const HeedModel *encoder, const HeedModel *decoder, const HeedSearchSettings *settings,
        const HeedSearchInput *input);

    /* One beam step of sentences with log_probs (sentences * beam, vocabulary). result: (2, 3, sentences, beam): totals
       (double), tokens and parent rows of the unfinished continuations, then of the finished ones (-inf where there are
       fewer). Returns 1 if some sentence has a finished one among its best, else 0, and the second half is not written;
       -1: out of memory. */
    int64_t (*beam_step)(
        const double *live, const float *log_probs, int64_t sentences, int64_t beam, int64_t vocabulary, int64_t eos,
        int64_t *result, HeedPool *pool, int64_t threads);

    /* The `count` largest of each row of x, (rows, size), sorted. values, indices: (rows, count). Ties go to the lower
       index; NaN are left out, and missing values become NaN with index 0. */
    void (*topk)(
        const float *x, int64_t rows, int64_t size, int64_t count, float *values, int64_t *indices, HeedPool *pool,
        int64_t threads);

    /* Forward pass, or backward pass if grad_output is given. */
    int (*attention)(const HeedAttention *attention, HeedPool *pool, int64_t threads);

    int (*gemm)(const HeedGemm *gemm, HeedPool *pool, int64_t threads);

    /* Label-smoothed loss of each token; logits, (tokens, vocabulary), are replaced by their gradients. Padding has
       loss and gradient 0. r_drop: 0, or the weight of R-Drop: rows 2i and 2i + 1 are then one token in two passes with
       different dropout, and its loss is half of their cross-entropies and of their weighted divergence. */
    void (*cross_entropy)(
        float *logits, const int64_t *targets, float *losses, int64_t tokens, int64_t vocabulary, int64_t pad_id,
        float smoothing, float r_drop, HeedPool *pool, int64_t threads);

    /* Dropout of a matrix (rows, size). */
    void (*dropout)(
        const HeedDropout *dropout, const float *x, float *y, int64_t rows, int64_t size, HeedPool *pool,
        int64_t threads);

    /* Segments sentences, given as the bytes of their words, into concatenated subword `ids`; counts: subwords of each
       sentence. word_lengths: bytes of each word. word_counts: words of each sentence. dropped: a number per byte; a
       sentence uses those of its own bytes, from the first on. ranks: scratch, as long as the longest word. */
    void (*bpe)(
        const int32_t *bytes, const int64_t *word_lengths, const int64_t *word_counts, const int64_t *dropped,
        const HeedMerge *table, int32_t *ranks, int32_t *ids, int64_t *counts, int64_t sentences, int64_t bits);
} HeedEngine;

/* The instruction sets that the library was built for, fastest first, separated by spaces. */
HEED_API const char *heed_isas(void);

/* The engine for an instruction set; NULL if the library or the processor does not have it. isa: NULL: the fastest one
   that passes its self-test. */
HEED_API const HeedEngine *heed_engine(const char *isa);

/* Runs an engine's self-test: 0 if it succeeds. A processor that lacks an instruction that it reports fails it. */
HEED_API int heed_self_test(const HeedEngine *engine);

/* The sha256 of the sources that the library was built from, in hexadecimal. */
HEED_API const char *heed_sources(void);

/* A pool of so many threads, the caller's included; NULL if out of memory. A fork's child must not use it. */
HEED_API HeedPool *heed_open_pool(int64_t threads);

/* The threads of an OpenMP runtime as a pool, for calls that alternate with others of that runtime: its threads spin
   for a while after each call, so threads of another pool would have to share the processors with them. */
HEED_API HeedPool *heed_open_openmp_pool(const HeedOpenMP *openmp);
HEED_API void heed_close_pool(HeedPool *pool);

#endif
