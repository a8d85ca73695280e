/* What the files of the codec share. codec_library.py mirrors the structs.

   Numbers are float32 or, where `half`, bfloat16; sums are float32. A *step* is 4 bytes of input: one float32 or two
   bfloat16. */

#pragma once
#include "thread_pool.h"
#include "tiles.h"

typedef struct {
    const void *weight; /* panels of PANEL outputs, the last of LANES if it has no more, [taps * steps][outputs][one step];
                           of a single output as it is: [taps * width] */
    const float *bias;  /* [n] or 0 */
    int64_t taps, width, dilation, n, half;
    int64_t tile_steps; /* number of steps of a row in an AMX tile; 0: without tiles */
} Kernel;

/* What is done to the input first. `first` and `second` [width]: of SNAKE factor and gain, of NORM the weight. */
enum { AS_IT_IS, SNAKE, NORM, GELU, GATED };

typedef struct {
    const void *x;             /* [batch, positions, width]; GATED: gates and what they let through, 2 width */
    const void *past;          /* [batch, keep, width]: what joins the window to the one before */
    void *joined;              /* scratch: both, positions `pitch` bytes apart; 0: x is read where it lies */
    void *kept;                /* [batch, keep, width]: the next `past` */
    const int64_t *lengths;    /* valid positions of each row; 0: all */
    const float *first, *second;
    const float *turn, *gain;  /* [n], SnakeBeta of the outputs; or 0 */
    const float *scale;        /* [n], a factor of each output; or 0 */
    const void *plus;          /* as y, is added to it; or 0 */
    void *y;                   /* [batch, positions, n] */
    int64_t batch, positions, keep, pitch, before, threads;
    float eps;
} Call;

enum { PANEL = 2 * LANES, AHEAD = 2048 };
enum { TALL = 2 * TILE_ROWS }; /* rows that are multiplied at once with tiles */

/* Rows `row` on of all rows, at most `m`, times one panel of `cols` vectors of outputs: `sums` [rows][PANEL]; how many
   rows. Only where there are tiles. */
int64_t by_tiles(const Kernel *k, const Call *call, const char *w, int64_t cols, const char *seen, int64_t pitch,
                 int64_t row, int64_t m, Shape *shape, float *sums);
