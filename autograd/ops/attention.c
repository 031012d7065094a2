/* Attention: y = softmax(scale q k^T) v for each head. Where the device has no kernel for it, and
 * where somebody observes operations, it runs as the operations that it consists of. */
#include "autograd/ops/op.h"
#include "autograd/ops/shapes.h"

/* Queries [B,T,H,h], keys and values [B,S,G,h]. */
typedef struct attention_heads {
    td_tensor *q, *k, *v;
} attention_heads;

/* ---- checks ---- */

/* qkv as [B,T,(H + 2 G) h]; sets the numbers of heads if the shape says them. */
static td_tensor *checked_packed(td_attention_options *o, td_site at)
{
    td_tensor *x = td_op_input(o->qkv, "attention", "qkv", TD_RULE_OF(attention), at);
    if (x->ndim == 5 && x->shape[2] == 3 && o->heads == 0) {
        o->heads = x->shape[3];
        x = td_flatten_at(x, 2, at);
    }
    o->kv_heads = o->kv_heads != 0 ? o->kv_heads : o->heads;
    TD_REQUIRE(x->ndim == 3 && o->heads > 0 && o->kv_heads > 0 && o->heads % o->kv_heads == 0 &&
                   x->shape[2] > 0 && x->shape[2] % (o->heads + 2 * o->kv_heads) == 0,
               at,
               "attention: qkv%s must be [B,T,(heads + 2 kv_heads) width] or [B,T,3,heads,width]; "
               "there are %lld heads and %lld kv_heads, which must divide the heads",
               TD_SHAPE_TEXT(x), (long long)o->heads, (long long)o->kv_heads);
    return x;
}

static attention_heads checked_three(const td_attention_options *o, td_site at)
{
    td_rule rule = TD_RULE_OF(attention);
    attention_heads x = { td_op_input(o->q, "attention", "q", rule, at),
                          td_op_input(o->k, "attention", "k", rule, at),
                          td_op_input(o->v, "attention", "v", rule, at) };
    td_check_match(x.q, x.k, "attention", at);
    td_check_match(x.q, x.v, "attention", at);
    bool fits = x.q->ndim == 4 && x.k->ndim == 4 && td_same_shape(x.k, x.v) &&
                x.q->shape[0] == x.k->shape[0] && x.q->shape[3] == x.k->shape[3] &&
                x.q->shape[3] > 0 && x.k->shape[2] > 0 && x.q->shape[2] % x.k->shape[2] == 0;
    TD_REQUIRE(fits, at,
               "attention: q%s must be [B,T,heads,width], k%s and v%s [B,S,kv_heads,width], where "
               "kv_heads divide heads",
               TD_SHAPE_TEXT(x.q), TD_SHAPE_TEXT(x.k), TD_SHAPE_TEXT(x.v));
    return x;
}

static void check_keys(const attention_heads *x, bool causal, td_site at)
{
    TD_REQUIRE(x->k->shape[1] >= (causal ? x->q->shape[1] : 1), at,
               "attention: %lld queries and %lld keys: %s", (long long)x->q->shape[1],
               (long long)x->k->shape[1],
               causal ? "the queries are the last of the positions (or set .full)"
                      : "there must be a key");
}

/* ---- packed heads, one by one ---- */

/* Heads [first, first + count) of [B,T,heads h] as [B,T,count,h]. */
static td_tensor *heads_at(td_tensor *x, int64_t first, int64_t count, int64_t width, td_site at)
{
    td_tensor *part = td_slice_at(x, 2, first * width, (first + count) * width, 1, at);
    return td_reshape_at(part, TD_SHAPE(x->shape[0], x->shape[1], count, width), at);
}

static attention_heads unpacked(td_tensor *x, int64_t heads, int64_t kv_heads, td_site at)
{
    int64_t width = x->shape[2] / (heads + 2 * kv_heads);
    return (attention_heads){ heads_at(x, 0, heads, width, at),
                              heads_at(x, heads, kv_heads, width, at),
                              heads_at(x, heads + kv_heads, kv_heads, width, at) };
}

/* ---- a cache of keys and values ---- */

/* Appends rows to a cache, and returns all rows that it has then. */
static td_tensor *append(td_tensor *cache, td_tensor *rows, int64_t past, const char *what,
                         td_site at)
{
    td_check_float(cache, "attention", what, at);
    td_check_match(cache, rows, "attention", at);
    int64_t end = past + rows->shape[1];
    bool fits = cache->ndim == 4 && past >= 0 && cache->shape[0] == rows->shape[0] &&
                cache->shape[2] == rows->shape[2] && cache->shape[3] == rows->shape[3];
    TD_REQUIRE(fits && end <= cache->shape[1], at,
               "attention: %s%s takes no %lld rows of [B,T,kv_heads,width] %s from row %lld on",
               what, TD_SHAPE_TEXT(cache), (long long)rows->shape[1], TD_SHAPE_TEXT(rows),
               (long long)past);
    td_tensor *to = td_slice_at(cache, 1, past, end, 1, at);
    td_begin_write(to, "attention", at);
    td_kernels_for(to)->copy(to, rows);
    return td_slice_at(cache, 1, 0, end, 1, at);
}

