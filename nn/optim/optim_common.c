/* What all optimizers share: groups, step counts, the table of slices for the device's kernel. */
#include "nn/optim/optim_internal.h"
#include "tensor/clock.h"
#include "autograd/tape.h"
#include "nn/module.h"
#include "tensor/hooks.h"
#include "tensor/storage.h"
#include "autograd/hooks.h"
#include "tensor/extend.h"
#include "tensor/system/list.h"
#include "tensor/system/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void td_require_lr(double lr, const char *what, td_site at)
{
    TD_REQUIRE(lr != 0.0 || signbit(lr), at,
               "%s: the learning rate is missing: set .lr, to 0.1 for example (TD_ZERO for none)",
               what);
    TD_REQUIRE(isfinite(lr) && lr >= 0.0, at,
               "%s: the learning rate (lr) is %g; it must be a number that is not negative", what,
               lr);
}

td_optim *td_optim_new(const td_optim_kind *kind, td_params *params, double lr,
                       const td_optim_group_settings *group, int states, const void *own,
                       size_t own_size, td_site at)
{
    TD_REQUIRE(params != NULL, at, "%s: the parameters are NULL: td_parameters failed (%s)",
               kind->name, td_last_reason());
    size_t room = (size_t)td_params_count(params) + 1; /* stops here if they were freed */
    td_dtype dtype = room > 1 ? td_params_get(params, 0)->tensor->dtype : TD_F32;
    TD_REQUIRE(dtype == TD_F32 || dtype == TD_F64, at,
               "%s: the parameters are %s: parameters that are trained are f32 or f64, also where "
               "precision is bf16 (td_set_math)",
               kind->name, td_dtype_name(dtype));
    td_optim *o = calloc(1, sizeof *o);
    TD_CHECK_NULL(o != NULL, TD_E_NOMEM, "no memory for an optimizer");
    o->kind = kind;
    o->params = params;
    o->lr = lr;
    o->groups = calloc(1, sizeof *o->groups);
    o->group_of = calloc(room, sizeof *o->group_of);
    o->step_counts = td_params_new_numbers(params, td_params_count(params), TD_I64);
    o->slices = calloc(room, sizeof *o->slices);
    o->own = calloc(1, own_size + 1);
    bool made = o->groups != NULL && o->group_of != NULL && o->step_counts != NULL &&
                o->slices != NULL && o->own != NULL;
    o->steps = made ? td_data_rw(o->step_counts) : NULL;
    for (int i = 0; made && i < states; i++) {
        o->state[i] = td_params_new_window(
            params, kind->packed != TD_F32 ? kind->packed : td_params_flat(params)->dtype);
        made = o->state[i] != NULL;
    }
    if (!made) {
        td_optim_free(o);
        td_fail(TD_E_NOMEM, "no memory for the state of %s over %lld parameters: %s", kind->name,
                (long long)td_params_length(params), td_last_reason());
        return NULL;
    }
    o->groups[0] = *group;
    o->groups[0].lr_scale = 1.0;
    o->group_count = 1;
    (void)td_skips_settle(&o->skips, params);
    if (own_size > 0) {
        memcpy(o->own, own, own_size);
    }
    return o;
}

void td_optim_free(td_optim *optim)
{
    if (optim == NULL) {
        return;
    }
    if (optim->kind->free != NULL && optim->own != NULL) {
        optim->kind->free(optim);
    }
    free(optim->own);
    for (int i = 0; i < TD_OPTIM_STATES; i++) {
        if (optim->state[i] != NULL) {
            td_params_drop_state(optim->params, optim->state[i]);
        }
    }
    free(optim->groups);
    free(optim->group_of);
    td_params_drop_state(optim->params, optim->step_counts);
    free(optim->slices);
    free(optim);
}

/* ---- a step ---- */

/* Whether slice b can be merged into a: b begins where a ends (or after a gap, whose parameters,
 * gradients and state are zero and stay so) and has the same constants. A captured step has a fixed
 * list of slices, so nothing may decide that changes during a run. Therefore step numbers are
 * compared, not Adam's bias corrections, which become equal with time; and groups are never merged
 * (fill_slices), even while their learning rates are equal. */
