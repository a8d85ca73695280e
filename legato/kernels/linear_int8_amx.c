/* int8 GEMM on AMX tiles. Sums are the integers of linear_int8.c, so the result is bit-identical to the one without. */

#include "linear.h"
#include "tiles.h"

#if TILES

/* A tile has 16 columns: the two planes of 8 rows. Weights are read from memory once for PASS rows. */
enum { PLANES = 2, COLUMNS = TILE_ROWS, BLOCK = COLUMNS / PLANES, PASS = 4 * BLOCK, OFFSET = 128 };

int64_t interleaved_bytes(int64_t k, int64_t rows) { return (rows + BLOCK - 1) / BLOCK * COLUMNS * k; }

/* Four numbers of each of COLUMNS planes side by side, as the second operand of a tile product: [k / 4][COLUMNS][4]. */
void interleave_row(int64_t k, int64_t r, const uint8_t *prepared, uint8_t *tiles) {
    uint8_t *to = tiles + r / BLOCK * COLUMNS * k + 4 * PLANES * (r % BLOCK);
    const uint8_t *high = prepared, *low = prepared + padded(k);
    for (int64_t i = 0; i < k / 4; i++, to += 4 * COLUMNS) {
        memcpy(to, high + 4 * i, 4);
        memcpy(to + 4, low + 4 * i, 4);
    }
}

/* `sums` [AMX_OUTPUTS][COLUMNS] of interleaved rows. Meanwhile the next weights are prefetched. */
static void multiply_block(const int8_t *w, int64_t k, const uint8_t *tiles, int32_t *sums) {
    _tile_zero(0);
    _tile_zero(2);
    for (int64_t i = 0; i < k; i += TILE_BYTES) {
        _tile_loadd(6, tiles + i * COLUMNS, TILE_BYTES);
        _tile_loadd(4, w + i, k);
        _tile_dpbsud(0, 4, 6);
        _tile_loadd(5, w + TILE_ROWS * k + i, k);
        _tile_dpbsud(2, 5, 6);
        for (int64_t line = 0; line < AMX_OUTPUTS; line++)
            __builtin_prefetch(w + AMX_OUTPUTS * (k + i) + line * LINE, 0, 2);
    }
    _tile_stored(0, sums, TILE_BYTES);
    _tile_stored(2, sums + TILE_ROWS * COLUMNS, TILE_BYTES);
}

INLINE void transpose_8x8(__m256 *v) {
    __m256 a[8], b[8];
    for (int i = 0; i < 4; i++) {
        a[2 * i] = _mm256_unpacklo_ps(v[2 * i], v[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_ps(v[2 * i], v[2 * i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
        b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
        b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
        b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
        v[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
    }
}

/* The outputs `n` to `n + AMX_OUTPUTS` of at most BLOCK rows, with the arithmetic of `dequantized`. */
static void dequantize_block(const Linear *linear, int64_t n, const int32_t *sums, int64_t rows, const float *row_scale,
                             float *y, int64_t y_stride) {
    const float *scale = (const float *)linear->scale + n;
    float scales[BLOCK] = {0};
    memcpy(scales, row_scale, (size_t)rows * sizeof *scales);
    __m256 by_row = _mm256_loadu_ps(scales);
    for (int64_t o = 0; o < AMX_OUTPUTS; o += 8) {
        __m256 block[8];
        for (int i = 0; i < 8; i++) {
            __m512i pairs = _mm512_loadu_si512(sums + (o + i) * COLUMNS); /* of each row high, low */
            __m512i high = _mm512_srai_epi64(_mm512_slli_epi64(pairs, 32), 32), low = _mm512_srai_epi64(pairs, 32);
            int64_t offset = (int64_t)(128 * OFFSET + OFFSET) * linear->row_sum[n + o + i];
            __m512i sum = _mm512_add_epi64(_mm512_slli_epi64(high, 7), low);
            __m256 exact = _mm512_cvtepi64_ps(_mm512_sub_epi64(sum, _mm512_set1_epi64(offset)));
            block[i] = _mm256_mul_ps(_mm256_mul_ps(exact, _mm256_set1_ps(scale[o + i])), by_row);
        }
        transpose_8x8(block);
        for (int64_t r = 0; r < rows; r++) _mm256_storeu_ps(y + r * y_stride + n + o, block[r]);
    }
}

void multiply_int8_amx(const Linear *linear, int64_t rows, const uint8_t *tiles, const float *row_scale, float *y,
                       int64_t y_stride, int64_t from, int64_t end) {
    int64_t k = linear->in_features;
    int32_t sums[AMX_OUTPUTS * COLUMNS];
    Shape shape = {0};
    shape_tiles(&shape, TILE_ROWS, TILE_ROWS, TILE_BYTES / 4);
    for (int64_t begin = 0; begin < rows; begin += PASS) {
        int64_t last = begin + least(PASS, rows - begin);
        for (int64_t n = from; n < end; n += AMX_OUTPUTS)
            for (int64_t r = begin; r < last; r += BLOCK) {
                multiply_block((const int8_t *)linear->weight + n * k, k, tiles + r * PLANES * k, sums);
                dequantize_block(linear, n, sums, least(BLOCK, rows - r), row_scale + r, y + r * y_stride, y_stride);
            }
    }
    release_tiles(&shape);
}

#else

int64_t interleaved_bytes(int64_t k, int64_t rows) {
    (void)k, (void)rows;
    return 0;
}

void multiply_int8_amx(const Linear *linear, int64_t rows, const uint8_t *tiles, const float *row_scale, float *y,
                       int64_t y_stride, int64_t from, int64_t end) {
    (void)linear, (void)rows, (void)tiles, (void)row_scale, (void)y, (void)y_stride, (void)from, (void)end;
}

void interleave_row(int64_t k, int64_t r, const uint8_t *prepared, uint8_t *tiles) {
    (void)k, (void)r, (void)prepared, (void)tiles;
}

#endif
