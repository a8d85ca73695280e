/* A stack of decoder layers with weights of few bits, every layer of a step in one call.

   Owns nothing: weights, cache, scratch and results are the caller's. Knows no sequence; a row is one position of one
   slot, and sees the positions of its slot up to its own, all rows of the call included. A row is the same in any
   company. */

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

enum { NEXT = 16 }; /* keys and values are fetched so many positions ahead */

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

/* --- what is called ---------------------------------------------------------------------------------------------- */

typedef struct {
    float *residual, *normed, *scales, *scores;
    uint8_t *ready;
} Own;

/* `y` [rows, all outputs] of maps with one input, which are side by side in it. Ends with a barrier. */
static void product(const Map *maps, int count, const Own *own, const float *x, int64_t x_row, int64_t rows, float *y) {
    int64_t outputs = 0, at = 0;
    for (int i = 0; i < count; i++) outputs += maps[i].n;
    for (int64_t r = 0; x && r < rows; r++)
        own->scales[r] = prepare(maps, x + r * x_row, own->ready + r * prepared_row(maps));
    for (int i = 0; i < count; at += maps[i++].n) multiply(maps + i, rows, own->ready, own->scales, y + at, outputs);
#pragma omp barrier
}

static void add_and_norm(const Stack *s, const Own *own, const float *more, const float *weight, int64_t rows) {
    for (int64_t r = 0; r < rows; r++) {
        float *x = own->residual + r * s->width;
        for (int64_t i = 0; i < s->width; i++) x[i] += more[r * s->width + i];
        if (weight) norm(x, weight, s->width, s->eps, own->normed + r * s->width);
    }
}

/* The residual has the layer's input, and `normed` its norm; at the end the same for the next layer. */
static void run_layer(const Stack *s, int64_t at, const Cache *cache, int64_t rows, const float *cos, const float *sin,
                      const Room *room, const Own *own) {
    const Layer *layer = s->layers + at;
    int64_t d = s->head_dim, group = s->heads / s->kv_heads, joint = (s->heads + 2 * s->kv_heads) * d;
    product(layer->qkv, 3, own, own->normed, s->width, rows, room->wide);
#pragma omp for schedule(static)
    for (int64_t h = 0; h < s->kv_heads; h++) {
        for (int64_t r = 0; r < rows; r++) place(s, layer, cache, at, r, h, room->wide + r * joint, cos, sin);
        for (int64_t r = 0; r < rows; r++) {
            int64_t start = at * cache->layer + cache->slots[r] * cache->slot + h * cache->head;
            (cache->half ? attend_to_halves : attend_to_floats)(
                cache, start, cache->positions[r] + 1, group, d, room->wide + r * joint + h * group * d,
                room->mixed + (r * s->heads + h * group) * d, own->scores);
        }
    }
    product(&layer->out, 1, own, room->mixed, s->heads * d, rows, room->narrow);
    add_and_norm(s, own, room->narrow, layer->post_norm, rows);
    product(layer->gate_up, 2, own, own->normed, s->width, rows, room->wide);
    for (int64_t r = 0; r < rows; r++) {
        const float *gate = room->wide + r * 2 * s->inner, *up = gate + s->inner;
        float *inner = own->scores;
        for (int64_t i = 0; i < s->inner; i += LANES) {
            Some m = lanes(s->inner - i);
            Floats x = get(gate + i, m);
            put(inner + i, m, x / (exponential(-x) + 1.0f) * get(up + i, m));
        }
        own->scales[r] = prepare(&layer->down, inner, own->ready + r * prepared_row(&layer->down));
    }
    product(&layer->down, 1, own, 0, 0, rows, room->narrow);
    add_and_norm(s, own, room->narrow, at + 1 < s->count ? s->layers[at + 1].input_norm : 0, rows);
}

void legato_layers(const Stack *s, const Cache *cache, const Room *room, int64_t rows, int64_t score_row,
                   int64_t threads, float *x, const float *cos, const float *sin) {
#pragma omp parallel num_threads((int)threads)
    {
        int64_t me = omp_get_thread_num(), size = rows * s->width;
        Own own = {room->residual + me * size, room->normed + me * size, room->scales + me * rows,
                   room->scores + me * score_row, room->ready + me * rows * room->ready_row};
        memcpy(own.residual, x, (size_t)size * sizeof(float));
        for (int64_t r = 0; r < rows; r++)
            norm(x + r * s->width, s->layers[0].input_norm, s->width, s->eps, own.normed + r * s->width);
        for (int64_t at = 0; at < s->count; at++) run_layer(s, at, cache, rows, cos, sin, room, &own);
        if (me == 0) memcpy(x, own.residual, (size_t)size * sizeof(float));
    }
}

void legato_map(const Map *map, int64_t rows, int64_t threads, const float *x, float *y, uint8_t *ready, float *scales) {
#pragma omp parallel num_threads((int)threads)
    {
#pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; r++) scales[r] = prepare(map, x + r * map->k, ready + r * prepared_row(map));
        multiply(map, rows, ready, scales, y, map->n);
    }
}

int64_t legato_prepared(const Map *map) { return prepared_row(map); }

/* Whether this process may use matrix tiles. */
int64_t legato_tiles(void) { return ask_for_tiles(); }
