/* One decoder step of all hypotheses, from token ids to logits, in one call; the reference is `TorchDecoder.step`.

   Every thread runs through the whole step: it has its own copy of the residual stream, computes its own columns of
   each linear layer and its own (row, head) pairs of attention, and waits at a barrier only before an operation that
   reads what other threads computed. The attention scale 1 / √head_width is folded into the query weights.
   `backends/cpu/decoder.py` fills in the structures below; `backends/kv_cache.py` defines the layout of the KV cache. */

typedef struct {
    const int64_t *ids;                           /* (sentences, beam): the newest tokens */
    int64_t sentences, beam, length;              /* length: tokens of each hypothesis, the newest included */
    int64_t cached;                               /* sentences in kv_cache and source_kv */
    const int64_t *sentence_index;                /* (sentences): which of the cached ones, or NULL: all, in order */
    const float *position;                        /* (d_model): position embedding of the newest token, or NULL */
    const float *cos, *sin;                       /* (head_width / 2): rotary angles of the newest token, or NULL */
    float *kv_cache;                              /* (layers, 2, cached, heads, capacity, head_width) */
    int64_t capacity, used;                       /* columns per sentence; those taken before this step */
    const int64_t *kv_index;                      /* (sentences, beam, length): columns of each hypothesis, or NULL */
    const float *source_kv;                       /* (layers, 2, cached, heads, max_source, head_width) */
    int64_t max_source;
    const int64_t *source_lengths;                /* (sentences): tokens without padding */
    float *logits;                                /* (sentences, beam, vocabulary) */
} StepInput;

/* The index in the caches of the sentence to which a row belongs. */
static int64_t cache_row(const StepInput *input, int64_t row) {
    return input->sentence_index ? input->sentence_index[row / input->beam] : row / input->beam;
}

/* Self-attention of this thread's (row, head) pairs; writes their new keys and values to the cache first. A pair reads
   only keys that itself or an earlier step wrote, so no barrier is needed. qkv: (rows, 3, heads, head_width). */
static void self_attention(
    const Thread *thread, const Model *model, const Layer *layer, const StepInput *input, float *qkv, float *output) {
    const int64_t heads = model->heads, head_width = model->d_model / heads;
    const int64_t head_stride = input->capacity * head_width;
    const int64_t first_of_layer = 2 * (layer - model->layers) * input->cached * heads;
    int64_t first, last;
    partition(thread, thread->rows * heads, &first, &last);
    for (int64_t item = first; item < last; item++) {
        const int64_t row = item / heads, head = item % heads, column = input->used + row % input->beam;
        float *query = qkv + row * 3 * model->d_model + head * head_width, *key = query + model->d_model;
        float *keys = input->kv_cache + (first_of_layer + cache_row(input, row) * heads + head) * head_stride;
        float *values = keys + input->cached * heads * head_stride;
        const int64_t *index = input->kv_index ? input->kv_index + row * input->length : NULL;
        if (input->cos) {
            rotate(query, input->cos, input->sin, head_width);
            rotate(key, input->cos, input->sin, head_width);
        }
        memcpy(keys + column * head_width, key, sizeof(float) * head_width);
        memcpy(values + column * head_width, key + model->d_model, sizeof(float) * head_width);
        for (int64_t t = 0; t < input->length; t++)
            thread->scores[t] = dot(query, keys + (index ? index[t] : t) * head_width, head_width);
        softmax_weighted_sum(
            thread->scores, input->length, values, index, head_width, head_width,
            output + row * model->d_model + head * head_width);
    }
}

/* Cross-attention of this thread's (row, head) pairs to the source, up to its length. */
static void cross_attention(
    const Thread *thread, const Model *model, const Layer *layer, const StepInput *input, const float *queries,
    float *output) {
    const int64_t heads = model->heads, head_width = model->d_model / heads;
    const int64_t head_stride = input->max_source * head_width;
    const int64_t first_of_layer = 2 * (layer - model->layers) * input->cached * heads;
    int64_t first, last;
    partition(thread, thread->rows * heads, &first, &last);
    for (int64_t item = first; item < last; item++) {
        const int64_t row = item / heads, head = item % heads, sentence = row / input->beam;
        const float *keys = input->source_kv + (first_of_layer + cache_row(input, row) * heads + head) * head_stride;
        const float *values = keys + input->cached * heads * head_stride;
        const float *query = queries + row * model->d_model + head * head_width;
        for (int64_t t = 0; t < input->source_lengths[sentence]; t++)
            thread->scores[t] = dot(query, keys + t * head_width, head_width);
        softmax_weighted_sum(
            thread->scores, input->source_lengths[sentence], values, NULL, head_width, head_width,
            output + row * model->d_model + head * head_width);
    }
}

