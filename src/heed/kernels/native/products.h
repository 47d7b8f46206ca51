/* x Wᵀ + b of few vectors x, each thread's share of it, in floats or with W in integers of 8 bits.

   Such a product lasts as long as reading the matrix, which is read as it lies, row after row. */

#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX512VNNI__
#include <immintrin.h>
#endif

#define LANES 16
typedef float Lanes __attribute__((vector_size(4 * LANES), aligned(4)));

typedef struct {                                  /* x Wᵀ + b */
    const void *weight;                           /* (outputs, inputs), float, or int8 if it has scales */
    const float *scales;                          /* of each row of integers, or none */
    const int32_t *sums;                          /* of each row of integers */
    const float *bias;                            /* or none */
    int64_t outputs, inputs;
} Matrix;

static inline float sum_of(Lanes x) {
    typedef float Half __attribute__((vector_size(2 * LANES), aligned(4)));
    typedef float Quarter __attribute__((vector_size(LANES), aligned(4)));
    const Half *halves = (const Half *)&x;
    const Half half = halves[0] + halves[1];
    const Quarter *quarters = (const Quarter *)&half;
    const Quarter quarter = quarters[0] + quarters[1];
    return (quarter[0] + quarter[1]) + (quarter[2] + quarter[3]);
}

static inline float dot(const float *a, const float *b, int64_t size) {
    Lanes sum = {0};
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) sum += *(const Lanes *)(a + i) * *(const Lanes *)(b + i);
    float total = sum_of(sum);
    for (; i < size; i++) total += a[i] * b[i];
    return total;
}

/* One row of a matrix with up to four vectors; how many is a constant wherever these are inlined, so that all sums stay
   in registers. A row at a time: memory is read twice as fast in one run as in four that take turns. */
static inline __attribute__((always_inline)) void row_of_floats(
    const float *w, const float *x, int64_t size, const int rows, float *found) {
    Lanes sums[4][4] = {0};
    const int64_t whole = size - size % (4 * LANES);
    for (int64_t i = 0; i < whole; i += 4 * LANES)
        for (int k = 0; k < 4; k++)
            for (int r = 0; r < rows; r++)
                sums[r][k] += *(const Lanes *)(w + i + k * LANES) * *(const Lanes *)(x + r * size + i + k * LANES);
    for (int r = 0; r < rows; r++) {
        found[r] = sum_of((sums[r][0] + sums[r][1]) + (sums[r][2] + sums[r][3]));
        for (int64_t i = whole; i < size; i++) found[r] += w[i] * x[r * size + i];
    }
}

/* The same in integers: w from -127 to 127, x from 1 to 255, where 128 means zero. */
static inline __attribute__((always_inline)) void row_of_integers(
    const int8_t *w, const uint8_t *x, int64_t size, const int rows, int32_t *found) {
    int64_t i = 0;
    memset(found, 0, sizeof(int32_t) * rows);
#ifdef __AVX512VNNI__
    __m512i sums[4][2];
    memset(sums, 0, sizeof sums);
    for (; i + 128 <= size; i += 128)
        for (int k = 0; k < 2; k++) {
            const __m512i weight = _mm512_loadu_si512(w + i + 64 * k);
            for (int r = 0; r < rows; r++)
                sums[r][k] = _mm512_dpbusd_epi32(sums[r][k], _mm512_loadu_si512(x + r * size + i + 64 * k), weight);
        }
    for (int r = 0; r < rows; r++) found[r] = _mm512_reduce_add_epi32(_mm512_add_epi32(sums[r][0], sums[r][1]));
#endif
    for (int r = 0; r < rows; r++)
        for (int64_t j = i; j < size; j++) found[r] += (int32_t)w[j] * (int32_t)x[r * size + j];
}

/* A vector in integers around 128; returned: what one step of them is worth. */
static float rounded(const float *x, int64_t size, uint8_t *integers) {
    float largest = 1e-12f;
    for (int64_t i = 0; i < size; i++) largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
    for (int64_t i = 0; i < size; i++) integers[i] = (uint8_t)(int32_t)(x[i] * (127.0f / largest) + 128.5f);
    return largest / 127.0f;
}

