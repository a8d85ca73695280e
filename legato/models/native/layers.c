/* A stack of decoder layers with 8-bit weights, for CPUs with AVX-512 VNNI: every layer of a step in one call.

   Owns nothing: weights, cache, scratch and results are the caller's. Knows no sequence; a row is one position of one
   slot, and sees the positions of its slot up to its own, all rows of the call included. Inputs of a product are
   rounded to 8 bits with a scale of their own row, and its sums are whole numbers: a row is the same in any company.
   library.py mirrors the structs. */

#include <immintrin.h>
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    const int8_t *values; /* [n, k] */
    const float *scales;  /* [n] */
    const int32_t *sums;  /* [n], of the values of an output */
    int64_t n, k;
} Map;

typedef struct {
    Map qkv, out, gate_up, down;
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

enum { LANES = 16, BYTES = 64 };

static int64_t padded(int64_t k) { return (k + BYTES - 1) / BYTES * BYTES; }

/* --- products ---------------------------------------------------------------------------------------------------- */

/* q = round(x / peak * 127) + 128; returns peak / 127. A row with NaN or infinity gets NaN as its scale. */
static float round_row(const float *x, int64_t k, uint8_t *q) {
    __m512 top = _mm512_setzero_ps(), bad = _mm512_setzero_ps();
    for (int64_t i = 0; i < k; i += LANES) {
        __mmask16 m = k - i < LANES ? (__mmask16)((1u << (k - i)) - 1) : 0xffff;
        __m512 v = _mm512_maskz_loadu_ps(m, x + i);
        top = _mm512_max_ps(top, _mm512_abs_ps(v));
        bad = _mm512_fmadd_ps(v, _mm512_setzero_ps(), bad);
    }
    float peak = _mm512_reduce_max_ps(top), scale = peak / 127.0f;
    __m512 by = _mm512_set1_ps(peak > 0 ? 127.0f / peak : 0.0f);
    for (int64_t i = 0; i < k; i += LANES) {
        __mmask16 m = k - i < LANES ? (__mmask16)((1u << (k - i)) - 1) : 0xffff;
        __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), by));
        _mm_storeu_si128((__m128i *)(q + i), _mm512_cvtepi32_epi8(_mm512_add_epi32(v, _mm512_set1_epi32(128))));
    }
    return scale + _mm512_reduce_add_ps(bad);
}

/* One output of `rows` rows. Weights are read in the order in which they lie: several outputs at a time are slower. Sums
   are split in `parts`, so that one need not wait for the last. */
static inline __attribute__((always_inline)) void tile(const Map *map, int64_t n, int rows, int parts, const uint8_t *q,
                                                       const float *scales, float *y) {
    const int8_t *w = map->values + n * map->k;
    int64_t stride = padded(map->k), whole = map->k / (parts * BYTES) * (parts * BYTES);
    __m512i sums[8][4];
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < parts; p++) sums[r][p] = _mm512_setzero_si512();
    for (int64_t i = 0; i < whole; i += parts * BYTES)
        for (int p = 0; p < parts; p++) {
            __m512i weights = _mm512_loadu_si512(w + i + p * BYTES);
            if (rows == 8) _mm_prefetch((const char *)w + i + p * BYTES + 2048, _MM_HINT_T0);
            for (int r = 0; r < rows; r++)
                sums[r][p] = _mm512_dpbusd_epi32(sums[r][p], _mm512_loadu_si512(q + r * stride + i + p * BYTES), weights);
        }
    for (int64_t i = whole; i < map->k; i += BYTES) {
        int64_t left = map->k - i;
        __m512i weights = _mm512_maskz_loadu_epi8(left < BYTES ? ((__mmask64)1 << left) - 1 : ~(__mmask64)0, w + i);
        for (int r = 0; r < rows; r++)
            sums[r][0] = _mm512_dpbusd_epi32(sums[r][0], _mm512_loadu_si512(q + r * stride + i), weights);
    }
    for (int r = 0; r < rows; r++) {
        __m512i sum = sums[r][0];
        for (int p = 1; p < parts; p++) sum = _mm512_add_epi32(sum, sums[r][p]);
        int32_t exact = _mm512_reduce_add_epi32(sum) - 128 * map->sums[n];
        y[r * map->n] = (float)exact * map->scales[n] * scales[r];
    }
}

