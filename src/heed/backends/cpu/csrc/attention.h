/* Attention between packed sentences for training, forward and backward; the reference is `plain_attention`.

   A thread takes one head of one sentence at a time and QUERY_BLOCK queries of it at a time, so the attention weights
   never need more memory than QUERY_BLOCK rows. The backward pass recomputes them instead of storing them. */

enum { QUERY_BLOCK = 32 };

typedef struct {                                  /* one head of one sentence, and scratch memory */
    HeedRows queries, keys, values, output, grad_output, grad_queries, grad_keys, grad_values;
    int64_t head, first_query, first_key, query_count, key_count;
    HeedRows keys_t, values_t;                    /* transposed: (head_width, key_count padded to SIMD registers) */
    HeedRows weights, dropped, grad_scores;       /* (QUERY_BLOCK, key_count padded); dropped: weights after dropout */
} HeadTask;

static HeedStrided as_strided(HeedRows rows) { return (HeedStrided){rows.data, rows.stride, 1}; }

static HeedStrided transposed(HeedRows rows) { return (HeedStrided){rows.data, 1, rows.stride}; }

/* (count, size) to (size, count), zero-padded to the stride of the result, four by four. */
static void transpose(HeedRows tokens, int64_t count, int64_t size, HeedRows result) {
    for (int64_t s = 0; s < result.stride; s += 4) {
        const float *row[4];
        int64_t k = 0;
        for (int i = 0; i < 4; i++) row[i] = tokens.data + (s + i) * tokens.stride;
        for (; k + 4 <= size && s + 4 <= count; k += 4) {
            float *to = result.data + k * result.stride + s;
            const Four a = *(const Four *)(row[0] + k), b = *(const Four *)(row[1] + k);
            const Four c = *(const Four *)(row[2] + k), d = *(const Four *)(row[3] + k);
            const Four ab_low = SHUFFLE(a, b, 0, 4, 1, 5), ab_high = SHUFFLE(a, b, 2, 6, 3, 7);
            const Four cd_low = SHUFFLE(c, d, 0, 4, 1, 5), cd_high = SHUFFLE(c, d, 2, 6, 3, 7);
            *(Four *)to = SHUFFLE(ab_low, cd_low, 0, 1, 4, 5);
            *(Four *)(to + result.stride) = SHUFFLE(ab_low, cd_low, 2, 3, 6, 7);
            *(Four *)(to + 2 * result.stride) = SHUFFLE(ab_high, cd_high, 0, 1, 4, 5);
            *(Four *)(to + 3 * result.stride) = SHUFFLE(ab_high, cd_high, 2, 3, 6, 7);
        }
        for (; k < size; k++)
            for (int i = 0; i < 4; i++) result.data[k * result.stride + s + i] = s + i < count ? row[i][k] : 0;
    }
}

/* The sum of the products of two rows, whose length is a multiple of LANES. */
static float dot_product(const float *x, const float *y, int64_t size) {
    Lanes sums = {0};
    for (int64_t i = 0; i < size; i += LANES) sums += *(const Lanes *)(x + i) * *(const Lanes *)(y + i);
    return sum_of_lanes(sums);
}

/* x = softmax(scale x) of the first `visible` elements of a row, whose length is a multiple of LANES; 0 elsewhere. All
   loops run over whole registers. */
static void softmax_row(float *x, int64_t visible, int64_t size, float scale) {
    float highest[LANES];
    for (int64_t i = visible; i < size; i++) x[i] = -INFINITY;
    for (int lane = 0; lane < LANES; lane++) highest[lane] = -INFINITY;
    for (int64_t i = 0; i < size; i += LANES)
        for (int lane = 0; lane < LANES; lane++)
            highest[lane] = x[i + lane] > highest[lane] ? x[i + lane] : highest[lane];
    const float most = highest_of_lanes(highest);
    Lanes totals = {0};
    for (int64_t i = 0; i < size; i++) x[i] = fast_exp((x[i] - most) * scale);
    memset(x + visible, 0, sizeof(float) * (size - visible));
    for (int64_t i = 0; i < size; i += LANES) totals += *(const Lanes *)(x + i);
    const float factor = 1 / sum_of_lanes(totals);
    for (int64_t i = 0; i < size; i++) x[i] *= factor;
}

