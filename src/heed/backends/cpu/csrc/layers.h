/* Building blocks that encoder and decoder share: layer structures, layer norm, residuals, softmax, rotary positions.

   `backends/cpu/layers.py` fills in the structures. */

enum { ALIGNED = 64 };                            /* bytes of a cache line */
enum { RELU, GELU, SWISH, SWIGLU };               /* activations */
enum { POST, PRE, SANDWICH };                     /* positions of the norms */

enum { NO_MEMORY = 1, INVALID = 2 };              /* error codes; INVALID: an index is out of bounds */

typedef struct {
    const float *weight, *bias;                   /* NULL: identity */
    float eps;
} Norm;

typedef struct {                                  /* self-attention, cross-attention, feed-forward */
    PackedMatrix qkv, o_self, q_cross, o_cross, ffn_in, ffn_gate, ffn_out;
    Norm norm[3], outer_norm[3];                  /* of each sub-layer; outer_norm: of its output (sandwich) */
} Layer;

typedef struct {
    const Layer *layers;
    int64_t layer_count, d_model, d_ff, heads, activation, norm_order;
    const float *embedding;                       /* (vocabulary, d_model) */
    float embedding_scale;
    Norm final_norm;
    PackedMatrix output;                          /* output projection to logits */
} Model;

/* Floats that the widest intermediate result of so many rows takes: QKV, or the feed-forward layer with its gate. */
static int64_t scratch_size(const Model *model, int64_t rows) {
    return rows * (2 * model->d_ff > 3 * model->d_model ? 2 * model->d_ff : 3 * model->d_model);
}

/* A count of floats rounded up to whole cache lines. */
static int64_t aligned(int64_t floats) {
    const int64_t in_line = ALIGNED / sizeof(float);
    return (floats + in_line - 1) / in_line * in_line;
}

/* Whether cu_seqlens describes packed sentences that fill all tokens, none longer than max_length. */
static int is_valid_packing(const int64_t *cu_seqlens, int64_t sentences, int64_t tokens, int64_t max_length) {
    int valid = cu_seqlens[0] == 0 && cu_seqlens[sentences] == tokens;
    for (int64_t s = 0; s < sentences; s++)
        valid &= cu_seqlens[s] <= cu_seqlens[s + 1] && cu_seqlens[s + 1] - cu_seqlens[s] <= max_length;
    return valid;
}

/* Layer norm of one row; y may be x. */
static void layer_norm(const Norm *norm, const float *x, float *y, int64_t size) {
    float sum = 0, squares = 0;
    if (!norm->weight) {
        memcpy(y, x, sizeof(float) * size);
        return;
    }
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < size; i++) sum += x[i];
    const float mean = sum / size;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < size; i++) squares += (x[i] - mean) * (x[i] - mean);
    const float scale = 1 / sqrtf(squares / size + norm->eps);
    for (int64_t i = 0; i < size; i++) y[i] = (x[i] - mean) * scale * norm->weight[i] + norm->bias[i];
}

/* Adds a sub-layer's output to the residual stream, with the sandwich or post norm of sub-layer `number`. */
static void add_residual_norm(const Thread *thread, const Model *model, const Layer *layer, int number, float *output) {
    for (int64_t r = 0; r < thread->rows; r++) {
        float *residual = thread->residual + r * model->d_model, *added = thread->input + r * model->d_model;
        memcpy(added, output + r * model->d_model, sizeof(float) * model->d_model);
        if (model->norm_order == SANDWICH) layer_norm(&layer->outer_norm[number], added, added, model->d_model);
        for (int64_t i = 0; i < model->d_model; i++) residual[i] += added[i];
        if (model->norm_order == POST) layer_norm(&layer->norm[number], residual, residual, model->d_model);
    }
}

/* The input of a sub-layer: the residual stream, normalised unless the model is post-norm. */
static const float *sublayer_input(const Thread *thread, const Model *model, const Norm *norm) {
    if (model->norm_order == POST) return thread->residual;
    for (int64_t r = 0; r < thread->rows; r++)
        layer_norm(norm, thread->residual + r * model->d_model, thread->input + r * model->d_model, model->d_model);
    return thread->input;
}

