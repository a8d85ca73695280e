/* Products with weights that are not rounded: bfloat16, of which each is widened, which is exact, or float32. All is summed
   in float32.

   Reading the weights is what takes the time at one row, and in bfloat16 they are half of what float32 would be. The order
   of a sum is that of its inputs, two sums for two halves of each PAIR, in any batch. */

#include "maps.h"

enum { PAIR = 2 * LANES, BLOCK = 32 }; /* rows that are multiplied with all weights before the next ones */
enum { TALL = REGISTERS == 32 ? 6 : 2 }; /* rows that are multiplied with two outputs at once */

int64_t prepared_floats(int64_t k) { return padded(k) * (int64_t)sizeof(float); }

/* Numbers with an even place first, then those with an odd one, of each PAIR: as 16-bit weights come apart. */
void spread_row(const float *x, int64_t k, uint8_t *ready) {
    float *y = (float *)ready, last[PAIR] = {0};
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

/* As it is, and zeros behind it. */
void copy_row(const float *x, int64_t k, uint8_t *ready) {
    memset(ready, 0, (size_t)prepared_floats(k));
    memcpy(ready, x, (size_t)k * sizeof *x);
}

/* A PAIR of weights, or what is `left` of them. */
INLINE void weights_at(const char *w, int64_t left, int half, Floats *first, Floats *second) {
    char some[PAIR * sizeof(float)] = {0};
    if (left < PAIR) w = memcpy(some, w, (size_t)(left * size_of(half)));
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
INLINE void add_pair(const char *w, int64_t row, int64_t left, int half, int outputs, int rows, const float *x,
                     int64_t stride, Floats (*firsts)[TALL], Floats (*seconds)[TALL]) {
    Floats first[2], second[2];
    for (int o = 0; o < outputs; o++) weights_at(w + o * row, left, half, &first[o], &second[o]);
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
INLINE void tile(const char *w, int64_t k, int half, int outputs, int rows, const float *x, float *y, int64_t y_row) {
    int64_t stride = padded(k), whole = k / PAIR * PAIR, row = k * size_of(half);
    Floats firsts[2][TALL], seconds[2][TALL];
    for (int o = 0; o < outputs; o++)
        for (int r = 0; r < rows; r++) firsts[o][r] = seconds[o][r] = (Floats){0};
    for (int64_t i = 0; i < whole; i += PAIR) {
        const char *at = w + i * size_of(half);
        for (int o = 0; o < outputs; o++)
            for (int64_t line = 0; line < PAIR * size_of(half); line += LINE) fetch(at + o * row + line, rows > 1);
        add_pair(at, row, PAIR, half, outputs, rows, x + i, stride, firsts, seconds);
    }
    if (whole < k)
        add_pair(w + whole * size_of(half), row, k - whole, half, outputs, rows, x + whole, stride, firsts, seconds);
    for (int o = 0; o < outputs; o++)
        for (int r = 0; r < rows; r++) y[r * y_row + o] = sum_of(firsts[o][r] + seconds[o][r]);
}

/* Outputs `n` and, where there is one, the next, of `rows` rows. */
INLINE void outputs_of(const Map *map, int half, int64_t n, int64_t rows, const float *x, float *y, int64_t y_row) {
    int64_t k = map->k, stride = padded(k), r = 0;
    const char *w = (const char *)map->values + n * k * size_of(half);
    int outputs = n + 1 < map->n ? 2 : 1;
    if (outputs == 2) {
        for (; r + TALL <= rows; r += TALL) tile(w, k, half, 2, TALL, x + r * stride, y + r * y_row, y_row);
        for (; TALL > 4 && r + 4 <= rows; r += 4) tile(w, k, half, 2, 4, x + r * stride, y + r * y_row, y_row);
        for (; TALL > 2 && r + 2 <= rows; r += 2) tile(w, k, half, 2, 2, x + r * stride, y + r * y_row, y_row);
    }
    for (; r < rows; r++)
        for (int o = 0; o < outputs; o++)
            tile(w + o * k * size_of(half), k, half, 1, 1, x + r * stride, y + r * y_row + o, y_row);
}

void multiply_unrounded(const Map *map, int64_t rows, const uint8_t *ready, float *y, int64_t y_row, int64_t from,
                        int64_t end) {
    for (int64_t begin = 0; begin < rows; begin += BLOCK) {
        int64_t count = least(BLOCK, rows - begin);
        const float *x = (const float *)ready + begin * padded(map->k);
        for (int64_t n = from; n < end; n += 2) {
            if (map->kind == HALVES) outputs_of(map, 1, n, count, x, y + begin * y_row + n, y_row);
            else outputs_of(map, 0, n, count, x, y + begin * y_row + n, y_row);
        }
    }
}