/* Called by all threads of a team; every output belongs to one of them. Ends with a barrier. */
static void product(const Map *map, int64_t rows, const uint8_t *q, const float *scales, float *y) {
    int64_t stride = padded(map->k);
#pragma omp for schedule(static)
    for (int64_t n = 0; n < map->n; n++) {
        int64_t r = 0;
        for (; r + 8 <= rows; r += 8) tile(map, n, 8, 1, q + r * stride, scales + r, y + r * map->n + n);
        for (; r + 4 <= rows; r += 4) tile(map, n, 4, 1, q + r * stride, scales + r, y + r * map->n + n);
        for (; r + 2 <= rows; r += 2) tile(map, n, 2, 2, q + r * stride, scales + r, y + r * map->n + n);
        for (; r < rows; r++) tile(map, n, 1, 4, q + r * stride, scales + r, y + r * map->n + n);
    }
}

/* --- the rest of a layer ----------------------------------------------------------------------------------------- */

/* e^x to about 1e-7 of itself: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2]. Below -87 it is 0, above 88 it stays. */
static inline float exponential(float x) {
    x = x > 88.0f ? 88.0f : x;
    float n = nearbyintf(x * 1.44269504f), r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    union { int32_t i; float f; } power = {((int32_t)n + 127) << 23};
    return x < -87.0f ? 0.0f : p * power.f;
}

static float dot(const float *a, const float *b, int64_t d) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < d; i++) sum += a[i] * b[i];
    return sum;
}

static void norm(const float *x, const float *weight, int64_t d, float eps, float *y) {
    float by = 1.0f / sqrtf(dot(x, x, d) / (float)d + eps);
#pragma omp simd
    for (int64_t i = 0; i < d; i++) y[i] = x[i] * by * weight[i];
}

static void turn(float *x, const float *cos, const float *sin, int64_t d) {
    for (int64_t i = 0; i < d / 2; i++) {
        float a = x[i], b = x[i + d / 2];
        x[i] = a * cos[i] - b * sin[i];
        x[i + d / 2] = b * cos[i + d / 2] + a * sin[i + d / 2];
    }
}

static void keep(const Cache *cache, void *pool, int64_t at, const float *x, int64_t d) {
    if (!cache->half) {
        memcpy((float *)pool + at, x, (size_t)d * sizeof(float));
        return;
    }
    for (int64_t i = 0; i < d; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, 4);
        uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        ((uint16_t *)pool)[at + i] = (uint16_t)(x[i] != x[i] ? 0x7fc0 : rounded);
    }
}

/* A row of the cache as float32: where it is, or widened into `room`. */
static const float *kept(const Cache *cache, const void *pool, int64_t at, int64_t d, float *room) {
    if (!cache->half) return (const float *)pool + at;
    const uint16_t *halves = (const uint16_t *)pool + at;
    for (int64_t i = 0; i < d; i++) {
        uint32_t bits = (uint32_t)halves[i] << 16;
        memcpy(room + i, &bits, 4);
    }
    return room;
}

