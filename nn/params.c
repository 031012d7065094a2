/* Flat parameters: all parameters of a model side by side in one stretch of memory, all gradients
 * in another of the same form. Optimizers then make one pass, and data parallelism sends slices of
 * it without copying. The leaves keep their headers; only the memory behind them is exchanged. */
#include "nn/params.h"
#include "autograd/tape.h"
#include "nn/internal.h"
#include "tensor/kernels/packed.h"
#include "tensor/storage.h"
#include "tensor/system/list.h"
#include "autograd/hooks.h"

#include <stdlib.h>

/* ---- laying out ---- */

int64_t td_params_place(const td_params *p, td_dtype dtype, const int *order, int64_t *begin)
{
    int64_t unit = TD_PARAMS_LINE / (int64_t)td_dtype_size(dtype);
    int64_t at = 0;
    for (int k = 0; k < p->count; k++) {
        begin[order[k]] = at;
        at += (p->items[order[k]].count + unit - 1) / unit * unit;
    }
    return at;
}

static bool is_listed(const td_params *p, const td_tensor *t)
{
    for (int i = 0; i < p->count; i++) {
        if (p->items[i].tensor == t) {
            return true;
        }
    }
    return false;
}

static bool is_model_s(const td_tensor *t, const td_module *m)
{
    return t->dtype == m->dtype && td_same_device(td_device_of(t), m->device);
}

/* Takes the parameters that train, or those that are frozen, with their names, out of the model's
 * list of tensors. */
static void collect(td_params *p, td_state_list *list, const td_module *m, bool train, td_site at)
{
    for (int i = 0; i < list->count; i++) {
        td_tensor *t = list->items[i].tensor;
        bool fits = is_model_s(t, m) && td_is_dense(t); /* nobody asks that of a frozen one */
        if (list->items[i].buffer || td_is_leaf(t) != train || is_listed(p, t)) {
            continue;
        }
        TD_REQUIRE(is_model_s(t, m) || !train, at,
                   "td_parameters: '%s' is %s, while the model is %s on %s; bring all to one place "
                   "with td_module_to",
                   list->items[i].name, td_describe(t), td_dtype_name(m->dtype),
                   td_device_name(m->device));
        TD_REQUIRE(fits || !train, at,
                   "td_parameters: '%s' is a view with gaps; a parameter must fill its memory",
                   list->items[i].name);
        bool away = t->storage->released; /* another stage of a pipeline has it */
        if (!train && (!fits || away || p->deferred || p->trained_only)) {
            p->left[p->left_count++] = t;
            continue;
        }
        p->deferred = p->deferred || td_draw_of(t) != NULL;
        p->items[p->count] = (td_param){ list->items[i].name, t, 0, td_numel(t) };
        p->order[p->count] = p->count;
        p->count++;
        list->items[i].name = NULL; /* now ours */
    }
}

static td_tensor *new_flat(const td_params *p, const td_module *m, int64_t count)
{
    return p->deferred ? td_new_away(TD_SHAPE(count), m->dtype, TD_ROW_MAJOR, m->device, NULL)
                       : td_zeros(TD_SHAPE(count), m->dtype, m->device);
}

/* The flat memory and, unless parameters are deferred, the headers over it. Nothing of the model is
 * changed yet, so that short memory leaves it as it was. */
static bool make_memory(td_params *p, const td_module *m, td_tensor **values)
{
    int64_t *begin = calloc((size_t)p->count + 1, sizeof(int64_t));
    if (begin == NULL) {
        return false;
    }
    int64_t total = td_params_place(p, m->dtype, p->order, begin);
    for (int i = 0; i < p->count; i++) {
        p->items[i].begin = begin[i];
    }
    free(begin);
    p->flat = new_flat(p, m, total);
    p->flat_grad = new_flat(p, m, total);
    if (p->flat == NULL || p->flat_grad == NULL) {
        return false;
    }
    p->flat->name = "the flat parameters";
    p->flat_grad->name = "the flat gradients";
    for (int i = 0; !p->deferred && i < p->count; i++) {
        values[i] = td_params_view(p, p->flat, i);
        p->grads[i] = td_params_view(p, p->flat_grad, i);
        if (values[i] == NULL || p->grads[i] == NULL) {
            return false;
        }
        p->grads[i]->name = p->items[i].name;
    }
    return true;
}

/* The leaf's gradient is in its part of the flat memory from now on. */
static void bind_grad(td_tensor *leaf, td_tensor *part)
{
    const td_tensor *grad = td_grad(leaf);
    if (grad != NULL) {
        td_copy_(part, grad);
    }
    td_set_grad_storage(leaf, part);
    if (grad != NULL) {
        td_mark_grad(leaf);
    }
}

