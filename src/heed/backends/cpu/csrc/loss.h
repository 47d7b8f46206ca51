/* Label-smoothed cross-entropy and its gradient; the reference is `training.loss.loss_of_logits`. */

static void largest_and_sum(const float *row, int64_t vocabulary, float *largest, float *sum) {
    float max = -INFINITY, total = 0;
#pragma omp simd reduction(max : max) reduction(+ : total)
    for (int64_t v = 0; v < vocabulary; v++) {
        max = row[v] > max ? row[v] : max;
        total += row[v];
    }
    *largest = max, *sum = total;
}

/* One token: returns the loss and replaces its logits by the gradient, in three vectorised passes over the row. */
static float loss_and_gradient(float *row, int64_t vocabulary, int64_t target, float smoothing) {
    float largest, sum, total = 0;
    const float target_logit = row[target];
    largest_and_sum(row, vocabulary, &largest, &sum);
#pragma omp simd reduction(+ : total)
    for (int64_t v = 0; v < vocabulary; v++) {
        row[v] = fast_exp(row[v] - largest);
        total += row[v];
    }
    const float scale = 1 / total, uniform = smoothing / vocabulary;
    for (int64_t v = 0; v < vocabulary; v++) row[v] = row[v] * scale - uniform;
    row[target] -= 1 - smoothing;
    return largest + logf(total) - (1 - smoothing) * target_logit - uniform * sum;
}

/* R-Drop: one token in two passes with different dropout, P and Q. Returns half of their cross-entropies and of their
   divergence D = (KL(P, Q) + KL(Q, P)) / 2 times `weight`, and replaces both rows by the gradient.

   With p the probabilities of P, d = log p - log q and k = KL(P, Q), the gradient of D is (p (1 + d - k) - q) / 2. */
static float r_drop_loss_and_gradient(
    float *p, float *q, int64_t vocabulary, int64_t target, float smoothing, float weight) {
    float p_largest, q_largest, p_sum, q_sum, p_total = 0, q_total = 0, p_difference = 0, q_difference = 0;
    largest_and_sum(p, vocabulary, &p_largest, &p_sum);
    largest_and_sum(q, vocabulary, &q_largest, &q_sum);
#pragma omp simd reduction(+ : p_total, q_total, p_difference, q_difference)
    for (int64_t v = 0; v < vocabulary; v++) {
        const float p_exp = fast_exp(p[v] - p_largest), q_exp = fast_exp(q[v] - q_largest);
        p_total += p_exp, q_total += q_exp;
        p_difference += p_exp * (p[v] - q[v]), q_difference += q_exp * (q[v] - p[v]);
    }
    const float p_log_sum = p_largest + logf(p_total), q_log_sum = q_largest + logf(q_total);
    const float p_kl = p_difference / p_total + q_log_sum - p_log_sum;
    const float q_kl = q_difference / q_total + p_log_sum - q_log_sum;
    const float uniform = smoothing / vocabulary;
    const float cross_entropies =
        p_log_sum + q_log_sum - (1 - smoothing) * (p[target] + q[target]) - uniform * (p_sum + q_sum);
#pragma omp simd
    for (int64_t v = 0; v < vocabulary; v++) {
        const float p_log = p[v] - p_log_sum, q_log = q[v] - q_log_sum, d = p_log - q_log;
        const float p_prob = fast_exp(p_log), q_prob = fast_exp(q_log);
        p[v] = (p_prob - uniform + weight / 2 * (p_prob * (1 + d - p_kl) - q_prob)) / 2;
        q[v] = (q_prob - uniform + weight / 2 * (q_prob * (1 - d - q_kl) - p_prob)) / 2;
    }
    p[target] -= (1 - smoothing) / 2, q[target] -= (1 - smoothing) / 2;
    return (cross_entropies + weight * (p_kl + q_kl) / 2) / 2;
}

typedef struct {
    float *logits;
    const int64_t *targets;
    float *losses;
    int64_t tokens, vocabulary, pad_id;
    float smoothing, r_drop;
} LossCall;

static void run_loss(const Thread *thread, void *context) {
    const LossCall *call = context;
    const int64_t vocabulary = call->vocabulary, copies = call->r_drop > 0 ? 2 : 1;
    int64_t first, last;
    partition(thread, call->tokens / copies, &first, &last);
    for (int64_t t = first * copies; t < last * copies; t += copies) {
        float *row = call->logits + t * vocabulary, *loss = call->losses + t;
        const int64_t target = call->targets[t];
        if (target == call->pad_id) {
            memset(row, 0, sizeof(float) * copies * vocabulary);
            memset(loss, 0, sizeof(float) * copies);
        } else if (copies == 2) {
            loss[0] = r_drop_loss_and_gradient(
                row, row + vocabulary, vocabulary, target, call->smoothing, call->r_drop);
            loss[1] = 0;
        } else {
            loss[0] = loss_and_gradient(row, vocabulary, target, call->smoothing);
        }
    }
}

static void heed_cross_entropy(
    float *logits, const int64_t *targets, float *losses, int64_t tokens, int64_t vocabulary, int64_t pad_id,
    float smoothing, float r_drop, HeedPool *pool, int64_t threads) {
    LossCall call = {logits, targets, losses, tokens, vocabulary, pad_id, smoothing, r_drop};
    run_team(pool, threads, run_loss, &call);
}
