/* Convolutions and linear maps of the codec's decoder as products with weights packed once.

   Holds no state: weights, histories and results are the caller's. An output is one sum in one order, by
   the layer's sizes alone: whatever else is in the window or in the batch, and however many threads, it has the same
   bits. */

#include "codec.h"
#include "layout.h"

/* As many sums as registers hold: ROWS rows of two vectors of outputs. */
enum { ROWS = REGISTERS == 32 ? 12 : 6, BLOCK = 256, ROWS_AT_ONCE = 144 };

/* Multiply-adds, or numbers that are read and written, of a range that is worth a claim. */
enum { RANGE_MACS = 131072, RANGE_NUMBERS = 8192 };

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

typedef struct {
    const Kernel *k;
    const Call *call;
    const char *seen;
    int64_t pitch, panels, rows_at_once;
} Product;

/* A unit is one block of rows times one panel. */
static void product_phase(const void *arg, Claim *claim) {
    const Product *p = arg;
    const Kernel *k = p->k;
    const Call *call = p->call;
    int64_t rows = call->batch * call->positions, tall = k->tile_steps ? TALL : ROWS;
    int64_t panel_bytes = k->taps * k->width * size_of(k->half) * PANEL, tiles = k->tile_steps, outputs = k->n;
    Shape shape = {0};
    do
        for (int64_t unit = claim->from; unit < claim->end; unit++) {
            int64_t panel = unit % p->panels, from = unit / p->panels * p->rows_at_once;
            int64_t end = least(from + p->rows_at_once, rows), cols = outputs - panel * PANEL > LANES ? 2 : 1;
            const char *w = (const char *)k->weight + panel * panel_bytes;
            float sums[TALL * PANEL];
            for (int64_t row = from, m; row < end; row += m) {
                m = least(tall, end - row);
                if (tiles) m = by_tiles(k, call, w, cols, p->seen, p->pitch, row, m, &shape, sums);
                else by_lanes(k, call, w, cols, p->seen, p->pitch, row, m, sums);
                finish(k, call, row, m, panel * PANEL, sums);
            }
        }
    while (next_claim(claim));
    release_tiles(&shape);
}

static void product(Team *team, const Kernel *k, const Call *call, const char *seen, int64_t pitch) {
    int64_t rows = call->batch * call->positions, tall = k->tile_steps ? TALL : ROWS;
    int64_t blocks = (rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
    int64_t at_once = blocks ? ((rows + blocks - 1) / blocks + tall - 1) / tall * tall : 0;
    Product p = {k, call, seen, pitch, (k->n + PANEL - 1) / PANEL, at_once};
    pool_run(team, product_phase, &p, blocks * p.panels, grain_of(RANGE_MACS, at_once * PANEL * k->taps * k->width));
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

typedef struct {
    const Call *call;
    int64_t width, half;
} Join;

/* A unit is one position of the history or of the window. */
static void join_phase(const void *arg, Claim *claim) {
    const Join *j = arg;
    const Call *call = j->call;
    int64_t width = j->width, bytes = width * size_of(j->half), together = call->keep + call->positions;
    int64_t stride = call->before == GATED ? 2 * width : width;
    do
        for (int64_t row = claim->from; row < claim->end; row++) {
            int64_t b = row / together, i = row % together - call->keep;
            char *to = (char *)call->joined + row * call->pitch;
            if (i < 0) memcpy(to, (const char *)call->past + (b * call->keep + call->keep + i) * bytes, (size_t)bytes);
            else any_place(call, width, j->half, (b * call->positions + i) * stride, to);
        }
    while (next_claim(claim));
}

/* A unit is one position of the next history. */
static void keep_phase(const void *arg, Claim *claim) {
    const Join *j = arg;
    const Call *call = j->call;
    int64_t bytes = j->width * size_of(j->half), together = call->keep + call->positions;
    do
        for (int64_t row = claim->from; row < claim->end; row++) {
            int64_t b = row / call->keep, i = row % call->keep;
            int64_t start = call->lengths ? call->lengths[b] : call->positions;
            const char *from = (const char *)call->joined + (b * together + start + i) * call->pitch;
            memcpy((char *)call->kept + row * bytes, from, (size_t)bytes);
        }
    while (next_claim(claim));
}

/* History, then window, then the next history out of both. */
static void join(Team *team, const Call *call, int64_t width, int64_t half) {
    Join j = {call, width, half};
    pool_run(team, join_phase, &j, call->batch * (call->keep + call->positions), grain_of(RANGE_NUMBERS, width));
    pool_run(team, keep_phase, &j, call->batch * call->keep, grain_of(8 * RANGE_NUMBERS, width));
}

/* --- what is called ---------------------------------------------------------------------------------------------- */

void legato_convolve(const Kernel *k, const Call *call) {
    Team team = pool_enter(call->threads);
    if (call->joined) join(&team, call, k->width, k->half);
    product(&team, k, call, call->joined ? call->joined : call->x, call->joined ? call->pitch : k->width * size_of(k->half));
    pool_leave(&team);
}

typedef struct {
    const Call *call;
    const float *weight, *bias, *norm, *shift;
    float *room;
    int64_t taps, width, half;
} Depthwise;

/* A unit is one position. */
static void depthwise_phase(const void *arg, Claim *claim) {
    const Depthwise *d = arg;
    const Call *call = d->call;
    int64_t width = d->width, half = d->half;
    float *own = d->room + claim->thread * width;
    do
        for (int64_t row = claim->from; row < claim->end; row++) {
            int64_t b = row / call->positions, i = row % call->positions;
            const char *seen = (const char *)call->joined + (b * (call->keep + call->positions) + i) * call->pitch;
            Floats sum = {0}, squares = {0};
            for (int64_t c = 0; c < width; c += LANES) {
                Some some = lanes(width - c);
                Floats y = get(d->bias + c, some);
                for (int64_t tap = 0; tap < d->taps; tap++)
                    y = fused(load(seen + tap * call->pitch, c, some, half), get(d->weight + tap * width + c, some), y);
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
                store(call->y, row * width + c, some, half, fused(off, get(d->norm + c, some), get(d->shift + c, some)));
            }
        }
    while (next_claim(claim));
}

/* Each channel by itself, then LayerNorm over the channels. `weight` [taps][width], `norm` and `shift` [width], `room`
   [threads][width]. */
void legato_depthwise(const Call *call, const float *weight, const float *bias, const float *norm, const float *shift,
                      float *room, int64_t taps, int64_t width, int64_t half) {
    Depthwise d = {call, weight, bias, norm, shift, room, taps, width, half};
    Team team = pool_enter(call->threads);
    join(&team, call, width, half);
    pool_run(&team, depthwise_phase, &d, call->batch * call->positions, grain_of(RANGE_NUMBERS, width * taps / 2));
    pool_leave(&team);
}

/* Outputs of a panel, as packed weights must lie. */
int64_t legato_panel(void) { return PANEL; }

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
