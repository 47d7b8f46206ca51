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

/* (count, size) to (size, count), zero-padded to the stride of the result. */
static void transpose(HeedRows tokens, int64_t count, int64_t size, HeedRows result) {
    for (int64_t k = 0; k < size; k++) {
        float *row = result.data + k * result.stride;
        for (int64_t s = 0; s < count; s++) row[s] = tokens.data[s * tokens.stride + k];
        for (int64_t s = count; s < result.stride; s++) row[s] = 0;
    }
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
    for (int64_t t = 0; t < count; t++) {
        float *row = task->weights.data + t * padded, highest = -INFINITY, total = 0;
        const int64_t visible = visible_keys(all, task, first + t);
        for (int64_t s = visible; s < padded; s++) row[s] = -INFINITY; /* so that all loops run over whole registers */
#pragma omp simd reduction(max : highest)
        for (int64_t s = 0; s < padded; s++) highest = row[s] > highest ? row[s] : highest;
        for (int64_t s = 0; s < padded; s++) row[s] = fast_exp((row[s] - highest) * scale);
        memset(row + visible, 0, sizeof(float) * (padded - visible));
#pragma omp simd reduction(+ : total)
        for (int64_t s = 0; s < padded; s++) total += row[s];
        for (int64_t s = 0; s < padded; s++) row[s] /= total;
    }
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
        float *grads = task->grad_scores.data + t * padded, *weights = task->weights.data + t * padded, mean = 0;
        if (all->dropout.threshold) {
            drop_weights(all, task, first + t, task->dropped.data + t * padded);
            drop_weights(all, task, first + t, grads);
        }
#pragma omp simd reduction(+ : mean)
        for (int64_t s = 0; s < padded; s++) mean += weights[s] * grads[s];
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
