/* Moving the flat memory of parameters and gradients: into memory of somebody else, or into another
 * order. The leaves keep their headers. */
#include "nn/params_internal.h"
#include "autograd/hooks.h"
#include "autograd/tape.h"
#include "tensor/extend.h"
#include "nn/internal.h"
#include "tensor/storage.h"

#include <stdlib.h>
#include <string.h>

/* ---- other memory ---- */

static void free_views(td_tensor **views, int count)
{
    for (int i = 0; views != NULL && i < count; i++) {
        td_free(views[i]);
    }
    free(views);
}

/* A header over `flat` for each parameter; NULL: no memory. */
static td_tensor **make_views(const td_params *params, td_tensor *flat)
{
    td_tensor **views = calloc((size_t)params->count + 1, sizeof(td_tensor *));
    for (int i = 0; views != NULL && i < params->count; i++) {
        views[i] = td_params_view(params, flat, i);
        if (views[i] == NULL) {
            free_views(views, params->count);
            return NULL;
        }
    }
    return views;
}

static void require_room(const td_params *params, const td_tensor *flat, int64_t length)
{
    TD_REQUIRE(flat->step == 0 && flat->ndim == 1 && td_numel(flat) == length &&
                   length >= td_numel(params->flat) && flat->dtype == params->flat->dtype &&
                   td_same_device(td_device_of(flat), td_device_of(params->flat)),
               TD_HERE, "td_params_set_memory: %s cannot take the place of %s", td_describe(flat),
               td_describe(params->flat));
}

/* Copies what is there to the beginning of longer memory. */
static void copy_begin(td_tensor *to, const td_tensor *from)
{
    td_tensor begin = td_params_part(to, 0, td_numel(from));
    td_copy_(&begin, from);
    to->name = from->name;
}

static void move_values(td_params *params, td_tensor *flat, td_tensor **views)
{
    copy_begin(flat, params->flat);
    for (int i = 0; i < params->count; i++) {
        td_exchange_memory(params->items[i].tensor, views[i]);
    }
    free_views(views, params->count); /* which hold the old memory now */
    td_free(params->flat);
    params->flat = flat;
}

static void move_grads(td_params *params, td_tensor *flat, td_tensor **views)
{
    copy_begin(flat, params->flat_grad);
    for (int i = 0; i < params->count; i++) {
        td_tensor *leaf = params->items[i].tensor;
        bool has = td_grad(leaf) != NULL;
        views[i]->name = params->grads[i]->name;
        if (td_is_leaf(leaf)) {
            td_set_grad_storage(leaf, views[i]);
        }
        if (has) {
            td_mark_grad(leaf);
        }
    }
    free_views(params->grads, params->count);
    td_free(params->flat_grad);
    params->grads = views;
    params->flat_grad = flat;
}

td_status td_params_set_memory(td_params *params, td_tensor *values, td_tensor *grads)
{
    require_room(params, grads, td_numel(values != NULL ? values : params->flat));
    require_room(params, values != NULL ? values : params->flat, td_numel(grads));
    td_tensor **value_views = values != NULL ? make_views(params, values) : NULL;
    td_tensor **grad_views = make_views(params, grads);
    if ((values != NULL && value_views == NULL) || grad_views == NULL) {
        free_views(value_views, params->count);
        free_views(grad_views, params->count);
        return td_fail(TD_E_NOMEM, "no memory to move %d parameters", params->count);
    }
    if (values != NULL) {
        move_values(params, values, value_views);
    }
    move_grads(params, grads, grad_views);
    return TD_OK;
}

/* ---- parameters that are frozen, or take gradients again ---- */

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

/* ---- reordering ---- */

static void require_permutation(const td_params *p, const int *order)
{
    for (int k = 0; k < p->count; k++) {
        bool valid = order[k] >= 0 && order[k] < p->count;
        for (int j = 0; j < k; j++) {
            valid = valid && order[j] != order[k];
        }
        TD_REQUIRE(valid, TD_HERE,
                   "td_params_reorder: order[%d] = %d; every number from 0 to %d must appear once",
                   k, order[k], p->count - 1);
    }
}

/* Rearranges one flat tensor; the gaps between slices stay zero. Packed state has other numbers of
 * elements (`each`) in a cache line of parameters. */
static void rearrange(const td_params *p, td_tensor *flat, const td_tensor *room,
                      const int64_t *begin)
{
    int64_t line = TD_PARAMS_LINE / (int64_t)td_dtype_size(p->flat->dtype);
    int64_t all = td_numel(p->flat) / line, each = all > 0 ? td_numel(flat) / all : 0;
    td_tensor old;
    td_init_header(&old, room->storage, 0, td_shape_of(flat), flat->stride, flat->dtype);
    td_copy_(&old, flat);
    td_fill_(flat, 0.0);
    for (int i = 0; i < p->count; i++) {
        int64_t lines = (p->items[i].count + line - 1) / line;
        td_tensor to = td_params_part(flat, begin[i] / line * each, lines * each);
        td_tensor from = td_params_part(&old, p->items[i].begin / line * each, lines * each);
        td_copy_(&to, &from);
    }
}

static void move_to(td_params *params, const int64_t *begin, const td_tensor *room)
{
    rearrange(params, params->flat, room, begin);
    rearrange(params, params->flat_grad, room, begin);
    for (int i = 0; i < params->extra_count; i++) {
        if (params->extra[i].flat) {
            rearrange(params, params->extra[i].state, room, begin);
        }
    }
    for (int i = 0; i < params->count; i++) {
        int64_t distance = begin[i] - params->items[i].begin;
        params->items[i].tensor->offset += distance;
        params->grads[i]->offset += distance;
    }
}

td_status td_params_reorder(td_params *params, const int *order)
{
    require_permutation(params, order);
    TD_REQUIRE(td_params_peers_of(params) == NULL, TD_HERE,
               "td_params_reorder: ranks share the state of these parameters, each a window of the "
               "memory: the order stays");
    int64_t *begin = calloc((size_t)params->count + 1, sizeof *begin);
    bool moves = !params->deferred;
    td_tensor *room = moves ? td_clone(params->flat) : NULL; /* for any: none has more bytes */
    if (begin == NULL || (moves && room == NULL)) {
        free(begin);
        td_free(room);
        return td_fail(TD_E_NOMEM, "no memory to reorder %d parameters", params->count);
    }
    td_params_place(params, params->flat->dtype, order, begin);
    if (moves) {
        move_to(params, begin, room);
    }
    for (int i = 0; i < params->count; i++) {
        params->items[i].begin = begin[i];
    }
    memcpy(params->order, order, (size_t)params->count * sizeof *order);
    params->reorders++;
    td_free(room);
    free(begin);
    return TD_OK;
}
