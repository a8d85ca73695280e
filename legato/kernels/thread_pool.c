/* See thread_pool.h. One pool per library.

   THE TICKET. `ticket` holds the number of the phase (upper 32 bits) and how many of its units are not claimed yet (lower
   32 bits). A claim subtracts from the lower half by compare-and-swap. Every value occurs once, so a successful swap
   proves that the phase did not end between the read of the ticket and the swap. This is why a worker may read the other
   fields of the phase before it claims: if they belong to another phase, the swap fails. A worker touches `arg` and the
   tensors behind it only after a successful claim, and the caller waits for every claimed unit before it returns; so a
   worker that wakes up late finds an empty or a newer ticket and never sees memory of an old call.

   THE WAIT. A thread that claimed a range may lose its core before it finishes. The caller cannot take the range back,
   because the worker may still write to it. It spins for SPIN_WAIT_NS and then sleeps, which leaves its own core idle: the
   scheduler moves the runnable worker there, so the wait is about one scheduler decision and not the time slice of the
   process that took the worker's core.

   THE TEAM. A wait that is longer than STALL_NS, and longer than the caller itself computed in the phase, means that a
   worker has lost its core: a stall. If stalls take more than a STALL_SHARE of the time of phases, a thread less is
   faster, and the team shrinks by one. After `hold_ns` it grows again on trial; if stalls end the trial, the next one
   comes after twice the time. A failed trial costs a few stalls, so a core that stays taken costs about 1 %. Rare stalls,
   for example of a process that needs 5 % of a core, cost less than the thread is worth, and change nothing. */

#include "thread_pool.h"

#include <stdatomic.h>

#include "thread_os.h"

enum {
    MAX_WORKERS = 255,
    MS = 1000000,
    SPIN_WORKER_NS = MS / 5, /* an idle worker spins this long before it sleeps: longer than the gaps inside a frame */
    SPIN_WAIT_NS = MS / 20,  /* the caller spins this long for claimed ranges: a few of them */
    STALL_NS = 3 * MS / 10,
    STALL_SHARE = 4,    /* one in this many */
    WINDOW_NS = 20 * MS, /* time of phases over which stalls are counted */
    HOLD_MIN_NS = 50 * MS,
    HOLD_MAX_NS = 1000 * MS,
    PAUSES = 32 /* between two looks at the clock */
};

typedef struct {
    int64_t index; /* 1 and up; 0 is the caller */
    Lock lock;
    Condition wake;
    _Atomic int asleep;
} Worker;

static struct {
    _Atomic uint64_t ticket;
    /* The phase. Atomic because a late worker may read them while the caller writes those of the next phase. */
    _Atomic(Phase) phase;
    _Atomic(const void *) arg;
    _Atomic int64_t units, grain, team;
    _Atomic int64_t finished; /* units that workers have finished */
    _Atomic int64_t limit;    /* threads that take part now, the caller included */
    _Atomic int caller_waits;
    Lock waiting;
    Condition done;
    /* Belong to the caller that has `entered`. */
    Lock entered;
    int64_t workers, allowed; /* workers that exist; threads that the contention control allows */
    uint64_t hold_ns, grow_ns, grown_ns; /* how long the next trial waits; when it starts; when the last one started */
    uint64_t phases_ns, stalls_ns;       /* time of recent phases, and of the stalls in them */
    int fork_handler;
} pool = {.waiting = LOCK_INIT, .done = CONDITION_INIT, .entered = LOCK_INIT, .allowed = MAX_WORKERS + 1};

static Worker workers[MAX_WORKERS];

/* --- claims ---------------------------------------------------------------------------------------------------------- */

/* Ranges get smaller towards the end of a phase (guided scheduling): few claims, and all threads end at the same time. */
static int claim_from(uint64_t ticket, Claim *claim) {
    int64_t units = atomic_load_explicit(&pool.units, memory_order_relaxed);
    int64_t grain = atomic_load_explicit(&pool.grain, memory_order_relaxed);
    int64_t team = atomic_load_explicit(&pool.team, memory_order_relaxed);
    for (;;) {
        int64_t left = (int64_t)(uint32_t)ticket, count = left / (2 * team);
        if (ticket >> 32 != claim->sequence || left == 0) return 0;
        if (count < grain) count = grain;
        if (count > left) count = left;
        if (atomic_compare_exchange_weak_explicit(&pool.ticket, &ticket, ticket - (uint64_t)count, memory_order_acq_rel,
                                                  memory_order_acquire)) {
            claim->from = units - left;
            claim->end = claim->from + count;
            claim->claimed += count;
            return 1;
        }
    }
}

