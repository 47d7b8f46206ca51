/* Building blocks that encoder and decoder share: workspace, layer norm, residuals, attention of single queries, rotary
   positions.

   The threads of a team share all activations. Each computes some columns of every linear layer and some rows of
   everything else, and they meet at a barrier before one reads what another has written. */

typedef struct {                                  /* keys and values that one row attends to */
    float *keys;                                  /* of layer 0, head 0, position 0 */
    int64_t value_offset;                         /* from a key to its value */
    int64_t layer_stride, head_stride, stride;    /* stride: from one position to the next */
    const int64_t *index;                         /* (count): the positions attended to, or NULL: the first `count` */
    int64_t count;
} KeyValues;

typedef struct {                                  /* activations of so many rows, shared by all threads */
    int64_t rows, max_keys;
    float *residual, *input, *heads, *output;     /* (rows, d_model): residual stream, input of a sub-layer, ... */
    float *projected;                             /* (rows, 3 d_model or 2 d_ff): QKV, or hidden units and gate */
    float *scores;                                /* (threads, max_keys): of one query */
    QuantizedRows quantized;
    void *memory;
} Workspace;

/* A count of floats rounded up to whole cache lines. */
static int64_t aligned(int64_t floats) {
    const int64_t in_line = ALIGNED / sizeof(float);
    return (floats + in_line - 1) / in_line * in_line;
}

/* Memory for so many rows and keys of one row; returns 0 or an error code. */
static int open_workspace(Workspace *work, const HeedModel *model, int64_t rows, int64_t max_keys, int64_t threads) {
    const int64_t hidden = aligned(rows * model->d_model), widest = most(2 * model->d_ff, 3 * model->d_model);
    const int64_t projected = aligned(rows * widest), scores = aligned(max_keys), scales = aligned(rows);
    const int64_t bytes = aligned(rows * quantized_bytes(widest) / 4 + 1); /* in floats */
    float *memory = allocate(sizeof(float) * (4 * hidden + projected + threads * scores + 2 * scales + bytes));
    if (!memory) return HEED_NO_MEMORY;
    float *all_scores = memory + 4 * hidden + projected, *all_scales = all_scores + threads * scores;
    *work = (Workspace){
        rows, scores, memory, memory + hidden, memory + 2 * hidden, memory + 3 * hidden, memory + 4 * hidden, all_scores,
        {(uint8_t *)(all_scales + 2 * scales), all_scales, (int32_t *)(all_scales + scales)}, memory};
    return 0;
}

/* Whether cu_seqlens describes packed sentences that fill all tokens, none longer than max_length. */
static int is_valid_packing(const int64_t *cu_seqlens, int64_t sentences, int64_t tokens, int64_t max_length) {
    int valid = cu_seqlens[0] == 0 && cu_seqlens[sentences] == tokens;
    for (int64_t s = 0; s < sentences; s++)
        valid &= cu_seqlens[s] <= cu_seqlens[s + 1] && cu_seqlens[s + 1] - cu_seqlens[s] <= max_length;
    return valid;
}

