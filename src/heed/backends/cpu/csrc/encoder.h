/* The encoder over packed sentences, all layers in one call; the reference is `Transformer.encode`.

   The attention scale 1 / √head_width is folded into the query weights. */

/* Whether all ids and positions are within bounds. */
static int is_valid_source(const HeedModel *model, const HeedEncoderInput *input) {
    if (input->cu_seqlens[0] != 0) return 0;
    for (int64_t s = 0; s < input->sentences; s++) {
        const int64_t length = input->cu_seqlens[s + 1] - input->cu_seqlens[s];
        if (length < 0 || length > input->positions.count) return 0;
    }
    for (int64_t token = 0; token < input->cu_seqlens[input->sentences]; token++)
        if (input->ids[token] < 0 || input->ids[token] >= model->vocabulary) return 0;
    return 1;
}

static int64_t longest_source(const HeedEncoderInput *input) {
    int64_t longest = 0;
    for (int64_t s = 0; s < input->sentences; s++)
        longest = most(longest, input->cu_seqlens[s + 1] - input->cu_seqlens[s]);
    return longest;
}

/* Calls `embed` or `rotate` for this thread's tokens: the start of the residual stream, or queries and keys in place. */
static void apply_positions(
    const Thread *thread, const HeedModel *model, Workspace *work, const HeedEncoderInput *input, int rotary) {
    const int64_t half = model->d_model / model->heads / 2;
    int64_t first, last, sentence = 0;
    partition(thread, work->rows, &first, &last);
    for (int64_t token = first; token < last; token++) {
        while (input->cu_seqlens[sentence + 1] <= token) sentence++;
        const int64_t position = token - input->cu_seqlens[sentence];
        if (!rotary) embed(model, &input->positions, input->ids[token], position, work->residual + token * model->d_model);
        for (int64_t head = 0; rotary && head < 2 * model->heads; head++) /* of queries, then of keys */
            rotate(
                work->projected + token * 3 * model->d_model + head * 2 * half, input->positions.cos + position * half,
                input->positions.sin + position * half, 2 * half);
    }
}

/* Self-attention of this thread's tokens, each within its sentence; work->projected: (tokens, 3, heads, head_width). */
static void encoder_attention(
    const Thread *thread, const HeedModel *model, Workspace *work, const HeedEncoderInput *input) {
    const int64_t head_width = model->d_model / model->heads, stride = 3 * model->d_model;
    int64_t first, last, sentence = 0;
    partition(thread, work->rows, &first, &last);
    for (int64_t token = first; token < last; token++) {
        while (input->cu_seqlens[sentence + 1] <= token) sentence++;
        const int64_t begin = input->cu_seqlens[sentence], count = input->cu_seqlens[sentence + 1] - begin;
        const KeyValues kv = {
            .keys = work->projected + begin * stride + model->d_model, .value_offset = model->d_model,
            .head_stride = head_width, .stride = stride, .count = count};
        for (int64_t head = 0; head < model->heads; head++)
            attend(
                work->projected + token * stride + head * head_width, &kv, 0, head, head_width,
                work->scores + thread->index * work->max_keys, work->heads + token * model->d_model + head * head_width);
    }
}

/* All layers; the output is in work->input. Every thread runs through this. */
static void run_encoder(const Thread *thread, const HeedModel *model, Workspace *work, const HeedEncoderInput *input) {
    apply_positions(thread, model, work, input, 0);
    for (const HeedLayer *layer = model->layers; layer < model->layers + model->layer_count; layer++) {
        const float *x = begin_sublayer(thread, model, work, &layer->norm[0]);
        linear(thread, &layer->qkv, x, work->rows, work->quantized, work->projected);
        barrier(thread);
        if (input->positions.cos) {
            apply_positions(thread, model, work, input, 1);
            barrier(thread);
        }
        encoder_attention(thread, model, work, input);
        end_sublayer(thread, model, work, layer, 0, &layer->o_self, work->heads);
        feed_forward(thread, model, work, layer, 1);
    }
    int64_t first, last;
    partition(thread, work->rows * model->d_model, &first, &last);
    const float *x = begin_sublayer(thread, model, work, &model->final_norm);
    if (x != work->input) memcpy(work->input + first, x + first, sizeof(float) * (last - first));
    barrier(thread);
}

typedef struct {
    const HeedModel *model;
    const HeedEncoderInput *input;
    Workspace work;
} EncoderCall;

static void run_encoder_call(const Thread *thread, void *context) {
    EncoderCall *call = context;
    run_encoder(thread, call->model, &call->work, call->input);
}

static int heed_encode(
    const HeedModel *model, const HeedEncoderInput *input, float *output, HeedPool *pool, int64_t threads) {
    if (!is_valid_source(model, input)) return HEED_INVALID;
    EncoderCall call = {model, input, {0}};
    const int64_t tokens = input->cu_seqlens[input->sentences];
    if (open_workspace(&call.work, model, tokens, longest_source(input), threads)) return HEED_NO_MEMORY;
    run_team(pool, threads, run_encoder_call, &call);
    memcpy(output, call.work.input, sizeof(float) * tokens * model->d_model);
    release(call.work.memory);
    return 0;
}