static void finish(int64_t units) {
    atomic_fetch_add(&pool.finished, units);
    if (atomic_load(&pool.caller_waits)) {
        lock_take(&pool.waiting);
        condition_signal(&pool.done);
        lock_give(&pool.waiting);
    }
}

int next_claim(Claim *claim) {
    if (!claim->sequence) return 0; /* the caller computes alone: its first range was everything */
    if (claim->thread) finish(claim->end - claim->from);
    return claim_from(atomic_load_explicit(&pool.ticket, memory_order_acquire), claim);
}

/* --- workers --------------------------------------------------------------------------------------------------------- */

static void spin_for_ticket(void) {
    for (int i = 0; i < PAUSES && !(uint32_t)atomic_load_explicit(&pool.ticket, memory_order_relaxed); i++) cpu_pause();
}

/* Whether the worker found a range; then it has computed all that it could claim of the phase. */
static int join_phase(const Worker *worker) {
    uint64_t ticket = atomic_load_explicit(&pool.ticket, memory_order_acquire);
    if (!(uint32_t)ticket || worker->index >= atomic_load_explicit(&pool.limit, memory_order_relaxed)) return 0;
    Phase phase = atomic_load_explicit(&pool.phase, memory_order_relaxed);
    const void *arg = atomic_load_explicit(&pool.arg, memory_order_relaxed);
    Claim claim = {.thread = worker->index, .sequence = ticket >> 32};
    if (!claim_from(ticket, &claim)) return 0;
    phase(arg, &claim);
    return 1;
}

/* Sleeps until the caller has work. The flag is set before the last look at the ticket, and the caller
   looks at the flag after it has written the ticket, so one of them sees the other. */
static void sleep_until_woken(Worker *worker) {
    lock_take(&worker->lock);
    atomic_store(&worker->asleep, 1);
    int has_work = (uint32_t)atomic_load(&pool.ticket) && worker->index < atomic_load(&pool.limit);
    if (has_work) atomic_store(&worker->asleep, 0);
    while (atomic_load(&worker->asleep)) condition_wait(&worker->wake, &worker->lock);
    lock_give(&worker->lock);
}

THREAD_MAIN(work, arg) {
    Worker *worker = arg;
    uint64_t last = now_ns();
    for (;;) {
        if (join_phase(worker)) {
            last = now_ns();
        } else if (now_ns() - last < SPIN_WORKER_NS) {
            spin_for_ticket();
        } else {
            sleep_until_woken(worker);
            last = now_ns();
        }
    }
    THREAD_END;
}

static void wake(Worker *worker) {
    if (!atomic_load(&worker->asleep)) return;
    lock_take(&worker->lock);
    atomic_store(&worker->asleep, 0); /* at once: the worker may need long to run, and is woken once */
    condition_signal(&worker->wake);
    lock_give(&worker->lock);
}

/* A child process has none of its parent's threads. */
static void forget_workers(void) {
    pool.workers = 0;
    pool.entered = (Lock)LOCK_INIT;
    pool.waiting = (Lock)LOCK_INIT;
    pool.done = (Condition)CONDITION_INIT;
    atomic_store(&pool.caller_waits, 0);
    atomic_store(&pool.ticket, atomic_load(&pool.ticket) >> 32 << 32);
}

static void start_workers(int64_t count) {
    if (count > MAX_WORKERS) count = MAX_WORKERS;
    if (!pool.fork_handler) at_fork_in_child(forget_workers);
    pool.fork_handler = 1;
    for (; pool.workers < count; pool.workers++) {
        Worker *worker = &workers[pool.workers];
        worker->index = pool.workers + 1;
        worker->lock = (Lock)LOCK_INIT;
        worker->wake = (Condition)CONDITION_INIT;
        atomic_store(&worker->asleep, 0);
        if (!thread_start(work, worker)) return; /* without it the caller computes more itself */
    }
}

/* --- the team -------------------------------------------------------------------------------------------------------- */

/* Starts a trial with one thread more when it is time. */
static void try_to_grow(void) {
    uint64_t now = now_ns();
    if (now < pool.grow_ns) return;
    pool.allowed++;
    pool.grown_ns = now;
    pool.phases_ns = pool.stalls_ns = 0;
}