/* Layer norm of one row; y may be x. */
static void layer_norm(const HeedNorm *norm, const float *x, float *y, int64_t size) {
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

/* The token embedding of one row, with its position, as the start of the residual stream. */
static void embed(
    const HeedModel *model, const HeedPositions *positions, int64_t token, int64_t position, float *residual) {
    const float *embedding = model->embedding + token * model->d_model;
    for (int64_t i = 0; i < model->d_model; i++) residual[i] = embedding[i] * model->embedding_scale;
    if (positions->embedding)
        for (int64_t i = 0; i < model->d_model; i++)
            residual[i] += positions->embedding[position * model->d_model + i];
}

/* The input of a sub-layer: the residual stream, normalised unless the model is post-norm. */
static const float *begin_sublayer(
    const Thread *thread, const HeedModel *model, Workspace *work, const HeedNorm *norm) {
    const int64_t width = model->d_model;
    int64_t first, last;
    partition(thread, work->rows, &first, &last);
    for (int64_t r = first * width; r < last * width && model->norm_order != HEED_POST; r += width)
        layer_norm(norm, work->residual + r, work->input + r, width);
    barrier(thread);
    return model->norm_order == HEED_POST ? work->residual : work->input;
}

/* The last linear layer of sub-layer `number`; its output is added to the residual stream, with the sandwich or post
   norm. */
static void end_sublayer(
    const Thread *thread, const HeedModel *model, Workspace *work, const HeedLayer *layer, int number,
    const HeedMatrix *matrix, const float *x) {
    int64_t first, last;
    barrier(thread);
    linear(thread, matrix, x, work->rows, work->quantized, work->output);
    barrier(thread);
    partition(thread, work->rows, &first, &last);
    for (int64_t r = first; r < last; r++) {
        float *residual = work->residual + r * model->d_model, *added = work->output + r * model->d_model;
        if (model->norm_order == HEED_SANDWICH) layer_norm(&layer->outer_norm[number], added, added, model->d_model);
        for (int64_t i = 0; i < model->d_model; i++) residual[i] += added[i];
        if (model->norm_order == HEED_POST) layer_norm(&layer->norm[number], residual, residual, model->d_model);
    }
}

/* exp(x) for x ≤ 0, branch-free so that the compiler vectorises loops over it: x / ln 2 is split into an integer n
   and a rest; 2ⁿ is built from its exponent bits and multiplied by the Taylor polynomial of degree 6 of exp(rest).
   Adding 1.5 · 2²³ rounds to an integer, also where the instruction set has no instruction for it (SSE2). */
static inline float fast_exp(float x) {
    const float log2_value = (x < -87.0f ? -87.0f : x) * 1.44269504f, n = log2_value + 12582912.0f - 12582912.0f;
    const float rest = (log2_value - n) * 0.693147181f;
    const int32_t bits = ((int32_t)(n == n ? n : 0) + 127) << 23; /* NaN stays NaN through `rest` */
    float power, sum = 1.38888889e-3f; /* 1 / 6!, 1 / 5!, ... */
    memcpy(&power, &bits, sizeof power);
    sum = sum * rest + 8.33333333e-3f;
    sum = sum * rest + 4.16666667e-2f;
    sum = sum * rest + 1.66666667e-1f;
    sum = sum * rest + 0.5f;
    sum = sum * rest + 1;
    return power * (sum * rest + 1);
}

static const float *kv_at(const KeyValues *kv, const float *start, int64_t t) {
    return start + (kv->index ? kv->index[t] : t) * kv->stride;
}

/* scores[t] = query · key t, four keys at a time: `scores` has room for a multiple of four. */
static void score_keys(
    const float *query, const KeyValues *kv, const float *keys, int64_t size, float *scores) {
    for (int64_t t = 0; t < kv->count; t += 4) {
        const float *key[4];
        Lanes sums[4] = {{0}, {0}, {0}, {0}};
        float rest[4] = {0};
        int64_t i = 0;
        for (int j = 0; j < 4; j++) key[j] = kv_at(kv, keys, least(t + j, kv->count - 1));
        for (; i + LANES <= size; i += LANES)
            for (int j = 0; j < 4; j++) sums[j] += *(const Lanes *)(query + i) * *(const Lanes *)(key[j] + i);
        for (; i < size; i++)
            for (int j = 0; j < 4; j++) rest[j] += query[i] * key[j][i];
        *(Four *)(scores + t) = horizontal_sums(sums[0], sums[1], sums[2], sums[3]) + *(const Four *)rest;
    }
}

/* Replaces scores by exp(score - highest score); returns their sum. */
static float exponentiate(float *scores, int64_t count) {
    float highest = -INFINITY, total = 0;
#pragma omp simd reduction(max : highest)
    for (int64_t t = 0; t < count; t++) highest = scores[t] > highest ? scores[t] : highest;
#pragma omp simd reduction(+ : total)
    for (int64_t t = 0; t < count; t++) total += scores[t] = fast_exp(scores[t] - highest);
    return total;
}

/* `registers` registers of output = Σ weights[t] · value t. */
INLINED void sum_values(
    const float *weights, const KeyValues *kv, const float *values, float scale, const int registers, float *output) {
    enum { MOST = 4 };
    Lanes sums[MOST];
    for (int part = 0; part < registers; part++) sums[part] = (Lanes){0};
    for (int64_t t = 0; t < kv->count; t++) {
        const float *value = kv_at(kv, values, t);
        for (int part = 0; part < registers; part++) sums[part] += weights[t] * *(const Lanes *)(value + part * LANES);
    }
    for (int part = 0; part < registers; part++) *(Lanes *)(output + part * LANES) = sums[part] * scale;
}

/* Rotary position encoding of one head of a query or key, in place: pairs (2i, 2i + 1) are rotated. */
static void rotate(float *x, const float *cos, const float *sin, int64_t size) {
    for (int64_t i = 0; i < size / 2; i++) {
        const float even = x[2 * i], odd = x[2 * i + 1];
        x[2 * i] = even * cos[i] - odd * sin[i];
        x[2 * i + 1] = even * sin[i] + odd * cos[i];
    }
}

/* Attention of one query of one head. scores: scratch. */
static void attend(
    const float *query, const KeyValues *kv, int64_t layer, int64_t head, int64_t size, float *scores, float *output) {
    const float *keys = kv->keys + layer * kv->layer_stride + head * kv->head_stride, *values = keys + kv->value_offset;
    int64_t i = 0;
    score_keys(query, kv, keys, size, scores);
    const float total = exponentiate(scores, kv->count), scale = kv->count ? 1 / total : 0;
    for (; i + 4 * LANES <= size; i += 4 * LANES) sum_values(scores, kv, values + i, scale, 4, output + i);
    for (; i + 2 * LANES <= size; i += 2 * LANES) sum_values(scores, kv, values + i, scale, 2, output + i);
    for (; i + LANES <= size; i += LANES) sum_values(scores, kv, values + i, scale, 1, output + i);
    for (; i < size; i++) {
        float sum = 0;
        for (int64_t t = 0; t < kv->count; t++) sum += scores[t] * kv_at(kv, values, t)[i];
        output[i] = sum * scale;
    }
}

/* The hidden units of the feed-forward network, (rows, d_ff): its first linear layer and the activation. */
static void hidden_units(
    const Thread *thread, const HeedModel *model, Workspace *work, const HeedLayer *layer, const float *x) {
    float *hidden = work->projected, *gates = hidden + work->rows * model->d_ff;
    int64_t first, last;
    quantize_input(thread, &layer->ffn_in, x, work->rows, work->quantized);
    partition_columns(thread, model->d_ff, &first, &last);
    multiply(&layer->ffn_in, x, work->quantized, work->rows, first, last, hidden + first, model->d_ff);
    if (model->activation == HEED_SWIGLU)
        multiply(&layer->ffn_gate, x, work->quantized, work->rows, first, last, gates + first, model->d_ff);
    for (int64_t r = 0; r < work->rows; r++) {
        float *row = hidden + r * model->d_ff;
        if (model->activation == HEED_RELU)
            for (int64_t i = first; i < last; i++) row[i] = row[i] < 0 ? 0 : row[i]; /* keeps NaN */
        else if (model->activation == HEED_GELU)
            for (int64_t i = first; i < last; i++) row[i] = 0.5f * row[i] * (1 + erff(row[i] * 0.70710678f));
        else if (model->activation == HEED_SWISH)
            for (int64_t i = first; i < last; i++) row[i] = row[i] / (1 + expf(-row[i]));
        else
            for (int64_t i = first; i < last; i++) {
                const float gate = gates[r * model->d_ff + i];
                row[i] *= gate / (1 + expf(-gate));
            }
    }
}

/* The feed-forward sub-layer. */
static void feed_forward(
    const Thread *thread, const HeedModel *model, Workspace *work, const HeedLayer *layer, int number) {
    hidden_units(thread, model, work, layer, begin_sublayer(thread, model, work, &layer->norm[number]));
    end_sublayer(thread, model, work, layer, number, &layer->ffn_out, work->projected);
}
