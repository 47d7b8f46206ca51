/* C = A B in float32 for training, where both operands change: `gemm_small` in one thread, `gemm` in all.

   For large matrices B is packed into panels of 32 columns, which are read sequentially and reused for many rows of A
   while they stay in cache. A has arbitrary row and column strides. Where its columns are contiguous, as in the
   gradient of a weight, the depth is long (all tokens): A is packed, too, and both for K_BLOCK of it at a time. */

/* Columns and rows of the block of A that is reused from cache; rows of A that are packed at a time. */
enum { K_BLOCK = 256, M_BLOCK = 64 / MAX_ROWS * MAX_ROWS, PACKED_ROWS = 4 * M_BLOCK };
/* Floats between packed tiles of A and panels of B, K_BLOCK deep: addresses a power of 2 apart share cache sets. */
enum { TILE_STRIDE = K_BLOCK * MAX_ROWS + 16, PANEL_STRIDE = K_BLOCK * PANEL + 16 };

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

/* Packs `depth` rows of panels [first, last) of B, from row k_start on: (depth, 32) each, zero-padded at B's edge,
   `stride` floats apart. B is read along its contiguous dimension. */
static void pack_panels(
    const HeedGemm *gemm, int64_t first, int64_t last, int64_t k_start, int64_t depth, int64_t stride, float *panels) {
    enum { BLOCK = 16 };
    const int64_t row_stride = gemm->b.row_stride, col_stride = gemm->b.col_stride;
    const int64_t cols = least((last - first) * PANEL, gemm->columns - first * PANEL), whole = cols / PANEL;
    const float *b = gemm->b.data + k_start * row_stride + first * PANEL * col_stride;
    if (whole < last - first) memset(panels + whole * stride, 0, sizeof(float) * PANEL * depth);
    if (col_stride == 1)
        for (int64_t k = 0; k < depth; k++, b += row_stride) {
            float *to = panels + k * PANEL;
            for (int64_t p = 0; p < whole; p++) memcpy(to + p * stride, b + p * PANEL, sizeof(float) * PANEL);
            memcpy(to + whole * stride, b + whole * PANEL, sizeof(float) * (cols - whole * PANEL));
        }
    else /* transposes in blocks: reads along B's columns, writes stay in cache */
        for (int64_t p = 0; p < last - first; p++)
            for (int64_t start = 0; start < depth; start += BLOCK)
                for (int64_t n = 0; n < least(PANEL, cols - p * PANEL); n++)
                    for (int64_t k = start; k < least(start + BLOCK, depth); k++)
                        panels[p * stride + k * PANEL + n] = b[k * row_stride + (p * PANEL + n) * col_stride];
}

typedef struct {                                  /* a part of the depth, for a block of rows and one panel of C */
    HeedStrided a;                                /* its first tile, of MAX_ROWS rows */
    int64_t tile_stride;                          /* floats from one tile to the next */
    float *panel;
    int64_t row, rows, column, k_start, depth;
} GemmBlock;

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

static void multiply_block(const HeedGemm *gemm, const GemmBlock *block) {
    const int64_t column = block->column, cols = least(PANEL, gemm->columns - column);
    const HeedRows bias = {gemm->bias ? (float *)gemm->bias + column : NULL, 0}, panel = {block->panel, PANEL};
    const int finishes = block->k_start + block->depth == gemm->depth && (gemm->relu || gemm->gate);
    HeedStrided a = block->a;
    for (int64_t i = 0, rows; i < block->rows; i += rows, a.data += block->tile_stride) {
        rows = least(MAX_ROWS, block->rows - i);
        const HeedRows c = {gemm->c + (block->row + i) * gemm->columns + column, gemm->columns};
        const HeedRows start = block->k_start || gemm->accumulate ? c : bias;
        const HeedRows gate = {finishes && gemm->gate ? (float *)gemm->gate + (c.data - gemm->c) : NULL, c.stride};
        if (cols == PANEL) {
            gemm_tile(a, panel, start, c, gate, rows, block->depth, PANEL / LANES);
        } else {
            float sums[MAX_ROWS][PANEL];
            gemm_tile(a, panel, (HeedRows){0}, (HeedRows){sums[0], PANEL}, (HeedRows){0}, rows, block->depth, PANEL / LANES);
            for (int64_t r = 0; r < rows; r++)
                for (int64_t n = 0; n < cols; n++)
                    c.data[r * c.stride + n] = sums[r][n] + (start.data ? start.data[r * start.stride + n] : 0);
        }
        for (int64_t r = 0; r < rows && finishes; r++) finish_row(gemm, block->row + i + r, column, cols);
    }
}

typedef struct {
    const HeedGemm *gemm;
    float *packed;
    int64_t per_thread;                           /* floats of `packed`; 0: shared by all threads */
} GemmCall;

static int64_t panel_count(const HeedGemm *gemm) { return (gemm->columns + PANEL - 1) / PANEL; }