typedef struct {                                  /* one of the threads, and what is its own */
    int64_t number, of, rows;
    float *stream, *ready;                        /* (rows, width) each: residuals, and what the next product takes */
    float *scores;                                /* one for each token that can be looked at */
    float *worth;                                 /* what one step of each row's integers is worth */
    uint8_t *integers;                            /* (rows, the widest input) */
} Thread;

/* This thread's part of so many: [first, last). */
static void share(const Thread *thread, int64_t count, int64_t *first, int64_t *last) {
    *first = count * thread->number / thread->of;
    *last = count * (thread->number + 1) / thread->of;
}

static inline void floats(const float *w, const float *x, int64_t size, int64_t rows, float *found) {
    switch (rows) {
        case 1: row_of_floats(w, x, size, 1, found); break;
        case 2: row_of_floats(w, x, size, 2, found); break;
        case 3: row_of_floats(w, x, size, 3, found); break;
        default: row_of_floats(w, x, size, 4, found);
    }
}

static inline void integers(const int8_t *w, const uint8_t *x, int64_t size, int64_t rows, int32_t *found) {
    switch (rows) {
        case 1: row_of_integers(w, x, size, 1, found); break;
        case 2: row_of_integers(w, x, size, 2, found); break;
        case 3: row_of_integers(w, x, size, 3, found); break;
        default: row_of_integers(w, x, size, 4, found);
    }
}

/* What a thread multiplies with: a vector's integers are made once, however many parts of the matrix they meet. */
static void make_integers(const Thread *thread, const Matrix *matrix, const float *x) {
    if (matrix->scales)
        for (int64_t r = 0; r < thread->rows; r++)
            thread->worth[r] = rounded(x + r * matrix->inputs, matrix->inputs, thread->integers + r * matrix->inputs);
}

/* y = x Wᵀ + b: columns [first, last) of y. */
static void multiply_part(
    const Thread *thread, const Matrix *matrix, const float *x, float *y, int64_t first, int64_t last) {
    const int64_t size = matrix->inputs;
    for (int64_t o = first; o < last; o++)
        for (int64_t r = 0; r < thread->rows; r += 4) {
            const int64_t rows = thread->rows - r < 4 ? thread->rows - r : 4;
            float found[4];
            if (matrix->scales) {
                int32_t whole[4];
                integers((const int8_t *)matrix->weight + o * size, thread->integers + r * size, size, rows, whole);
                for (int64_t i = 0; i < rows; i++)
                    found[i] = thread->worth[r + i] * matrix->scales[o] * (whole[i] - 128 * matrix->sums[o]);
            } else {
                floats((const float *)matrix->weight + o * size, x + r * size, size, rows, found);
            }
            for (int64_t i = 0; i < rows; i++)
                y[(r + i) * matrix->outputs + o] = found[i] + (matrix->bias ? matrix->bias[o] : 0);
        }
}

/* This thread's share of all columns. */
static void multiply(const Thread *thread, const Matrix *matrix, const float *x, float *y) {
    int64_t first, last;
    share(thread, matrix->outputs, &first, &last);
    make_integers(thread, matrix, x);
    multiply_part(thread, matrix, x, y, first, last);
}

/* Both kinds of products on numbers whose result is known: 0 if it comes out. */
int heed_trial(void) {
    float w[200], x[200], found;
    int8_t in_steps[200];
    uint8_t around[200];
    int32_t whole, sum = 0, expected = 0;
    for (int i = 0; i < 200; i++) {
        w[i] = in_steps[i] = 3 * i % 11 - 5;
        x[i] = i % 7 - 3;
        around[i] = 128 + i % 7 - 3;
        sum += in_steps[i];
        expected += in_steps[i] * (i % 7 - 3);
    }
    floats(w, x, 200, 1, &found);
    integers(in_steps, around, 200, 1, &whole);
    return found != expected || whole - 128 * sum != expected;
}
