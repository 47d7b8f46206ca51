/* Memory aligned to cache lines. */

#include <stdint.h>
#include <stdlib.h>
#ifdef _WIN32
#include <malloc.h>
#endif

enum { ALIGNED = 64 };                            /* bytes of a cache line */

/* Memory of at least so many bytes, to be freed by `release`; NULL if there is none. */
static void *allocate(int64_t bytes) {
    const int64_t whole_lines = (bytes + ALIGNED) / ALIGNED * ALIGNED;
#ifdef _WIN32
    return _aligned_malloc(whole_lines, ALIGNED);
#else
    return aligned_alloc(ALIGNED, whole_lines);
#endif
}

static void release(void *memory) {
#ifdef _WIN32
    _aligned_free(memory);
#else
    free(memory);
#endif
}
