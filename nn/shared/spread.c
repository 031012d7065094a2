/* Spreads parameters over memory for ranks that share them, and draws deferred ones: each rank
 * draws a whole parameter at a time, and keeps its window. */
#include "nn/shared/shared.h"

#include "autograd/hooks.h"
#include "autograd/tape.h"
#include "nn/internal.h"
#include "tensor/storage.h"

#include <string.h>

/* Exchanges dimensions d - 1 and d. */
static void swap_dims(td_tensor *t, int d)
{
    int64_t size = t->shape[d], stride = t->stride[d];
    t->shape[d] = t->shape[d - 1];
    t->stride[d] = t->stride[d - 1];
    t->shape[d - 1] = size;
    t->stride[d - 1] = stride;
}

/* The part of t whose index in a dimension is first, ..., first + count - 1. */
static td_tensor narrow(td_tensor t, int dim, int64_t first, int64_t count)
{
    t.offset += first * t.stride[dim];
    t.shape[dim] = count;
    return t;
}

/* Copies elements [begin, end), counted in memory order in a slice whose indices in the dimensions
 * before `dim` are fixed: what lies in whole slices of this dimension at once, the rest of a slice
 * by itself. The dimensions are in the order of `to` in memory. */
static void copy_stretch(td_tensor to, td_tensor from, int dim, int64_t begin, int64_t end)
{
    int64_t slice = 1, next;
    for (int d = dim + 1; d < to.ndim; d++) {
        slice *= to.shape[d];
    }
    for (; begin < end; begin = next) {
        int64_t first = begin / slice, whole = begin % slice == 0 ? (end - begin) / slice : 0;
        int64_t count = whole > 0 ? whole : 1;
        next = (first + count) * slice < end ? (first + count) * slice : end;
        td_tensor a = to.ndim > 0 ? narrow(to, dim, first, count) : to;
        td_tensor b = to.ndim > 0 ? narrow(from, dim, first, count) : from;
        if (whole > 0) {
            td_copy_(&a, &b);
        } else {
            copy_stretch(a, b, dim + 1, begin - first * slice, next - first * slice);
        }
    }
}

void td_params_read_part(const td_tensor *from, const td_tensor *form, int64_t begin,
                         const td_tensor *part)
{
    td_tensor to, in = *from; /* all of the parameter, though `to` has memory for the part alone */
    td_init_header(&to, part->storage, part->offset - begin, td_shape_of(form), form->stride,
                   form->dtype);
    for (int last = 1; last < to.ndim; last++) {
        for (int d = last; d > 0 && to.stride[d - 1] < to.stride[d]; d--) {
            swap_dims(&to, d);
            swap_dims(&in, d);
        }
    }
    copy_stretch(to, in, 0, begin, begin + td_numel(part));
}

/* Memory in which any deferred parameter can be drawn. */
static td_tensor *new_drawing(const td_params *params)
{
    int64_t most = 0;
    for (int i = 0; i < params->count; i++) {
        const td_param *p = &params->items[i];
        most = td_draw_of(p->tensor) != NULL && p->count > most ? p->count : most;
    }
    return td_new(TD_SHAPE(most), TD_F32, TD_CPU);
}

/* `part` gets this rank's window, whose first element is `begin` of the parameter's. */
static void draw_part(const td_tensor *t, td_tensor *drawing, int64_t begin, const td_tensor *part)
{
    const td_draw *draw = td_draw_of(t);
    if (draw->kind != TD_DRAW_ZEROS) { /* part is zero */
        int64_t stride[TD_MAX_DIMS];
        td_tensor whole;
        td_layout_strides(TD_CPU, TD_ROW_MAJOR, td_shape_of(t), stride);
        td_init_header(&whole, drawing->storage, 0, td_shape_of(t), stride, TD_F32);
        td_draw_now(draw, &whole);
        td_params_read_part(&whole, t, begin, part);
    }
}

void td_parameter_exchange(td_tensor *t, td_tensor *own, bool leaf)
{
    td_requires_grad(t, false);
    td_exchange_memory(t, own);
    for (int d = 0; d < t->ndim; d++) {
        int64_t length = t->shape[d];
        t->shape[d] = own->shape[d];
        own->shape[d] = length;
    }
    td_requires_grad(t, leaf);
    td_free(own);
}

td_tensor *td_parameter_like(const td_tensor *t, td_shape shape)
{
    td_layout layout = td_is_layout(t, TD_FILTER) ? TD_FILTER : TD_ROW_MAJOR;
    return td_new_layout(shape, t->dtype, layout, td_device_of(t));
}

td_status td_parameter_draw(td_tensor *t)
{
    const td_draw *draw = td_draw_of(t);
    if (draw == NULL) {
        return TD_OK;
    }
    td_tensor *drawn = td_new(td_shape_of(t), TD_F32, TD_CPU);
    td_tensor *own = td_parameter_like(t, td_shape_of(t));
    bool room = drawn != NULL && own != NULL;
    if (room) {
        td_draw_now(draw, drawn);
        td_copy_(own, drawn);
        td_parameter_exchange(t, own, td_is_leaf(t));
    } else {
        td_free(own);
    }
    td_free(drawn);
    return room ? TD_OK : td_fail(TD_E_NOMEM, "no memory for the values of %s", td_label(t));
}

static void place_flat(td_params *params, const td_params_peers *peers,
                       const td_params_places *places)
{
    td_free(params->flat);
    td_free(params->flat_grad);
    params->flat = places->flat;
    params->flat_grad = places->flat_grad;
    params->flat->name = "the flat parameters";
    params->flat_grad->name = "the flat gradients";
    memcpy(params->order, places->order, (size_t)params->count * sizeof *params->order);
    for (int i = 0; i < params->count; i++) {
        params->items[i].begin = places->begin[i];
    }
    td_params_set_peers(params, peers);
}

td_status td_params_spread(td_params *params, const td_params_peers *peers,
                           const td_params_places *places)
{
    td_tensor *drawing = params->deferred ? new_drawing(params) : NULL;
    if (params->deferred && drawing == NULL) {
        return TD_E_NOMEM;
    }
    place_flat(params, peers, places);
    for (int i = 0; i < params->count; i++) {
        td_param *p = &params->items[i];
        td_window here = td_params_here(params, i);
        td_window all = { .begin = p->begin, .count = p->count, .place = p->begin };
        td_window w = peers->own_values ? here : all;
        td_tensor to = td_params_part(params->flat, w.place, w.count);
        if (w.count > 0 && td_draw_of(p->tensor) != NULL) {
            draw_part(p->tensor, drawing, w.begin - p->begin, &to);
        } else if (w.count > 0) {
            td_tensor from = td_params_part(p->tensor, w.begin - p->begin, w.count);
            td_copy_(&to, &from);
        }
        td_exchange_memory(p->tensor, places->values[i]);
        td_free(places->values[i]);
        places->grads[i]->name = p->name;
        td_set_grad_storage(p->tensor, places->grads[i]);
        td_free(params->grads[i]);
        params->grads[i] = places->grads[i];
    }
    td_free(drawing);
    params->deferred = false;
    return TD_OK;
}
