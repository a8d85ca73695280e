/* All steps of a frame in one call: layers, final norm, logits, draw, and the drawn code's embedding as the next input.

   Holds no state: weights, cache, scratch and results are the caller's. structs.py mirrors the structs. */

#include <stdlib.h>

#include "layers.h"
#include "layout.h"

typedef struct {
    const Stack *stack;
    const Linear *const *heads;                 /* for each book that is drawn */
    const float *const *embeddings;          /* [codes, given], of each book but the last */
    const Linear *projection;                   /* from `given` to `width`; none where they are equal */
    const float *projection_bias, *norm;     /* [width] each */
    const float *cos, *sin;                  /* [books + 1, head_dim] */
    int64_t books, codes, width, given, head_dim;
    float eps;
} Predictor;

typedef struct {
    const Cache *cache;
    const Room *room;
    int64_t *slots, *positions; /* [2 rows], which `cache` points to */
    float *x, *cos, *sin;       /* [2 rows, width], of which the first inputs are there; [2 rows, head_dim] */
    float *normed, *logits;     /* [rows, width]; [rows, codes] */
    float *embedded, *scales;   /* [rows, given]; [rows] */
    uint8_t *ready;             /* [rows, the longest prepared row] */
} Work;

typedef struct {
    const float *temperature;
    const int64_t *top_k;
    const float *top_p;
} Settings;

/* What is done to the logits of codebook 0 before they are drawn from, as sampling.py describes it. */
typedef struct {
    const uint8_t *seen;     /* [rows, V] */
    const uint8_t *may_end;  /* [rows] */
    const float *penalty;    /* [rows] */
    int64_t codes, eos;
} First;

/* --- the draw, as sampling.py describes it ------------------------------------------------------------------------ */

