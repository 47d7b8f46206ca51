/* What encoder and decoder have in common: layers as they are given, and what lies between their products.

   `compiled_layers.py` fills in the structures. */

enum { ALIGNED = 64 };                            /* bytes of a cache line */
enum { RELU, GELU, SWISH, SWIGLU };               /* activations */
enum { POST, PRE, SANDWICH };                     /* where norms are */

enum { NO_MEMORY = 1, WRONG = 2 };                /* what calls return that fail; WRONG: it would read beyond an end */

typedef struct {
    const float *weight, *bias;                   /* none: leave it as it is */
    float eps;
} Norm;

typedef struct {
    Matrix own, output, ask, gather, widen, gate, narrow;
    Norm norm[3], outer[3];
} Layer;

typedef struct {
    const Layer *layers;
    int64_t count, width, inner, heads, activation, order;
    const float *embedding;                       /* of words */
    float scale;
    Norm last;
    Matrix logits;
} Model;

/* Room for the widest product of so many rows. */
static int64_t widest_of(const Model *model, int64_t rows) {
    return rows * (2 * model->inner > 3 * model->width ? 2 * model->inner : 3 * model->width);
}

/* So many numbers, and some more for what follows to begin where a cache line begins. */
static int64_t aligned(int64_t numbers) {
    const int64_t in_line = ALIGNED / sizeof(float);
    return (numbers + in_line - 1) / in_line * in_line;
}

/* Whether so many sentences fill so many tokens, one after another, none longer than the longest. */
static int lie_end_to_end(const int64_t *offsets, int64_t sentences, int64_t tokens, int64_t longest) {
    int right = offsets[0] == 0 && offsets[sentences] == tokens;
    for (int64_t s = 0; s < sentences; s++)
        right &= offsets[s] <= offsets[s + 1] && offsets[s + 1] - offsets[s] <= longest;
    return right;
}

static void normalise(const Norm *norm, const float *x, float *y, int64_t size) {
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

/* After a sub-layer: what it found joins the stream. */
static void settle(const Thread *thread, const Model *model, const Layer *layer, int number, float *found) {
    for (int64_t r = 0; r < thread->rows; r++) {
        float *stream = thread->stream + r * model->width, *added = thread->ready + r * model->width;
        memcpy(added, found + r * model->width, sizeof(float) * model->width);
        if (model->order == SANDWICH) normalise(&layer->outer[number], added, added, model->width);
        for (int64_t i = 0; i < model->width; i++) stream[i] += added[i];
        if (model->order == POST) normalise(&layer->norm[number], stream, stream, model->width);
    }
}

/* What a sub-layer takes. */
static const float *made_ready(const Thread *thread, const Model *model, const Norm *norm) {
    if (model->order == POST) return thread->stream;
    for (int64_t r = 0; r < thread->rows; r++)
        normalise(norm, thread->stream + r * model->width, thread->ready + r * model->width, model->width);
    return thread->ready;
}

INLINED float sum_of(Lanes x) {
#ifdef __AVX512F__
    return _mm512_reduce_add_ps((__m512)x);
#else
    float each[LANES];
    memcpy(each, &x, sizeof each);
    for (int half = LANES / 2; half; half /= 2)
        for (int lane = 0; lane < half; lane++) each[lane] += each[lane + half];
    return each[0];
#endif
}

static inline float dot(const float *a, const float *b, int64_t size) {
    Lanes sum = {0};
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) sum += *(const Lanes *)(a + i) * *(const Lanes *)(b + i);
    float total = sum_of(sum);
    for (; i < size; i++) total += a[i] * b[i];
    return total;
}

/* e to the x, of x at most 0, in steps that a compiler can take for many x at once: 2 to a whole number, by its bits,
   times a polynomial of what is left. */
static inline float exponential(float x) {
    const float in_twos = (x < -87.0f ? -87.0f : x) * 1.44269504f, whole = rintf(in_twos);
    const float left = (in_twos - whole) * 0.693147181f;
    const int32_t bits = ((int32_t)whole + 127) << 23;
    float power, sum = 1.38888889e-3f; /* 1 / 6!, 1 / 5!, ... */
    memcpy(&power, &bits, sizeof power);
    sum = sum * left + 8.33333333e-3f;
    sum = sum * left + 4.16666667e-2f;
    sum = sum * left + 1.66666667e-1f;
    sum = sum * left + 0.5f;
    sum = sum * left + 1;
    return power * (sum * left + 1);
}

/* Scores to what is gathered of the values: one lies every `stride` numbers, in this order or in that of `written`. */
static void gather(
    float *scores, int64_t count, const float *values, const int64_t *written, int64_t stride, int64_t size,
    float *found) {
    float highest = -INFINITY, total = 0;
    for (int64_t t = 0; t < count; t++) highest = scores[t] > highest ? scores[t] : highest;
    for (int64_t t = 0; t < count; t++) scores[t] = exponential(scores[t] - highest);
    for (int64_t t = 0; t < count; t++) total += scores[t];
    for (int64_t i = 0; i < size; i++) found[i] = 0;
    for (int64_t t = 0; t < count; t++) {
        const float weight = scores[t] / total, *value = values + (written ? written[t] : t) * stride;
        for (int64_t i = 0; i < size; i++) found[i] += weight * value[i];
    }
}

static void turn(float *x, const float *cos, const float *sin, int64_t size) {
    for (int64_t i = 0; i < size / 2; i++) {
        const float even = x[2 * i], odd = x[2 * i + 1];
        x[2 * i] = even * cos[i] - odd * sin[i];
        x[2 * i + 1] = even * sin[i] + odd * cos[i];
    }
}

/* This thread's share of the inner layer, activated; a gate's products lie after those it lets through. */
static void widen(const Thread *thread, const Model *model, const Layer *layer, const float *x, float *inner) {
    float *gates = inner + thread->rows * model->inner;
    int64_t first, last;
    multiply(thread, &layer->widen, x, inner);
    if (model->activation == SWIGLU) multiply(thread, &layer->gate, x, gates);
    columns_of(thread, model->inner, &first, &last);
    for (int64_t r = 0; r < thread->rows; r++) {
        float *own = inner + r * model->inner;
        if (model->activation == RELU)
            for (int64_t i = first; i < last; i++) own[i] = own[i] < 0 ? 0 : own[i]; /* nan stays */
        else if (model->activation == GELU)
            for (int64_t i = first; i < last; i++) own[i] = 0.5f * own[i] * (1 + erff(own[i] * 0.70710678f));
        else if (model->activation == SWISH)
            for (int64_t i = first; i < last; i++) own[i] = own[i] / (1 + expf(-own[i]));
        else
            for (int64_t i = first; i < last; i++) {
                const float gate = gates[r * model->inner + i];
                own[i] *= gate / (1 + expf(-gate));
            }
    }
}
