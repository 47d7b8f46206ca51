/* C = A B in float32 for training, where both operands change: `gemm_small` in one thread, `gemm` in all.

   For large matrices B is packed into panels of 32 columns, which are read sequentially and reused for many rows of A
   while they stay in cache. A has arbitrary row and column strides, so a transposed operand needs no copy. */

enum { K_BLOCK = 256, M_BLOCK = 64 };             /* columns and rows of the block of A that is reused from cache */

static int64_t round_to_lanes(int64_t floats) { return (floats + LANES - 1) / LANES * LANES; }

static HeedRows offset_rows(HeedRows rows, int64_t row, int64_t column) {
    rows.data += row * rows.stride + column;
    return rows;
}

/* sums += A B, from `first` to `last` of the depth. */
INLINED void gemm_steps(
    const float *row[MAX_ROWS], int64_t col_stride, HeedRows b, Lanes sums[MAX_ROWS][PANEL / LANES], int64_t first,
    int64_t last, const int parts) {
    for (int64_t k = first; k < last; k++)
        for (int part = 0; part < parts; part++) {
            const Lanes b_lanes = *(const Lanes *)(b.data + k * b.stride + part * LANES);
            for (int r = 0; r < MAX_ROWS; r++) sums[r][part] += row[r][k * col_stride] * b_lanes;
        }
}

/* Register tile: C = A B + start, of at most MAX_ROWS rows and `parts` SIMD registers of columns; start.data may be
   NULL. Always computes MAX_ROWS rows, repeating the last one, so that the accumulators stay in registers. C, and the
   gate if there is one, are prefetched row by row during the arithmetic. */
INLINED void gemm_tile(
    HeedStrided a, HeedRows b, HeedRows start, HeedRows c, HeedRows gate, int64_t rows, int64_t depth,
    const int parts) {
    Lanes sums[MAX_ROWS][PANEL / LANES];
    const float *row[MAX_ROWS];
    const int64_t few = depth / (2 * MAX_ROWS);
    int64_t k = 0;
    for (int r = 0; r < MAX_ROWS; r++) {
        row[r] = a.data + (r < rows ? r : rows - 1) * a.row_stride;
        for (int part = 0; part < parts; part++) sums[r][part] = (Lanes){0};
    }
    for (int r = 0; r < rows; r++, k += few) {
        for (int part = 0; part < parts; part++) {
            __builtin_prefetch(c.data + r * c.stride + part * LANES, 1);
            if (gate.data) __builtin_prefetch(gate.data + r * gate.stride + part * LANES);
        }
        gemm_steps(row, a.col_stride, b, sums, k, k + few, parts);
    }
    gemm_steps(row, a.col_stride, b, sums, k, depth, parts);
    for (int r = 0; r < rows; r++)
        for (int part = 0; part < parts; part++) {
            if (start.data) sums[r][part] += *(const Lanes *)(start.data + r * start.stride + part * LANES);
            *(Lanes *)(c.data + r * c.stride + part * LANES) = sums[r][part];
        }
}

/* C = A B, or C += A B, of matrices with a few dozen rows and columns, in the calling thread, without packing. */
static void gemm_small(
    HeedStrided a, HeedRows b, HeedRows c, int64_t rows, int64_t depth, int64_t columns, int accumulate) {
    for (int64_t r = 0; r < rows; r += MAX_ROWS, a.data += MAX_ROWS * a.row_stride, c.data += MAX_ROWS * c.stride) {
        const int64_t tile_rows = least(rows - r, MAX_ROWS);
        int64_t n = 0;
        for (; n + PANEL <= columns; n += PANEL) {
            const HeedRows to = offset_rows(c, 0, n), start = accumulate ? to : (HeedRows){0};
            gemm_tile(a, offset_rows(b, 0, n), start, to, (HeedRows){0}, tile_rows, depth, PANEL / LANES);
        }
        for (; n + LANES <= columns; n += LANES) {
            const HeedRows to = offset_rows(c, 0, n), start = accumulate ? to : (HeedRows){0};
            gemm_tile(a, offset_rows(b, 0, n), start, to, (HeedRows){0}, tile_rows, depth, 1);
        }
        for (; n < columns; n++) /* columns that do not fill a register */
            for (int64_t i = 0; i < tile_rows; i++) {
                float *to = c.data + i * c.stride + n, sum = accumulate ? *to : 0;
                for (int64_t k = 0; k < depth; k++)
                    sum += a.data[i * a.row_stride + k * a.col_stride] * b.data[k * b.stride + n];
                *to = sum;
            }
    }
}

