/* Units: which gradients travel together. A unit is a bucket, a slice of the flat gradients, so
 * nothing is copied into it or out of it. Until the first backward the flat order is the reverse
 * order of registration. After it, it is the order in which gradients became ready. */
#include "dist/ddp/ddp.h"
#include "nn/params.h"
#include "nn/module.h"
#include "autograd/hooks.h"
#include "tensor/system/number.h"

#include <stdlib.h>

enum { MIB = 1 << 20, SMALL = MIB, TAIL = 5 * MIB };

/* A unit's limit in bytes. The first unit is small, so that communication begins early. The last
 * units are small, because backward does not hide the last all-reduces. still_to_come: bytes of the
 * gradients that are in no unit yet. */
static double limit_of(const td_ddp_state *s, int unit, double still_to_come)
{
    double cap = s->options.bucket_cap_mb * MIB;
    return (unit == 0 || still_to_come <= TAIL) && cap > SMALL ? SMALL : cap;
}

/* Bytes of the k-th gradient that becomes ready. */
static double gradient_bytes(const td_ddp_state *s, int k)
{
    const td_param *p = td_params_get(s->params, s->params->order[k]);
    return (double)p->count * (double)td_dtype_size(td_params_flat(s->params)->dtype);
}

int64_t td_unit_bytes(const td_ddp_unit *u)
{
    return u->b.count * (int64_t)td_dtype_size(u->b.grad->dtype);
}

static td_status open_unit(td_ddp_units *units, int first)
{
    size_t count = (size_t)units->count + 1;
    td_ddp_unit *list = realloc(units->list, count * sizeof *list);
    TD_CHECK(list != NULL, TD_E_NOMEM, "td_ddp: no memory for buckets");
    units->list = list;
    list[units->count++] = (td_ddp_unit){ .first = first };
    return TD_OK;
}

/* Whether the open unit ends with the k-th gradient: with a strategy's units if the next gradient
 * belongs to another of them, otherwise once its gradients reach the limit, or exceed it. */
static bool ends_with(const td_ddp_state *s, int k, double filled, double still_to_come)
{
    const int *order = s->params->order, *of = s->units.of_param;
    return of != NULL ? k + 1 < s->count && of[order[k]] != of[order[k + 1]]
                      : filled >= limit_of(s, s->units.count - 1, still_to_come);
}

static td_status ddp_assign(td_ddp_state *s)
{
    td_ddp_units *units = &s->units;
    const int *order = s->params->order;
    double filled = 0.0, still_to_come = 0.0;
    bool open = false;
    for (int k = 0; k < s->count; k++) {
        still_to_come += gradient_bytes(s, k);
    }
    for (int k = 0; k < s->count; k++) {
        if (!open) {
            TD_TRY(open_unit(units, k));
            filled = 0.0;
        }
        int last = units->count - 1;
        units->list[last].b.param_count++;
        s->reducer.params[order[k]].unit = last;
        filled += gradient_bytes(s, k);
        still_to_come -= gradient_bytes(s, k);
        open = !ends_with(s, k, filled, still_to_come);
    }
    return TD_OK;
}

/* Where the parameter at a place of the order begins in memory; place == count: the end of memory.
 */
static int64_t begin_of(const td_ddp_state *s, int place)
{
    return place == s->count ? td_params_length(s->params)
                             : td_params_get(s->params, s->params->order[place])->begin;
}

/* Sets a unit's slice of memory: up to the next unit, gaps included. */
static td_status ddp_place(td_ddp_state *s, int i)
{
    td_ddp_unit *u = &s->units.list[i];
    td_bucket *b = &u->b;
    b->params = s->params->order + u->first;
    b->begin = begin_of(s, u->first);
    b->count = begin_of(s, u->first + b->param_count) - b->begin;
    if (s->units.describe != NULL) {
        s->units.describe(s, u);
        return TD_OK;
    }
    b->grad = td_ddp_slice(td_params_flat_grad(s->params), b->begin, b->count);
    if (b->grad == NULL) {
        return TD_E_NOMEM;
    }
    td_snprintf(u->name, sizeof u->name, "bucket %d (%.2f MiB)", i, (double)td_unit_bytes(u) / MIB);
    const td_bucket_codec *codec = s->reducer.codec;
    return codec != NULL ? codec->attach(s->reducer.codec_state, b, &u->part) : TD_OK;
}

