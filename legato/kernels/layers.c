/* A stack of decoder layers with weights of few bits, every layer of a step in one call.

   Holds no state: weights, cache, scratch and results are the caller's. A row is one position of one
   slot, and sees the positions of its slot up to its own, all rows of the call included. A row has the same bits in any
   batch. */

#include "layers.h"
#include "tiles.h"

static void turn(float *x, const float *cos, const float *sin, int64_t d) {
    for (int64_t i = 0; i < d / 2; i++) {
        float a = x[i], b = x[i + d / 2];
        x[i] = a * cos[i] - b * sin[i];
        x[i + d / 2] = b * cos[i + d / 2] + a * sin[i + d / 2];
    }
}

static void keep(const Cache *cache, void *pool, int64_t at, const float *x, int64_t d) {
    for (int64_t i = 0; i < d; i += LANES) store(pool, at + i, lanes(d - i), cache->half, get(x + i, lanes(d - i)));
}

enum { NEXT = 16 }; /* keys and values are prefetched this many positions ahead */

INLINE void fetch_numbers(const void *pool, int64_t at, int64_t d, int half) {
    for (int64_t i = 0; i < d; i += LINE / size_of(half))
        __builtin_prefetch((const char *)pool + (at + i) * size_of(half), 0, 3);
}

/* What one query has for LANES positions or fewer, before the softmax. */
INLINE Floats score(const Cache *cache, int64_t start, int64_t positions, int64_t d, int half, const float *q) {
    Floats sums[LANES];
    for (int64_t p = 0; p < LANES; p++) {
        sums[p] = (Floats){0};
        if (p >= positions) continue;
        fetch_numbers(cache->keys, start + (p + NEXT) * cache->position, d, half);
        for (int64_t i = 0; i < d; i += LANES) {
            Some m = lanes(d - i);
            sums[p] = fused(get(q + i, m), load(cache->keys, start + p * cache->position + i, m, half), sums[p]);
        }
    }
    return add_across_floats(sums) * (1.0f / sqrtf((float)d));
}

/* Numbers `from` on, `parts` times LANES of them or fewer, of what `queries` queries mix of the values. */
INLINE void mix(const Cache *cache, int64_t start, int64_t positions, int queries, int parts, int64_t from, int64_t d,
                int half, const float *weights, const float *by, float *y) {
    Floats sums[2][4];
    for (int g = 0; g < queries; g++)
        for (int c = 0; c < parts; c++) sums[g][c] = (Floats){0};
    for (int64_t p = 0; p < positions; p++) {
        if (from == 0) fetch_numbers(cache->values, start + (p + NEXT) * cache->position, d, half);
        for (int c = 0; c < parts; c++) {
            int64_t i = from + c * LANES;
            Some m = lanes(parts == 1 ? d - i : LANES);
            Floats value = load(cache->values, start + p * cache->position + i, m, half);
            for (int g = 0; g < queries; g++) sums[g][c] = fused(splat(weights[g * positions + p]), value, sums[g][c]);
        }
    }
    for (int g = 0; g < queries; g++)
        for (int c = 0; c < parts; c++) {
            int64_t i = from + c * LANES;
            put(y + g * d + i, lanes(parts == 1 ? d - i : LANES), sums[g][c] * by[g]);
        }
}

INLINE void mix_all(const Cache *cache, int64_t start, int64_t positions, int queries, int64_t d, int half,
                    const float *weights, const float *by, float *y) {
    int64_t i = 0;
    for (; i + 4 * LANES <= d; i += 4 * LANES)
        mix(cache, start, positions, queries, 4, i, d, half, weights, by, y);
    for (; i < d; i += LANES) mix(cache, start, positions, queries, 1, i, d, half, weights, by, y);
}