INLINED float horizontal_sum(Lanes x) {
#ifdef __AVX512F__
    return _mm512_reduce_add_ps((__m512)x);
#else
    float lanes[LANES];
    memcpy(lanes, &x, sizeof lanes);
    for (int half = LANES / 2; half; half /= 2)
        for (int lane = 0; lane < half; lane++) lanes[lane] += lanes[lane + half];
    return lanes[0];
#endif
}

static inline float dot(const float *a, const float *b, int64_t size) {
    Lanes sums = {0};
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) sums += *(const Lanes *)(a + i) * *(const Lanes *)(b + i);
    float total = horizontal_sum(sums);
    for (; i < size; i++) total += a[i] * b[i];
    return total;
}

/* exp(x) for x ≤ 0, branch-free so that the compiler vectorises loops over it: x / ln 2 is split into an integer n
   and a rest; 2ⁿ is built from its exponent bits and multiplied by the Taylor polynomial of degree 6 of exp(rest). */
static inline float fast_exp(float x) {
    const float log2_value = (x < -87.0f ? -87.0f : x) * 1.44269504f, n = rintf(log2_value);
    const float rest = (log2_value - n) * 0.693147181f;
    const int32_t bits = ((int32_t)n + 127) << 23;
    float power, sum = 1.38888889e-3f; /* 1 / 6!, 1 / 5!, ... */
    memcpy(&power, &bits, sizeof power);
    sum = sum * rest + 8.33333333e-3f;
    sum = sum * rest + 4.16666667e-2f;
    sum = sum * rest + 1.66666667e-1f;
    sum = sum * rest + 0.5f;
    sum = sum * rest + 1;
    return power * (sum * rest + 1);
}

/* output = Σ softmax(scores)[t] · value[t] for one query. The value of position t starts at values + t * stride, or
   at values + index[t] * stride if there is an index. Overwrites scores. */
static void softmax_weighted_sum(
    float *scores, int64_t count, const float *values, const int64_t *index, int64_t stride, int64_t size,
    float *output) {
    float highest = -INFINITY, total = 0;
    for (int64_t t = 0; t < count; t++) highest = scores[t] > highest ? scores[t] : highest;
    for (int64_t t = 0; t < count; t++) scores[t] = fast_exp(scores[t] - highest);
    for (int64_t t = 0; t < count; t++) total += scores[t];
    for (int64_t i = 0; i < size; i++) output[i] = 0;
    for (int64_t t = 0; t < count; t++) {
        const float weight = scores[t] / total, *value = values + (index ? index[t] : t) * stride;
        for (int64_t i = 0; i < size; i++) output[i] += weight * value[i];
    }
}

/* Rotary position encoding of one head of a query or key, in place: pairs (2i, 2i + 1) are rotated. */
static void rotate(float *x, const float *cos, const float *sin, int64_t size) {
    for (int64_t i = 0; i < size / 2; i++) {
        const float even = x[2 * i], odd = x[2 * i + 1];
        x[2 * i] = even * cos[i] - odd * sin[i];
        x[2 * i + 1] = even * sin[i] + odd * cos[i];
    }
}

/* First linear layer of the feed-forward network and its activation: this thread's columns of `hidden`, (rows, d_ff).
   The gate of SwiGLU is computed into the memory after `hidden`. */
static void ffn_in(const Thread *thread, const Model *model, const Layer *layer, const float *x, float *hidden) {
    float *gates = hidden + thread->rows * model->d_ff;
    int64_t first, last;
    linear(thread, &layer->ffn_in, x, hidden);
    if (model->activation == SWIGLU) linear(thread, &layer->ffn_gate, x, gates);
    partition_columns(thread, model->d_ff, &first, &last);
    for (int64_t r = 0; r < thread->rows; r++) {
        float *row = hidden + r * model->d_ff;
        if (model->activation == RELU)
            for (int64_t i = first; i < last; i++) row[i] = row[i] < 0 ? 0 : row[i]; /* keeps NaN */
        else if (model->activation == GELU)
            for (int64_t i = first; i < last; i++) row[i] = 0.5f * row[i] * (1 + erff(row[i] * 0.70710678f));
        else if (model->activation == SWISH)
            for (int64_t i = first; i < last; i++) row[i] = row[i] / (1 + expf(-row[i]));
        else
            for (int64_t i = first; i < last; i++) {
                const float gate = gates[r * model->d_ff + i];
                row[i] *= gate / (1 + expf(-gate));
            }
    }
}
