/* Attention between sentences that lie end to end, and its way back; the twin is `plain_attention`.

   A thread takes one head of one sentence at a time, and some queries of it at a time: what these think of all keys is
   all that is kept, however long the sentence. The way back works that out anew. */

enum { TOGETHER = 32 };                           /* queries at a time */

typedef struct {                                  /* rows are tokens, of (heads, size) numbers */
    Rows queries, keys, values, found;
    Rows above, by_queries, by_keys, by_values;   /* gradients: of what was found, and of what was given */
    const int64_t *offsets, *key_offsets;         /* where each sentence begins, and the last ends */
    int64_t tokens, key_tokens;
    int64_t sentences, heads, size, longest;      /* longest: keys that a sentence has */
    int64_t causal;                               /* whether a query sees only what does not come after it */
    Dropout dropout;
} Attention;

typedef struct {                                  /* a head of a sentence, and room to think about it */
    Rows queries, keys, values, found, above, by_queries, by_keys, by_values;
    int64_t head, first_query, first_key, targets, sources;
    Rows turned_keys, turned_values;              /* one token a column, in whole registers */
    Rows weights, left, changes;                  /* of TOGETHER queries; left: by dropout */
} Item;

static Numbers as_it_lies(Rows rows) { return (Numbers){rows.numbers, rows.down, 1}; }

static Numbers transposed(Rows rows) { return (Numbers){rows.numbers, 1, rows.down}; }

/* Vectors of tokens as columns, zeros after the last. */
static void turn_around(Rows tokens, int64_t count, int64_t size, Rows turned) {
    for (int64_t k = 0; k < size; k++) {
        float *row = turned.numbers + k * turned.down;
        for (int64_t s = 0; s < count; s++) row[s] = tokens.numbers[s * tokens.down + k];
        for (int64_t s = count; s < turned.down; s++) row[s] = 0;
    }
}

/* A query's numbers for all keys, without those that dropout takes. */
static void drop_keys(const Attention *all, const Item *item, int64_t query, float *row) {
    const int64_t own = (item->first_query + query) * all->heads + item->head;
    drop(&all->dropout, own, item->first_key, row, row, item->sources);
}

/* How many keys a query sees: the last one stands level with the last key. */
static int64_t seen(const Attention *all, const Item *item, int64_t query) {
    const int64_t level = item->sources - item->targets + query + 1;
    return !all->causal ? item->sources : level > 0 ? level : 0;
}

/* softmax(Q Kᵀ / √size) of some queries, zero for what is not seen. */
static void weigh(const Attention *all, const Item *item, int64_t first, int64_t count) {
    const float scale = 1 / sqrtf((float)all->size);
    const int64_t room = item->weights.down;
    const Rows queries = shifted(item->queries, first, 0);
    small_product(as_it_lies(queries), item->turned_keys, item->weights, count, all->size, room, 0);
    for (int64_t t = 0; t < count; t++) {
        float *row = item->weights.numbers + t * room, highest = -INFINITY, total = 0;
        const int64_t sees = seen(all, item, first + t);
        for (int64_t s = sees; s < room; s++) row[s] = -INFINITY; /* all of what follows in whole registers */
#pragma omp simd reduction(max : highest)
        for (int64_t s = 0; s < room; s++) highest = row[s] > highest ? row[s] : highest;
        for (int64_t s = 0; s < room; s++) row[s] = exponential((row[s] - highest) * scale);
        memset(row + sees, 0, sizeof(float) * (room - sees));
#pragma omp simd reduction(+ : total)
        for (int64_t s = 0; s < room; s++) total += row[s];
        for (int64_t s = 0; s < room; s++) row[s] /= total;
    }
}

static void forward(const Attention *all, const Item *item) {
    turn_around(item->keys, item->sources, all->size, item->turned_keys);
    for (int64_t first = 0, count; first < item->targets; first += count) {
        count = least(item->targets - first, TOGETHER);
        weigh(all, item, first, count);
        for (int64_t t = 0; t < count && all->dropout.threshold; t++)
            drop_keys(all, item, first + t, item->weights.numbers + t * item->weights.down);
        const int64_t sees = seen(all, item, first + count - 1);
        const Rows found = shifted(item->found, first, 0);
        small_product(as_it_lies(item->weights), item->values, found, count, sees, all->size, 0);
    }
}