/* Whole numbers in the order of the floats; 0 and -0 are equal. */
static inline uint32_t key_of(float x) {
    uint32_t bits;
    x += 0.0f;
    memcpy(&bits, &x, 4);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* The `k`-th largest key. */
static uint32_t kth_largest(const uint32_t *keys, int64_t V, int64_t k) {
    uint32_t found = 0;
    for (uint32_t bit = 0x80000000u; bit; bit >>= 1) {
        uint32_t next = found | bit;
        int32_t count = 0;
        for (int64_t i = 0; i < V; i++) count += keys[i] >= next;
        if (count >= k) found = next;
    }
    return found;
}

static int falling(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Of candidates in falling order. Sums are made one after another, as torch makes them. */
static int64_t drawn_rank(double *weights, int64_t count, float top_p, double uniform) {
    double total = 0.0, running = 0.0, likely = 0.0;
    int64_t positive = 0, rank = 0;
    for (int64_t i = 0; i < count; i++) total += weights[i];
    for (int64_t i = 0; i < count; i++) {
        running += weights[i];
        double before = running - weights[i];
        if (!(before < (double)top_p * total || before == 0.0 || top_p >= 1.0f)) weights[i] = 0.0;
        likely += weights[i];
        positive += weights[i] > 0.0;
    }
    double target = uniform * likely;
    likely = 0.0;
    for (int64_t i = 0; i < count; i++) {
        likely += weights[i];
        rank += likely <= target;
    }
    return rank < positive ? rank : positive - 1;
}

/* Whether the row is finite. `keys`, `ranks` and `weights` have room for V numbers. */
static int draw_row(const float *logits, int64_t V, float temperature, int64_t top_k, float top_p, double uniform,
                    uint32_t *keys, uint64_t *ranks, double *weights, int64_t *code) {
    float top = -INFINITY;
    int64_t bad = 0, count = 0;
    *code = 0;
    for (int64_t i = 0; i < V; i++) {
        bad += !(logits[i] < INFINITY);
        top = logits[i] > top ? logits[i] : top;
        keys[i] = key_of(logits[i]);
    }
    if (bad || top == -INFINITY) return 0;
    if (temperature == 0.0f || top_k == 1) {
        while (logits[*code] != top) ++*code;
        return 1;
    }
    uint32_t least = top_k && top_k < V ? kth_largest(keys, V, top_k) : 0;
    for (int64_t i = 0; i < V; i++)
        if (keys[i] >= least && logits[i] > -INFINITY) ranks[count++] = (uint64_t)keys[i] << 32 | (0xffffffffu - i);
    qsort(ranks, (size_t)count, sizeof *ranks, falling);
    for (int64_t i = 0; i < count; i++) {
        float x = logits[0xffffffffu - (uint32_t)ranks[i]];
        weights[i] = exp((double)(x - top) / (double)temperature);
    }
    *code = 0xffffffffu - (uint32_t)ranks[drawn_rank(weights, count, top_p, uniform)];
    return 1;
}

/* The logits of one row of codebook 0 after the penalty, -inf where nothing may be drawn. */
static const float *processed(const First *first, int64_t row, int64_t V, const float *logits, float *to) {
    const uint8_t *seen = first->seen + row * V;
    float penalty = first->penalty[row];
    for (int64_t i = 0; i < V; i++) {
        float x = logits[i], other = x > 0.0f ? x / penalty : x * penalty;
        int legal = i == first->eos ? first->may_end[row] : i < first->codes;
        to[i] = !legal ? -INFINITY : seen[i] ? other : x;
    }
    return to;
}

typedef struct {
    const float *logits;
    const First *first;
    const Settings *settings;
    const double *uniform;
    int64_t *codes;
    uint8_t *finite;
    int64_t V, uniform_row, codes_row;
    size_t each; /* bytes of scratch of a row */
    char *space;
} Draw;

static void draw_phase(const void *arg, Claim *claim) {
    const Draw *d = arg;
    const Settings *settings = d->settings;
    do
        for (int64_t r = claim->from; r < claim->end; r++) {
            double *weights = (double *)(d->space + (size_t)r * d->each);
            uint64_t *ranks = (uint64_t *)(weights + d->V);
            uint32_t *keys = (uint32_t *)(ranks + d->V);
            const float *row = d->logits + r * d->V;
            if (d->first) row = processed(d->first, r, d->V, row, (float *)(keys + d->V));
            d->finite[r] &= (uint8_t)draw_row(row, d->V, settings->temperature[r], settings->top_k[r],
                                              settings->top_p[r], d->uniform[r * d->uniform_row], keys, ranks, weights,
                                              d->codes + r * d->codes_row);
        }
    while (next_claim(claim));
}

/* One code a row, of codebook 0 where there is a `first`, into `codes`, whose rows are `codes_row` apart, as those of
   `uniform` are `uniform_row`; where a row is not finite `finite` becomes 0. Not 0 if there is no memory. */
static int draw(Team *team, Draw d, int64_t rows) {
    d.each = (size_t)d.V * (sizeof(float) + sizeof(uint32_t) + sizeof(uint64_t) + sizeof(double));
    d.space = malloc((size_t)rows * d.each);
    if (!d.space) return 1;
    pool_run(team, draw_phase, &d, rows, 1);
    free(d.space);
    return 0;
}

int legato_draw(int64_t rows, int64_t V, int64_t threads, const float *logits, const First *first,
                const Settings *settings, const double *uniform, int64_t uniform_row, int64_t *codes, int64_t codes_row,
                uint8_t *finite) {
    Draw d = {logits, first, settings, uniform, codes, finite, V, uniform_row, codes_row, 0, 0};
    Team team = pool_enter(threads);
    int failed = draw(&team, d, rows);
    pool_leave(&team);
    return failed;
}

/* --- the frame --------------------------------------------------------------------------------------------------- */

/* Positions `from` to `end` of every row through the layers, row by row in `x`. */
static void step(Team *team, const Predictor *p, const Work *work, int64_t rows, int64_t from, int64_t end) {
    int64_t fresh = end - from, d = p->head_dim;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t at = 0; at < fresh; at++) {
            int64_t i = r * fresh + at;
            work->slots[i] = r;
            work->positions[i] = from + at;
            memcpy(work->cos + i * d, p->cos + (from + at) * d, (size_t)d * sizeof(float));
            memcpy(work->sin + i * d, p->sin + (from + at) * d, (size_t)d * sizeof(float));
        }
    run_layers(team, p->stack, work->cache, work->room, rows * fresh, work->x, work->cos, work->sin);
    for (int64_t r = 0; r < rows; r++)
        norm(work->x + ((r + 1) * fresh - 1) * p->width, p->norm, p->width, p->eps, work->normed + r * p->width);
}

/* The drawn codes of book `j` as the next inputs. */
static void embed(Team *team, const Predictor *p, const Work *work, int64_t rows, int64_t j, const int64_t *codes,
                  int64_t codes_row) {
    float *to = p->projection ? work->embedded : work->x;
    for (int64_t r = 0; r < rows; r++)
        memcpy(to + r * p->given, p->embeddings[j] + codes[r * codes_row] * p->given, (size_t)p->given * sizeof(float));
    if (!p->projection) return;
    run_linear(team, p->projection, rows, to, work->x, work->ready, work->scales);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < p->width; i++) work->x[r * p->width + i] += p->projection_bias[i];
}

