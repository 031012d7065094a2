/* Uneven inputs. Before each collective of the model the ranks exchange which of them still train
 * and what the collective is. A rank without data takes part with zeros until no rank trains. */
#include "dist/ddp/extra.h"

#include "dist/comm/collectives.h"
#include "dist/ddp/ddp.h"
#include "nn/internal.h"
#include "nn/params.h"
#include "autograd/hooks.h"

#include <stdlib.h>
#include <string.h>

/* What the ranks sum before an event, i32: [EVENT] the event's number, from each rank that still
 * trains; [LEFT + rank] 1 if that rank still trains. */
enum { EVENT = 0, LEFT = 1 };

typedef struct join {
    td_ddp_part part; /* first */
    bool ran_out;     /* this rank has no data any more */
    td_tensor *numbers;
    bool by_initial_world; /* divide sums by the world's size, not by `live` */
    int live;              /* number of ranks that still train */
} join;

/* *event_of_others: unchanged if no rank trains. */
static td_status join_exchange(join *j, td_ddp_state *s, bool left, td_ddp_event event,
                               td_ddp_event *event_of_others)
{
    int world = td_group_size(s->group), rank = td_group_rank(s->group);
    int32_t *header = td_data_rw(j->numbers);
    memset(header, 0, (size_t)(world + 1) * sizeof *header);
    header[LEFT + rank] = left;
    header[EVENT] = left ? (int32_t)event : 0;
    TD_TRY(td_all_reduce(s->group, j->numbers, TD_SUM, NULL));
    int first = -1;
    j->live = 0;
    for (rank = world - 1; rank >= 0; rank--) {
        j->live += header[LEFT + rank];
        first = header[LEFT + rank] ? rank : first;
    }
    if (j->live > 0) {
        s->root = first;
        s->reducer.divisor = j->by_initial_world ? world : j->live;
        *event_of_others = (td_ddp_event)(header[EVENT] / j->live);
    }
    return TD_OK;
}

/* Tells ranks without data which collective comes next. */
static td_status join_on(td_ddp_part *part, td_ddp_state *s, td_ddp_event event, td_ddp_unit *unit)
{
    (void)unit;
    bool collective = event == TD_DDP_BUFFERS || event == TD_DDP_REDUCTION;
    td_ddp_event same;
    join *j = (join *)part;
    return collective && !j->ran_out ? join_exchange(j, s, true, event, &same) : TD_OK;
}

static void free_join(td_ddp_part *part)
{
    td_free(((join *)part)->numbers);
    free(part);
}

void td_ddp_join_begin(td_module *net, bool divide_by_initial_world_size)
{
    td_ddp_state *s = td_ddp_state_of(net);
    TD_REQUIRE(td_ddp_find_part(s, join_on) == NULL, TD_HERE,
               "td_ddp_join_begin: the td_ddp_join_end before is missing");
    TD_REQUIRE(!td_has_batch_norm_override(s->model), TD_HERE,
               "td_ddp_join_begin: the model has SyncBatchNorm, whose statistics need all ranks in "
               "every forward; use equal numbers of batches, or plain BatchNorm");
    TD_REQUIRE(!s->units.stays, TD_HERE,
               "td_ddp_join_begin: with .strategy each step needs all ranks; use "
               "equal numbers of batches (td_distributed_sampler), or td_ddp without .strategy");
    join *j = calloc(1, sizeof *j);
    td_tensor *numbers = td_zeros(TD_SHAPE(td_group_size(s->group) + 1), TD_I32, TD_CPU);
    TD_REQUIRE(j != NULL && numbers != NULL, TD_HERE, "td_ddp_join_begin: no memory");
    *j = (join){ .part = { .on = join_on, .free = free_join },
                 .numbers = numbers,
                 .by_initial_world = divide_by_initial_world_size,
                 .live = td_group_size(s->group) };
    td_ddp_add_part(s, &j->part);
}

/* A reduction in which this rank adds nothing. */
static td_status shadow_reduction(td_ddp_state *s)
{
    for (int i = 0; i < s->count; i++) {
        td_zero_grad_of(td_params_get(s->params, i)->tensor);
    }
    td_reducer_finish(s);
    td_status status = s->failure.status;
    s->failure.status = TD_OK;
    return status == TD_OK ? TD_OK : td_fail(status, "%s", s->failure.message);
}

/* Takes part in the other ranks' collectives until no rank trains. */
static td_status shadow(join *j, td_ddp_state *s)
{
    for (;;) {
        td_ddp_event event = TD_DDP_BUFFERS;
        TD_TRY(join_exchange(j, s, false, event, &event));
        if (j->live == 0) {
            return TD_OK;
        }
        TD_TRY(event == TD_DDP_BUFFERS ? td_ddp_broadcast_buffers(s) : shadow_reduction(s));
    }
}

/* Broadcasts the state of all optimizers over the parameters, but not the codec's own state, which
 * differs from rank to rank. */
static td_status broadcast_state(const td_ddp_state *s)
{
    const td_bucket_codec *codec = s->reducer.codec;
    bool has_own = codec != NULL && codec->own != NULL;
    const td_tensor *own = has_own ? codec->own(s->reducer.codec_state) : NULL;
    for (int i = 0; i < s->params->extra_count; i++) {
        td_tensor *state = s->params->extra[i].state;
        if (state != own) {
            TD_TRY(td_broadcast(s->group, state, s->root, NULL));
        }
    }
    return TD_OK;
}

td_status td_ddp_join_end(td_module *net)
{
    td_ddp_state *s = td_ddp_state_of(net);
    join *j = (join *)td_ddp_find_part(s, join_on);
    TD_REQUIRE(j != NULL, TD_HERE, "td_ddp_join_end without td_ddp_join_begin");
    j->ran_out = true;
    td_status status = shadow(j, s);
    /* The rank that trained last has the newest model and optimizer state. */
    status = status == TD_OK ? td_ddp_broadcast_all(s) : status;
    status = status == TD_OK ? broadcast_state(s) : status;
    td_ddp_remove_part(s, &j->part);
    s->root = 0;
    s->reducer.divisor = td_group_size(s->group);
    return status;
}
