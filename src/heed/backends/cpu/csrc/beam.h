/* One beam step: the best continuations of a sentence's hypotheses, and the finished ones among them.

   The reference is `backends/torch/search_ops.py`. At most W + 1 tokens of a hypothesis can matter: W that continue it
   and the eos. So all it takes is the top W + 1 tokens of each hypothesis, and a merge of these sorted lists. */

typedef struct {                                  /* of one sentence */
    const double *live;                           /* (hypotheses): their log-probabilities so far */
    int64_t hypotheses, width, eos;               /* width: continuations to keep */
    int64_t count;                                /* candidates per hypothesis */
    const float *values;                          /* (hypotheses, count): log-probabilities of the top tokens, sorted */
    const int64_t *tokens;                        /* (hypotheses, count): their ids */
} BeamStep;

typedef struct {                                  /* (width) each */
    double *totals;                               /* log-probability of the continuation */
    int64_t *tokens, *parents;                    /* its newest token; the hypothesis that it extends */
} Continuations;

static int is_better(double a, double b) { return a > b || (isnan(a) && !isnan(b)); }

/* The best continuations, with or without the finished ones: a merge of sorted lists. `next`, (hypotheses), is the
   first unused candidate of each. Ties go to the lower hypothesis. */
static void select_best(const BeamStep *step, int include_eos, Continuations to, int64_t *next) {
    for (int64_t h = 0; h < step->hypotheses; h++) next[h] = 0;
    for (int64_t slot = 0; slot < step->width; slot++) {
        int64_t best = -1;
        double highest = -INFINITY;
        for (int64_t h = 0; h < step->hypotheses; h++) {
            const int64_t candidates = h * step->count;
            if (!include_eos && next[h] < step->count && step->tokens[candidates + next[h]] == step->eos) next[h]++;
            if (next[h] == step->count) continue;
            const double total = step->live[h] + step->values[candidates + next[h]];
            if (best < 0 || is_better(total, highest)) best = h, highest = total;
        }
        const int64_t token = best < 0 ? step->eos : step->tokens[best * step->count + next[best]++];
        to.totals[slot] = highest;
        to.tokens[slot] = isnan(highest) ? step->eos : token; /* NaN finishes the sentence, and the caller reports it */
        to.parents[slot] = best < 0 ? 0 : best;
    }
}

/* Whether a finished hypothesis is among the best: no worse than the last unfinished one. */
static int any_finished(const BeamStep *step, const double *unfinished) {
    if (isnan(unfinished[0])) return 1;
    for (int64_t i = 0; i < step->hypotheses * step->count; i++)
        if (step->tokens[i] == step->eos
            && step->live[i / step->count] + step->values[i] >= unfinished[step->width - 1])
            return 1;
    return 0;
}

/* Continuations of all sentences in an array (3, B, W): those of one sentence. */
static Continuations continuations_of(int64_t *result, int64_t sentences, int64_t beam, int64_t sentence) {
    const int64_t rows = sentences * beam, first = sentence * beam;
    return (Continuations){(double *)(result + first), result + rows + first, result + 2 * rows + first};
}

static int64_t heed_beam_step(
    const double *live, const float *log_probs, int64_t sentences, int64_t beam, int64_t vocabulary, int64_t eos,
    int64_t *result, HeedPool *pool, int64_t threads) {
    const int64_t rows = sentences * beam, count = least(beam + 1, vocabulary);
    int64_t *tokens = malloc(rows * count * (sizeof(int64_t) + sizeof(float)) + beam * sizeof(int64_t));
    if (tokens == NULL) return -1;
    int64_t *next = tokens + rows * count, finishes = 0;
    float *values = (float *)(next + beam);
    heed_topk(log_probs, rows, vocabulary, count, values, tokens, pool, threads);
    for (int pass = 0; pass <= finishes && pass < 2; pass++) /* without eos, then with it */
        for (int64_t b = 0; b < sentences; b++) {
            const int64_t first = b * beam;
            const BeamStep step = {
                live + first, beam, beam, eos, count, values + first * count, tokens + first * count};
            const Continuations to = continuations_of(result + pass * 3 * rows, sentences, beam, b);
            select_best(&step, pass, to, next);
            if (pass == 0) finishes |= any_finished(&step, to.totals);
            for (int64_t w = 0; w < beam; w++) {
                if (pass == 1 && to.tokens[w] != eos) to.totals[w] = -INFINITY;
                to.parents[w] += first;
            }
        }
    free(tokens);
    return finishes;
}
