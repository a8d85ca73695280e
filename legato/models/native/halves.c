/* Products with bfloat16 weights: each is widened, which is exact, and all is summed in float32.

   Reading the weights is what takes the time at one row, and they are half of what float32 would be. The order of a sum
   is that of its inputs, two sums for even and odd ones, in any company. */

#include "maps.h"

enum { PAIR = 2 * LANES, BLOCK = 32 }; /* rows that are multiplied with all weights before the next ones */
enum { TALL = REGISTERS == 32 ? 6 : 2 }; /* rows that are multiplied with two outputs at once */

int64_t prepared_halves(int64_t k) { return padded(k) * (int64_t)sizeof(float); }

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

/* The next PAIR of inputs, or what is left of them: `v` weights of `outputs` outputs. */
INLINE void add_pair(const Bits *v, int outputs, int rows, const float *x, int64_t stride, Floats (*evens)[TALL],
                     Floats (*odds)[TALL]) {
    for (int r = 0; r < rows; r++) {
        Floats a = get(x + r * stride, lanes(LANES)), b = get(x + r * stride + LANES, lanes(LANES));
        if (outputs > 1) HELD(a);
        if (outputs > 1) HELD(b);
        for (int o = 0; o < outputs; o++) {
            evens[o][r] = fused((Floats)(v[o] << 16), a, evens[o][r]);
            odds[o][r] = fused((Floats)(v[o] & 0xffff0000), b, odds[o][r]);
        }
    }
}

/* `outputs` outputs, one or two, of `rows` rows. */
INLINE void tile(const uint16_t *w, int64_t k, int outputs, int rows, const float *x, float *y, int64_t y_row) {
    int64_t stride = padded(k), whole = k / PAIR * PAIR;
    Floats evens[2][TALL], odds[2][TALL];
    Bits v[2];
    for (int o = 0; o < outputs; o++)
        for (int r = 0; r < rows; r++) evens[o][r] = odds[o][r] = (Floats){0};
    for (int64_t i = 0; i < whole; i += PAIR) {
        for (int o = 0; o < outputs; o++) {
            v[o] = AT(Bits, w + o * k + i);
            fetch(w + o * k + i, rows > 1);
        }
        add_pair(v, outputs, rows, x + i, stride, evens, odds);
    }
    if (whole < k) {
        for (int o = 0; o < outputs; o++) {
            v[o] = (Bits){0};
            memcpy(&v[o], w + o * k + whole, (size_t)(k - whole) * sizeof *w);
        }
        add_pair(v, outputs, rows, x + whole, stride, evens, odds);
    }
    for (int o = 0; o < outputs; o++)
        for (int r = 0; r < rows; r++) y[r * y_row + o] = sum_of(evens[o][r] + odds[o][r]);
}

void multiply_halves(const Map *map, int64_t rows, const uint8_t *ready, float *y, int64_t y_row) {
    const uint16_t *values = map->values;
    int64_t k = map->k, stride = padded(k);
    for (int64_t begin = 0; begin < rows; begin += BLOCK) {
        int64_t count = least(BLOCK, rows - begin);
#pragma omp for schedule(static) nowait
        for (int64_t n = 0; n < map->n; n += 2) {
            const uint16_t *w = values + n * k;
            const float *x = (const float *)ready + begin * stride;
            int outputs = n + 1 < map->n ? 2 : 1;
            float *z = y + begin * y_row + n;
            int64_t r = 0;
            if (outputs == 2) {
                for (; r + TALL <= count; r += TALL) tile(w, k, 2, TALL, x + r * stride, z + r * y_row, y_row);
                for (; TALL > 4 && r + 4 <= count; r += 4) tile(w, k, 2, 4, x + r * stride, z + r * y_row, y_row);
                for (; TALL > 2 && r + 2 <= count; r += 2) tile(w, k, 2, 2, x + r * stride, z + r * y_row, y_row);
            }
            for (; r < count; r++)
                for (int o = 0; o < outputs; o++) tile(w + o * k, k, 1, 1, x + r * stride, z + r * y_row + o, y_row);
        }
    }
}
