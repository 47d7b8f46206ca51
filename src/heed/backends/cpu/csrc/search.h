/* A whole search: token ids of sources in, finished hypotheses out. The reference is `decoding/search.py`.

   Sentences being translated occupy slots. A sentence leaves its slot when it is done, and waiting sentences take the
   free slots, so that the steps stay large. */

/* Keys and values of the sources that have just entered. */
static void encode_newcomers(const Thread *thread, Search *search) {
    Workspace *work = &search->encoding;
    const int64_t heads = search->decoder->heads, size = search->decoder->d_model / heads;
    const int64_t *starts = search->new_sources.cu_seqlens;
    run_encoder(thread, search->encoder, work, &search->new_sources);
    for (int64_t layer = 0; layer < search->decoder->layer_count; layer++) {
        linear(
            thread, &search->decoder->layers[layer].kv_cross, work->input, work->rows, work->quantized,
            work->projected);
        barrier(thread);
        for (int64_t i = thread->index; i < search->new_sources.sentences; i += thread->team->count) {
            const Slot *slot = search->newcomers[i];
            float *to = slot->source_kv + layer * slot->source_length * 2 * heads * size;
            for (int64_t head = 0; head < heads; head++)
                for (int part = 0; part < 2; part++) /* keys, then values */
                    for (int64_t t = starts[i]; t < starts[i + 1]; t++, to += size)
                        memcpy(to, work->projected + ((2 * t + part) * heads + head) * size, sizeof(float) * size);
        }
        barrier(thread);
    }
}

/* ---- what to compute next: by one thread, while the others wait -------------------------------------------------- */

/* Ends a sentence whose result nobody needs, with whatever is there. */
static void cancel(const Search *search, Slot *slot) {
    if (!slot->finished) add_finished(search, slot, 0, slot->live[0], 0);
    slot->sentence = -1;
}

/* Lets waiting sentences into free slots, once there are enough of these to encode several together. */
static int fill_slots(Search *search) {
    const HeedSearchInput *input = search->input;
    const int64_t *starts = input->source.cu_seqlens;
    HeedEncoderInput *sources = &search->new_sources;
    int64_t free_slots = 0, longest = 0, tokens = 0;
    for (int64_t i = 0; i < input->slots; i++) free_slots += search->slots[i].sentence < 0;
    sources->sentences = 0;
    if (4 * free_slots < input->slots) return 0;
    for (int64_t i = 0; i < input->slots && search->waiting < input->source.sentences; i++) {
        Slot *slot = &search->slots[i];
        if (slot->sentence >= 0) continue;
        const int64_t sentence = search->waiting++;
        if (enter(search, slot, sentence)) return HEED_NO_MEMORY;
        memcpy(
            search->new_ids + tokens, input->source.ids + starts[sentence], sizeof(int64_t) * slot->source_length);
        search->newcomers[sources->sentences++] = slot;
        tokens += slot->source_length;
        search->new_starts[sources->sentences] = tokens;
        longest = most(longest, slot->source_length);
    }
    if (!sources->sentences) return 0;
    release(search->encoding.memory);
    search->encoding.memory = NULL;
    return open_workspace(&search->encoding, search->encoder, tokens, longest, input->threads);
}

/* The only token that a hypothesis may write next: of its prefix, or eos at its maximum length; -1: any. */
static int64_t only_token(const Search *search, const Slot *slot) {
    const HeedSearchInput *input = search->input;
    const int64_t prefix = input->prefix_starts[slot->sentence];
    if (slot->length < input->prefix_starts[slot->sentence + 1] - prefix) return input->prefix_ids[prefix + slot->length];
    return slot->length >= input->max_lengths[slot->sentence] ? search->settings->eos : -1;
}

