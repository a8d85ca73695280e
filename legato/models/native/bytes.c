/* Products with 8-bit weights, for CPUs with AVX-512 VNNI.

   Inputs are rounded to 8 bits with a scale of their own row, and sums are whole numbers: their order changes nothing.
   Weights are read in the order in which they lie. */

#include "maps.h"

/* q = round(x / peak * 127) + 128; returns peak / 127. A row with NaN or infinity gets NaN as its scale. */
float round_row(const float *x, int64_t k, uint8_t *q) {
    __m512 top = _mm512_setzero_ps(), bad = _mm512_setzero_ps();
    for (int64_t i = 0; i < k; i += LANES) {
        __mmask16 m = k - i < LANES ? (__mmask16)((1u << (k - i)) - 1) : 0xffff;
        __m512 v = _mm512_maskz_loadu_ps(m, x + i);
        top = _mm512_max_ps(top, _mm512_abs_ps(v));
        bad = _mm512_fmadd_ps(v, _mm512_setzero_ps(), bad);
    }
    float peak = _mm512_reduce_max_ps(top), scale = peak / 127.0f;
    __m512 by = _mm512_set1_ps(peak > 0 ? 127.0f / peak : 0.0f);
    for (int64_t i = 0; i < k; i += LANES) {
        __mmask16 m = k - i < LANES ? (__mmask16)((1u << (k - i)) - 1) : 0xffff;
        __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), by));
        _mm_storeu_si128((__m128i *)(q + i), _mm512_cvtepi32_epi8(_mm512_add_epi32(v, _mm512_set1_epi32(128))));
    }
    return scale + _mm512_reduce_add_ps(bad);
}

/* sums + a * b, four at a time. As an intrinsic it is the same instruction, but compilers copy registers around it. */
static inline __m512i add_products(__m512i sums, __m512i a, __m512i b) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(a), "v"(b));
    return sums;
}

/* One output of `rows` rows, at most 4. Sums are split in `parts`, so that one need not wait for the last. */
static inline __attribute__((always_inline)) void one(const Map *map, int64_t n, int rows, int parts, const uint8_t *q,
                                                      const float *scales, float *y, int64_t y_row) {
    const int8_t *w = (const int8_t *)map->values + n * map->k;
    int64_t stride = padded(map->k), whole = map->k / (parts * BYTES) * (parts * BYTES);
    __m512i sums[4][4];
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < parts; p++) sums[r][p] = _mm512_setzero_si512();
    for (int64_t i = whole; i < map->k; i += BYTES) {
        int64_t left = map->k - i;
        __m512i weights = _mm512_maskz_loadu_epi8(left < BYTES ? ((__mmask64)1 << left) - 1 : ~(__mmask64)0, w + i);
        for (int r = 0; r < rows; r++)
            sums[r][0] = add_products(sums[r][0], _mm512_loadu_si512(q + r * stride + i), weights);
    }
    for (int64_t i = 0; i < whole; i += parts * BYTES)
        for (int p = 0; p < parts; p++) {
            __m512i weights = _mm512_loadu_si512(w + i + p * BYTES);
            if (rows == 4) _mm_prefetch((const char *)w + i + p * BYTES + AHEAD, _MM_HINT_T1);
            for (int r = 0; r < rows; r++)
                sums[r][p] = add_products(sums[r][p], _mm512_loadu_si512(q + r * stride + i + p * BYTES), weights);
        }
    for (int r = 0; r < rows; r++) {
        __m512i sum = sums[r][0];
        for (int p = 1; p < parts; p++) sum = _mm512_add_epi32(sum, sums[r][p]);
        int32_t exact = _mm512_reduce_add_epi32(sum) - 128 * map->sums[n];
        y[r * y_row] = (float)exact * map->scales[n] * scales[r];
    }
}

static inline __m512i add_pairs(__m512i a, __m512i b) {
    return _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
}

static inline __m512i add_fours(const __m512i *v) {
    __m512i a = add_pairs(v[0], v[2]), b = add_pairs(v[1], v[3]);
    return add_pairs(a, b);
}

/* Number i is the sum of v[i]. */
static inline __m512i add_sixteens(const __m512i *v) {
    __m512i a = add_fours(v), b = add_fours(v + 4), c = add_fours(v + 8), d = add_fours(v + 12);
    __m512i ab = _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xee));
    __m512i cd = _mm512_add_epi32(_mm512_shuffle_i32x4(c, d, 0x44), _mm512_shuffle_i32x4(c, d, 0xee));
    return _mm512_add_epi32(_mm512_shuffle_i32x4(ab, cd, 0x88), _mm512_shuffle_i32x4(ab, cd, 0xdd));
}

/* Two outputs of 8 rows: each input is loaded for both, and the 16 sums are added up together. */
static void two_of_eight(const Map *map, int64_t n, const uint8_t *q, const float *scales, float *y, int64_t y_row) {
    int64_t k = map->k, stride = padded(k), whole = k / BYTES * BYTES;
    const int8_t *w = (const int8_t *)map->values + n * k;
    __m512i sums[16];
    for (int i = 0; i < 16; i++) sums[i] = _mm512_setzero_si512();
    if (whole < k) {
        __mmask64 m = ((__mmask64)1 << (k - whole)) - 1;
        __m512i first = _mm512_maskz_loadu_epi8(m, w + whole), second = _mm512_maskz_loadu_epi8(m, w + k + whole);
        for (int r = 0; r < 8; r++) {
            __m512i x = _mm512_loadu_si512(q + r * stride + whole);
            sums[r] = add_products(sums[r], x, first);
            sums[8 + r] = add_products(sums[8 + r], x, second);
        }
    }
    for (int64_t i = 0; i < whole; i += BYTES) {
        __m512i first = _mm512_loadu_si512(w + i), second = _mm512_loadu_si512(w + k + i);
        _mm_prefetch((const char *)w + 2 * i + AHEAD, _MM_HINT_T1);
        _mm_prefetch((const char *)w + 2 * i + BYTES + AHEAD, _MM_HINT_T1);
        for (int r = 0; r < 8; r++) {
            __m512i x = _mm512_loadu_si512(q + r * stride + i);
            sums[r] = add_products(sums[r], x, first);
            sums[8 + r] = add_products(sums[8 + r], x, second);
        }
    }
    int32_t exact[16];
    _mm512_storeu_si512(exact, add_sixteens(sums));
    for (int r = 0; r < 8; r++)
        for (int o = 0; o < 2; o++)
            y[r * y_row + o] = (float)(exact[8 * o + r] - 128 * map->sums[n + o]) * map->scales[n + o] * scales[r];
}

void multiply_bytes(const Map *map, int64_t rows, const uint8_t *q, const float *scales, float *y, int64_t y_row) {
    int64_t stride = padded(map->k);
#pragma omp for schedule(static) nowait
    for (int64_t n = 0; n < map->n; n += 2) {
        int outputs = n + 1 < map->n ? 2 : 1;
        int64_t r = 0;
        for (; outputs == 2 && r + 8 <= rows; r += 8)
            two_of_eight(map, n, q + r * stride, scales + r, y + r * y_row + n, y_row);
        for (int64_t o = n; o < n + outputs; o++) {
            int64_t at = r;
            for (; at + 4 <= rows; at += 4) one(map, o, 4, 1, q + at * stride, scales + at, y + at * y_row + o, y_row);
            for (; at + 2 <= rows; at += 2) one(map, o, 2, 2, q + at * stride, scales + at, y + at * y_row + o, y_row);
            for (; at < rows; at++) one(map, o, 1, 4, q + at * stride, scales + at, y + at * y_row + o, y_row);
        }
    }
}
