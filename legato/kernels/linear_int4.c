/* int4 GEMM: 4-bit weights with a scale and a zero point per group of 32 inputs, int8 activations with a scale per group.

   Half the reading of int8 weights, which is what takes the time at few rows. The products of a group are added up as
   integers and multiplied by the scales of both. The groups are added up in float32, even and odd units apart, in their
   order: a row is bit-identical in any batch. The zero points are multiplied with the sum of a group's activations. */

#include "linear.h"

/* Weights that are unpacked at a time: a group for every 4 lanes. */
enum { UNIT = 8 * LANES, UNIT_BYTES = UNIT / 2, UNIT_GROUPS = UNIT / GROUP };

/* A unit of a prepared row: the activations of its low halves, those of its high halves, then a scale for every lane.
   After the units of a row follow the sums of all its groups, times their scales. A last unit that is not whole has
   zeros. */
enum { PREPARED_UNIT = UNIT + LANES * sizeof(float) };

typedef uint8_t Nibbles __attribute__((vector_size(UNIT_BYTES)));
typedef int8_t Activations __attribute__((vector_size(UNIT_BYTES)));
IN_MEMORY(Nibbles);
IN_MEMORY(Activations);

static int64_t units_bytes(int64_t k) { return padded((k + UNIT - 1) / UNIT * PREPARED_UNIT); }

int64_t prepared_bytes_int4(int64_t k) { return units_bytes(k) + padded(k / GROUP * (int64_t)sizeof(float)); }

static const float *group_sums(const uint8_t *prepared, int64_t k) { return (const float *)(prepared + units_bytes(k)); }

/* Quantizes the group `x` into `q`; returns its scale. */
static float quantize_group(const float *x, int32_t *q) {
    float inverse, scale = quantization_scale(x, GROUP, 127.0f, &inverse);
    for (int64_t i = 0; i < GROUP; i += LANES)
        SET(Words, q + i) = quantized(get(x + i, lanes(LANES)) * inverse, 127.0f);
    return scale;
}

float prepare_int4(const float *x, int64_t k, uint8_t *prepared) {
    float *sums = (float *)group_sums(prepared, k), not_finite = 0.0f;
    for (int64_t at = 0; at < k; at += UNIT, prepared += PREPARED_UNIT) {
        int32_t q[UNIT] = {0};
        float scales[LANES] = {0};
        for (int64_t i = 0; i < least(UNIT, k - at); i += GROUP) {
            int32_t sum = 0;
            float scale = quantize_group(x + at + i, q + i);
            for (int j = 0; j < GROUP; j++) sum += q[i + j];
            for (int j = 0; j < 4; j++) scales[i / GROUP * 4 + j] = scale;
            sums[(at + i) / GROUP] = (float)sum * scale;
            not_finite += scale * 0.0f;
        }
        int8_t *to = (int8_t *)prepared;
        for (int i = 0; i < UNIT_BYTES; i++) {
            to[i] = (int8_t)q[2 * i];
            to[UNIT_BYTES + i] = (int8_t)q[2 * i + 1];
        }
        memcpy(to + UNIT, scales, sizeof scales);
    }
    return 1.0f + not_finite;
}

/* The weights of a unit of which `remaining` exist. */
INLINE Nibbles load_nibbles(const uint8_t *w, int64_t remaining) {
    if (remaining >= UNIT) return AT(Nibbles, w);
    Nibbles nibbles = {0};
    memcpy(&nibbles, w, (size_t)remaining / 2);
    return nibbles;
}

/* The weight scale of each lane of a unit. `affine`: pairs of a scale, in the low half, and a zero point. */
INLINE Floats lane_scales(const uint32_t *affine, int64_t remaining) {
    float existing[UNIT_GROUPS] = {0};
    const float *pairs = (const float *)affine;
    if (remaining < UNIT) pairs = memcpy(existing, affine, (size_t)(remaining / GROUP) * sizeof *pairs);
#if LANES == 16
    const __m512i group = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    Bits both = (Bits)_mm512_permutevar_ps(_mm512_broadcast_f32x4(_mm_loadu_ps(pairs)), group);
#elif LANES == 8
    const __m256i group = _mm256_set_epi32(1, 1, 1, 1, 0, 0, 0, 0);
    Bits both = (Bits)_mm256_permutevar_ps((__m256)_mm256_broadcast_sd((const double *)pairs), group);
#else
    Bits both = (Bits)splat(pairs[0]);
#endif
    return (Floats)(both << 16);
}

/* Integer sums of the products of a unit: of each group in 4 lanes. */
INLINE Words unit_sums(Nibbles low, Nibbles high, const uint8_t *x) {
    Activations a = AT(Activations, x), b = AT(Activations, x + UNIT_BYTES);
#if LANES == 16 && defined(__AVX512VNNI__)
    __m512i sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), (__m512i)low, (__m512i)a);
    return (Words)_mm512_dpbusd_epi32(sums, (__m512i)high, (__m512i)b);
#elif LANES == 16
    __m512i sums = _mm512_add_epi16(_mm512_maddubs_epi16((__m512i)low, (__m512i)a),
                                    _mm512_maddubs_epi16((__m512i)high, (__m512i)b)); /* at most 4 * 15 * 127 */
    return (Words)_mm512_madd_epi16(sums, _mm512_set1_epi16(1));
