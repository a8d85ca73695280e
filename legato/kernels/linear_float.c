/* GEMM with bfloat16 or float32 weights and float32 activations, accumulated in float32.

   bfloat16 weights are widened in registers, which is exact; in memory they are half of what float32 would be, and reading
   them is what takes the time at one row. The order of a sum is that of its inputs, with two sums for the two halves of
   each PAIR: a row is bit-identical in any batch. */

#include "linear.h"

enum { PAIR = 2 * LANES, BLOCK = 32 }; /* rows that are multiplied with all weights before the next ones */
enum { TALL = REGISTERS == 32 ? 6 : 2 }; /* rows that are multiplied with two outputs at once */

int64_t prepared_bytes_float(int64_t k) { return padded(k) * (int64_t)sizeof(float); }

/* Of each PAIR the numbers with an even index first, then those with an odd one: the order of widened bfloat16 weights. */
void prepare_bfloat16(const float *x, int64_t k, uint8_t *prepared) {
    float *y = (float *)prepared, last[PAIR] = {0};
    int64_t whole = k / PAIR * PAIR;
    if (whole < k) memcpy(last, x + whole, (size_t)(k - whole) * sizeof *x);
    for (int64_t i = 0; i < k; i += PAIR) {
        const float *from = i < whole ? x + i : last;
        for (int j = 0; j < LANES; j++) {
            y[i + j] = from[2 * j];
            y[i + LANES + j] = from[2 * j + 1];
        }
    }
}

/* A copy, padded with zeros. */
void prepare_float32(const float *x, int64_t k, uint8_t *prepared) {
    memset(prepared, 0, (size_t)prepared_bytes_float(k));
    memcpy(prepared, x, (size_t)k * sizeof *x);
}

/* A PAIR of weights, or the `remaining` of them. */
INLINE void load_pair(const char *w, int64_t remaining, int half, Floats *first, Floats *second) {
    char existing[PAIR * sizeof(float)] = {0};
    if (remaining < PAIR) w = memcpy(existing, w, (size_t)(remaining * size_of(half)));
    if (half) {
        Bits both = AT(Bits, w);
        *first = (Floats)(both << 16);
        *second = (Floats)(both & 0xffff0000);
    } else {
        *first = AT(Floats, w);
        *second = AT(Floats, w + sizeof(Floats));
    }
}

/* A PAIR of inputs and its weights. */
INLINE void add_pair(const char *w, int64_t row, int64_t remaining, int half, int outputs, int rows, const float *x,
                     int64_t stride, Floats (*firsts)[TALL], Floats (*seconds)[TALL]) {
    Floats first[2], second[2];
    for (int o = 0; o < outputs; o++) load_pair(w + o * row, remaining, half, &first[o], &second[o]);
    for (int r = 0; r < rows; r++) {
        Floats a = get(x + r * stride, lanes(LANES)), b = get(x + r * stride + LANES, lanes(LANES));
        if (outputs > 1) HELD(a);
        if (outputs > 1) HELD(b);
        for (int o = 0; o < outputs; o++) {
            firsts[o][r] = fused(first[o], a, firsts[o][r]);
            seconds[o][r] = fused(second[o], b, seconds[o][r]);
        }
    }
}

/* `outputs` outputs, one or two, of `rows` rows. */
INLINE void multiply_tile(const char *w, int64_t k, int half, int outputs, int rows, const float *x, float *y,
                          int64_t y_stride) {
    int64_t stride = padded(k), whole = k / PAIR * PAIR, row = k * size_of(half);
    Floats firsts[2][TALL], seconds[2][TALL];
    for (int o = 0; o < outputs; o++)
        for (int r = 0; r < rows; r++) firsts[o][r] = seconds[o][r] = (Floats){0};
    for (int64_t i = 0; i < whole; i += PAIR) {
        const char *at = w + i * size_of(half);
        for (int o = 0; o < outputs; o++)
            for (int64_t line = 0; line < PAIR * size_of(half); line += LINE)
                prefetch_weights(at + o * row + line, rows > 1);
        add_pair(at, row, PAIR, half, outputs, rows, x + i, stride, firsts, seconds);
    }
    if (whole < k)
        add_pair(w + whole * size_of(half), row, k - whole, half, outputs, rows, x + whole, stride, firsts, seconds);
    for (int o = 0; o < outputs; o++)
        for (int r = 0; r < rows; r++) y[r * y_stride + o] = sum_of(firsts[o][r] + seconds[o][r]);
}

/* Outputs `n` and, where there is one, the next, of `rows` rows. */
INLINE void multiply_outputs(const Linear *linear, int half, int64_t n, int64_t rows, const float *x, float *y,
                             int64_t y_stride) {
    int64_t k = linear->in_features, stride = padded(k), r = 0;
    const char *w = (const char *)linear->weight + n * k * size_of(half);
    int outputs = n + 1 < linear->out_features ? 2 : 1;
    if (outputs == 2) {
        for (; r + TALL <= rows; r += TALL)
            multiply_tile(w, k, half, 2, TALL, x + r * stride, y + r * y_stride, y_stride);
        for (; TALL > 4 && r + 4 <= rows; r += 4)
            multiply_tile(w, k, half, 2, 4, x + r * stride, y + r * y_stride, y_stride);
        for (; TALL > 2 && r + 2 <= rows; r += 2)
            multiply_tile(w, k, half, 2, 2, x + r * stride, y + r * y_stride, y_stride);
    }
    for (; r < rows; r++)
        for (int o = 0; o < outputs; o++)
            multiply_tile(w + o * k * size_of(half), k, half, 1, 1, x + r * stride, y + r * y_stride + o, y_stride);
}

void multiply_float(const Linear *linear, int64_t rows, const uint8_t *prepared, float *y, int64_t y_stride,
                    int64_t from, int64_t end) {
    for (int64_t begin = 0; begin < rows; begin += BLOCK) {
        int64_t count = least(BLOCK, rows - begin);
        const float *x = (const float *)prepared + begin * padded(linear->in_features);
        for (int64_t n = from; n < end; n += 2) {
            if (linear->dtype == BFLOAT16) multiply_outputs(linear, 1, n, count, x, y + begin * y_stride + n, y_stride);
            else multiply_outputs(linear, 0, n, count, x, y + begin * y_stride + n, y_stride);
        }
    }
}
