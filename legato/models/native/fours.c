/* Products with 4-bit weights: half the reading of 8-bit ones, which is what takes the time at few rows.

   Inputs are rounded to 8 bits with a scale of their own row. Products of a group are a whole number; it is multiplied
   by the group's step, and the steps' sums are float32, even and odd units apart, in the order of the groups: a row is the
   same in any company. What the groups' middles add is a sum of its own, over the sums of the inputs of a group. */

#include "maps.h"

/* Weights that are unpacked at a time: with 16 lanes two groups, with 8 one, with 4 half of one. A prepared row has of each
   unit the inputs of the low halves, then those of the high ones. */
enum { UNIT = 4 * LANES, HALF_UNIT = UNIT / 2 };

typedef uint8_t Nibbles __attribute__((vector_size(UNIT)));
typedef int8_t Inputs __attribute__((vector_size(UNIT)));
typedef int8_t Few __attribute__((vector_size(LANES)));
IN_MEMORY(Inputs);
IN_MEMORY(Few);

int64_t prepared_fours(int64_t k) { return padded(k) + padded(k / GROUP * (int64_t)sizeof(float)); }

static const float *sums_of(const uint8_t *ready, int64_t k) { return (const float *)(ready + padded(k)); }

float round_groups(const float *x, int64_t k, uint8_t *ready) {
    float by, scale = rounding(x, k, &by), *sums = (float *)(ready + padded(k));
    int8_t *to = (int8_t *)ready;
    for (int64_t unit = 0; unit < k; unit += UNIT) {
        int8_t q[UNIT] = {0};
        int64_t count = least(UNIT, k - unit);
        for (int64_t i = 0; i < count; i += LANES) {
            SET(Few, q + i) = __builtin_convertvector(rounded(get(x + unit + i, lanes(LANES)) * by), Few);
        }
        for (int i = 0; i < HALF_UNIT; i++) {
            to[unit + i] = q[2 * i];
            to[unit + HALF_UNIT + i] = q[2 * i + 1];
        }
        for (int64_t i = 0; i < count; i += least(GROUP, UNIT)) {
            int32_t sum = 0;
            for (int64_t j = i; j < i + least(GROUP, UNIT); j++) sum += q[j];
            sums[(unit + i) / GROUP] = (float)sum + ((unit + i) % GROUP ? sums[(unit + i) / GROUP] : 0.0f);
        }
    }
    return scale;
}

/* Of a unit: its numbers, and the step of each lane. */
INLINE Nibbles numbers_at(const uint8_t *w, int64_t left) {
#if LANES == 16
    __m256i both = left < UNIT ? _mm256_maskz_loadu_epi8(0xffff, w) : _mm256_loadu_si256((const __m256i *)w);
    __m512i wide = _mm512_inserti64x4(_mm512_castsi256_si512(both), _mm256_srli_epi16(both, 4), 1);
    return (Nibbles)_mm512_and_si512(wide, _mm512_set1_epi8(15));
#elif LANES == 8
    (void)left;
    __m128i both = _mm_loadu_si128((const __m128i *)w);
    __m256i wide = _mm256_inserti128_si256(_mm256_castsi128_si256(both), _mm_srli_epi16(both, 4), 1);
    return (Nibbles)_mm256_and_si256(wide, _mm256_set1_epi8(15));
#else
    Nibbles numbers;
    (void)left;
    for (int i = 0; i < HALF_UNIT; i++) numbers[i] = w[i] & 15, numbers[HALF_UNIT + i] = w[i] >> 4;
    return numbers;
#endif
}

INLINE Floats steps_at(const uint32_t *affine, int64_t left) {
#if LANES == 16
    uint64_t pair = 0;
    if (left < UNIT) memcpy(&pair, affine, 4);
    else memcpy(&pair, affine, 8);
    const __m512i each = _mm512_set_epi32(1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0);
    __m512i two = _mm512_castsi128_si512(_mm_cvtsi64_si128((int64_t)pair));
    return (Floats)((Bits)_mm512_permutexvar_epi32(each, two) << 16);
#else
    (void)left;
    float both;
    memcpy(&both, affine, sizeof both);
    return (Floats)((Bits)splat(both) << 16);
#endif
}

INLINE Floats products(Nibbles w, Inputs inputs) {
#if LANES == 16 && defined(__AVX512VNNI__)
    Words sums = (Words)_mm512_dpbusd_epi32(_mm512_setzero_si512(), (__m512i)w, (__m512i)inputs);
#elif LANES == 16
    Words sums = (Words)_mm512_madd_epi16(_mm512_maddubs_epi16((__m512i)w, (__m512i)inputs), _mm512_set1_epi16(1));
#elif LANES == 8 && defined(__AVXVNNI__)
    Words sums = (Words)_mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), (__m256i)w, (__m256i)inputs);