/* Token embeddings with positions, to this thread's copy of the residual stream. */
static void embed(const Thread *thread, const Model *model, const StepInput *input) {
    for (int64_t r = 0; r < thread->rows; r++) {
        const float *embedding = model->embedding + input->ids[r] * model->d_model;
        for (int64_t i = 0; i < model->d_model; i++)
            thread->residual[r * model->d_model + i] =
                embedding[i] * model->embedding_scale + (input->position ? input->position[i] : 0);
    }
}

/* All layers; every thread runs through this. Shared buffers: scratch (QKV, feed-forward), heads, output. */
static void run_step(
    const Thread *thread, const Model *model, const StepInput *input, float *scratch, float *heads, float *output) {
    embed(thread, model, input);
    for (const Layer *layer = model->layers; layer < model->layers + model->layer_count; layer++) {
        linear(thread, &layer->qkv, sublayer_input(thread, model, &layer->norm[0]), scratch);
#pragma omp barrier
        self_attention(thread, model, layer, input, scratch, heads);
#pragma omp barrier
        linear(thread, &layer->o_self, heads, output);
#pragma omp barrier
        add_residual_norm(thread, model, layer, 0, output);
        linear(thread, &layer->q_cross, sublayer_input(thread, model, &layer->norm[1]), scratch);
#pragma omp barrier
        cross_attention(thread, model, layer, input, scratch, heads);
#pragma omp barrier
        linear(thread, &layer->o_cross, heads, output);
#pragma omp barrier
        add_residual_norm(thread, model, layer, 1, output);
        ffn_in(thread, model, layer, sublayer_input(thread, model, &layer->norm[2]), scratch);
#pragma omp barrier
        linear(thread, &layer->ffn_out, scratch, output);
#pragma omp barrier
        add_residual_norm(thread, model, layer, 2, output);
    }
    linear(thread, &model->output, sublayer_input(thread, model, &model->final_norm), input->logits);
}

/* Whether all ids and indices are within bounds. */
static int is_valid_step(const Model *model, const StepInput *input) {
    const int64_t rows = input->sentences * input->beam;
    int valid = input->used >= 0 && input->used + input->beam <= input->capacity && input->length <= input->capacity;
    for (int64_t r = 0; r < rows; r++) valid &= input->ids[r] >= 0 && input->ids[r] < model->output.outputs;
    for (int64_t b = 0; b < input->sentences; b++) {
        const int64_t index = input->sentence_index ? input->sentence_index[b] : b;
        valid &= index >= 0 && index < input->cached && input->source_lengths[b] >= 0
            && input->source_lengths[b] <= input->max_source;
    }
    for (int64_t i = 0; input->kv_index && i < rows * input->length; i++)
        valid &= input->kv_index[i] >= 0 && input->kv_index[i] < input->capacity;
    return valid;
}

/* Returns 0 or an error code. */
int heed_decoder_step(const Model *model, const StepInput *input, int64_t threads) {
    if (!is_valid_step(model, input)) return INVALID;
    const int64_t rows = input->sentences * input->beam;
    const int64_t max_keys = input->length > input->max_source ? input->length : input->max_source;
    /* Buffer sizes in floats; `quantized` holds bytes, four per float. */
    const int64_t hidden = aligned(rows * model->d_model), scratch = aligned(scratch_size(model, rows));
    const int64_t scores_size = aligned(max_keys), scales_size = aligned(rows);
    const int64_t shared = scratch + 2 * hidden;
    const int64_t per_thread = 2 * hidden + scores_size + scales_size + aligned(scratch / 4 + 1);
    float *memory = aligned_alloc(ALIGNED, sizeof(float) * (shared + threads * per_thread));
    if (!memory) return NO_MEMORY;
#pragma omp parallel num_threads(threads)
    {
        float *residual = memory + shared + omp_get_thread_num() * per_thread, *normalized = residual + hidden;
        float *scores = normalized + hidden, *row_scale = scores + scores_size;
        const Thread thread = {omp_get_thread_num(), omp_get_num_threads(), rows, residual, normalized, scores,
                               row_scale, (uint8_t *)(row_scale + scales_size)};
        run_step(&thread, model, input, memory, memory + scratch, memory + scratch + hidden);
    }
    free(memory);
    return 0;
}
