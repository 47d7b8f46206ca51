/* Sentences being translated: their slots, hypotheses and beam steps. The reference is `decoding/search.py`.

   A hypothesis of a slot owns columns of the slot's keys and values, as listed in `columns`; a beam step reorders these
   lists, never keys or values. */

typedef struct {                                  /* a sentence being translated */
    int64_t sentence;                             /* -1: the slot is free */
    int64_t length, hypotheses, finished;         /* tokens of each hypothesis; how many are live; how many finished */
    int64_t first_row;                            /* of its hypotheses in this step */
    double *live;                                 /* (beam): log-probabilities, best first */
    int64_t capacity, used;                       /* tokens that a hypothesis has room for; columns in use */
    int64_t *written, *columns;                   /* (beam, capacity): tokens; columns of kv that hold them */
    int64_t *next_written, *next_columns;         /* the same after this step */
    float *kv;                                    /* (layers, beam * capacity, 2, d_model) */
    void *memory;                                 /* of all that depends on the capacity */
    float *source_kv;                             /* (layers, heads, 2, source_length, head_width) */
    int64_t source_length, source_capacity;
} Slot;

typedef struct {                                  /* memory of one thread for a beam step */
    float *values;                                /* (beam, count) */
    int64_t *tokens;                              /* (beam, count) */
    int64_t *most_probable, *cursor;              /* (beam) */
    Continuations unfinished, ending;
} BeamMemory;

typedef struct {
    const HeedModel *encoder, *decoder;
    const HeedSearchSettings *settings;
    const HeedSearchInput *input;
    int64_t waiting, steps;                       /* the next sentence without a slot; steps so far */
    Slot *slots;
    int64_t *in_progress;                         /* (slots): sentences, for before_step */
    Slot **newcomers;                             /* (slots): whose sentences are encoded before this step */
    HeedEncoderInput new_sources;
    int64_t *new_ids, *new_starts;                /* their tokens, packed */
    Row *rows;                                    /* (slots * beam) */
    Allowed *allowed;
    NextTokens next;
    BeamMemory *beam_memory;                      /* (threads) */
    Workspace encoding, decoding;
    atomic_int status;                            /* 0 or an error code */
} Search;

/* ---- slots ------------------------------------------------------------------------------------------------------- */

/* Room for more tokens; returns 0 or an error code. */
static int grow(const Search *search, Slot *slot, int64_t capacity) {
    const int64_t beam = search->settings->beam, layers = search->decoder->layer_count;
    const int64_t width = 2 * search->decoder->d_model, list = beam * capacity, old = slot->capacity;
    const int64_t floats = aligned(layers * list * width + 8 * list);
    float *kv = allocate(sizeof(float) * floats);
    if (!kv) return HEED_NO_MEMORY;
    int64_t *written = (int64_t *)(kv + layers * list * width), *columns = written + list;
    for (int64_t h = 0; h < slot->hypotheses && slot->length; h++) {
        memcpy(written + h * capacity, slot->written + h * old, sizeof(int64_t) * slot->length);
        memcpy(columns + h * capacity, slot->columns + h * old, sizeof(int64_t) * slot->length);
    }
    for (int64_t layer = 0; layer < layers && slot->used; layer++)
        memcpy(kv + layer * list * width, slot->kv + layer * beam * old * width, sizeof(float) * slot->used * width);
    release(slot->memory);
    slot->memory = slot->kv = kv;
    slot->capacity = capacity;
    slot->written = written, slot->columns = columns;
    slot->next_written = columns + list, slot->next_columns = columns + 2 * list;
    return 0;
}

/* Puts a sentence into a free slot; returns 0 or an error code. */
static int enter(const Search *search, Slot *slot, int64_t sentence) {
    const int64_t *starts = search->input->source.cu_seqlens, length = starts[sentence + 1] - starts[sentence];
    const int64_t floats = search->decoder->layer_count * length * 2 * search->decoder->d_model;
    if (floats > slot->source_capacity) {
        free(slot->source_kv);
        slot->source_kv = malloc(sizeof(float) * floats);
        slot->source_capacity = slot->source_kv ? floats : 0;
        if (!slot->source_kv) return HEED_NO_MEMORY;
    }
    slot->sentence = sentence;
    slot->source_length = length;
    slot->length = slot->finished = slot->used = 0;
    slot->hypotheses = 1;
    slot->live[0] = 0;
    return 0;
}

/* ---- finished hypotheses ----------------------------------------------------------------------------------------- */

static double length_penalty(const Search *search, int64_t length) {
    return pow((5 + (double)length) / 6, search->settings->length_penalty);
}

/* The score of the finished hypothesis of this rank. */
static double finished_score(const Search *search, const Slot *slot, int64_t rank) {
    const int64_t result = slot->sentence * search->settings->nbest + rank;
    return search->input->log_probs[result] / length_penalty(search, search->input->lengths[result] + 1);
}

