/* The thread pool: every task once, whatever the threads; nesting, sharing, resizing, rounding
 * mode, forks. */
#include "tensor/cpu/cpus.h"
#include "tensor/cpu/pool.h"
#include "tests/help/sanitized.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { MAX_TASKS = 3000 };

static const int thread_counts[] = { 1, 2, 3, 8 };
enum { COUNTS = sizeof thread_counts / sizeof thread_counts[0] };

typedef struct hits {
    atomic_int times[MAX_TASKS];
    td_pool *pool;      /* for nested runs */
    atomic_int threads; /* distinct threads seen, counted by `mark` */
} hits;

static _Thread_local int mark;

static void count_hit(void *ctx, int64_t task)
{
    hits *h = ctx;
    atomic_fetch_add(&h->times[task], 1);
}

static void assert_hits(hits *h, int64_t tasks, int expected)
{
    for (int64_t i = 0; i < MAX_TASKS; i++) {
        assert_int_equal(atomic_load(&h->times[i]), i < tasks ? expected : 0);
    }
}

static hits *new_hits(td_pool *pool)
{
    hits *h = calloc(1, sizeof *h);
    assert_non_null(h);
    h->pool = pool;
    return h;
}

static void test_every_task_once(void **state)
{
    (void)state;
    static const int64_t sizes[] = { 0, 1, 2, 7, 8, 100, MAX_TASKS };
    for (int c = 0; c < COUNTS; c++) {
        td_pool *pool = td_pool_new(thread_counts[c]);
        assert_non_null(pool);
        assert_int_equal(td_pool_threads(pool), thread_counts[c]);
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            hits *h = new_hits(pool);
            td_pool_run(pool, sizes[s], count_hit, h);
            assert_hits(h, sizes[s], 1);
            free(h);
        }
        td_pool_free(pool);
    }
}

static void test_no_pool(void **state)
{
    (void)state;
    hits *h = new_hits(NULL);
    td_pool_run(NULL, 10, count_hit, h);
    assert_hits(h, 10, 1);
    assert_int_equal(td_pool_threads(NULL), 1);
    td_pool_run(NULL, -3, count_hit, h);
    assert_hits(h, 10, 1);
    td_pool_free(NULL);
    free(h);
}

static void test_many_tiny_runs(void **state)
{
    (void)state;
    for (int c = 0; c < COUNTS; c++) {
        td_pool *pool = td_pool_new(thread_counts[c]);
        hits *h = new_hits(pool);
        for (int run = 0; run < 5000; run++) {
            td_pool_run(pool, 3, count_hit, h);
        }
        assert_hits(h, 3, 5000);
        td_pool_free(pool);
        free(h);
    }
}

/* Workers that have gone to sleep are woken, and those that sleep on are not waited for. */
static void test_runs_after_sleep(void **state)
{
    (void)state;
    td_pool *pool = td_pool_new(3);
    hits *h = new_hits(pool);
    for (int run = 0; run < 20; run++) {
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
        td_pool_run(pool, 50, count_hit, h);
    }
    assert_hits(h, 50, 20);
    td_pool_free(pool);
    free(h);
}

static void wait_for_others(void *ctx, int64_t task)
{
    hits *h = ctx;
    (void)task;
    if (!mark) {
        mark = 1;
        atomic_fetch_add(&h->threads, 1);
    }
    while (atomic_load(&h->threads) < 3) {
        nanosleep(&(struct timespec){ .tv_nsec = 1000 }, NULL);
    }
}

static void test_threads_work_together(void **state)
{
    (void)state;
    td_pool *pool = td_pool_new(3);
    hits *h = new_hits(pool);
    mark = 0;
    td_pool_run(pool, 3, wait_for_others, h); /* hangs unless three threads run tasks at once */
    assert_int_equal(atomic_load(&h->threads), 3);
    td_pool_free(pool);
    free(h);
}

/* The tasks in the order in which one thread does them. */
typedef struct order {
    int count;
    int64_t tasks[8];
} order;

static void note_task(void *ctx, int64_t task)
{
    order *o = ctx;
    o->tasks[o->count++] = task;
}

