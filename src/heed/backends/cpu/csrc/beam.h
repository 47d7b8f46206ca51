/* A step of beam search: of all continuations of a sentence's hypotheses the best, and which of them end it. */

typedef struct {
    const double *live;                           /* (B, W): log-probabilities of the hypotheses so far */
    int64_t wide, eos, count;
    const float *values;                          /* (B, W, count): of the likeliest next words of each, */
    const int64_t *ranked;                        /* best first, and which these are */
} Growth;

/* Of W continuations for each sentence: how likely each is in all, its newest word, and the row that it goes on. */
typedef struct {
    double *totals;
    int64_t *tokens, *rows;
} Continuations;

static int is_better(double one, double other) { return one > other || (isnan(one) && !isnan(other)); }

/* The best W continuations of sentence b, or those that do not end it. The words of a row are in order, so the next is
   always some row's next; of equals the lower row's comes first. */
static void choose(const Growth *g, int64_t b, int ends_too, Continuations to, int64_t *next) {
    const int64_t first = b * g->wide;
    for (int64_t w = 0; w < g->wide; w++) next[w] = 0;
    for (int64_t place = first; place < first + g->wide; place++) {
        int64_t best = -1;
        double highest = -INFINITY;
        for (int64_t w = 0; w < g->wide; w++) {
            const int64_t own = (first + w) * g->count;
            if (!ends_too && next[w] < g->count && g->ranked[own + next[w]] == g->eos) next[w]++;
            if (next[w] == g->count) continue;
            const double total = g->live[first + w] + g->values[own + next[w]];
            if (best < 0 || is_better(total, highest)) best = w, highest = total;
        }
        const int64_t token = best < 0 ? g->eos : g->ranked[(first + best) * g->count + next[best]++];
        to.totals[place] = highest;
        to.tokens[place] = isnan(highest) ? g->eos : token; /* what is no number ends, and is found out */
        to.rows[place] = first + (best < 0 ? 0 : best);
    }
}

/* Whether an end is among the best of sentence b: at least as good as the last that goes on. */
static int any_ends(const Growth *g, int64_t b, const double *going_on) {
    const double last = going_on[(b + 1) * g->wide - 1];
    if (isnan(going_on[b * g->wide])) return 1;
    for (int64_t at = b * g->wide * g->count; at < (b + 1) * g->wide * g->count; at++)
        if (g->ranked[at] == g->eos && g->live[at / g->count] + g->values[at] >= last) return 1;
    return 0;
}

/* found: (2, 3, B, W), those that go on, then those that end or are -inf. The latter are there only if any sentence has
   an end among its best, which is returned; -1: there is no memory. */
int64_t heed_grow(
    const double *live, const float *log_probs, int64_t sentences, int64_t wide, int64_t words, int64_t eos,
    int64_t *found, int64_t threads) {
    const int64_t rows = sentences * wide, count = least(wide + 1, words);
    int64_t *ranked = malloc(rows * count * (sizeof(int64_t) + sizeof(float)) + wide * sizeof(int64_t));
    if (ranked == NULL) return -1;
    int64_t *next = ranked + rows * count, ends = 0;
    float *values = (float *)(next + wide);
    const Growth g = {live, wide, eos, count, values, ranked};
    const Continuations going_on = {(double *)found, found + rows, found + 2 * rows};
    const Continuations ending = {(double *)(found + 3 * rows), found + 4 * rows, found + 5 * rows};
    heed_rank(log_probs, rows, words, count, values, ranked, threads);
    for (int64_t b = 0; b < sentences; b++) {
        choose(&g, b, 0, going_on, next);
        ends |= any_ends(&g, b, going_on.totals);
    }
    for (int64_t b = 0; ends && b < sentences; b++) choose(&g, b, 1, ending, next);
    for (int64_t row = 0; ends && row < rows; row++)
        if (ending.tokens[row] != eos) ending.totals[row] = -INFINITY;
    free(ranked);
    return ends;
}