/* Dropout of one query's attention weights, in place. */
static void drop_weights(const HeedAttention *all, const HeadTask *task, int64_t query, float *row) {
    const int64_t hash_row = (task->first_query + query) * all->heads + task->head;
    dropout_row(&all->dropout, hash_row, task->first_key, row, row, task->key_count);
}

/* The number of keys that a query attends to; causal: the last query is aligned with the last key. */
static int64_t visible_keys(const HeedAttention *all, const HeadTask *task, int64_t query) {
    const int64_t aligned_key = task->key_count - task->query_count + query + 1;
    return !all->causal ? task->key_count : aligned_key > 0 ? aligned_key : 0;
}

/* task->weights = softmax(Q Kᵀ / √head_width) of `count` queries, zero where masked. */
static void softmax_weights(const HeedAttention *all, const HeadTask *task, int64_t first, int64_t count) {
    const float scale = 1 / sqrtf((float)all->head_width);
    const int64_t padded = task->weights.stride;
    const HeedRows queries = offset_rows(task->queries, first, 0);
    gemm_small(as_strided(queries), task->keys_t, task->weights, count, all->head_width, padded, 0);
    for (int64_t t = 0; t < count; t++)
        softmax_row(task->weights.data + t * padded, visible_keys(all, task, first + t), padded, scale);
}

/* output = dropout(softmax(Q Kᵀ / √head_width)) V of one head of one sentence. */
static void forward(const HeedAttention *all, const HeadTask *task) {
    transpose(task->keys, task->key_count, all->head_width, task->keys_t);
    for (int64_t first = 0, count; first < task->query_count; first += count) {
        count = least(task->query_count - first, QUERY_BLOCK);
        softmax_weights(all, task, first, count);
        for (int64_t t = 0; t < count && all->dropout.threshold; t++)
            drop_weights(all, task, first + t, task->weights.data + t * task->weights.stride);
        const int64_t visible = visible_keys(all, task, first + count - 1);
        const HeedRows output = offset_rows(task->output, first, 0);
        gemm_small(as_strided(task->weights), task->values, output, count, visible, all->head_width, 0);
    }
}

/* task->grad_scores = gradient of the unscaled scores of `count` queries, through softmax and dropout. Also sets
   task->dropped, the weights after dropout, which the gradient of the values needs. */
static void score_gradients(const HeedAttention *all, const HeadTask *task, int64_t first, int64_t count) {
    const float scale = 1 / sqrtf((float)all->head_width);
    const int64_t padded = task->weights.stride;
    const HeedRows grad_output = offset_rows(task->grad_output, first, 0);
    gemm_small(as_strided(grad_output), task->values_t, task->grad_scores, count, all->head_width, padded, 0);
    memcpy(task->dropped.data, task->weights.data, sizeof(float) * count * padded);
    for (int64_t t = 0; t < count; t++) {
        float *grads = task->grad_scores.data + t * padded, *weights = task->weights.data + t * padded;
        if (all->dropout.threshold) {
            drop_weights(all, task, first + t, task->dropped.data + t * padded);
            drop_weights(all, task, first + t, grads);
        }
        const float mean = dot_product(weights, grads, padded);
        for (int64_t s = 0; s < padded; s++) grads[s] = weights[s] * (grads[s] - mean) * scale;
    }
}