static void test_backwards(void **state)
{
    (void)state;
    order o = { 0 };
    td_pool_run_backwards(NULL, 8, note_task, &o);
    assert_int_equal(o.count, 8);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(o.tasks[i], 7 - i);
    }
    for (int c = 0; c < COUNTS; c++) {
        td_pool *pool = td_pool_new(thread_counts[c]);
        for (int64_t tasks = 0; tasks < 60; tasks++) {
            hits *h = new_hits(pool);
            td_pool_run_backwards(pool, tasks, count_hit, h);
            assert_hits(h, tasks, 1);
            free(h);
        }
        td_pool_free(pool);
    }
}

/* Task `held` ends only when all others have been done. */
typedef struct hold {
    atomic_int done;
    int tasks, held;
    atomic_bool late;
} hold;

static void hold_one(void *ctx, int64_t task)
{
    hold *h = ctx;
    struct timespec pause = { 0, 100000 };
    for (int i = 0; task == h->held && atomic_load(&h->done) < h->tasks - 1; i++) {
        if (i == 100000) { /* ten seconds and more */
            atomic_store(&h->late, true);
            return;
        }
        nanosleep(&pause, NULL);
    }
    if (task != h->held) {
        atomic_fetch_add(&h->done, 1);
    }
}

/* Whichever thread is kept in a task, nobody waits for what is left of its share: at the most for
 * the other tasks that it has taken at once, of which there are none here. */
static void test_late_threads_are_helped(void **state)
{
    (void)state;
    for (int c = 1; c < COUNTS; c++) {
        td_pool *pool = td_pool_new(thread_counts[c]);
        assert_non_null(pool);
        int tasks = 3 * thread_counts[c];
        for (int i = 0; i < 2 * tasks; i++) {
            hold h = { .tasks = tasks, .held = i / 2 };
            (i % 2 == 0 ? td_pool_run : td_pool_run_backwards)(pool, tasks, hold_one, &h);
            assert_false(atomic_load(&h.late));
            assert_int_equal(atomic_load(&h.done), tasks - 1);
        }
        td_pool_free(pool);
    }
}

/* What each thread has added up. */
enum { SUMMING = 2 };

typedef struct sums {
    atomic_int threads;
    struct {
        _Alignas(64) uint64_t tasks;
        uint64_t numbers;
    } of[SUMMING];
} sums;

static _Thread_local int number; /* of the thread, from 1; of the process's only run with sums */

static void add_number(void *ctx, int64_t task)
{
    sums *s = ctx;
    if (number == 0) {
        number = atomic_fetch_add(&s->threads, 1) + 1;
    }
    s->of[number - 1].tasks++;
    s->of[number - 1].numbers += (uint64_t)task;
}

/* In `make test-long` more than a share can count, which are several runs. */
static void test_very_many_tasks(void **state)
{
    (void)state;
    const uint64_t tasks = getenv("TANDEM_LONG") ? UINT64_C(0x80000000) + 5 : 1 << 20;
    td_pool *pool = td_pool_new(SUMMING);
    assert_non_null(pool);
    sums s = { 0 };
    td_pool_run(pool, (int64_t)tasks, add_number, &s);
    assert_true(s.of[0].tasks + s.of[1].tasks == tasks);
    assert_true(s.of[0].numbers + s.of[1].numbers == (tasks - 1) * tasks / 2);
    td_pool_free(pool);
}

static void nest(void *ctx, int64_t task)
{
    hits *h = ctx;
    (void)task;
    td_pool_run(h->pool, 20, count_hit, h);
}

static void test_nested_runs(void **state)
{
    (void)state;
    for (int c = 0; c < COUNTS; c++) {
        td_pool *pool = td_pool_new(thread_counts[c]);
        hits *h = new_hits(pool);
        td_pool_run(pool, 30, nest, h);
        assert_hits(h, 20, 30);
        td_pool_free(pool);
        free(h);
    }
}

static void *share(void *arg)
{
    hits *h = arg;
    for (int run = 0; run < 500; run++) {
        td_pool_run(h->pool, 10, count_hit, h);
    }
    return NULL;
}

static void test_shared_by_threads(void **state)
{
    (void)state;
    td_pool *pool = td_pool_new(2);
    hits *h = new_hits(pool);
    pthread_t other[3];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_create(&other[i], NULL, share, h), 0);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(other[i], NULL);
    }
    assert_hits(h, 10, 1500);
    td_pool_free(pool);
    free(h);
}

