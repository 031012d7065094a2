/* td_zero, a strategy of td_ddp (ZeRO; Rajbhandari et al. 2020). td_optim_step changes this rank's
 * window of the values alone, so this rank keeps the state of that window alone; then all-gathers
 * bring the other ranks' windows of the new values (TD_SHARD_PARAMETERS: before the unit runs).
 * Every element is computed once, by the same formula from the same numbers as without sharding:
 * the bits are equal. */
#include "dist/shard/shard.h"

#include "dist/comm/engine.h"
#include "dist/comm/mesh.h"
#include "tensor/hooks.h"
#include "tensor/system/number.h"

#include <stdlib.h>
#include <string.h>

enum { GRAIN = 64 }; /* bytes: windows begin on cache lines */

/* ---- what the optimizer and checkpoints need of the other ranks ---- */

/* If every rank keeps all values: after a step, gathers all units in place in the flat memory. */
static void shard_gather(void *user)
{
    td_sharding *sh = user;
    td_ddp_state *s = sh->ddp;
    sh->gather = 0.0;
    for (int k = 0; k < sh->count && s->failure.status == TD_OK; k++) {
        td_shard_unit *u = &sh->units[k];
        td_tensor all = td_ddp_stretch(td_params_flat(s->params), u->begin, u->count);
        td_tensor own = td_shard_own(u);
        td_ddp_note(s, td_all_gather(sh->group, &all, &own, &u->gather));
    }
    for (int k = 0; k < sh->count; k++) {
        td_shard_finish_gather(&sh->units[k]);
    }
    td_ddp_report(s);
}

static void forget_values(void *user)
{
    td_shard_let_all_go(user);
}

static void shard_meet(void *user)
{
    td_sharding *sh = user;
    td_shard_meet(sh);
    td_ddp_report(sh->ddp);
}

static void sum(double *numbers, int count, void *user)
{
    td_sharding *sh = user;
    td_ddp_note(sh->ddp, td_all_reduce_numbers(sh->group, numbers, count));
    td_ddp_report(sh->ddp);
}

static td_status shard_broadcast(td_tensor *t, int from, void *user)
{
    return td_broadcast(((td_sharding *)user)->group, t, from, NULL);
}

static td_status shard_agree(td_status mine, void *user)
{
    return td_group_agree(((td_sharding *)user)->ddp->group, mine);
}

/* Offloaded memory for a window: on all ranks, or on none. */
static td_tensor *window_memory(int64_t count, td_dtype dtype, void *user)
{
    const td_sharding *sh = user;
    td_tensor *t = td_offload_new(sh->options.offload, count, dtype);
    if (td_group_agree(sh->ddp->group, t != NULL ? TD_OK : TD_E_IO) != TD_OK) {
        td_free(t);
        return NULL;
    }
    return t;
}

/* ---- the events of a step ---- */

/* Called when a unit's gradients are averaged: moves this rank's piece into the window, and frees
 * the slot. If there are replicas, starts the average over the replicas. */
static td_status shard_keep(td_shard_unit *u, td_ddp_unit *unit)
{
    td_sharding *sh = u->sharding;
    td_ddp_state *s = sh->ddp;
    bool good = s->failure.status == TD_OK;
    if (good) {
        td_shard_keep_grads(u);
    }
    td_shard_drop_grads(u);
    return good && sh->replicas != NULL && s->no_sync_depth == 0
               ? td_shard_average_replicas(u, &unit->work)
               : TD_OK;
}

static td_status shard_on(td_ddp_part *part, td_ddp_state *s, td_ddp_event event, td_ddp_unit *unit)
{
    td_sharding *sh = (td_sharding *)part;
    if (event == TD_DDP_FORWARD && sh->replicas != NULL) {
        td_not_recordable("a mesh with replicas has collectives of several groups");
    }
    if (event == TD_DDP_FORWARD && sh->landing != NULL) {
        td_not_recordable("windows are offloaded, and the CPU takes the optimizer's step");
    }
    if (sh->options.stage < TD_SHARD_GRADIENTS) {
        return TD_OK;
    }
    td_shard_unit *u = unit != NULL ? &sh->units[unit - s->units.list] : NULL;
    switch (event) {
    case TD_DDP_LAUNCH:
        td_shard_begin_grads(u); /* if its backward has not run */
        break;
    case TD_DDP_LAUNCHED: /* the replicas average the unit before only now (grads.c says why) */
        if (sh->replicas != NULL && u->number > 0) {
            td_reducer_wait(s, unit - 1);
        }
        break;
    case TD_DDP_WAITED:
        return u->grad_slot != NULL ? shard_keep(u, unit) : TD_OK;
    case TD_DDP_REDUCED:
        for (int k = 0; k < sh->count; k++) { /* after a failure there are some */
            td_shard_drop_grads(&sh->units[k]);
        }
        td_shard_let_all_go(sh);
        break;
    default:
        break;
    }
    return TD_OK;
}

