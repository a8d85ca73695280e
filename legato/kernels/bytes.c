/* Products with 8-bit weights.

   Inputs are rounded to 8 bits with a scale of their own row, and sums are whole numbers: their order changes nothing.
   Weights are read in the order in which they lie. */

#include "maps.h"
#include "tiles.h"

/* --- sums of products of bytes, as this CPU makes them ------------------------------------------------------------- */

/* `Input` is what a prepared row holds of a number: it plus OFFSET. CHUNK weights are loaded at a time. */
#if LANES > 4 && (defined(__AVX512VNNI__) || defined(__AVXVNNI__))

typedef uint8_t Input;
enum { CHUNK = 4 * LANES, OFFSET = 128 };
#if LANES == 16
typedef __m512i Weights;
INLINE Weights weights_at(const int8_t *w) { return _mm512_loadu_si512(w); }
INLINE Weights weights_of(const int8_t *w, int64_t some) {
    return _mm512_maskz_loadu_epi8(((__mmask64)1 << some) - 1, w);
}
#else
typedef __m256i Weights;
INLINE Weights weights_at(const int8_t *w) { return _mm256_loadu_si256((const __m256i *)w); }
#endif

/* sums + x * w of a chunk of both. As an intrinsic it is the same instruction, but compilers copy registers around it. */
INLINE Words add_products(Words sums, Words x, Weights w) {
    Weights inputs = (Weights)x;
#if LANES == 16
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(inputs), "v"(w));
    return sums;
#else
    return (Words)_mm256_dpbusd_avx_epi32((__m256i)sums, inputs, w);
#endif
}

#else

#if LANES > 4
typedef int16_t Input;
enum { CHUNK = 2 * LANES, OFFSET = 0 };
#if LANES == 16
typedef __m512i Weights;
INLINE Weights weights_at(const int8_t *w) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)w)); }
#else
typedef __m256i Weights;
INLINE Weights weights_at(const int8_t *w) { return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)w)); }
#endif
INLINE Words add_products(Words sums, Words x, Weights w) {
    Weights inputs = (Weights)x;
#if LANES == 16
    return sums + (Words)_mm512_madd_epi16(inputs, w);
#else
    return sums + (Words)_mm256_madd_epi16(inputs, w);
#endif
}
#else
typedef int32_t Input;
enum { CHUNK = LANES, OFFSET = 0 };
typedef Words Weights;
typedef int8_t Chunk __attribute__((vector_size(CHUNK)));
IN_MEMORY(Chunk);
INLINE Weights weights_at(const int8_t *w) {
    return __builtin_convertvector(AT(Chunk, w), Words);
}
INLINE Words add_products(Words sums, Words x, Weights w) { return sums + x * w; }
#endif
#endif

#if !(LANES == 16 && defined(__AVX512VNNI__))
/* The first `some` weights, and zeros. */
INLINE Weights weights_of(const int8_t *w, int64_t some) {
    int8_t all[CHUNK] = {0};
    memcpy(all, w, (size_t)some);
    return weights_at(all);
}
#endif

/* --- products ------------------------------------------------------------------------------------------------------ */

typedef Input Prepared __attribute__((vector_size(LANES * sizeof(Input))));
IN_MEMORY(Prepared);

int64_t prepared_bytes(int64_t k) { return padded(k) * (int64_t)sizeof(Input); }

/* round(x / peak * 127) + OFFSET; returns peak / 127. A row with NaN or infinity gets NaN as its scale. */
float round_row(const float *x, int64_t k, uint8_t *ready) {
    float by, scale = rounding(x, k, &by);
    for (int64_t i = 0; i < k; i += LANES) {
        Words q = rounded(get(x + i, lanes(k - i)) * by) + OFFSET;
        SET(Prepared, (Input *)ready + i) = __builtin_convertvector(q, Prepared);
    }
    return scale;
}

static inline float finished(const Map *map, int64_t n, int32_t sum, float scale) {
    return (float)(sum - OFFSET * map->sums[n]) * ((const float *)map->scales)[n] * scale;
}