static void test_resize(void **state)
{
    (void)state;
    static const int sizes[] = { 4, 1, 8, 2, 2, 3 };
    td_pool *pool = td_pool_new(2);
    hits *h = new_hits(pool);
    int runs = 0;
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        assert_int_equal(td_pool_set_threads(pool, sizes[s]), 0);
        assert_int_equal(td_pool_threads(pool), sizes[s]);
        for (int run = 0; run < 100; run++, runs++) {
            td_pool_run(pool, 40, count_hit, h);
        }
    }
    assert_hits(h, 40, runs);
    assert_int_not_equal(td_pool_set_threads(pool, 0), 0);
    assert_int_equal(td_pool_threads(pool), 3);
    td_pool_free(pool);
    free(h);
    assert_null(td_pool_new(0));
    assert_null(td_pool_new(-1));
}

/* A denormal result, computed where the compiler cannot do it in advance. */
static volatile float tiny = 1e-30f;

static void multiply_tiny(void *ctx, int64_t task)
{
    float *out = ctx;
    out[task] = tiny * 1e-10f;
}

static void test_denormals_are_zero(void **state)
{
    (void)state;
    float before = tiny * 1e-10f;
    assert_true(before > 0);
    for (int c = 0; c < COUNTS; c++) {
        float out[64];
        for (int64_t tasks = 1; tasks <= 64; tasks *= 8) {
            for (int i = 0; i < 64; i++) {
                out[i] = 1;
            }
            td_pool *pool = td_pool_new(thread_counts[c]);
            td_pool_run(pool, tasks, multiply_tiny, out);
            td_pool_free(pool);
#if defined(__x86_64__)
            for (int i = 0; i < tasks; i++) {
                assert_true(out[i] == 0);
            }
#endif
        }
        float after = tiny * 1e-10f;
        assert_true(after == before); /* the caller's mode is back */
    }
}

static void test_default_threads(void **state)
{
    (void)state;
    unsetenv("OMP_NUM_THREADS");
    int cpus = td_default_threads();
    assert_true(cpus >= 1);
    static const struct {
        const char *text;
        int threads; /* 0: as if unset */
    } cases[] = { { "5", 5 },   { "3,2", 3 }, { "0", 0 }, { "-2", 0 },
                  { "two", 0 }, { "4x", 0 },  { "", 0 },  { "99999999999999999999", 0 } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        setenv("OMP_NUM_THREADS", cases[i].text, 1);
        assert_int_equal(td_default_threads(), cases[i].threads ? cases[i].threads : cpus);
    }
    unsetenv("OMP_NUM_THREADS");
}

/* Which CPUs the thread of each task may use. Tasks wait for each other, so that there is one for
 * each thread. */
typedef struct seen_cpus {
    atomic_int arrived;
    int tasks;
    cpu_set_t set[4];
} seen_cpus;

static void look_at_cpus(void *ctx, int64_t task)
{
    seen_cpus *seen = ctx;
    if (sched_getaffinity(0, sizeof seen->set[task], &seen->set[task]) != 0) {
        CPU_ZERO(&seen->set[task]);
    }
    atomic_fetch_add(&seen->arrived, 1);
    while (atomic_load(&seen->arrived) < seen->tasks) {
        nanosleep(&(struct timespec){ .tv_nsec = 1000 }, NULL);
    }
}

/* Of `count` threads one may use all `count` CPUs, the others one each,
 * and not the same. */
static void check_pinned(td_pool *pool, int count)
{
    seen_cpus seen = { .tasks = count };
    cpu_set_t all;
    int callers = 0;
    td_pool_run(pool, count, look_at_cpus, &seen);
    CPU_ZERO(&all);
    for (int i = 0; i < count; i++) {
        int cpus = CPU_COUNT(&seen.set[i]);
        assert_true(cpus == 1 || cpus == count);
        callers += cpus == count;
        CPU_OR(&all, &all, &seen.set[i]);
    }
    assert_int_equal(CPU_COUNT(&all), count);
    assert_true(count == 1 || callers == 1);
}

