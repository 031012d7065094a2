/* Gradients that are zero on every rank. In ResNet-18 on 32x32 pictures two thirds of the gradients
 * belong to taps of filters that meet only padding; the tape knows them (td_grad_live_part). Before
 * the first reduction the ranks agree on what is live on any of them, and buckets leave the rest
 * out where it is long. A rank whose gradients are live elsewhere later, because its pictures have
 * another size, says so in the last bucket: then the rest is reduced, too, and from then on
 * everything. */
#include "dist/ddp.h"

#include "nn/params.h"

#include <stdlib.h>

enum { LONG = 1 << 16 /* elements; less is not worth a collective more */ };

static const td_ddp_part nothing = { INT64_MAX, 0 };

/* What of parameter i is live on this rank as far as is known. A gradient that is not there is made
 * zero before its bucket is sent. */
static td_ddp_part live_here(const td_ddp_state *s, int i)
{
    const td_param *p = td_params_get(s->params, i);
    td_ddp_part part = { 0, p->count };
    if (td_grad(p->tensor) == NULL) {
        return nothing;
    }
    td_grad_live_part(p->tensor, &part.begin, &part.end);
    return part;
}

static void forget(td_ddp_state *s)
{
    for (int i = 0; i < s->count; i++) {
        s->live[i] = (td_ddp_part){ 0, td_params_get(s->params, i)->count };
    }
}

td_status td_ddp_live_new(td_ddp_state *s)
{
    const td_tensor *flat = td_params_flat_grad(s->params);
    s->live = calloc((size_t)s->count + 1, sizeof *s->live);
    if (s->live == NULL) {
        return td_fail(TD_E_NOMEM, "td_ddp: no memory for %d parameters", s->count);
    }
    forget(s);
    /* A GPU's filters have no such stretches, and factors are of whole parameters. */
    s->agreed = td_device_of(flat).type != TD_DEVICE_CPU || s->compression == TD_DDP_POWERSGD;
    s->more = td_ddp_alias(flat, td_numel(flat), 1);
    if (s->more != NULL) {
        td_fill_(s->more, 0.0);
    }
    return s->more != NULL ? TD_OK : TD_E_NOMEM;
}

/* ---- places in memory ---- */

static td_ddp_part live_place(const td_ddp_state *s, int place)
{
    int i = td_params_order(s->params)[place];
    int64_t begin = td_params_get(s->params, i)->begin;
    return (td_ddp_part){ begin + s->live[i].begin, begin + s->live[i].end };
}

bool td_ddp_skips_before(const td_ddp_state *s, int place)
{
    return place > 0 && place < s->count &&
           live_place(s, place).begin - live_place(s, place - 1).end >= LONG;
}

/* Rounded to whole vectors: what comes in addition is zero on all ranks. The last bucket goes on to
 * the end of memory, where `more` is. */
td_ddp_part td_ddp_place(const td_ddp_state *s, int first, int count)
{
    enum { UNIT = 8 }; /* parameters begin at multiples of 64 bytes */
    int next = first + count;
    int64_t end = td_numel(td_params_flat_grad(s->params)) + s->skips;
    if (td_ddp_skips_before(s, next)) {
        end = (live_place(s, next - 1).end + UNIT - 1) / UNIT * UNIT;
    } else if (next < s->count) {
        end = live_place(s, next).begin / UNIT * UNIT;
    }
    return (td_ddp_part){ live_place(s, first).begin / UNIT * UNIT, end };
}

/* ---- agreement ---- */

/* Of all ranks: values are { begin, -end } of each parameter. */
static td_status share_parts(td_ddp_state *s, int64_t *values)
{
    for (int i = 0; i < s->count; i++) {
        td_ddp_part part = live_here(s, i);
        values[2 * i] = part.begin;
        values[2 * i + 1] = -part.end;
    }
    td_tensor *t = td_borrow(values, TD_SHAPE(2 * (int64_t)s->count), TD_I64, TD_CPU);
    td_status status = t != NULL ? td_all_reduce(s->group, t, TD_MIN, NULL) : TD_E_NOMEM;
    td_free(t);
    return status;
}

/* Whether what a parameter's gradient leaves out is worth it for at least one parameter. */
static bool keep_parts(td_ddp_state *s, const int64_t *values)
{
    bool any = false;
    for (int i = 0; i < s->count; i++) {
        td_ddp_part part = { values[2 * i], -values[2 * i + 1] };
        if (part.begin < part.end) { /* otherwise no rank had a gradient: another may come */
            s->live[i] = part;
        }
    }
    for (int place = 0; place < s->count; place++) {
        any = any || td_ddp_skips_before(s, place);
    }
    return any || live_place(s, 0).begin >= LONG;
}

td_status td_ddp_agree(td_ddp_state *s)
{
    if (s->agreed) {
        return TD_OK;
    }
    int64_t *values = malloc((2 * (size_t)s->count + 1) * sizeof *values);
    if (values == NULL) {
        return td_fail(TD_E_NOMEM, "td_ddp: no memory for %d parameters", s->count);
    }
    td_status status = share_parts(s, values);
    if (status == TD_OK) {
        s->agreed = true;
        s->skips = keep_parts(s, values);
        if (s->skips) {
            status = td_ddp_make_buckets(s);
        } else {
            forget(s); /* nobody would tell of more */
        }
    }
    free(values);
    return status;
}

void td_ddp_widen(const td_ddp_state *s)
{
    for (int i = 0; i < s->count; i++) {
        td_grad_widen(td_params_get(s->params, i)->tensor, s->live[i].begin, s->live[i].end);
    }
}

/* ---- more than was agreed ---- */

void td_ddp_tell_more(td_ddp_state *s)
{
    bool more = false;
    for (int i = 0; i < s->count; i++) {
        td_ddp_part part = live_here(s, i);
        more = more || (part.begin < part.end &&
                        (part.begin < s->live[i].begin || part.end > s->live[i].end));
    }
    td_fill_(s->more, more ? 1.0 : 0.0);
}

/* At once, the way a bucket goes. */
static td_status reduce_stretch(td_ddp_state *s, int64_t begin, int64_t end)
{
    td_ddp_bucket b = { .begin = begin, .count = end - begin };
    if (begin >= end) {
        return TD_OK;
    }
    b.grad = td_ddp_alias(td_params_flat_grad(s->params), begin, b.count);
    td_status status = b.grad != NULL ? td_ddp_compress_bucket(s, &b) : TD_E_NOMEM;
    if (status == TD_OK) {
        status = td_ddp_launch_bucket(s, &b);
    }
    if (status == TD_OK) {
        status = td_work_wait(b.work, 0.0);
    }
    if (status == TD_OK) {
        status = td_ddp_unpack_bucket(s, &b);
    }
    td_free(b.grad);
    td_free(b.wire);
    return status;
}

td_status td_ddp_reduce_rest(td_ddp_state *s)
{
    if (!s->skips || !(td_item(s->more) != 0.0)) {
        return TD_OK;
    }
    for (int i = 0; i < s->count; i++) {
        td_grad_buffer(td_params_get(s->params, i)->tensor); /* anything may be in it soon */
    }
    int64_t end = 0;
    for (int i = 0; i < s->bucket_count; i++) {
        TD_TRY(reduce_stretch(s, end, s->buckets[i].begin));
        end = s->buckets[i].begin + s->buckets[i].count;
    }
    s->skips = false;
    forget(s);
    return td_ddp_make_buckets(s);
}