#elif LANES == 8
    Words sums = (Words)_mm256_madd_epi16(_mm256_maddubs_epi16((__m256i)w, (__m256i)inputs), _mm256_set1_epi16(1));
#else
    Words sums = {0};
    for (int i = 0; i < UNIT; i++) sums[i % LANES] += (int32_t)w[i] * inputs[i];
#endif
    return __builtin_convertvector(sums, Floats);
}

/* Two outputs of one or two rows, or one of four. */
INLINE void tile(const Map *map, int64_t n, int outputs, int rows, const uint8_t *ready, const float *scales, float *y,
                 int64_t y_row) {
    int64_t k = map->k, groups = k / GROUP, stride = prepared_fours(k), left = k;
    const uint8_t *w = (const uint8_t *)map->values + n * k / 2;
    const uint32_t *affine = (const uint32_t *)map->scales + n * groups;
    Floats even[2][4], odd[2][4];
    for (int o = 0; o < outputs; o++)
        for (int r = 0; r < rows; r++) even[o][r] = odd[o][r] = (Floats){0};
    for (int64_t g = 0; g < groups; g += LANES) { /* (q - 8) step + middle = q step + (middle - 8 step) */
        Some some = lanes(groups - g);
        for (int o = 0; o < outputs; o++) {
            Bits both = (Bits)get((const float *)affine + o * groups + g, some);
            Floats rest = fused((Floats)(both << 16), splat(-8.0f), (Floats)(both & 0xffff0000));
            for (int r = 0; r < rows; r++)
                even[o][r] = fused(rest, get(sums_of(ready + r * stride, k) + g, some), even[o][r]);
        }
    }
    for (; left >= 2 * UNIT; left -= 2 * UNIT, ready += 2 * UNIT, w += UNIT, affine += 2 * UNIT / GROUP) {
        Nibbles first[2], second[2];
        Floats one[2], two[2];
        for (int o = 0; o < outputs; o++) {
            first[o] = numbers_at(w + o * k / 2, UNIT), second[o] = numbers_at(w + o * k / 2 + HALF_UNIT, UNIT);
            one[o] = steps_at(affine + o * groups, UNIT), two[o] = steps_at(affine + o * groups + UNIT / GROUP, UNIT);
            __builtin_prefetch(w + o * k / 2 + AHEAD, 0, 2);
        }
        for (int r = 0; r < rows; r++) {
            Inputs a = AT(Inputs, ready + r * stride), b = AT(Inputs, ready + r * stride + UNIT);
            for (int o = 0; o < outputs; o++) {
                even[o][r] = fused(products(first[o], a), one[o], even[o][r]);
                odd[o][r] = fused(products(second[o], b), two[o], odd[o][r]);
            }
        }
    }
    for (; left > 0; left -= UNIT, ready += UNIT, w += HALF_UNIT, affine += UNIT / GROUP)
        for (int o = 0; o < outputs; o++) {
            Nibbles first = numbers_at(w + o * k / 2, left);
            Floats one = steps_at(affine + o * groups, left);
            for (int r = 0; r < rows; r++)
                even[o][r] = fused(products(first, AT(Inputs, ready + r * stride)), one, even[o][r]);
        }
    for (int o = 0; o < outputs; o++)
        for (int r = 0; r < rows; r++) y[r * y_row + o] = sum_of(even[o][r] + odd[o][r]) * scales[r];
}

void multiply_fours(const Map *map, int64_t rows, const uint8_t *ready, const float *scales, float *y, int64_t y_row) {
    int64_t stride = prepared_fours(map->k);
#pragma omp for schedule(static) nowait
    for (int64_t n = 0; n < map->n; n += 2) {
        int outputs = n + 1 < map->n ? 2 : 1;
        int64_t r = 0;
        for (; r + 4 <= rows; r += 4)
            for (int o = 0; o < outputs; o++)
                tile(map, n + o, 1, 4, ready + r * stride, scales + r, y + r * y_row + n + o, y_row);
        for (; outputs == 2 && r + 2 <= rows; r += 2)
            tile(map, n, 2, 2, ready + r * stride, scales + r, y + r * y_row + n, y_row);
        for (; outputs == 2 && r < rows; r++)
            tile(map, n, 2, 1, ready + r * stride, scales + r, y + r * y_row + n, y_row);
        for (; r < rows; r++) tile(map, n, 1, 1, ready + r * stride, scales + r, y + r * y_row + n, y_row);
    }
}
