/* Linear layers with int8, int4, bfloat16 or float32 weights, and the functions of each format.

   A function of a format takes prepared input rows. The result of a row is bit-identical whatever other rows are
   multiplied with it. products.h selects the functions by format. structs.py mirrors `Map`. */

#pragma once
#include "lanes.h"

enum { LINE = 64, AHEAD = 16384 }; /* weights are prefetched this many bytes ahead */

/* Weights that are needed soon, where there is other work than reading: `busy`. Where there is not, the CPUs below fetch
   better by themselves, and others worse (docs/log.md). */
INLINE void fetch(const void *at, int busy) {
#if defined(__znver1__) || defined(__znver2__) || defined(__znver3__) || defined(__znver4__) || defined(__znver5__)
    if (!busy) return;
#else
    (void)busy;
#endif
    __builtin_prefetch((const char *)at + AHEAD, 0, 2);
}

enum { BYTES, HALVES, FOURS, FLOATS }; /* kinds of maps */
enum { GROUP = 32 };                   /* inputs that share a step and a middle in FOURS */

typedef struct {
    const void *values;  /* [n, k]. BYTES: int8; HALVES: bfloat16; FLOATS: float32; FOURS: two a byte, 0 .. 15, the first
                            one low */
    const void *scales;  /* BYTES: float32 [n]; FOURS: bfloat16 [n, k / GROUP, 2], step and middle: (q - 8) step + middle */
    const int32_t *sums; /* [n], of the values of an output of BYTES */
    int64_t n, k, kind;
    int64_t tiles; /* whether int8 GEMMs may use AMX tiles */
} Map;

enum { TILE_OUTPUTS = 32 }; /* outputs of one step with tiles */

static inline int64_t padded(int64_t k) { return (k + LINE - 1) / LINE * LINE; }

/* Whether several rows are multiplied on tiles. */
static inline int by_tiles(const Map *map, int64_t rows) {
    return map->kind == BYTES && map->tiles && rows > 1 && map->k % LINE == 0;
}

/* Outputs that are computed together: what is claimed is a multiple of them. */
static inline int64_t output_step(const Map *map, int64_t rows) { return by_tiles(map, rows) ? TILE_OUTPUTS : 2; }

/* Bytes of a prepared row, a multiple of LINE. */
int64_t prepared_bytes(int64_t k);
int64_t prepared_floats(int64_t k);
int64_t prepared_fours(int64_t k);

/* `x` [k] as a product takes it, and the scale of the row. */
float round_row(const float *x, int64_t k, uint8_t *ready);
float round_groups(const float *x, int64_t k, uint8_t *ready);
void spread_row(const float *x, int64_t k, uint8_t *ready);
void copy_row(const float *x, int64_t k, uint8_t *ready);

/* Outputs `from` to `end`; `from` is a multiple of `output_step`. `y` has `y_row` numbers a row. */
void multiply_bytes(const Map *map, int64_t rows, const uint8_t *ready, const float *scales, float *y, int64_t y_row,
                    int64_t from, int64_t end);
void multiply_fours(const Map *map, int64_t rows, const uint8_t *ready, const float *scales, float *y, int64_t y_row,
                    int64_t from, int64_t end);
void multiply_unrounded(const Map *map, int64_t rows, const uint8_t *ready, float *y, int64_t y_row, int64_t from,
                        int64_t end);

/* Blocks of TILE_OUTPUTS outputs, of several rows that are interleaved in `tiles`. */
void bytes_by_tiles(const Map *map, int64_t rows, const uint8_t *tiles, const float *scales, float *y, int64_t y_row,
                    int64_t from, int64_t end);

/* Puts row `r`, prepared, where tiles read it. */
void interleave_row(int64_t k, int64_t r, const uint8_t *ready, uint8_t *tiles);

/* What a row is multiplied by so that its peak becomes 127, and what undoes that: NaN where a number is not finite. */
static inline float rounding(const float *x, int64_t k, float *by) {
    Floats top = {0}, bad = {0};
    for (int64_t i = 0; i < k; i += LANES) {
        Floats v = get(x + i, lanes(k - i));
        top = larger(top, magnitude(v));
        bad = fused(v, (Floats){0}, bad);
    }
    float peak = largest_of(top);
    *by = peak > 0 ? 127.0f / peak : 0.0f;
    return peak / 127.0f + sum_of(bad);
}

/* Quantized activations: rounded to the nearest integer, ties to even, within int8. NaN becomes 0, because its conversion
   is undefined, and so is that of infinity, which occurs if the peak of a row is denormal. Rows that are not finite
   become NaN by their scale. */
INLINE Words rounded(Floats x) {
    Floats finite = (Floats)((Words)x & (Words)(x == x));
    return __builtin_convertvector(nearest(smaller(larger(finite, splat(-127.0f)), splat(127.0f))), Words);
}