/* Gradients of queries, keys and values of one head of one sentence. */
static void backward(const HeedAttention *all, const HeadTask *task) {
    const int64_t size = all->head_width;
    transpose(task->keys, task->key_count, size, task->keys_t);
    transpose(task->values, task->key_count, size, task->values_t);
    for (int64_t s = 0; s < task->key_count; s++) {
        memset(offset_rows(task->grad_keys, s, 0).data, 0, sizeof(float) * size);
        memset(offset_rows(task->grad_values, s, 0).data, 0, sizeof(float) * size);
    }
    for (int64_t first = 0, count; first < task->query_count; first += count) {
        count = least(task->query_count - first, QUERY_BLOCK);
        const int64_t visible = visible_keys(all, task, first + count - 1);
        const HeedRows queries = offset_rows(task->queries, first, 0);
        const HeedRows grad_queries = offset_rows(task->grad_queries, first, 0);
        softmax_weights(all, task, first, count);
        score_gradients(all, task, first, count);
        gemm_small(as_strided(task->grad_scores), task->keys, grad_queries, count, visible, size, 0);
        gemm_small(transposed(task->grad_scores), queries, task->grad_keys, visible, count, size, 1);
        gemm_small(
            transposed(task->dropped), offset_rows(task->grad_output, first, 0), task->grad_values, visible, count,
            size, 1);
    }
}

static HeadTask head_task(const HeedAttention *all, int64_t sentence, int64_t head, float *memory) {
    const int64_t query = all->cu_seqlens[sentence], key = all->key_cu_seqlens[sentence];
    const int64_t column = head * all->head_width;
    const int64_t key_count = all->key_cu_seqlens[sentence + 1] - key, padded = round_to_lanes(key_count);
    float *weights = memory + 2 * all->head_width * padded;
    return (HeadTask){
        .queries = offset_rows(all->queries, query, column), .keys = offset_rows(all->keys, key, column),
        .values = offset_rows(all->values, key, column), .output = offset_rows(all->output, query, column),
        .grad_output = offset_rows(all->grad_output, query, column),
        .grad_queries = offset_rows(all->grad_queries, query, column),
        .grad_keys = offset_rows(all->grad_keys, key, column),
        .grad_values = offset_rows(all->grad_values, key, column),
        .head = head, .first_query = query, .first_key = key,
        .query_count = all->cu_seqlens[sentence + 1] - query, .key_count = key_count,
        .keys_t = {memory, padded}, .values_t = {memory + all->head_width * padded, padded},
        .weights = {weights, padded}, .dropped = {weights + QUERY_BLOCK * padded, padded},
        .grad_scores = {weights + 2 * QUERY_BLOCK * padded, padded}};
}

typedef struct {
    const HeedAttention *all;
    float *memory;                                /* (threads, per_thread) */
    int64_t per_thread;
    atomic_llong next;                            /* the next task that no thread has taken */
} AttentionCall;

static void run_attention(const Thread *thread, void *context) {
    AttentionCall *call = context;
    const HeedAttention *all = call->all;
    float *scratch = call->memory + thread->index * call->per_thread;
    for (int64_t i; (i = atomic_fetch_add(&call->next, 1)) < all->sentences * all->heads;) {
        const HeadTask task = head_task(all, i / all->heads, i % all->heads, scratch);
        if (all->grad_output.data)
            backward(all, &task);
        else
            forward(all, &task);
    }
}

static int heed_attention(const HeedAttention *all, HeedPool *pool, int64_t threads) {
    if (!is_valid_packing(all->cu_seqlens, all->sentences, all->tokens, all->tokens)
        || !is_valid_packing(all->key_cu_seqlens, all->sentences, all->key_tokens, all->max_keys))
        return HEED_INVALID;
    const int64_t per_thread = aligned((2 * all->head_width + 3 * QUERY_BLOCK) * round_to_lanes(all->max_keys));
    AttentionCall call = {all, allocate(sizeof(float) * threads * per_thread), per_thread, 0};
    if (!call.memory) return HEED_NO_MEMORY;
    run_team(pool, threads, run_attention, &call);
    release(call.memory);
    return 0;
}
