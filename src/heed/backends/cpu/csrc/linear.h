/* Linear layers for inference, y = x Wᵀ + b, in float32 or with W quantised to int8.

   W is packed into panels of 32 outputs (`HeedMatrix`). So W is streamed sequentially, and each SIMD lane accumulates
   its own output: no horizontal sums. Each thread computes whole panels, for all rows of x. With few rows the time is
   that of reading W (memory-bound), with many that of the arithmetic.

   int8: each row of W and each row of x has its own scale, max |value| / 127. */

#include <math.h>

enum { PANEL = HEED_PANEL, GROUP = HEED_GROUP };

typedef struct {                                  /* rows of activations, quantised: shared by all threads */
    uint8_t *values;                              /* (rows, bytes): whole groups, as in vectors.h */
    float *scales;                                /* of each row */
    int32_t *missing;                             /* of each row: added to all sums of its products */
} QuantizedRows;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* The output columns [first, last) that this thread computes: whole panels. */
static void partition_columns(const Thread *thread, int64_t outputs, int64_t *first, int64_t *last) {
    partition(thread, (outputs + PANEL - 1) / PANEL, first, last);
    *first *= PANEL;
    *last = *last * PANEL < outputs ? *last * PANEL : outputs;
}

typedef struct {                                  /* what a full tile prefetches meanwhile: part of the next panel */
    const char *weights;
    int64_t step;                                 /* bytes per input */
} Prefetch;

/* The part of the panel after w that tile number `tile` of w prefetches. */
INLINED Prefetch part_of_next(const float *w, int64_t size, int64_t tile, int64_t tiles) {
    enum { BYTES = sizeof(float) * PANEL };
    if (tiles == 1) return (Prefetch){(const char *)w, 0}; /* w itself is read as fast as memory allows */
    const int64_t step = (BYTES + tiles - 1) / tiles;
    return (Prefetch){(const char *)w + (BYTES + tile * step) * size, step};
}

/* One panel of y = x Wᵀ in float32, for `rows` rows of x (a register tile). */
INLINED void panel_f32(
    const float *w, const float *x, int64_t size, Prefetch prefetch, const int rows, float y[][PANEL]) {
    enum { PARTS = PANEL / LANES };
    const int unroll = rows > FEW_ROWS ? 1 : UNROLL;
    Lanes sums[MAX_ROWS][UNROLL][PARTS];
    for (int r = 0; r < rows; r++) /* an initialiser of the whole array would call memset on the unused part too */
        for (int u = 0; u < unroll; u++)
            for (int part = 0; part < PARTS; part++) sums[r][u][part] = (Lanes){0};
    for (int64_t i = 0; i < size - size % unroll; i += unroll) {
        if (rows == MAX_ROWS) __builtin_prefetch(prefetch.weights + i * prefetch.step, 0, 2);
        for (int u = 0; u < unroll; u++)
            for (int part = 0; part < PARTS; part++) {
                const Lanes weights = *(const Lanes *)(w + (i + u) * PANEL + part * LANES);
                for (int r = 0; r < rows; r++) sums[r][u][part] += x[r * size + i + u] * weights;
            }
    }
    for (int64_t i = size - size % unroll; i < size; i++)
        for (int part = 0; part < PARTS; part++) {
            const Lanes weights = *(const Lanes *)(w + i * PANEL + part * LANES);
            for (int r = 0; r < rows; r++) sums[r][0][part] += x[r * size + i] * weights;
        }
    for (int r = 0; r < rows; r++)
        for (int part = 0; part < PARTS; part++) {
            for (int u = 1; u < unroll; u++) sums[r][0][part] += sums[r][u][part];
            memcpy(y[r] + part * LANES, &sums[r][0][part], sizeof(Lanes));
        }
}

