/* Products with 8-bit weights on matrix tiles. Sums are whole numbers: the same as without tiles, to the bit. */

#include "maps.h"
#include "tiles.h"

#if TILES

/* Outputs and rows of one step. Weights are read from memory once for PASS rows. */
enum { OUTPUTS = 2 * TILE_ROWS, TOGETHER = TILE_ROWS, PASS = 4 * TOGETHER };

/* Four numbers of each of `rows` rows side by side, as a tile takes what it multiplies with: [k / 4][TOGETHER][4]. */
static void interleave(int64_t k, int64_t rows, const uint8_t *ready, uint8_t *tiles) {
    int64_t stride = prepared_bytes(k);
    for (int64_t i = 0; i < k / 4; i++)
        for (int64_t r = 0; r < rows; r++) memcpy(tiles + 4 * (i * TOGETHER + r), ready + r * stride + 4 * i, 4);
}

/* Outputs of rows that were interleaved: `sums` [OUTPUTS][TOGETHER]. Meanwhile the next weights are fetched. */
static void tile(const int8_t *w, int64_t k, const uint8_t *tiles, int32_t *sums) {
    _tile_zero(0);
    _tile_zero(2);
    for (int64_t i = 0; i < k; i += TILE_BYTES) {
        _tile_loadd(6, tiles + i * TOGETHER, TILE_BYTES);
        _tile_loadd(4, w + i, k);
        _tile_dpbsud(0, 4, 6);
        _tile_loadd(5, w + TILE_ROWS * k + i, k);
        _tile_dpbsud(2, 5, 6);
        for (int64_t line = 0; line < OUTPUTS; line++) __builtin_prefetch(w + OUTPUTS * (k + i) + line * LINE, 0, 2);
    }
    _tile_stored(0, sums, TILE_BYTES);
    _tile_stored(2, sums + TILE_ROWS * TOGETHER, TILE_BYTES);
}

static void finish(const Map *map, int64_t n, const int32_t *sums, int64_t rows, const float *scales, float *y,
                   int64_t y_row) {
    enum { OFFSET = 128 }; /* of prepared numbers, as in bytes.c */
    const Words column = (Words){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} * TOGETHER;
    for (int64_t o = 0; o < OUTPUTS; o += LANES) {
        Words offsets = AT(Words, map->sums + n + o) * OFFSET;
        Floats steps = get((const float *)map->scales + n + o, lanes(LANES));
        for (int64_t r = 0; r < rows; r++) {
            Words sum = (Words)_mm512_i32gather_epi32((__m512i)column, sums + o * TOGETHER + r, 4);
            Floats exact = __builtin_convertvector(sum - offsets, Floats);
            put(y + r * y_row + n + o, lanes(LANES), exact * steps * scales[r]);
        }
    }
}

int64_t bytes_by_tiles(const Map *map, int64_t rows, const uint8_t *ready, const float *scales, float *y, int64_t y_row) {
    int64_t k = map->k, blocks = map->n / OUTPUTS, threads = omp_get_num_threads(), me = omp_get_thread_num();
    int64_t from = blocks * me / threads * OUTPUTS, end = blocks * (me + 1) / threads * OUTPUTS, stride = prepared_bytes(k);
    uint8_t tiles[least(PASS, (rows + TOGETHER - 1) / TOGETHER * TOGETHER) * k] __attribute__((aligned(LINE)));
    int32_t sums[OUTPUTS * TOGETHER];
    Shape shape = {0};
    shape_tiles(&shape, TILE_ROWS, TILE_ROWS, TILE_BYTES / 4);
    for (int64_t begin = 0; begin < rows; begin += PASS) {
        int64_t pass = least(PASS, rows - begin);
        for (int64_t r = 0; r < pass; r += TOGETHER)
            interleave(k, least(TOGETHER, pass - r), ready + (begin + r) * stride, tiles + r * k);
        for (int64_t n = from; n < end; n += OUTPUTS)
            for (int64_t r = 0; r < pass; r += TOGETHER) {
                tile((const int8_t *)map->values + n * k, k, tiles + r * k, sums);
                finish(map, n, sums, least(TOGETHER, pass - r), scales + begin + r, y + (begin + r) * y_row, y_row);
            }
    }
    let_tiles_go(&shape);
    return blocks * OUTPUTS;
}

#else

int64_t bytes_by_tiles(const Map *map, int64_t rows, const uint8_t *ready, const float *scales, float *y, int64_t y_row) {
    (void)map, (void)rows, (void)ready, (void)scales, (void)y, (void)y_row;
    return 0;
}

#endif
