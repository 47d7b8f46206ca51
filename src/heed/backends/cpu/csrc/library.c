/* What the library has once, whatever the instruction set: choosing it, and pools of threads.

   HEED_ISAS lists the instruction sets for which `heed.c` is compiled into this library, fastest first: X(avx2) ... */

#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#include "heed.h"
#include "memory.h"
#include "old_glibc.h"
#include "threads.h"

#define X(isa) extern const HeedEngine heed_engine_##isa;
HEED_ISAS
#undef X

static const HeedEngine *const ENGINES[] = {
#define X(isa) &heed_engine_##isa,
    HEED_ISAS
#undef X
};

enum { ENGINE_COUNT = sizeof ENGINES / sizeof *ENGINES };

/* Whether processor and operating system have an instruction set. */
static int processor_has(const char *isa) {
    int found = !strcmp(isa, "portable");
#if defined(__x86_64__)
    const int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    const int avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq")
        && __builtin_cpu_supports("avx512vl");
    unsigned a, b, c, d; /* not every compiler knows the name "avxvnni" */
    const int avxvnni = avx2 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
    found |= avx2 && !strcmp(isa, "avx2");
    found |= avxvnni && !strcmp(isa, "avxvnni");
    found |= avx512 && !strcmp(isa, "avx512");
    found |= avx512 && __builtin_cpu_supports("avx512vnni") && !strcmp(isa, "avx512vnni");
#elif defined(__aarch64__) && defined(__linux__)
    found |= (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) && !strcmp(isa, "neon");
#elif defined(__aarch64__)
    found |= !strcmp(isa, "neon"); /* every 64-bit processor that macOS runs on has the dot product */
#endif
    return found;
}

const char *heed_isas(void) {
#define X(isa) #isa " "
    static const char isas[] = HEED_ISAS;
#undef X
    return isas;
}

const HeedEngine *heed_engine(const char *isa) {
    for (int i = 0; i < ENGINE_COUNT; i++)
        if (isa ? !strcmp(isa, ENGINES[i]->isa) && processor_has(isa)
                : processor_has(ENGINES[i]->isa) && !heed_self_test(ENGINES[i]))
            return ENGINES[i];
    return NULL;
}

#ifdef _WIN32
int heed_self_test(const HeedEngine *engine) { return engine->self_test(); }
#else
static _Thread_local sigjmp_buf after_illegal_instruction;

static void on_illegal_instruction(int signal_number) { siglongjmp(after_illegal_instruction, signal_number); }

int heed_self_test(const HeedEngine *engine) {
    struct sigaction handler = {.sa_handler = on_illegal_instruction}, previous;
    volatile int error = 1;
    sigaction(SIGILL, &handler, &previous);
    if (!sigsetjmp(after_illegal_instruction, 1)) error = engine->self_test();
    sigaction(SIGILL, &previous, NULL);
    return error;
}
#endif

const char *heed_sources(void) { return HEED_SOURCES; }

HeedPool *heed_open_pool(int64_t threads) {
    HeedPool *pool = allocate(sizeof(HeedPool));
    if (pool) start_pool(pool, threads);
    return pool;
}

HeedPool *heed_open_openmp_pool(const HeedOpenMP *openmp) {
    HeedPool *pool = heed_open_pool(1);
    if (pool) pool->openmp = *openmp;
    return pool;
}

void heed_close_pool(HeedPool *pool) {
    end_pool(pool);
    release(pool);
}
