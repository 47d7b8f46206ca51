/* Sentences end to end through an encoder, in one call; the twin is `Transformer.encode`.

   Of a product each thread works out some columns, of all else some tokens; so they meet after each. */

typedef struct {
    const float *embedded;                        /* (tokens, width), with their places */
    const int64_t *owners, *offsets;              /* the sentence of each token; where each begins, and the last ends */
    int64_t sentences, tokens, longest;
    const float *cos, *sin;                       /* (tokens, half a head), by which queries and keys turn, or none */
    float *found;                                 /* (tokens, width) */
} Sources;

/* Attention of this thread's tokens to all of their sentences. */
static void look_around(
    const Thread *thread, const Model *model, const Sources *sources, const float *own, float *found) {
    const int64_t size = model->width / model->heads, stride = 3 * model->width;
    int64_t first, last;
    share(thread, sources->tokens, &first, &last);
    for (int64_t token = first; token < last; token++) {
        const int64_t begin = sources->offsets[sources->owners[token]];
        const int64_t count = sources->offsets[sources->owners[token] + 1] - begin;
        for (int64_t head = 0; head < model->heads; head++) {
            const float *query = own + token * stride + head * size;
            const float *keys = own + begin * stride + model->width + head * size;
            for (int64_t t = 0; t < count; t++) thread->scores[t] = dot(query, keys + t * stride, size);
            gather(
                thread->scores, count, keys + model->width, NULL, stride, size,
                found + token * model->width + head * size);
        }
    }
}

static void turn_tokens(const Thread *thread, const Model *model, const Sources *sources, float *own) {
    const int64_t size = model->width / model->heads;
    int64_t first, last;
    share(thread, sources->tokens, &first, &last);
    for (int64_t token = first; token < last; token++)
        for (int64_t head = 0; head < 2 * model->heads; head++) /* queries, then keys */
            turn(
                own + token * 3 * model->width + head * size, sources->cos + token * (size / 2),
                sources->sin + token * (size / 2), size);
}

/* This thread's tokens of what all share: as if they were all there are. */
static Thread part_of(const Thread *thread, const Model *model, int64_t *offset) {
    int64_t first, last;
    share(thread, thread->rows, &first, &last);
    *offset = first * model->width;
    return (Thread){.rows = last - first, .stream = thread->stream + *offset, .ready = thread->ready + *offset};
}

static void through_layers(
    const Thread *thread, const Model *model, const Sources *sources, float *wide, float *heads, float *found) {
    int64_t offset;
    const Thread part = part_of(thread, model, &offset);
    const float *x = model->order == POST ? thread->stream : thread->ready;
    memcpy(part.stream, sources->embedded + offset, sizeof(float) * part.rows * model->width);
    for (const Layer *layer = model->layers; layer < model->layers + model->count; layer++) {
        made_ready(&part, model, &layer->norm[0]);
#pragma omp barrier
        multiply(thread, &layer->own, x, wide);
#pragma omp barrier
        if (sources->cos) {
            turn_tokens(thread, model, sources, wide);
#pragma omp barrier
        }
        look_around(thread, model, sources, wide, heads);
#pragma omp barrier
        multiply(thread, &layer->output, heads, found);
#pragma omp barrier
        settle(&part, model, layer, 0, found + offset);
        made_ready(&part, model, &layer->norm[1]);
#pragma omp barrier
        widen(thread, model, layer, x, wide);
#pragma omp barrier
        multiply(thread, &layer->narrow, wide, found);
#pragma omp barrier
        settle(&part, model, layer, 1, found + offset);
    }
    memcpy(sources->found + offset, made_ready(&part, model, &model->last), sizeof(float) * part.rows * model->width);
}

/* Whether each token belongs to a sentence, and the sentences to the tokens. */
static int has_owners(const Sources *sources) {
    if (!lie_end_to_end(sources->offsets, sources->sentences, sources->tokens, sources->longest)) return 0;
    for (int64_t token = 0; token < sources->tokens; token++)
        if (sources->owners[token] < 0 || sources->owners[token] >= sources->sentences) return 0;
    return 1;
}

/* 0 if all is well. */
int heed_encode(const Model *model, const Sources *sources, int64_t threads) {
    if (!has_owners(sources)) return WRONG;
    const int64_t rows = sources->tokens, width = aligned(rows * model->width);
    const int64_t widest = aligned(widest_of(model, rows));
    const int64_t own[] = {aligned(sources->longest), aligned(rows), aligned(widest_of(model, rows) / 4 + 1)};
    const int64_t each = own[0] + own[1] + own[2];
    float *memory = aligned_alloc(ALIGNED, sizeof(float) * (4 * width + widest + threads * each));
    if (!memory) return NO_MEMORY;
#pragma omp parallel num_threads(threads)
    {
        float *scores = memory + 4 * width + widest + omp_get_thread_num() * each, *worth = scores + own[0];
        const Thread thread = {
            omp_get_thread_num(), omp_get_num_threads(), rows, memory, memory + width, scores, worth,
            (uint8_t *)(worth + own[1])};
        through_layers(&thread, model, sources, memory + 4 * width, memory + 2 * width, memory + 3 * width);
    }
    free(memory);
    return 0;
}