/* One row's queries of one key head: `q` and `y` [group, d]. `scores` has room for a number a position and query. */
static void attend(const Cache *cache, int64_t start, int64_t positions, int64_t group, int64_t d, const float *q,
                   float *y, float *scores) {
    float room[512], by = 1.0f / sqrtf((float)d);
    for (int64_t p = 0; p < positions; p++) {
        const float *key = kept(cache, cache->keys, start + p * cache->position, d, room);
        for (int64_t g = 0; g < group; g++) scores[g * positions + p] = dot(q + g * d, key, d) * by;
    }
    for (int64_t g = 0; g < group; g++) {
        float *row = scores + g * positions, top = row[0], sum = 0.0f;
        for (int64_t p = 1; p < positions; p++) top = row[p] > top ? row[p] : top;
#pragma omp simd reduction(+ : sum)
        for (int64_t p = 0; p < positions; p++) sum += row[p] = exponential(row[p] - top);
        for (int64_t p = 0; p < positions; p++) row[p] /= sum;
    }
    memset(y, 0, (size_t)(group * d) * sizeof(float));
    for (int64_t p = 0; p < positions; p++) {
        const float *value = kept(cache, cache->values, start + p * cache->position, d, room);
        for (int64_t g = 0; g < group; g++) {
            float weight = scores[g * positions + p];
#pragma omp simd
            for (int64_t i = 0; i < d; i++) y[g * d + i] += weight * value[i];
        }
    }
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

/* Shared by all threads: results of products. What is cheap every thread computes for itself, in a part of its own: the
   residual, what is normed, and what is rounded. So threads meet only after products and attention. */
typedef struct {
    float *wide, *mixed, *narrow;     /* [rows, the widest product]; [rows, heads d]; [rows, width] */
    float *residual, *normed;         /* [threads, rows, width] each */
    float *scales, *scores;           /* [threads, rows]; [threads, queries of a key head x positions, or inner] */
    uint8_t *rounded;                 /* [threads, rows, the widest input, padded to 64] */
    int64_t rounded_row;              /* that width */
} Room;

typedef struct {
    float *residual, *normed, *scales, *scores;
    uint8_t *rounded;
} Own;

static void round_rows(const Own *own, const float *x, int64_t stride, int64_t k, int64_t rows) {
    for (int64_t r = 0; r < rows; r++) own->scales[r] = round_row(x + r * stride, k, own->rounded + r * padded(k));
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
    round_rows(own, own->normed, s->width, s->width, rows);
    product(&layer->qkv, rows, own->rounded, own->scales, room->wide);
#pragma omp for schedule(static)
    for (int64_t h = 0; h < s->kv_heads; h++) {
        for (int64_t r = 0; r < rows; r++) place(s, layer, cache, at, r, h, room->wide + r * joint, cos, sin);
        for (int64_t r = 0; r < rows; r++) {
            int64_t start = at * cache->layer + cache->slots[r] * cache->slot + h * cache->head;
            attend(cache, start, cache->positions[r] + 1, group, d, room->wide + r * joint + h * group * d,
                   room->mixed + (r * s->heads + h * group) * d, own->scores);
        }
    }
    round_rows(own, room->mixed, s->heads * d, s->heads * d, rows);
    product(&layer->out, rows, own->rounded, own->scales, room->narrow);
    add_and_norm(s, own, room->narrow, layer->post_norm, rows);
    round_rows(own, own->normed, s->width, s->width, rows);
    product(&layer->gate_up, rows, own->rounded, own->scales, room->wide);
    for (int64_t r = 0; r < rows; r++) {
        const float *gate = room->wide + r * 2 * s->inner, *up = gate + s->inner;
        float *inner = own->scores;
#pragma omp simd
        for (int64_t i = 0; i < s->inner; i++) inner[i] = gate[i] / (1.0f + exponential(-gate[i])) * up[i];
        own->scales[r] = round_row(inner, s->inner, own->rounded + r * padded(s->inner));
    }
    product(&layer->down, rows, own->rounded, own->scales, room->narrow);
    add_and_norm(s, own, room->narrow, at + 1 < s->count ? s->layers[at + 1].input_norm : 0, rows);
}

/* `x` [rows, width] in and out; `cos`, `sin` [rows, head_dim]; `score_row`: numbers of scratch
   in `scores` for each thread. */
void legato_layers(const Stack *s, const Cache *cache, const Room *room, int64_t rows, int64_t score_row,
                   int64_t threads, float *x, const float *cos, const float *sin) {
#pragma omp parallel num_threads((int)threads)
    {
        int64_t me = omp_get_thread_num(), size = rows * s->width;
        Own own = {room->residual + me * size, room->normed + me * size, room->scales + me * rows,
                   room->scores + me * score_row, room->rounded + me * rows * room->rounded_row};
        memcpy(own.residual, x, (size_t)size * sizeof(float));
        for (int64_t r = 0; r < rows; r++)
            norm(x + r * s->width, s->layers[0].input_norm, s->width, s->eps, own.normed + r * s->width);
        for (int64_t at = 0; at < s->count; at++) run_layer(s, at, cache, rows, cos, sin, room, &own);
        if (me == 0) memcpy(x, own.residual, (size_t)size * sizeof(float));
    }
}

/* `x` [rows, k] -> `y` [rows, n]; `rounded` and `scales` are scratch. */
void legato_map(const Map *map, int64_t rows, int64_t threads, const float *x, float *y, uint8_t *rounded,
                float *scales) {
#pragma omp parallel num_threads((int)threads)
    {
#pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; r++)
            scales[r] = round_row(x + r * map->k, map->k, rounded + r * padded(map->k));
        product(map, rows, rounded, scales, y);
    }
}