/* One row's queries of one key head: `q` and `y` [group, d]. `scores` has room for a number a position and query. */
INLINE void attend(const Cache *cache, int64_t start, int64_t positions, int64_t group, int64_t d, int half,
                   const float *q, float *y, float *scores) {
    float by[64];
    for (int64_t g = 0; g < group; g++) {
        float *row = scores + g * positions;
        Floats top = splat(-INFINITY), sum = {0};
        for (int64_t p = 0; p < positions; p += LANES) {
            Some m = lanes(positions - p);
            Floats part = score(cache, start + p * cache->position, positions - p, d, half, q + g * d);
            top = larger(top, blend(m, part, splat(-INFINITY)));
            put(row + p, m, part);
        }
        float most = largest_of(top);
        for (int64_t p = 0; p < positions; p += LANES) {
            Some m = lanes(positions - p);
            Floats part = exponential(get(row + p, m) - most);
            sum += only(m, part);
            put(row + p, m, part);
        }
        by[g] = 1.0f / sum_of(sum);
    }
    int64_t g = 0;
    for (; g + 2 <= group; g += 2)
        mix_all(cache, start, positions, 2, d, half, scores + g * positions, by + g, y + g * d);
    for (; g < group; g++) mix_all(cache, start, positions, 1, d, half, scores + g * positions, by + g, y + g * d);
}

static void attend_to_floats(const Cache *cache, int64_t start, int64_t positions, int64_t group, int64_t d,
                             const float *q, float *y, float *scores) {
    attend(cache, start, positions, group, d, 0, q, y, scores);
}

static void attend_to_halves(const Cache *cache, int64_t start, int64_t positions, int64_t group, int64_t d,
                             const float *q, float *y, float *scores) {
    attend(cache, start, positions, group, d, 1, q, y, scores);
}

/* Norm, rotation and keeping of what one row has for key head `h`: its key and value, and its queries in `qkv`. */
static void place(const Stack *s, const Layer *layer, const Cache *cache, int64_t at, int64_t row, int64_t h,
                  float *qkv, const float *cos, const float *sin) {
    int64_t d = s->head_dim, group = s->heads / s->kv_heads;
    int64_t cell = at * cache->layer + cache->slots[row] * cache->slot + h * cache->head +
                   cache->positions[row] * cache->position;
    float *queries = qkv + h * group * d, *key = qkv + (s->heads + h) * d, *value = key + s->kv_heads * d;
    for (int64_t g = 0; g < group; g++) {
        norm(queries + g * d, layer->q_norm, d, s->eps, queries + g * d);
        turn(queries + g * d, cos + row * d, sin + row * d, d);
    }
    norm(key, layer->k_norm, d, s->eps, key);
    turn(key, cos + row * d, sin + row * d, d);
    keep(cache, cache->keys, cell, key, d);
    keep(cache, cache->values, cell, value, d);
}

/* --- phases ---------------------------------------------------------------------------------------------------------- */

/* Multiply-adds (or a few cheaper operations) of a range that is worth a claim: some microseconds. */
enum { RANGE_MACS = 65536, RANGE_OPERATIONS = 8192 };

/* Maps with one input; their outputs are side by side in `y` [rows, outputs]. */
typedef struct {
    const Linear *linears;
    int64_t count, rows, outputs;
    const uint8_t *ready;
    const float *scales;
    float *y;
} Product;

static void product_phase(const void *arg, Claim *claim) {
    const Product *p = arg;
    do {
        int64_t unit = 0, column = 0; /* the first of the linear */
        for (int64_t i = 0; i < p->count; i++) {
            const Linear *linear = p->linears + i;
            int64_t step = output_step(linear, p->rows), units = (linear->out_features + step - 1) / step;
            int64_t from = claim->from > unit ? claim->from - unit : 0, end = least(claim->end - unit, units);
            if (from < end)
                multiply(linear, p->rows, p->ready, p->scales, p->y + column, p->outputs, from * step,
                         least(end * step, linear->out_features));
            unit += units;
            column += linear->out_features;
        }
    } while (next_claim(claim));
}

