/* Moves the flat memory of parameters and gradients into memory of somebody else, which ranks read
 * from each other. The leaves keep their headers. */
#include "nn/shared/shared.h"

#include "autograd/hooks.h"
#include "autograd/tape.h"
#include "nn/internal.h"

#include <stdlib.h>

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
    const td_param *last = &params->items[params->order[params->count - 1]];
    TD_REQUIRE(flat->step == 0 && flat->ndim == 1 && td_numel(flat) == length &&
                   length >= last->begin + last->count && flat->dtype == params->flat->dtype &&
                   td_same_device(td_device_of(flat), td_device_of(params->flat)),
               TD_HERE, "td_params_set_memory: %s cannot take the place of %s", td_describe(flat),
               td_describe(params->flat));
}

/* What is not here stays zero. */
static void copy_here(td_tensor *to, const td_tensor *from)
{
    if (!from->storage->released) {
        td_copy_(to, from);
    }
}

static void move_values(td_params *params, td_tensor *flat, td_tensor **views)
{
    flat->name = params->flat->name;
    for (int i = 0; i < params->count; i++) {
        copy_here(views[i], params->items[i].tensor);
        td_exchange_memory(params->items[i].tensor, views[i]);
    }
    free_views(views, params->count); /* which hold the old memory now */
    td_free(params->flat);
    params->flat = flat;
}

static void move_grads(td_params *params, td_tensor *flat, td_tensor **views)
{
    flat->name = params->flat_grad->name;
    for (int i = 0; i < params->count; i++) {
        td_tensor *leaf = params->items[i].tensor;
        bool has = td_grad(leaf) != NULL;
        copy_here(views[i], params->grads[i]);
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

td_status td_params_unspread(td_params *params)
{
    td_dtype dtype = params->flat->dtype;
    td_device device = td_device_of(params->flat);
    int64_t length = 0, *begin = calloc((size_t)params->count, sizeof *begin);
    for (int i = 0; begin != NULL && i < params->count; i++) {
        length = i == 0 ? td_params_place(params, dtype, params->order, begin) : length;
        params->items[i].begin = begin[i];
    }
    free(begin);
    td_params_set_peers(params, NULL);
    td_tensor *values = length > 0 ? td_zeros(TD_SHAPE(length), dtype, device) : NULL;
    td_tensor *grads = values != NULL ? td_zeros(TD_SHAPE(length), dtype, device) : NULL;
    td_status status = grads != NULL ? td_params_set_memory(params, values, grads) : TD_E_NOMEM;
    if (status != TD_OK) {
        td_free(values);
        td_free(grads);
    }
    return status;
}
