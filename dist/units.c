/* Buckets: which gradients travel together. A bucket is a slice of the flat gradients, so nothing
 * is copied into it or out of it. Until the first backward the flat order is the reverse order of
 * registration. After it, it is the order in which gradients became ready. */
#include "dist/ddp.h"
#include "nn/params.h"
#include "nn/module.h"
#include "autograd/hooks.h"

#include <stdlib.h>
#include <string.h>

enum { MIB = 1 << 20, SMALL = MIB, TAIL = 5 * MIB };

/* A bucket's limit in bytes. The first bucket is small, so that communication begins early. The
 * last buckets are small, because backward does not hide the last all-reduces. still_to_come: bytes
 * of the gradients that are in no bucket yet. */
static double limit_of(const td_ddp_state *s, int bucket, double still_to_come)
{
    double cap = s->options.bucket_cap_mb * MIB;
    return (bucket == 0 || still_to_come <= TAIL) && cap > SMALL ? SMALL : cap;
}

/* Bytes of the k-th gradient that becomes ready. */
static double gradient_bytes(const td_ddp_state *s, int k)
{
    const td_param *p = td_params_get(s->params, td_params_order(s->params)[k]);
    return (double)p->count * (double)td_dtype_size(td_params_flat(s->params)->dtype);
}

static int64_t bytes_of(const td_ddp_state *s, const td_ddp_bucket *b)
{
    return b->b.count * (int64_t)td_dtype_size(td_params_flat(s->params)->dtype);
}

static td_status open_bucket(td_ddp_state *s, int first)
{
    size_t count = (size_t)s->bucket_count + 1;
    td_ddp_bucket *buckets = realloc(s->buckets, count * sizeof *buckets);
    if (buckets == NULL) {
        return td_fail(TD_E_NOMEM, "td_ddp: no memory for buckets");
    }
    s->buckets = buckets;
    buckets[s->bucket_count++] = (td_ddp_bucket){ .first = first };
    return TD_OK;
}

/* A bucket is closed once its gradients fill the limit, so it may be larger. */
static td_status assign(td_ddp_state *s)
{
    const int *order = td_params_order(s->params);
    double filled = 0.0, still_to_come = 0.0;
    bool open = false;
    for (int k = 0; k < s->count; k++) {
        still_to_come += gradient_bytes(s, k);
    }
    for (int k = 0; k < s->count; k++) {
        if (!open) {
            TD_TRY(open_bucket(s, k));
            filled = 0.0;
        }
        int last = s->bucket_count - 1;
        s->buckets[last].b.param_count++;
        s->bucket_of[order[k]] = last;
        filled += gradient_bytes(s, k);
        still_to_come -= gradient_bytes(s, k);
        open = filled < limit_of(s, last, still_to_come);
    }
    return TD_OK;
}

/* Where the parameter at a place of the order begins in memory; place == count: the end of memory.
 */
static int64_t begin_of(const td_ddp_state *s, int place)
{
    const td_tensor *flat = td_params_flat_grad(s->params);
    return place == s->count ? td_numel(flat)
                             : td_params_get(s->params, td_params_order(s->params)[place])->begin;
}

/* Sets a bucket's slice of memory: up to the next bucket, gaps included. */
static td_status place(td_ddp_state *s, int i)
{
    td_ddp_bucket *b = &s->buckets[i];
    b->b.params = td_params_order(s->params) + b->first;
    b->b.begin = begin_of(s, b->first);
    b->b.count = begin_of(s, b->first + b->b.param_count) - b->b.begin;
    b->b.grad = td_ddp_part(td_params_flat_grad(s->params), b->b.begin, b->b.count);
    snprintf(b->name, sizeof b->name, "bucket %d (%.2f MiB)", i, (double)bytes_of(s, b) / MIB);
    TD_TRY(b->b.grad != NULL ? TD_OK : TD_E_NOMEM);
    return s->codec != NULL ? s->codec->attach(s->codec_state, &b->b, &b->part) : TD_OK;
}

void td_ddp_free_buckets(td_ddp_state *s)
{
    for (int i = 0; i < s->bucket_count; i++) {
        if (s->buckets[i].part != NULL) {
            s->codec->detach(s->codec_state, s->buckets[i].part);
        }
        td_free(s->buckets[i].b.grad);
    }
    free(s->buckets);
    s->buckets = NULL;
    s->bucket_count = 0;
}

td_status td_ddp_make_buckets(td_ddp_state *s)
{
    td_ddp_free_buckets(s);
    s->layout = td_params_reorders(s->params);
    TD_TRY(assign(s));
    for (int i = 0; i < s->bucket_count; i++) {
        TD_TRY(place(s, i));
    }
    int shown = (int)(sizeof s->stats.bucket_bytes / sizeof *s->stats.bucket_bytes);
    s->stats.buckets = s->bucket_count;
    for (int i = 0; i < s->bucket_count && i < shown; i++) {
        s->stats.bucket_bytes[i] = bytes_of(s, &s->buckets[i]);
    }
    return TD_OK;
}

/* ---- the order of gradients ---- */

/* Makes all ranks' values equal: root's, or (root negative) the least of all ranks. */
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
 * from the last layer to the first. If a checkpoint of an earlier DDP has brought another order,
 * that one. Rank 0's order counts. */
td_status td_ddp_first_order(td_ddp_state *s)
{
    const int *now = td_params_order(s->params);
    int32_t *order = malloc(((size_t)s->count + 1) * sizeof *order);
    if (order == NULL) {
        return td_fail(TD_E_NOMEM, "td_ddp: no memory for an order");
    }
    int32_t *known = &order[s->count];
    *known = false;
    for (int k = 0; k < s->count; k++) {
        *known = *known || now[k] != k;
    }
    for (int k = 0; k < s->count; k++) {
        order[k] = *known ? now[k] : s->count - 1 - k;
    }
    td_status status = share_numbers(s, order, s->count + 1, 0);
    if (status == TD_OK) {
        status = td_params_reorder(s->params, order);
    }
    s->rebuilt = s->stats.rebuilt = status == TD_OK && *known;
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
    int count = 0;
    for (int k = 0; k < s->ready_count; k++) {
        order[count++] = s->ready_order[k];
    }
    const int *now = td_params_order(s->params);
    for (int k = 0; k < s->count; k++) {
        if (!s->ready[now[k]]) {
            order[count++] = now[k];
        }
    }
}

static td_status remake(td_ddp_state *s)
{
    TD_TRY(td_ddp_make_buckets(s));
    td_ddp_arm(s);
    s->rebuilt = s->stats.rebuilt = true;
    return TD_OK;
}

td_status td_ddp_rebuild(td_ddp_state *s)
{
    int32_t possible = can_move(s);
    TD_TRY(share_numbers(s, &possible, 1, -1));
    if (!possible) {
        return TD_OK; /* tries again after the next backward */
    }
    int32_t *order = malloc((size_t)s->count * sizeof *order);
    if (order == NULL) {
        return td_fail(TD_E_NOMEM, "td_ddp: no memory for an order");
    }
    write_order(s, order);
    td_status status = share_numbers(s, order, s->count, s->join.root);
    if (status == TD_OK) {
        status = td_params_reorder(s->params, order);
    }
    free(order);
    return status == TD_OK ? remake(s) : status;
}

td_status td_ddp_follow_layout(td_ddp_state *s)
{
    return td_params_reorders(s->params) == s->layout ? TD_OK : remake(s);
}
