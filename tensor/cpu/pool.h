/*
 * The thread pool of a CPU device. A run calls fn(ctx, task) once for every task in [0, tasks),
 * in no particular order, on the pool's threads; the caller is one of them.
 *
 * Each thread has a share of consecutive tasks, the same share in each run. When a thread is done,
 * it takes tasks from other threads. Number tasks in the order of their results in memory: if two
 * threads write next to each other, their cores take cache lines from each other.
 *
 * Which thread runs which task is decided during the run. So a task must write only its own result,
 * and a sum over tasks must be cut by data and combined in a fixed order afterwards. Then results
 * do not depend on the number of threads. */
#pragma once

#include <stdint.h>

typedef struct td_pool td_pool;
typedef void (*td_task_fn)(void *ctx, int64_t task);

enum { TD_POOL_MAX_THREADS = 4096 };

/* A pool of `threads` >= 1 threads, the caller included. NULL with errno on failure. */
td_pool *td_pool_new(int threads);

/* Ends and joins the threads. NULL is fine. */
void td_pool_free(td_pool *pool);

/* The number of threads, the caller included; 1 for NULL, and in a process that was forked from the
 * one with the pool's workers until it sets a number. */
int td_pool_threads(const td_pool *pool);

/*
 * Changes the number of threads; not during a run. Returns 0, or an errno code, after which the
 * pool works on with one thread.
 */
int td_pool_set_threads(td_pool *pool, int threads);

/*
 * Runs all tasks and returns when they are done. Everything a task wrote is then visible to the
 * caller.
 *
 * Runs on the calling thread alone: with a NULL pool, one thread or one task; from inside a task;
 * while another thread is using the pool; and in a process that was forked from the one with the
 * pool's workers, until it sets a number of threads of its own.
 *
 * Denormal numbers count as zero inside tasks (flush-to-zero and denormals-are-zero, on x86),
 * whichever thread runs them; the caller's mode is restored.
 */
void td_pool_run(td_pool *pool, int64_t tasks, td_task_fn fn, void *ctx);

/* The same, but each thread goes through its share backwards: the end of a share of the run before
 * is still in the cache. (More than 2^31 - 1 tasks are several runs, each backwards.) */
void td_pool_run_backwards(td_pool *pool, int64_t tasks, td_task_fn fn, void *ctx);

/*
 * Binds the threads to CPUs, from the `first` of td_usable_cpus() on: each worker to one of its
 * own, the caller to all of them, so that threads that it starts (loaders, communication) stay
 * there, too. 0 or an errno code; EINVAL: too few CPUs. td_pool_set_threads binds the threads
 * again, or unbinds them if there are too few CPUs for them.
 */
int td_pool_pin(td_pool *pool, int first);