static void use_caches(attention_heads *x, const td_attention_options *o, td_site at)
{
    bool grad = td_needs_grad(x->q) || td_needs_grad(x->k) || td_needs_grad(x->v);
    TD_REQUIRE(!td_grad_enabled() || !grad, at,
               "attention: with a cache there is no gradient; call it after td_no_grad_begin");
    TD_REQUIRE(o->k_cache != NULL && o->v_cache != NULL && !o->full, at,
               "attention: a cache needs k_cache and v_cache, and causal attention");
    x->k = append(o->k_cache, x->k, o->past, "k_cache", at);
    x->v = append(o->v_cache, x->v, o->past, "v_cache", at);
}

/* ---- by the kernel ---- */

typedef struct attention_params {
    int64_t heads, kv_heads; /* of a packed tensor; 0: there are three */
    bool causal;
    double scale;
} attention_params;

/* Heads [first, first + count) of a matrix [B,T,heads h], as the kernel takes them. */
static td_tensor heads_view(const td_tensor *x, int64_t first, int64_t count, int64_t width)
{
    td_tensor view = *x;
    view.ndim = 4;
    view.shape[2] = count;
    view.shape[3] = width;
    view.stride[2] = width * x->stride[2];
    view.stride[3] = x->stride[2];
    view.offset += first * width * x->stride[2];
    return view;
}

/* The three parts of a packed tensor, or of its gradient. */
static void part_views(const td_tensor *x, const attention_params *p, td_tensor parts[3])
{
    int64_t width = x->shape[2] / (p->heads + 2 * p->kv_heads);
    parts[0] = heads_view(x, 0, p->heads, width);
    parts[1] = heads_view(x, p->heads, p->kv_heads, width);
    parts[2] = heads_view(x, p->heads + p->kv_heads, p->kv_heads, width);
}

static void attention_backward(td_node *node, const td_tensor *dy)
{
    const attention_params *p = td_params_of(node);
    const td_tensor *y = td_saved(node, 3);
    td_tensor parts[3], grads[3];
    td_op_gradient slots[3] = { { 0 } };
    td_attention_grad_args args;
    td_site at = td_node_site(node);
    int inputs = p->heads > 0 ? 1 : 3;
    for (int i = 0; i < inputs; i++) {
        parts[i] = *td_saved(node, i);
        slots[i] = td_op_grad_begin(node, i, &parts[i], !td_op_repeats(node, i));
        grads[i] = slots[i].grad != NULL ? *slots[i].grad : *td_step_new_like(&parts[i], at);
        args.accumulate[i] = slots[i].accumulate;
    }
    if (inputs == 1) {
        td_tensor qkv = parts[0], dqkv = grads[0];
        part_views(&qkv, p, parts);
        part_views(&dqkv, p, grads);
        args.accumulate[1] = args.accumulate[2] = args.accumulate[0];
    }
    int64_t heads = parts[0].shape[2], width = parts[0].shape[3];
    td_tensor *dense = td_op_row_major(dy, at);
    td_tensor y_heads = heads_view(y, 0, heads, width), lse = *td_saved(node, 4);
    td_tensor dy_heads = heads_view(dense, 0, heads, width);
    args.forward =
        (td_attention_args){ &parts[0], &parts[1], &parts[2], &y_heads, &lse, p->causal, p->scale };
    args.dy = &dy_heads;
    args.dq = &grads[0];
    args.dk = &grads[1];
    args.dv = &grads[2];
    td_kernels_for(y)->attention_grad(&args);
    for (int i = 0; i < inputs; i++) {
        td_op_grad_end(node, i, &slots[i]);
    }
}

/* inputs: the packed tensor and NULL, or the three. */
static td_tensor *by_kernel(td_tensor *const *inputs, const attention_params *params, td_site at)
{
    bool packed = params->heads > 0;
    td_tensor parts[3];
    if (packed) {
        part_views(inputs[0], params, parts);
    }
    const td_tensor *q = packed ? &parts[0] : inputs[0], *k = packed ? &parts[1] : inputs[1];
    const td_tensor *v = packed ? &parts[2] : inputs[2];
    int64_t batch = q->shape[0], queries = q->shape[1], heads = q->shape[2], width = q->shape[3];
    td_tensor *y = td_op_new(TD_SHAPE(batch, queries, heads * width), q->dtype, q, at);
    td_tensor *lse =
        td_op_new(TD_SHAPE(batch, heads, queries), q->dtype == TD_F64 ? TD_F64 : TD_F32, q, at);
    td_tensor y_heads = heads_view(y, 0, heads, width);
    td_attention_args args = { q, k, v, &y_heads, lse, params->causal, params->scale };
    td_kernels_for(q)->attention(&args);
    return TD_RECORD(at, .op = "attention", .backward = attention_backward, .out = y,
                     .inputs = { inputs[0], inputs[1], inputs[2] },
                     .saved = { inputs[0], inputs[1], inputs[2], y, lse }, TD_PARAMS(params));
}

