/* AMX tiles, where the compiler may use them: 16 rows of 64 bytes, two of which are multiplied at once.

   A process must ask for them once; a thread says what shape its tiles have, and lets them go when it is done. */

#pragma once
#include "lanes.h"

#if LANES == 16 && defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__linux__)
#define TILES 1
#include <sys/syscall.h>
#include <unistd.h>
#else
#define TILES 0
#endif

enum { TILE_ROWS = 16, TILE_BYTES = 64 };

/* Whether this process may use tiles. Linux says no where it does not keep them for a thread. */
static inline int64_t ask_for_tiles(void) {
#if TILES
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return 0;
#endif
}

/* What the tiles of this thread are shaped for; nothing: none are in use. */
typedef struct {
    int64_t low, high, steps;
} Shape;

#if TILES

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16]; /* of a row */
    uint8_t rows[16];
} Config;

/* Eight tiles for `[m, k] times [k, 16]`: 0 and 1 are sums of the first `low` rows, 2 and 3 of `high` more; 4 and 5 those
   rows; 6 and 7 what they are multiplied with. `steps` of 4 bytes at once. All become zero. */
static inline void shape_tiles(Shape *shape, int64_t low, int64_t high, int64_t steps) {
    if (shape->low == low && shape->high == high && shape->steps == steps) return;
    Config config = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        int second = t == 2 || t == 3 || t == 5;
        config.rows[t] = (uint8_t)(t > 5 ? steps : second && high ? high : low);
        config.bytes[t] = (uint16_t)(t == 4 || t == 5 ? 4 * steps : TILE_BYTES);
    }
    _tile_loadconfig(&config);
    *shape = (Shape){low, high, steps};
}

static inline void release_tiles(Shape *shape) {
    if (shape->low) _tile_release();
    *shape = (Shape){0};
}

#else

static inline void release_tiles(Shape *shape) { *shape = (Shape){0}; }

#endif
