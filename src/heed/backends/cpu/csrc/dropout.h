/* Dropout by a hash of seed, row and column, so that nothing need be kept for the way back.

   The twin is `kernels.dropout.dropped`. */

typedef struct {
    uint32_t seed, threshold;                     /* hashes below the threshold are dropped */
    float kept;                                   /* what numbers are worth that are left */
} Dropout;

static inline uint32_t mixed(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x21F0AAADu;
    x = (x ^ (x >> 15)) * 0x735A2D97u;
    return x ^ (x >> 15);
}

/* What is left of the numbers of one row, from a column on. */
static inline void drop(
    const Dropout *dropout, int64_t row, int64_t column, const float *x, float *found, int64_t size) {
    const uint32_t own = mixed(dropout->seed + (uint32_t)row) + (uint32_t)column;
    const uint32_t threshold = dropout->threshold;
    const float kept = dropout->kept;
#pragma omp simd
    for (int32_t i = 0; i < (int32_t)size; i++) found[i] = x[i] * (mixed(own + i) < threshold ? 0 : kept);
}

void heed_drop(
    const Dropout *dropout, const float *x, float *found, int64_t rows, int64_t size, int64_t threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t r = 0; r < rows; r++) drop(dropout, r, 0, x + r * size, found + r * size, size);
}