/* Adds the rows of a slot's hypotheses to this step. */
static void add_rows(Search *search, Slot *slot, int64_t *row) {
    const HeedSearchSettings *settings = search->settings;
    const HeedModel *model = search->decoder;
    const int64_t width = model->d_model, size = width / model->heads;
    const int64_t length = slot->length, only = only_token(search, slot);
    slot->first_row = *row;
    for (int64_t h = 0; h < slot->hypotheses; h++, ++*row) {
        int64_t *written = slot->written + h * slot->capacity, *columns = slot->columns + h * slot->capacity;
        columns[length] = slot->used + h;
        search->allowed[*row] = (Allowed){written, length, length >= settings->min_length, only};
        search->rows[*row] = (Row){
            .token = length ? written[length - 1] : settings->bos, .position = length, .column = columns[length],
            .self = {.keys = slot->kv, .value_offset = width,
                     .layer_stride = settings->beam * slot->capacity * 2 * width, .head_stride = size,
                     .stride = 2 * width, .index = settings->beam > 1 ? columns : NULL, .count = length + 1},
            .source = {.keys = slot->source_kv, .value_offset = slot->source_length * size,
                       .layer_stride = 2 * slot->source_length * width,
                       .head_stride = 2 * slot->source_length * size, .stride = size,
                       .count = slot->source_length}};
    }
}

/* Asks whether to go on, lets sentences in and lists the rows of the next step; returns 0 or an error code. */
static int plan_step(Search *search) {
    enum { FIRST_CAPACITY = 32 };
    const HeedSearchInput *input = search->input;
    int64_t rows = 0, count = 0;
    for (int64_t i = 0; i < input->slots; i++)
        if (search->slots[i].sentence >= 0) search->in_progress[count++] = search->slots[i].sentence;
    if (search->steps++ % input->steps_between == 0 && input->before_step(search->in_progress, count))
        return HEED_CANCELLED;
    for (int64_t i = 0; i < input->slots; i++)
        if (search->slots[i].sentence >= 0 && input->cancelled[search->slots[i].sentence])
            cancel(search, &search->slots[i]);
    if (fill_slots(search)) return HEED_NO_MEMORY;
    for (int64_t i = 0; i < input->slots; i++) {
        Slot *slot = &search->slots[i];
        if (slot->sentence < 0) continue;
        const int64_t needed = input->max_lengths[slot->sentence] + 1;
        if (slot->length == slot->capacity
            && grow(search, slot, least(needed, most(FIRST_CAPACITY, 2 * slot->capacity))))
            return HEED_NO_MEMORY;
        add_rows(search, slot, &rows);
    }
    search->decoding.rows = search->next.rows = rows;
    return 0;
}

/* ---- the search -------------------------------------------------------------------------------------------------- */

static void run_search(const Thread *thread, void *context) {
    Search *search = context;
    if (thread->index == 0) search->next.threads = thread->team->count;
    for (;;) {
        if (thread->index == 0 && !search->status) search->status = plan_step(search);
        barrier(thread);
        if (search->status || !search->next.rows) return;
        if (search->new_sources.sentences) encode_newcomers(thread, search);
        const float *x = run_decoder(
            thread, search->decoder, &search->decoding, search->rows, &search->input->positions);
        find_next_tokens(thread, search->decoder, &search->decoding, x, &search->next);
        barrier(thread);
        for (int64_t i = thread->index; i < search->input->slots; i += thread->team->count) {
            const int error = search->slots[i].sentence < 0
                ? 0 : advance(search, &search->slots[i], &search->beam_memory[thread->index]);
            if (error) search->status = error;
        }
        barrier(thread);
    }
}

/* The next `bytes` of memory, rounded up to cache lines; measures only if there is no memory. */
static void *take(char *memory, int64_t *used, int64_t bytes) {
    void *const taken = memory ? memory + *used : NULL;
    *used += (bytes + ALIGNED - 1) / ALIGNED * ALIGNED;
    return taken;
}

static Continuations take_continuations(char *memory, int64_t *used, int64_t width) {
    return (Continuations){
        take(memory, used, sizeof(double) * width), take(memory, used, sizeof(int64_t) * width),
        take(memory, used, sizeof(int64_t) * width)};
}

