/* C = A B of matrices that both change, as in learning: small ones by one thread as they lie, large ones by all.

   Of a large B panels of 32 columns are copied, so that each is read in one run, and used for many rows of A while it
   is in a cache. A's numbers lie anywhere: a product with its transpose is the same with other steps. */

enum { DEEP = 256, HIGH = 64 };                   /* numbers of a row, and rows, of the part of A that is used again */

typedef struct {                                  /* number (row, column) lies at row * down + column * right */
    const float *numbers;
    int64_t down, right;
} Numbers;

typedef struct {                                  /* rows that lie in one run each */
    float *numbers;
    int64_t down;
} Rows;

typedef struct {
    Numbers a, b;
    float *c;                                     /* (rows, columns), one row after another */
    int64_t rows, depth, columns;
    const float *bias;                            /* added to each row, or none */
    int64_t adds;                                 /* to what C holds */
} Product;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t in_registers(int64_t numbers) { return (numbers + LANES - 1) / LANES * LANES; }

static Rows shifted(Rows rows, int64_t down, int64_t right) {
    rows.numbers += down * rows.down + right;
    return rows;
}

/* C = A B of at most MOST rows and of `parts` registers; C begins with what lies at `begin`, if anything does. */
INLINED void tile(Numbers a, Rows b, Rows begin, Rows c, int64_t rows, int64_t depth, const int parts) {
    Lanes sums[MOST][PANEL / LANES] = {0};
    const float *row[MOST];
    for (int r = 0; r < MOST; r++) row[r] = a.numbers + (r < rows ? r : rows - 1) * a.down;
    for (int r = 0; r < rows; r++) /* C is fetched while there is something else to do */
        for (int part = 0; part < parts; part++) __builtin_prefetch(c.numbers + r * c.down + part * LANES, 1);
    for (int64_t k = 0; k < depth; k++)
        for (int part = 0; part < parts; part++) {
            const Lanes numbers = *(const Lanes *)(b.numbers + k * b.down + part * LANES);
            for (int r = 0; r < MOST; r++) sums[r][part] += row[r][k * a.right] * numbers;
        }
    for (int r = 0; r < rows; r++)
        for (int part = 0; part < parts; part++) {
            if (begin.numbers) sums[r][part] += *(const Lanes *)(begin.numbers + r * begin.down + part * LANES);
            *(Lanes *)(c.numbers + r * c.down + part * LANES) = sums[r][part];
        }
}

/* C = A B, or C += A B, of matrices of a few dozen rows and columns, by this thread alone. */
static void small_product(Numbers a, Rows b, Rows c, int64_t rows, int64_t depth, int64_t columns, int adds) {
    for (int64_t r = 0; r < rows; r += MOST, a.numbers += MOST * a.down, c.numbers += MOST * c.down) {
        const int64_t some = least(rows - r, MOST);
        int64_t n = 0;
        for (; n + PANEL <= columns; n += PANEL) {
            const Rows to = shifted(c, 0, n), begin = adds ? to : (Rows){0};
            tile(a, shifted(b, 0, n), begin, to, some, depth, PANEL / LANES);
        }
        for (; n + LANES <= columns; n += LANES) {
            const Rows to = shifted(c, 0, n), begin = adds ? to : (Rows){0};
            tile(a, shifted(b, 0, n), begin, to, some, depth, 1);
        }
        for (; n < columns; n++) /* that fill no register */
            for (int64_t i = 0; i < some; i++) {
                float *to = c.numbers + i * c.down + n, sum = adds ? *to : 0;
                for (int64_t k = 0; k < depth; k++)
                    sum += a.numbers[i * a.down + k * a.right] * b.numbers[k * b.down + n];
                *to = sum;
            }
    }
}

/* 32 columns of B from this one on, a row after another; zeros where B has no more. */
static void copy_panel(const Product *product, int64_t column, float *panel) {
    enum { SOME = 16 };
    const int64_t wide = least(PANEL, product->columns - column), down = product->b.down, right = product->b.right;
    const float *b = product->b.numbers + column * right;
    if (wide < PANEL) memset(panel, 0, sizeof(float) * PANEL * product->depth);
    if (right == 1)
        for (int64_t k = 0; k < product->depth; k++) memcpy(panel + k * PANEL, b + k * down, sizeof(float) * wide);
    else /* what lies together is read together, and what is written together is still in a cache */
        for (int64_t first = 0; first < product->depth; first += SOME)
            for (int64_t n = 0; n < wide; n++)
                for (int64_t k = first; k < least(first + SOME, product->depth); k++)
                    panel[k * PANEL + n] = b[k * down + n * right];
}

/* What some rows and some of the depth add to 32 columns of C. */
static void add_panel(
    const Product *product, float *panel, int64_t column, int64_t first, int64_t last, int64_t deep) {
    const int64_t wide = least(PANEL, product->columns - column), depth = least(DEEP, product->depth - deep);
    const Rows b = {panel + deep * PANEL, PANEL};
    for (int64_t r = first; r < last; r += MOST) {
        const int64_t rows = least(MOST, last - r);
        Numbers a = product->a;
        a.numbers += r * a.down + deep * a.right;
        const Rows c = {product->c + r * product->columns + column, product->columns};
        const Rows bias = {product->bias ? (float *)product->bias + column : NULL, 0};
        const Rows begin = deep || product->adds ? c : bias;
        if (wide == PANEL) {
            tile(a, b, begin, c, rows, depth, PANEL / LANES);
            continue;
        }
        float found[MOST][PANEL];
        tile(a, b, (Rows){0}, (Rows){found[0], PANEL}, rows, depth, PANEL / LANES);
        for (int64_t i = 0; i < rows; i++)
            for (int64_t n = 0; n < wide; n++)
                c.numbers[i * c.down + n] = found[i][n] + (begin.numbers ? begin.numbers[i * begin.down + n] : 0);
    }
}

/* C = A B + bias, or C += A B; 1 where there is no memory. */
int heed_product(const Product *product, int64_t threads) {
    const int64_t panels = (product->columns + PANEL - 1) / PANEL, blocks = (product->rows + MOST - 1) / MOST;
    const int64_t each = PANEL * product->depth;
    float *copy = aligned_alloc(ALIGNED, sizeof(float) * panels * each);
    if (!copy) return 1;
#pragma omp parallel num_threads(threads)
    {
        const Thread thread = {.number = omp_get_thread_num(), .of = omp_get_num_threads()};
        int64_t first, last;
        share(&thread, panels, &first, &last);
        for (int64_t p = first; p < last; p++) copy_panel(product, p * PANEL, copy + p * each);
#pragma omp barrier
        share(&thread, blocks, &first, &last);
        last = least(last * MOST, product->rows);
        for (int64_t r = first * MOST; r < last; r += HIGH)
            for (int64_t deep = 0; deep < product->depth; deep += DEEP)
                for (int64_t p = 0; p < panels; p++)
                    add_panel(product, copy + p * each, p * PANEL, r, least(r + HIGH, last), deep);
    }
    free(copy);
    return 0;
}
