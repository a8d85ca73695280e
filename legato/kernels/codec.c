/* Convolutions and linear maps of the codec's decoder as products with weights packed once.

   Owns nothing: weights, histories and results are the caller's. Knows no stream. An output is one sum in one order, by
   the layer's sizes alone: whatever else is in the window or in the batch, and however many threads, it has the same
   bits. */

#include "codec.h"
#include "layout.h"

/* As many sums as registers hold: ROWS rows of two vectors of outputs. */
enum { ROWS = REGISTERS == 32 ? 12 : 6, BLOCK = 256, ROWS_AT_ONCE = 144 };

/* x + gain sin(t)^2, t = turn x: t less a multiple of pi in three parts, then an odd polynomial on [-pi/2, pi/2]. Of NaN it is NaN. */
INLINE Floats snake(Floats x, Floats turn, Floats gain) {
    Floats t = x * turn, n = nearest(t * 0.318309886f);
    Floats r = fused(n, splat(-3.14159274f), t);
    r = fused(n, splat(8.74227766e-8f), r);
    r = fused(n, splat(3.43024900e-15f), r);
    Floats q = r * r, p = splat(2.60006133e-6f);
    p = fused(p, q, splat(-1.98066182e-4f));
    p = fused(p, q, splat(8.33301733e-3f));
    p = fused(p, q, splat(-1.66666571e-1f));
    Floats s = fused(p * q, r, r);
    return fused(gain, smaller(splat(1.0f), s * s), x);
}

/* --- products ---------------------------------------------------------------------------------------------------- */

INLINE Floats add_product(Floats sum, Bits a, Bits w, int half) {
    if (!half) return fused((Floats)a, (Floats)w, sum);
#if LANES == 16 && defined(__AVX512BF16__)
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)w);
#else
    sum = fused((Floats)(a << 16), (Floats)(w << 16), sum);
    return fused((Floats)(a & 0xffff0000), (Floats)(w & 0xffff0000), sum);
#endif
}

/* `m` rows times one panel of 16 `cols` outputs. Partial sums of some 256 steps are added up: short sums round less. */
INLINE void tile(const char *w, const char *const *rows, int m, int cols, int half, int64_t taps, int64_t steps,
                 int64_t jump, float *sums) {
    Floats part[ROWS][2];
    int64_t run = 0;
    for (int r = 0; r < m; r++)
        for (int c = 0; c < cols; c++) {
            part[r][c] = (Floats){0};
            put(sums + r * PANEL + c * LANES, lanes(LANES), part[r][c]);
        }
    for (int64_t tap = 0; tap < taps; tap++)
        for (int64_t from = 0; from < steps; from += BLOCK) {
            int64_t end = least(from + BLOCK, steps);
#pragma GCC unroll 4
            for (int64_t s = from; s < end; s++) {
                Bits weights[2];
                for (int c = 0; c < cols; c++) weights[c] = AT(Bits, w + c * (int64_t)sizeof(Bits));
                for (int r = 0; r < m; r++) {
                    float value;
                    memcpy(&value, rows[r] + tap * jump + 4 * s, 4);
                    Bits a = (Bits)splat(value);
                    for (int c = 0; c < cols; c++) part[r][c] = add_product(part[r][c], a, weights[c], half);
                }
                for (int c = 0; c < cols; c++) __builtin_prefetch(w + c * (int64_t)sizeof(Floats) + AHEAD, 0, 3);
                w += cols * (int64_t)sizeof(Floats);
            }
            run += end - from;
            if (run < BLOCK && (tap + 1 < taps || end < steps)) continue;
            run = 0;
            for (int r = 0; r < m; r++)
                for (int c = 0; c < cols; c++) {
                    float *sum = sums + r * PANEL + c * LANES;
                    put(sum, lanes(LANES), get(sum, lanes(LANES)) + part[r][c]);
                    part[r][c] = (Floats){0};
                }
        }
}

