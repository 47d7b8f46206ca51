/* For wheels (-DHEED_OLD_GLIBC): the first version of each glibc symbol that has several, so that a library that is
   built with a new glibc runs with 2.27 and newer. The newer versions of these differ in where they are (pthreads) or
   in errno (math), which heed does not read. */

#if defined(HEED_OLD_GLIBC) && defined(__x86_64__)
#define FIRST_VERSION "GLIBC_2.2.5"
#elif defined(HEED_OLD_GLIBC) && defined(__aarch64__)
#define FIRST_VERSION "GLIBC_2.17"
#endif
#ifdef FIRST_VERSION
#define USE_FIRST(name) __asm__(".symver " #name ", " #name "@" FIRST_VERSION)
USE_FIRST(exp);
USE_FIRST(log);
USE_FIRST(pow);
USE_FIRST(pthread_create);
USE_FIRST(pthread_join);
USE_FIRST(pthread_mutex_trylock);
#endif
