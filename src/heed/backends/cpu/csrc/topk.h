/* The likeliest words: the largest numbers of each row, best first, and of equals the first. */

enum { RUN = 64 };                                /* numbers whose largest is found at once: most runs hold none */

static void rank(const float *row, int64_t words, int64_t count, float *values, int64_t *tokens) {
    int64_t found = 0;
    for (int64_t first = 0; first < words; first += RUN) {
        const int64_t last = least(first + RUN, words);
        float highest = -INFINITY;
#pragma omp simd reduction(max : highest)
        for (int64_t w = first; w < last; w++) highest = row[w] > highest ? row[w] : highest;
        if (found == count && highest <= values[count - 1]) continue;
        for (int64_t w = first; w < last; w++) {
            if (isnan(row[w]) || (found == count && row[w] <= values[count - 1])) continue;
            int64_t place = found < count ? found++ : count - 1;
            for (; place > 0 && values[place - 1] < row[w]; place--) {
                values[place] = values[place - 1];
                tokens[place] = tokens[place - 1];
            }
            values[place] = row[w];
            tokens[place] = w;
        }
    }
    for (; found < count; found++) { /* what is no number has no rank */
        values[found] = NAN;
        tokens[found] = 0;
    }
}

void heed_rank(
    const float *numbers, int64_t rows, int64_t words, int64_t count, float *values, int64_t *tokens, int64_t threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t r = 0; r < rows; r++) rank(numbers + r * words, words, count, values + r * count, tokens + r * count);
}
