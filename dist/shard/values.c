/* A unit's values are gathered before the unit runs, and dropped afterwards (ZeRO-3; FSDP).
 *
 * Before a unit's forward, and before its part of backward, the unit is entered: its values are
 * gathered into a slot, and the gather of the unit that probably runs next begins, so it goes on
 * while this unit computes. The values of the unit before are dropped then, not earlier: so the
 * last unit of forward still has its values when backward begins. Only a tensor's memory comes and
 * goes (td_set_address); whoever reads a tensor asks for its address at that time. */
#include "dist/shard/shard.h"

#include "autograd/tape.h"
#include "tensor/clock.h"
#include "tensor/hooks.h"

#include <stdio.h>

/* ---- slots ---- */

void td_slot_give(td_slot *slot, td_shard_unit *u, td_tensor *t, td_slot **place)
{
    slot->unit = u;
    *place = slot;
    td_set_address(t, td_ptr(slot->memory));
}

void td_slot_take(td_tensor *t, td_slot **place)
{
    (*place)->unit = NULL;
    *place = NULL;
    td_set_address(t, NULL);
}

static void let_go(td_shard_unit *u)
{
    td_shard_finish_gather(u);
    if (u->value_slot != NULL && !u->sharding->whole) {
        td_slot_take(u->values, &u->value_slot);
    }
}

void td_shard_let_all_go(td_sharding *sh)
{
    for (int k = 0; k < sh->count && sh->units[k].values != NULL; k++) {
        let_go(&sh->units[k]);
    }
    sh->route.current = NULL;
}

/* NULL: no slot is free. With `must`, the unit that was gathered ahead gives its slot up: the guess
 * was wrong. */
static td_slot *values_find_slot(td_shard_unit *u, bool must)
{
    td_sharding *sh = u->sharding;
    if (u->home.value.memory != NULL) {
        return &u->home.value;
    }
    td_slot *found = NULL;
    for (int k = 0; k < TD_SLOTS && (found == NULL || found->unit != NULL); k++) {
        td_slot *slot = &sh->slots[k].value;
        if (slot->unit == NULL || (must && slot->unit != sh->route.current)) {
            found = slot;
        }
    }
    if (found != NULL && found->unit != NULL) {
        let_go(found->unit);
    }
    return found;
}

/* ---- gathers ---- */

td_tensor td_shard_own(const td_shard_unit *u)
{
    const td_sharding *sh = u->sharding;
    const td_tensor *flat = td_params_flat(sh->ddp->params);
    int64_t piece = u->count / sh->ranks;
    int64_t begin = u->values != NULL ? u->begin / sh->ranks : u->begin + sh->rank * piece;
    return td_ddp_stretch(flat, begin, piece);
}

/* The times of a work can be read only before it is waited for. */
void td_shard_finish_gather(td_shard_unit *u)
{
    td_ddp_state *s = u->sharding->ddp;
    if (u->gather == NULL) {
        return;
    }
    double queued, begun, ended, from = td_clock();
    bool done = td_work_test(u->gather);
    td_work_times(u->gather, &queued, &begun, &ended);
    td_status status = td_work_wait(u->gather, 0.0);
    double now = td_clock();
    u->gather = NULL;
    u->sharding->gather += now - from;
    char name[64];
    snprintf(name, sizeof name, "values of %.40s", s->units.list[u->number].name);
    td_tell_part(name, begun > 0.0 ? begun : from, done && ended > 0.0 ? ended : now,
                 u->unpacks ? u->sharding->ranks * td_shard_wire_bytes(u)
                            : td_unit_bytes(&s->units.list[u->number]));
    td_ddp_note(s, status);
    if (status != TD_OK && u->value_slot != NULL) {
        td_fill_(u->value_slot->memory, 0.0);
    } else if (u->value_slot != NULL && u->unpacks) {
        td_shard_unpack(u, u->value_slot);
    }
}

/* This rank's piece, from the host to where the gather puts it. */
static td_tensor bring(const td_shard_unit *u, const td_slot *slot)
{
    td_tensor own = td_shard_own(u);
    td_tensor place =
        td_ddp_stretch(slot->memory, u->sharding->rank * td_numel(&own), td_numel(&own));
    td_copy_(&place, &own);
    return place;
}

/* Starts a gather if the values are not here, or have changed since they came. A slot is not the
 * unit's own storage, whose version therefore counts changes of the values alone. */
static void values_ask(td_shard_unit *u, bool must)
{
    td_ddp_state *s = u->sharding->ddp;
    uint32_t version = td_params_flat(s->params)->storage->version;
    bool changed = u->version != version;
    if (u->value_slot != NULL && !changed) {
        return;
    }
    td_shard_finish_gather(u);
    td_slot *slot = u->value_slot != NULL ? u->value_slot : values_find_slot(u, must);
    if (slot == NULL) {
        return;
    }
    if (u->value_slot == NULL) {
        td_slot_give(slot, u, u->values, &u->value_slot);
    }
    u->version = version;
    u->values->storage->version += changed;
    td_tensor all = td_ddp_stretch(slot->memory, 0, u->count), own = td_shard_own(u);
    u->unpacks = u->narrow > 0 && !u->sharding->whole;
    if (u->unpacks) {
        all = td_shard_packed_place(u, slot);
        own = td_shard_pack(u, slot);
    } else if (u->sharding->landing != NULL) {
        own = bring(u, slot);
    }
    td_status status = s->failure.status;
    if (status == TD_OK) {
        status = td_all_gather_unit(u->sharding->group, &all, &own, u->number + 1, &u->gather);
        td_ddp_note(s, status);
    }
    if (status != TD_OK) {
        td_fill_(slot->memory, 0.0);
    }
}