/* One panel of x Wᵀ in int8 with int32 sums, for `rows` rows of x; size: whole groups. */
INLINED void panel_int8(const int8_t *w, const uint8_t *x, int64_t size, const int rows, int32_t y[][PANEL]) {
    enum { PARTS = PANEL / LANES, STEP = GROUP * PANEL };
    const int unroll = rows > FEW_ROWS ? 1 : UNROLL;
    Integers sums[MAX_ROWS][UNROLL][PARTS];
    for (int r = 0; r < rows; r++)
        for (int u = 0; u < unroll; u++)
            for (int part = 0; part < PARTS; part++) sums[r][u][part] = (Integers){0};
    int64_t i = 0;
    for (; i + unroll * GROUP <= size; i += unroll * GROUP, w += unroll * STEP)
        for (int u = 0; u < unroll; u++)
            for (int r = 0; r < rows; r++)
                for (int part = 0; part < PARTS; part++)
                    sums[r][u][part] = dot4_add(
                        sums[r][u][part], w + u * STEP + part * GROUP * LANES,
                        x + (r * size + i + u * GROUP) * X_BYTES);
    for (; unroll > 1 && i < size; i += GROUP, w += STEP)
        for (int r = 0; r < rows; r++)
            for (int part = 0; part < PARTS; part++)
                sums[r][0][part] = dot4_add(sums[r][0][part], w + part * GROUP * LANES, x + (r * size + i) * X_BYTES);
    for (int r = 0; r < rows; r++)
        for (int part = 0; part < PARTS; part++) {
            for (int u = 1; u < unroll; u++) sums[r][0][part] += sums[r][u][part];
            memcpy(y[r] + part * LANES, &sums[r][0][part], sizeof(Integers));
        }
}

/* Instantiates a panel kernel for each number of rows. */
#define FOR_ROWS(panel, ...)                                               \
    switch (rows) {                                                        \
        case 1: panel(__VA_ARGS__, 1 < MAX_ROWS ? 1 : MAX_ROWS, y); break; \
        case 2: panel(__VA_ARGS__, 2 < MAX_ROWS ? 2 : MAX_ROWS, y); break; \
        case 3: panel(__VA_ARGS__, 3 < MAX_ROWS ? 3 : MAX_ROWS, y); break; \
        case 4: panel(__VA_ARGS__, 4 < MAX_ROWS ? 4 : MAX_ROWS, y); break; \
        case 5: panel(__VA_ARGS__, 5 < MAX_ROWS ? 5 : MAX_ROWS, y); break; \
        case 6: panel(__VA_ARGS__, 6 < MAX_ROWS ? 6 : MAX_ROWS, y); break; \
        case 7: panel(__VA_ARGS__, 7 < MAX_ROWS ? 7 : MAX_ROWS, y); break; \
        default: panel(__VA_ARGS__, MAX_ROWS, y);                          \
    }

static void tile_f32(const float *w, const float *x, int64_t size, Prefetch prefetch, int64_t rows, float y[][PANEL]) {
    FOR_ROWS(panel_f32, w, x, size, prefetch)
}

static void tile_int8(const int8_t *w, const uint8_t *x, int64_t size, int64_t rows, int32_t y[][PANEL]) {
    FOR_ROWS(panel_int8, w, x, size)
}

static int64_t round_to_group(int64_t size) { return (size + GROUP - 1) / GROUP * GROUP; }

/* Bytes of a quantised row of x. */
static int64_t quantized_bytes(int64_t size) { return round_to_group(size) * X_BYTES; }

/* Signed bytes in the second half of a quantised row to magnitudes and masks, four bytes at a time; returns the sum of
   the negative magnitudes. */
static int32_t split_signs(uint8_t *quantized, int64_t padded) {
    int32_t missing = 0;
#pragma omp simd reduction(+ : missing)
    for (int64_t i = 0; i < padded; i += GROUP) {
        uint32_t group;
        memcpy(&group, quantized + padded + i, sizeof group);
        const uint32_t is_negative = group >> 7 & 0x01010101, mask = is_negative * 255;
        const uint32_t magnitudes = (group ^ mask) + is_negative, negative = magnitudes & mask;
        const uint32_t pairs = (negative & 0xff00ff) + (negative >> 8 & 0xff00ff);
        const uint64_t both = (uint64_t)mask << 32 | magnitudes;
        missing += (pairs & 0xffff) + (pairs >> 16);
        memcpy(quantized + 2 * i, &both, sizeof both);
    }
    return missing;
}

