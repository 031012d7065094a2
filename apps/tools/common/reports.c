/* Prints where the time of a run went, and what its memory is for. */
#include "apps/tools/common/reports.h"

#include "apps/tools/common/log.h"
#include "dist/comm/engines/sim/sim.h"
#include "nn/extra/inspect.h"
#include "tensor/extend.h"
#include "tensor/system/number.h"
#include "tensor/observe/memory_plan.h"
#include "tensor/observe/profile.h"
#include "tensor/storage.h"
#include "nn/module.h"

#include <stdio.h>

enum { LEAST_BLOCK = 64 << 10 }; /* bytes of a block that --memory lists by itself */

static td_status read_limits(const char *text, td_profile_options *limits)
{
    char *comma, *end = NULL;
    double gflops = td_strtod(text, &comma),
           gbytes = *comma == ',' ? td_strtod(comma + 1, &end) : 0;
    TD_CHECK(
        end != NULL && *end == '\0' && gflops > 0 && gbytes > 0, TD_E_ARG,
        "--profile-limits '%s': give two numbers, as in 430,28: GFLOP/s in f32, and GB/s of memory",
        text);
    limits->flops_f32 = 1e9 * gflops;
    limits->flops_f64 = 0.5e9 * gflops;
    limits->bytes = 1e9 * gbytes;
    return TD_OK;
}

/* ---- memory ---- */

static double mib(size_t bytes)
{
    return (double)bytes / 1048576.0;
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
        bytes += list.items[i].buffer ? td_tensor_bytes(list.items[i].tensor) : 0;
    }
    td_state_list_free(&list);
    return bytes;
}

static td_status print_memory(const reports *r, td_module *net, const td_optim *optim)
{
    td_memory_plan_print(stdout, LEAST_BLOCK);
    size_t parameters = 0, buffers = 0, state = 0;
    if (optim != NULL) {
        parameters = td_tensor_bytes(td_params_flat(td_parameters(net)));
        buffers = buffer_bytes(net);
        state = td_optim_state_bytes(optim);
    }
    size_t step = td_step_memory(r->device).reserved, all = resident_bytes();
    size_t known = 2 * parameters + buffers + state + step;
    printf("\nmemory: parameters %.1f MiB, gradients %.1f, optimizer %.1f, running statistics "
           "%.1f, step %.1f, data and all else %.1f; in all %.1f MiB\n",
           mib(parameters), mib(parameters), mib(state), mib(buffers), mib(step),
           all > known ? mib(all - known) : 0.0, mib(all));
    return r->picture != NULL ? td_memory_plan_draw(r->picture) : TD_OK;
}

/* ---- begin and end ---- */

td_status reports_begin(reports *r)
{
    if (r->picture != NULL) {
        r->memory = true;
        TD_TRY(check_can_save(r->picture));
    }
    if (r->kernels != NULL) {
        r->profile = true;
        TD_TRY(check_can_save(r->kernels));
    }
    if (r->profile) {
        td_profile_options options = { .device = r->device };
        TD_TRY(r->limits != NULL ? read_limits(r->limits, &options) : TD_OK);
        TD_TRY(td_profile_start(&options));
    }
    if (r->memory) {
        td_memory_plan_start();
    }
    r->open = true;
    return TD_OK;
}

td_status reports_end(reports *r, td_module *net, const td_optim *optim)
{
    if (!r->open) {
        return TD_OK;
    }
    r->open = false;
    td_profile_stop();
    td_memory_plan_stop();
    if (net == NULL || td_dist_rank() != 0) {
        return TD_OK;
    }
    if (r->profile) {
        td_profile_print(stdout, 0);
    }
    TD_TRY(r->kernels != NULL ? td_sim_write_kernels(r->kernels) : TD_OK);
    return r->memory ? print_memory(r, net, optim) : TD_OK;
}