#define CASE(M)                                                                                                         \
    case M:                                                                                                             \
        if (half)                                                                                                       \
            cols == 2 ? tile(w, rows, M, 2, 1, taps, steps, jump, sums) : tile(w, rows, M, 1, 1, taps, steps, jump, sums); \
        else                                                                                                            \
            cols == 2 ? tile(w, rows, M, 2, 0, taps, steps, jump, sums) : tile(w, rows, M, 1, 0, taps, steps, jump, sums); \
        break;

static void any_tile(const char *w, const char *const *rows, int64_t m, int64_t cols, int64_t half, int64_t taps,
                     int64_t steps, int64_t jump, float *sums) {
    switch (m) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if REGISTERS == 32
        CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#endif
    }
}

/* One row times one output, whose weights lie as the row does. */
static float single(const char *w, const char *row, int64_t half, int64_t taps, int64_t width, int64_t jump) {
    Floats sum = {0};
    for (int64_t tap = 0; tap < taps; tap++)
        for (int64_t c = 0; c < width; c += LANES) {
            Some some = lanes(width - c);
            sum = fused(load(row + tap * jump, c, some, half), load(w, tap * width + c, some, half), sum);
        }
    return sum_of(sum);
}

static void finish(const Kernel *k, const Call *call, int64_t row, int64_t m, int64_t at, const float *sums) {
    for (int64_t r = 0; r < m; r++)
        for (int64_t n = at; n < least(at + PANEL, k->n); n += LANES) {
            Some some = lanes(k->n - n);
            Floats y = get(sums + r * PANEL + n - at, lanes(LANES));
            if (k->bias) y += get(k->bias + n, some);
            int64_t place = (row + r) * k->n + n;
            if (call->turn) y = snake(y, get(call->turn + n, some), get(call->gain + n, some));
            if (call->scale) y *= get(call->scale + n, some);
            if (call->plus) y += load(call->plus, place, some, k->half);
            store(call->y, place, some, k->half, y);
        }
}

/* Rows `row` on of all rows, at most ROWS, times one panel: `sums` [m][PANEL]. */
static void by_lanes(const Kernel *k, const Call *call, const char *w, int64_t cols, const char *seen, int64_t pitch,
                     int64_t row, int64_t m, float *sums) {
    const char *rows[ROWS];
    int64_t b = row / call->positions, i = row % call->positions, jump = k->dilation * pitch;
    for (int64_t r = 0; r < m; r++, i++) {
        if (i == call->positions) i = 0, b++;
        rows[r] = seen + (b * (call->keep + call->positions) + i) * pitch;
    }
    if (k->n > 1) any_tile(w, rows, m, cols, k->half, k->taps, k->width * size_of(k->half) / 4, jump, sums);
    else
        for (int64_t r = 0; r < m; r++) sums[r * PANEL] = single(w, rows[r], k->half, k->taps, k->width, jump);
}

