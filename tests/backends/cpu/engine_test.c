/* Runs every function of the engine on small made-up models, without Python: under sanitizers, on other processors.

   engine_test ISA [small]: prints results by name, to be compared with those of another instruction set; exits with 1 and a
   message if results depend on the threads, or if invalid input is accepted. */

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "heed.h"

enum { WIDTH = 36, HEADS = 3, FFN = 50, VOCABULARY = 77, LAYERS = 2, POSITIONS = 24, SENTENCES = 6, TOKENS = 21 };
enum { BEAM = 4, MAX_LENGTH = 9, SLOTS = 2 };

static const HeedEngine *engine;
static HeedPool *pool;

static void check(int is_right, const char *claim) {
    if (is_right) return;
    printf("FAILED: %s\n", claim);
    exit(1);
}

typedef struct Block {
    _Alignas(16) struct Block *next;
} Block;

static Block *blocks;                             /* all memory of this program: what is lost is the library's */

static void *memory(size_t bytes) {
    Block *block = calloc(sizeof(Block) + bytes, 1);
    check(block != NULL, "there is enough memory");
    block->next = blocks;
    blocks = block;
    return block + 1;
}

static void free_memory(void) {
    for (Block *next; blocks; blocks = next) {
        next = blocks->next;
        free(blocks);
    }
}

static void print(const char *name, const float *values, int64_t count) {
    printf("%s", name);
    for (int64_t i = 0; i < count; i++) printf(" %.9g", values[i]);
    printf("\n");
}

/* Pseudo-random numbers from -scale to scale, the same everywhere. */
static float *numbers(int64_t count, float scale) {
    static uint64_t state = 1;
    float *values = memory(sizeof(float) * count);
    for (int64_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        values[i] = ((int64_t)(state >> 40) - (1 << 23)) / (float)(1 << 23) * scale;
    }
    return values;
}

/* ---- models ------------------------------------------------------------------------------------------------------ */

static HeedMatrix matrix(int64_t outputs, int64_t inputs, int is_int8) {
    const int64_t panels = (outputs + HEED_PANEL - 1) / HEED_PANEL, group = is_int8 ? HEED_GROUP : 1;
    const int64_t groups = (inputs + group - 1) / group;
    float *w = numbers(outputs * inputs, 0.4f), *panel = memory(sizeof(float) * panels * groups * group * HEED_PANEL);
    float *scales = memory(sizeof(float) * panels * HEED_PANEL);
    int32_t *sums = memory(sizeof(int32_t) * panels * HEED_PANEL);
    for (int64_t o = 0; o < outputs; o++) {
        for (int64_t i = 0; i < inputs; i++) scales[o] = fmaxf(scales[o], fabsf(w[o * inputs + i]) / 127);
        for (int64_t i = 0; i < inputs; i++) {
            const int64_t at = ((o / HEED_PANEL * groups + i / group) * HEED_PANEL + o % HEED_PANEL) * group + i % group;
            const float value = w[o * inputs + i];
            if (is_int8)
                sums[o] += ((int8_t *)panel)[at] = (int8_t)lrintf(value / scales[o]);
            else
                panel[at] = value;
        }
    }
    return (HeedMatrix){panel, is_int8 ? scales : NULL, sums, numbers(panels * HEED_PANEL, 0.1f), outputs, inputs};
}

static HeedNorm norm(void) {
    float *weight = numbers(WIDTH, 0.2f);
    for (int i = 0; i < WIDTH; i++) weight[i] += 1;
    return (HeedNorm){weight, numbers(WIDTH, 0.1f), 1e-5f};
}

static HeedModel model(int64_t activation, int64_t norm_order, int is_int8) {
    HeedLayer *layers = memory(sizeof(HeedLayer) * LAYERS);
    for (int l = 0; l < LAYERS; l++) {
        layers[l] = (HeedLayer){
            matrix(3 * WIDTH, WIDTH, is_int8), matrix(WIDTH, WIDTH, is_int8), matrix(WIDTH, WIDTH, is_int8),
            matrix(2 * WIDTH, WIDTH, is_int8), matrix(WIDTH, WIDTH, is_int8), matrix(FFN, WIDTH, is_int8),
            matrix(FFN, WIDTH, is_int8), matrix(WIDTH, FFN, is_int8), {norm(), norm(), norm()},
            {norm(), norm(), norm()}};
    }
    return (HeedModel){
        layers, LAYERS, WIDTH, FFN, HEADS, activation, norm_order, numbers(VOCABULARY * WIDTH, 1), VOCABULARY, 6,
        norm_order == HEED_POST ? (HeedNorm){0} : norm(), matrix(VOCABULARY, WIDTH, is_int8)};
}