/* Moves the leaves' values and gradients into the flat memory. */
static void move_in(td_params *p, td_tensor **values)
{
    for (int i = 0; i < p->count; i++) {
        td_tensor *leaf = p->items[i].tensor;
        td_copy_(values[i], leaf);
        td_exchange_memory(leaf, values[i]);
        if (td_is_leaf(leaf)) {
            bind_grad(leaf, p->grads[i]);
        }
    }
}

static td_params *make_params(const td_module *m, td_state_list *list, bool trained_only,
                              td_site at)
{
    td_params *p = calloc(1, sizeof *p);
    if (p == NULL) {
        return NULL;
    }
    size_t room = (size_t)list->count + 1;
    p->items = calloc(room, sizeof *p->items);
    p->order = calloc(room, sizeof *p->order);
    p->grads = calloc(room, sizeof(td_tensor *));
    p->left = calloc(room, sizeof(td_tensor *));
    p->trained_only = trained_only;
    p->slicing = td_node_of(m)->slicing;
    p->staging = td_node_of(m)->staging;
    td_tensor **values = calloc(room, sizeof(td_tensor *));
    bool made = p->items != NULL && p->order != NULL && p->grads != NULL && p->left != NULL &&
                values != NULL;
    if (made) {
        collect(p, list, m, true, at);
        collect(p, list, m, false, at);
        made = make_memory(p, m, values);
    }
    if (made && !p->deferred) {
        move_in(p, values);
    }
    for (int i = 0; values != NULL && i < p->count; i++) {
        td_free(values[i]); /* what the leaves had before */
    }
    free(values);
    td_trim_heap(); /* the heap would keep what the leaves had: as much again as the parameters */
    if (!made) {
        td_params_free(p, TD_HERE);
        return NULL;
    }
    return p;
}

/* A deferred tensor gets its values with the flat memory, to which a frozen tensor does not belong.
 */
static void require_no_frozen(const td_module *m, td_site at)
{
    for (int i = 0; i < m->tensor_count; i++) {
        const td_tensor *t = m->tensors[i].tensor;
        TD_REQUIRE(td_is_leaf(t) || td_draw_of(t) == NULL, at,
                   "td_parameters: '%s' takes no gradient, so ranks do not share it; make its "
                   "module without td_defer_init",
                   td_node_of(m)->tensor_paths[i]);
    }
}

static td_params *lay_out(td_module *net, bool trained_only, td_site at)
{
    TD_REQUIRE(net != NULL, at, "td_parameters: the module is NULL: its constructor failed (%s)",
               td_last_reason());
    TD_REQUIRE(!td_module_is_freed(net), at,
               "td_parameters: the module was freed: call td_module_free last");
    td_module_node *node = td_node_of(net);
    if (node->params != NULL) {
        return node->params;
    }
    const td_module *part = td_module_with_params(net);
    TD_REQUIRE(part == NULL, at,
               "td_parameters of '%s': the parameters of '%s' are already laid out flat; call "
               "td_parameters on the whole model, and give it one optimizer: parts get settings of "
               "their own by td_optim_group",
               node->label, td_node_of(part)->label);
    for (const td_module *m = net; m != NULL; m = td_module_next(net, m)) {
        require_no_frozen(m, at);
    }
    td_state_list list = td_module_state(net);
    if (list.count < 0) {
        return NULL;
    }
    node->params = make_params(net, &list, trained_only, at);
    if (node->params == NULL) {
        td_fail(TD_E_NOMEM, "no memory to lay out the %lld parameters of '%s' flat",
                (long long)td_parameter_count(net), node->label);
    }
    td_state_list_free(&list);
    return node->params;
}

td_params *td_parameters_at(td_module *m, td_site at)
{
    return lay_out(m, false, at);
}

td_params *td_params_trained(td_module *m)
{
    return lay_out(m, true, TD_HERE);
}

void td_params_free(td_params *params, td_site at)
{
    if (params == NULL) {
        return;
    }
    TD_REQUIRE(params->extra_count == 0, at,
               "td_module_free: an optimizer (or td_ema) still uses the parameters of this model: "
               "free that first (td_optim_free), and the model last");
    for (int i = 0; i < params->count; i++) {
        free((char *)(uintptr_t)params->items[i].name);
        td_free(params->grads[i]);
    }
    td_free(params->flat);
    td_free(params->flat_grad);
    td_free(params->training.scaling);
    free(params->items);
    free(params->order);
    free(params->left);
    free(params->grads);
    free(params->extra);
    *params = (td_params){ .freed = true };
    td_free_later(params);
}

/* ---- parameters that are frozen, or take gradients again ---- */

