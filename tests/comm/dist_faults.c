/* Ranks that die or hang, and what survivors were told. */
#include "dist/comm/collectives.h"
#include "tests/comm/dist_faults.h"

#include "tensor/clock.h"
#include "dist/comm/group.h"
#include "tests/help/sanitized.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <cmocka.h>

_Atomic double *fault_at;

int fault_setup(void **state)
{
    (void)state;
    fault_at =
        mmap(NULL, sizeof *fault_at, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return fault_at == MAP_FAILED;
}

double fault_patience(void)
{
    return TD_SANITIZED ? 20 : 5;
}

void fault_set_timeout(double seconds)
{
    td_dist_world()->timeout = seconds;
}

int fault_repeats(void)
{
    return getenv("TANDEM_LONG") != NULL ? 50 : TD_SANITIZED ? 1 : 5;
}

void fault_run(int size, double limit, procs_fn fn, void *arg, procs_end *ends)
{
    static int turn;
    procs_meet_over_tcp(turn++ % 2 != 0);
    procs_run(size, limit, fn, arg, ends);
    procs_assert_nothing_left();
}

int fault_report(td_status status)
{
    fprintf(stderr, "status %d after %.3f s: %s\n", (int)status, td_clock() - *fault_at,
            td_last_error());
    td_dist_destroy();
    return status == TD_OK ? 0 : FAULT_SURVIVED;
}

void assert_survived(const procs_end *ends, int rank)
{
    if (ends[rank].code != FAULT_SURVIVED) {
        fail_msg("rank %d: code %d, signal %d: %s", rank, ends[rank].code, ends[rank].signal,
                 ends[rank].output);
    }
}