static HeedPositions positions(int is_rotary) {
    const int64_t half = WIDTH / HEADS / 2;
    if (!is_rotary) return (HeedPositions){numbers(POSITIONS * WIDTH, 1), NULL, NULL, POSITIONS};
    float *cos = memory(sizeof(float) * POSITIONS * half), *sin = memory(sizeof(float) * POSITIONS * half);
    for (int64_t i = 0; i < POSITIONS * half; i++)
        cos[i] = cosf((i / half) * powf(0.1f, i % half)), sin[i] = sinf((i / half) * powf(0.1f, i % half));
    return (HeedPositions){NULL, cos, sin, POSITIONS};
}

/* ---- search ------------------------------------------------------------------------------------------------------ */

static const int64_t STARTS[SENTENCES + 1] = {0, 4, 5, 12, 14, 20, 21};

typedef struct {
    const HeedModel *encoder, *decoder;
    HeedPositions positions;
    int64_t beam, threads, max_length;
    const int64_t *ids;                           /* or NULL: made up */
    int64_t tokens[SENTENCES * BEAM * MAX_LENGTH], lengths[SENTENCES * BEAM], truncated[SENTENCES * BEAM];
    double log_probs[SENTENCES * BEAM];
    int error;
} Search;

static int64_t go_on(const int64_t *sentences, int64_t count) {
    (void)sentences;
    return count > SLOTS;
}

static void *search(void *argument) {
    Search *all = argument;
    int64_t ids[TOKENS], max_lengths[SENTENCES], token_starts[SENTENCES], prefix_starts[SENTENCES + 1] = {0};
    uint8_t cancelled[SENTENCES] = {0};
    for (int i = 0; i < TOKENS; i++) ids[i] = 3 + 11 * i % (VOCABULARY - 3);
    for (int s = 0; s < SENTENCES; s++)
        ids[STARTS[s + 1] - 1] = 2, max_lengths[s] = all->max_length, token_starts[s] = s * all->beam * MAX_LENGTH;
    const HeedSearchSettings settings = {all->beam, all->beam, 1, 3, 0, 0.6, 0, 1, 2};
    const HeedSearchInput input = {
        {all->ids ? all->ids : ids, STARTS, SENTENCES, all->positions}, ids, prefix_starts, max_lengths,
        all->positions, SLOTS, pool, all->threads, go_on, 1, cancelled, all->tokens, token_starts, all->lengths,
        all->log_probs, all->truncated};
    all->error = engine->search(all->encoder, all->decoder, &settings, &input);
    return NULL;
}

/* Searches with several numbers of threads, the last three at once: all find the same. */
static void test_search(const char *name, const HeedModel *encoder, const HeedModel *decoder, int is_rotary, int64_t beam) {
    enum { RUNS = 5 };
    static Search runs[RUNS];
    pthread_t threads[RUNS];
    const HeedPositions shared = positions(is_rotary);
    for (int r = 0; r < RUNS; r++) {
        runs[r] = (Search){encoder, decoder, shared, beam, r + 1 - r / 3, MAX_LENGTH, .error = -1};
        pthread_create(&threads[r], NULL, search, &runs[r]);
        if (r < RUNS - 3) pthread_join(threads[r], NULL);
    }
    for (int r = RUNS - 3; r < RUNS; r++) pthread_join(threads[r], NULL);
    for (int r = 0; r < RUNS; r++) {
        check(runs[r].error == 0, "a search succeeds");
        check(!memcmp(runs[r].lengths, runs[0].lengths, sizeof runs[0].lengths), "threads do not change lengths");
        check(!memcmp(runs[r].tokens, runs[0].tokens, sizeof runs[0].tokens), "threads do not change tokens");
        for (int i = 0; i < SENTENCES * beam; i++)
            check(fabs(runs[r].log_probs[i] - runs[0].log_probs[i]) < 1e-4, "threads do not change scores");
    }
    for (int64_t i = 0; i < SENTENCES * beam; i++) {
        printf("%s %.6g", name, runs[0].log_probs[i]);
        for (int64_t t = 0; t < runs[0].lengths[i]; t++) printf(" %d", (int)runs[0].tokens[i * MAX_LENGTH + t]);
        printf("\n");
    }
    const int64_t outside[TOKENS] = {VOCABULARY};
    Search invalid = {encoder, decoder, shared, beam, 1, MAX_LENGTH, outside, .error = 0};
    search(&invalid);
    check(invalid.error == HEED_INVALID, "a token outside the vocabulary is refused");
    invalid = (Search){encoder, decoder, shared, beam, 1, POSITIONS, .error = 0};
    search(&invalid);
    check(invalid.error == HEED_INVALID, "a length without positions is refused");
}

