/* Attention of the codec's decoder over a window and what is kept of the past.

   Holds no state. A query sums over the positions that it sees, oldest first: where they lie and what else is in the window
   changes no bit. codec_library.py mirrors the struct. */

#include "lanes.h"
#include "layout.h"
#include "thread_pool.h"

typedef struct {
    const void *qkv;                         /* [batch, count, (heads + 2 kv_heads) * d] */
    const float *cos, *sin;                  /* [batch, count, d / 2] */
    const uint8_t *mask;                     /* [batch, count, past + count]: what a position sees */
    const void *past_keys, *past_values;     /* [batch, kv_heads, past, d], keys already turned */
    void *keys, *values;                     /* scratch [batch, kv_heads, count, d]: the window's */
    void *kept_keys, *kept_values;           /* the next past */
    const int64_t *lengths;                  /* valid positions of each row; 0: all */
    void *y;                                 /* [batch, count, heads * d] */
    float *scores;                           /* scratch [threads, past + count] */
    int64_t batch, count, past, heads, kv_heads, d, half, threads;
} Attention;

enum { WIDEST = 512 };

/* `x` [d], at `at`, as float32, turned: pairs are half the head apart. */
static void turned(const void *x, int64_t at, const float *cos, const float *sin, int64_t d, int64_t half, float *y) {
    for (int64_t i = 0; i < d / 2; i += LANES) {
        Some some = lanes(d / 2 - i);
        Floats a = load(x, at + i, some, half), b = load(x, at + d / 2 + i, some, half);
        Floats c = get(cos + i, some), s = get(sin + i, some);
        put(y + i, some, fused(a, c, -(b * s)));
        put(y + d / 2 + i, some, fused(b, c, a * s));
    }
}

/* Keys and values of one head in the window, and the next past out of both. */
static void advance(const Attention *a, int64_t b, int64_t h) {
    int64_t d = a->d, line = b * a->kv_heads + h, bytes = d * size_of(a->half), all = a->past * bytes;
    char *keys = (char *)a->keys + line * a->count * bytes, *values = (char *)a->values + line * a->count * bytes;
    for (int64_t t = 0; t < a->count; t++) {
        float key[WIDEST];
        int64_t row = b * a->count + t, at = (row * (a->heads + 2 * a->kv_heads) + a->heads + h) * d;
        turned(a->qkv, at, a->cos + row * d / 2, a->sin + row * d / 2, d, a->half, key);
        for (int64_t i = 0; i < d; i += LANES)
            store(keys + t * bytes, i, lanes(d - i), a->half, get(key + i, lanes(d - i)));
        memcpy(values + t * bytes, (const char *)a->qkv + (at + a->kv_heads * d) * size_of(a->half), (size_t)bytes);
    }
    if (!all) return; /* no past: the pointers may be null */
    int64_t fresh = (a->lengths ? a->lengths[b] : a->count) * bytes, shift = least(fresh, all), from = fresh - shift;
    const char *past[] = {(const char *)a->past_keys + line * all, (const char *)a->past_values + line * all};
    char *kept[] = {(char *)a->kept_keys + line * all, (char *)a->kept_values + line * all};
    for (int each = 0; each < 2; each++) {
        memcpy(kept[each], past[each] + shift, (size_t)(all - shift));
        memcpy(kept[each] + all - shift, (each ? values : keys) + from, (size_t)shift);
    }
}

