/* Uneven inputs. Before each collective of the model the ranks exchange which of them still train
 * and what the collective is. A rank without data takes part with zeros until no rank trains. */
#include "dist/ddp.h"

#include "dist/sync_batch_norm.h"
#include "nn/params.h"
#include "autograd/hooks.h"

#include <string.h>

/* What the ranks sum before an event, i32: [EVENT] the event's number, from each rank that still
 * trains; [LEFT + rank] 1 if that rank still trains. */
enum { EVENT = 0, LEFT = 1 };

static td_status exchange(td_ddp_state *s, bool left, td_ddp_event event, int *event_of_others)
{
    int32_t *header = td_data_rw(s->numbers);
    memset(header, 0, (size_t)(s->world + 1) * sizeof *header);
    header[LEFT + s->rank] = left;
    header[EVENT] = left ? (int32_t)event : 0;
    TD_TRY(td_all_reduce(s->group, s->numbers, TD_SUM, NULL));
    int live = 0, first = -1;
    for (int rank = s->world - 1; rank >= 0; rank--) {
        live += header[LEFT + rank];
        first = header[LEFT + rank] ? rank : first;
    }
    s->join.live = live;
    if (live > 0) {
        s->join.root = first;
        *event_of_others = header[EVENT] / live;
    }
    return TD_OK;
}

td_status td_ddp_announce(td_ddp_state *s, td_ddp_event event)
{
    if (!s->join.on || s->join.ran_out) {
        return TD_OK;
    }
    int same;
    return exchange(s, true, event, &same);
}

void td_ddp_join_begin(td_module *ddp, bool divide_by_initial_world_size)
{
    td_ddp_state *s = td_ddp_state_of(ddp);
    TD_REQUIRE(!s->join.on, TD_HERE, "td_ddp_join_begin: the td_ddp_join_end before is missing");
    TD_REQUIRE(!td_has_sync_batch_norm(s->model), TD_HERE,
               "td_ddp_join_begin: the model has SyncBatchNorm, whose statistics need all ranks in "
               "every forward; use equal numbers of batches, or plain BatchNorm");
    s->join = (td_ddp_join){ .on = true,
                             .by_initial_world = divide_by_initial_world_size,
                             .live = s->world };
}

/* A reduction in which this rank adds nothing. */
static void shadow_reduction(td_ddp_state *s)
{
    for (int i = 0; i < s->count; i++) {
        td_zero_grad_of(td_params_get(s->params, i)->tensor);
    }
    td_ddp_finish(s);
}

static td_status shadow(td_ddp_state *s)
{
    for (;;) {
        int event = 0;
        TD_TRY(exchange(s, false, TD_DDP_BUFFERS, &event));
        if (s->join.live == 0) {
            return TD_OK;
        }
        if (event == TD_DDP_BUFFERS) {
            TD_TRY(td_ddp_broadcast_buffers(s, s->join.root));
        } else {
            shadow_reduction(s);
            if (s->status != TD_OK) {
                td_status status = s->status;
                s->status = TD_OK;
                return td_fail(status, "%s", s->message);
            }
        }
    }
}

/* Broadcasts the state of all optimizers over the parameters, but not the codec's own state, which
 * differs from rank to rank. */
static td_status broadcast_state(const td_ddp_state *s)
{
    bool has_own = s->codec != NULL && s->codec->own != NULL;
    const td_tensor *own = has_own ? s->codec->own(s->codec_state) : NULL;
    for (int i = 0; i < td_params_state_count(s->params); i++) {
        td_tensor *state = td_params_state(s->params, i);
        if (state != own) {
            TD_TRY(td_broadcast(s->group, state, s->join.root, NULL));
        }
    }
    return TD_OK;
}

td_status td_ddp_join_end(td_module *ddp)
{
    td_ddp_state *s = td_ddp_state_of(ddp);
    TD_REQUIRE(s->join.on, TD_HERE, "td_ddp_join_end without td_ddp_join_begin");
    s->join.ran_out = true;
    td_status status = shadow(s);
    /* The rank that trained last has the newest model and optimizer state. */
    if (status == TD_OK) {
        status = td_ddp_broadcast_all(s, s->join.root);
    }
    if (status == TD_OK) {
        status = broadcast_state(s);
    }
    s->join = (td_ddp_join){ .on = false };
    return status;
}
