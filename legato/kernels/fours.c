/* Products with 4-bit weights: half the reading of 8-bit ones, which is what takes the time at few rows.

   Inputs are rounded to 8 bits with a scale of their own row. Products of a group are a whole number; it is multiplied
   by the group's step, and the steps' sums are float32, even and odd units apart, in the order of the groups: a row has the
   same bits in any batch. What the groups' middles add is a sum of its own, over the sums of the inputs of a group. */

#include "maps.h"

/* Weights that are unpacked at a time: a group for every 4 lanes. A prepared row has of each unit the inputs of the low
   halves, then those of the high ones, as much as there would be of a whole unit. */
enum { UNIT = 8 * LANES, BYTES_OF_UNIT = UNIT / 2, GROUPS = UNIT / GROUP };

typedef uint8_t Nibbles __attribute__((vector_size(BYTES_OF_UNIT)));
typedef int8_t Inputs __attribute__((vector_size(BYTES_OF_UNIT)));
typedef int8_t Few __attribute__((vector_size(LANES)));
IN_MEMORY(Nibbles);
IN_MEMORY(Inputs);
IN_MEMORY(Few);

static int64_t whole_units(int64_t k) { return (k + UNIT - 1) / UNIT * UNIT; }

int64_t prepared_fours(int64_t k) { return padded(whole_units(k)) + padded(k / GROUP * (int64_t)sizeof(float)); }

static const float *sums_of(const uint8_t *ready, int64_t k) { return (const float *)(ready + padded(whole_units(k))); }

float round_groups(const float *x, int64_t k, uint8_t *ready) {
    float by, scale = rounding(x, k, &by), *sums = (float *)sums_of(ready, k);
    int8_t *to = (int8_t *)ready;
    for (int64_t unit = 0; unit < k; unit += UNIT) {
        int8_t q[UNIT] = {0};
        int64_t count = least(UNIT, k - unit);
        for (int64_t i = 0; i < count; i += LANES)
            SET(Few, q + i) = __builtin_convertvector(rounded(get(x + unit + i, lanes(LANES)) * by), Few);
        for (int i = 0; i < BYTES_OF_UNIT; i++) {
            to[unit + i] = q[2 * i];
            to[unit + BYTES_OF_UNIT + i] = q[2 * i + 1];
        }
        for (int64_t i = 0; i < count; i += GROUP) {
            int32_t sum = 0;
            for (int j = 0; j < GROUP; j++) sum += q[i + j];
            sums[(unit + i) / GROUP] = (float)sum;
        }
    }
    return scale;
}

/* Of a unit with `left` weights: its bytes, and the step of each lane. */

INLINE Nibbles bytes_at(const uint8_t *w, int64_t left) {
    if (left >= UNIT) return AT(Nibbles, w);
    Nibbles some = {0};
    memcpy(&some, w, (size_t)left / 2);
    return some;
}

INLINE Floats steps_at(const uint32_t *affine, int64_t left) {
    float some[GROUPS] = {0};
    const float *each = (const float *)affine;
    if (left < UNIT) each = memcpy(some, affine, (size_t)(left / GROUP) * sizeof *each);
#if LANES == 16
    const __m512i own = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    Bits both = (Bits)_mm512_permutevar_ps(_mm512_broadcast_f32x4(_mm_loadu_ps(each)), own);
#elif LANES == 8
    const __m256i own = _mm256_set_epi32(1, 1, 1, 1, 0, 0, 0, 0);
    Bits both = (Bits)_mm256_permutevar_ps((__m256)_mm256_broadcast_sd((const double *)each), own);
#else
    Bits both = (Bits)splat(each[0]);
#endif
    return (Floats)(both << 16);
}

/* Sums of products: of each group in 4 lanes. */
INLINE Floats products(Nibbles low, Nibbles high, const uint8_t *x) {
    Inputs a = AT(Inputs, x), b = AT(Inputs, x + BYTES_OF_UNIT);
#if LANES == 16 && defined(__AVX512VNNI__)
    __m512i sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), (__m512i)low, (__m512i)a);
    return __builtin_convertvector((Words)_mm512_dpbusd_epi32(sums, (__m512i)high, (__m512i)b), Floats);
#elif LANES == 16
    __m512i sums = _mm512_add_epi16(_mm512_maddubs_epi16((__m512i)low, (__m512i)a),
                                    _mm512_maddubs_epi16((__m512i)high, (__m512i)b)); /* at most 4 * 15 * 127 */
    return __builtin_convertvector((Words)_mm512_madd_epi16(sums, _mm512_set1_epi16(1)), Floats);
#elif LANES == 8 && defined(__AVXVNNI__)
    __m256i sums = _mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), (__m256i)low, (__m256i)a);
    return __builtin_convertvector((Words)_mm256_dpbusd_avx_epi32(sums, (__m256i)high, (__m256i)b), Floats);
#elif LANES == 8
    __m256i sums = _mm256_add_epi16(_mm256_maddubs_epi16((__m256i)low, (__m256i)a),
                                    _mm256_maddubs_epi16((__m256i)high, (__m256i)b));
    return __builtin_convertvector((Words)_mm256_madd_epi16(sums, _mm256_set1_epi16(1)), Floats);
#else
    Words sums = {0};
    for (int i = 0; i < BYTES_OF_UNIT; i++) sums[i % LANES] += (int32_t)low[i] * a[i] + (int32_t)high[i] * b[i];
    return __builtin_convertvector(sums, Floats);
#endif
}

/* A unit is added to the sums of `outputs` outputs, which are `k` weights apart, and `rows` rows. */
INLINE void add_unit(const uint8_t *w, const uint32_t *affine, int64_t k, int64_t left, int outputs, int rows,
                     const uint8_t *ready, int64_t stride, Floats sums[2][4]) {
    for (int o = 0; o < outputs; o++) {
        Nibbles both = bytes_at(w + o * k / 2, left), low = both & 15, high = both >> 4;
        Floats steps = steps_at(affine + o * k / GROUP, left);
        fetch(w + o * k / 2, 1);
        for (int r = 0; r < rows; r++) sums[o][r] = fused(products(low, high, ready + r * stride), steps, sums[o][r]);
    }
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
    for (; left >= 2 * UNIT; left -= 2 * UNIT, ready += 2 * UNIT, w += 2 * BYTES_OF_UNIT, affine += 2 * GROUPS) {
        add_unit(w, affine, k, UNIT, outputs, rows, ready, stride, even);
        add_unit(w + BYTES_OF_UNIT, affine + GROUPS, k, UNIT, outputs, rows, ready + UNIT, stride, odd);
    }
    for (; left > 0; left -= UNIT, ready += UNIT, w += BYTES_OF_UNIT, affine += GROUPS)
        add_unit(w, affine, k, left, outputs, rows, ready, stride, even);
    for (int o = 0; o < outputs; o++)
        for (int r = 0; r < rows; r++) y[r * y_row + o] = sum_of(even[o][r] + odd[o][r]) * scales[r];
}

void multiply_fours(const Map *map, int64_t rows, const uint8_t *ready, const float *scales, float *y, int64_t y_row,
                    int64_t from, int64_t end) {
    int64_t stride = prepared_fours(map->k);
    for (int64_t n = from; n < end; n += 2) {
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
