/* x Wᵀ + b, each thread's share of it, in floats or with W in integers of 8 bits.

   W lies in panels of 32 outputs, in the order in which it is read: for every input, or every four in integers, what it
   adds to each of the 32. So memory is read in one run, and sums need not be taken across lanes. With few vectors x a
   product lasts as long as reading W, with many as long as its arithmetic. */

#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

enum { PANEL = 32, FOUR = 4, SUMS = 16 };
#if defined(__AVX512F__)
enum { LANES = 16, MOST = 8, FEW = 2, TURNS = 4 };
#elif defined(__AVX2__)
enum { LANES = 8, MOST = 3, FEW = 1, TURNS = 2 };
#else
#error "neither AVX-512 nor AVX2: not tried"
#endif
/* LANES: numbers in a register. MOST: vectors that are multiplied at a time. Up to FEW of them have TURNS sums each,
   which take turns: a sum has to wait for its last addition. All as there are registers for. */
typedef float Lanes __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t Integers __attribute__((vector_size(4 * SUMS), aligned(4)));

#define INLINED static inline __attribute__((always_inline)) /* so that `rows` is a constant and sums are registers */

typedef struct {
    const void *weight;                           /* (panels, inputs, 32) float; or (panels, inputs / 4, 32, 4) int8 */
    const float *scales;                          /* of each output in integers, or none: these are floats */
    const int32_t *sums;                          /* of each output's integers */
    const float *bias;                            /* or none */
    int64_t outputs, inputs;
} Matrix;

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

/* The columns of a product that this thread works out, whole panels: [first, last). */
static void columns_of(const Thread *thread, int64_t outputs, int64_t *first, int64_t *last) {
    share(thread, (outputs + PANEL - 1) / PANEL, first, last);
    *first *= PANEL;
    *last = *last * PANEL < outputs ? *last * PANEL : outputs;
}

INLINED void panel_of_floats(const float *w, const float *x, int64_t size, const int rows, float found[][PANEL]) {
    enum { PARTS = PANEL / LANES };
    const int turns = rows > FEW ? 1 : TURNS;
    Lanes sums[MOST][TURNS][PARTS];
    for (int r = 0; r < rows; r++) /* all at once would be a call that clears those too that are not used */
        for (int turn = 0; turn < turns; turn++)
            for (int part = 0; part < PARTS; part++) sums[r][turn][part] = (Lanes){0};
    for (int64_t i = 0; i < size - size % turns; i += turns)
        for (int turn = 0; turn < turns; turn++)
            for (int part = 0; part < PARTS; part++) {
                const Lanes weights = *(const Lanes *)(w + (i + turn) * PANEL + part * LANES);
                for (int r = 0; r < rows; r++) sums[r][turn][part] += x[r * size + i + turn] * weights;
            }
    for (int64_t i = size - size % turns; i < size; i++)
        for (int part = 0; part < PARTS; part++) {
            const Lanes weights = *(const Lanes *)(w + i * PANEL + part * LANES);
            for (int r = 0; r < rows; r++) sums[r][0][part] += x[r * size + i] * weights;
        }
    for (int r = 0; r < rows; r++)
        for (int part = 0; part < PARTS; part++) {
            for (int turn = 1; turn < turns; turn++) sums[r][0][part] += sums[r][turn][part];
            memcpy(found[r] + part * LANES, &sums[r][0][part], sizeof(Lanes));
        }
}

/* Four products of bytes added to each of sixteen sums: w from -127 to 127, the same four x, from 1 to 255, for all. */
INLINED Integers add_fours(Integers sums, const int8_t *w, const uint8_t *x) {
#ifdef __AVX512VNNI__
    int32_t four;
    memcpy(&four, x, sizeof four);
    return (Integers)_mm512_dpbusd_epi32((__m512i)sums, _mm512_set1_epi32(four), _mm512_loadu_si512(w));
#else
    for (int lane = 0; lane < SUMS; lane++)
        for (int k = 0; k < FOUR; k++) sums[lane] += (int32_t)w[lane * FOUR + k] * (int32_t)x[k];
    return sums;
#endif
}

INLINED void panel_of_integers(
    const int8_t *w, const uint8_t *x, int64_t size, const int rows, int32_t found[][PANEL]) {
    Integers sums[MOST][2];
    for (int r = 0; r < rows; r++) sums[r][0] = sums[r][1] = (Integers){0};
    for (int64_t i = 0; i < size; i += FOUR, w += FOUR * PANEL)
        for (int r = 0; r < rows; r++)
            for (int half = 0; half < 2; half++)
                sums[r][half] = add_fours(sums[r][half], w + half * FOUR * SUMS, x + r * size + i);
    for (int r = 0; r < rows; r++) memcpy(found[r], sums[r], sizeof sums[r]);
}

/* The same with as many rows as there are. */
#define FOR_ROWS(panel)                                             \
    switch (rows) {                                                 \
        case 1: panel(w, x, size, 1 < MOST ? 1 : MOST, found); break; \
        case 2: panel(w, x, size, 2 < MOST ? 2 : MOST, found); break; \
        case 3: panel(w, x, size, 3 < MOST ? 3 : MOST, found); break; \
        case 4: panel(w, x, size, 4 < MOST ? 4 : MOST, found); break; \
        case 5: panel(w, x, size, 5 < MOST ? 5 : MOST, found); break; \
        case 6: panel(w, x, size, 6 < MOST ? 6 : MOST, found); break; \
        case 7: panel(w, x, size, 7 < MOST ? 7 : MOST, found); break; \
        default: panel(w, x, size, MOST, found);                    \
    }