static void product(Team *team, const Linear *linears, int64_t count, int64_t rows, const uint8_t *ready,
                    const float *scales, float *y) {
    Product p = {linears, count, rows, 0, ready, scales, y};
    int64_t units = 0, step = output_step(linears, rows);
    for (int64_t i = 0; i < count; i++) {
        p.outputs += linears[i].out_features;
        units += (linears[i].out_features + step - 1) / step;
    }
    /* One row takes the time that its weights need from memory; eight rows take about as long. */
    pool_run(team, product_phase, &p, units, grain_of(RANGE_MACS, step * linears->in_features * ((rows + 7) / 8)));
}

/* A call of the stack, and the layer that is computed now. */
typedef struct {
    const Stack *s;
    const Cache *cache;
    const Room *room;
    const float *cos, *sin;
    float *x;
    int64_t rows, at;
    const Layer *layer;
    const float *more, *weight; /* of `norm_phase` */
    const Linear *next;            /* the linear that reads the result */
} Step;

/* Adds `more` to the residual `x`, and prepares its norm for the next linear. */
static void norm_phase(const void *arg, Claim *claim) {
    const Step *step = arg;
    int64_t width = step->s->width;
    do
        for (int64_t r = claim->from; r < claim->end; r++) {
            float *x = step->x + r * width, *normed = step->room->normed + r * width;
            for (int64_t i = 0; step->more && i < width; i++) x[i] += step->more[r * width + i];
            if (!step->next) continue;
            norm(x, step->weight, width, step->s->eps, normed);
            prepare_row(step->next, normed, r, step->rows, step->room->ready, step->room->scales);
        }
    while (next_claim(claim));
}

static void add_and_norm(Team *team, Step *step, const float *more, const float *weight, const Linear *next) {
    step->more = more, step->weight = weight, step->next = next;
    pool_run(team, norm_phase, step, step->rows, grain_of(RANGE_OPERATIONS, step->s->width));
}

static void attention_phase(const void *arg, Claim *claim) {
    const Step *step = arg;
    const Stack *s = step->s;
    const Cache *cache = step->cache;
    const Room *room = step->room;
    int64_t d = s->head_dim, group = s->heads / s->kv_heads, joint = (s->heads + 2 * s->kv_heads) * d;
    float *scores = room->scores + claim->thread * room->score_row;
    do
        for (int64_t h = claim->from; h < claim->end; h++) {
            for (int64_t r = 0; r < step->rows; r++)
                place(s, step->layer, cache, step->at, r, h, room->wide + r * joint, step->cos, step->sin);
            for (int64_t r = 0; r < step->rows; r++) {
                int64_t start = step->at * cache->layer + cache->slots[r] * cache->slot + h * cache->head;
                (cache->half ? attend_to_halves : attend_to_floats)(
                    cache, start, cache->positions[r] + 1, group, d, room->wide + r * joint + h * group * d,
                    room->mixed + (r * s->heads + h * group) * d, scores);
            }
        }
    while (next_claim(claim));
}

static void attention(Team *team, const Step *step) {
    const Stack *s = step->s;
    int64_t group = s->heads / s->kv_heads, seen = 8 * step->rows;
    for (int64_t r = 0; r < step->rows; r++) seen += step->cache->positions[r] + 1;
    pool_run(team, attention_phase, step, s->kv_heads, grain_of(RANGE_OPERATIONS, seen * group * s->head_dim / 4));
}

/* Prepares what attention gave for the output linear. */
static void mixed_phase(const void *arg, Claim *claim) {
    const Step *step = arg;
    const Linear *linear = &step->layer->out;
    do
        for (int64_t r = claim->from; r < claim->end; r++)
            prepare_row(linear, step->room->mixed + r * linear->in_features, r, step->rows, step->room->ready,
                        step->room->scales);
    while (next_claim(claim));
}

