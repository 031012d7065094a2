/* Takes training steps eagerly, or as captured steps, and returns their results in order. */
#include "apps/tools/common/runner.h"

#include "dist/graph/captured.h"
#include "data/inspect.h"

#include <inttypes.h>
#include <string.h>

td_status runner_capture(runner *r, td_device device, td_loader *loader, const char *word)
{
    bool ranks = td_dist_is_initialized();
    if (word != NULL && device.type == TD_DEVICE_CPU) {
        td_printf_rank0("%s: a CPU has no graphs: steps run eagerly, and each is checked to take "
                        "the memory of the one before\n",
                        word);
    } else if (word != NULL) {
        td_printf_rank0("%s: after three eager steps they are recorded, and replayed by %s%s\n",
                        word, td_device_name(device), ranks ? ", if all ranks can" : "");
    }
    (void)td_loader_defer(loader); /* what the GPU cuts out, it cuts out in the step */
    r->captured =
        td_captured_new(&(td_captured_options){ .device = device,
                                                .step = r->step,
                                                .user = r->user,
                                                .peers = ranks ? td_group_captured(NULL) : NULL,
                                                .inputs_stay = true,
                                                .results = r->results,
                                                .depth = RUNNER_DEPTH });
    return r->captured != NULL ? TD_OK : TD_E_NOMEM;
}

static td_status run_eagerly(runner *r, td_tensor *const *inputs)
{
    td_tensor *results[TD_CAPTURED_RESULTS];
    td_step_begin();
    td_status status = r->step(r->user, inputs, results);
    for (int i = 0; i < r->results && status == TD_OK; i++) {
        r->values[i] = td_item(results[i]);
    }
    td_step_end();
    r->unread = status == TD_OK && r->results > 0;
    return status;
}

td_status runner_step(runner *r, int kind, const td_batch *batch)
{
    td_tensor *inputs[] = { batch->x, batch->y };
    return r->captured != NULL ? td_captured_run_kind(r->captured, kind, inputs, 2)
                               : run_eagerly(r, inputs);
}

int runner_waiting(const runner *r)
{
    return r->captured != NULL ? td_captured_waiting(r->captured) : r->unread;
}

bool runner_full(const runner *r)
{
    return r->captured != NULL ? td_captured_full(r->captured) : r->unread;
}

td_status runner_next(runner *r, double *results)
{
    if (r->captured != NULL) {
        return td_captured_next(r->captured, results);
    }
    memcpy(results, r->values, (size_t)r->results * sizeof *results);
    r->unread = false;
    return TD_OK;
}

void runner_end(runner *r)
{
    if (r->captured == NULL) {
        return;
    }
    td_captured_stats stats = td_captured_now(r->captured);
    td_printf_rank0(
        "graph: %" PRId64 " eager steps, %" PRId64 " recorded, %" PRId64 " replayed%s%s\n",
        stats.eager, stats.recorded, stats.replayed, stats.why[0] != '\0' ? "; " : "", stats.why);
    td_captured_free(r->captured);
    r->captured = NULL;
}
