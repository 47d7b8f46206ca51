/* Dropout by a hash of seed, row and column: the backward pass recomputes the mask instead of storing it.

   The reference is `tests/reference/dropout.py`. */

/* A 32-bit integer hash with good avalanche. */
static inline uint32_t hash32(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x21F0AAADu;
    x = (x ^ (x >> 15)) * 0x735A2D97u;
    return x ^ (x >> 15);
}

/* Dropout of `size` elements of one row, starting at a column; y may be x. */
static inline void dropout_row(
    const HeedDropout *dropout, int64_t row, int64_t column, const float *x, float *y, int64_t size) {
    const uint32_t row_hash = hash32(dropout->seed + (uint32_t)row) + (uint32_t)column;
    const uint32_t threshold = dropout->threshold;
    const float keep_scale = dropout->keep_scale;
#pragma omp simd
    for (int32_t i = 0; i < (int32_t)size; i++) y[i] = x[i] * (hash32(row_hash + i) < threshold ? 0 : keep_scale);
}

typedef struct {
    const HeedDropout *dropout;
    const float *x;
    float *y;
    int64_t rows, size;
} DropoutCall;

static void run_dropout(const Thread *thread, void *context) {
    const DropoutCall *call = context;
    const int64_t size = call->size;
    int64_t first, last;
    partition(thread, call->rows, &first, &last);
    for (int64_t r = first; r < last; r++)
        dropout_row(call->dropout, r, 0, call->x + r * size, call->y + r * size, size);
}

static void heed_dropout(
    const HeedDropout *dropout, const float *x, float *y, int64_t rows, int64_t size, HeedPool *pool, int64_t threads) {
    DropoutCall call = {dropout, x, y, rows, size};
    run_team(pool, threads, run_dropout, &call);
}