/* ahead: the unit that probably runs next; NULL: unknown. */
static void values_enter(td_shard_unit *u, td_shard_unit *ahead)
{
    td_sharding *sh = u->sharding;
    if (u->values == NULL || sh->woven) {
        return;
    }
    if (u != sh->root) {
        if (sh->route.current != NULL && sh->route.current != u) {
            let_go(sh->route.current);
        }
        sh->route.current = u;
    }
    values_ask(u, true);
    if (ahead != NULL) {
        values_ask(ahead, false);
    }
    td_shard_finish_gather(u);
}

/* ---- woven values ---- */

/* Their window has another storage than the units: a tape that has kept values must know, too, that
 * they have changed. */
static void notice_change(td_sharding *sh)
{
    uint32_t version = td_params_flat(sh->ddp->params)->storage->version;
    for (int k = 0; k < sh->count; k++) {
        td_shard_unit *u = &sh->units[k];
        u->values->storage->version += u->version != version;
        u->version = version;
    }
}

void td_shard_meet(td_sharding *sh)
{
    td_ddp_state *s = sh->ddp;
    double begin = td_clock();
    if (s->failure.status == TD_OK) {
        td_ddp_note(s, td_barrier(sh->group));
    }
    notice_change(sh);
    sh->gather += td_clock() - begin;
}

/* ---- forward and backward ---- */

/* Runs before all other nodes of the unit, because it was recorded after them. */
static void unit_backward(td_node *node, const td_tensor *dy)
{
    td_shard_unit *u = *(td_shard_unit *const *)td_params_of(node);
    u->sharding->route.last = NULL; /* what is recomputed from here on has an order of its own */
    values_enter(u, u->before);
    td_shard_begin_grads(u);
    td_input_grad_is(node, 0, dy);
}

static td_tensor *record(td_shard_unit *u, td_tensor *y)
{
    if (!td_grad_enabled() || !td_needs_grad(y)) {
        return y;
    }
    td_tensor *z = td_step_view(y, y->offset, td_shape_of(y), y->stride, TD_HERE);
    return TD_RECORD(TD_HERE, .op = "unit", .backward = unit_backward, .out = z, .inputs = { y },
                     .params = &u, .params_size = sizeof u);
}

static td_tensor *run_unit(const td_around_rest *rest, td_tensor *x, void *user)
{
    td_shard_unit *u = user;
    td_sharding *sh = u->sharding;
    if (sh->route.last != NULL) {
        sh->route.last->after = u;
        u->before = sh->route.last;
    } else {
        sh->route.first = u;
        u->before = NULL;
    }
    sh->route.last = u;
    values_enter(u, u->after);
    td_ddp_report(sh->ddp);
    return record(u, td_run_rest(rest, x));
}

static td_tensor *run_model(const td_around_rest *rest, td_tensor *x, void *user)
{
    td_sharding *sh = user;
    sh->route.last = NULL;
    sh->gather = 0.0;
    if (sh->woven) {
        notice_change(sh);
    }
    if (sh->root != NULL) {
        values_enter(sh->root, sh->route.first);
        td_ddp_report(sh->ddp);
    }
    td_tensor *y = td_run_rest(rest, x);
    if (!td_grad_enabled()) {
        td_shard_let_all_go(sh);
    }
    return sh->root != NULL ? record(sh->root, y) : y;
}

/* ---- all values ---- */

/* Gives every unit memory of its own, or takes it away; the root has its own. */
static td_status set_homes(td_sharding *sh, bool own)
{
    td_status status = TD_OK;
    sh->whole = false;
    td_shard_let_all_go(sh);
    for (int k = 0; k < sh->count; k++) {
        td_shard_unit *u = &sh->units[k];
        if (u != sh->root) {
            td_free(u->home.value.memory);
            u->home.value.memory =
                own ? td_zeros(TD_SHAPE(u->count), u->values->dtype, sh->device) : NULL;
            status = own && u->home.value.memory == NULL ? TD_E_NOMEM : status;
        }
    }
    return status;
}

static td_status gather_all(td_sharding *sh)
{
    td_ddp_failure *f = &sh->ddp->failure;
    sh->whole = true;
    for (int k = 0; k < sh->count; k++) {
        values_ask(&sh->units[k], true);
        td_shard_finish_gather(&sh->units[k]);
    }
    td_ddp_break(sh->ddp);
    td_status status = f->status;
    f->status = TD_OK;
    return status == TD_OK ? TD_OK : td_fail(status, "%s", f->message);
}

static td_status gather_values(bool here, void *user)
{
    td_sharding *sh = user;
    if (sh->options.stage < TD_SHARD_PARAMETERS || sh->woven) {
        return TD_OK;
    }
    if (!here) {
        return set_homes(sh, false);
    }
    td_status status = td_group_agree(sh->group, set_homes(sh, true));
    if (status != TD_OK) {
        set_homes(sh, false);
        return status;
    }
    return gather_all(sh);
}

td_status td_unshard(td_module *net)
{
    return td_module_gather(net, true);
}

void td_reshard(td_module *net)
{
    td_module_gather(net, false);
}

td_status td_shard_surround(td_sharding *sh)
{
    for (int k = 0; k < sh->count; k++) {
        td_shard_unit *u = &sh->units[k];
        if (u != sh->root) {
            TD_TRY(td_module_surround(u->module, &(td_around){ .run = run_unit, .user = u }));
        }
    }
    return td_module_surround(
        sh->ddp->model, &(td_around){ .run = run_model, .gather = gather_values, .user = sh });
}

void td_shard_unsurround(td_sharding *sh)
{
    td_module_unsurround(sh->ddp->model, run_model, sh);
    for (int k = 0; k < sh->count && sh->units[k].module != NULL; k++) {
        td_module_unsurround(sh->units[k].module, run_unit, &sh->units[k]);
    }
}
