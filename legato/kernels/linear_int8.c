/* int8 GEMM: weights with one scale per output, activations quantized to 15 bits with one scale per row.

   8-bit activations lose much of a row in which one number is far larger than the others, as in real language models.
   15 bits keep it, and cost little: a weight is loaded once and multiplied twice, and few rows are limited by loading.
   Where the CPU multiplies bytes, an activation is two of them, 128 * high + low; each is a plane of the prepared row.
   Where it multiplies 16-bit integers, it is one. Accumulation is exact in integers, and the sum is rounded once, so the
   result is bit-identical for any order of summation, any CPU and any batch. Weights are read in their order in memory. */

#include "linear.h"
#include "tiles.h"

/* --- one multiply-add instruction of each CPU ------------------------------------------------------------------------ */

/* `Input`: an element of a plane, which is the number plus OFFSET. CHUNK weights are loaded at a time. */
#if LANES > 4 && (defined(__AVX512VNNI__) || defined(__AVXVNNI__))

typedef uint8_t Input;
enum { CHUNK = 4 * LANES, OFFSET = 128, PLANES = 2 };
#if LANES == 16
typedef __m512i Weights;
INLINE Weights load_weights(const int8_t *w) { return _mm512_loadu_si512(w); }
INLINE Weights load_last_weights(const int8_t *w, int64_t count) {
    return _mm512_maskz_loadu_epi8(((__mmask64)1 << count) - 1, w);
}
#else
typedef __m256i Weights;
INLINE Weights load_weights(const int8_t *w) { return _mm256_loadu_si256((const __m256i *)w); }
#endif

/* As an intrinsic it is the same instruction, but compilers copy registers around it. */
INLINE Words multiply_add(Words sums, Words x, Weights w) {
    Weights inputs = (Weights)x;
#if LANES == 16
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(inputs), "v"(w));
    return sums;
#else
    return (Words)_mm256_dpbusd_avx_epi32((__m256i)sums, inputs, w);
#endif
}

#elif LANES > 4

typedef int16_t Input;
enum { CHUNK = 2 * LANES, OFFSET = 0, PLANES = 1 };
#if LANES == 16
typedef __m512i Weights;
INLINE Weights load_weights(const int8_t *w) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)w)); }
INLINE Words multiply_add(Words sums, Words x, Weights w) { return sums + (Words)_mm512_madd_epi16((__m512i)x, w); }
#else
typedef __m256i Weights;
INLINE Weights load_weights(const int8_t *w) { return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)w)); }
INLINE Words multiply_add(Words sums, Words x, Weights w) { return sums + (Words)_mm256_madd_epi16((__m256i)x, w); }
#endif

#elif defined(__ARM_FEATURE_DOTPROD)

#include <arm_neon.h>
typedef int8_t Input;
enum { CHUNK = 4 * LANES, OFFSET = 0, PLANES = 2 };
typedef int8x16_t Weights;
INLINE Weights load_weights(const int8_t *w) { return vld1q_s8(w); }
INLINE Words multiply_add(Words sums, Words x, Weights w) { return (Words)vdotq_s32((int32x4_t)sums, (int8x16_t)x, w); }

#else

typedef int32_t Input;
enum { CHUNK = LANES, OFFSET = 0, PLANES = 2 };
typedef Words Weights;
typedef int8_t Chunk __attribute__((vector_size(CHUNK)));
IN_MEMORY(Chunk);
INLINE Weights load_weights(const int8_t *w) { return __builtin_convertvector(AT(Chunk, w), Words); }
INLINE Words multiply_add(Words sums, Words x, Weights w) { return sums + x * w; }

#endif

#if !(LANES == 16 && defined(__AVX512VNNI__))
/* The first `count` weights, and zeros. */
INLINE Weights load_last_weights(const int8_t *w, int64_t count) {
    int8_t padded_weights[CHUNK] = {0};
    memcpy(padded_weights, w, (size_t)count);
    return load_weights(padded_weights);
}
#endif