/* `codes` [rows, books + 1], the first of each is there; `noise` alike; `finite` [rows], true before. Not 0 if there is
   no memory. */
int legato_frame(const Predictor *p, const Work *work, const Settings *settings, int64_t rows, int64_t threads,
                 const double *noise, int64_t *codes, uint8_t *finite) {
    int64_t Q = p->books + 1;
    int failed = 0;
    Team team = pool_enter(threads);
    for (int64_t j = 0; j < p->books && !failed; j++) {
        if (j > 0) embed(&team, p, work, rows, j - 1, codes + j, Q);
        step(&team, p, work, rows, j > 0 ? j + 1 : 0, j + 2);
        run_linear(&team, p->heads[j], rows, work->normed, work->logits, work->ready, work->scales);
        Draw d = {work->logits, 0, settings, noise + j + 1, codes + j + 1, finite, p->codes, Q, Q, 0, 0};
        failed = draw(&team, d, rows);
    }
    pool_leave(&team);
    return failed;
}

/* --- the layout of the structs, see layout.h ------------------------------------------------------------------------- */

const FieldLayout *legato_lm_layout(void) {
    static const FieldLayout table[] = {
        LAYOUT_OF(Linear), FIELD_OF(Linear, weight), FIELD_OF(Linear, scale), FIELD_OF(Linear, row_sum),
            FIELD_OF(Linear, out_features), FIELD_OF(Linear, in_features), FIELD_OF(Linear, dtype), FIELD_OF(Linear, use_amx),
        LAYOUT_OF(Layer), FIELD_OF(Layer, qkv), FIELD_OF(Layer, out), FIELD_OF(Layer, gate_up), FIELD_OF(Layer, down),
            FIELD_OF(Layer, input_norm), FIELD_OF(Layer, post_norm), FIELD_OF(Layer, q_norm), FIELD_OF(Layer, k_norm),
        LAYOUT_OF(Stack), FIELD_OF(Stack, layers), FIELD_OF(Stack, count), FIELD_OF(Stack, width),
            FIELD_OF(Stack, inner), FIELD_OF(Stack, heads), FIELD_OF(Stack, kv_heads), FIELD_OF(Stack, head_dim),
            FIELD_OF(Stack, eps),
        LAYOUT_OF(Cache), FIELD_OF(Cache, keys), FIELD_OF(Cache, values), FIELD_OF(Cache, layer),
            FIELD_OF(Cache, slot), FIELD_OF(Cache, head), FIELD_OF(Cache, position), FIELD_OF(Cache, slots),
            FIELD_OF(Cache, positions), FIELD_OF(Cache, half),
        LAYOUT_OF(Room), FIELD_OF(Room, wide), FIELD_OF(Room, mixed), FIELD_OF(Room, narrow),
            FIELD_OF(Room, normed), FIELD_OF(Room, scales), FIELD_OF(Room, scores), FIELD_OF(Room, ready),
            FIELD_OF(Room, score_row),
        LAYOUT_OF(Predictor), FIELD_OF(Predictor, stack), FIELD_OF(Predictor, heads), FIELD_OF(Predictor, embeddings),
            FIELD_OF(Predictor, projection), FIELD_OF(Predictor, projection_bias), FIELD_OF(Predictor, norm),
            FIELD_OF(Predictor, cos), FIELD_OF(Predictor, sin), FIELD_OF(Predictor, books),
            FIELD_OF(Predictor, codes), FIELD_OF(Predictor, width), FIELD_OF(Predictor, given),
            FIELD_OF(Predictor, head_dim), FIELD_OF(Predictor, eps),
        LAYOUT_OF(Work), FIELD_OF(Work, cache), FIELD_OF(Work, room), FIELD_OF(Work, slots), FIELD_OF(Work, positions), FIELD_OF(Work, x), FIELD_OF(Work, cos),
            FIELD_OF(Work, sin), FIELD_OF(Work, normed), FIELD_OF(Work, logits), FIELD_OF(Work, embedded),
            FIELD_OF(Work, scales), FIELD_OF(Work, ready),
        LAYOUT_OF(Settings), FIELD_OF(Settings, temperature), FIELD_OF(Settings, top_k), FIELD_OF(Settings, top_p),
        LAYOUT_OF(First), FIELD_OF(First, seen), FIELD_OF(First, may_end), FIELD_OF(First, penalty),
            FIELD_OF(First, codes), FIELD_OF(First, eos),
        END_OF_LAYOUT,
    };
    return table;
}