/* Called by all threads of a team. */
static void product(const Kernel *k, const Call *call, const char *seen, int64_t pitch) {
    int64_t panels = (k->n + PANEL - 1) / PANEL, panel_bytes = k->taps * k->width * size_of(k->half) * PANEL;
    int64_t rows = call->batch * call->positions, tall = k->tile_steps ? TALL : ROWS;
    int64_t blocks = (rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
    int64_t at_once = blocks ? ((rows + blocks - 1) / blocks + tall - 1) / tall * tall : 0;
    Shape shape = {0};
#pragma omp for schedule(static)
    for (int64_t item = 0; item < blocks * panels; item++) {
        int64_t panel = item % panels, from = item / panels * at_once, end = least(from + at_once, rows);
        int64_t cols = k->n - panel * PANEL > LANES ? 2 : 1;
        const char *w = (const char *)k->weight + panel * panel_bytes;
        float sums[TALL * PANEL];
        for (int64_t row = from, m; row < end; row += m) {
            m = least(tall, end - row);
            if (k->tile_steps) m = by_tiles(k, call, w, cols, seen, pitch, row, m, &shape, sums);
            else by_lanes(k, call, w, cols, seen, pitch, row, m, sums);
            finish(k, call, row, m, panel * PANEL, sums);
        }
    }
    let_tiles_go(&shape);
}

/* --- what stands before them ------------------------------------------------------------------------------------- */

/* erf by a rational function, to about 4e-7. */
INLINE Floats error_function(Floats x) {
    x = larger(splat(-4.0f), smaller(splat(4.0f), x));
    Floats q = x * x, p = splat(-2.72614225801306e-10f), d = splat(-1.45660718464996e-5f);
    p = fused(p, q, splat(2.77068142495902e-8f));
    p = fused(p, q, splat(-2.10102402082508e-6f));
    p = fused(p, q, splat(-5.69250639462346e-5f));
    p = fused(p, q, splat(-7.34990630326855e-4f));
    p = fused(p, q, splat(-2.95459980854025e-3f));
    p = fused(p, q, splat(-1.60960333262415e-2f));
    d = fused(d, q, splat(-2.13374055278905e-4f));
    d = fused(d, q, splat(-1.68282697438203e-3f));
    d = fused(d, q, splat(-7.37332916720468e-3f));
    d = fused(d, q, splat(-1.42647390514189e-2f));
    return x * p / d;
}

/* One position, `from` in numbers, into the joined input. */
INLINE void place(const Call *call, int kind, int64_t width, int half, int64_t from, void *to) {
    float by = 0.0f;
    if (kind == NORM) {
        Floats squares = {0};
        for (int64_t c = 0; c < width; c += LANES) {
            Floats x = load(call->x, from + c, lanes(width - c), half);
            squares = fused(x, x, squares);
        }
        by = 1.0f / sqrtf(sum_of(squares) / (float)width + call->eps);
    }
    for (int64_t c = 0; c < width; c += LANES) {
        Some some = lanes(width - c);
        Floats x = load(call->x, from + c, some, half);
        if (kind == SNAKE) x = snake(x, get(call->first + c, some), get(call->second + c, some));
        else if (kind == NORM) x = x * by * get(call->first + c, some);
        else if (kind == GELU) x = x * 0.5f * (error_function(x * 0.707106781f) + 1.0f);
        else if (kind == GATED) x = x / (exponential(-x) + 1.0f) * load(call->x, from + width + c, some, half);
        store(to, c, some, half, x);
    }
}

#define PLACE(KIND)                                                                                                     \
    case KIND:                                                                                                          \
        half ? place(call, KIND, width, 1, from, to) : place(call, KIND, width, 0, from, to);                           \
        break;

static void any_place(const Call *call, int64_t width, int64_t half, int64_t from, void *to) {
    switch (call->before) { PLACE(AS_IT_IS) PLACE(SNAKE) PLACE(NORM) PLACE(GELU) PLACE(GATED) }
}

/* History, then window, then the next history out of both. Called by all threads of a team. */
static void join(const Call *call, int64_t width, int64_t half) {
    int64_t bytes = width * size_of(half), together = call->keep + call->positions;
    int64_t stride = call->before == GATED ? 2 * width : width;
#pragma omp for schedule(static)
    for (int64_t row = 0; row < call->batch * together; row++) {
        int64_t b = row / together, i = row % together - call->keep;
        char *to = (char *)call->joined + row * call->pitch;
        if (i < 0) memcpy(to, (const char *)call->past + (b * call->keep + call->keep + i) * bytes, (size_t)bytes);
        else any_place(call, width, half, (b * call->positions + i) * stride, to);
    }
#pragma omp for schedule(static) nowait
    for (int64_t row = 0; row < call->batch * call->keep; row++) {
        int64_t b = row / call->keep, i = row % call->keep;
        int64_t start = call->lengths ? call->lengths[b] : call->positions;
        memcpy((char *)call->kept + row * bytes, (const char *)call->joined + (b * together + start + i) * call->pitch,
               (size_t)bytes);
    }
}

/* --- what is called ---------------------------------------------------------------------------------------------- */

void legato_convolve(const Kernel *k, const Call *call) {
#pragma omp parallel num_threads((int)call->threads)
    {
        if (call->joined) join(call, k->width, k->half);
        product(k, call, call->joined ? call->joined : call->x, call->joined ? call->pitch : k->width * size_of(k->half));
    }
}

/* Each channel by itself, then LayerNorm over the channels. `weight` [taps][width], `norm` and `shift` [width], `room`
   [threads][width]. */
void legato_depthwise(const Call *call, const float *weight, const float *bias, const float *norm, const float *shift,
                      float *room, int64_t taps, int64_t width, int64_t half) {
#pragma omp parallel num_threads((int)call->threads)
    {
        join(call, width, half);
        float *own = room + omp_get_thread_num() * width;
#pragma omp for schedule(static)
        for (int64_t row = 0; row < call->batch * call->positions; row++) {
            int64_t b = row / call->positions, i = row % call->positions;
            const char *seen = (const char *)call->joined + (b * (call->keep + call->positions) + i) * call->pitch;
            Floats sum = {0}, squares = {0};
            for (int64_t c = 0; c < width; c += LANES) {
                Some some = lanes(width - c);
                Floats y = get(bias + c, some);
                for (int64_t tap = 0; tap < taps; tap++)
                    y = fused(load(seen + tap * call->pitch, c, some, half), get(weight + tap * width + c, some), y);
                put(own + c, some, y);
                sum += y;
            }
            float mean = sum_of(sum) / (float)width;
            for (int64_t c = 0; c < width; c += LANES) {
                Some some = lanes(width - c);
                Floats off = only(some, get(own + c, some) - mean);
                squares = fused(off, off, squares);
            }
            float by = 1.0f / sqrtf(sum_of(squares) / (float)width + call->eps);
            for (int64_t c = 0; c < width; c += LANES) {
                Some some = lanes(width - c);
                Floats off = (get(own + c, some) - mean) * by;
                store(call->y, row * width + c, some, half, fused(off, get(norm + c, some), get(shift + c, some)));
            }
        }
    }
}

/* Outputs of a panel, as packed weights must lie. */
int64_t legato_panel(void) { return PANEL; }

/* Whether this process may use matrix tiles. */
int64_t legato_tiles(void) { return ask_for_tiles(); }

/* See layout.h. */
const FieldLayout *legato_codec_layout(void) {
    static const FieldLayout table[] = {
        LAYOUT_OF(Kernel), FIELD_OF(Kernel, weight), FIELD_OF(Kernel, bias), FIELD_OF(Kernel, taps),
            FIELD_OF(Kernel, width), FIELD_OF(Kernel, dilation), FIELD_OF(Kernel, n), FIELD_OF(Kernel, half),
            FIELD_OF(Kernel, tile_steps),
        LAYOUT_OF(Call), FIELD_OF(Call, x), FIELD_OF(Call, past), FIELD_OF(Call, joined), FIELD_OF(Call, kept),
            FIELD_OF(Call, lengths), FIELD_OF(Call, first), FIELD_OF(Call, second), FIELD_OF(Call, turn),
            FIELD_OF(Call, gain), FIELD_OF(Call, scale), FIELD_OF(Call, plus), FIELD_OF(Call, y),
            FIELD_OF(Call, batch), FIELD_OF(Call, positions), FIELD_OF(Call, keep), FIELD_OF(Call, pitch),
            FIELD_OF(Call, before), FIELD_OF(Call, threads), FIELD_OF(Call, eps),
        END_OF_LAYOUT,
    };
    return table;
}
