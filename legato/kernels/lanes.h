/* Vectors of float32 as wide as this CPU has them: 16 numbers with AVX-512, 8 with AVX2, else 4 by the compiler's own
   means (Arm and others). What depends on the width stands here, but for products with few bits (linear_int8.c, linear_int4.c).

   In memory numbers are float32 or, where `half`, bfloat16. `+ - * /` and comparisons are the compiler's, number by
   number. */

#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define LANES 16
#define REGISTERS 32
#elif defined(__AVX2__) && defined(__FMA__)
#define LANES 8
#define REGISTERS 16
#else
#define LANES 4
#ifdef __aarch64__
#define REGISTERS 32
#else
#define REGISTERS 16
#endif
#endif
#if LANES > 4
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Words __attribute__((vector_size(4 * LANES)));
typedef uint32_t Bits __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));

/* One of them in memory, wherever it lies. (By memcpy of more than one at a time, compilers go through memory.) */
#define AT(TYPE, from) (*(const TYPE##InMemory *)(from))
#define SET(TYPE, to) (*(TYPE##InMemory *)(to))
#define IN_MEMORY(TYPE) typedef TYPE TYPE##InMemory __attribute__((aligned(1), may_alias))
IN_MEMORY(Floats);
IN_MEMORY(Words);
IN_MEMORY(Bits);
IN_MEMORY(Halves);

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static inline int64_t size_of(int64_t half) { return half ? 2 : 4; }

/* --- what has instructions of its own ------------------------------------------------------------------------------ */

#if LANES == 16

/* Which lanes count: the first ones. */
typedef __mmask16 Some;