/* Divides memory among the arrays of a search; returns how many bytes it takes. memory may be NULL. */
static int64_t lay_out(Search *search, char *memory) {
    const HeedSearchInput *input = search->input;
    const int64_t beam = search->settings->beam, rows = input->slots * beam, count = search->next.count;
    const int64_t lists = input->threads * rows * count;
    int64_t used = 0;
    search->slots = take(memory, &used, sizeof(Slot) * input->slots);
    search->in_progress = take(memory, &used, sizeof(int64_t) * input->slots);
    search->newcomers = take(memory, &used, sizeof(Slot *) * input->slots);
    search->new_starts = take(memory, &used, sizeof(int64_t) * (input->slots + 1));
    search->new_ids = take(memory, &used, sizeof(int64_t) * input->slots * longest_source(&input->source));
    search->rows = take(memory, &used, sizeof(Row) * rows);
    search->allowed = take(memory, &used, sizeof(Allowed) * rows);
    search->next.partials = take(memory, &used, sizeof(Partial) * input->threads * rows);
    search->next.values = take(memory, &used, sizeof(float) * lists);
    search->next.tokens = take(memory, &used, sizeof(int64_t) * lists);
    search->next.only = take(memory, &used, sizeof(float) * rows);
    search->next.logits = take(memory, &used, sizeof(float) * input->threads * rows * VOCABULARY_BLOCK);
    search->beam_memory = take(memory, &used, sizeof(BeamMemory) * input->threads);
    for (int64_t i = 0; i < input->slots; i++) {
        double *live = take(memory, &used, sizeof(double) * beam);
        if (memory) search->slots[i] = (Slot){.sentence = -1, .live = live};
    }
    for (int64_t t = 0; t < input->threads; t++) {
        const BeamMemory taken = {
            take(memory, &used, sizeof(float) * beam * count), take(memory, &used, sizeof(int64_t) * beam * count),
            take(memory, &used, sizeof(int64_t) * beam), take(memory, &used, sizeof(int64_t) * beam),
            take_continuations(memory, &used, beam), take_continuations(memory, &used, beam)};
        if (memory) search->beam_memory[t] = taken;
    }
    search->next.allowed = search->allowed;
    search->new_sources.ids = search->new_ids;
    search->new_sources.cu_seqlens = search->new_starts;
    if (memory) search->new_starts[0] = 0;
    return used;
}

/* Whether all ids, lengths and positions are within bounds. */
static int is_valid_search(const Search *search) {
    const HeedSearchInput *input = search->input;
    const int64_t vocabulary = search->decoder->vocabulary;
    if (!is_valid_source(search->encoder, &input->source) || input->slots < 1 || input->threads < 1) return 0;
    for (int64_t s = 0; s < input->source.sentences; s++) {
        const int64_t prefix = input->prefix_starts[s + 1] - input->prefix_starts[s];
        if (prefix < 0 || prefix > input->max_lengths[s] || input->max_lengths[s] >= input->positions.count
            || search->settings->min_length > input->max_lengths[s])
            return 0;
    }
    for (int64_t i = 0; i < input->prefix_starts[input->source.sentences]; i++)
        if (input->prefix_ids[i] < 0 || input->prefix_ids[i] >= vocabulary
            || input->prefix_ids[i] == search->settings->eos)
            return 0;
    return 1;
}

static int heed_search(
    const HeedModel *encoder, const HeedModel *decoder, const HeedSearchSettings *settings,
    const HeedSearchInput *input) {
    Search search = {.encoder = encoder, .decoder = decoder, .settings = settings, .input = input};
    int64_t max_keys = 0;
    if (!is_valid_search(&search)) return HEED_INVALID;
    for (int64_t s = 0; s < input->source.sentences; s++) max_keys = most(max_keys, input->max_lengths[s] + 1);
    for (int64_t i = 0; i < input->source.sentences * settings->nbest; i++) input->lengths[i] = -1;
    search.new_sources.positions = input->source.positions;
    search.next = (NextTokens){
        .pad = settings->pad, .bos = settings->bos, .eos = settings->eos, .no_repeat_ngram = settings->no_repeat_ngram,
        .count = least(settings->beam + 1, decoder->vocabulary)};
    max_keys = most(max_keys, longest_source(&input->source));
    char *memory = allocate(lay_out(&search, NULL));
    if (!memory) return HEED_NO_MEMORY;
    lay_out(&search, memory);
    search.status = open_workspace(&search.decoding, decoder, input->slots * settings->beam, max_keys, input->threads);
    if (!search.status) run_team(input->pool, input->threads, run_search, &search);
    for (int64_t i = 0; i < input->slots; i++) {
        release(search.slots[i].memory);
        free(search.slots[i].source_kv);
    }
    release(search.encoding.memory);
    release(search.decoding.memory);
    release(memory);
    return search.status;
}