static void shrink(Team *team, uint64_t now) {
    int trial_failed = pool.grown_ns && now - pool.grown_ns < HOLD_MAX_NS;
    uint64_t doubled = 2 * pool.hold_ns < HOLD_MAX_NS ? 2 * pool.hold_ns : HOLD_MAX_NS;
    pool.hold_ns = trial_failed ? doubled : HOLD_MIN_NS;
    pool.grow_ns = now + pool.hold_ns;
    pool.allowed = --team->threads;
    pool.phases_ns = pool.stalls_ns = 0;
}

/* Counts a phase that took the caller `computed` and then `waited`, and shrinks the team if stalls take too much. */
static void judge(Team *team, uint64_t computed, uint64_t waited) {
    pool.phases_ns += computed + waited;
    if (waited > STALL_NS && waited > computed) {
        pool.stalls_ns += waited;
        if (pool.stalls_ns > WINDOW_NS / STALL_SHARE && pool.stalls_ns > pool.phases_ns / STALL_SHARE)
            shrink(team, now_ns());
    }
    if (pool.phases_ns > 2 * WINDOW_NS) { /* older phases count half */
        pool.phases_ns /= 2;
        pool.stalls_ns /= 2;
    }
}

Team pool_enter(int64_t threads) {
    Team team = {.threads = 1, .owner = 0};
    if (threads < 2 || !lock_try(&pool.entered)) return team;
    team.owner = 1;
    start_workers(threads - 1);
    if (pool.allowed <= pool.workers && pool.allowed < threads) try_to_grow();
    team.threads = threads;
    if (team.threads > pool.workers + 1) team.threads = pool.workers + 1;
    if (team.threads > pool.allowed) team.threads = pool.allowed;
    return team;
}

void pool_leave(Team *team) {
    if (team->owner) lock_give(&pool.entered);
    team->owner = 0;
}

/* --- phases ---------------------------------------------------------------------------------------------------------- */

/* Returns when workers have finished `units` units, with the time that this took. */
static uint64_t wait_for(int64_t units) {
    uint64_t start = now_ns(), waited = 0;
    for (;;) {
        for (int i = 0; i < PAUSES; i++) {
            if (atomic_load_explicit(&pool.finished, memory_order_acquire) == units) return waited;
            cpu_pause();
        }
        if (waited >= SPIN_WAIT_NS) {
            lock_take(&pool.waiting);
            atomic_store(&pool.caller_waits, 1);
            while (atomic_load(&pool.finished) != units) condition_wait(&pool.done, &pool.waiting);
            atomic_store(&pool.caller_waits, 0);
            lock_give(&pool.waiting);
        }
        waited = now_ns() - start;
    }
}

static void publish(const Team *team, Phase phase, const void *arg, int64_t units, int64_t grain, uint64_t sequence) {
    atomic_store_explicit(&pool.phase, phase, memory_order_relaxed);
    atomic_store_explicit(&pool.arg, arg, memory_order_relaxed);
    atomic_store_explicit(&pool.units, units, memory_order_relaxed);
    atomic_store_explicit(&pool.grain, grain, memory_order_relaxed);
    atomic_store_explicit(&pool.team, team->threads, memory_order_relaxed);
    atomic_store_explicit(&pool.finished, 0, memory_order_relaxed);
    atomic_store_explicit(&pool.limit, team->threads, memory_order_relaxed);
    atomic_store(&pool.ticket, sequence << 32 | (uint64_t)units);
    for (int64_t i = 0; i < team->threads - 1; i++) wake(&workers[i]);
}

void pool_run(Team *team, Phase phase, const void *arg, int64_t units, int64_t grain) {
    Claim claim = {.from = 0, .end = units};
    if (units <= 0) return;
    if (team->threads < 2 || units <= grain || units > UINT32_MAX) {
        phase(arg, &claim);
        return;
    }
    uint32_t sequence = (uint32_t)(atomic_load_explicit(&pool.ticket, memory_order_relaxed) >> 32) + 1;
    if (!sequence) sequence = 1; /* 0 marks a claim without the pool */
    uint64_t start = now_ns();
    publish(team, phase, arg, units, grain, sequence);
    claim.sequence = sequence;
    if (claim_from(atomic_load_explicit(&pool.ticket, memory_order_acquire), &claim)) phase(arg, &claim);
    uint64_t computed = now_ns() - start;
    judge(team, computed, wait_for(units - claim.claimed));
}
