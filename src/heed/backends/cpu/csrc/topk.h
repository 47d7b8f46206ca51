/* Top-k of each row: the largest values in descending order and their indices; ties go to the lower index, NaN last. */

enum { BLOCK = 64 };                              /* values whose maximum is taken first: most blocks are skipped */

/* Inserts values[0 .. size) with indices first, first + 1, ... into a sorted list of at most `count`, of which `filled`
   are there; returns how many are there after. A block whose vectorised maximum does not exceed the list's last value
   is skipped. */
static int64_t topk_insert(
    const float *row, int64_t first, int64_t size, int64_t filled, int64_t count, float *values, int64_t *indices) {
    for (int64_t begin = 0; begin < size; begin += BLOCK) {
        const int64_t end = least(begin + BLOCK, size);
        float highest = -INFINITY;
#pragma omp simd reduction(max : highest)
        for (int64_t i = begin; i < end; i++) highest = row[i] > highest ? row[i] : highest;
        if (filled == count && highest <= values[count - 1]) continue;
        for (int64_t i = begin; i < end; i++) {
            if (isnan(row[i]) || (filled == count && row[i] <= values[count - 1])) continue;
            int64_t rank = filled < count ? filled++ : count - 1;
            for (; rank > 0 && values[rank - 1] < row[i]; rank--) {
                values[rank] = values[rank - 1];
                indices[rank] = indices[rank - 1];
            }
            values[rank] = row[i];
            indices[rank] = first + i;
        }
    }
    return filled;
}

typedef struct {
    const float *x;
    int64_t rows, size, count;
    float *values;
    int64_t *indices;
} TopkCall;

static void run_topk(const Thread *thread, void *context) {
    const TopkCall *call = context;
    const int64_t count = call->count, size = call->size;
    int64_t first, last;
    partition(thread, call->rows, &first, &last);
    for (int64_t r = first; r < last; r++) {
        float *values = call->values + r * count;
        int64_t *indices = call->indices + r * count;
        int64_t filled = topk_insert(call->x + r * size, 0, size, 0, count, values, indices);
        for (; filled < count; filled++) {
            values[filled] = NAN;
            indices[filled] = 0;
        }
    }
}

static void heed_topk(
    const float *x, int64_t rows, int64_t size, int64_t count, float *values, int64_t *indices, HeedPool *pool,
    int64_t threads) {
    TopkCall call = {x, rows, size, count, values, indices};
    run_team(pool, threads, run_topk, &call);
}
