/* Top-k of each row: the largest values in descending order and their indices; ties go to the lower index, NaN last. */

enum { BLOCK = 64 };                              /* values whose maximum is taken first: most blocks are skipped */

/* One row: insertion into a sorted list of `count` values. A block whose vectorised maximum does not exceed the list's
   last value is skipped. Missing values (too many NaN) become NaN with index 0. */
static void topk_row(const float *row, int64_t size, int64_t count, float *values, int64_t *indices) {
    int64_t filled = 0;
    for (int64_t first = 0; first < size; first += BLOCK) {
        const int64_t last = least(first + BLOCK, size);
        float highest = -INFINITY;
#pragma omp simd reduction(max : highest)
        for (int64_t i = first; i < last; i++) highest = row[i] > highest ? row[i] : highest;
        if (filled == count && highest <= values[count - 1]) continue;
        for (int64_t i = first; i < last; i++) {
            if (isnan(row[i]) || (filled == count && row[i] <= values[count - 1])) continue;
            int64_t rank = filled < count ? filled++ : count - 1;
            for (; rank > 0 && values[rank - 1] < row[i]; rank--) {
                values[rank] = values[rank - 1];
                indices[rank] = indices[rank - 1];
            }
            values[rank] = row[i];
            indices[rank] = i;
        }
    }
    for (; filled < count; filled++) {
        values[filled] = NAN;
        indices[filled] = 0;
    }
}

/* x: (rows, size). values, indices: (rows, count). Each thread takes some rows. */
void heed_topk(
    const float *x, int64_t rows, int64_t size, int64_t count, float *values, int64_t *indices, int64_t threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t r = 0; r < rows; r++) topk_row(x + r * size, size, count, values + r * count, indices + r * count);
}
