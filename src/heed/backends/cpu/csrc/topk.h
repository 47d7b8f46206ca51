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

/* x: (rows, size). values, indices: (rows, count); missing values (too many NaN) become NaN with index 0. */
void heed_topk(
    const float *x, int64_t rows, int64_t size, int64_t count, float *values, int64_t *indices, int64_t threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t r = 0; r < rows; r++) {
        int64_t filled = topk_insert(x + r * size, 0, size, 0, count, values + r * count, indices + r * count);
        for (; filled < count; filled++) {
            values[r * count + filled] = NAN;
            indices[r * count + filled] = 0;
        }
    }
}
