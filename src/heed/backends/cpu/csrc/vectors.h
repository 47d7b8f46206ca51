/* SIMD registers and the few operations that need intrinsics: the only file that differs between instruction sets.

   `heed.c` is compiled once for each of them (build.py). Everything else is written with the compiler's vector types,
   or as loops that the compiler vectorises. */

#include <stdint.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif

#define INLINED static inline __attribute__((always_inline)) /* makes `rows` a constant and keeps sums in registers */

/* LANES: floats or int32 per register. MAX_ROWS: rows of x per register tile. Tiles of up to FEW_ROWS rows unroll over
   UNROLL inputs with separate accumulators, which hides the latency of the additions. All as registers allow. */
#if defined(__AVX512F__)
enum { LANES = 16, MAX_ROWS = 8, FEW_ROWS = 2, UNROLL = 4 };
#elif defined(__AVX2__)
enum { LANES = 8, MAX_ROWS = 3, FEW_ROWS = 1, UNROLL = 2 };
#elif defined(__aarch64__)
enum { LANES = 4, MAX_ROWS = 3, FEW_ROWS = 1, UNROLL = 2 };
#else
enum { LANES = 4, MAX_ROWS = 1, FEW_ROWS = 1, UNROLL = 1 };
#endif
typedef float Lanes __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t Integers __attribute__((vector_size(4 * LANES), aligned(4)));

/* How a group of GROUP activations, quantised to int8, -127 to 127, is stored: in X_BYTES bytes per activation.

   AVX-512 VNNI and AVX-VNNI multiply unsigned by signed bytes: x is stored with an offset of X_OFFSET. AVX2 and AVX-512
   without VNNI do, too, but saturate sums of two products at 16 bits: a group is stored as its magnitudes, then a mask
   of its negative ones, 255 or 0. w ^ mask is w, or -w - 1 where x is negative, so 2 · 127 · 128 is the largest sum, and
   what is missing of the dot product is the sum of the negative magnitudes, the same for all outputs. */
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
enum { X_OFFSET = 128, X_BYTES = 1 };
#elif defined(__AVX2__)
enum { X_OFFSET = 0, X_BYTES = 2 };
#else
enum { X_OFFSET = 0, X_BYTES = 1 };
#endif

/* sums[lane] += dot product of 4 bytes: w -127 to 127; x the same group for all lanes, as it is stored. */
INLINED Integers dot4_add(Integers sums, const int8_t *w, const uint8_t *x) {
    int32_t group;
    memcpy(&group, x, sizeof group);
#if defined(__AVX512VNNI__)
    return (Integers)_mm512_dpbusd_epi32((__m512i)sums, _mm512_set1_epi32(group), _mm512_loadu_si512(w));
#elif defined(__AVXVNNI__)
    const __m256i weights = _mm256_loadu_si256((const __m256i *)w);
    return (Integers)_mm256_dpbusd_avx_epi32((__m256i)sums, _mm256_set1_epi32(group), weights);
#elif defined(__AVX2__)
    int32_t mask;
    memcpy(&mask, x + sizeof group, sizeof mask);
#if defined(__AVX512BW__)
    const __m512i weights = _mm512_xor_si512(_mm512_loadu_si512(w), _mm512_set1_epi32(mask));
    const __m512i pairs = _mm512_maddubs_epi16(_mm512_set1_epi32(group), weights);
    return sums + (Integers)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#else
    const __m256i weights = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)w), _mm256_set1_epi32(mask));
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi32(group), weights);
    return sums + (Integers)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#endif
#elif defined(__ARM_FEATURE_DOTPROD)
    return (Integers)vdotq_s32((int32x4_t)sums, vld1q_s8(w), vreinterpretq_s8_s32(vdupq_n_s32(group)));
#else
    int8_t bytes[4];
    memcpy(bytes, &group, sizeof bytes);
    for (int lane = 0; lane < LANES; lane++)
        for (int k = 0; k < 4; k++) sums[lane] += (int32_t)w[lane * 4 + k] * bytes[k];
    return sums;
#endif
}

typedef float Four __attribute__((vector_size(16), aligned(4)));

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (int32_t __attribute__((vector_size(16)))){__VA_ARGS__})
#endif

/* Four sums over a quarter of the lanes each. */
INLINED Four sum_of_quarters(Lanes x) {
#if defined(__AVX512F__)
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256((__m512)x), _mm512_extractf32x8_ps((__m512)x, 1));
    return (Four)_mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
#elif defined(__AVX2__)
    return (Four)_mm_add_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1));
#else
    return (Four)x;
#endif
}

INLINED float sum_of_lanes(Lanes x) {
    const Four quarters = sum_of_quarters(x);
    return (quarters[0] + quarters[1]) + (quarters[2] + quarters[3]);
}

INLINED float highest_of_lanes(const float *x) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps(_mm512_loadu_ps(x));
#else
    float highest = x[0];
    for (int lane = 1; lane < LANES; lane++) highest = x[lane] > highest ? x[lane] : highest;
    return highest;
#endif
}

/* The sums over all lanes of four registers. */
INLINED Four horizontal_sums(Lanes a, Lanes b, Lanes c, Lanes d) {
    const Four w = sum_of_quarters(a), x = sum_of_quarters(b), y = sum_of_quarters(c), z = sum_of_quarters(d);
    const Four wx = SHUFFLE(w, x, 0, 4, 1, 5) + SHUFFLE(w, x, 2, 6, 3, 7); /* w0 + w2, x0 + x2, w1 + w3, x1 + x3 */
    const Four yz = SHUFFLE(y, z, 0, 4, 1, 5) + SHUFFLE(y, z, 2, 6, 3, 7);
    return SHUFFLE(wx, yz, 0, 1, 4, 5) + SHUFFLE(wx, yz, 2, 3, 6, 7);
}
