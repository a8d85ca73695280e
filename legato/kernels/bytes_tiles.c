/* int8 GEMM on AMX tiles. Sums are integers, so the result is bit-identical to the one without tiles. */

#include "maps.h"
#include "tiles.h"

#if TILES

/* Outputs and rows of one step. Weights are read from memory once for PASS rows. */
enum { OUTPUTS = TILE_OUTPUTS, TOGETHER = TILE_ROWS, PASS = 4 * TOGETHER };

/* Four numbers of each of TOGETHER rows side by side, as a tile takes what it multiplies with: [k / 4][TOGETHER][4]. */
void interleave_row(int64_t k, int64_t r, const uint8_t *ready, uint8_t *tiles) {
    uint8_t *to = tiles + r / TOGETHER * TOGETHER * k + 4 * (r % TOGETHER);
    for (int64_t i = 0; i < k / 4; i++) memcpy(to + 4 * i * TOGETHER, ready + 4 * i, 4);
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

void bytes_by_tiles(const Map *map, int64_t rows, const uint8_t *tiles, const float *scales, float *y, int64_t y_row,
                    int64_t from, int64_t end) {
    int64_t k = map->k;
    int32_t sums[OUTPUTS * TOGETHER];
    Shape shape = {0};
    shape_tiles(&shape, TILE_ROWS, TILE_ROWS, TILE_BYTES / 4);
    for (int64_t begin = 0; begin < rows; begin += PASS) {
        int64_t pass = least(PASS, rows - begin);
        for (int64_t n = from; n < end; n += OUTPUTS)
            for (int64_t r = begin; r < begin + pass; r += TOGETHER) {
                tile((const int8_t *)map->values + n * k, k, tiles + r * k, sums);
                finish(map, n, sums, least(TOGETHER, rows - r), scales + r, y + r * y_row, y_row);
            }
    }
    release_tiles(&shape);
}

#else

void bytes_by_tiles(const Map *map, int64_t rows, const uint8_t *tiles, const float *scales, float *y, int64_t y_row,
                    int64_t from, int64_t end) {
    (void)map, (void)rows, (void)tiles, (void)scales, (void)y, (void)y_row, (void)from, (void)end;
}

void interleave_row(int64_t k, int64_t r, const uint8_t *ready, uint8_t *tiles) {
    (void)k, (void)r, (void)ready, (void)tiles;
}

#endif
