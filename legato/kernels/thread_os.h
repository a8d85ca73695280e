/* Threads, locks and clocks of the operating system: POSIX, or Windows. */

#pragma once
#include <stdint.h>

#ifdef _WIN32

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

typedef SRWLOCK Lock;
typedef CONDITION_VARIABLE Condition;
#define LOCK_INIT SRWLOCK_INIT
#define CONDITION_INIT CONDITION_VARIABLE_INIT

static inline void lock_take(Lock *lock) { AcquireSRWLockExclusive(lock); }
static inline int lock_try(Lock *lock) { return TryAcquireSRWLockExclusive(lock); }
static inline void lock_give(Lock *lock) { ReleaseSRWLockExclusive(lock); }
static inline void condition_wait(Condition *condition, Lock *lock) {
    SleepConditionVariableSRW(condition, lock, INFINITE, 0);
}
static inline void condition_signal(Condition *condition) { WakeConditionVariable(condition); }

static inline uint64_t now_ns(void) {
    LARGE_INTEGER ticks, hz;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&hz);
    uint64_t count = (uint64_t)ticks.QuadPart, frequency = (uint64_t)hz.QuadPart;
    return count / frequency * 1000000000u + count % frequency * 1000000000u / frequency;
}

/* CPU time of the calling thread. */
static inline uint64_t thread_cpu_ns(void) {
    FILETIME created, ended, kernel, user;
    GetThreadTimes(GetCurrentThread(), &created, &ended, &kernel, &user);
    uint64_t in_kernel = (uint64_t)kernel.dwHighDateTime << 32 | kernel.dwLowDateTime;
    return 100 * (in_kernel + ((uint64_t)user.dwHighDateTime << 32 | user.dwLowDateTime));
}

#define THREAD_MAIN(name, arg) static DWORD WINAPI name(void *arg)
#define THREAD_END return 0

/* Whether the thread was started. It is never joined. */
static inline int thread_start(LPTHREAD_START_ROUTINE run, void *arg) {
    HANDLE thread = CreateThread(0, 2 << 20, run, arg, 0, 0);
    if (thread) CloseHandle(thread);
    return thread != 0;
}

static inline void at_fork_in_child(void (*run)(void)) { (void)run; }

#else

#include <pthread.h>
#include <signal.h>
#include <time.h>

typedef pthread_mutex_t Lock;
typedef pthread_cond_t Condition;
#define LOCK_INIT PTHREAD_MUTEX_INITIALIZER
#define CONDITION_INIT PTHREAD_COND_INITIALIZER

static inline void lock_take(Lock *lock) { pthread_mutex_lock(lock); }
static inline int lock_try(Lock *lock) { return pthread_mutex_trylock(lock) == 0; }
static inline void lock_give(Lock *lock) { pthread_mutex_unlock(lock); }
static inline void condition_wait(Condition *condition, Lock *lock) { pthread_cond_wait(condition, lock); }
static inline void condition_signal(Condition *condition) { pthread_cond_signal(condition); }

static inline uint64_t clock_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
static inline uint64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

/* CPU time of the calling thread. */
static inline uint64_t thread_cpu_ns(void) { return clock_ns(CLOCK_THREAD_CPUTIME_ID); }

#define THREAD_MAIN(name, arg) static void *name(void *arg)
#define THREAD_END return 0

/* Whether the thread was started. It is never joined. It receives no signals: they belong to the threads of the program.
   The stack is set because some C libraries give threads less than the kernels need. */
static inline int thread_start(void *(*run)(void *), void *arg) {
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t every, before;
    if (pthread_attr_init(&attributes)) return 0;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 2 << 20);
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    int failed = pthread_create(&thread, &attributes, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, 0);
    pthread_attr_destroy(&attributes);
    return !failed;
}

static inline void at_fork_in_child(void (*run)(void)) { pthread_atfork(0, 0, run); }

#endif

/* Tells the CPU that this is a spin loop. */
static inline void cpu_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}
