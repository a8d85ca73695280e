/* Selects the functions of a linear layer by its weight format. Included by the files that use all formats; the files
   that implement one format include maps.h alone. */

#pragma once
#include "maps.h"

static inline int64_t prepared_row(const Map *map) {
    if (map->kind == BYTES) return prepared_bytes(map->k);
    return map->kind == FOURS ? prepared_fours(map->k) : prepared_floats(map->k);
}

/* Bytes of `rows` prepared rows. Rows for tiles follow them interleaved, 16 at a time. */
static inline int64_t prepared_rows(const Map *map, int64_t rows) {
    int64_t tiles = by_tiles(map, rows) ? (rows + 15) / 16 * 16 * map->k : 0;
    return rows * prepared_row(map) + tiles;
}

static inline float prepare(const Map *map, const float *x, uint8_t *ready) {
    if (map->kind == BYTES) return round_row(x, map->k, ready);
    if (map->kind == FOURS) return round_groups(x, map->k, ready);
    map->kind == HALVES ? spread_row(x, map->k, ready) : copy_row(x, map->k, ready);
    return 1.0f;
}

/* Row `r` of `rows` into `ready`, which has `prepared_rows` bytes, and its scale. */
static inline void prepare_row(const Map *map, const float *x, int64_t r, int64_t rows, uint8_t *ready, float *scales) {
    uint8_t *own = ready + r * prepared_row(map);
    scales[r] = prepare(map, x, own);
    if (by_tiles(map, rows)) interleave_row(map->k, r, own, ready + rows * prepared_row(map));
}

static inline void multiply(const Map *map, int64_t rows, const uint8_t *ready, const float *scales, float *y,
                            int64_t y_row, int64_t from, int64_t end) {
    if (map->kind == BYTES) multiply_bytes(map, rows, ready, scales, y, y_row, from, end);
    else if (map->kind == FOURS) multiply_fours(map, rows, ready, scales, y, y_row, from, end);
    else multiply_unrounded(map, rows, ready, y, y_row, from, end);
}