/* The gradients of some queries' scores, in `changes`; `left` becomes the weights that dropout left them. */
static void change(const Attention *all, const Item *item, int64_t first, int64_t count) {
    const float scale = 1 / sqrtf((float)all->size);
    const int64_t room = item->weights.down;
    const Rows above = shifted(item->above, first, 0);
    small_product(as_it_lies(above), item->turned_values, item->changes, count, all->size, room, 0);
    memcpy(item->left.numbers, item->weights.numbers, sizeof(float) * count * room);
    for (int64_t t = 0; t < count; t++) {
        float *changes = item->changes.numbers + t * room, *weights = item->weights.numbers + t * room, mean = 0;
        if (all->dropout.threshold) {
            drop_keys(all, item, first + t, item->left.numbers + t * room);
            drop_keys(all, item, first + t, changes);
        }
#pragma omp simd reduction(+ : mean)
        for (int64_t s = 0; s < room; s++) mean += weights[s] * changes[s];
        for (int64_t s = 0; s < room; s++) changes[s] = weights[s] * (changes[s] - mean) * scale;
    }
}

static void backward(const Attention *all, const Item *item) {
    const int64_t size = all->size;
    turn_around(item->keys, item->sources, size, item->turned_keys);
    turn_around(item->values, item->sources, size, item->turned_values);
    for (int64_t s = 0; s < item->sources; s++) {
        memset(shifted(item->by_keys, s, 0).numbers, 0, sizeof(float) * size);
        memset(shifted(item->by_values, s, 0).numbers, 0, sizeof(float) * size);
    }
    for (int64_t first = 0, count; first < item->targets; first += count) {
        count = least(item->targets - first, TOGETHER);
        const int64_t sees = seen(all, item, first + count - 1);
        const Rows queries = shifted(item->queries, first, 0), by_queries = shifted(item->by_queries, first, 0);
        weigh(all, item, first, count);
        change(all, item, first, count);
        small_product(as_it_lies(item->changes), item->keys, by_queries, count, sees, size, 0);
        small_product(transposed(item->changes), queries, item->by_keys, sees, count, size, 1);
        small_product(transposed(item->left), shifted(item->above, first, 0), item->by_values, sees, count, size, 1);
    }
}

static Item item_of(const Attention *all, int64_t sentence, int64_t head, float *memory) {
    const int64_t query = all->offsets[sentence], key = all->key_offsets[sentence], right = head * all->size;
    const int64_t sources = all->key_offsets[sentence + 1] - key, room = in_registers(sources);
    float *weights = memory + 2 * all->size * room;
    return (Item){
        .queries = shifted(all->queries, query, right), .keys = shifted(all->keys, key, right),
        .values = shifted(all->values, key, right), .found = shifted(all->found, query, right),
        .above = shifted(all->above, query, right), .by_queries = shifted(all->by_queries, query, right),
        .by_keys = shifted(all->by_keys, key, right), .by_values = shifted(all->by_values, key, right),
        .head = head, .first_query = query, .first_key = key,
        .targets = all->offsets[sentence + 1] - query, .sources = sources,
        .turned_keys = {memory, room}, .turned_values = {memory + all->size * room, room},
        .weights = {weights, room}, .left = {weights + TOGETHER * room, room},
        .changes = {weights + 2 * TOGETHER * room, room}};
}

/* Forward, or back where there is a gradient from above; 0 if all is well. */
int heed_attend(const Attention *all, int64_t threads) {
    if (!lie_end_to_end(all->offsets, all->sentences, all->tokens, all->tokens)
        || !lie_end_to_end(all->key_offsets, all->sentences, all->key_tokens, all->longest))
        return WRONG;
    const int64_t each = aligned((2 * all->size + 3 * TOGETHER) * in_registers(all->longest));
    float *memory = aligned_alloc(ALIGNED, sizeof(float) * threads * each);
    if (!memory) return NO_MEMORY;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t i = 0; i < all->sentences * all->heads; i++) {
        const Item item = item_of(all, i / all->heads, i % all->heads, memory + omp_get_thread_num() * each);
        if (all->above.numbers)
            backward(all, &item);
        else
            forward(all, &item);
    }
    free(memory);
    return 0;
}