static void attend(const Attention *a, int64_t b, int64_t h, int64_t t, float *scores) {
    int64_t all = a->past + a->count, d = a->d, row = b * a->count + t, seen = 0, half = a->half;
    int64_t head = b * a->kv_heads + h / (a->heads / a->kv_heads), old = head * a->past * d;
    int64_t new = (head * a->count - a->past) * d;
    const uint8_t *mask = a->mask + row * all;
    float query[WIDEST], top = -INFINITY, by = 1.0f / sqrtf((float)d);
    turned(a->qkv, (row * (a->heads + 2 * a->kv_heads) + h) * d, a->cos + row * d / 2, a->sin + row * d / 2, d, a->half,
           query);
    for (int64_t p = 0; p < all; p++) {
        if (!mask[p]) continue;
        Floats sum = {0};
        for (int64_t i = 0; i < d; i += LANES) {
            Some some = lanes(d - i);
            Floats key = p < a->past ? load(a->past_keys, old + p * d + i, some, half)
                                     : load(a->keys, new + p * d + i, some, half);
            sum = fused(get(query + i, some), key, sum);
        }
        float score = sum_of(sum) * by;
        top = score > top ? score : top;
        scores[seen++] = score;
    }
    Floats total = {0};
    for (int64_t p = 0; p < seen; p += LANES) {
        Some some = lanes(seen - p);
        Floats e = exponential(get(scores + p, some) - top);
        put(scores + p, some, e);
        total += only(some, e);
    }
    float share = 1.0f / sum_of(total);
    for (int64_t i = 0; i < d; i += LANES) {
        Some some = lanes(d - i);
        Floats y = {0};
        for (int64_t p = 0, at = 0; p < all; p++) {
            if (!mask[p]) continue;
            Floats value = p < a->past ? load(a->past_values, old + p * d + i, some, half)
                                       : load(a->values, new + p * d + i, some, half);
            y = fused(splat(scores[at++]), value, y);
        }
        store(a->y, (row * a->heads + h) * d + i, some, a->half, y * share);
    }
}

/* A unit is one key head of one row. */
static void advance_phase(const void *arg, Claim *claim) {
    const Attention *a = arg;
    do
        for (int64_t unit = claim->from; unit < claim->end; unit++) advance(a, unit / a->kv_heads, unit % a->kv_heads);
    while (next_claim(claim));
}

/* A unit is one query: positions of a head one after another, since they read the same keys. */
static void attend_phase(const void *arg, Claim *claim) {
    const Attention *a = arg;
    float *scores = a->scores + claim->thread * (a->past + a->count);
    do
        for (int64_t unit = claim->from; unit < claim->end; unit++) {
            int64_t head = unit / a->count;
            attend(a, head / a->heads, head % a->heads, unit % a->count, scores);
        }
    while (next_claim(claim));
}

void legato_attend(const Attention *a) {
    enum { RANGE_NUMBERS = 16384 }; /* read by a range that is worth a claim */
    Team team = pool_enter(a->threads);
    pool_run(&team, advance_phase, a, a->batch * a->kv_heads, grain_of(RANGE_NUMBERS, (2 * a->past + 4 * a->count) * a->d));
    pool_run(&team, attend_phase, a, a->batch * a->heads * a->count,
             grain_of(RANGE_NUMBERS, 2 * (a->past + a->count) * a->d));
    pool_leave(&team);
}

/* Cosines and sines of `positions` [count] times `steps` [pairs], both [count, pairs]. Angles are float32. */
void legato_rotation(const int64_t *positions, const float *steps, float *c, float *s, int64_t count, int64_t pairs) {
    for (int64_t i = 0; i < count * pairs; i++) {
        float angle = (float)positions[i / pairs] * steps[i % pairs];
        c[i] = (float)cos((double)angle);
        s[i] = (float)sin((double)angle);
    }
}

/* See layout.h. */
const FieldLayout *legato_attention_layout(void) {
    static const FieldLayout table[] = {
        LAYOUT_OF(Attention), FIELD_OF(Attention, qkv), FIELD_OF(Attention, cos), FIELD_OF(Attention, sin),
            FIELD_OF(Attention, mask), FIELD_OF(Attention, past_keys), FIELD_OF(Attention, past_values),
            FIELD_OF(Attention, keys), FIELD_OF(Attention, values), FIELD_OF(Attention, kept_keys),
            FIELD_OF(Attention, kept_values), FIELD_OF(Attention, lengths), FIELD_OF(Attention, y),
            FIELD_OF(Attention, scores), FIELD_OF(Attention, batch), FIELD_OF(Attention, count),
            FIELD_OF(Attention, past), FIELD_OF(Attention, heads), FIELD_OF(Attention, kv_heads),
            FIELD_OF(Attention, d), FIELD_OF(Attention, half), FIELD_OF(Attention, threads),
        END_OF_LAYOUT,
    };
    return table;
}