/* One output of `rows` rows, at most 4. Sums are split in `parts`, so that one need not wait for the last. */
INLINE void one(const Map *map, int64_t n, int rows, int parts, const Input *q, const float *scales, float *y,
                int64_t y_row) {
    const int8_t *w = (const int8_t *)map->values + n * map->k;
    int64_t stride = padded(map->k), whole = map->k / (parts * CHUNK) * (parts * CHUNK);
    Words sums[4][4];
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < parts; p++) sums[r][p] = (Words){0};
    for (int64_t i = whole; i < map->k; i += CHUNK) {
        Weights weights = map->k - i < CHUNK ? weights_of(w + i, map->k - i) : weights_at(w + i);
        for (int r = 0; r < rows; r++) sums[r][0] = add_products(sums[r][0], AT(Words, q + r * stride + i), weights);
    }
    for (int64_t i = 0; i < whole; i += parts * CHUNK)
        for (int p = 0; p < parts; p++) {
            Weights weights = weights_at(w + i + p * CHUNK);
            fetch(w + i + p * CHUNK, rows > 2);
            for (int r = 0; r < rows; r++)
                sums[r][p] = add_products(sums[r][p], AT(Words, q + r * stride + i + p * CHUNK), weights);
        }
    for (int r = 0; r < rows; r++) {
        Words sum = sums[r][0];
        for (int p = 1; p < parts; p++) sum += sums[r][p];
        y[r * y_row] = finished(map, n, total_of(sum), scales[r]);
    }
}

enum { TALL = LANES / 2 }; /* rows that are multiplied with two outputs at once: as many sums as lanes */

/* Two outputs of TALL rows: each input is loaded for both, and all sums are added up together. */
static void two(const Map *map, int64_t n, const Input *q, const float *scales, float *y, int64_t y_row) {
    int64_t k = map->k, stride = padded(k), whole = k / CHUNK * CHUNK;
    const int8_t *w = (const int8_t *)map->values + n * k;
    Words sums[LANES];
    for (int i = 0; i < LANES; i++) sums[i] = (Words){0};
    for (int64_t i = 0; i < k; i += CHUNK) {
        Weights first = i < whole ? weights_at(w + i) : weights_of(w + i, k - i);
        Weights second = i < whole ? weights_at(w + k + i) : weights_of(w + k + i, k - i);
        fetch(w + 2 * i, 1);
        if (2 * CHUNK > (int)LINE) fetch(w + 2 * i + LINE, 1);
        for (int r = 0; r < TALL; r++) {
            Words x = AT(Words, q + r * stride + i);
            HELD(x);
            sums[r] = add_products(sums[r], x, first);
            sums[TALL + r] = add_products(sums[TALL + r], x, second);
        }
    }
    Words exact = add_across_words(sums);
    for (int r = 0; r < TALL; r++)
        for (int o = 0; o < 2; o++) y[r * y_row + o] = finished(map, n + o, exact[TALL * o + r], scales[r]);
}

void multiply_bytes(const Map *map, int64_t rows, const uint8_t *ready, const float *scales, float *y, int64_t y_row,
                    int64_t from, int64_t end) {
    const Input *q = (const Input *)ready;
    int64_t stride = padded(map->k);
    if (by_tiles(map, rows)) {
        int64_t whole = end - end % TILE_OUTPUTS; /* the last outputs may be fewer than a block */
        bytes_by_tiles(map, rows, ready + rows * prepared_bytes(map->k), scales, y, y_row, from, whole);
        from = whole;
    }
    for (int64_t n = from; n < end; n += 2) {
        int outputs = n + 1 < map->n ? 2 : 1;
        int64_t r = 0;
        for (; outputs == 2 && r + TALL <= rows; r += TALL)
            two(map, n, q + r * stride, scales + r, y + r * y_row + n, y_row);
        for (int64_t o = n; o < n + outputs; o++) {
            int64_t at = r;
            for (; at + 4 <= rows; at += 4) one(map, o, 4, 1, q + at * stride, scales + at, y + at * y_row + o, y_row);
            for (; at + 2 <= rows; at += 2) one(map, o, 2, 2, q + at * stride, scales + at, y + at * y_row + o, y_row);
            for (; at < rows; at++) one(map, o, 1, 4, q + at * stride, scales + at, y + at * y_row + o, y_row);
        }
    }
}