void td_params_follow(td_params *params)
{
    for (int i = 0; i < params->left_count; i++) {
        const char *when = params->trained_only ? "td_ddp" : "td_parameters";
        TD_REQUIRE(!td_is_leaf(params->left[i]), TD_NOWHERE,
                   "%s takes gradients, but was frozen at %s, so nobody trains it: "
                   "td_requires_grad(t, true) before %s",
                   td_label(params->left[i]), when, when);
    }
    for (int i = 0; i < params->count; i++) {
        td_tensor *leaf = params->items[i].tensor;
        if (td_is_leaf(leaf) && !td_has_grad_storage(leaf, params->grads[i])) {
            bind_grad(leaf, params->grads[i]); /* it was frozen meanwhile */
        }
    }
}

const char *td_params_frozen(const td_params *params)
{
    for (int i = 0; i < params->count; i++) {
        if (!td_is_leaf(params->items[i].tensor)) {
            return params->items[i].name;
        }
    }
    return NULL;
}

/* ---- looking ---- */

td_params_training *td_params_training_of(const td_params *params)
{
    return &((td_params *)(uintptr_t)params)->training;
}

void td_params_spend(td_params *params)
{
    params->training.spent = td_latest_backward();
    params->training.waits = params->training.apart = false;
}

td_tensor *td_params_waiting(const td_params *params, int i)
{
    const td_tensor *leaf = params->items[i].tensor;
    bool since = td_is_leaf(leaf) && td_last_backward_of(leaf) > params->training.spent;
    return since || params->training.waits ? td_grad(leaf) : NULL;
}

static const td_params *alive(const td_params *params)
{
    TD_REQUIRE(!params->freed, TD_HERE,
               "the list of parameters was freed with its model: call td_module_free last");
    return params;
}

int td_params_count(const td_params *params)
{
    return alive(params)->count;
}

const td_param *td_params_get(const td_params *params, int i)
{
    TD_REQUIRE(i >= 0 && i < alive(params)->count, TD_HERE,
               "td_params_get: there is no parameter %d of %d", i, params->count);
    return &params->items[i];
}

td_tensor *td_params_flat(const td_params *params)
{
    return alive(params)->flat;
}

td_tensor *td_params_flat_grad(const td_params *params)
{
    return alive(params)->flat_grad;
}

td_params *td_params_laid_out(const td_module *m)
{
    return td_node_of(m)->params;
}

td_tensor *td_params_view(const td_params *params, td_tensor *flat, int i)
{
    const td_param *item = &params->items[i];
    return td_slice_of_storage(flat, flat->offset + item->begin, td_shape_of(item->tensor),
                               item->tensor->stride);
}

/* ---- optimizer state ---- */

/* Takes over `state`; NULL: there was no memory for it. */
static td_tensor *add_state(td_params *params, td_tensor *state, bool flat, const char *name)
{
    if (state == NULL || !td_grow(&params->extra, params->extra_count, sizeof *params->extra)) {
        if (state != NULL) {
            td_fail(TD_E_NOMEM, "no memory for optimizer state");
        }
        td_free(state);
        return NULL;
    }
    state->name = name;
    params->extra[params->extra_count++] = (td_params_extra){ .state = state, .flat = flat };
    return state;
}

static td_tensor *new_memory(const td_params *params, int64_t count, td_dtype dtype)
{
    const td_params_peers *peers = &params->peers;
    return peers->memory != NULL ? peers->memory(count, dtype, peers->user)
                                 : td_zeros(TD_SHAPE(count), dtype, td_device_of(params->flat));
}

td_tensor *td_params_new_flat(td_params *params)
{
    const td_tensor *like = td_params_flat(params);
    return add_state(params, new_memory(params, td_numel(like), like->dtype), true,
                     "an optimizer's flat state");
}

td_tensor *td_params_new_window(td_params *params, td_dtype dtype)
{
    int64_t ranks = td_params_peers_of(params) != NULL ? params->peers.count : 1;
    int64_t length = td_params_length(params) / ranks;
    length = dtype == TD_U8 ? length / TD_PACK * TD_PACK_BYTES : length;
    td_tensor *state =
        add_state(params, new_memory(params, length, dtype), true, "an optimizer's state");
    if (state != NULL) {
        params->extra[params->extra_count - 1].window = true;
    }
    return state;
}

td_tensor *td_params_new_numbers(td_params *params, int64_t count, td_dtype dtype)
{
    return add_state(params, td_zeros(TD_SHAPE(count), dtype, TD_CPU), false,
                     "an optimizer's numbers");
}

void td_params_drop_state(td_params *params, td_tensor *state)
{
    for (int i = 0; i < params->extra_count; i++) {
        if (params->extra[i].state == state) {
            params->extra[i] = params->extra[--params->extra_count];
            td_free(state);
            return;
        }
    }
}