static int64_t tile_count(const HeedGemm *gemm) { return (gemm->rows + MAX_ROWS - 1) / MAX_ROWS; }

/* The threads first pack B together, then each computes its own rows of C, block by block: an (M_BLOCK, K_BLOCK) block
   of A stays in cache while all panels of B pass by. */
static void run_gemm(const Thread *thread, void *context) {
    const GemmCall *call = context;
    const HeedGemm *gemm = call->gemm;
    const HeedStrided a = gemm->a;
    const int64_t panels = panel_count(gemm), panel_size = PANEL * gemm->depth;
    int64_t first, last;
    partition(thread, panels, &first, &last);
    pack_panels(gemm, first, last, 0, gemm->depth, panel_size, call->packed + first * panel_size);
    barrier(thread);
    partition(thread, tile_count(gemm), &first, &last);
    last = least(last * MAX_ROWS, gemm->rows);
    for (int64_t r = first * MAX_ROWS; r < last; r += M_BLOCK)
        for (int64_t k = 0; k < gemm->depth; k += K_BLOCK)
            for (int64_t p = 0; p < panels; p++) {
                const GemmBlock block = {
                    .a = {a.data + r * a.row_stride + k * a.col_stride, a.row_stride, a.col_stride},
                    .tile_stride = MAX_ROWS * a.row_stride, .panel = call->packed + p * panel_size + k * PANEL,
                    .row = r, .rows = least(M_BLOCK, last - r), .column = p * PANEL,
                    .k_start = k, .depth = least(K_BLOCK, gemm->depth - k)};
                multiply_block(gemm, &block);
            }
}

/* Packs rows [first, last) of A, whose columns are contiguous, into tiles of (depth, MAX_ROWS). */
static void pack_tiles(
    const HeedGemm *gemm, int64_t first, int64_t last, int64_t k_start, int64_t depth, float *tiles) {
    for (int64_t k = 0; k < depth; k++) {
        const float *from = gemm->a.data + (k_start + k) * gemm->a.col_stride;
        float *to = tiles + k * MAX_ROWS;
        int64_t r = first;
        for (; r + MAX_ROWS <= last; r += MAX_ROWS, to += TILE_STRIDE) memcpy(to, from + r, sizeof(float) * MAX_ROWS);
        memcpy(to, from + r, sizeof(float) * (last - r));
    }
}

/* For an A with contiguous columns: each thread packs what it needs of A and B, and computes its own rows or columns of
   C, whichever there are more of. */
static void run_deep_gemm(const Thread *thread, void *context) {
    const GemmCall *call = context;
    const HeedGemm *gemm = call->gemm;
    int64_t first_panel = 0, last_panel = panel_count(gemm), first = 0, last = tile_count(gemm);
    if (gemm->columns >= gemm->rows)
        partition(thread, last_panel, &first_panel, &last_panel);
    else
        partition(thread, last, &first, &last);
    last = least(last * MAX_ROWS, gemm->rows);
    float *tiles = call->packed + thread->index * call->per_thread;
    float *panels = tiles + PACKED_ROWS / MAX_ROWS * TILE_STRIDE;
    for (int64_t k = 0, depth; k < gemm->depth; k += depth) {
        depth = least(K_BLOCK, gemm->depth - k);
        pack_panels(gemm, first_panel, last_panel, k, depth, PANEL_STRIDE, panels);
        for (int64_t start = first * MAX_ROWS, end; start < last; start = end) {
            end = least(start + PACKED_ROWS, last);
            pack_tiles(gemm, start, end, k, depth, tiles);
            for (int64_t r = start; r < end; r += M_BLOCK)
                for (int64_t p = first_panel; p < last_panel; p++) {
                    const GemmBlock block = {
                        .a = {tiles + (r - start) / MAX_ROWS * TILE_STRIDE, 1, MAX_ROWS}, .tile_stride = TILE_STRIDE,
                        .panel = panels + (p - first_panel) * PANEL_STRIDE, .row = r, .rows = least(M_BLOCK, end - r),
                        .column = p * PANEL, .k_start = k, .depth = depth};
                    multiply_block(gemm, &block);
                }
        }
    }
}

static int heed_gemm(const HeedGemm *gemm, HeedPool *pool, int64_t threads) {
    const int is_deep = gemm->a.row_stride == 1 && gemm->a.col_stride != 1;
    const int64_t per_thread = aligned(PACKED_ROWS / MAX_ROWS * TILE_STRIDE + panel_count(gemm) * PANEL_STRIDE);
    const int64_t floats = is_deep ? threads * per_thread : panel_count(gemm) * PANEL * gemm->depth;
    GemmCall call = {gemm, allocate(sizeof(float) * floats), per_thread};
    if (!call.packed) return HEED_NO_MEMORY;
    run_team(pool, threads, is_deep ? run_deep_gemm : run_gemm, &call);
    release(call.packed);
    return 0;
}
