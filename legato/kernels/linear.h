/* Linear layers with int8, int4, bfloat16 or float32 weights, and the functions of each format.

   A GEMM takes prepared (quantized or reordered) input rows. The result of a row is bit-identical whatever other rows
   are multiplied with it. linear_formats.h selects the functions by format. structs.py mirrors `Linear`. */

#pragma once
#include "lanes.h"

enum { LINE = 64, AHEAD = 16384 }; /* weights are prefetched this many bytes ahead */

/* Prefetches weights. `busy`: there is other work than reading. Where there is not, the CPUs below prefetch better by
   themselves, and others worse (docs/log.md). */
INLINE void prefetch_weights(const void *at, int busy) {
#if defined(__znver1__) || defined(__znver2__) || defined(__znver3__) || defined(__znver4__) || defined(__znver5__)
    if (!busy) return;
#else
    (void)busy;
#endif
    __builtin_prefetch((const char *)at + AHEAD, 0, 2);
}

enum { INT8, BFLOAT16, INT4, FLOAT32 }; /* weight formats */
enum { GROUP = 32 };                    /* consecutive inputs of INT4 that share a scale and a zero point */

typedef struct {
    const void *weight;     /* [out_features, in_features]; INT4: two numbers 0 .. 15 a byte, the first one low */
    const void *scale;      /* INT8: float32 [out_features]; INT4: bfloat16 [out_features, in_features / GROUP, 2], scale
                               and zero point: a weight is (q - 8) * scale + zero */
    const int32_t *row_sum; /* [out_features], the sum of an output's weights; INT8 only */
    int64_t out_features, in_features, dtype;
    int64_t use_amx; /* whether int8 GEMMs may use AMX tiles */
} Linear;

/* Activations of INT8 are integers up to LEVELS, which are 128 * high + low, high up to 127 and low -64 to 63. MAX_INPUTS
   of them times int8 weights can be added up without an overflow. */
enum { LEVELS = 127 * 128, MAX_INPUTS = 8192 };

enum { AMX_OUTPUTS = 32 }; /* outputs of one step on AMX tiles */

static inline int64_t padded(int64_t k) { return (k + LINE - 1) / LINE * LINE; }

/* Whether several rows are multiplied on AMX tiles. */
static inline int uses_amx(const Linear *linear, int64_t rows) {
    return linear->dtype == INT8 && linear->use_amx && rows > 1 && linear->in_features % LINE == 0;
}

/* Outputs that are computed together: what a thread claims is a multiple of them. */
static inline int64_t output_step(const Linear *linear, int64_t rows) { return uses_amx(linear, rows) ? AMX_OUTPUTS : 2; }

/* Bytes of a prepared row, a multiple of LINE. */
int64_t prepared_bytes_int8(int64_t k);
int64_t prepared_bytes_int4(int64_t k);
int64_t prepared_bytes_float(int64_t k);

/* Prepares `x` [k] for a GEMM. Quantized formats return the scale of the row: NaN if a number is not finite. */
float prepare_int8(const float *x, int64_t k, uint8_t *prepared);
float prepare_int4(const float *x, int64_t k, uint8_t *prepared);
void prepare_bfloat16(const float *x, int64_t k, uint8_t *prepared);
void prepare_float32(const float *x, int64_t k, uint8_t *prepared);

/* Outputs `from` to `end`; `from` is a multiple of `output_step`. Rows of `y` are `y_stride` numbers apart. */
void multiply_int8(const Linear *linear, int64_t rows, const uint8_t *prepared, const float *row_scale, float *y,
                   int64_t y_stride, int64_t from, int64_t end);
void multiply_int4(const Linear *linear, int64_t rows, const uint8_t *prepared, const float *row_scale, float *y,
                   int64_t y_stride, int64_t from, int64_t end);
void multiply_float(const Linear *linear, int64_t rows, const uint8_t *prepared, float *y, int64_t y_stride,
                    int64_t from, int64_t end);

/* Blocks of AMX_OUTPUTS outputs, of rows that are interleaved in `tiles`. */
void multiply_int8_amx(const Linear *linear, int64_t rows, const uint8_t *tiles, const float *row_scale, float *y,
                       int64_t y_stride, int64_t from, int64_t end);

/* Bytes of `rows` interleaved rows, and the place of prepared row `r` among them. */
int64_t interleaved_bytes(int64_t k, int64_t rows);
void interleave_row(int64_t k, int64_t r, const uint8_t *prepared, uint8_t *tiles);

/* The scale of `k` numbers whose largest magnitude becomes `levels`, and its inverse. NaN if a number is not finite. */
static inline float quantization_scale(const float *x, int64_t k, float levels, float *inverse) {
    Floats top = {0}, bad = {0};
    for (int64_t i = 0; i < k; i += LANES) {
        Floats v = get(x + i, lanes(k - i));
        top = larger(top, magnitude(v));
        bad = fused(v, (Floats){0}, bad);
    }
    float peak = largest_of(top);
    *inverse = peak > 0 ? levels / peak : 0.0f;
    return peak / levels + sum_of(bad);
}

/* Rounds to the nearest integer, ties to even, within -levels to levels. NaN becomes 0, because its conversion is
   undefined, and so is that of infinity, which occurs if the peak is denormal. Rows that are not finite become NaN by
   their scale. */
INLINE Words quantized(Floats x, float levels) {
    Floats finite = (Floats)((Words)x & (Words)(x == x));
    return __builtin_convertvector(nearest(smaller(larger(finite, splat(-levels)), splat(levels))), Words);
}