/* ---- composed ---- */

/* [T,S]: 0 where a query reads a key, a number that softmax makes 0 elsewhere. */
static td_tensor *causal_mask(int64_t queries, int64_t keys, const td_tensor *scores, td_site at)
{
    td_tensor *all = td_op_new(TD_SHAPE(queries, keys), scores->dtype, scores, at);
    td_kernels_for(all)->fill(all, -1e30);
    return td_triu_at(all, keys - queries + 1, at);
}

/* As products over [B,G,H/G]. */
static td_tensor *attention_composed(attention_heads x, bool causal, double scale, td_site at)
{
    int64_t batch = x.q->shape[0], queries = x.q->shape[1], heads = x.q->shape[2];
    int64_t keys = x.k->shape[1], kv_heads = x.k->shape[2], width = x.q->shape[3];
    td_shape q_shape = TD_SHAPE(batch, queries, kv_heads, heads / kv_heads, width);
    td_shape k_shape = TD_SHAPE(batch, keys, kv_heads, 1, width);
    td_tensor *q = td_permute_at(td_reshape_at(x.q, q_shape, at), (int[]){ 0, 2, 3, 1, 4 }, at);
    td_tensor *k = td_permute_at(td_reshape_at(x.k, k_shape, at), (int[]){ 0, 2, 3, 4, 1 }, at);
    td_tensor *v = td_permute_at(td_reshape_at(x.v, k_shape, at), (int[]){ 0, 2, 3, 1, 4 }, at);
    td_tensor *s = td_mul_scalar_at(td_matmul_at(q, k, at), scale, at);
    s = td_op_input(s, "attention", "scores", TD_RULE_IS_WIDENS, at);
    if (causal && queries > 0) {
        s = td_add_at(s, causal_mask(queries, keys, s, at), at);
    }
    td_tensor *p = td_softmax_at(s, -1, at);
    p = p->dtype != v->dtype ? td_cast_at(p, v->dtype, at) : p;
    td_tensor *y = td_permute_at(td_matmul_at(p, v, at), (int[]){ 0, 3, 1, 2, 4 }, at);
    return td_reshape_at(y, TD_SHAPE(batch, queries, heads * width), at);
}

static bool has_kernel(const td_tensor *x, int64_t width)
{
    bool fits = td_device_of(x).type == TD_DEVICE_CPU || width <= TD_GPU_ATTENTION_WIDTH;
    return fits && !td_operations_observed();
}

static double checked_scale(double scale, int64_t width, td_site at)
{
    scale = td_or_usual(scale, 1.0 / sqrt((double)width));
    TD_REQUIRE(scale > 0.0, at, "attention: the scale is %g; it must be above 0", scale);
    return scale;
}

td_tensor *td_attention_at(td_attention_options o, td_site at)
{
    td_check_tensor(o.qkv != NULL ? o.qkv : o.q, "attention", "qkv", at);
    td_tensor *packed = o.qkv != NULL ? checked_packed(&o, at) : NULL;
    attention_params params = { .causal = !o.full };
    bool cached = o.k_cache != NULL || o.v_cache != NULL;
    if (packed != NULL && has_kernel(packed, packed->shape[2] / (o.heads + 2 * o.kv_heads)) &&
        !cached && td_numel(packed) > 0) {
        int64_t width = packed->shape[2] / (o.heads + 2 * o.kv_heads);
        params =
            (attention_params){ o.heads, o.kv_heads, !o.full, checked_scale(o.scale, width, at) };
        return by_kernel((td_tensor *[3]){ packed }, &params, at);
    }
    attention_heads x =
        packed != NULL ? unpacked(packed, o.heads, o.kv_heads, at) : checked_three(&o, at);
    if (cached) {
        use_caches(&x, &o, at);
    }
    check_keys(&x, params.causal, at);
    params.scale = checked_scale(o.scale, x.q->shape[3], at);
    return has_kernel(x.q, x.q->shape[3]) && td_numel(x.q) > 0
               ? by_kernel((td_tensor *[]){ x.q, x.k, x.v }, &params, at)
               : attention_composed(x, params.causal, params.scale, at);
}
