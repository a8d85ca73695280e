/* A stack of decoder layers and what it computes in, for layers.c and frame.c. structs.py mirrors the structs. */

#pragma once
#include "products.h"

typedef struct {
    Map qkv[3], out, gate_up[2], down; /* joint ones come first, and what is in them has no outputs */
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

/* Shared by all threads: results of products. What is cheap every thread computes for itself, in a part of its own: the
   residual, what is normed, and what is prepared. So threads meet only after products and attention. */
typedef struct {
    float *wide, *mixed, *narrow;     /* [rows, the widest product]; [rows, heads d]; [rows, width] */
    float *residual, *normed;         /* [threads, rows, width] each */
    float *scales, *scores;           /* [threads, rows]; [threads, queries of a key head x positions, or inner] */
    uint8_t *ready;                   /* [threads, rows, the longest prepared row] */
    int64_t ready_row;                /* bytes of it */
} Room;

/* `x` [rows, width] in and out; `cos`, `sin` [rows, head_dim]; `score_row`: numbers of scratch
   in `scores` for each thread. */
void legato_layers(const Stack *s, const Cache *cache, const Room *room, int64_t rows, int64_t score_row,
                   int64_t threads, float *x, const float *cos, const float *sin);

/* `x` [rows, k] -> `y` [rows, n]; `ready` and `scales` are scratch. */
void legato_map(const Map *map, int64_t rows, int64_t threads, const float *x, float *y, uint8_t *ready, float *scales);

/* Bytes of a prepared row of a map. */
int64_t legato_prepared(const Map *map);

static inline float dot(const float *a, const float *b, int64_t d) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < d; i++) sum += a[i] * b[i];
    return sum;
}

static inline void norm(const float *x, const float *weight, int64_t d, float eps, float *y) {
    float by = 1.0f / sqrtf(dot(x, x, d) / (float)d + eps);
#pragma omp simd
    for (int64_t i = 0; i < d; i++) y[i] = x[i] * by * weight[i];
}
