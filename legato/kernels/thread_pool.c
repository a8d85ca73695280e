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
   core is taken. The team then shrinks by one thread. After `hold_ns` the excluded worker tests its core: it spins for
   PROBE_NS and compares the CPU time that it got with the time that passed. Nothing waits for this test. If it got all of
   it, the team grows again; if not, the next test comes after twice the time. */

#include "thread_pool.h"

#include <stdatomic.h>

#include "thread_os.h"

#define MS 1000000u
#ifndef PROBE_NS
#define PROBE_NS (10 * MS) /* longer than a time slice, else a test would not see the other process */
#endif
enum {
    MAX_WORKERS = 255,
    SPIN_WORKER_NS = 200000, /* an idle worker spins this long before it sleeps: longer than the gaps inside a frame */
    SPIN_WAIT_NS = 50000,    /* the caller spins this long for claimed ranges: a few of them */
    STALL_NS = 300000,
    HOLD_MIN_NS = 20 * MS,
    HOLD_MAX_NS = 1000 * MS,
    PAUSES = 32              /* between two looks at the clock */
};

enum { IDLE, PROBE, FREE, TAKEN }; /* states of a worker's test of its core */

typedef struct {
    int64_t index; /* 1 and up; 0 is the caller */
    Lock lock;
    Condition wake;
    _Atomic int asleep, probe;
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
    uint64_t hold_ns, next_probe_ns, grown_ns;
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

/* Whether this thread got all the CPU time of PROBE_NS, but for interrupts. */
static int core_is_free(void) {
    uint64_t start = now_ns(), cpu = thread_cpu_ns(), passed;
    do
        for (int i = 0; i < PAUSES; i++) cpu_pause();
    while ((passed = now_ns() - start) < PROBE_NS);
    uint64_t got = thread_cpu_ns() - cpu;
    return got >= passed || passed - got < PROBE_NS / 10;
}

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

/* Sleeps until the caller has work or wants a test. The flag is set before the last look at the ticket, and the caller
   looks at the flag after it has written the ticket, so one of them sees the other. */
static void sleep_until_woken(Worker *worker) {
    lock_take(&worker->lock);
    atomic_store(&worker->asleep, 1);
    int has_work = (uint32_t)atomic_load(&pool.ticket) && worker->index < atomic_load(&pool.limit);
    if (has_work || atomic_load(&worker->probe) == PROBE) atomic_store(&worker->asleep, 0);
    while (atomic_load(&worker->asleep)) condition_wait(&worker->wake, &worker->lock);
    lock_give(&worker->lock);
}

THREAD_MAIN(work, arg) {
    Worker *worker = arg;
    uint64_t last = now_ns();
    for (;;) {
        if (atomic_load_explicit(&worker->probe, memory_order_relaxed) == PROBE) {
            atomic_store(&worker->probe, core_is_free() ? FREE : TAKEN);
        } else if (join_phase(worker)) {
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
        atomic_store(&worker->probe, IDLE);
        if (!thread_start(work, worker)) return; /* without it the caller computes more itself */
    }
}

/* --- the team -------------------------------------------------------------------------------------------------------- */

/* Looks at the result of a test, or starts one when it is time. */
static void try_to_grow(int64_t threads) {
    uint64_t now = now_ns();
    Worker *worker = &workers[pool.allowed - 1];
    int state = atomic_load(&worker->probe);
    if (state == FREE) {
        pool.allowed++;
        pool.grown_ns = now;
    } else if (state == TAKEN) {
        pool.hold_ns = 2 * pool.hold_ns < HOLD_MAX_NS ? 2 * pool.hold_ns : HOLD_MAX_NS;
        pool.next_probe_ns = now + pool.hold_ns;
    } else if (state == IDLE && now >= pool.next_probe_ns && pool.allowed < threads) {
        atomic_store(&worker->probe, PROBE);
        wake(worker);
        return;
    }
    if (state != PROBE) atomic_store(&worker->probe, IDLE);
}

static void shrink(Team *team, uint64_t now) {
    if (team->threads < 2) return;
    pool.allowed = --team->threads;
    /* A stall soon after the team has grown: the test was wrong, the core is used from time to time. */
    int again = now - pool.grown_ns < HOLD_MAX_NS && pool.hold_ns;
    pool.hold_ns = !again ? HOLD_MIN_NS : 2 * pool.hold_ns < HOLD_MAX_NS ? 2 * pool.hold_ns : HOLD_MAX_NS;
    pool.next_probe_ns = now + pool.hold_ns;
    atomic_store(&workers[pool.allowed - 1].probe, IDLE);
}

Team pool_enter(int64_t threads) {
    Team team = {.threads = 1, .owner = 0};
    if (threads < 2 || !lock_try(&pool.entered)) return team;
    team.owner = 1;
    start_workers(threads - 1);
    if (pool.allowed <= pool.workers) try_to_grow(threads);
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
    uint64_t computed = now_ns() - start, waited = wait_for(units - claim.claimed);
    if (waited > STALL_NS && waited > computed) shrink(team, start + computed + waited);
}
