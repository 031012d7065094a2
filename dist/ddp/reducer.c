/* Reduction while backward runs. A parameter's ready hook counts down the gradients that its unit
 * still needs. Full units are launched in the order of their numbers, so all ranks launch them in
 * the same order. The end of backward launches the other units and waits for all. */
#include "dist/ddp/ddp.h"

#include "dist/comm/collectives.h"
#include "dist/comm/device_engine.h"
#include "autograd/hooks.h"
#include "autograd/tape.h"
#include "nn/module.h"
#include "nn/params.h"

#include <stdlib.h>

static bool fine(const td_ddp_state *s)
{
    return s->failure.status == TD_OK;
}

/* ---- sending ---- */

static td_status all_reduce_mean(td_ddp_state *s, td_ddp_unit *u, td_tensor *t)
{
    if (s->reducer.divisor == td_group_size(s->group)) {
        return td_all_reduce(s->group, t, TD_AVERAGE, &u->work);
    }
    td_mul_scalar_(t, 1.0 / s->reducer.divisor);
    return td_all_reduce(s->group, t, TD_SUM, &u->work);
}

/* Starts the reduction of the unit's round: of its gradients, or of what the codec encodes. */
static void send_round(td_ddp_state *s, td_ddp_unit *u)
{
    const td_reducer *r = &s->reducer;
    td_wire wire = { u->b.grad, false };
    if (fine(s) && r->codec != NULL) {
        wire.tensor = NULL;
        td_ddp_tell(s, TD_DDP_CODEC, u);
        td_ddp_note(
            s, r->codec->encode(r->codec_state, u->part, &u->b, u->round, 1.0 / r->divisor, &wire));
        td_ddp_tell(s, TD_DDP_CODEC_DONE, u);
    }
    if (fine(s) && wire.tensor != NULL) {
        td_ddp_note(s, wire.scaled ? td_all_reduce(s->group, wire.tensor, TD_SUM, &u->work)
                                   : r->average(s, u, wire.tensor));
    }
}

/* A parameter without a gradient travels as zeros: its memory holds old numbers. */
static void clear_missing(td_ddp_state *s, const td_ddp_unit *u)
{
    for (int k = 0; k < u->b.param_count; k++) {
        const td_param *p = td_params_get(s->params, u->b.params[k]);
        if (!s->reducer.params[u->b.params[k]].ready && td_grad(p->tensor) == NULL) {
            td_fill_(td_grad_buffer(p->tensor), 0.0);
        }
    }
}

static void reducer_launch(td_ddp_state *s, td_ddp_unit *u)
{
    td_ddp_tell(s, TD_DDP_LAUNCH, u);
    if (!s->reducer.launched) {
        s->reducer.launched = true;
        td_ddp_tell(s, TD_DDP_REDUCTION, NULL);
    }
    clear_missing(s, u);
    u->round = 0;
    send_round(s, u);
    td_ddp_tell(s, TD_DDP_LAUNCHED, u);
}

static td_ddp_unit *next_unit(td_ddp_state *s)
{
    return s->reducer.next < s->units.count ? &s->units.list[s->reducer.next] : NULL;
}

static void launch_full(td_ddp_state *s)
{
    for (td_ddp_unit *u; (u = next_unit(s)) != NULL && u->pending == 0;) {
        s->reducer.next++;
        reducer_launch(s, u);
    }
}

/* ---- the hooks ---- */

static bool reduces(const td_ddp_state *s)
{
    return s->no_sync_depth == 0 || s->reducer.always;
}

static void on_ready(td_tensor *leaf, void *user)
{
    (void)leaf;
    td_ddp_param *p = user;
    td_ddp_state *s = p->ddp;
    td_reducer *r = &s->reducer;
    r->active = p->used = true;
    if (!reduces(s) || p->ready) {
        return;
    }
    p->ready = true;
    r->ready_order[r->ready_count++] = p->number;
    if (p->expected) {
        s->units.list[p->unit].pending--;
        launch_full(s);
    }
}

static void on_backward_end(void *user)
{
    td_ddp_state *s = user;
    if (!s->reducer.active) {
        return; /* a backward that reached none of our parameters */
    }
    s->reducer.active = false;
    td_params_training_of(s->params)->apart = !reduces(s);
    if (reduces(s)) {
        td_reducer_finish(s);
    }
    td_ddp_report(s);
}

td_status td_reducer_make(td_ddp_state *s)
{
    td_reducer *r = &s->reducer;
    r->average = all_reduce_mean;
    r->params = calloc((size_t)s->count + 1, sizeof *r->params);
    r->ready_order = calloc((size_t)s->count + 1, sizeof *r->ready_order);
    TD_CHECK(r->params != NULL && r->ready_order != NULL, TD_E_NOMEM,
             "td_ddp: no memory for %d parameters", s->count);
    for (int i = 0; i < s->count; i++) {
        r->params[i] = (td_ddp_param){ .ddp = s, .number = i, .expected = true };
    }
    return TD_OK;
}

