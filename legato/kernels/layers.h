/* A stack of decoder layers and what it computes in, for layers.c and frame.c. structs.py mirrors the structs. */

#pragma once
#include "linear_formats.h"
#include "thread_pool.h"

typedef struct {
    Linear qkv[3], out, gate_up[2], down; /* joint ones come first, and what is in them has no outputs */
    const float *input_norm, *post_norm, *q_norm, *k_norm;
} Layer;

typedef struct {
    const Layer *layers;
    int64_t count, width, inner, heads, kv_heads, head_dim;
    float eps;
} Stack;

typedef struct {
    void *keys, *values;                             /* [layer, slot, kv head, position, head_dim] */
    int64_t layer, slot, head, position;             /* strides in numbers */
    const int64_t *slots, *positions;                /* of each row */
    int64_t half;                                    /* bfloat16 if not 0, else float32 */
} Cache;

/* Scratch memory. */
typedef struct {
    float *wide, *mixed, *narrow;     /* [rows, the widest product]; [rows, heads d]; [rows, width] */
    float *normed, *scales;           /* [rows, width]; [rows] */
    float *scores;                    /* [threads, `score_row`] */
    uint8_t *ready;                   /* prepared rows of any linear of the stack */
    int64_t score_row;                /* queries of a key head x positions, or inner if that is more */
} Room;

/* `x` [rows, width] in and out; `cos`, `sin` [rows, head_dim]. */
void run_layers(Team *team, const Stack *s, const Cache *cache, const Room *room, int64_t rows, float *x,
                const float *cos, const float *sin);
void legato_layers(const Stack *s, const Cache *cache, const Room *room, int64_t rows, int64_t threads, float *x,
                   const float *cos, const float *sin);

/* `x` [rows, k] -> `y` [rows, n]; `ready` and `scales` are scratch. */
void run_linear(Team *team, const Linear *linear, int64_t rows, const float *x, float *y, uint8_t *ready,
                float *scales);
void legato_map(const Linear *linear, int64_t rows, int64_t threads, const float *x, float *y, uint8_t *ready,
                float *scales);

/* Bytes of `rows` prepared rows of a linear. */
int64_t legato_prepared(const Linear *linear, int64_t rows);

static inline float dot(const float *a, const float *b, int64_t d) {
    Floats sum = {0};
    for (int64_t i = 0; i < d; i += LANES) sum = fused(get(a + i, lanes(d - i)), get(b + i, lanes(d - i)), sum);
    return sum_of(sum);
}

static inline void norm(const float *x, const float *weight, int64_t d, float eps, float *y) {
    float by = 1.0f / sqrtf(dot(x, x, d) / (float)d + eps);
    for (int64_t i = 0; i < d; i += LANES) {
        Some m = lanes(d - i);
        put(y + i, m, get(x + i, m) * by * get(weight + i, m));
    }
}
