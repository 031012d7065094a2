/*
 * How a run goes. The caller writes the job, opens the run and works; workers join while it is
 * open. When no task is left the caller closes the run and waits for those who joined. A worker
 * that comes too late finds the run closed, so nobody ever waits for a sleeper.
 *
 * `state` holds all of that in one word: the run's generation, how many workers are in it, and
 * whether it is open. Idle threads spin for a moment, since the next run of a training step is
 * microseconds away, and then sleep, since a spinning thread takes a core from somebody else.
 */
#include "tensor/cpu/pool.h"

#include "tensor/cpu/cpus.h"
#include "tensor/backend.h"
#include "tensor/clock.h"
#include "tensor/system/thread.h"

#include <errno.h>
#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <emmintrin.h> /* _mm_pause */
#endif

enum {
    CACHE_LINE = 64,
    PARTS_OF_SHARE = 4,      /* a thread takes one of what is left */
    MOST_TASKS = 0x7fffffff, /* of a run */
};

static const double SPIN = 40e-6; /* seconds */

#define STATE_OPEN UINT64_C(1)
#define STATE_WORKER UINT64_C(2)
#define STATE_WORKERS (UINT64_C(0xffffff) & ~STATE_OPEN)
#define STATE_GENERATION UINT64_C(0x1000000)

/* What a call asks for. */
typedef struct job {
    int64_t tasks;
    td_task_fn fn;
    void *ctx;
    bool backwards;
} job;

/* A thread, and what is left of its share of the tasks. The first one is the caller. */
typedef struct member {
    alignas(CACHE_LINE) _Atomic uint64_t left; /* [begin, end), begin in the upper half */
    pthread_t thread;                          /* not the caller's */
    td_pool *pool;
} member;

struct td_pool {
    alignas(CACHE_LINE) _Atomic uint64_t state;
    atomic_int sleepers;       /* workers that wait for `wake` */
    atomic_bool caller_sleeps; /* the caller waits for `done` */
    atomic_bool stop;

    /* The job: written before the run opens, read by those who joined it. */
    alignas(CACHE_LINE) job job;
    int64_t first; /* of the tasks that the members' shares count from 0 */
    member *members;
    int shares; /* the first members have one */

    alignas(CACHE_LINE) pthread_mutex_t owner; /* held by the thread whose run it is */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_cond_t done;
    int threads;
    double spin;   /* seconds that a thread waits before it sleeps */
    int first_cpu; /* of those that the threads are bound to; -1: they are free */
    int forks;     /* `forks` when the workers were started */
};

static _Thread_local bool inside_task;

/* ---- forks ---- */

static atomic_int forks; /* that this process is away from the first one */
static pthread_once_t forks_counted = PTHREAD_ONCE_INIT;

static void count_fork(void)
{
    atomic_fetch_add(&forks, 1);
}

/* Should there be no memory for that, a child is as it was without: it may wait. */
static void count_forks(void)
{
    (void)pthread_atfork(NULL, NULL, count_fork);
}

/* In a process that was forked from the one with the workers there are none, and what they held at
 * that moment stays locked: to wake them would wait for ever. */
static bool is_forked(const td_pool *pool)
{
    return pool->forks != atomic_load_explicit(&forks, memory_order_relaxed);
}

int td_pool_threads(const td_pool *pool)
{
    return pool && !is_forked(pool) ? pool->threads : 1;
}

/* ---- waiting ---- */