static void floats(const float *w, const float *x, int64_t size, int64_t rows, float found[][PANEL]) {
    FOR_ROWS(panel_of_floats)
}

static void integers(const int8_t *w, const uint8_t *x, int64_t size, int64_t rows, int32_t found[][PANEL]) {
    FOR_ROWS(panel_of_integers)
}

static int64_t in_fours(int64_t size) { return (size + FOUR - 1) / FOUR * FOUR; }

/* A vector in integers around 128, which means zero; returned: what one step of them is worth, nan if it had any. */
static float rounded(const float *x, int64_t size, uint8_t *integers) {
    float largest = 1e-12f, nothing = 0;
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < size; i++) largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
#pragma omp simd reduction(+ : nothing)
    for (int64_t i = 0; i < size; i++) nothing += 0 * x[i];
    const float steps = 127.0f / largest;
#pragma omp simd
    for (int64_t i = 0; i < size; i++) integers[i] = (uint8_t)(int32_t)(x[i] * steps + 128.5f);
    for (int64_t i = size; i < in_fours(size); i++) integers[i] = 128;
    return largest / 127.0f + nothing;
}

static void put(const float *found, const float *bias, int64_t o, int64_t wide, float *y) {
    if (bias)
        for (int64_t k = 0; k < wide; k++) y[k] = found[k] + bias[o + k];
    else
        memcpy(y, found, sizeof(float) * wide);
}

/* y = x Wᵀ + b: this thread's share of the columns of y. */
static void multiply(const Thread *thread, const Matrix *matrix, const float *x, float *y) {
    const int64_t size = matrix->inputs, padded = in_fours(size);
    int64_t first, last;
    if (matrix->scales)
        for (int64_t r = 0; r < thread->rows; r++)
            thread->worth[r] = rounded(x + r * size, size, thread->integers + r * padded);
    columns_of(thread, matrix->outputs, &first, &last);
    for (int64_t o = first; o < last; o += PANEL)
        for (int64_t r = 0; r < thread->rows; r += MOST) {
            const int64_t rows = thread->rows - r < MOST ? thread->rows - r : MOST;
            const int64_t wide = last - o < PANEL ? last - o : PANEL;
            float found[MOST][PANEL];
            if (matrix->scales) {
                int32_t whole[MOST][PANEL];
                const int8_t *panel = (const int8_t *)matrix->weight + o * padded;
                integers(panel, thread->integers + r * padded, padded, rows, whole);
                for (int64_t i = 0; i < rows; i++)
                    for (int64_t k = 0; k < wide; k++) {
                        const int32_t around_zero = whole[i][k] - 128 * matrix->sums[o + k];
                        found[i][k] = thread->worth[r + i] * matrix->scales[o + k] * around_zero;
                    }
            } else {
                floats((const float *)matrix->weight + o * size, x + r * size, size, rows, found);
            }
            for (int64_t i = 0; i < rows; i++) put(found[i], matrix->bias, o, wide, y + (r + i) * matrix->outputs + o);
        }
}

/* y = x Wᵀ + b of any number of rows, by threads of its own; 1 where there is no memory. */
int heed_multiply(const Matrix *matrix, const float *x, float *y, int64_t rows, int64_t threads) {
    const int64_t each = rows * (int64_t)sizeof(float) + rows * in_fours(matrix->inputs);
    char *memory = matrix->scales ? malloc(threads * each) : NULL;
    if (matrix->scales && !memory) return 1;
#pragma omp parallel num_threads(threads)
    {
        float *worth = (float *)(memory + omp_get_thread_num() * each);
        const Thread thread = {
            .number = omp_get_thread_num(), .of = omp_get_num_threads(), .rows = rows,
            .worth = worth, .integers = (uint8_t *)(worth + rows)};
        multiply(&thread, matrix, x, y);
    }
    free(memory);
    return 0;
}

/* Whether integers are multiplied by instructions made for that. */
int heed_quick_integers(void) {
#ifdef __AVX512VNNI__
    return 1;
#else
    return 0;
#endif
}

/* Both kinds of products on numbers whose result is known: 0 if it comes out. */
int heed_trial(void) {
    enum { SIZE = 20 };
    static float w[SIZE * PANEL], x[MOST * SIZE], found[MOST][PANEL];
    static int8_t in_steps[SIZE * PANEL];
    static uint8_t around[MOST * SIZE];
    static int32_t whole[MOST][PANEL];
    for (int i = 0; i < MOST * SIZE; i++) around[i] = 128 + (x[i] = i % 7 - 3);
    for (int i = 0; i < SIZE; i++)
        for (int o = 0; o < PANEL; o++)
            w[i * PANEL + o] = in_steps[(i / FOUR * PANEL + o) * FOUR + i % FOUR] = (3 * i + 5 * o) % 11 - 5;
    floats(w, x, SIZE, MOST, found);
    integers(in_steps, around, SIZE, MOST, whole);
    for (int r = 0; r < MOST; r++)
        for (int o = 0; o < PANEL; o++) {
            int32_t expected = 0, sum = 0;
            for (int i = 0; i < SIZE; i++) {
                expected += (int32_t)(w[i * PANEL + o] * x[r * SIZE + i]);
                sum += (int32_t)w[i * PANEL + o];
            }
            if (found[r][o] != expected || whole[r][o] - 128 * sum != expected) return 1;
        }
    return 0;
}