/* --- preparation ------------------------------------------------------------------------------------------------------ */

typedef Input Inputs __attribute__((vector_size(LANES * sizeof(Input))));
IN_MEMORY(Inputs);

/* The planes of a row follow each other: plane p of row r is plane PLANES * r + p of all rows. */
INLINE int64_t plane_stride(int64_t k) { return padded(k); }

int64_t prepared_bytes_int8(int64_t k) { return PLANES * plane_stride(k) * (int64_t)sizeof(Input); }

float prepare_int8(const float *x, int64_t k, uint8_t *prepared) {
    float inverse, scale = quantization_scale(x, k, LEVELS, &inverse);
    Input *first = (Input *)prepared, *second = first + plane_stride(k);
    for (int64_t i = 0; i < k; i += LANES) {
        Words q = quantized(get(x + i, lanes(k - i)) * inverse, LEVELS);
        if (PLANES == 2) {
            Words high = (q + 64) >> 7;
            SET(Inputs, first + i) = __builtin_convertvector(high + OFFSET, Inputs);
            SET(Inputs, second + i) = __builtin_convertvector(q - high * 128 + OFFSET, Inputs);
        } else {
            SET(Inputs, first + i) = __builtin_convertvector(q, Inputs);
        }
    }
    return scale;
}

/* --- GEMM ------------------------------------------------------------------------------------------------------------- */

/* `sum`: of weights and activations, the latter plus their offsets. */
INLINE float dequantized(const Linear *linear, int64_t n, int64_t sum, float row_scale) {
    int64_t offset = 128 * OFFSET + OFFSET;
    return (float)(sum - offset * linear->row_sum[n]) * ((const float *)linear->scale)[n] * row_scale;
}

/* The sum over the lanes of all planes of a row. Lanes of a 16-bit product may be close to the largest integer. */
INLINE int64_t exact_sum(const Words *planes) {
    if (PLANES == 2) return 128 * (int64_t)total_of(planes[0]) + total_of(planes[PLANES - 1]);
    return 65536 * (int64_t)total_of(planes[0] >> 16) + total_of(planes[0] & 0xffff);
}

/* One output of `rows` rows, at most 4. Sums are split in `parts`, so that one need not wait for the last. */
INLINE void one_output(const Linear *linear, int64_t n, int rows, int parts, const Input *x, const float *row_scale,
                       float *y, int64_t y_stride) {
    int64_t k = linear->in_features, stride = plane_stride(k), whole = k / (parts * CHUNK) * (parts * CHUNK);
    const int8_t *w = (const int8_t *)linear->weight + n * k;
    int planes = rows * PLANES;
    Words sums[4 * PLANES][4];
    for (int r = 0; r < planes; r++)
        for (int p = 0; p < parts; p++) sums[r][p] = (Words){0};
    for (int64_t i = whole; i < k; i += CHUNK) {
        Weights weights = k - i < CHUNK ? load_last_weights(w + i, k - i) : load_weights(w + i);
        for (int r = 0; r < planes; r++) sums[r][0] = multiply_add(sums[r][0], AT(Words, x + r * stride + i), weights);
    }
    for (int64_t i = 0; i < whole; i += parts * CHUNK)
        for (int p = 0; p < parts; p++) {
            Weights weights = load_weights(w + i + p * CHUNK);
            prefetch_weights(w + i + p * CHUNK, rows > 2);
            for (int r = 0; r < planes; r++)
                sums[r][p] = multiply_add(sums[r][p], AT(Words, x + r * stride + i + p * CHUNK), weights);
        }
    for (int r = 0; r < rows; r++) {
        Words row[PLANES];
        for (int q = 0; q < PLANES; q++) {
            row[q] = sums[r * PLANES + q][0];
            for (int p = 1; p < parts; p++) row[q] += sums[r * PLANES + q][p];
        }
        y[r * y_stride] = dequantized(linear, n, exact_sum(row), row_scale[r]);
    }
}

