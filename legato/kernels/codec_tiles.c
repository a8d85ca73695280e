/* The codec's GEMM on AMX tiles, bfloat16 only. An output is one sum in one order, by the layer's sizes alone. */

#include "codec.h"

#if TILES

/* `tall` tiles of rows times `cols` of outputs: each tile that is loaded is used for both of the other kind. */
INLINE void tile(const Kernel *k, const char *w, int cols, const char *rows, int tall, int64_t pitch, float *sums) {
    int64_t steps = k->width / 2, outputs = cols * TILE_BYTES, jump = k->dilation * pitch;
    _tile_zero(0);
    if (cols > 1) _tile_zero(1);
    if (tall > 1) _tile_zero(2);
    if (tall > 1 && cols > 1) _tile_zero(3);
    for (int64_t tap = 0; tap < k->taps; tap++)
        for (int64_t s = 0; s < steps; s += k->tile_steps, w += k->tile_steps * outputs) {
            const char *from = rows + tap * jump + 4 * s;
            _tile_loadd(4, from, pitch);
            _tile_loadd(6, w, outputs);
            if (cols > 1) _tile_loadd(7, w + TILE_BYTES, outputs);
            if (tall > 1) _tile_loadd(5, from + TILE_ROWS * pitch, pitch);
            _tile_dpbf16ps(0, 4, 6);
            if (cols > 1) _tile_dpbf16ps(1, 4, 7);
            if (tall > 1) _tile_dpbf16ps(2, 5, 6);
            if (tall > 1 && cols > 1) _tile_dpbf16ps(3, 5, 7);
            for (int64_t at = 0; at < k->tile_steps * outputs; at += TILE_BYTES)
                __builtin_prefetch(w + 2 * AHEAD + at, 0, 3);
        }
    _tile_stored(0, sums, PANEL * sizeof(float));
    if (cols > 1) _tile_stored(1, sums + LANES, PANEL * sizeof(float));
    if (tall > 1) _tile_stored(2, sums + TILE_ROWS * PANEL, PANEL * sizeof(float));
    if (tall > 1 && cols > 1) _tile_stored(3, sums + TILE_ROWS * PANEL + LANES, PANEL * sizeof(float));
}

int64_t by_tiles(const Kernel *k, const Call *call, const char *w, int64_t cols, const char *seen, int64_t pitch,
                 int64_t row, int64_t m, Shape *shape, float *sums) {
    int64_t b = row / call->positions, i = row % call->positions;
    if (call->keep) m = least(m, call->positions - i); /* else all rows lie at one distance */
    const char *rows = seen + (b * (call->keep + call->positions) + i) * pitch;
    shape_tiles(shape, least(m, TILE_ROWS), m > TILE_ROWS ? m - TILE_ROWS : 0, k->tile_steps);
    if (m > TILE_ROWS) cols == 2 ? tile(k, w, 2, rows, 2, pitch, sums) : tile(k, w, 1, rows, 2, pitch, sums);
    else cols == 2 ? tile(k, w, 2, rows, 1, pitch, sums) : tile(k, w, 1, rows, 1, pitch, sums);
    return m;
}

#else

int64_t by_tiles(const Kernel *k, const Call *call, const char *w, int64_t cols, const char *seen, int64_t pitch,
                 int64_t row, int64_t m, Shape *shape, float *sums) {
    (void)k, (void)call, (void)w, (void)cols, (void)seen, (void)pitch, (void)row, (void)shape, (void)sums;
    return m;
}

#endif
