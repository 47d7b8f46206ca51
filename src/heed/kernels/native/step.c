/* One token more for every hypothesis: a whole step of a decoder, from word ids to logits, in one call.

   The twin is `LeanDecoder.step`, and what is remembered between steps lies as `hypotheses.py` lays it. Every thread
   runs through all of the step: it keeps the stream of residuals to itself, takes its own share of each product, and
   meets the others only where a product must be whole. `compiled_step.py` fills in the structures below. */

#include "products.h"

enum { ALIGNED = 64 };                            /* bytes of a cache line */
enum { RELU, GELU, SWISH, SWIGLU };               /* activations */
enum { POST, PRE, SANDWICH };                     /* where norms are */

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

typedef struct {                                  /* what a step meets */
    const int64_t *ids;
    int64_t sentences, wide, length;              /* hypotheses of each sentence, and their tokens, this one counted */
    const float *place;                           /* added to words, or none */
    const float *cos, *sin;                       /* by which queries and keys are turned, or none */
    float *room;                                  /* (layers, 2, sentences, heads, columns, width of a head) */
    int64_t columns, filled;                      /* that it has; that are spoken for */
    const int64_t *written;                       /* (sentences, wide, length): columns of each hypothesis, or none */
    const float *memory;                          /* (layers, 2, sentences, heads, tokens, width of a head) */
    int64_t tokens;
    const int64_t *lengths;                       /* of the sources: what comes after is padding */
    float *found;                                 /* (rows, words): logits */
} Seen;

/* What lies between products ------------------------------------------------------------------------------------- */

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

/* After a sub-layer: what it found joins the stream. Then what the next one takes is made ready. */
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

