/* The encoder over packed sentences, all layers in one call; the reference is `Transformer.encode`.

   Each thread computes some columns of every linear layer and some tokens of everything else, so the threads meet at a
   barrier after each operation. The attention scale 1 / √head_width is folded into the query weights. */

typedef struct {
    const float *embedded;                        /* (tokens, d_model): embeddings with positions added */
    const int64_t *sequence_ids, *cu_seqlens;     /* sentence of each token; first token of each sentence, then total */
    int64_t sentences, tokens, max_seqlen;
    const float *cos, *sin;                       /* (tokens, head_width / 2) for rotary positions, or NULL */
    float *output;                                /* (tokens, d_model) */
} EncoderInput;

/* Self-attention of this thread's tokens, each within its sentence. qkv: (tokens, 3, heads, head_width). */
static void encoder_attention(
    const Thread *thread, const Model *model, const EncoderInput *input, const float *qkv, float *output) {
    const int64_t head_width = model->d_model / model->heads, stride = 3 * model->d_model;
    int64_t first, last;
    partition(thread, input->tokens, &first, &last);
    for (int64_t token = first; token < last; token++) {
        const int64_t begin = input->cu_seqlens[input->sequence_ids[token]];
        const int64_t count = input->cu_seqlens[input->sequence_ids[token] + 1] - begin;
        for (int64_t head = 0; head < model->heads; head++) {
            const float *query = qkv + token * stride + head * head_width;
            const float *keys = qkv + begin * stride + model->d_model + head * head_width;
            for (int64_t t = 0; t < count; t++) thread->scores[t] = dot(query, keys + t * stride, head_width);
            softmax_weighted_sum(
                thread->scores, count, keys + model->d_model, NULL, stride, head_width,
                output + token * model->d_model + head * head_width);
        }
    }
}

/* Rotary positions of this thread's tokens: queries and keys of qkv, in place. */
static void rotate_tokens(const Thread *thread, const Model *model, const EncoderInput *input, float *qkv) {
    const int64_t head_width = model->d_model / model->heads;
    int64_t first, last;
    partition(thread, input->tokens, &first, &last);
    for (int64_t token = first; token < last; token++)
        for (int64_t head = 0; head < 2 * model->heads; head++) /* queries, then keys */
            rotate(
                qkv + token * 3 * model->d_model + head * head_width, input->cos + token * (head_width / 2),
                input->sin + token * (head_width / 2), head_width);
}

/* A view of the shared buffers that holds only this thread's tokens; offset: of its first float. */
static Thread slice_for_thread(const Thread *thread, const Model *model, int64_t *offset) {
    int64_t first, last;
    partition(thread, thread->rows, &first, &last);
    *offset = first * model->d_model;
    return (Thread){.rows = last - first, .residual = thread->residual + *offset, .input = thread->input + *offset};
}

/* All layers; every thread runs through this. Shared buffers: scratch (QKV, feed-forward), heads, output. */
static void run_encoder(
    const Thread *thread, const Model *model, const EncoderInput *input, float *scratch, float *heads, float *output) {
    int64_t offset;
    const Thread slice = slice_for_thread(thread, model, &offset);
    const float *x = model->norm_order == POST ? thread->residual : thread->input;
    memcpy(slice.residual, input->embedded + offset, sizeof(float) * slice.rows * model->d_model);
    for (const Layer *layer = model->layers; layer < model->layers + model->layer_count; layer++) {
        sublayer_input(&slice, model, &layer->norm[0]);
#pragma omp barrier
        linear(thread, &layer->qkv, x, scratch);
#pragma omp barrier
        if (input->cos) {
            rotate_tokens(thread, model, input, scratch);
#pragma omp barrier
        }
        encoder_attention(thread, model, input, scratch, heads);
#pragma omp barrier
        linear(thread, &layer->o_self, heads, output);
#pragma omp barrier
        add_residual_norm(&slice, model, layer, 0, output + offset);
        sublayer_input(&slice, model, &layer->norm[1]);
#pragma omp barrier
        ffn_in(thread, model, layer, x, scratch);
#pragma omp barrier
        linear(thread, &layer->ffn_out, scratch, output);
#pragma omp barrier
        add_residual_norm(&slice, model, layer, 1, output + offset);
    }
    memcpy(
        input->output + offset, sublayer_input(&slice, model, &model->final_norm),
        sizeof(float) * slice.rows * model->d_model);
}

/* Whether sequence_ids and cu_seqlens are within bounds. */
static int is_valid_layout(const EncoderInput *input) {
    if (!is_valid_packing(input->cu_seqlens, input->sentences, input->tokens, input->max_seqlen)) return 0;
    for (int64_t token = 0; token < input->tokens; token++)
        if (input->sequence_ids[token] < 0 || input->sequence_ids[token] >= input->sentences) return 0;
    return 1;
}

/* Returns 0 or an error code. */
int heed_encode(const Model *model, const EncoderInput *input, int64_t threads) {
    if (!is_valid_layout(input)) return INVALID;
    const int64_t rows = input->tokens;
    /* Buffer sizes in floats; `quantized` holds bytes, four per float. */
    const int64_t hidden = aligned(rows * model->d_model), scratch = aligned(scratch_size(model, rows));
    const int64_t scores_size = aligned(input->max_seqlen), scales_size = aligned(rows);
    const int64_t shared = 4 * hidden + scratch, per_thread = scores_size + scales_size + aligned(scratch / 4 + 1);
    float *memory = aligned_alloc(ALIGNED, sizeof(float) * (shared + threads * per_thread));
    if (!memory) return NO_MEMORY;
#pragma omp parallel num_threads(threads)
    {
        float *scores = memory + shared + omp_get_thread_num() * per_thread, *row_scale = scores + scores_size;
        const Thread thread = {
            omp_get_thread_num(), omp_get_num_threads(), rows, memory, memory + hidden, scores, row_scale,
            (uint8_t *)(row_scale + scales_size)};
        run_encoder(&thread, model, input, memory + 4 * hidden, memory + 2 * hidden, memory + 3 * hidden);
    }
    free(memory);
    return 0;
}
