/* What the files of this folder share: linear maps with 8- or 16-bit weights, and how they are multiplied with rows.

   A product takes prepared rows and gives the same numbers for a row in any company, to the bit. library.py mirrors
   `Map`. */

#pragma once
#include "lanes.h"

enum { BYTES = 64, AHEAD = 16384 }; /* weights are fetched so many bytes ahead where rows give time */

typedef struct {
    const void *values;  /* [n, k]: int8, or bfloat16 if `half` */
    const float *scales; /* [n], of 8-bit values */
    const int32_t *sums; /* [n], of the 8-bit values of an output */
    int64_t n, k, half;
} Map;

static inline int64_t padded(int64_t k) { return (k + BYTES - 1) / BYTES * BYTES; }

/* Bytes of a prepared row. */
static inline int64_t prepared_row(const Map *map) { return padded(map->k) * (map->half ? (int64_t)sizeof(float) : 1); }

/* `x` [k] as a product takes it, and the scale of the row. */
float round_row(const float *x, int64_t k, uint8_t *ready);
void spread_row(const float *x, int64_t k, uint8_t *ready);

/* Called by all threads of a team; every output belongs to one of them. No barrier: threads meet when the caller says.
   `y` has `y_row` numbers a row. */
void multiply_bytes(const Map *map, int64_t rows, const uint8_t *ready, const float *scales, float *y, int64_t y_row);
void multiply_halves(const Map *map, int64_t rows, const uint8_t *ready, float *y, int64_t y_row);

static inline float prepare(const Map *map, const float *x, uint8_t *ready) {
    if (!map->half) return round_row(x, map->k, ready);
    spread_row(x, map->k, ready);
    return 1.0f;
}

static inline void multiply(const Map *map, int64_t rows, const uint8_t *ready, const float *scales, float *y,
                            int64_t y_row) {
    if (map->half) multiply_halves(map, rows, ready, y, y_row);
    else multiply_bytes(map, rows, ready, scales, y, y_row);
}
