/* Tests of the thread pool. Each test provokes one interleaving: phases wait, for a limited time, until the other thread
   is where the test needs it. Exits with 1 and a sentence if a test fails. Usage: pool_test THREADS */

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "thread_os.h"
#include "thread_pool.h"

enum { UNITS = 1000, SECOND = 1000000000 };

#define CHECK(condition, ...)                                                                                           \
    do {                                                                                                                \
        if (!(condition)) {                                                                                             \
            printf("%s:%d: ", __func__, __LINE__);                                                                      \
            printf(__VA_ARGS__);                                                                                        \
            printf("\n");                                                                                               \
            exit(1);                                                                                                    \
        }                                                                                                               \
    } while (0)

static void sleep_ms(int64_t ms) { usleep((useconds_t)(1000 * ms)); }

typedef struct {
    int64_t threads, delay_ms; /* how long a worker needs for its first range */
    int64_t *result;           /* of each unit: how often it was computed */
    _Atomic int64_t *joined;   /* workers that have claimed a range */
    int64_t wait;              /* no thread computes its first range before this many workers have claimed one */
} Work;

static void count_phase(const void *arg, Claim *claim) {
    const Work *work = arg;
    if (claim->thread) atomic_fetch_add(work->joined, 1);
    uint64_t start = now_ns();
    while (atomic_load(work->joined) < work->wait && now_ns() - start < 5 * (uint64_t)SECOND) sleep_ms(1);
    if (claim->thread && work->delay_ms) sleep_ms(work->delay_ms);
    do
        for (int64_t unit = claim->from; unit < claim->end; unit++) work->result[unit]++;
    while (next_claim(claim));
}

/* Runs one phase and returns how many workers took part. */
static int64_t count(Team *team, int64_t threads, int64_t wait, int64_t delay_ms, int64_t units, int64_t grain) {
    static int64_t result[UNITS];
    _Atomic int64_t joined = 0;
    memset(result, 0, sizeof result);
    Work work = {threads, delay_ms, result, &joined, wait};
    pool_run(team, count_phase, &work, units, grain);
    for (int64_t unit = 0; unit < units; unit++)
        CHECK(result[unit] == 1, "unit %d was computed %d times", (int)unit, (int)result[unit]);
    return atomic_load(&joined);
}

/* Every unit is computed once, by all threads. */
static void test_all_threads_take_part(int64_t threads) {
    Team team = pool_enter(threads);
    int64_t joined = count(&team, threads, threads - 1, 0, UNITS, 1);
    pool_leave(&team);
    CHECK(joined == threads - 1, "%d workers took part", (int)joined);
}

/* A phase ends when the slowest worker has finished what it claimed. */
static void test_claimed_ranges_are_awaited(int64_t threads) {
    Team team = pool_enter(threads);
    count(&team, threads, threads - 1, 30, UNITS, 1);
    pool_leave(&team);
}

/* Workers that are asleep or late cost nothing: the caller computes everything. */
static void test_nobody_waits_for_a_late_worker(int64_t threads) {
    sleep_ms(20); /* workers fall asleep */
    Team team = pool_enter(threads);
    for (int64_t i = 0; i < 20000; i++) count(&team, threads, 0, 0, 1 + i % 7, 1);
    pool_leave(&team);
}

/* A phase that is one range runs on the caller. */
static void test_a_small_phase_runs_on_the_caller(int64_t threads) {
    Team team = pool_enter(threads);
    int64_t joined = count(&team, threads, 0, 0, 10, 10);
    pool_leave(&team);
    CHECK(joined == 0, "%d workers took part", (int)joined);
}

/* A second caller does not wait for the pool. */
static void test_a_second_caller_computes_alone(int64_t threads) {
    Team team = pool_enter(threads), second = pool_enter(threads);
    CHECK(second.threads == 1, "the second caller has %d threads", (int)second.threads);
    count(&second, threads, 0, 0, UNITS, 1);
    count(&team, threads, threads - 1, 0, UNITS, 1);
    pool_leave(&second);
    pool_leave(&team);
}

/* After a long wait the team has one thread less; it grows back after a test. */
static void test_the_team_shrinks_and_grows(int64_t threads) {
    if (threads < 2) return;
    Team team = pool_enter(threads);
    count(&team, threads, 1, 50, UNITS, 1);
    CHECK(team.threads == threads - 1, "%d of %d threads after a stall", (int)team.threads, (int)threads);
    CHECK(count(&team, threads, 0, 0, UNITS, 1) < threads - 1, "an excluded worker took part");
    pool_leave(&team);
    uint64_t start = now_ns();
    while (team.threads < threads && now_ns() - start < 60 * (uint64_t)SECOND) {
        sleep_ms(5);
        team = pool_enter(threads);
        pool_leave(&team);
    }
    CHECK(team.threads == threads, "only %d of %d threads after a minute", (int)team.threads, (int)threads);
}

int main(int count, char **arguments) {
    int64_t threads = count > 1 ? atoll(arguments[1]) : 2;
    test_all_threads_take_part(threads);
    test_claimed_ranges_are_awaited(threads);
    for (Team team = {0}; team.threads < threads; pool_leave(&team)) team = pool_enter(threads), sleep_ms(5);
    test_nobody_waits_for_a_late_worker(threads);
    test_a_small_phase_runs_on_the_caller(threads);
    test_a_second_caller_computes_alone(threads);
    test_the_team_shrinks_and_grows(threads);
    return 0;
}
