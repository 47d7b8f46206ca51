/* The most probable next tokens of each hypothesis, from the decoder's output; the logits are never stored as a whole.

   Each thread computes its columns of the output projection, some at a time, and reduces them while they are in cache:
   to the largest, to the sum of exponentials, and to the `count` largest of the tokens that are allowed. `merge_tokens`
   combines what the threads have found. */

enum { VOCABULARY_BLOCK = 256 };                  /* columns of the output projection at a time: whole panels */

typedef struct {                                  /* what one hypothesis may write next */
    const int64_t *written;                       /* its tokens */
    int64_t length;
    int64_t may_end;                              /* whether eos is allowed */
    int64_t only;                                 /* the only token allowed, or -1 */
} Allowed;

typedef struct {                                  /* what one thread has found for one row */
    float highest;                                /* of all logits */
    double total;                                 /* Σ exp(logit - highest) */
    int64_t filled;                               /* of the sorted lists */
} Partial;

typedef struct {
    int64_t pad, bos, eos, no_repeat_ngram;       /* no_repeat_ngram: 0: off */
    int64_t count, threads, rows;
    const Allowed *allowed;                       /* (rows) */
    Partial *partials;                            /* (threads, rows) */
    float *values;                                /* (threads, rows, count): the largest logits, sorted */
    int64_t *tokens;                              /* (threads, rows, count) */
    float *only;                                  /* (rows): the logit of the only token allowed, if there is one */
    float *logits;                                /* (threads, rows, VOCABULARY_BLOCK) */
} NextTokens;

/* Adds one row's logits to its sum of exponentials; returns the largest of them. */
static float add_exponentials(const float *logits, int64_t count, Partial *partial) {
    float largest = -INFINITY, total = 0;
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < count; i++) largest = logits[i] > largest ? logits[i] : largest;
    const float highest = largest > partial->highest ? largest : partial->highest;
#pragma omp simd reduction(+ : total)
    for (int64_t i = 0; i < count; i++) total += fast_exp(logits[i] - highest);
    if (partial->total && highest > partial->highest) partial->total *= exp(partial->highest - highest);
    partial->total += total;
    partial->highest = highest;
    return largest;
}

static void forbid(float *logits, int64_t first, int64_t last, int64_t token) {
    if (token >= first && token < last) logits[token - first] = -INFINITY;
}

/* Forbids each token that would complete an n-gram that is already written. */
static void forbid_repeats(const Allowed *allowed, int64_t size, float *logits, int64_t first, int64_t last) {
    const int64_t *newest = allowed->written + allowed->length - size + 1;
    for (int64_t i = 0; i + size <= allowed->length; i++)
        if (!memcmp(allowed->written + i, newest, sizeof(int64_t) * (size - 1)))
            forbid(logits, first, last, allowed->written[i + size - 1]);
}

/* This thread's columns of the output projection of x, (rows, d_model), reduced. */
static void find_next_tokens(
    const Thread *thread, const HeedModel *model, const Workspace *work, const float *x, NextTokens *next) {
    const HeedMatrix *matrix = &model->output;
    Partial *partials = next->partials + thread->index * next->rows;
    float *logits = next->logits + thread->index * next->rows * VOCABULARY_BLOCK;
    int64_t begin, end;
    quantize_input(thread, matrix, x, next->rows, work->quantized);
    partition_columns(thread, matrix->outputs, &begin, &end);
    for (int64_t r = 0; r < next->rows; r++) partials[r] = (Partial){-INFINITY, 0, 0};
    for (int64_t first = begin, last; first < end; first = last) {
        last = least(first + VOCABULARY_BLOCK, end);
        multiply(matrix, x, work->quantized, next->rows, first, last, logits, VOCABULARY_BLOCK);
        for (int64_t r = 0; r < next->rows; r++) {
            const Allowed *allowed = &next->allowed[r];
            float *row = logits + r * VOCABULARY_BLOCK;
            const float largest = add_exponentials(row, last - first, &partials[r]);
            const int64_t list = (thread->index * next->rows + r) * next->count, filled = partials[r].filled;
            forbid(row, first, last, next->pad);
            forbid(row, first, last, next->bos);
            if (allowed->only >= first && allowed->only < last) next->only[r] = row[allowed->only - first];
            if (!allowed->may_end) forbid(row, first, last, next->eos);
            if (next->no_repeat_ngram) forbid_repeats(allowed, next->no_repeat_ngram, row, first, last);
            if (filled == next->count && largest <= next->values[list + filled - 1]) continue;
            partials[r].filled = topk_insert(
                row, first, last - first, partials[r].filled, next->count, next->values + list, next->tokens + list);
        }
    }
}

/* The candidates of one row: log-probabilities and ids of `count` tokens, best first, -inf where there are fewer. Sets
   `most_probable`, the token that would be chosen if no prefix or maximum length left only one. Returns whether the
   log-probabilities are numbers. */
static int merge_tokens(const NextTokens *next, int64_t row, float *values, int64_t *tokens, int64_t *most_probable) {
    Partial all = {-INFINITY, 0, 0};
    for (int64_t t = 0; t < next->threads; t++) {
        const Partial *part = &next->partials[t * next->rows + row];
        const int64_t list = (t * next->rows + row) * next->count;
        if (part->total == 0) continue;           /* this thread had no columns */
        const float highest = part->highest > all.highest ? part->highest : all.highest;
        all.total = (all.total ? all.total * exp(all.highest - highest) : 0) + part->total * exp(part->highest - highest);
        all.highest = highest;
        for (int64_t i = 0; i < part->filled; i++) {
            int64_t rank = all.filled < next->count ? all.filled++ : next->count;
            for (; rank > 0 && values[rank - 1] < next->values[list + i]; rank--) {
                if (rank < next->count) values[rank] = values[rank - 1], tokens[rank] = tokens[rank - 1];
            }
            if (rank < next->count) values[rank] = next->values[list + i], tokens[rank] = next->tokens[list + i];
        }
    }
    const double log_total = all.highest + log(all.total);
    *most_probable = all.filled ? tokens[0] : -1;
    if (next->allowed[row].only >= 0) {
        values[0] = next->only[row];
        tokens[0] = next->allowed[row].only;
        all.filled = 1;
    }
    for (int64_t i = 0; i < next->count; i++) {
        values[i] = i < all.filled ? (float)(values[i] - log_total) : -INFINITY;
        tokens[i] = i < all.filled ? tokens[i] : -1;
    }
    return !isnan(log_total);
}
