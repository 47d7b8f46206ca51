/* One token more for every hypothesis: a whole step of a decoder, from word ids to logits, in one call.

   The twin is `LeanDecoder.step`, and what is remembered between steps lies as `hypotheses.py` lays it. Every thread
   runs through all of the step: it keeps the stream of residuals to itself, takes its own share of each product, and
   meets the others only where a product must be whole. `compiled_step.py` fills in the structures below. */

typedef struct {                                  /* what a step meets */
    const int64_t *ids;
    int64_t sentences, wide, length;              /* hypotheses of each sentence, and their tokens, this one counted */
    int64_t held;                                 /* sentences that room and memory hold */
    const int64_t *places;                        /* which of those each sentence is, or none: there are no others */
    const float *place;                           /* added to words, or none */
    const float *cos, *sin;                       /* by which queries and keys are turned, or none */
    float *room;                                  /* (layers, 2, held, heads, columns, width of a head) */
    int64_t columns, filled;                      /* that it has; that are spoken for */
    const int64_t *written;                       /* (sentences, wide, length): columns of each hypothesis, or none */
    const float *memory;                          /* (layers, 2, held, heads, tokens, width of a head) */
    int64_t tokens;
    const int64_t *lengths;                       /* of the sources: what comes after is padding */
    float *found;                                 /* (rows, words): logits */
} Seen;

/* Which of the sentences that are held a row belongs to. */
static int64_t place_of(const Seen *seen, int64_t row) {
    return seen->places ? seen->places[row / seen->wide] : row / seen->wide;
}

/* Self-attention of this thread's share of rows and heads; new keys and values find their places on the way. */
static void look_back(
    const Thread *thread, const Model *model, const Layer *layer, const Seen *seen, float *own, float *found) {
    const int64_t heads = model->heads, size = model->width / heads, buffer = seen->columns * size;
    const int64_t first_of_layer = 2 * (layer - model->layers) * seen->held * heads;
    int64_t first, last;
    share(thread, thread->rows * heads, &first, &last);
    for (int64_t item = first; item < last; item++) {
        const int64_t row = item / heads, head = item % heads, column = seen->filled + row % seen->wide;
        float *query = own + row * 3 * model->width + head * size, *key = query + model->width;
        float *keys = seen->room + (first_of_layer + place_of(seen, row) * heads + head) * buffer;
        float *values = keys + seen->held * heads * buffer;
        const int64_t *written = seen->written ? seen->written + row * seen->length : NULL;
        if (seen->cos) {
            turn(query, seen->cos, seen->sin, size);
            turn(key, seen->cos, seen->sin, size);
        }
        memcpy(keys + column * size, key, sizeof(float) * size);
        memcpy(values + column * size, key + model->width, sizeof(float) * size);
        for (int64_t t = 0; t < seen->length; t++)
            thread->scores[t] = dot(query, keys + (written ? written[t] : t) * size, size);
        gather(thread->scores, seen->length, values, written, size, size, found + row * model->width + head * size);
    }
}

/* Attention to the source, likewise. */
static void look_across(
    const Thread *thread, const Model *model, const Layer *layer, const Seen *seen, const float *asked, float *found) {
    const int64_t heads = model->heads, size = model->width / heads, buffer = seen->tokens * size;
    const int64_t first_of_layer = 2 * (layer - model->layers) * seen->held * heads;
    int64_t first, last;
    share(thread, thread->rows * heads, &first, &last);
    for (int64_t item = first; item < last; item++) {
        const int64_t row = item / heads, head = item % heads, sentence = row / seen->wide;
        const float *keys = seen->memory + (first_of_layer + place_of(seen, row) * heads + head) * buffer;
        const float *values = keys + seen->held * heads * buffer;
        const float *query = asked + row * model->width + head * size;
        for (int64_t t = 0; t < seen->lengths[sentence]; t++) thread->scores[t] = dot(query, keys + t * size, size);
        gather(
            thread->scores, seen->lengths[sentence], values, NULL, size, size,
            found + row * model->width + head * size);
    }
}

static void embed(const Thread *thread, const Model *model, const Seen *seen) {
    for (int64_t r = 0; r < thread->rows; r++) {
        const float *word = model->embedding + seen->ids[r] * model->width;
        for (int64_t i = 0; i < model->width; i++)
            thread->stream[r * model->width + i] = word[i] * model->scale + (seen->place ? seen->place[i] : 0);
    }
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

/* Whether ids, columns and places are within what they are of. */
static int is_within(const Model *model, const Seen *seen) {
    const int64_t rows = seen->sentences * seen->wide;
    int right = seen->filled >= 0 && seen->filled + seen->wide <= seen->columns && seen->length <= seen->columns;
    for (int64_t r = 0; r < rows; r++) right &= seen->ids[r] >= 0 && seen->ids[r] < model->logits.outputs;
    for (int64_t b = 0; b < seen->sentences; b++) {
        const int64_t place = seen->places ? seen->places[b] : b;
        right &= place >= 0 && place < seen->held && seen->lengths[b] >= 0 && seen->lengths[b] <= seen->tokens;
    }
    for (int64_t i = 0; seen->written && i < rows * seen->length; i++)
        right &= seen->written[i] >= 0 && seen->written[i] < seen->columns;
    return right;
}

/* 0 if all is well. */
int heed_step(const Model *model, const Seen *seen, int64_t threads) {
    if (!is_within(model, seen)) return WRONG;
    const int64_t rows = seen->sentences * seen->wide, width = rows * model->width;
    const int64_t widest = widest_of(model, rows);
    const int64_t longest = seen->length > seen->tokens ? seen->length : seen->tokens;
    const int64_t shared[] = {aligned(widest), aligned(width), aligned(width)};
    const int64_t own[] = {aligned(width), aligned(width), aligned(longest), aligned(rows), aligned(widest / 4 + 1)};
    const int64_t all_shared = shared[0] + shared[1] + shared[2];
    const int64_t all_own = own[0] + own[1] + own[2] + own[3] + own[4];
    float *memory = aligned_alloc(ALIGNED, sizeof(float) * (all_shared + threads * all_own));
    if (!memory) return NO_MEMORY;
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
