/* A rank that dies, or is stopped, in the course of a sharded step or of a save: the others wait
 * for what it has of all, and are told which rank that is. */
// run: waits
#include "autograd/hooks.h"
#include "dist/ddp/extra.h"
#include "nn/module.h"
#include "tensor/clock.h"
#include "tests/comm/dist_faults.h"
#include "tests/dist/shard_run.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

enum { RANKS = 3, VICTIM = RANKS - 1 };
static const double limit = 60.0, TIMEOUT = 2.0; /* seconds; of the others, for a stopped rank */

typedef enum place { IN_FORWARD, IN_BACKWARD, IN_OPTIM, IN_SAVE } place;

typedef struct fault_case {
    int way;
    place place;
    const char *waits; /* in which collective the others wait for the rank that is stopped; NULL:
                          the rank is killed */
} fault_case;

static void note_failure(td_status status, const char *message, void *user)
{
    (void)message;
    *(td_status *)user = status;
}

/* All ranks come here; then one is not there any more, and the others go on. */
static void come_to_the_fault(const fault_case *f)
{
    if (td_dist_rank() == VICTIM) {
        raise(f->waits != NULL ? SIGSTOP : SIGKILL);
    } else if (f->waits != NULL) {
        procs_await_stopped(VICTIM);
        fault_set_timeout(TIMEOUT);
    }
    *fault_at = td_clock();
}

static void come_in_backward(td_tensor *leaf, void *user)
{
    (void)leaf;
    come_to_the_fault(user);
}

/* What this rank is told in the course of a step, or of a save after backward. */
static void run_until_told(shard_run *r, const fault_case *f, td_status *told)
{
    td_zero_grad(r->job.optim);
    if (f->place == IN_FORWARD) {
        come_to_the_fault(f);
    } else if (f->place == IN_BACKWARD) {
        /* When two blocks have their gradients; or when nothing has been sent, since what has been
         * submitted has the old time-out. */
        const char *layer = f->waits != NULL ? "5" : "2.4";
        td_tensor *weight = td_module_find(r->job.net, layer)->tensors[0].tensor;
        REQUIRE(td_on_grad_ready(weight, come_in_backward, (void *)(uintptr_t)f) >= 0);
    }
    shard_backward(r);
    if (*told == TD_OK && f->place >= IN_OPTIM) {
        come_to_the_fault(f);
        if (f->place == IN_OPTIM) {
            td_optim_step(r->job.optim);
        } else {
            *told = td_checkpoint_save("/no/such/folder/file", r->job.net, .optim = r->job.optim);
        }
    }
}

static int run_fault(int rank, int size, void *arg)
{
    const fault_case *f = arg;
    procs_init(rank, size, 20.0);
    shard_case c = { .kind = JOB_BLOCKS, .rule = ADAM };
    shard_run r;
    td_status told = TD_OK;
    shard_open(&r, &c, f->way, rank);
    td_ddp_on_error(r.job.net, note_failure, &told);
    shard_step(&r, &c);
    run_until_told(&r, f, &told);
    char reason[1024];
    snprintf(reason, sizeof reason, "%s", td_last_error());
    REQUIRE(told != TD_OK);
    REQUIRE(rank == VICTIM || td_clock() - *fault_at < TIMEOUT + fault_patience());
    procs_arrive();
    if (rank == 0 && f->waits != NULL) {
        procs_await(size - 1);
        kill(procs_pid(VICTIM), SIGCONT); /* it then learns what has happened */
    }
    shard_close(&r);
    td_fail(told, "%s", reason);
    return fault_report(told);
}

static void test_a_death_is_told_to_all(void **state)
{
    (void)state;
    static procs_end ends[RANKS];
    static const fault_case deaths[] = {
        { TD_SHARD_OPTIMIZER, IN_OPTIM, NULL },    { TD_SHARD_GRADIENTS, IN_BACKWARD, NULL },
        { TD_SHARD_GRADIENTS, IN_OPTIM, NULL },    { TD_SHARD_GRADIENTS, IN_SAVE, NULL },
        { TD_SHARD_PARAMETERS, IN_FORWARD, NULL }, { TD_SHARD_PARAMETERS, IN_BACKWARD, NULL },
        { TD_SHARD_PARAMETERS, IN_OPTIM, NULL },   { TD_SHARD_PARAMETERS, IN_SAVE, NULL },
        { SHARD_GATHERED, IN_FORWARD, NULL },      { SHARD_GATHERED, IN_BACKWARD, NULL },
        { SHARD_GATHERED, IN_SAVE, NULL },
    };
    for (size_t i = 0; i < sizeof deaths / sizeof *deaths; i++) {
        bool meets = deaths[i].way != TD_SHARD_PARAMETERS || shard_is_woven(deaths[i].way);
        if (deaths[i].place == IN_OPTIM && !meets) {
            continue; /* where values are gathered, a step needs nobody */
        }
        fault_run(RANKS, limit, run_fault, (void *)(uintptr_t)&deaths[i], ends);
        for (int rank = 0; rank < VICTIM; rank++) {
            assert_survived(ends, rank);
            procs_assert_says(ends, rank, "rank 2 (pid ");
        }
    }
}

static void test_a_stopped_rank_is_named(void **state)
{
    (void)state;
    static procs_end ends[RANKS];
    static const fault_case stops[] = {
        { SHARD_GATHERED, IN_FORWARD, "all_gather" },
        { TD_SHARD_GRADIENTS, IN_BACKWARD, "reduce_scatter" },
        { TD_SHARD_GRADIENTS, IN_OPTIM, "all_gather" },
        { TD_SHARD_GRADIENTS, IN_SAVE, "" },
        { SHARD_GATHERED, IN_SAVE, "" },
    };
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        fault_run(RANKS, limit, run_fault, (void *)(uintptr_t)&stops[i], ends);
        for (int rank = 0; rank < RANKS; rank++) { /* also the stopped one, when it goes on */
            assert_survived(ends, rank);
            procs_assert_says(ends, rank, stops[i].waits);
            procs_assert_says(ends, rank, " timed out after 2.");
            procs_assert_says(ends, rank, "rank 2 has not: its last was ");
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_death_is_told_to_all),
        cmocka_unit_test(test_a_stopped_rank_is_named),
    };
    return cmocka_run_group_tests(tests, fault_setup, NULL);
}