static void cpu_relax(void)
{
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

/* Stores past the caches are not ordered among others: before anybody is told that tasks are done,
 * they must be. */
static void end_stores(void)
{
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

/* Spins until ready(pool, arg) or the time is up; says whether it is ready. */
static bool spin_until(td_pool *pool, bool (*ready)(td_pool *, uint64_t *), uint64_t *arg)
{
    if (ready(pool, arg)) {
        return true;
    }
    if (pool->spin == 0) {
        return false;
    }
    double end = td_clock() + pool->spin;
    do {
        for (int i = 0; i < 8; i++) {
            cpu_relax();
            if (ready(pool, arg)) {
                return true;
            }
        }
    } while (td_clock() < end);
    return false;
}

/* ---- workers ---- */

static uint64_t pack_range(uint32_t begin, uint32_t end)
{
    return (uint64_t)begin << 32 | end;
}

/* Some tasks of a share, the first or the last ones, fewer the fewer are left: neighbours share
 * what they read, but at the end no thread should wait for another one's long row. */
static bool take_tasks(member *of, bool first_ones, uint32_t *begin, uint32_t *end)
{
    uint64_t range = atomic_load_explicit(&of->left, memory_order_relaxed), rest;
    do {
        uint32_t first = (uint32_t)(range >> 32), last = (uint32_t)range;
        if (first == last) {
            return false;
        }
        uint32_t chunk = (last - first) / PARTS_OF_SHARE;
        chunk = chunk > 1 ? chunk : 1;
        *begin = first_ones ? first : last - chunk;
        *end = *begin + chunk;
        rest = first_ones ? pack_range(*end, last) : pack_range(first, *begin);
    } while (!atomic_compare_exchange_weak_explicit(&of->left, &range, rest, memory_order_relaxed,
                                                    memory_order_relaxed));
    return true;
}

/* A thread's share is the same part of the tasks in each run, and what it takes from others that
 * are late is what they would come to last: so it finds much of what it read or wrote in the last
 * run in its own core's cache, and what it writes lies together. Lines of another core's cache are
 * far away, and are fetched even for reading a little beyond what is one's own. */
static void do_tasks(td_pool *pool, int self)
{
    const job *j = &pool->job;
    uint32_t begin = 0, end = 0;
    for (int i = 0; i < pool->shares; i++) {
        member *of = &pool->members[(self + i) % pool->shares];
        bool owner = of == &pool->members[self];
        while (take_tasks(of, owner != j->backwards, &begin, &end)) {
            for (uint32_t done = 0; done < end - begin; done++) {
                uint32_t task = j->backwards ? end - 1 - done : begin + done;
                j->fn(j->ctx, pool->first + task);
            }
        }
    }
    end_stores();
}

/* Joins the open run unless it is the one this worker has already been in. */
static bool try_join(td_pool *pool, uint64_t *seen)
{
    uint64_t s = atomic_load(&pool->state);
    while ((s & STATE_OPEN) && s / STATE_GENERATION != *seen) {
        if (atomic_compare_exchange_weak(&pool->state, &s, s + STATE_WORKER)) {
            *seen = s / STATE_GENERATION;
            return true;
        }
    }
    return false;
}

static bool join_or_stop(td_pool *pool, uint64_t *seen)
{
    return try_join(pool, seen) || atomic_load(&pool->stop);
}

static void wait_for_run(td_pool *pool, uint64_t *seen)
{
    if (spin_until(pool, join_or_stop, seen)) {
        return;
    }
    pthread_mutex_lock(&pool->lock);
    /* Counted before the last look: a caller that opens a run after that look sees the count. */
    atomic_fetch_add(&pool->sleepers, 1);
    while (!join_or_stop(pool, seen)) {
        pthread_cond_wait(&pool->wake, &pool->lock);
    }
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->lock);
}

static void leave_run(td_pool *pool)
{
    uint64_t s = atomic_fetch_sub(&pool->state, STATE_WORKER) - STATE_WORKER;
    bool last = !(s & STATE_OPEN) && !(s & STATE_WORKERS);
    if (last && atomic_load(&pool->caller_sleeps)) {
        pthread_mutex_lock(&pool->lock);
        pthread_cond_signal(&pool->done);
        pthread_mutex_unlock(&pool->lock);
    }
}

static void *worker_main(void *arg)
{
    member *self = arg;
    td_pool *pool = self->pool;
    uint64_t seen = 0;
    inside_task = true;
    td_flush_denormals();
    for (;;) {
        wait_for_run(pool, &seen);
        if (atomic_load(&pool->stop)) {
            return NULL;
        }
        do_tasks(pool, (int)(self - pool->members));
        leave_run(pool);
    }
}

/* ---- the caller ---- */

/* Tasks [first, first + tasks) of a job. */
static void open_run(td_pool *pool, const job *j, int64_t first, int64_t tasks)
{
    pool->job = *j;
    pool->first = first;
    pool->shares = (int)(tasks < pool->threads ? tasks : pool->threads);
    for (int64_t i = 0; i < pool->shares; i++) {
        uint32_t begin = (uint32_t)(tasks * i / pool->shares);
        uint32_t end = (uint32_t)(tasks * (i + 1) / pool->shares);
        atomic_store_explicit(&pool->members[i].left, pack_range(begin, end), memory_order_relaxed);
    }
    /* From here on workers may join: a generation up, nobody in, open. */
    uint64_t s = atomic_load_explicit(&pool->state, memory_order_relaxed);
    atomic_store(&pool->state, (s / STATE_GENERATION + 1) * STATE_GENERATION + STATE_OPEN);
    if (atomic_load(&pool->sleepers) > 0) {
        pthread_mutex_lock(&pool->lock);
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->lock);
    }
}

static bool all_left(td_pool *pool, uint64_t *unused)
{
    (void)unused;
    return (atomic_load(&pool->state) & STATE_WORKERS) == 0;
}

static void close_run(td_pool *pool)
{
    atomic_fetch_and(&pool->state, ~STATE_OPEN);
    if (spin_until(pool, all_left, NULL)) {
        return;
    }
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->caller_sleeps, true);
    while (!all_left(pool, NULL)) {
        pthread_cond_wait(&pool->done, &pool->lock);
    }
    atomic_store(&pool->caller_sleeps, false);
    pthread_mutex_unlock(&pool->lock);
}

static void run_alone(const job *j)
{
    for (int64_t i = 0; i < j->tasks; i++) {
        j->fn(j->ctx, j->backwards ? j->tasks - 1 - i : i);
    }
}

static void run_shared(td_pool *pool, const job *j)
{
    for (int64_t first = 0; first < j->tasks; first += MOST_TASKS) {
        int64_t left = j->tasks - first;
        open_run(pool, j, first, left < MOST_TASKS ? left : MOST_TASKS);
        do_tasks(pool, 0);
        close_run(pool);
    }
}

