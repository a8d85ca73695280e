/* Selects the functions of a linear layer by its weight format. Included by the files that use all formats; the files
   that implement one format include maps.h alone. */

#pragma once
#include "maps.h"

static inline int64_t prepared_row(const Map *map) {
    if (map->kind == BYTES) return prepared_bytes(map->k);
    return map->kind == FOURS ? prepared_fours(map->k) : prepared_floats(map->k);
}

static inline float prepare(const Map *map, const float *x, uint8_t *ready) {
    if (map->kind == BYTES) return round_row(x, map->k, ready);
    if (map->kind == FOURS) return round_groups(x, map->k, ready);
    map->kind == HALVES ? spread_row(x, map->k, ready) : copy_row(x, map->k, ready);
    return 1.0f;
}

static inline void multiply(const Map *map, int64_t rows, const uint8_t *ready, const float *scales, float *y,
                            int64_t y_row) {
    if (map->kind == BYTES) multiply_bytes(map, rows, ready, scales, y, y_row);
    else if (map->kind == FOURS) multiply_fours(map, rows, ready, scales, y, y_row);
    else multiply_unrounded(map, rows, ready, y, y_row);
}