static bool continues(const td_optim_slice *a, const td_optim_slice *b, int64_t unit)
{
    int64_t end = (a->begin + a->count + unit - 1) / unit * unit;
    return end == b->begin && a->to_values == b->to_values && a->to_grads == b->to_grads &&
           a->first == b->first && a->lr == b->lr && a->weight_decay == b->weight_decay &&
           a->momentum == b->momentum && a->step == b->step && a->rounding.key == b->rounding.key;
}

const td_optim_group_settings *td_optim_settings(const td_optim *optim, int i)
{
    return &optim->groups[optim->group_of[i]];
}

/* The slice of parameter i's next step. */
static td_optim_slice slice_of(const td_optim *o, int i, bool captured)
{
    td_window here = td_params_here(o->params, i);
    const td_optim_group_settings *group = td_optim_settings(o, i);
    td_optim_slice slice = {
        .begin = here.place,
        .count = here.count,
        .to_values = here.to_values,
        .to_grads = here.to_grads,
        .lr = o->lr * group->lr_scale,
        .weight_decay = group->weight_decay,
    };
    o->kind->fill(o, i, &slice);
    if (o->kind->packed != TD_F32) {
        slice.rounding.key = td_philox_mixed_key((td_philox_key){ .stream = (uint64_t)i });
        slice.rounding.element = here.begin - td_params_get(o->params, i)->begin;
    }
    if (captured) {
        td_skips_ask(&o->skips, o->params, &slice, o->steps[i] + 1);
    }
    return slice;
}

/* Fills the table with as few slices as possible, in the order of memory, and counts the step.
 * Returns the number of slices. */
static int optim_fill_slices(td_optim *o, bool captured)
{
    int64_t unit = 64 / (int64_t)td_dtype_size(td_params_flat(o->params)->dtype);
    const int *order = o->params->order;
    int count = 0, last_group = -1, stepped = 0, idle = 0;
    for (int k = 0; k < td_params_count(o->params); k++) {
        int i = order[k];
        td_tensor *leaf = td_params_get(o->params, i)->tensor;
        if (td_grad(leaf) == NULL) {
            idle += td_is_leaf(leaf); /* not frozen */
            continue;
        }
        stepped++;
        td_optim_slice slice = slice_of(o, i, captured), *last = &o->slices[count - (count > 0)];
        o->steps[i]++;
        if (slice.count > 0 && o->group_of[i] == last_group && continues(last, &slice, unit)) {
            last->count = slice.begin + slice.count - last->begin;
        } else if (slice.count > 0) {
            o->slices[count++] = slice;
            last_group = o->group_of[i];
        }
    }
    if (idle > 0 && stepped == 0) { /* mostly a mistake: backward of another model, or none */
        td_notice("td_optim_step: no parameter of this optimizer has a gradient, so nothing "
                  "changes; call td_backward on this model's loss first");
    }
    o->skips.counted = o->skips.counted || captured;
    o->skips.begun = true;
    return count;
}

/* For a captured step and each of its replays: makes the kernels' table, and counts the step. */
static void fill_table(void *user, void *numbers)
{
    td_optim *o = user;
    if (!o->filled) {
        const td_optim_slice *then = numbers;
        bool same = optim_fill_slices(o, true) == o->slice_count;
        for (int i = 0; same && i < o->slice_count; i++) {
            same = o->slices[i].begin == then[i].begin && o->slices[i].count == then[i].count;
        }
        TD_REQUIRE(same, TD_HERE,
                   "%s: other parameters are trained than when the step was captured: "
                   "td_captured_forget, and it is captured again",
                   o->kind->name);
    }
    o->filled = false;
    if (numbers != o->slices) {
        memcpy(numbers, o->slices, (size_t)o->slice_count * sizeof *o->slices);
    }
}

static void take_off(td_optim *o, int64_t skipped)
{
    for (int i = 0; skipped != 0 && i < td_params_count(o->params); i++) {
        o->steps[i] -= td_grad(td_params_get(o->params, i)->tensor) != NULL ? skipped : 0;
    }
}

void td_optim_settle(td_optim *optim)
{
    take_off(optim, td_skips_settle(&optim->skips, optim->params));
}

