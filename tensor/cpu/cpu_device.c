/* The CPU devices of this process, and their thread pools. */
#include "tensor/cpu/cpu_device.h"

#include "tensor/cpu/cpus.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static struct cpu_device {
    _Atomic(td_pool *) pool; /* NULL: not used yet */
    int threads;             /* asked for; 0: the default */
} devices[TD_MAX_DEVICES];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for all but reading a pool */

static int threads_wanted(const struct cpu_device *cpu)
{
    int threads = cpu->threads > 0 ? cpu->threads : td_default_threads();
    return threads < TD_MAX_CPU_THREADS ? threads : TD_MAX_CPU_THREADS;
}

static td_pool *make_pool(const struct cpu_device *cpu, td_device device)
{
    int threads = threads_wanted(cpu);
    td_pool *pool = td_pool_new(threads);
    if (pool == NULL) {
        fprintf(stderr, "tandem: %s: %d threads could not be started (%s); one is used\n",
                td_device_name(device), threads, strerror(errno));
        pool = td_pool_new(1);
    }
    return pool;
}

td_pool *td_cpu_pool(td_device device)
{
    struct cpu_device *cpu = &devices[device.index];
    td_pool *pool = atomic_load_explicit(&cpu->pool, memory_order_acquire);
    if (pool != NULL) {
        return pool;
    }
    pthread_mutex_lock(&lock);
    pool = atomic_load_explicit(&cpu->pool, memory_order_relaxed);
    if (pool == NULL) {
        pool = make_pool(cpu, device);
        atomic_store_explicit(&cpu->pool, pool, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    return pool;
}

td_status td_cpu_set_threads(td_device device, int threads)
{
    struct cpu_device *cpu = &devices[device.index];
    pthread_mutex_lock(&lock);
    cpu->threads = threads;
    td_pool *pool = atomic_load_explicit(&cpu->pool, memory_order_relaxed);
    int wanted = threads_wanted(cpu);
    int error = pool != NULL ? td_pool_set_threads(pool, wanted) : 0;
    pthread_mutex_unlock(&lock);
    TD_CHECK(error == 0, TD_E_DEVICE, "%s: %d threads could not be started (%s); one is used",
             td_device_name(device), wanted, strerror(error));
    return TD_OK;
}

void td_cpu_share(int processes)
{
    pthread_mutex_lock(&lock);
    td_pool_share_cpus(processes);
    for (int i = 0; i < TD_MAX_DEVICES; i++) {
        td_pool *pool = atomic_load_explicit(&devices[i].pool, memory_order_relaxed);
        if (pool != NULL) { /* also where a number was set: a forked child has no threads yet */
            (void)td_pool_set_threads(pool,
                                      threads_wanted(&devices[i])); /* at worst, one is left */
        }
    }
    pthread_mutex_unlock(&lock);
}

int td_cpu_count(void)
{
    return td_paid_cpus();
}

td_status td_cpu_pin(td_device device, int rank, int ranks)
{
    td_pool *pool = td_cpu_pool(device);
    TD_CHECK(pool != NULL, TD_E_NOMEM, "%s: no memory for its threads", td_device_name(device));
    pthread_mutex_lock(&lock);
    int threads = td_pool_threads(pool), usable = td_usable_cpus(), error = 0;
    bool enough = threads * ranks <= usable;
    if (enough) {
        error = td_pool_pin(pool, rank * threads);
    }
    pthread_mutex_unlock(&lock);
    TD_CHECK(enough, TD_E_ARG,
             "%d processes of %d threads cannot be bound to CPUs of their own: this one "
             "may use %d; take fewer threads, or do not bind them (a launcher may have "
             "done it already)",
             ranks, threads, usable);
    TD_CHECK(error == 0, TD_E_DEVICE, "%s: its threads cannot be bound to CPUs (%s)",
             td_device_name(device), strerror(error));
    return TD_OK;
}

int td_cpu_threads(td_device device)
{
    const struct cpu_device *cpu = &devices[device.index];
    pthread_mutex_lock(&lock);
    td_pool *pool = atomic_load_explicit(&cpu->pool, memory_order_relaxed);
    int threads = pool != NULL ? td_pool_threads(pool) : threads_wanted(cpu);
    pthread_mutex_unlock(&lock);
    return threads;
}
