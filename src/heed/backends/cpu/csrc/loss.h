/* Label-smoothed cross-entropy and its gradient; the reference is `training.loss.smoothed_cross_entropy`. */

/* One token: returns the loss and replaces its logits by the gradient, in three vectorised passes over the row. */
static float loss_and_gradient(float *row, int64_t vocabulary, int64_t target, float smoothing) {
    float highest = -INFINITY, total = 0, sum = 0;
    const float target_logit = row[target];
#pragma omp simd reduction(max : highest) reduction(+ : sum)
    for (int64_t v = 0; v < vocabulary; v++) {
        highest = row[v] > highest ? row[v] : highest;
        sum += row[v];
    }
#pragma omp simd reduction(+ : total)
    for (int64_t v = 0; v < vocabulary; v++) {
        row[v] = fast_exp(row[v] - highest);
        total += row[v];
    }
    const float scale = 1 / total, uniform = smoothing / vocabulary;
    for (int64_t v = 0; v < vocabulary; v++) row[v] = row[v] * scale - uniform;
    row[target] -= 1 - smoothing;
    return highest + logf(total) - (1 - smoothing) * target_logit - uniform * sum;
}

/* logits: (tokens, vocabulary), replaced by their gradients. Padding has loss and gradient 0. Threads take tokens. */
void heed_cross_entropy(
    float *logits, const int64_t *targets, float *losses, int64_t tokens, int64_t vocabulary, int64_t pad_id,
    float smoothing, int64_t threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t t = 0; t < tokens; t++) {
        if (targets[t] == pad_id) {
            memset(logits + t * vocabulary, 0, sizeof(float) * vocabulary);
            losses[t] = 0;
        } else {
            losses[t] = loss_and_gradient(logits + t * vocabulary, vocabulary, targets[t], smoothing);
        }
    }
}