/* SwiGLU of gate and up, prepared for the down linear. */
static void gate_phase(const void *arg, Claim *claim) {
    const Step *step = arg;
    const Room *room = step->room;
    int64_t width = step->s->inner;
    float *inner = room->scores + claim->thread * room->score_row;
    do
        for (int64_t r = claim->from; r < claim->end; r++) {
            const float *gate = room->wide + r * 2 * width, *up = gate + width;
            for (int64_t i = 0; i < width; i += LANES) {
                Some m = lanes(width - i);
                Floats x = get(gate + i, m);
                put(inner + i, m, x / (exponential(-x) + 1.0f) * get(up + i, m));
            }
            prepare_row(&step->layer->down, inner, r, step->rows, room->ready, room->scales);
        }
    while (next_claim(claim));
}

/* --- what is called ---------------------------------------------------------------------------------------------- */

void run_layers(Team *team, const Stack *s, const Cache *cache, const Room *room, int64_t rows, float *x,
                const float *cos, const float *sin) {
    Step step = {.s = s, .cache = cache, .room = room, .cos = cos, .sin = sin, .x = x, .rows = rows};
    add_and_norm(team, &step, 0, s->layers->input_norm, s->layers->qkv);
    for (step.at = 0; step.at < s->count; step.at++) {
        const Layer *layer = step.layer = s->layers + step.at;
        product(team, layer->qkv, 3, rows, room->ready, room->scales, room->wide);
        attention(team, &step);
        pool_run(team, mixed_phase, &step, rows, grain_of(RANGE_OPERATIONS, layer->out.in_features));
        product(team, &layer->out, 1, rows, room->ready, room->scales, room->narrow);
        add_and_norm(team, &step, room->narrow, layer->post_norm, layer->gate_up);
        product(team, layer->gate_up, 2, rows, room->ready, room->scales, room->wide);
        pool_run(team, gate_phase, &step, rows, grain_of(RANGE_OPERATIONS, 2 * s->inner));
        product(team, &layer->down, 1, rows, room->ready, room->scales, room->narrow);
        const Layer *next = step.at + 1 < s->count ? layer + 1 : 0;
        add_and_norm(team, &step, room->narrow, next ? next->input_norm : 0, next ? next->qkv : 0);
    }
}

void legato_layers(const Stack *s, const Cache *cache, const Room *room, int64_t rows, int64_t threads, float *x,
                   const float *cos, const float *sin) {
    Team team = pool_enter(threads);
    run_layers(&team, s, cache, room, rows, x, cos, sin);
    pool_leave(&team);
}

typedef struct {
    const Linear *linear;
    const float *x;
    int64_t rows;
    uint8_t *ready;
    float *scales;
} Preparation;

static void prepare_phase(const void *arg, Claim *claim) {
    const Preparation *p = arg;
    do
        for (int64_t r = claim->from; r < claim->end; r++)
            prepare_row(p->linear, p->x + r * p->linear->in_features, r, p->rows, p->ready, p->scales);
    while (next_claim(claim));
}

void run_linear(Team *team, const Linear *linear, int64_t rows, const float *x, float *y, uint8_t *ready,
                float *scales) {
    Preparation p = {linear, x, rows, ready, scales};
    pool_run(team, prepare_phase, &p, rows, grain_of(RANGE_OPERATIONS, linear->in_features));
    product(team, linear, 1, rows, ready, scales, y);
}

void legato_map(const Linear *linear, int64_t rows, int64_t threads, const float *x, float *y, uint8_t *ready,
                float *scales) {
    Team team = pool_enter(threads);
    run_linear(&team, linear, rows, x, y, ready, scales);
    pool_leave(&team);
}

int64_t legato_prepared(const Linear *linear, int64_t rows) { return prepared_bytes(linear, rows); }

/* Whether this process may use AMX tiles. */
int64_t legato_tiles(void) { return ask_for_tiles(); }
