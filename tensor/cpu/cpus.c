/* The processors that this process may use, and how threads are bound to them. */
#include "tensor/cpu/cpus.h"

#include "tensor/backend.h"
#include "tensor/system/container.h"
#include "tensor/cpu/pool.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

static _Atomic int processes = 1; /* that share the CPUs */

/* What the process could use before it bound threads of its own. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cpu_set_t unbound;
static _Atomic int unbound_count; /* 0: nothing is bound */

static int count_cpus(cpu_set_t *set)
{
    if (sched_getaffinity(0, sizeof *set, set) == 0 && CPU_COUNT(set) > 0) {
        return CPU_COUNT(set);
    }
    return 0; /* more processors than the set can name */
}

int td_usable_cpus(void)
{
    int known = atomic_load(&unbound_count);
    if (known > 0) {
        return known;
    }
    cpu_set_t set;
    long n = count_cpus(&set);
    n = n > 0 ? n : sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

int td_paid_cpus(void)
{
    int usable = td_usable_cpus(), paid = td_container_cpus_now();
    return paid < usable ? paid : usable;
}

void td_pool_share_cpus(int count)
{
    atomic_store(&processes, count > 1 ? count : 1);
}

int td_default_threads(void)
{
    const char *text = getenv("OMP_NUM_THREADS");
    if (text) {
        char *end;
        long n = strtol(text, &end, 10);
        if (end != text && (*end == '\0' || *end == ',') && n >= 1 && n <= TD_POOL_MAX_THREADS) {
            return (int)n;
        }
    }
    int n = td_paid_cpus() / atomic_load(&processes);
    n = n > 0 ? n : 1;
    return n < TD_POOL_MAX_THREADS ? n : TD_POOL_MAX_THREADS;
}

/* CPUs [first, first + count) of those in `from`. */
static cpu_set_t cpus_part_of(const cpu_set_t *from, int first, int count)
{
    cpu_set_t part;
    CPU_ZERO(&part);
    for (int cpu = 0, i = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, from)) {
            if (i >= first && i < first + count) {
                CPU_SET(cpu, &part);
            }
            i++;
        }
    }
    return part;
}

int td_bind_thread(pthread_t thread, int first, int count)
{
    pthread_mutex_lock(&lock);
    if (atomic_load(&unbound_count) == 0) {
        atomic_store(&unbound_count, count_cpus(&unbound));
    }
    pthread_mutex_unlock(&lock);
    if (first < 0 || count < 1 || first > atomic_load(&unbound_count) - count) {
        return EINVAL;
    }
    cpu_set_t part = cpus_part_of(&unbound, first, count);
    return pthread_setaffinity_np(thread, sizeof part, &part);
}

/* ---- denormals ---- */

#if defined(__x86_64__)
enum { TD_MXCSR_FTZ_DAZ = 0x8040 };

/* Sets the mode; returns the old one for td_restore_denormals. */
unsigned td_flush_denormals(void)
{
    unsigned old = _mm_getcsr();
    _mm_setcsr(old | TD_MXCSR_FTZ_DAZ);
    return old;
}

/* Restores the two mode bits only: exception flags raised meanwhile stay. */
void td_restore_denormals(unsigned old)
{
    _mm_setcsr((_mm_getcsr() & ~(unsigned)TD_MXCSR_FTZ_DAZ) | (old & TD_MXCSR_FTZ_DAZ));
}
#else
unsigned td_flush_denormals(void)
{
    return 0;
}

void td_restore_denormals(unsigned old)
{
    (void)old;
}
#endif
