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

typedef struct {
    float *logits;
    const int64_t *targets;
    float *losses;
    int64_t tokens, vocabulary, pad_id;
    float smoothing;
} LossCall;

static void run_loss(const Thread *thread, void *context) {
    const LossCall *call = context;
    int64_t first, last;
    partition(thread, call->tokens, &first, &last);
    for (int64_t t = first; t < last; t++) {
        float *row = call->logits + t * call->vocabulary;
        if (call->targets[t] == call->pad_id) {
            memset(row, 0, sizeof(float) * call->vocabulary);
            call->losses[t] = 0;
        } else {
            call->losses[t] = loss_and_gradient(row, call->vocabulary, call->targets[t], call->smoothing);
        }
    }
}

static void heed_cross_entropy(
    float *logits, const int64_t *targets, float *losses, int64_t tokens, int64_t vocabulary, int64_t pad_id,
    float smoothing, HeedPool *pool, int64_t threads) {
    LossCall call = {logits, targets, losses, tokens, vocabulary, pad_id, smoothing};
    run_team(pool, threads, run_loss, &call);
}