static void test_models(int is_small) {
    static const struct {
        const char *name;
        int64_t activation, norm_order;
        int is_int8, is_rotary;
    } designs[] = {
        {"post-relu", HEED_RELU, HEED_POST, 0, 0}, {"pre-swiglu-rotary", HEED_SWIGLU, HEED_PRE, 0, 1},
        {"sandwich-gelu", HEED_GELU, HEED_SANDWICH, 0, 0}, {"pre-swish", HEED_SWISH, HEED_PRE, 0, 0},
        {"int8-post-relu", HEED_RELU, HEED_POST, 1, 0}, {"int8-pre-swiglu-rotary", HEED_SWIGLU, HEED_PRE, 1, 1}};
    for (size_t d = is_small ? 4 : 0; d < (is_small ? 5 : sizeof designs / sizeof *designs); d++) {
        const HeedModel encoder = model(designs[d].activation, designs[d].norm_order, designs[d].is_int8);
        const HeedModel decoder = model(designs[d].activation, designs[d].norm_order, designs[d].is_int8);
        float output[TOKENS * WIDTH];
        int64_t ids[TOKENS];
        for (int i = 0; i < TOKENS; i++) ids[i] = 7 * i % VOCABULARY;
        const HeedEncoderInput input = {ids, STARTS, SENTENCES, positions(designs[d].is_rotary)};
        for (int64_t threads = 3; threads; threads--)
            check(engine->encode(&encoder, &input, output, pool, threads) == 0, "encoding succeeds");
        printf("encode-");
        print(designs[d].name, output, TOKENS * WIDTH);
        test_search(designs[d].name, &encoder, &decoder, designs[d].is_rotary, 1);
        test_search(designs[d].name, &encoder, &decoder, designs[d].is_rotary, BEAM);
    }
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

static void test_linear(void) {
    for (int64_t rows = 1; rows < 12; rows++)
        for (int is_int8 = 0; is_int8 < 2; is_int8++) {
            const HeedMatrix w = matrix(45, 67, is_int8);
            float *x = numbers(rows * 67, 1), y[12 * 45], z[12 * 45];
            for (int64_t i = 0; i < rows * 67; i++) x[i] = i % 67 ? rintf(x[i] * 127) / 64 : 127 / 64.0f; /* no ties */
            check(engine->linear(&w, x, y, rows, NULL, 1) == 0, "a linear layer succeeds");
            check(engine->linear(&w, x, z, rows, pool, 3) == 0, "a linear layer succeeds in threads");
            check(!memcmp(y, z, sizeof(float) * rows * 45), "threads do not change a linear layer");
            print("linear", y, rows * 45);
        }
}

static void test_training(void) {
    enum { SIZE = 3 * 12, ROWS = 7, COLUMNS = 83 };
    const int64_t starts[] = {0, 3, 7}, targets[ROWS] = {3, 0, 82, 5, 0, 41, 1};
    float *q = numbers(ROWS * SIZE, 1), *k = numbers(ROWS * SIZE, 1), *v = numbers(ROWS * SIZE, 1);
    float out[4 * ROWS * SIZE], *a = numbers(ROWS * SIZE, 1), *b = numbers(SIZE * COLUMNS, 1), c[ROWS * COLUMNS];
    float losses[ROWS], values[ROWS * 3], *logits = numbers(ROWS * COLUMNS, 4);
    int64_t indices[ROWS * 3];
    HeedAttention attention = {
        .queries = {q, SIZE}, .keys = {k, SIZE}, .values = {v, SIZE}, .output = {out, SIZE}, .cu_seqlens = starts,
        .key_cu_seqlens = starts, .tokens = ROWS, .key_tokens = ROWS, .sentences = 2, .heads = 3, .head_width = 12,
        .max_keys = 4, .causal = 1, .dropout = {7, 1u << 30, 4 / 3.0f}};
    check(engine->attention(&attention, pool, 3) == 0, "attention succeeds");
    attention.grad_output = (HeedRows){q, SIZE}, attention.grad_queries = (HeedRows){out + ROWS * SIZE, SIZE};
    attention.grad_keys = (HeedRows){out + 2 * ROWS * SIZE, SIZE};
    attention.grad_values = (HeedRows){out + 3 * ROWS * SIZE, SIZE};
    check(engine->attention(&attention, pool, 2) == 0, "attention's backward pass succeeds");
    print("attention", out, 4 * ROWS * SIZE);
    attention.max_keys = 3;
    check(engine->attention(&attention, pool, 2) == HEED_INVALID, "a sentence with too many keys is refused");
    const HeedGemm gemm = {{a, SIZE, 1}, {b, COLUMNS, 1}, c, ROWS, SIZE, COLUMNS};
    check(engine->gemm(&gemm, pool, 3) == 0, "a matmul succeeds");
    print("gemm", c, ROWS * COLUMNS);
    engine->topk(logits, ROWS, COLUMNS, 3, values, indices, pool, 2);
    print("topk", values, ROWS * 3);
    engine->cross_entropy(logits, targets, losses, ROWS, COLUMNS, 0, 0.1f, 0, pool, 3);
    print("losses", losses, ROWS);
    print("gradients", logits, ROWS * COLUMNS);
    engine->cross_entropy(logits, targets, losses, ROWS - 1, COLUMNS, 0, 0.1f, 3, pool, 2);
    print("r_drop_losses", losses, ROWS);
    print("r_drop_gradients", logits, ROWS * COLUMNS);
    engine->dropout(&attention.dropout, a, out, ROWS, SIZE, pool, 2);
    print("dropout", out, ROWS * SIZE);
}

/* Two steps of two hypotheses each of two sentences. */
static void test_decoder_steps(void) {
    enum { CACHE = LAYERS * 2 * 2 * WIDTH, CAPACITY = 4, SOURCE = 5, ROWS = 4 };
    const HeedModel decoder = model(HEED_SWIGLU, HEED_PRE, 0);
    float logits[ROWS * VOCABULARY], *kv_cache = memory(sizeof(float) * CACHE * CAPACITY);
    const int64_t ids[ROWS] = {3, 4, 5, 76}, lengths[] = {5, 2}, columns[ROWS * 3] = {0, 2, 1, 3, 1, 2, 0, 3};
    HeedStepInput input = {
        .ids = ids, .sentences = 2, .beam = 2, .length = 1, .cached = 2, .positions = positions(1),
        .kv_cache = kv_cache, .capacity = CAPACITY, .source_kv = numbers(CACHE * SOURCE, 1), .max_source = SOURCE,
        .source_lengths = lengths, .logits = logits, .kv_index = (const int64_t[]){0, 1, 0, 1}};
    for (; input.length < 3; input.length++, input.used += 2, input.kv_index = columns) {
        check(engine->decoder_step(&decoder, &input, pool, 3) == 0, "a decoder step succeeds");
        print("decoder-step", logits, ROWS * VOCABULARY);
    }
    check(engine->decoder_step(&decoder, &input, pool, 3) == HEED_INVALID, "a step without room in the cache is refused");
}

/* The word "abab" with the merges ab and abab, without dropout and with the first merge dropped. */
static void test_bpe(void) {
    const int32_t bytes[] = {0, 1, 0, 1};
    const int64_t word_lengths[] = {4}, word_counts[] = {1}, kept[4] = {0}, dropped[4] = {1};
    HeedMerge table[8];
    int32_t ranks[4], ids[4];
    int64_t counts[1];
    for (int i = 0; i < 8; i++) table[i] = (HeedMerge){-1, INT32_MAX, 0};
    for (int32_t merge = 0; merge < 2; merge++) {
        const int64_t pair = merge ? (int64_t)2 << 32 | 2 : 1;
        uint64_t slot = ((uint64_t)pair * 0x9E3779B97F4A7C15u) >> 61;
        while (table[slot].pair >= 0) slot = (slot + 1) % 8;
        table[slot] = (HeedMerge){pair, merge, merge + 2};
    }
    engine->bpe(bytes, word_lengths, word_counts, kept, table, ranks, ids, counts, 1, 3);
    check(counts[0] == 1 && ids[0] == 3, "a word is merged");
    engine->bpe(bytes, word_lengths, word_counts, dropped, table, ranks, ids, counts, 1, 3);
    check(counts[0] == 1 && ids[0] == 3, "a merge that is dropped is tried again");
}

static void test_beam_step(void) {
    const double live[] = {-1, -2, -1.5, -1.6};
    int64_t result[2 * 3 * 4];
    double totals[4];
    float *log_probs = numbers(4 * VOCABULARY, 3), shown[4];
    check(engine->beam_step(live, log_probs, 2, 2, VOCABULARY, 2, result, pool, 2) >= 0, "a beam step succeeds");
    memcpy(totals, result, sizeof totals);
    for (int i = 0; i < 4; i++) shown[i] = (float)totals[i];
    print("beam-step", shown, 4);
}

/* A small OpenMP runtime: it starts threads for each call, at most `most_threads`. */
static _Thread_local int thread_index, thread_count = 1;
static unsigned most_threads;

typedef struct {
    void (*function)(void *);
    void *argument;
    int index, count;
} Part;

static void *run_part(void *argument) {
    const Part *part = argument;
    thread_index = part->index, thread_count = part->count;
    part->function(part->argument);
    return NULL;
}

static void parallel(void (*function)(void *), void *argument, unsigned threads, unsigned flags) {
    Part parts[8];
    pthread_t handles[8];
    check(threads <= 8 && flags == 0, "a region has as many threads as were asked for");
    const int count = threads < most_threads ? threads : most_threads;
    for (int i = 0; i < count; i++) {
        parts[i] = (Part){function, argument, i, count};
        check(!pthread_create(&handles[i], NULL, run_part, &parts[i]), "a thread starts");
    }
    for (int i = 0; i < count; i++) pthread_join(handles[i], NULL);
}

static int get_thread_index(void) { return thread_index; }
static int get_thread_count(void) { return thread_count; }

static void test_openmp_pool(void) {
    enum { ROWS = 50, DEPTH = 40, COLUMNS = 70 };
    const float *a = numbers(ROWS * DEPTH, 1), *b = numbers(DEPTH * COLUMNS, 1);
    const HeedOpenMP openmp = {parallel, get_thread_index, get_thread_count};
    HeedPool *borrowed = heed_open_openmp_pool(&openmp);
    float expected[ROWS * COLUMNS], c[ROWS * COLUMNS];
    HeedGemm gemm = {{a, DEPTH, 1}, {b, COLUMNS, 1}, expected, ROWS, DEPTH, COLUMNS};
    check(engine->gemm(&gemm, NULL, 1) == 0, "a matmul succeeds in one thread");
    gemm.c = c;
    for (most_threads = 1; most_threads <= 3; most_threads++) {
        memset(c, 0, sizeof c);
        check(engine->gemm(&gemm, borrowed, 3) == 0, "a matmul succeeds in the threads of an OpenMP runtime");
        check(!memcmp(c, expected, sizeof c), "its result is that of one thread");
    }
    heed_close_pool(borrowed);
}

int main(int count, char **arguments) {
    engine = heed_engine(count > 1 ? arguments[1] : NULL);
    if (!engine) {
        printf("%s is not available; built for: %s\n", count > 1 ? arguments[1] : "no instruction set", heed_isas());
        return 2;
    }
    check(heed_self_test(engine) == 0, "the self-test succeeds");
    pool = heed_open_pool(3);
    test_linear();
    test_training();
    test_beam_step();
    test_bpe();
    test_decoder_steps();
    test_models(count > 2);
    test_openmp_pool();
    heed_close_pool(pool);
    free_memory();
    return 0;
}
