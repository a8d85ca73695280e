/* Products with bfloat16 weights, for CPUs with AVX-512: each is widened, which is exact, and all is summed in float32.

   Reading the weights is what takes the time at one row, and they are half of what float32 would be. The order of a sum
   is that of its inputs, two sums for even and odd ones, in any company. */

#include "maps.h"

enum { PAIR = 2 * LANES, BLOCK = 32 }; /* rows that are multiplied with all weights before the next ones */

/* Numbers with an even place first, then those with an odd one, of each 32: as 16-bit weights come apart. */
void spread_row(const float *x, int64_t k, uint8_t *ready) {
    float *y = (float *)ready;
    const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    for (int64_t i = 0; i < k; i += PAIR) {
        __m512 a = _mm512_maskz_loadu_ps(lanes(k - i), x + i);
        __mmask16 m = k - i > LANES ? lanes(k - i - LANES) : 0;
        __m512 b = _mm512_maskz_loadu_ps(m, x + i + LANES);
        _mm512_storeu_ps(y + i, _mm512_permutex2var_ps(a, even, b));
        _mm512_storeu_ps(y + i + LANES, _mm512_permutex2var_ps(a, odd, b));
    }
}

/* `outputs` outputs, one or two, of `rows` rows. */
static inline __attribute__((always_inline)) void tile(const uint16_t *w, int64_t k, int outputs, int rows,
                                                       const float *x, float *y, int64_t y_row) {
    int64_t stride = padded(k), whole = k / PAIR * PAIR;
    __m512 evens[2][6], odds[2][6];
    for (int o = 0; o < outputs; o++)
        for (int r = 0; r < rows; r++) evens[o][r] = odds[o][r] = _mm512_setzero_ps();
    for (int64_t i = 0; i < k; i += PAIR) {
        __m512 low[2], high[2];
        for (int o = 0; o < outputs; o++) {
            const uint16_t *at = w + o * k + i;
            __m512i v = i < whole ? _mm512_loadu_si512(at) : _mm512_maskz_loadu_epi16((1u << (k - whole)) - 1, at);
            if (rows > 1) _mm_prefetch((const char *)at + AHEAD, _MM_HINT_T1);
            low[o] = _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
            high[o] = _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32((int32_t)0xffff0000)));
        }
        for (int r = 0; r < rows; r++) {
            __m512 a = _mm512_loadu_ps(x + r * stride + i), b = _mm512_loadu_ps(x + r * stride + i + LANES);
            for (int o = 0; o < outputs; o++) {
                evens[o][r] = _mm512_fmadd_ps(low[o], a, evens[o][r]);
                odds[o][r] = _mm512_fmadd_ps(high[o], b, odds[o][r]);
            }
        }
    }
    for (int o = 0; o < outputs; o++)
        for (int r = 0; r < rows; r++) y[r * y_row + o] = _mm512_reduce_add_ps(_mm512_add_ps(evens[o][r], odds[o][r]));
}

void multiply_halves(const Map *map, int64_t rows, const uint8_t *ready, float *y, int64_t y_row) {
    const uint16_t *values = map->values;
    int64_t k = map->k, stride = padded(k);
    for (int64_t begin = 0; begin < rows; begin += BLOCK) {
        int64_t end = begin + BLOCK < rows ? begin + BLOCK : rows;
#pragma omp for schedule(static) nowait
        for (int64_t n = 0; n < map->n; n += 2) {
            const uint16_t *w = values + n * k;
            const float *x = (const float *)ready + begin * stride;
            int outputs = n + 1 < map->n ? 2 : 1;
            float *z = y + begin * y_row + n;
            int64_t r = 0, count = end - begin;
            if (outputs == 2) {
                for (; r + 6 <= count; r += 6) tile(w, k, 2, 6, x + r * stride, z + r * y_row, y_row);
                for (; r + 4 <= count; r += 4) tile(w, k, 2, 4, x + r * stride, z + r * y_row, y_row);
                for (; r + 2 <= count; r += 2) tile(w, k, 2, 2, x + r * stride, z + r * y_row, y_row);
            }
            for (; r < count; r++)
                for (int o = 0; o < outputs; o++) tile(w + o * k, k, 1, 1, x + r * stride, z + r * y_row + o, y_row);
        }
    }
}