td_sharding *td_sharding_of(const td_ddp_state *s)
{
    return (td_sharding *)td_ddp_find_part(s, shard_on);
}

/* ---- beginning and end ---- */

static void free_slots(const td_slots *slots)
{
    td_free(slots->value.memory);
    td_free(slots->value.packed);
    td_free(slots->grad.memory);
}

/* Frees a unit's header. Leaves still have views of its storage, which is left without memory. */
static void free_header(td_tensor *t)
{
    if (t != NULL) {
        td_set_address(t, NULL);
        td_free(t);
    }
}

static void free_sharding(td_ddp_part *part)
{
    td_sharding *sh = (td_sharding *)part;
    td_shard_unsurround(sh);
    for (int k = 0; sh->units != NULL && k < sh->count; k++) {
        td_shard_unit *u = &sh->units[k];
        td_shard_finish_gather(u);
        free_header(u->values);
        free_header(u->grads);
        free_slots(&u->home);
    }
    for (int k = 0; k < TD_SLOTS; k++) {
        free_slots(&sh->slots[k]);
    }
    td_free(sh->landing);
    free(sh->units);
    free(sh->cuts);
    free(sh->of_param);
    free(sh->held);
    free(sh);
}

/* TD_SHARD_OPTIMIZER (ZeRO-1): values and gradients stay in flat memory, which is one unit. */
static td_status open_optimizer(td_sharding *sh, const td_params_peers *peers)
{
    td_ddp_state *s = sh->ddp;
    const td_tensor *flat = td_params_flat(s->params);
    int64_t whole = sh->ranks * (GRAIN / (int64_t)td_dtype_size(flat->dtype));
    int64_t length = (td_numel(flat) + whole - 1) / whole * whole;
    sh->units = calloc(1, sizeof *sh->units);
    TD_CHECK(sh->units != NULL, TD_E_NOMEM, "td_ddp: no memory to shard an optimizer");
    *sh->units = (td_shard_unit){ .sharding = sh, .count = length };
    sh->count = 1;
    TD_TRY(td_ddp_move_memory(s, true, length));
    td_params_set_peers(s->params, peers);
    return TD_OK;
}

/* Memory for the values (unless they are always here) and gradients of a unit of `count` elements,
 * and for this rank's piece as it travels if that takes other bytes. Collective. */
static bool make_slot(const td_sharding *sh, td_slots *s, int64_t count, int64_t bytes)
{
    bool values = sh->options.stage == TD_SHARD_PARAMETERS && !sh->woven;
    td_dtype dtype = td_params_flat(sh->ddp->params)->dtype;
    bool packs = values && bytes > 0;
    s->grad.memory = td_ddp_new_memory(sh->group, sh->device, count, dtype);
    s->value.memory = values ? td_zeros(TD_SHAPE(count), dtype, sh->device) : NULL;
    s->value.packed = packs ? td_ddp_new_memory(sh->group, sh->device, bytes, TD_U8) : NULL;
    return s->grad.memory != NULL && (s->value.memory != NULL || !values) &&
           (s->value.packed != NULL || !packs);
}

/* TD_SLOTS slots, each as large as the largest unit, and slots for the root alone. Collective: a
 * rank that is short of memory still takes part in the other allocations, and fails at the end. */
static td_status make_slots(td_sharding *sh)
{
    int64_t largest = 0, bytes = 0;
    td_shard_unit *root = sh->root;
    for (td_shard_unit *u = sh->units; u < sh->units + sh->count - (root != NULL); u++) {
        int64_t packed = td_shard_wire_bytes(u);
        largest = u->count > largest ? u->count : largest;
        bytes = packed > bytes ? packed : bytes;
    }
    bool made = true;
    for (int k = 0; largest > 0 && k < TD_SLOTS; k++) {
        made = make_slot(sh, &sh->slots[k], largest, bytes) && made;
    }
    if (root != NULL) {
        made = make_slot(sh, &root->home, root->count, td_shard_wire_bytes(root)) && made;
        largest = root->count > largest ? root->count : largest;
    }
    if (sh->options.offload != NULL && sh->device.type != TD_DEVICE_CPU) {
        td_dtype dtype = td_params_flat(sh->ddp->params)->dtype;
        sh->landing = td_zeros(TD_SHAPE(largest / sh->ranks), dtype, TD_CPU);
        made = made && sh->landing != NULL;
    }
    return made ? TD_OK : TD_E_NOMEM;
}