void td_optim_step(td_optim *optim)
{
    td_params_follow(optim->params);
    take_off(optim, td_skips_step(&optim->skips, optim->params));
    int slices = optim->slice_count = optim_fill_slices(optim, td_recorder_now() != NULL);
    optim->filled = true;
    optim->table =
        td_step_numbers(optim->slices, (size_t)slices * sizeof *optim->slices, fill_table, optim);
    td_tensor *flat = td_params_flat(optim->params);
    if (slices > 0) {
        /* A write: a tape that has saved parameters must know. */
        td_begin_write(flat, "td_optim_step", TD_HERE);
        td_context_push("optimizer");
        optim->kind->run(optim, td_kernels_of(td_device_of(flat)), flat,
                         td_params_flat_grad(optim->params), slices);
        td_context_pop();
    }
    td_params_spend(optim->params);
    const td_params_peers *peers = td_params_peers_of(optim->params);
    if (peers != NULL) {
        peers->gather(peers->user);
    }
}

void td_zero_grad(td_optim *optim)
{
    double begin = td_steps_observed() ? td_clock() : 0.0;
    td_params_follow(optim->params);
    for (int i = 0; i < td_params_count(optim->params); i++) {
        td_tensor *leaf = td_params_get(optim->params, i)->tensor;
        if (td_is_leaf(leaf)) { /* one that was frozen meanwhile is none any more */
            td_zero_grad_of(leaf);
        }
    }
    if (begin > 0.0) {
        td_tell_span("zero_grad", begin, td_clock());
    }
}

size_t td_optim_state_bytes(const td_optim *optim)
{
    size_t bytes = 0;
    for (int i = 0; i < TD_OPTIM_STATES; i++) {
        bytes += td_tensor_bytes(optim->state[i]);
    }
    return bytes;
}

/* ---- settings ---- */

int td_optim_group(td_optim *optim, bool (*belongs)(const td_param *param, void *user), void *user,
                   double lr_scale, double weight_decay)
{
    TD_CHECK(td_grow(&optim->groups, optim->group_count, sizeof *optim->groups), TD_E_NOMEM,
             "no memory for one more parameter group");
    td_optim_group_settings *group = &optim->groups[optim->group_count];
    *group = optim->groups[0];
    group->lr_scale = lr_scale;
    group->weight_decay = weight_decay;
    for (int i = 0; i < td_params_count(optim->params); i++) {
        if (belongs(td_params_get(optim->params, i), user)) {
            optim->group_of[i] = optim->group_count;
        }
    }
    return optim->group_count++;
}

void td_optim_set_at(td_optim_set_options o, td_site at)
{
    td_optim *optim = o.optim;
    TD_REQUIRE(o.group >= 0 && o.group < optim->group_count, at,
               "td_optim_set: there is no group %d; there are %d", o.group, optim->group_count);
    TD_REQUIRE(o.lr_scale >= 0.0 && o.weight_decay >= 0.0 && o.momentum >= 0.0 && o.eps >= 0.0 &&
                   o.beta1 >= 0.0 && o.beta1 < 1.0 && o.beta2 >= 0.0 && o.beta2 < 1.0,
               at,
               "td_optim_set: lr_scale %g, weight decay %g, momentum %g and eps %g must not be "
               "negative, beta1 %g and beta2 %g must be in [0, 1)",
               o.lr_scale, o.weight_decay, o.momentum, o.eps, o.beta1, o.beta2);
    td_optim_group_settings *g = &optim->groups[o.group];
    TD_REQUIRE(o.momentum == 0.0 || !optim->kind->no_momentum, at,
               "td_optim_set: this %s was made without momentum and has no memory for it: give it "
               "a momentum when you make it",
               optim->kind->name);
    g->lr_scale = td_or_usual(o.lr_scale, g->lr_scale);
    g->weight_decay = td_or_usual(o.weight_decay, g->weight_decay);
    g->momentum = td_or_usual(o.momentum, g->momentum);
    g->beta1 = td_or_usual(o.beta1, g->beta1);
    g->beta2 = td_or_usual(o.beta2, g->beta2);
    g->eps = td_or_usual(o.eps, g->eps);
}

double td_optim_lr(const td_optim *optim)
{
    return optim->lr * optim->groups[0].lr_scale;
}

void td_optim_set_lr(td_optim *optim, double lr)
{
    optim->lr = lr;
}