static void pool_run(td_pool *pool, const job *j)
{
    if (j->tasks <= 0) {
        return;
    }
    if (inside_task) { /* the mode is already set */
        run_alone(j);
        return;
    }
    bool shared = j->tasks > 1 && td_pool_threads(pool) > 1;
    shared = shared && pthread_mutex_trylock(&pool->owner) == 0;
    unsigned mode = td_flush_denormals();
    inside_task = true;
    if (shared) {
        run_shared(pool, j);
    } else {
        run_alone(j);
        end_stores();
    }
    inside_task = false;
    td_restore_denormals(mode);
    if (shared) {
        pthread_mutex_unlock(&pool->owner);
    }
}

void td_pool_run(td_pool *pool, int64_t tasks, td_task_fn fn, void *ctx)
{
    const job j = { tasks, fn, ctx, false };
    pool_run(pool, &j);
}

void td_pool_run_backwards(td_pool *pool, int64_t tasks, td_task_fn fn, void *ctx)
{
    const job j = { tasks, fn, ctx, true };
    pool_run(pool, &j);
}

/* ---- life ---- */

/* In a child: locks and counts are as they were at the fork. */
static void forget_workers(td_pool *pool)
{
    pthread_mutex_init(&pool->owner, NULL);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);
    atomic_fetch_and(&pool->state, ~(STATE_WORKERS | STATE_OPEN));
    atomic_store(&pool->sleepers, 0);
    atomic_store(&pool->caller_sleeps, false);
    pool->threads = 1;
    pool->forks = atomic_load(&forks);
}

static void stop_workers(td_pool *pool)
{
    if (is_forked(pool)) {
        forget_workers(pool);
    }
    atomic_store(&pool->stop, true);
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 1; i < pool->threads; i++) {
        pthread_join(pool->members[i].thread, NULL);
    }
    free(pool->members);
    pool->members = NULL;
    pool->threads = 1;
    atomic_store(&pool->stop, false);
}

/* Starts threads - 1 workers; on failure none is left. */
static int start_workers(td_pool *pool, int threads)
{
    /* With more threads than processors a spinning thread keeps a working one from its core. */
    pool->spin = threads <= td_paid_cpus() ? SPIN : 0;
    pool->members = aligned_alloc(CACHE_LINE, (size_t)threads * sizeof *pool->members);
    if (!pool->members) {
        return ENOMEM;
    }
    memset(pool->members, 0, (size_t)threads * sizeof *pool->members);
    int error = 0;
    while (pool->threads < threads && !error) {
        member *next = &pool->members[pool->threads];
        next->pool = pool;
        error = td_thread_start(&next->thread, worker_main, next);
        if (!error) {
            pool->threads++;
        }
    }
    if (error) {
        stop_workers(pool);
    }
    return error;
}

/* The caller and the workers on CPUs [first, first + count), one for each worker if count is that
 * of the threads. */
static int bind_threads(td_pool *pool, int first, int count)
{
    int error = td_bind_thread(pthread_self(), first, count);
    int threads = td_pool_threads(pool);
    bool alone = count == threads;
    for (int i = 0; i < threads - 1 && !error; i++) {
        error = td_bind_thread(pool->members[i + 1].thread, alone ? first + 1 + i : first,
                               alone ? 1 : count);
    }
    return error;
}

int td_pool_pin(td_pool *pool, int first)
{
    int error = bind_threads(pool, first, td_pool_threads(pool));
    pool->first_cpu = error ? -1 : first;
    return error;
}

int td_pool_set_threads(td_pool *pool, int threads)
{
    if (threads < 1 || threads > TD_POOL_MAX_THREADS) {
        return EINVAL;
    }
    if (threads == td_pool_threads(pool)) {
        return 0;
    }
    stop_workers(pool);
    int error = start_workers(pool, threads);
    if (!error && pool->first_cpu >= 0 && td_pool_pin(pool, pool->first_cpu)) {
        (void)bind_threads(pool, 0, td_usable_cpus()); /* not so many: they are free again */
    }
    return error;
}

td_pool *td_pool_new(int threads)
{
    if (threads < 1 || threads > TD_POOL_MAX_THREADS) {
        errno = EINVAL;
        return NULL;
    }
    td_pool *pool = aligned_alloc(CACHE_LINE, sizeof *pool);
    if (!pool) {
        return NULL;
    }
    memset(pool, 0, sizeof *pool);
    pthread_once(&forks_counted, count_forks);
    pool->forks = atomic_load(&forks);
    pthread_mutex_init(&pool->owner, NULL);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);
    pool->threads = 1;
    pool->first_cpu = -1;
    int error = start_workers(pool, threads);
    if (error) {
        td_pool_free(pool);
        errno = error;
        return NULL;
    }
    return pool;
}

void td_pool_free(td_pool *pool)
{
    if (!pool) {
        return;
    }
    stop_workers(pool);
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    pthread_mutex_destroy(&pool->owner);
    free(pool);
}
