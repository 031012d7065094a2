/* Sharding, stage 1 (ZeRO-1; Rajbhandari et al. 2020). The flat parameters are cut into one window
 * for each rank. Gradients are averaged on all ranks as ever; td_optim_step then changes this
 * rank's window alone, so this rank keeps the state of that window alone, and one all-gather brings
 * the other ranks' windows of the new values. Every element is computed once, by the same formula
 * from the same numbers as without sharding: the bits are equal. */
#include "dist/ddp.h"

#include "dist/clock.h"
#include "dist/collectives.h"
#include "dist/trace.h"
#include "nn/module.h"
#include "nn/params.h"
#include "tensor/extend.h"

#include <stdlib.h>

enum { GRAIN = 64 }; /* bytes: windows begin on cache lines */

/* The head of a DDP part, which is told nothing: a shard works at the optimizer's step. */
typedef struct shard {
    td_ddp_part part; /* first */
    td_ddp_state *ddp;
    td_tensor *mine; /* this rank's window of the values */
    double gather;   /* seconds of the last step */
} shard;

/* ---- what the optimizer and checkpoints need of the other ranks ---- */

static void gather(void *user)
{
    shard *sh = user;
    td_ddp_state *s = sh->ddp;
    td_tensor *flat = td_params_flat(s->params);
    td_work *work = NULL;
    double begin = td_clock();
    td_status status = td_all_gather(s->group, flat, sh->mine, &work);
    td_ddp_note(s, status == TD_OK ? td_work_wait(work, 0.0) : status);
    double end = td_clock();
    sh->gather = end - begin;
    td_trace_communication("new values", begin, end,
                           td_numel(flat) * (int64_t)td_dtype_size(flat->dtype));
    td_ddp_report(s);
}

static td_status broadcast(td_tensor *t, int from, void *user)
{
    return td_broadcast(((shard *)user)->ddp->group, t, from, NULL);
}

/* The first rank that failed tells the others why. */
static td_status agree(td_status mine, void *user)
{
    td_group *group = ((shard *)user)->ddp->group;
    int32_t failed = mine == TD_OK ? td_group_size(group) : td_group_rank(group);
    struct {
        int32_t status;
        char reason[400];
    } why = { .status = mine };
    snprintf(why.reason, sizeof why.reason, "%s", mine != TD_OK ? td_last_reason() : "");
    td_tensor *first = td_borrow(&failed, TD_SCALAR, TD_I32, TD_CPU);
    td_tensor *told = td_borrow(&why, TD_SHAPE(sizeof why), TD_U8, TD_CPU);
    td_status status =
        first == NULL || told == NULL ? TD_E_NOMEM : td_all_reduce(group, first, TD_MIN, NULL);
    bool all_well = failed == td_group_size(group);
    if (status == TD_OK && !all_well) {
        status = td_broadcast(group, told, failed, NULL);
    }
    td_free(first);
    td_free(told);
    if (status != TD_OK) {
        return mine != TD_OK ? td_fail(mine, "%s", why.reason) : status;
    }
    return all_well ? TD_OK
                    : td_fail((td_status)why.status, "rank %d: %s", (int)failed, why.reason);
}

/* ---- beginning and end ---- */

static td_status on(td_ddp_part *part, td_ddp_state *s, td_ddp_event event, td_ddp_unit *unit)
{
    (void)part, (void)s, (void)event, (void)unit;
    return TD_OK;
}

static void free_shard(td_ddp_part *part)
{
    td_free(((shard *)part)->mine);
    free(part);
}

/* The length of flat memory that cuts into equal windows. */
static int64_t padded(const td_tensor *flat, int ranks)
{
    int64_t unit = ranks * (GRAIN / (int64_t)td_dtype_size(flat->dtype));
    return (td_numel(flat) + unit - 1) / unit * unit;
}

td_status td_ddp_shard_open(td_ddp_state *s)
{
    int rank = td_group_rank(s->group), ranks = td_group_size(s->group);
    shard *sh = calloc(1, sizeof *sh);
    if (sh == NULL) {
        return td_fail(TD_E_NOMEM, "td_ddp: no memory to shard an optimizer");
    }
    *sh = (shard){ .part = { .on = on, .free = free_shard }, .ddp = s };
    td_ddp_add_part(s, &sh->part);
    TD_TRY(td_ddp_move_memory(s, true, padded(td_params_flat(s->params), ranks)));
    const td_tensor *flat = td_params_flat(s->params);
    int64_t length = td_numel(flat) / ranks;
    sh->mine = td_ddp_slice(flat, rank * length, length);
    s->units.stays = true; /* state belongs to places in memory, so the order stays */
    td_params_set_peers(s->params, &(td_params_peers){ .rank = rank,
                                                       .count = ranks,
                                                       .gather = gather,
                                                       .broadcast = broadcast,
                                                       .agree = agree,
                                                       .user = sh });
    return sh->mine != NULL ? TD_OK : TD_E_NOMEM;
}

/* ---- statistics ---- */

static size_t bytes_of(const td_tensor *t)
{
    return (size_t)td_numel(t) * td_dtype_size(t->dtype);
}

td_shard_stats td_ddp_shard_stats(const td_module *net)
{
    const td_ddp_state *s = td_ddp_state_of(net);
    const shard *sh = (const shard *)td_ddp_find_part(s, on);
    td_shard_stats stats = {
        .values = bytes_of(td_params_flat(s->params)),
        .gradients = bytes_of(td_params_flat_grad(s->params)),
        .gather = sh != NULL ? sh->gather : 0.0,
    };
    for (int i = 0; i < td_params_state_count(s->params); i++) {
        const td_tensor *state = td_params_state(s->params, i);
        stats.state += td_is_float(state->dtype) ? bytes_of(state) : 0;
    }
    return stats;
}
