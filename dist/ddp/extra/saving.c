/* DDP in checkpoints: the ranks, and the codec's state. (Gradients that no rank has sent yet,
 * between td_ddp_no_sync_begin and _end, need the ranks alone.) */
#include "dist/ddp/extra/parts.h"

#include "dist/comm/collectives.h"
#include "nn/shared/shared.h"
#include "tensor/extend.h"
#include "tensor/part.h"

#include <stdlib.h>

typedef struct in_file {
    td_checkpoint_part part; /* first: checkpoints see it alone */
    const td_reducer *reducer;
} in_file;

typedef struct saving {
    td_ddp_part part;
    in_file in_file;
    td_params *params;
} saving;

static void free_saving(td_ddp_part *part)
{
    saving *x = (saving *)part;
    if (td_params_peers_of(x->params) == NULL) { /* otherwise a strategy has set them */
        td_params_set_peers(x->params, NULL);
    }
    td_params_training_of(x->params)->part = NULL;
    free(x);
}

static bool saving_is_apart(const td_checkpoint_part *part)
{
    const td_reducer *r = ((const in_file *)part)->reducer;
    return r->codec != NULL && r->codec->list != NULL;
}

static void saving_list_codec(td_checkpoint_part *part, td_part_list *list)
{
    const td_reducer *r = ((const in_file *)part)->reducer;
    if (saving_is_apart(part)) {
        r->codec->list(r->codec_state, list);
    }
}

static td_status saving_broadcast(td_tensor *t, int from, void *group)
{
    return td_broadcast(group, t, from, NULL);
}

static td_status saving_agree(td_status mine, void *group)
{
    return td_group_agree(group, mine);
}

/* A failure breaks the group, which saving_agree tells. */
static void saving_sum(double *numbers, int count, void *group)
{
    (void)td_all_reduce_numbers(group, numbers, count);
}

td_status td_ddp_saving_open(td_ddp_state *s)
{
    saving *x = calloc(1, sizeof *x);
    TD_CHECK(x != NULL, TD_E_NOMEM, "td_ddp: no memory");
    *x = (saving){ .part = { .free = free_saving },
                   .in_file = { { .apart = saving_is_apart, .list = saving_list_codec },
                                &s->reducer },
                   .params = s->params };
    td_ddp_add_part(s, &x->part);
    td_params_training_of(s->params)->part = &x->in_file.part;
    td_params_set_peers(s->params, &(td_params_peers){ .rank = td_group_rank(s->group),
                                                       .count = td_group_size(s->group),
                                                       .sum = saving_sum,
                                                       .broadcast = saving_broadcast,
                                                       .agree = saving_agree,
                                                       .user = s->group });
    return TD_OK;
}