/* Quantises one row of x to int8; returns its scale, NaN if the row has a NaN. */
static float quantize_row(const float *x, int64_t size, uint8_t *quantized, int32_t *missing) {
    float largest = 1e-12f, nan_or_zero = 0;
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < size; i++) largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
#pragma omp simd reduction(+ : nan_or_zero)
    for (int64_t i = 0; i < size; i++) nan_or_zero += 0 * x[i];
    const float inverse_scale = 127.0f / largest;
    const int64_t padded = round_to_group(size);
    uint8_t *const bytes = quantized + (X_BYTES - 1) * padded;
#pragma omp simd
    for (int64_t i = 0; i < size; i++) bytes[i] = (uint8_t)((int32_t)(x[i] * inverse_scale + 128.5f) - 128 + X_OFFSET);
    for (int64_t i = size; i < padded; i++) bytes[i] = X_OFFSET;
    *missing = X_BYTES == 2 ? split_signs(quantized, padded) : 0;
    return largest / 127.0f + nan_or_zero;
}

/* int8: quantises the rows of x, each thread some of them; float32: nothing. */
static void quantize_input(
    const Thread *thread, const HeedMatrix *matrix, const float *x, int64_t rows, QuantizedRows quantized) {
    const int64_t size = matrix->inputs;
    int64_t first, last;
    if (!matrix->output_scales) return;
    partition(thread, rows, &first, &last);
    for (int64_t r = first; r < last; r++)
        quantized.scales[r] = quantize_row(
            x + r * size, size, quantized.values + r * quantized_bytes(size), &quantized.missing[r]);
    barrier(thread);
}

/* One row of a panel whose first output is `o`, from the sums of int8 products. Where x is stored with an offset, the
   offset times the sum of W's row is subtracted. */
INLINED void scale_sums(
    const HeedMatrix *matrix, int64_t o, const int32_t *sums, int32_t missing, float x_scale, float *y) {
    const float *scales = matrix->output_scales + o;
    const int32_t *output_sums = matrix->output_sums + o;
    for (int k = 0; k < PANEL; k++) y[k] = x_scale * scales[k] * (sums[k] + missing - X_OFFSET * output_sums[k]);
}

INLINED void add_bias(const HeedMatrix *matrix, int64_t o, float *y) {
    const float *bias = matrix->bias + o;
    for (int k = 0; k < PANEL && matrix->bias; k++) y[k] += bias[k];
}

/* Columns [first, last) of y = x Wᵀ + b; first begins a panel. y: the columns of the first row, rows `stride` apart.
   int8: x has been quantised. */
static void multiply(
    const HeedMatrix *matrix, const float *x, QuantizedRows quantized, int64_t all_rows, int64_t first, int64_t last,
    float *y, int64_t stride) {
    const int64_t size = matrix->inputs, padded = round_to_group(size), bytes = quantized_bytes(size);
    const int64_t tiles = (all_rows + MAX_ROWS - 1) / MAX_ROWS;
    for (int64_t o = first; o < last; o += PANEL)
        for (int64_t r = 0; r < all_rows; r += MAX_ROWS) {
            const int64_t rows = least(all_rows - r, MAX_ROWS), columns = least(last - o, PANEL);
            float sums[MAX_ROWS][PANEL];
            int32_t int_sums[MAX_ROWS][PANEL];
            if (matrix->output_scales) {
                const int8_t *w = (const int8_t *)matrix->weight + o * padded;
                tile_int8(w, quantized.values + r * bytes, padded, rows, int_sums);
            } else {
                const float *w = (const float *)matrix->weight + o * size;
                tile_f32(w, x + r * size, size, part_of_next(w, size, r / MAX_ROWS, tiles), rows, sums);
            }
            for (int64_t i = 0; i < rows; i++) {
                if (matrix->output_scales)
                    scale_sums(matrix, o, int_sums[i], quantized.missing[r + i], quantized.scales[r + i], sums[i]);
                add_bias(matrix, o, sums[i]);
                float *const row = y + (r + i) * stride + o - first;
                if (columns == PANEL)
                    memcpy(row, sums[i], sizeof sums[i]); /* of constant size: registers */
                else
                    memcpy(row, sums[i], sizeof(float) * columns);
            }
        }
}

