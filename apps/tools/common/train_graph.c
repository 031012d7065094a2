#include "apps/tools/common/train_graph.h"

#include "apps/tools/common/ranks.h"
#include "tensor/kernel_types.h"
#include "dist/captured.h"
#include "data/inspect.h"

#include <inttypes.h>

td_status train_graph_begin(train_run *r, td_captured_step step)
{
    if (!r->args.graph) {
        return TD_OK;
    }
    if (r->args.device.type == TD_DEVICE_CPU) {
        ranks_print("%s: a CPU has no graphs: steps run as ever, and each is checked to take "
                    "the memory of the one before\n",
                    r->args.words.graph);
    } else {
        ranks_print("%s: after three steps as ever they are recorded, and replayed by %s%s\n",
                    r->args.words.graph, td_device_name(r->args.device),
                    td_dist_is_initialized() ? ", if all ranks can" : "");
    }
    (void)td_loader_defer(r->loader); /* what the GPU cuts out, it cuts out in the step */
    const td_captured_peers *peers = td_dist_is_initialized() ? td_group_captured(NULL) : NULL;
    r->graph.captured = td_captured_new(&(td_captured_options){ .device = r->args.device,
                                                                .step = step,
                                                                .user = r,
                                                                .peers = peers,
                                                                .inputs_stay = true,
                                                                .results = 3 + (r->scaler != NULL),
                                                                .depth = TRAIN_GRAPH_DEPTH });
    return r->graph.captured != NULL ? TD_OK : TD_E_NOMEM;
}

bool train_graph_is_on(const train_run *r)
{
    return r->graph.captured != NULL;
}

/* What a batch's step depends on. The last group of an epoch may have another size, always the same
 * one. */
static int kind_of(const train_run *r, train_group group)
{
    return group.first + 2 * group.last + 4 * (group.size < train_group_size(r));
}

td_status train_graph_step(train_run *r, const td_batch *batch, train_group group)
{
    int64_t place = r->graph.asked++ % TRAIN_GRAPH_DEPTH;
    r->graph.samples[place] = batch->size;
    r->graph.last[place] = group.last;
    r->graph.group = group;
    return td_captured_run_kind(r->graph.captured, kind_of(r, group),
                                (td_tensor *[]){ batch->x, batch->y }, 2);
}

int64_t train_graph_waiting(const train_run *r)
{
    return td_captured_waiting(r->graph.captured);
}

bool train_graph_is_full(const train_run *r)
{
    return td_captured_full(r->graph.captured);
}

td_status train_graph_take(train_run *r, train_graph_results *taken)
{
    double results[4] = { 0 };
    int64_t place = r->graph.taken++ % TRAIN_GRAPH_DEPTH;
    TD_TRY(td_captured_next(r->graph.captured, results));
    taken->loss = results[0];
    taken->correct = (int64_t)results[1];
    taken->correct_k = r->recipe.top_k > 0 ? (int64_t)results[2] : 0;
    taken->samples = r->graph.samples[place];
    /* The outcome is that of the latest step that the optimizer was to make. */
    taken->stepped = r->graph.last[place] && results[3] == TD_SCALE_TAKEN;
    taken->gives_up = r->graph.last[place] && results[3] == TD_SCALE_HOPELESS;
    return TD_OK;
}

void train_graph_end(train_run *r)
{
    if (!train_graph_is_on(r)) {
        return;
    }
    td_captured_stats stats = td_captured_now(r->graph.captured);
    ranks_print(
        "graph: %" PRId64 " steps as ever, %" PRId64 " recorded, %" PRId64 " replayed%s%s\n",
        stats.eager, stats.recorded, stats.replayed, stats.why[0] != '\0' ? "; " : "", stats.why);
    td_captured_free(r->graph.captured);
    r->graph.captured = NULL;
}