#elif LANES == 8 && defined(__AVXVNNI__)
    __m256i sums = _mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), (__m256i)low, (__m256i)a);
    return (Words)_mm256_dpbusd_avx_epi32(sums, (__m256i)high, (__m256i)b);
#elif LANES == 8
    __m256i sums = _mm256_add_epi16(_mm256_maddubs_epi16((__m256i)low, (__m256i)a),
                                    _mm256_maddubs_epi16((__m256i)high, (__m256i)b));
    return (Words)_mm256_madd_epi16(sums, _mm256_set1_epi16(1));
#else
    Words sums = {0};
    for (int i = 0; i < UNIT_BYTES; i++) sums[i % LANES] += (int32_t)low[i] * a[i] + (int32_t)high[i] * b[i];
    return sums;
#endif
}

/* Adds a unit to the sums of `outputs` outputs, which are `k` weights apart, and `rows` rows. */
INLINE void add_unit(const uint8_t *w, const uint32_t *affine, int64_t k, int64_t remaining, int outputs, int rows,
                     const uint8_t *x, int64_t stride, Floats sums[2][4]) {
    for (int o = 0; o < outputs; o++) {
        Nibbles both = load_nibbles(w + o * k / 2, remaining), low = both & 15, high = both >> 4;
        Floats scales = lane_scales(affine + o * k / GROUP, remaining);
        prefetch_weights(w + o * k / 2, 1);
        for (int r = 0; r < rows; r++) {
            Floats exact = __builtin_convertvector(unit_sums(low, high, x + r * stride), Floats);
            sums[o][r] = fused(exact * AT(Floats, x + r * stride + UNIT), scales, sums[o][r]);
        }
    }
}

/* Two outputs of one or two rows, or one of four. */
INLINE void multiply_tile(const Linear *linear, int64_t n, int outputs, int rows, const uint8_t *prepared,
                          const float *row_scale, float *y, int64_t y_stride) {
    int64_t k = linear->in_features, groups = k / GROUP, stride = prepared_bytes_int4(k), remaining = k;
    const uint8_t *w = (const uint8_t *)linear->weight + n * k / 2;
    const uint32_t *affine = (const uint32_t *)linear->scale + n * groups;
    Floats even[2][4], odd[2][4];
    for (int o = 0; o < outputs; o++)
        for (int r = 0; r < rows; r++) even[o][r] = odd[o][r] = (Floats){0};
    for (int64_t g = 0; g < groups; g += LANES) { /* (q - 8) scale + zero = q scale + (zero - 8 scale) */
        Some mask = lanes(groups - g);
        for (int o = 0; o < outputs; o++) {
            Bits both = (Bits)get((const float *)affine + o * groups + g, mask);
            Floats constant = fused((Floats)(both << 16), splat(-8.0f), (Floats)(both & 0xffff0000));
            for (int r = 0; r < rows; r++)
                even[o][r] = fused(constant, get(group_sums(prepared + r * stride, k) + g, mask), even[o][r]);
        }
    }
    for (; remaining >= 2 * UNIT; remaining -= 2 * UNIT) {
        add_unit(w, affine, k, UNIT, outputs, rows, prepared, stride, even);
        add_unit(w + UNIT_BYTES, affine + UNIT_GROUPS, k, UNIT, outputs, rows, prepared + PREPARED_UNIT, stride, odd);
        w += 2 * UNIT_BYTES, affine += 2 * UNIT_GROUPS, prepared += 2 * PREPARED_UNIT;
    }
    for (; remaining > 0; remaining -= UNIT) {
        add_unit(w, affine, k, remaining, outputs, rows, prepared, stride, even);
        w += UNIT_BYTES, affine += UNIT_GROUPS, prepared += PREPARED_UNIT;
    }
    for (int o = 0; o < outputs; o++)
        for (int r = 0; r < rows; r++) y[r * y_stride + o] = sum_of(even[o][r] + odd[o][r]) * row_scale[r];
}

void multiply_int4(const Linear *linear, int64_t rows, const uint8_t *prepared, const float *row_scale, float *y,
                   int64_t y_stride, int64_t from, int64_t end) {
    int64_t stride = prepared_bytes_int4(linear->in_features);
    for (int64_t n = from; n < end; n += 2) {
        int outputs = n + 1 < linear->out_features ? 2 : 1;
        int64_t r = 0;
        for (; r + 4 <= rows; r += 4)
            for (int o = 0; o < outputs; o++)
                multiply_tile(linear, n + o, 1, 4, prepared + r * stride, row_scale + r, y + r * y_stride + n + o,
                              y_stride);
        for (; outputs == 2 && r + 2 <= rows; r += 2)
            multiply_tile(linear, n, 2, 2, prepared + r * stride, row_scale + r, y + r * y_stride + n, y_stride);
        for (; outputs == 2 && r < rows; r++)
            multiply_tile(linear, n, 2, 1, prepared + r * stride, row_scale + r, y + r * y_stride + n, y_stride);
        for (; r < rows; r++)
            multiply_tile(linear, n, 1, 1, prepared + r * stride, row_scale + r, y + r * y_stride + n, y_stride);
    }
}
