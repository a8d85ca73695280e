/* Sixteen numbers at a time, for every file here: float32, or bfloat16 in memory where `half`. */

#pragma once
#include <immintrin.h>
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 16 };

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static inline int64_t size_of(int64_t half) { return half ? 2 : 4; }

static inline __mmask16 lanes(int64_t left) { return left >= LANES ? 0xffff : (__mmask16)((1u << left) - 1); }

static inline __m512 load(const void *from, int64_t at, __mmask16 some, int64_t half) {
    if (!half) return _mm512_maskz_loadu_ps(some, (const float *)from + at);
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, (const uint16_t *)from + at));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

/* To bfloat16: to the nearest, ties to even; NaN stays NaN. */
static inline void store(void *to, int64_t at, __mmask16 some, int64_t half, __m512 v) {
    if (!half) {
        if (some == 0xffff) _mm512_storeu_ps((float *)to + at, v);
        else _mm512_mask_storeu_ps((float *)to + at, some, v);
        return;
    }
#ifdef __AVX512BF16__
    __m256i near = (__m256i)_mm512_cvtneps_pbh(v);
    if (some == 0xffff) _mm256_storeu_si256((__m256i *)((uint16_t *)to + at), near);
    else _mm256_mask_storeu_epi16((uint16_t *)to + at, some, near);
#endif
}

/* e^x to about 1e-7 of itself: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2]. Below -87 it is 0, above 88 it stays. */
static inline __m512 exponential(__m512 x) {
    __m512 high = _mm512_min_ps(_mm512_set1_ps(88.0f), x); /* NaN stays NaN */
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(high, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), high);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.9875691500e-4f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
    p = _mm512_fmadd_ps(_mm512_mul_ps(p, r), r, _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
    __mmask16 small = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_LT_OQ);
    return _mm512_mask_mov_ps(_mm512_scalef_ps(p, n), small, _mm512_setzero_ps());
}