td_status td_reducer_watch(td_ddp_state *s)
{
    td_reducer *r = &s->reducer;
    for (int i = 0; i < s->count; i++) {
        td_ddp_param *p = &r->params[i];
        p->hook = td_on_grad_ready(td_params_get(s->params, i)->tensor, on_ready, p);
        if (p->hook < 0) {
            return TD_E_NOMEM;
        }
    }
    r->end_hook = td_on_backward_end(on_backward_end, s);
    return r->end_hook > 0 ? TD_OK : TD_E_NOMEM;
}

void td_reducer_free(td_ddp_state *s)
{
    td_reducer *r = &s->reducer;
    for (int i = 0; r->params != NULL && i < s->count; i++) {
        td_tensor *leaf = td_params_get(s->params, i)->tensor;
        if (r->params[i].hook > 0 && td_is_leaf(leaf)) {
            td_remove_grad_hook(leaf, r->params[i].hook);
        }
    }
    if (r->end_hook > 0) {
        td_remove_backward_end_hook(r->end_hook);
    }
    if (r->codec_state != NULL) {
        r->codec->close(r->codec_state);
    }
    free(r->params);
    free(r->ready_order);
}

void td_reducer_arm(td_ddp_state *s)
{
    td_reducer *r = &s->reducer;
    for (int i = 0; i < s->units.count; i++) {
        s->units.list[i].pending = 0;
    }
    for (td_ddp_param *p = r->params; p < r->params + s->count; p++) {
        p->ready = p->used = false;
        if (p->unit < s->units.count) { /* not if memory for units was short */
            s->units.list[p->unit].pending += p->expected;
        }
    }
    r->ready_count = r->next = 0;
    r->launched = false;
}

/* ---- the end of backward ---- */

bool td_reducer_wait(td_ddp_state *s, td_ddp_unit *u)
{
    if (u->work == NULL) {
        return false;
    }
    td_ddp_tell(s, TD_DDP_WAIT, u);
    td_ddp_note(s, td_work_wait(u->work, 0.0));
    u->work = NULL;
    td_ddp_tell(s, TD_DDP_WAITED, u);
    return true;
}

/* Waits for all units. A codec may send another round of a unit, and a part that is told
 * TD_DDP_WAITED may start another collective of the unit: then waits for these, too. */
static void reducer_wait_for_all(td_ddp_state *s)
{
    if (fine(s)) { /* on a GPU one event stands for all collectives */
        td_ddp_note(s, td_device_join_all(s->group));
    }
    bool under_way = true;
    while (under_way) {
        under_way = false;
        for (int i = 0; i < s->units.count; i++) {
            td_ddp_unit *u = &s->units.list[i];
            if (td_reducer_wait(s, u) && s->reducer.codec != NULL && fine(s)) {
                u->round++;
                send_round(s, u);
            }
            under_way = under_way || u->work != NULL;
        }
    }
}

static void decode_all(td_ddp_state *s)
{
    const td_reducer *r = &s->reducer;
    for (int i = 0; i < s->units.count && fine(s); i++) {
        td_ddp_unit *u = &s->units.list[i];
        td_ddp_tell(s, TD_DDP_CODEC, u);
        td_ddp_note(s, r->codec->decode(r->codec_state, u->part, &u->b));
        td_ddp_tell(s, TD_DDP_CODEC_DONE, u);
    }
}

void td_reducer_finish(td_ddp_state *s)
{
    td_reducer *r = &s->reducer;
    td_ddp_tell(s, TD_DDP_FINISH, NULL);
    for (td_ddp_unit *u; fine(s) && (u = next_unit(s)) != NULL;) {
        r->next++;
        reducer_launch(s, u);
    }
    if (fine(s)) {
        td_ddp_tell(s, TD_DDP_ALL_SENT, NULL);
    }
    reducer_wait_for_all(s);
    if (r->codec != NULL) {
        decode_all(s);
    }
    if (fine(s)) {
        td_ddp_tell(s, TD_DDP_SUMMED, NULL);
    }
    td_ddp_tell(s, TD_DDP_REDUCED, NULL);
    if (r->codec != NULL && r->codec->stepped != NULL) {
        r->codec->stepped(r->codec_state);
    }
    if (fine(s) && !s->units.rebuilt && !s->units.stays && !s->options.find_unused_parameters) {
        td_ddp_note(s, td_units_rebuild(s));
    }
    td_reducer_arm(s);
}