/* Packs 32 columns of B, starting at `column`, into a contiguous (depth, 32) panel, zero-padded at B's edge. */
static void pack_panel(const HeedGemm *gemm, int64_t column, float *panel) {
    enum { BLOCK = 16 };
    const int64_t cols = least(PANEL, gemm->columns - column);
    const int64_t row_stride = gemm->b.row_stride, col_stride = gemm->b.col_stride;
    const float *b = gemm->b.data + column * col_stride;
    if (cols < PANEL) memset(panel, 0, sizeof(float) * PANEL * gemm->depth);
    if (col_stride == 1)
        for (int64_t k = 0; k < gemm->depth; k++) memcpy(panel + k * PANEL, b + k * row_stride, sizeof(float) * cols);
    else /* transposes in blocks: reads along B's columns, writes stay in cache */
        for (int64_t first = 0; first < gemm->depth; first += BLOCK)
            for (int64_t n = 0; n < cols; n++)
                for (int64_t k = first; k < least(first + BLOCK, gemm->depth); k++)
                    panel[k * PANEL + n] = b[k * row_stride + n * col_stride];
}

/* What follows the matmul, for some columns of one row of C while they are in cache: ReLU and dropout, or the gradient
   of both, which is zero where their result is. */
static void finish_row(const HeedGemm *gemm, int64_t row, int64_t column, int64_t cols) {
    float *c = gemm->c + row * gemm->columns + column;
    if (gemm->relu) {
#pragma omp simd
        for (int64_t n = 0; n < cols; n++) c[n] = c[n] > 0 ? c[n] : 0;
        if (gemm->dropout.threshold) dropout_row(&gemm->dropout, row, column, c, c, cols);
    }
    if (gemm->gate) {
        const float *gate = gemm->gate + row * gemm->columns + column, scale = gemm->gate_scale;
#pragma omp simd
        for (int64_t n = 0; n < cols; n++) c[n] = gate[n] > 0 ? c[n] * scale : 0;
    }
}

/* The contribution of rows [first, last) and K_BLOCK of the depth, from k_start on, to one panel of C. */
static void multiply_panel(
    const HeedGemm *gemm, float *panel, int64_t column, int64_t first, int64_t last, int64_t k_start) {
    const int64_t cols = least(PANEL, gemm->columns - column), depth = least(K_BLOCK, gemm->depth - k_start);
    const HeedRows b = {panel + k_start * PANEL, PANEL};
    const int finishes = k_start + depth == gemm->depth && (gemm->relu || gemm->gate);
    for (int64_t r = first; r < last; r += MAX_ROWS) {
        const int64_t rows = least(MAX_ROWS, last - r);
        HeedStrided a = gemm->a;
        a.data += r * a.row_stride + k_start * a.col_stride;
        const HeedRows c = {gemm->c + r * gemm->columns + column, gemm->columns};
        const HeedRows bias = {gemm->bias ? (float *)gemm->bias + column : NULL, 0};
        const HeedRows start = k_start || gemm->accumulate ? c : bias;
        const HeedRows gate = {finishes && gemm->gate ? (float *)gemm->gate + (c.data - gemm->c) : NULL, c.stride};
        if (cols == PANEL) {
            gemm_tile(a, b, start, c, gate, rows, depth, PANEL / LANES);
        } else {
            float sums[MAX_ROWS][PANEL];
            gemm_tile(a, b, (HeedRows){0}, (HeedRows){sums[0], PANEL}, (HeedRows){0}, rows, depth, PANEL / LANES);
            for (int64_t i = 0; i < rows; i++)
                for (int64_t n = 0; n < cols; n++)
                    c.data[i * c.stride + n] = sums[i][n] + (start.data ? start.data[i * start.stride + n] : 0);
        }
        for (int64_t i = 0; i < rows && finishes; i++) finish_row(gemm, r + i, column, cols);
    }
}

typedef struct {
    const HeedGemm *gemm;
    float *packed;                                /* (panels, depth, 32): B */
} GemmCall;

/* The threads first pack B together, then each computes its own rows of C, block by block: an (M_BLOCK, K_BLOCK) block
   of A stays in cache while all panels of B pass by. */
static void run_gemm(const Thread *thread, void *context) {
    const GemmCall *call = context;
    const HeedGemm *gemm = call->gemm;
    const int64_t panels = (gemm->columns + PANEL - 1) / PANEL, blocks = (gemm->rows + MAX_ROWS - 1) / MAX_ROWS;
    const int64_t panel_size = PANEL * gemm->depth;
    int64_t first, last;
    partition(thread, panels, &first, &last);
    for (int64_t p = first; p < last; p++) pack_panel(gemm, p * PANEL, call->packed + p * panel_size);
    barrier(thread);
    partition(thread, blocks, &first, &last);
    last = least(last * MAX_ROWS, gemm->rows);
    for (int64_t r = first * MAX_ROWS; r < last; r += M_BLOCK)
        for (int64_t k_start = 0; k_start < gemm->depth; k_start += K_BLOCK)
            for (int64_t p = 0; p < panels; p++)
                multiply_panel(gemm, call->packed + p * panel_size, p * PANEL, r, least(r + M_BLOCK, last), k_start);
}

static int heed_gemm(const HeedGemm *gemm, HeedPool *pool, int64_t threads) {
    const int64_t panels = (gemm->columns + PANEL - 1) / PANEL;
    GemmCall call = {gemm, allocate(sizeof(float) * panels * PANEL * gemm->depth)};
    if (!call.packed) return HEED_NO_MEMORY;
    run_team(pool, threads, run_gemm, &call);
    release(call.packed);
    return 0;
}