static void test_pinning(void **state)
{
    (void)state;
    int cpus = td_usable_cpus(), threads = cpus < 4 ? cpus : 4;
    td_pool *pool = td_pool_new(threads);
    assert_non_null(pool);
    assert_int_equal(td_pool_pin(pool, cpus - threads + 1), EINVAL);
    assert_int_equal(td_pool_pin(pool, -1), EINVAL);
    assert_int_equal(td_pool_pin(pool, cpus - threads), 0);
    check_pinned(pool, threads);
    assert_int_equal(td_usable_cpus(), cpus);
    assert_int_equal(td_pool_set_threads(pool, 1), 0); /* binds anew */
    check_pinned(pool, 1);
    assert_int_equal(td_pool_set_threads(pool, cpus + 1), 0); /* too many: lets them go */
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    assert_int_equal(CPU_COUNT(&set), cpus);
    td_pool_free(pool);
}

static void sleep_us(int64_t us)
{
    nanosleep(&(struct timespec){ .tv_nsec = us * 1000 }, NULL);
}

/* The status of a child that ended, or -1 after 20 s. */
static int status_of(pid_t child)
{
    int status = -1;
    pid_t ended = 0;
    for (int i = 0; i < 20000 && ended == 0; i++) {
        ended = waitpid(child, &status, WNOHANG);
        if (ended == 0) {
            sleep_us(1000);
        }
    }
    if (ended == 0) {
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    return ended == child ? status : -1;
}

static int all_hits(const hits *h, int tasks)
{
    int sum = 0;
    for (int i = 0; i < tasks; i++) {
        sum += atomic_load(&h->times[i]);
    }
    return sum;
}

enum { FORK_TASKS = 8 };

/* In a child: each pool runs on one thread, and on `threads` when told so. */
static bool works_in_child(td_pool **pools, int count, int threads)
{
    static hits h;
    int before = all_hits(&h, FORK_TASKS);
    bool right = true;
    for (int i = 0; i < count; i++) {
        right = right && td_pool_threads(pools[i]) == 1;
        td_pool_run(pools[i], FORK_TASKS, count_hit, &h);
        right = right && td_pool_set_threads(pools[i], threads) == 0;
        right = right && td_pool_threads(pools[i]) == threads;
        td_pool_run(pools[i], FORK_TASKS, count_hit, &h);
    }
    return right && all_hits(&h, FORK_TASKS) - before == count * 2 * FORK_TASKS;
}

/* A child has no workers, and the locks that they held at the moment of the fork nobody gives back.
 * Of the workers of so many pools some hold one. */
static void test_forked(void **state)
{
    (void)state;
    enum { POOLS = 16, FORKS = 100, THREADS = 4 };
    static hits h;
    td_pool *pools[POOLS];
    for (int i = 0; i < POOLS; i++) {
        pools[i] = td_pool_new(THREADS);
        assert_non_null(pools[i]);
    }
    for (int k = 0; k < FORKS; k++) {
        for (int i = 0; i < POOLS; i++) {
            td_pool_run(pools[i], FORK_TASKS, count_hit, &h);
        }
        pid_t child = fork();
        assert_int_not_equal(child, -1);
        if (child == 0) {
            int own = TD_SANITIZED_THREADS ? 1 : k % THREADS + 1;
            bool right = works_in_child(pools, POOLS, own);
            pid_t grandchild = k % 10 == 0 ? fork() : -1;
            if (grandchild == 0) {
                _exit(works_in_child(pools, POOLS, TD_SANITIZED_THREADS ? 1 : 2) ? 0 : 1);
            }
            right = right && (grandchild == -1 || status_of(grandchild) == 0);
            for (int i = 0; i < POOLS; i++) {
                td_pool_free(pools[i]);
            }
            _exit(right ? 0 : 1);
        }
        assert_int_equal(status_of(child), 0);
    }
    for (int i = 0; i < POOLS; i++) {
        td_pool_free(pools[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_task_once),
        cmocka_unit_test(test_no_pool),
        cmocka_unit_test(test_many_tiny_runs),
        cmocka_unit_test(test_runs_after_sleep),
        cmocka_unit_test(test_threads_work_together),
        cmocka_unit_test(test_backwards),
        cmocka_unit_test(test_late_threads_are_helped),
        cmocka_unit_test(test_very_many_tasks),
        cmocka_unit_test(test_nested_runs),
        cmocka_unit_test(test_shared_by_threads),
        cmocka_unit_test(test_resize),
        cmocka_unit_test(test_denormals_are_zero),
        cmocka_unit_test(test_default_threads),
        cmocka_unit_test(test_pinning),
        cmocka_unit_test(test_forked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