/* Adds a hypothesis to the finished ones if it is among the nbest; of equal scores the first one found wins. */
static void add_finished(const Search *search, Slot *slot, int64_t hypothesis, double log_prob, int64_t truncated) {
    const HeedSearchInput *input = search->input;
    const int64_t nbest = search->settings->nbest, first = slot->sentence * nbest;
    const int64_t stride = input->max_lengths[slot->sentence];
    int64_t *tokens = input->tokens + input->token_starts[slot->sentence], rank = slot->finished;
    const double score = log_prob / length_penalty(search, slot->length + 1);
    while (rank > 0 && finished_score(search, slot, rank - 1) < score) rank--;
    if (rank == nbest) return;
    slot->finished = least(slot->finished + 1, nbest);
    for (int64_t i = slot->finished - 1; i > rank; i--) {
        input->lengths[first + i] = input->lengths[first + i - 1];
        input->log_probs[first + i] = input->log_probs[first + i - 1];
        input->truncated[first + i] = input->truncated[first + i - 1];
        memcpy(tokens + i * stride, tokens + (i - 1) * stride, sizeof(int64_t) * stride);
    }
    input->lengths[first + rank] = slot->length;
    input->log_probs[first + rank] = log_prob;
    input->truncated[first + rank] = truncated;
    if (slot->length)
        memcpy(tokens + rank * stride, slot->written + hypothesis * slot->capacity, sizeof(int64_t) * slot->length);
}

/* Whether no live hypothesis can become one of the nbest. A log-probability only decreases, and of the lengths still to
   come the first or the last has the largest penalty, whatever the sign of the exponent. */
static int is_done(const Search *search, const Slot *slot) {
    const HeedSearchSettings *settings = search->settings;
    const int has_all = slot->finished == settings->nbest;
    if (!slot->hypotheses) return 1;
    if (!has_all) return 0;
    if (settings->stop_first || settings->beam == 1) return 1;
    const double following = length_penalty(search, slot->length + 1);
    const double last = length_penalty(search, search->input->max_lengths[slot->sentence] + 1);
    return !(slot->live[0] / (last > following ? last : following) > finished_score(search, slot, settings->nbest - 1));
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

/* The hypotheses after a step: the unfinished continuations, with their columns. */
static void extend(Slot *slot, const Continuations *unfinished, int64_t width) {
    const int64_t capacity = slot->capacity, length = slot->length;
    int64_t kept = 0;
    for (int64_t w = 0; w < width; w++) {
        if (!(unfinished->totals[w] > -INFINITY)) continue;
        const int64_t parent = unfinished->parents[w] * capacity;
        memcpy(slot->next_written + kept * capacity, slot->written + parent, sizeof(int64_t) * length);
        memcpy(slot->next_columns + kept * capacity, slot->columns + parent, sizeof(int64_t) * (length + 1));
        slot->next_written[kept * capacity + length] = unfinished->tokens[w];
        slot->live[kept++] = unfinished->totals[w];
    }
    int64_t *const written = slot->written, *const columns = slot->columns;
    slot->written = slot->next_written, slot->next_written = written;
    slot->columns = slot->next_columns, slot->next_columns = columns;
    slot->used += slot->hypotheses;
    slot->hypotheses = kept;
    slot->length++;
}

/* The beam step of one sentence; returns 0 or an error code. */
static int advance(const Search *search, Slot *slot, const BeamMemory *memory) {
    const HeedSearchSettings *settings = search->settings;
    const int64_t count = search->next.count, must_end = slot->length >= search->input->max_lengths[slot->sentence];
    for (int64_t h = 0; h < slot->hypotheses; h++)
        if (!merge_tokens(
                &search->next, slot->first_row + h, memory->values + h * count, memory->tokens + h * count,
                &memory->most_probable[h]))
            return HEED_NO_HYPOTHESIS;
    const BeamStep step = {
        slot->live, slot->hypotheses, settings->beam, settings->eos, count, memory->values, memory->tokens};
    select_best(&step, 0, memory->unfinished, memory->cursor);
    if (any_finished(&step, memory->unfinished.totals)) {
        const Continuations *ending = &memory->ending;
        select_best(&step, 1, *ending, memory->cursor);
        for (int64_t w = 0; w < settings->beam; w++)
            if (ending->tokens[w] == settings->eos && ending->totals[w] > -INFINITY)
                add_finished(
                    search, slot, ending->parents[w], ending->totals[w],
                    must_end && memory->most_probable[ending->parents[w]] != settings->eos);
    }
    extend(slot, &memory->unfinished, settings->beam);
    if (!is_done(search, slot)) return 0;
    const int64_t found = slot->finished;
    slot->sentence = -1;
    return found ? 0 : HEED_NO_HYPOTHESIS;
}