static inline float sum_of(Lanes x) {
    typedef float Half __attribute__((vector_size(2 * LANES), aligned(4)));
    typedef float Quarter __attribute__((vector_size(LANES), aligned(4)));
    const Half *halves = (const Half *)&x;
    const Half half = halves[0] + halves[1];
    const Quarter *quarters = (const Quarter *)&half;
    const Quarter quarter = quarters[0] + quarters[1];
    return (quarter[0] + quarter[1]) + (quarter[2] + quarter[3]);
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
    const float in_twos = (x > -87.0f ? x : -87.0f) * 1.44269504f, whole = rintf(in_twos);
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

/* Scores to what is gathered of the values, which lie one after the other, or in columns that are `written`. */
static void gather(
    float *scores, int64_t count, const float *values, const int64_t *written, int64_t size, float *found) {
    float highest = -INFINITY, total = 0;
    for (int64_t t = 0; t < count; t++) highest = scores[t] > highest ? scores[t] : highest;
    for (int64_t t = 0; t < count; t++) scores[t] = exponential(scores[t] - highest);
    for (int64_t t = 0; t < count; t++) total += scores[t];
    memset(found, 0, sizeof(float) * size);
    for (int64_t t = 0; t < count; t++) {
        const float weight = scores[t] / total, *value = values + (written ? written[t] : t) * size;
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

/* Self-attention of this thread's share of rows and heads; new keys and values find their places on the way. */
static void look_back(
    const Thread *thread, const Model *model, const Layer *layer, const Seen *seen, float *own, float *found) {
    const int64_t heads = model->heads, size = model->width / heads, buffer = seen->columns * size;
    const int64_t first_of_layer = 2 * (layer - model->layers) * seen->sentences * heads;
    int64_t first, last;
    share(thread, thread->rows * heads, &first, &last);
    for (int64_t item = first; item < last; item++) {
        const int64_t row = item / heads, head = item % heads, column = seen->filled + row % seen->wide;
        float *query = own + row * 3 * model->width + head * size, *key = query + model->width;
        float *keys = seen->room + (first_of_layer + row / seen->wide * heads + head) * buffer;
        float *values = keys + seen->sentences * heads * buffer;
        const int64_t *written = seen->written ? seen->written + row * seen->length : NULL;
        if (seen->cos) {
            turn(query, seen->cos, seen->sin, size);
            turn(key, seen->cos, seen->sin, size);
        }
        memcpy(keys + column * size, key, sizeof(float) * size);
        memcpy(values + column * size, key + model->width, sizeof(float) * size);
        for (int64_t t = 0; t < seen->length; t++)
            thread->scores[t] = dot(query, keys + (written ? written[t] : t) * size, size);
        gather(thread->scores, seen->length, values, written, size, found + row * model->width + head * size);
    }
}

/* Attention to the source, likewise. */
static void look_across(
    const Thread *thread, const Model *model, const Layer *layer, const Seen *seen, const float *asked, float *found) {
    const int64_t heads = model->heads, size = model->width / heads, buffer = seen->tokens * size;
    const int64_t first_of_layer = 2 * (layer - model->layers) * seen->sentences * heads;
    int64_t first, last;
    share(thread, thread->rows * heads, &first, &last);
    for (int64_t item = first; item < last; item++) {
        const int64_t row = item / heads, head = item % heads, sentence = row / seen->wide;
        const float *keys = seen->memory + (first_of_layer + sentence * heads + head) * buffer;
        const float *values = keys + seen->sentences * heads * buffer;
        const float *query = asked + row * model->width + head * size;
        for (int64_t t = 0; t < seen->lengths[sentence]; t++) thread->scores[t] = dot(query, keys + t * size, size);
        gather(thread->scores, seen->lengths[sentence], values, NULL, size, found + row * model->width + head * size);
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
            for (int64_t i = first; i < last; i++) own[i] = own[i] > 0 ? own[i] : 0;
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

/* A step --------------------------------------------------------------------------------------------------------- */

static void embed(const Thread *thread, const Model *model, const Seen *seen) {
    for (int64_t r = 0; r < thread->rows; r++) {
        const float *word = model->embedding + seen->ids[r] * model->width;
        for (int64_t i = 0; i < model->width; i++)
            thread->stream[r * model->width + i] = word[i] * model->scale + (seen->place ? seen->place[i] : 0);
    }
}

/* So many numbers, and some more for what follows to begin where a cache line begins. */
static int64_t aligned(int64_t numbers) {
    const int64_t in_line = ALIGNED / sizeof(float);
    return (numbers + in_line - 1) / in_line * in_line;
}

/* All threads run through this; `wide`, `heads` and `found` they share. */
static void run(const Thread *thread, const Model *model, const Seen *seen, float *wide, float *heads, float *found) {
    embed(thread, model, seen);
    for (const Layer *layer = model->layers; layer < model->layers + model->count; layer++) {
        multiply(thread, &layer->own, made_ready(thread, model, &layer->norm[0]), wide);
#pragma omp barrier
        look_back(thread, model, layer, seen, wide, heads);
#pragma omp barrier
        multiply(thread, &layer->output, heads, found);
#pragma omp barrier
        settle(thread, model, layer, 0, found);
        multiply(thread, &layer->ask, made_ready(thread, model, &layer->norm[1]), wide);
#pragma omp barrier
        look_across(thread, model, layer, seen, wide, heads);
#pragma omp barrier
        multiply(thread, &layer->gather, heads, found);
#pragma omp barrier
        settle(thread, model, layer, 1, found);
        widen(thread, model, layer, made_ready(thread, model, &layer->norm[2]), wide);
#pragma omp barrier
        multiply(thread, &layer->narrow, wide, found);
#pragma omp barrier
        settle(thread, model, layer, 2, found);
    }
    multiply(thread, &model->logits, made_ready(thread, model, &model->last), seen->found);
}

/* 0, or 1 where there is no memory. */
int heed_step(const Model *model, const Seen *seen, int64_t threads) {
    const int64_t rows = seen->sentences * seen->wide, width = rows * model->width;
    const int64_t widest = rows * (2 * model->inner > 3 * model->width ? 2 * model->inner : 3 * model->width);
    const int64_t longest = seen->length > seen->tokens ? seen->length : seen->tokens;
    const int64_t shared[] = {aligned(widest), aligned(width), aligned(width)};
    const int64_t own[] = {aligned(width), aligned(width), aligned(longest), aligned(rows), aligned(widest / 4 + 1)};
    const int64_t all_shared = shared[0] + shared[1] + shared[2];
    const int64_t all_own = own[0] + own[1] + own[2] + own[3] + own[4];
    float *memory = aligned_alloc(ALIGNED, sizeof(float) * (all_shared + threads * all_own));
    if (!memory) return 1;
#pragma omp parallel num_threads(threads)
    {
        float *stream = memory + all_shared + omp_get_thread_num() * all_own, *ready = stream + own[0];
        float *scores = ready + own[1], *worth = scores + own[2];
        const Thread thread = {omp_get_thread_num(), omp_get_num_threads(), rows, stream, ready, scores, worth,
                               (uint8_t *)(worth + own[3])};
        run(&thread, model, seen, memory, memory + shared[0], memory + shared[0] + shared[1]);
    }
    free(memory);
    return 0;
}
