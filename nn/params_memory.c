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

void td_params_set_peers(td_params *params, const td_params_peers *peers)
{
    params->peers = peers != NULL ? *peers : (td_params_peers){ 0 };
    if (td_params_peers_of(params) == NULL) {
        return;
    }
    TD_REQUIRE(params->extra_count == 0, TD_HERE,
               "td_params_set_peers: there is state of %s already, made for other windows",
               td_describe(params->flat));
    for (int k = 0; k < peers->stretches || k == 0; k++) {
        int64_t length =
            peers->stretches > 0 ? peers->cuts[k + 1] - peers->cuts[k] : td_params_length(params);
        TD_REQUIRE(
            length % peers->count == 0, TD_HERE,
            "td_params_set_peers: a stretch of %lld elements is not cut into %d equal pieces",
            (long long)length, peers->count);
    }
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

/* ---- windows ---- */

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

void td_params_read(const td_tensor *from, const td_tensor *form, int64_t begin,
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
        td_params_read(&whole, t, begin, part);
    }
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
