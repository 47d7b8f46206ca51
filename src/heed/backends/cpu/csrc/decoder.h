/* One decoder step of any number of hypotheses, all layers in one call; the reference is `Transformer.step`.

   A row is a hypothesis: its newest token, and where the keys and values of its tokens and of its source are. Rows may
   belong to different sentences and have different lengths. The attention scale 1 / √head_width is folded into the query
   weights. `backends/kv_cache.py` defines the layout of the KV cache of `HeedStepInput`. */

typedef struct {
    int64_t token, position;                      /* the newest token; tokens before it */
    int64_t column;                               /* where its key and value are written */
    KeyValues self, source;
} Row;

/* Self-attention of this thread's (row, head) pairs; writes their new keys and values to the cache first. A pair reads
   only keys that itself or an earlier step wrote, so no barrier is needed. work->projected: (rows, 3, heads,
   head_width). */
static void self_attention(
    const Thread *thread, const HeedModel *model, Workspace *work, const Row *rows, const HeedPositions *positions,
    int64_t layer) {
    const int64_t heads = model->heads, head_width = model->d_model / heads;
    int64_t first, last;
    partition(thread, work->rows * heads, &first, &last);
    for (int64_t item = first; item < last; item++) {
        const Row *row = &rows[item / heads];
        const int64_t head = item % heads;
        float *query = work->projected + item / heads * 3 * model->d_model + head * head_width;
        float *key = query + model->d_model;
        float *to = row->self.keys + layer * row->self.layer_stride + head * row->self.head_stride;
        if (positions->cos) {
            const int64_t angles = row->position * (head_width / 2);
            rotate(query, positions->cos + angles, positions->sin + angles, head_width);
            rotate(key, positions->cos + angles, positions->sin + angles, head_width);
        }
        to += row->column * row->self.stride;
        memcpy(to, key, sizeof(float) * head_width);
        memcpy(to + row->self.value_offset, key + model->d_model, sizeof(float) * head_width);
        attend(
            query, &row->self, layer, head, head_width, work->scores + thread->index * work->max_keys,
            work->heads + item * head_width);
    }
}

/* Cross-attention of this thread's (row, head) pairs to the source. work->projected: (rows, heads, head_width). */
static void cross_attention(
    const Thread *thread, const HeedModel *model, Workspace *work, const Row *rows, int64_t layer) {
    const int64_t head_width = model->d_model / model->heads;
    int64_t first, last;
    partition(thread, work->rows * model->heads, &first, &last);
    for (int64_t item = first; item < last; item++)
        attend(
            work->projected + item * head_width, &rows[item / model->heads].source, layer, item % model->heads,
            head_width, work->scores + thread->index * work->max_keys, work->heads + item * head_width);
}

/* All layers; returns the input of the output projection, (rows, d_model). Every thread runs through this. */
static const float *run_decoder(
    const Thread *thread, const HeedModel *model, Workspace *work, const Row *rows, const HeedPositions *positions) {
    int64_t first, last;
    partition(thread, work->rows, &first, &last);
    for (int64_t r = first; r < last; r++)
        embed(model, positions, rows[r].token, rows[r].position, work->residual + r * model->d_model);
    for (int64_t number = 0; number < model->layer_count; number++) {
        const HeedLayer *layer = &model->layers[number];
        const float *x = begin_sublayer(thread, model, work, &layer->norm[0]);
        linear(thread, &layer->qkv, x, work->rows, work->quantized, work->projected);
        barrier(thread);
        self_attention(thread, model, work, rows, positions, number);
        end_sublayer(thread, model, work, layer, 0, &layer->o_self, work->heads);
        x = begin_sublayer(thread, model, work, &layer->norm[1]);
        linear(thread, &layer->q_cross, x, work->rows, work->quantized, work->projected);
        barrier(thread);
        cross_attention(thread, model, work, rows, number);
        end_sublayer(thread, model, work, layer, 1, &layer->o_cross, work->heads);
        feed_forward(thread, model, work, layer, 2);
    }
    return begin_sublayer(thread, model, work, &model->final_norm);
}

/* Whether all ids and indices are within bounds. */
static int is_valid_step(const HeedModel *model, const HeedStepInput *input) {
    const int64_t rows = input->sentences * input->beam;
    int valid = input->used >= 0 && input->used + input->beam <= input->capacity && input->length <= input->capacity
        && input->length <= input->positions.count;
    for (int64_t r = 0; r < rows; r++) valid &= input->ids[r] >= 0 && input->ids[r] < model->vocabulary;
    for (int64_t b = 0; b < input->sentences; b++) {
        const int64_t index = input->sentence_index ? input->sentence_index[b] : b;
        valid &= index >= 0 && index < input->cached && input->source_lengths[b] >= 0
            && input->source_lengths[b] <= input->max_source;
    }
    for (int64_t i = 0; input->kv_index && i < rows * input->length; i++)
        valid &= input->kv_index[i] >= 0 && input->kv_index[i] < input->capacity;
    return valid;
}

/* Keys and values of one sentence in a tensor (layers, 2, cached, heads, columns, head_width). */
static KeyValues cached_kv(const HeedModel *model, float *data, int64_t cached, int64_t columns, int64_t sentence) {
    const int64_t head_width = model->d_model / model->heads, per_sentence = columns * model->d_model;
    return (KeyValues){
        .keys = data + sentence * per_sentence, .value_offset = cached * per_sentence,
        .layer_stride = 2 * cached * per_sentence, .head_stride = columns * head_width, .stride = head_width};
}

static Row step_row(const HeedModel *model, const HeedStepInput *input, int64_t r) {
    const int64_t b = r / input->beam, sentence = input->sentence_index ? input->sentence_index[b] : b;
    Row row = {
        .token = input->ids[r], .position = input->length - 1, .column = input->used + r % input->beam,
        .self = cached_kv(model, input->kv_cache, input->cached, input->capacity, sentence),
        .source = cached_kv(model, input->source_kv, input->cached, input->max_source, sentence)};
    row.self.index = input->kv_index ? input->kv_index + r * input->length : NULL;
    row.self.count = input->length;
    row.source.count = input->source_lengths[b];
    return row;
}

typedef struct {
    const HeedModel *model;
    const HeedStepInput *input;
    const Row *rows;
    Workspace work;
} StepCall;

static void run_step_call(const Thread *thread, void *context) {
    StepCall *call = context;
    const float *x = run_decoder(thread, call->model, &call->work, call->rows, &call->input->positions);
    linear(thread, &call->model->output, x, call->work.rows, call->work.quantized, call->input->logits);
}

static int heed_decoder_step(const HeedModel *model, const HeedStepInput *input, HeedPool *pool, int64_t threads) {
    if (!is_valid_step(model, input)) return HEED_INVALID;
    const int64_t count = input->sentences * input->beam;
    Row *rows = malloc(sizeof(Row) * count);
    StepCall call = {model, input, rows, {0}};
    if (!rows || open_workspace(&call.work, model, count, most(input->length, input->max_source), threads)) {
        free(rows);
        return HEED_NO_MEMORY;
    }
    for (int64_t r = 0; r < count; r++) rows[r] = step_row(model, input, r);
    run_team(pool, threads, run_step_call, &call);
    release(call.work.memory);
    free(rows);
    return 0;
}
