#include "apps/common/reports.h"

#include "tensor/watch.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

static struct {
    reports_options options;
    bool open;
    int rank; /* of this process when it began */
} reports;

static volatile sig_atomic_t interrupted; /* the signal's number */

static void on_signal(int number)
{
    interrupted = number;
}

/* Only where the signal would end the program. */
static void catch_signal(int number)
{
    struct sigaction old;
    if (sigaction(number, NULL, &old) == 0 && old.sa_handler == SIG_DFL) {
        struct sigaction action = { .sa_handler = on_signal,
                                    .sa_flags = SA_RESTART | SA_RESETHAND };
        sigemptyset(&action.sa_mask);
        sigaction(number, &action, NULL);
    }
}

static void after_step(double begin, double end, void *user)
{
    (void)begin, (void)end, (void)user;
    if (interrupted != 0) {
        reports_end();
        raise(interrupted); /* the default again: it ends the program */
    }
}

static td_watcher watcher = { .step_ended = after_step };

static td_status read_limits(const char *text, td_profile_options *options)
{
    double gflops, gbytes;
    char end;
    if (sscanf(text, "%lf,%lf%c", &gflops, &gbytes, &end) != 2 || gflops <= 0 || gbytes <= 0) {
        return td_fail(TD_E_ARG,
                       "--profile-limits '%s': give two numbers, as in 430,28: GFLOP/s in f32, and "
                       "GB/s of memory",
                       text);
    }
    options->flops_f32 = 1e9 * gflops;
    options->flops_f64 = 0.5e9 * gflops;
    options->bytes = 1e9 * gbytes;
    return TD_OK;
}

td_status reports_begin(const reports_options *options)
{
    if (!options->profile) {
        return TD_OK;
    }
    reports.options = *options;
    reports.rank = td_dist_rank();
    td_profile_options profile = { .device = options->device };
    if (options->limits != NULL) {
        TD_TRY(read_limits(options->limits, &profile));
    }
    TD_TRY(td_profile_start(&profile));
    catch_signal(SIGINT);
    catch_signal(SIGTERM);
    td_watch(&watcher);
    reports.open = true;
    return TD_OK;
}

void reports_end(void)
{
    if (!reports.open) {
        return;
    }
    reports.open = false;
    td_unwatch(&watcher);
    td_profile_stop();
    if (reports.rank == 0) {
        td_profile_print(stdout, 0);
    }
}