static void describe_unit(td_ddp_state *s, td_ddp_unit *unit)
{
    const td_sharding *sh = td_sharding_of(s);
    const td_shard_unit *u = &sh->units[unit - s->units.list];
    unit->b.grad = u->grads;
    td_snprintf(unit->name, sizeof unit->name, "%.30s (%.2f MiB)", u->path,
                (double)td_unit_bytes(unit) / (1 << 20));
}

/* TD_SHARD_GRADIENTS and TD_SHARD_PARAMETERS (ZeRO-2, ZeRO-3). */
static td_status open_units(td_sharding *sh, td_params_peers *peers)
{
    td_ddp_state *s = sh->ddp;
    const char *offload = sh->options.offload;
    bool cpu = sh->device.type == TD_DEVICE_CPU;
    TD_CHECK(sh->options.wire == NULL || td_params_flat(s->params)->dtype == TD_F32,
             TD_E_UNSUPPORTED, "td_zero: .wire bf16 is for f32 models");
    TD_CHECK(offload == NULL || !cpu || strcmp(offload, "cpu") != 0, TD_E_UNSUPPORTED,
             "td_zero: .offload 'cpu' is for models on GPUs, and this one is on the CPU: "
             "give a folder, whose files its windows become, or leave .offload out");
    peers->memory = offload != NULL ? window_memory : NULL;
    peers->own_grads = true;
    peers->own_values = sh->options.stage == TD_SHARD_PARAMETERS;
    bool gathers = !cpu || sh->options.gathers || sh->options.wire != NULL || offload != NULL;
    sh->woven = peers->own_values && !gathers && td_group_can_weave(sh->group);
    peers->meet = sh->woven ? shard_meet : NULL;
    peers->gather = sh->woven ? shard_meet : peers->own_values ? forget_values : shard_gather;
    TD_TRY(td_group_agree(s->group, td_shard_lay_out(sh, peers)));
    s->units.of_param = sh->of_param;
    s->units.describe = describe_unit;
    s->reducer.average = td_shard_average;
    s->reducer.always = sh->replicas != NULL;
    td_status status = make_slots(sh);
    status = status == TD_OK ? td_shard_surround(sh) : status;
    return td_group_agree(s->group, status); /* and all have written their windows */
}

static td_status find_groups(td_sharding *sh)
{
    td_mesh *mesh = sh->ddp->options.mesh;
    if (mesh != NULL && td_mesh_size(mesh, "rep") > 1) {
        sh->group = td_mesh_group(mesh, "dp");
        sh->replicas = sh->group != NULL ? td_mesh_group(mesh, "rep") : NULL;
        if (sh->replicas == NULL) {
            return TD_E_NETWORK; /* with the message of td_mesh_group */
        }
        td_ddp_state *s = sh->ddp;
        s->groups[0] = sh->replicas != s->group ? s->group : NULL;
        s->groups[1] = sh->group;
        s->groups[2] = sh->replicas;
    }
    sh->rank = td_group_rank(sh->group);
    sh->ranks = td_group_size(sh->group);
    return TD_OK;
}

/* ---- the strategy ---- */

static td_divided zero_check(const td_strategy *self, const td_ddp_options *ddp, td_site at)
{
    const td_zero_options *o = (const td_zero_options *)self;
    TD_REQUIRE(o->stage >= TD_SHARD_NONE && o->stage <= TD_SHARD_PARAMETERS, at,
               "td_zero: there is no stage %d", (int)o->stage);
    TD_REQUIRE(o->stage < TD_SHARD_GRADIENTS || ddp->comm_hook == NULL, at,
               "td_zero: a communication hook (%s) changes whole gradients, which no rank has in "
               "stage %d: use TD_SHARD_OPTIMIZER, or no hook",
               ddp->comm_hook, (int)o->stage);
    TD_REQUIRE(o->stage == TD_SHARD_NONE || ddp->comm_hook == NULL || ddp->mesh == NULL ||
                   td_mesh_size(ddp->mesh, "rep") == 1,
               at,
               "td_zero: a communication hook (%s) and sharding work together without replicas "
               "only: use a mesh with rep=1, or no hook",
               ddp->comm_hook);
    TD_REQUIRE(o->offload == NULL || o->stage == TD_SHARD_PARAMETERS, at,
               "td_zero: .offload is for windows of all that there is: with TD_SHARD_PARAMETERS");
    TD_REQUIRE(o->wire == NULL || strcmp(o->wire, "bf16") == 0, at,
               "td_zero: there is no .wire '%s'; there is bf16", o->wire);
    TD_REQUIRE(o->wire == NULL || o->stage == TD_SHARD_PARAMETERS, at,
               "td_zero: .wire is for values that travel in each step: with TD_SHARD_PARAMETERS");
    const td_params *params = ddp->model != NULL ? td_params_laid_out(ddp->model) : NULL;
    TD_REQUIRE(o->stage == TD_SHARD_NONE || params == NULL || params->extra_count == 0, at,
               "td_ddp: with td_zero, optimizers and averages of the weights (td_ema_new) "
               "are made after td_ddp");
    return (td_divided)o->stage;
}