INLINE Some lanes(int64_t left) { return left >= LANES ? 0xffff : (Some)((1u << left) - 1); }
INLINE int all(Some some) { return some == 0xffff; }
INLINE Floats splat(float x) { return (Floats)_mm512_set1_ps(x); }
INLINE Floats blend(Some some, Floats a, Floats b) { return (Floats)_mm512_mask_mov_ps((__m512)b, some, (__m512)a); }
INLINE Floats get(const float *from, Some some) { /* a load with a mask is opaque to compilers even where all lanes count */
    if (__builtin_constant_p(some) && all(some)) return AT(Floats, from);
    return (Floats)_mm512_maskz_loadu_ps(some, from);
}
INLINE Halves get_halves(const uint16_t *from, Some some) { return (Halves)_mm256_maskz_loadu_epi16(some, from); }
INLINE Floats fused(Floats a, Floats b, Floats c) { return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
INLINE Floats smaller(Floats a, Floats b) { return (Floats)_mm512_min_ps((__m512)a, (__m512)b); }
INLINE Floats larger(Floats a, Floats b) { return (Floats)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE Floats nearest(Floats x) { return (Floats)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT); }
INLINE float largest_of(Floats x) { return _mm512_reduce_max_ps((__m512)x); }

INLINE void put(float *to, Some some, Floats x) {
    if (all(some)) _mm512_storeu_ps(to, (__m512)x);
    else _mm512_mask_storeu_ps(to, some, (__m512)x);
}

INLINE void put_halves(uint16_t *to, Some some, Halves x) {
    if (all(some)) _mm256_storeu_si256((__m256i *)to, (__m256i)x);
    else _mm256_mask_storeu_epi16(to, some, (__m256i)x);
}

#else

typedef int64_t Some;

INLINE Some lanes(int64_t left) { return left < LANES ? left : LANES; }
INLINE int all(Some some) { return some == LANES; }

INLINE Floats get(const float *from, Some some) {
    if (all(some)) return AT(Floats, from);
    Floats x = {0};
    memcpy(&x, from, (size_t)some * sizeof *from);
    return x;
}

INLINE Halves get_halves(const uint16_t *from, Some some) {
    if (all(some)) return AT(Halves, from);
    Halves x = {0};
    memcpy(&x, from, (size_t)some * sizeof *from);
    return x;
}

INLINE void put(float *to, Some some, Floats x) {
    if (all(some)) SET(Floats, to) = x;
    else memcpy(to, &x, (size_t)some * sizeof *to);
}

INLINE void put_halves(uint16_t *to, Some some, Halves x) {
    if (all(some)) SET(Halves, to) = x;
    else memcpy(to, &x, (size_t)some * sizeof *to);
}

INLINE Floats blend(Some some, Floats a, Floats b) {
    static const Words order = {0, 1, 2, 3,
#if LANES == 8
                                4, 5, 6, 7
#endif
    };
    Words counts = order < ((Words){0} + (int32_t)some);
    return (Floats)(((Words)a & counts) | ((Words)b & ~counts));
}

#if LANES == 8

INLINE Floats splat(float x) { return (Floats)_mm256_set1_ps(x); }
INLINE Floats fused(Floats a, Floats b, Floats c) { return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
INLINE Floats smaller(Floats a, Floats b) { return (Floats)_mm256_min_ps((__m256)a, (__m256)b); }
INLINE Floats larger(Floats a, Floats b) { return (Floats)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE Floats nearest(Floats x) {
    return (Floats)_mm256_round_ps((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

#else

INLINE Floats splat(float x) { return (Floats){x, x, x, x}; }
INLINE Floats fused(Floats a, Floats b, Floats c) { return a * b + c; } /* one instruction where there is one */
INLINE Floats choose(Words where, Floats a, Floats b) { return (Floats)(((Words)a & where) | ((Words)b & ~where)); }
INLINE Floats smaller(Floats a, Floats b) { return choose(a < b, a, b); }
INLINE Floats larger(Floats a, Floats b) { return choose(a > b, a, b); }
INLINE Floats nearest(Floats x) {
    for (int i = 0; i < LANES; i++) x[i] = rintf(x[i]);
    return x;
}

#endif

INLINE float largest_of(Floats x) {
    float most = x[0];
    for (int i = 1; i < LANES; i++) most = x[i] > most ? x[i] : most;
    return most;
}

#endif

/* --- what is made of that ------------------------------------------------------------------------------------------ */

/* A number of `smaller` and `larger` that is not one is that of `b`. */

INLINE Floats only(Some some, Floats x) { return blend(some, x, (Floats){0}); }

INLINE Floats magnitude(Floats x) { return (Floats)((Words)x & 0x7fffffff); }

/* (Compilers convert a vector in two halves where they could do it in one.) */
INLINE Floats widened(Halves x) {
#if LANES == 16
    return (Floats)((Bits)_mm512_cvtepu16_epi32((__m256i)x) << 16);
#elif LANES == 8
    return (Floats)((Bits)_mm256_cvtepu16_epi32((__m128i)x) << 16);
#else
    return (Floats)(__builtin_convertvector(x, Bits) << 16);
#endif
}

/* To bfloat16: to the nearest, ties to even; NaN stays NaN. */
INLINE Halves narrowed(Floats x) {
#if LANES == 16 && defined(__AVX512BF16__)
    return (Halves)_mm512_cvtneps_pbh((__m512)x);
#else
    Bits bits = (Bits)x, odd = bits >> 16 & 1, nan = (Bits)(x != x);
    Bits rounded = (bits + 0x7fff + odd) >> 16;
    return __builtin_convertvector((rounded & ~nan) | (nan & 0x7fc0), Halves);
#endif
}

INLINE Floats load(const void *from, int64_t at, Some some, int64_t half) {
    return half ? widened(get_halves((const uint16_t *)from + at, some)) : get((const float *)from + at, some);
}

INLINE void store(void *to, int64_t at, Some some, int64_t half, Floats x) {
    if (half) put_halves((uint16_t *)to + at, some, narrowed(x));
    else put((float *)to + at, some, x);
}

/* The same in a register: what is used twice is else read twice, which costs more than it saves on eight lanes. */
#if LANES == 8
#define HELD(x) __asm__("" : "+x"(x))
#else
#define HELD(x) (void)0
#endif

/* e^x to about 1e-7 of itself: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2]. Below -87 it is 0, above 88 it stays. */
INLINE Floats exponential(Floats x) {
    Floats high = smaller(splat(88.0f), x), n = nearest(high * 1.44269504f); /* NaN stays NaN */
    Floats r = fused(n, splat(-0.693359375f), high);
    r = fused(n, splat(2.12194440e-4f), r);
    Floats p = splat(1.9875691500e-4f);
    p = fused(p, r, splat(1.3981999507e-3f));
    p = fused(p, r, splat(8.3334519073e-3f));
    p = fused(p, r, splat(4.1665795894e-2f));
    p = fused(p, r, splat(1.6666665459e-1f));
    p = fused(p, r, splat(5.0000001201e-1f));
    p = fused(p * r, r, r + 1.0f);
    Words small = x < splat(-87.0f);
#if LANES == 16
    p = (Floats)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
    /* NaN becomes -126 here, because its conversion is undefined; p stays NaN. */
    Floats power = (Floats)((__builtin_convertvector(larger(n, splat(-126.0f)), Words) + 127) << 23);
    p = p * power;
#endif
    return (Floats)((Words)p & ~small);
}

/* --- sums across --------------------------------------------------------------------------------------------------- */

#ifdef __clang__
#define SHUFFLED(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLED(a, b, ...) __builtin_shuffle(a, b, (Words){__VA_ARGS__})
#endif

#if LANES == 16
INLINE float sum_of(Floats x) { return _mm512_reduce_add_ps((__m512)x); }
INLINE int32_t total_of(Words x) { return _mm512_reduce_add_epi32((__m512i)x); }
#else
#if LANES == 8
#define HALVED(x) (x + SHUFFLED(x, x, 4, 5, 6, 7, 0, 1, 2, 3))
#define QUARTERED(x) (x + SHUFFLED(x, x, 2, 3, 0, 1, 6, 7, 4, 5))
#else
#define HALVED(x) x
#define QUARTERED(x) (x + SHUFFLED(x, x, 2, 3, 0, 1))
#endif
INLINE float sum_of(Floats x) {
    x = HALVED(x);
    x = QUARTERED(x);
    return x[0] + x[1];
}
INLINE int32_t total_of(Words x) {
    x = HALVED(x);
    x = QUARTERED(x);
    return x[0] + x[1];
}
#endif

/* `add_four_NAME`: of each 4 lanes of the result, number i has the sum of those 4 lanes of v[i].
   `add_across_NAME`: number i is the sum of v[i], for LANES of them. */
#if LANES == 16
#define PAIRS(a, b)                                                                                                     \
    SHUFFLED(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29) +                                          \
        SHUFFLED(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31)
#define NEAR(a, b)                                                                                                      \
    SHUFFLED(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +                                            \
        SHUFFLED(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31)
#define FAR(a, b)                                                                                                       \
    SHUFFLED(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +                                          \
        SHUFFLED(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31)
#elif LANES == 8
#define PAIRS(a, b) SHUFFLED(a, b, 0, 8, 1, 9, 4, 12, 5, 13) + SHUFFLED(a, b, 2, 10, 3, 11, 6, 14, 7, 15)
#define FAR(a, b) SHUFFLED(a, b, 0, 1, 2, 3, 8, 9, 10, 11) + SHUFFLED(a, b, 4, 5, 6, 7, 12, 13, 14, 15)
#else
#define PAIRS(a, b) SHUFFLED(a, b, 0, 4, 1, 5) + SHUFFLED(a, b, 2, 6, 3, 7)
#endif

#if LANES == 16
#define TOGETHER(TYPE, FOUR, v)                                                                                         \
    TYPE a = FOUR(v), b = FOUR(v + 4), c = FOUR(v + 8), d = FOUR(v + 12), ab = NEAR(a, b), cd = NEAR(c, d);             \
    return FAR(ab, cd);
#elif LANES == 8
#define TOGETHER(TYPE, FOUR, v)                                                                                         \
    TYPE a = FOUR(v), b = FOUR(v + 4);                                                                                  \
    return FAR(a, b);
#else
#define TOGETHER(TYPE, FOUR, v) return FOUR(v);
#endif

#define ACROSS(TYPE, NAME)                                                                                              \
    INLINE TYPE add_four_##NAME(const TYPE *v) {                                                                        \
        TYPE a = PAIRS(v[0], v[2]), b = PAIRS(v[1], v[3]);                                                              \
        return PAIRS(a, b);                                                                                             \
    }                                                                                                                   \
    INLINE TYPE add_across_##NAME(const TYPE *v) { TOGETHER(TYPE, add_four_##NAME, v) }

ACROSS(Floats, floats)
ACROSS(Words, words)