void td_units_free(td_ddp_state *s)
{
    for (int i = 0; i < s->units.count; i++) {
        td_ddp_unit *u = &s->units.list[i];
        if (u->part != NULL) {
            s->reducer.codec->detach(s->reducer.codec_state, u->part);
        }
        td_free(s->units.describe == NULL ? u->b.grad : NULL);
    }
    free(s->units.list);
    s->units.list = NULL;
    s->units.count = 0;
}

td_status td_units_make(td_ddp_state *s)
{
    td_units_free(s);
    s->units.layout = s->params->reorders;
    TD_TRY(ddp_assign(s));
    for (int i = 0; i < s->units.count; i++) {
        TD_TRY(ddp_place(s, i));
    }
    return TD_OK;
}

/* ---- the order of gradients ---- */

/* Gives all ranks the values of rank root, or, if root is negative, the least of all ranks' values.
 */
static td_status share_numbers(td_ddp_state *s, int32_t *values, int count, int root)
{
    td_tensor *t = td_borrow(values, TD_SHAPE(count), TD_I32, TD_CPU);
    if (t == NULL) {
        return TD_E_NOMEM;
    }
    td_status status = root >= 0 ? td_broadcast(s->group, t, root, NULL)
                                 : td_all_reduce(s->group, t, TD_MIN, NULL);
    td_free(t);
    return status;
}

/* The order before the first backward: the reverse order of registration, because backward goes
 * from the last layer to the first. If a checkpoint of an earlier DDP run has set another order,
 * the checkpoint's. All ranks take rank 0's order. */
td_status td_units_first_order(td_ddp_state *s)
{
    const int *now = s->params->order;
    int32_t *order = malloc(((size_t)s->count + 1) * sizeof *order);
    TD_CHECK(order != NULL, TD_E_NOMEM, "td_ddp: no memory for an order");
    int32_t *known = &order[s->count];
    *known = false;
    for (int k = 0; k < s->count; k++) {
        *known = *known || now[k] != k;
    }
    for (int k = 0; k < s->count; k++) {
        order[k] = *known ? now[k] : s->count - 1 - k;
    }
    td_status status = share_numbers(s, order, s->count + 1, 0);
    status = status == TD_OK ? td_params_reorder(s->params, order) : status;
    s->units.rebuilt = status == TD_OK && *known;
    free(order);
    return status;
}

/* Whether no tape uses the parameters. A tape's saved tensors must not move. */
static bool can_move(const td_ddp_state *s)
{
    for (int i = 0; i < s->count; i++) {
        if (td_leaf_uses(td_params_get(s->params, i)->tensor) > 0) {
            return false;
        }
    }
    return true;
}

/* Writes the new order: parameters in the order in which they became ready, then the others in
 * their old order. */
static void write_order(const td_ddp_state *s, int32_t *order)
{
    const td_reducer *r = &s->reducer;
    int count = 0;
    for (int k = 0; k < r->ready_count; k++) {
        order[count++] = r->ready_order[k];
    }
    const int *now = s->params->order;
    for (int k = 0; k < s->count; k++) {
        if (!r->params[now[k]].ready) {
            order[count++] = now[k];
        }
    }
}

static td_status remake(td_ddp_state *s)
{
    TD_TRY(td_units_make(s));
    td_reducer_arm(s);
    s->units.rebuilt = true;
    return TD_OK;
}

td_status td_units_rebuild(td_ddp_state *s)
{
    int32_t possible = can_move(s);
    TD_TRY(share_numbers(s, &possible, 1, -1));
    if (!possible) {
        return TD_OK; /* tries again after the next backward */
    }
    int32_t *order = malloc((size_t)s->count * sizeof *order);
    TD_CHECK(order != NULL, TD_E_NOMEM, "td_ddp: no memory for an order");
    write_order(s, order);
    td_status status = share_numbers(s, order, s->count, s->root);
    status = status == TD_OK ? td_params_reorder(s->params, order) : status;
    free(order);
    return status == TD_OK ? remake(s) : status;
}

td_status td_units_follow_layout(td_ddp_state *s)
{
    return s->params->reorders == s->units.layout ? TD_OK : remake(s);
}
