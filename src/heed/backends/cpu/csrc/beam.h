/* One beam step: the best continuations of each sentence's hypotheses, and the finished ones among them.

   The reference is `backends/torch/search_ops.py`. At most W + 1 tokens of a hypothesis can matter: W that continue it
   and the eos. So top-k runs in all threads over the vocabulary, and one thread merges the sorted lists. */

typedef struct {
    const double *live;                           /* (B, W): log-probabilities of the hypotheses so far */
    int64_t beam, eos, count;                     /* count: candidates per hypothesis */
    const float *values;                          /* (B, W, count): log-probabilities of the top tokens, best first */
    const int64_t *tokens;                        /* (B, W, count): their ids */
} BeamStep;

typedef struct {                                  /* (B, W) each */
    double *totals;                               /* log-probability of the continuation */
    int64_t *tokens, *rows;                       /* its newest token; the row (hypothesis) that it extends */
} Continuations;

static int is_better(double a, double b) { return a > b || (isnan(a) && !isnan(b)); }

/* The best W continuations of sentence b, with or without the finished ones: a W-way merge of sorted lists. `next` is
   the first unused candidate of each hypothesis. Ties go to the lower row. */
static void select_best(const BeamStep *step, int64_t b, int include_eos, Continuations to, int64_t *next) {
    const int64_t first = b * step->beam;
    for (int64_t w = 0; w < step->beam; w++) next[w] = 0;
    for (int64_t slot = first; slot < first + step->beam; slot++) {
        int64_t best = -1;
        double highest = -INFINITY;
        for (int64_t w = 0; w < step->beam; w++) {
            const int64_t candidates = (first + w) * step->count;
            if (!include_eos && next[w] < step->count && step->tokens[candidates + next[w]] == step->eos) next[w]++;
            if (next[w] == step->count) continue;
            const double total = step->live[first + w] + step->values[candidates + next[w]];
            if (best < 0 || is_better(total, highest)) best = w, highest = total;
        }
        const int64_t token = best < 0 ? step->eos : step->tokens[(first + best) * step->count + next[best]++];
        to.totals[slot] = highest;
        to.tokens[slot] = isnan(highest) ? step->eos : token; /* NaN finishes the sentence, and the caller reports it */
        to.rows[slot] = first + (best < 0 ? 0 : best);
    }
}

/* Whether a finished hypothesis is among the best of sentence b: no worse than the last unfinished one. */
static int any_finished(const BeamStep *step, int64_t b, const double *unfinished) {
    const double last = unfinished[(b + 1) * step->beam - 1];
    if (isnan(unfinished[b * step->beam])) return 1;
    for (int64_t at = b * step->beam * step->count; at < (b + 1) * step->beam * step->count; at++)
        if (step->tokens[at] == step->eos && step->live[at / step->count] + step->values[at] >= last) return 1;
    return 0;
}

/* result: (2, 3, B, W), the unfinished continuations, then the finished ones (-inf where there are fewer than W). The
   latter are only written if 1 is returned: some sentence has a finished one among its best. -1: out of memory. */
int64_t heed_beam_step(
    const double *live, const float *log_probs, int64_t sentences, int64_t beam, int64_t vocabulary, int64_t eos,
    int64_t *result, int64_t threads) {
    const int64_t rows = sentences * beam, count = least(beam + 1, vocabulary);
    int64_t *tokens = malloc(rows * count * (sizeof(int64_t) + sizeof(float)) + beam * sizeof(int64_t));
    if (tokens == NULL) return -1;
    int64_t *next = tokens + rows * count, finishes = 0;
    float *values = (float *)(next + beam);
    const BeamStep step = {live, beam, eos, count, values, tokens};
    const Continuations unfinished = {(double *)result, result + rows, result + 2 * rows};
    const Continuations finished = {(double *)(result + 3 * rows), result + 4 * rows, result + 5 * rows};
    heed_topk(log_probs, rows, vocabulary, count, values, tokens, threads);
    for (int64_t b = 0; b < sentences; b++) {
        select_best(&step, b, 0, unfinished, next);
        finishes |= any_finished(&step, b, unfinished.totals);
    }
    for (int64_t b = 0; finishes && b < sentences; b++) select_best(&step, b, 1, finished, next);
    for (int64_t row = 0; finishes && row < rows; row++)
        if (finished.tokens[row] != eos) finished.totals[row] = -INFINITY;
    free(tokens);
    return finishes;
}
