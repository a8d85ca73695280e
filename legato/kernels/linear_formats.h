/* Selects the functions of a linear layer by its weight format. Included by the files that use all formats; the files
   that implement one format include linear.h alone. */

#pragma once
#include "linear.h"

static inline int64_t prepared_row_bytes(const Linear *linear) {
    if (linear->dtype == INT8) return prepared_bytes_int8(linear->in_features);
    return linear->dtype == INT4 ? prepared_bytes_int4(linear->in_features) : prepared_bytes_float(linear->in_features);
}

/* Bytes of `rows` prepared rows. For AMX tiles, their interleaved copy follows them. */
static inline int64_t prepared_bytes(const Linear *linear, int64_t rows) {
    int64_t tiles = uses_amx(linear, rows) ? interleaved_bytes(linear->in_features, rows) : 0;
    return rows * prepared_row_bytes(linear) + tiles;
}

static inline float prepare(const Linear *linear, const float *x, uint8_t *prepared) {
    int64_t k = linear->in_features;
    if (linear->dtype == INT8) return prepare_int8(x, k, prepared);
    if (linear->dtype == INT4) return prepare_int4(x, k, prepared);
    linear->dtype == BFLOAT16 ? prepare_bfloat16(x, k, prepared) : prepare_float32(x, k, prepared);
    return 1.0f;
}

/* Prepares row `r` of `rows` in `prepared`, which has `prepared_bytes`, and stores its scale. */
static inline void prepare_row(const Linear *linear, const float *x, int64_t r, int64_t rows, uint8_t *prepared,
                               float *row_scale) {
    int64_t row_bytes = prepared_row_bytes(linear);
    uint8_t *row = prepared + r * row_bytes;
    row_scale[r] = prepare(linear, x, row);
    if (uses_amx(linear, rows)) interleave_row(linear->in_features, r, row, prepared + rows * row_bytes);
}

static inline void multiply(const Linear *linear, int64_t rows, const uint8_t *prepared, const float *row_scale,
                            float *y, int64_t y_stride, int64_t from, int64_t end) {
    if (linear->dtype == INT8) multiply_int8(linear, rows, prepared, row_scale, y, y_stride, from, end);
    else if (linear->dtype == INT4) multiply_int4(linear, rows, prepared, row_scale, y, y_stride, from, end);
    else multiply_float(linear, rows, prepared, y, y_stride, from, end);
}
