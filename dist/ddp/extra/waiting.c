/* What each rank has by itself, for checkpoints: the codec's state, and between
 * td_ddp_no_sync_begin and _end the gradients that no rank has sent yet. In a file rank 1 of 4 has
 * these as
 *
 *     extra.gradient.1/4.<path>
 */
#include "dist/ddp/extra/parts.h"

#include "dist/comm/collectives.h"
#include "autograd/hooks.h"
#include "nn/shared/shared.h"
#include "tensor/extend.h"
#include "tensor/part.h"

#include <stdlib.h>
#include <string.h>

typedef struct waiting {
    td_ddp_part part;
    td_params *params;
    td_named_tensor *items; /* the last list */
    int count;
} waiting;

static td_status waiting_on(td_ddp_part *part, td_ddp_state *s, td_ddp_event event,
                            td_ddp_unit *unit)
{
    (void)part, (void)s, (void)event, (void)unit;
    return TD_OK;
}

static void waiting_forget_list(waiting *w)
{
    for (int i = 0; i < w->count; i++) {
        free((char *)(uintptr_t)w->items[i].name);
    }
    free(w->items);
    w->items = NULL;
    w->count = 0;
}

static void free_waiting(td_ddp_part *part)
{
    waiting *w = (waiting *)part;
    if (td_params_peers_of(w->params) == NULL) { /* otherwise a strategy has set them */
        td_params_set_peers(w->params, NULL);
    }
    waiting_forget_list(w);
    free(w);
}

static td_status waiting_broadcast(td_tensor *t, int from, void *group)
{
    return td_broadcast(group, t, from, NULL);
}

static td_status waiting_agree(td_status mine, void *group)
{
    return td_group_agree(group, mine);
}

/* Checkpoints to which several ranks have something to give ask for the ranks. */
td_status td_ddp_waiting_open(td_ddp_state *s)
{
    waiting *w = calloc(1, sizeof *w);
    if (w == NULL) {
        return td_fail(TD_E_NOMEM, "td_ddp: no memory");
    }
    w->part = (td_ddp_part){ .on = waiting_on, .free = free_waiting };
    w->params = s->params;
    td_ddp_add_part(s, &w->part);
    td_params_set_peers(s->params, &(td_params_peers){ .rank = td_group_rank(s->group),
                                                       .count = td_group_size(s->group),
                                                       .broadcast = waiting_broadcast,
                                                       .agree = waiting_agree,
                                                       .user = s->group });
    return TD_OK;
}

/* ---- lists ---- */

/* All ranks list the gradients of all; a rank that has none of a parameter has zeros. */
static td_status add_gradients(waiting *w, int ranks)
{
    for (int i = 0; i < td_params_count(w->params); i++) {
        const td_param *p = td_params_get(w->params, i);
        if (td_grad(p->tensor) == NULL) {
            td_fill_(td_grad_buffer(p->tensor), 0);
            td_mark_grad(p->tensor);
        }
        for (int r = 0; r < ranks; r++) {
            char *name = td_format(TD_KEY_LOCAL_GRADIENT, r, ranks, p->name);
            TD_TRY(name != NULL ? TD_OK : TD_E_NOMEM);
            w->items[w->count++] =
                (td_named_tensor){ .name = name, .tensor = td_grad_buffer(p->tensor), .owner = r };
        }
    }
    return TD_OK;
}

static td_status list_codec(td_ddp_state *s, bool save, const td_named_tensor **tensors, int *count)
{
    const td_reducer *r = &s->reducer;
    *tensors = NULL;
    *count = 0;
    return r->codec != NULL && r->codec->list != NULL
               ? r->codec->list(r->codec_state, save, tensors, count)
               : TD_OK;
}

td_status td_ddp_state_to_save(td_module *net, const td_named_tensor **tensors, int *count)
{
    td_ddp_state *s = td_ddp_state_of(net);
    waiting *w = (waiting *)td_ddp_find_part(s, waiting_on);
    waiting_forget_list(w);
    TD_TRY(list_codec(s, true, tensors, count));
    if (!td_params_apart(s->params)) {
        return TD_OK;
    }
    int ranks = td_group_size(s->group);
    size_t most = (size_t)*count + (size_t)s->count * (size_t)ranks;
    w->items = calloc(most + 1, sizeof *w->items);
    if (w->items == NULL) {
        return td_fail(TD_E_NOMEM, "no memory for a list of gradients");
    }
    td_status status = add_gradients(w, ranks);
    for (int i = 0; i < *count && status == TD_OK; i++) {
        w->items[w->count] = (*tensors)[i];
        w->items[w->count].name = td_format("%s", (*tensors)[i].name);
        status = w->items[w->count++].name != NULL ? TD_OK : TD_E_NOMEM;
    }
    *tensors = status == TD_OK ? w->items : NULL;
    *count = status == TD_OK ? w->count : 0;
    return status;
}

td_status td_ddp_state_to_load(td_module *net, const td_named_tensor **tensors, int *count)
{
    return list_codec(td_ddp_state_of(net), false, tensors, count);
}
