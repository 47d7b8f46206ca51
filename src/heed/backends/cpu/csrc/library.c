/* What is needed once, whatever the instruction set: choosing it, and thread pools.

   HEED_ISAS lists the instruction sets for which `heed.c` was compiled into this library, fastest first: X(avx2) ... */

#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#ifdef __linux__
#include <sys/auxv.h>
#endif

#include "memory.h"
#include "threads.h"

#ifdef _WIN32
#define EXPORTED __attribute__((dllexport))
#else
#define EXPORTED __attribute__((visibility("default")))
#endif

#define X(isa) int heed_##isa##_self_test(void);
HEED_ISAS
#undef X

static int processor_has_portable(void) { return 1; }

#if defined(__x86_64__)
static int processor_has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}

static int processor_has_avxvnni(void) { return processor_has_avx2() && __builtin_cpu_supports("avxvnni"); }

static int processor_has_avx512(void) {
    return processor_has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

static int processor_has_avx512vnni(void) { return processor_has_avx512() && __builtin_cpu_supports("avx512vnni"); }
#elif defined(__aarch64__)
static int processor_has_neon(void) {
#ifdef __linux__
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
    return 1; /* every processor that macOS or Windows runs on has the dot product */
#endif
}
#endif

#ifdef _WIN32
static int passes(int (*self_test)(void)) { return self_test() == 0; }
#else
static _Thread_local sigjmp_buf after_illegal_instruction;

static void on_illegal_instruction(int signal_number) { siglongjmp(after_illegal_instruction, signal_number); }

/* Whether a self-test succeeds; a processor that lacks an instruction that it advertises fails it. */
static int passes(int (*self_test)(void)) {
    struct sigaction handler = {.sa_handler = on_illegal_instruction}, previous;
    volatile int passed = 0;
    sigaction(SIGILL, &handler, &previous);
    if (!sigsetjmp(after_illegal_instruction, 1)) passed = self_test() == 0;
    sigaction(SIGILL, &previous, NULL);
    return passed;
}
#endif

/* The name of the fastest instruction set that this processor has, or of the requested one; NULL: it has not. */
EXPORTED const char *heed_isa(const char *requested) {
#define X(isa)                                                                                                      \
    if ((!requested || !strcmp(requested, #isa)) && processor_has_##isa() && passes(heed_##isa##_self_test)) return #isa;
    HEED_ISAS
#undef X
    return NULL;
}

/* The sha256 of the sources that this library was built from. */
EXPORTED const char *heed_sources(void) { return HEED_SOURCES; }

/* A pool of threads that wait for calls, for `heed_close_pool`; NULL if out of memory. */
EXPORTED Pool *heed_open_pool(int64_t threads) {
    Pool *pool = allocate(sizeof(Pool));
    if (pool) start_pool(pool, threads);
    return pool;
}

EXPORTED void heed_close_pool(Pool *pool) {
    end_pool(pool);
    release(pool);
}
