/* Thread pool of the kernels: phases whose work is claimed in pieces.

   A kernel enters the pool once per call and then runs phases. A phase is a function and a number of units; the caller
   and the workers claim ranges of units until none are left. The caller waits only for ranges that a worker has claimed
   and not yet finished. A worker that wakes up late joins the current phase or none, so no phase ever waits for a thread
   to arrive. Results must not depend on which thread computes a unit; then they do not depend on the number of threads
   either, and the pool may change that number at any phase. */

#pragma once
#include <stdint.h>

typedef struct {
    int64_t from, end; /* the range of units to compute now */
    int64_t thread;    /* 0 is the caller; less than the `threads` of `pool_enter`. For scratch memory of a thread. */
    int64_t claimed;   /* units claimed so far */
    uint64_t sequence; /* of the phase; 0: the caller computes alone */
} Claim;

/* Computes the range of `claim`, then the ranges of further claims:

       do {
           for (int64_t unit = claim->from; unit < claim->end; unit++) ...
       } while (next_claim(claim));

   `arg` may be used only between two claims: as soon as the last range is finished, the caller goes on. */
typedef void (*Phase)(const void *arg, Claim *claim);

/* Marks the range of `claim` as finished and claims another one. 0 if none is left. */
int next_claim(Claim *claim);

/* At most `threads` threads, the caller included, take part in the phases until `pool_leave`. The pool serves one caller
   at a time: if another thread has entered it, this one computes alone. */
typedef struct {
    int64_t threads;
    int owner; /* whether this caller has the workers */
} Team;

Team pool_enter(int64_t threads);
void pool_leave(Team *team);

/* Runs a phase of `units` units, in ranges of at least `grain`. Returns when all are finished. A phase of at most `grain`
   units is computed by the caller alone. */
void pool_run(Team *team, Phase phase, const void *arg, int64_t units, int64_t grain);

/* The number of units that makes a range of about `work` if one unit is `work_of_unit`; at least 1.
   Tests define SPLIT_ALL: then phases are split into single units, however small they are. */
static inline int64_t grain_of(int64_t work, int64_t work_of_unit) {
#ifdef SPLIT_ALL
    return 1;
#endif
    return work_of_unit < work ? (work + work_of_unit - 1) / (work_of_unit > 0 ? work_of_unit : 1) : 1;
}