/* Rows that are multiplied with two outputs at once: as many sums as lanes, which are added up together. */
enum { PAIR_PLANES = LANES / 2, PAIR_ROWS = PAIR_PLANES / PLANES };

/* Two outputs of PAIR_ROWS rows: each input is loaded for both. */
static void two_outputs(const Linear *linear, int64_t n, const Input *x, const float *row_scale, float *y,
                        int64_t y_stride) {
    int64_t k = linear->in_features, stride = plane_stride(k), whole = k / CHUNK * CHUNK;
    const int8_t *w = (const int8_t *)linear->weight + n * k;
    Words sums[LANES];
    for (int i = 0; i < LANES; i++) sums[i] = (Words){0};
    for (int64_t i = 0; i < k; i += CHUNK) {
        Weights first = i < whole ? load_weights(w + i) : load_last_weights(w + i, k - i);
        Weights second = i < whole ? load_weights(w + k + i) : load_last_weights(w + k + i, k - i);
        prefetch_weights(w + 2 * i, 1);
        if (2 * CHUNK > (int)LINE) prefetch_weights(w + 2 * i + LINE, 1);
        for (int r = 0; r < PAIR_PLANES; r++) {
            Words inputs = AT(Words, x + r * stride + i);
            HELD(inputs);
            sums[r] = multiply_add(sums[r], inputs, first);
            sums[PAIR_PLANES + r] = multiply_add(sums[PAIR_PLANES + r], inputs, second);
        }
    }
    Words upper = {0}, lower;
    if (PLANES == 2) {
        lower = add_across_words(sums);
    } else { /* halves of each lane, as in `exact_sum` */
        Words halves[LANES];
        for (int i = 0; i < LANES; i++) halves[i] = sums[i] >> 16;
        upper = add_across_words(halves);
        for (int i = 0; i < LANES; i++) halves[i] = sums[i] & 0xffff;
        lower = add_across_words(halves);
    }
    for (int r = 0; r < PAIR_ROWS; r++)
        for (int o = 0; o < 2; o++) {
            int at = PAIR_PLANES * o + PLANES * r;
            int64_t sum = PLANES == 2 ? 128 * (int64_t)lower[at] + lower[at + PLANES - 1]
                                      : 65536 * (int64_t)upper[at] + lower[at];
            y[r * y_stride + o] = dequantized(linear, n + o, sum, row_scale[r]);
        }
}

void multiply_int8(const Linear *linear, int64_t rows, const uint8_t *prepared, const float *row_scale, float *y,
                   int64_t y_stride, int64_t from, int64_t end) {
    const Input *x = (const Input *)prepared;
    int64_t stride = PLANES * plane_stride(linear->in_features);
    if (uses_amx(linear, rows)) {
        int64_t whole = end - end % AMX_OUTPUTS; /* the last outputs may be fewer than a block */
        const uint8_t *tiles = prepared + rows * prepared_bytes_int8(linear->in_features);
        multiply_int8_amx(linear, rows, tiles, row_scale, y, y_stride, from, whole);
        from = whole;
    }
    for (int64_t n = from; n < end; n += 2) {
        int outputs = n + 1 < linear->out_features ? 2 : 1;
        int64_t done = 0;
        for (; outputs == 2 && done + PAIR_ROWS <= rows; done += PAIR_ROWS)
            two_outputs(linear, n, x + done * stride, row_scale + done, y + done * y_stride + n, y_stride);
        for (int64_t o = n; o < n + outputs; o++) {
            int64_t r = done;
            const Input *row = x + r * stride;
            for (; r + 4 <= rows; r += 4, row += 4 * stride)
                one_output(linear, o, 4, 1, row, row_scale + r, y + r * y_stride + o, y_stride);
            for (; r + 2 <= rows; r += 2, row += 2 * stride)
                one_output(linear, o, 2, 2, row, row_scale + r, y + r * y_stride + o, y_stride);
            for (; r < rows; r++, row += stride)
                one_output(linear, o, 1, 4, row, row_scale + r, y + r * y_stride + o, y_stride);
        }
    }
}
