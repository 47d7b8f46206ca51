/* Logits to the loss and its gradient, a token at a time; the twin is `training.loss.smoothed_cross_entropy`. */

/* The loss of one token; the gradient takes its logits' place. */
static float to_gradient(float *row, int64_t words, int64_t right, float smoothing) {
    float highest = -INFINITY, total = 0, sum = 0;
    const float sure = row[right];
#pragma omp simd reduction(max : highest) reduction(+ : sum)
    for (int64_t w = 0; w < words; w++) {
        highest = row[w] > highest ? row[w] : highest;
        sum += row[w];
    }
#pragma omp simd reduction(+ : total)
    for (int64_t w = 0; w < words; w++) {
        row[w] = exponential(row[w] - highest);
        total += row[w];
    }
    const float scale = 1 / total, even = smoothing / words;
    for (int64_t w = 0; w < words; w++) row[w] = row[w] * scale - even;
    row[right] -= 1 - smoothing;
    return highest + logf(total) - (1 - smoothing) * sure - even * sum;
}

/* Of many tokens, (tokens, words); one whose right word is padding counts for nothing. */
void heed_to_gradient(
    float *logits, const int64_t *right, float *losses, int64_t tokens, int64_t words, int64_t padding, float smoothing,
    int64_t threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t t = 0; t < tokens; t++) {
        if (right[t] == padding) {
            memset(logits + t * words, 0, sizeof(float) * words);
            losses[t] = 0;
        } else {
            losses[t] = to_gradient(logits + t * words, words, right[t], smoothing);
        }
    }
}