/* y = x Wᵀ + b: this thread's columns of y. */
static void linear(
    const Thread *thread, const HeedMatrix *matrix, const float *x, int64_t rows, QuantizedRows quantized, float *y) {
    int64_t first, last;
    quantize_input(thread, matrix, x, rows, quantized);
    partition_columns(thread, matrix->outputs, &first, &last);
    multiply(matrix, x, quantized, rows, first, last, y + first, matrix->outputs);
}

typedef struct {
    const HeedMatrix *matrix;
    const float *x;
    float *y;
    int64_t rows;
    QuantizedRows quantized;
} LinearCall;

static void run_linear(const Thread *thread, void *context) {
    const LinearCall *call = context;
    linear(thread, call->matrix, call->x, call->rows, call->quantized, call->y);
}

static int heed_linear(
    const HeedMatrix *matrix, const float *x, float *y, int64_t rows, HeedPool *pool, int64_t threads) {
    float *scales = NULL;
    if (matrix->output_scales) {
        scales = malloc(rows * (sizeof(float) + sizeof(int32_t) + quantized_bytes(matrix->inputs)));
        if (!scales) return HEED_NO_MEMORY;
    }
    LinearCall call = {matrix, x, y, rows, {(uint8_t *)(scales + 2 * rows), scales, (int32_t *)(scales + rows)}};
    run_team(pool, threads, run_linear, &call);
    free(scales);
    return 0;
}

/* Runs the float32 and int8 kernels on integers whose exact product is known; returns 0 if both are right. */
static int heed_self_test_of_isa(void) {
    enum { SIZE = 20 };
    float w[SIZE * PANEL], x[MAX_ROWS * SIZE], y[MAX_ROWS][PANEL];
    int8_t w_int8[SIZE * PANEL];
    uint8_t x_int8[MAX_ROWS][SIZE * X_BYTES];
    int32_t y_int32[MAX_ROWS][PANEL], missing[MAX_ROWS];
    float scales[MAX_ROWS];
    for (int i = 0; i < MAX_ROWS * SIZE; i++) x[i] = i % SIZE ? i % 7 - 3 : 127; /* the largest: all scales are 1 */
    for (int r = 0; r < MAX_ROWS; r++) scales[r] = quantize_row(x + r * SIZE, SIZE, x_int8[r], &missing[r]);
    for (int i = 0; i < SIZE; i++)
        for (int o = 0; o < PANEL; o++)
            w[i * PANEL + o] = w_int8[(i / GROUP * PANEL + o) * GROUP + i % GROUP] = (3 * i + 5 * o) % 11 - 5;
    tile_f32(w, x, SIZE, (Prefetch){(const char *)w, 0}, MAX_ROWS, y);
    tile_int8(w_int8, x_int8[0], SIZE, MAX_ROWS, y_int32);
    for (int r = 0; r < MAX_ROWS; r++)
        for (int o = 0; o < PANEL; o++) {
            int32_t expected = 0, sum = 0;
            for (int i = 0; i < SIZE; i++) {
                expected += (int32_t)(w[i * PANEL + o] * x[r * SIZE + i]);
                sum += (int32_t)w[i * PANEL + o];
            }
            const int32_t found = y_int32[r][o] + missing[r] - X_OFFSET * sum;
            if (scales[r] != 1 || y[r][o] != expected || found != expected) return 1;
        }
    return 0;
}