static void zero_describe(const td_strategy *self, FILE *out)
{
    static const char *const stages[] = { "", ", shard optimizer", ", shard gradients",
                                          ", shard parameters" };
    const td_zero_options *o = (const td_zero_options *)self;
    fprintf(out, "%s%s%s%s", stages[o->stage], o->wire != NULL ? ", wire bf16" : "",
            o->gathers ? ", gathers" : "", o->offload != NULL ? ", offload" : "");
}

static td_status zero_open(const td_strategy *self, td_ddp_state *s)
{
    const td_zero_options *o = (const td_zero_options *)self;
    if (o->stage == TD_SHARD_NONE) {
        return td_ddp_move_memory(s, false, td_numel(td_params_flat(s->params)));
    }
    td_sharding *sh = calloc(1, sizeof *sh);
    TD_CHECK(sh != NULL, TD_E_NOMEM, "td_ddp: no memory to shard a model");
    *sh = (td_sharding){ .part = { .on = shard_on, .free = free_sharding },
                         .ddp = s,
                         .options = *o,
                         .group = s->group,
                         .device = td_device_of(td_params_flat(s->params)) };
    td_ddp_add_part(s, &sh->part);
    TD_TRY(find_groups(sh));
    s->units.stays = true; /* state belongs to places in memory, so the order stays */
    td_params_peers peers = { .rank = sh->rank,
                              .count = sh->ranks,
                              .gather = shard_gather,
                              .sum = sum,
                              .broadcast = shard_broadcast,
                              .agree = shard_agree,
                              .spare = sh->replicas != NULL && td_group_rank(sh->replicas) > 0,
                              .user = sh };
    TD_TRY(sh->options.stage == TD_SHARD_OPTIMIZER ? open_optimizer(sh, &peers)
                                                   : open_units(sh, &peers));
    td_trim_heap(); /* the heap would keep what was there before */
    return TD_OK;
}

const td_strategy_type td_zero_type = { .check = zero_check,
                                        .describe = zero_describe,
                                        .open = zero_open };

/* ---- statistics ---- */

static size_t bytes_of_slots(const td_slots *s)
{
    return td_tensor_bytes(s->value.memory) + td_tensor_bytes(s->value.packed) +
           td_tensor_bytes(s->grad.memory);
}

td_shard_stats td_ddp_shard_stats(const td_module *net)
{
    const td_ddp_state *s = td_ddp_state_of(net);
    const td_sharding *sh = td_sharding_of(s);
    td_shard_stats stats = { .values = td_tensor_bytes(td_params_flat(s->params)),
                             .gradients = td_tensor_bytes(td_params_flat_grad(s->params)) };
    for (int k = 0; k < TD_DDP_GROUPS; k++) {
        stats.wire += s->groups[k] != NULL ? td_group_moved(s->groups[k]) : 0;
    }
    if (sh != NULL) {
        stats.slots = td_tensor_bytes(sh->landing);
        for (int k = 0; k < TD_SLOTS; k++) {
            stats.slots += bytes_of_slots(&sh->slots[k]);
        }
        for (int k = 0; k < sh->count; k++) {
            const td_shard_unit *u = &sh->units[k];
            stats.slots += bytes_of_slots(&u->home);
            stats.unit_values += u->value_slot != NULL ? td_tensor_bytes(u->values) : 0;
            stats.unit_gradients += u->grad_slot != NULL ? td_tensor_bytes(u->grads) : 0;
        }
        stats.units = s->units.of_param != NULL ? sh->count : 0;
        stats.gather = sh->gather;
        stats.woven = sh->woven;
    }
    for (int i = 0; i < s->params->extra_count; i++) {
        const td_tensor *state = s->params->extra[i].state;
        stats.state += state->dtype != TD_I64 ? td_tensor_bytes(state) : 0; /* counts are few */
    }
    return stats;
}
