#include "apps/tools/common/reports.h"

#include "nn/extra/inspect.h"
#include "tensor/extend.h"
#include "tensor/observe/memory_plan.h"
#include "tensor/hooks.h"
#include "tensor/observe/profile.h"
#include "nn/module.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

static struct {
    reports_options options;
    bool open;
    int rank; /* of this process when it began */
    td_module *net;
    const td_optim *optim;
} reports;

enum { LEAST_BLOCK = 64 << 10 }; /* bytes of a block that --memory lists by itself */

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

static td_step_observer observer = { .ended = after_step };

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

/* ---- memory ---- */

static double mib(size_t bytes)
{
    return (double)bytes / 1048576.0;
}

static size_t bytes_of(const td_tensor *t)
{
    return (size_t)td_numel(t) * td_dtype_size((td_dtype)t->dtype);
}

/* Anonymous memory of this process, now or at most. */
static size_t resident_bytes(void)
{
    FILE *f = fopen("/proc/self/status", "r");
    char line[256];
    unsigned long long kb = 0;
    while (f != NULL && fgets(line, sizeof line, f) != NULL && kb == 0) {
        sscanf(line, "RssAnon: %llu", &kb);
    }
    if (f != NULL) {
        fclose(f);
    }
    return (size_t)kb * 1024;
}

static size_t buffer_bytes(const td_module *net)
{
    size_t bytes = 0;
    td_state_list list = td_module_state(net);
    for (int i = 0; i < list.count; i++) {
        bytes += list.items[i].buffer ? bytes_of(list.items[i].tensor) : 0;
    }
    td_state_list_free(&list);
    return bytes;
}

static void print_memory(void)
{
    td_memory_plan_print(stdout, LEAST_BLOCK);
    size_t parameters = 0, buffers = 0, state = 0;
    if (reports.net != NULL) {
        parameters = bytes_of(td_params_flat(td_parameters(reports.net)));
        buffers = buffer_bytes(reports.net);
        state = td_optim_state_bytes(reports.optim);
    }
    size_t step = td_step_memory(reports.options.device).reserved, all = resident_bytes();
    size_t known = 2 * parameters + buffers + state + step;
    printf(
        "\nmemory: parameters %.1f MiB, gradients %.1f, optimizer %.1f, running statistics %.1f, "
        "step %.1f, data and all else %.1f; in all %.1f MiB\n",
        mib(parameters), mib(parameters), mib(state), mib(buffers), mib(step),
        all > known ? mib(all - known) : 0.0, mib(all));
    if (reports.options.picture != NULL && td_memory_plan_draw(reports.options.picture) != TD_OK) {
        fprintf(stderr, "%s\n", td_last_error());
    }
}

/* ---- begin and end ---- */

static td_status begin_profile(const reports_options *options)
{
    td_profile_options profile = { .device = options->device };
    if (options->limits != NULL) {
        TD_TRY(read_limits(options->limits, &profile));
    }
    return td_profile_start(&profile);
}

td_status reports_begin(const reports_options *options)
{
    bool memory = options->memory || options->picture != NULL;
    if (!options->profile && !memory) {
        return TD_OK;
    }
    reports.options = *options;
    reports.options.memory = memory;
    reports.rank = td_dist_rank();
    if (options->profile) {
        TD_TRY(begin_profile(options));
    }
    if (memory) {
        td_memory_plan_start();
    }
    catch_signal(SIGINT);
    catch_signal(SIGTERM);
    td_observe_steps(&observer);
    reports.open = true;
    return TD_OK;
}

void reports_model(td_module *net, const td_optim *optim)
{
    reports.net = net;
    reports.optim = optim;
}

void reports_end(void)
{
    if (!reports.open) {
        return;
    }
    reports.open = false;
    td_ignore_steps(&observer);
    td_profile_stop();
    td_memory_plan_stop();
    if (reports.rank == 0 && reports.options.profile) {
        td_profile_print(stdout, 0);
    }
    if (reports.rank == 0 && reports.options.memory) {
        print_memory();
    }
}
