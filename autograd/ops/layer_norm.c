/* Normalisation over the last dimension, or over groups of an image's channels: y = (x - mean) *
 * inv_std * weight + bias. */
#include "autograd/ops/op.h"

static void layer_norm_backward(td_node *node, const td_tensor *dy)
{
    const td_layer_norm_params *params = td_params_of(node);
    const td_kernels *kernels = td_kernels_for(dy);
    const td_tensor *x = td_saved(node, 0), *weight = td_saved(node, 1);
    bool rows = params->groups == 0;
    dy = rows ? td_op_row_major(dy, td_node_site(node)) : dy;
    td_op_gradient g[3]; /* of x, weight, bias */
    for (int i = 0; i < 3; i++) {
        const td_tensor *input = td_node_input(node, i);
        bool direct = i == 0 ? !rows || td_is_contiguous(input) : !td_op_repeats(node, i);
        g[i] = td_op_grad_begin(node, i, i == 0 ? x : input, direct);
    }
    (rows ? kernels->layer_norm_grad : kernels->group_norm_grad)(
        g[0].grad, g[1].grad, g[2].grad, dy, x, weight, td_saved(node, 2), td_saved(node, 3),
        g[0].accumulate, g[1].accumulate, g[2].accumulate);
    for (int i = 0; i < 3; i++) {
        td_op_grad_end(node, i, &g[i]);
    }
}

static void layer_norm_check(const td_tensor *x, const td_tensor *weight, const td_tensor *bias,
                             td_site at)
{
    TD_REQUIRE(x->ndim >= 1 && x->shape[x->ndim - 1] > 0, at,
               "layer_norm: x%s has no last dimension to normalise over", TD_SHAPE_TEXT(x));
    int64_t d = x->shape[x->ndim - 1];
    const td_tensor *per_element[2] = { weight, bias };
    for (int i = 0; i < 2; i++) {
        const td_tensor *t = per_element[i];
        if (t != NULL) {
            td_check_float(t, "layer_norm", i == 0 ? "weight" : "bias", at);
            td_check_match(x, t, "layer_norm", at);
            TD_REQUIRE(t->ndim == 1 && t->shape[0] == d, at,
                       "layer_norm: %s%s does not fit x%s: it must be [%lld], the last dimension",
                       i == 0 ? "weight" : "bias", TD_SHAPE_TEXT(t), TD_SHAPE_TEXT(x),
                       (long long)d);
        }
    }
}

/* y as the kernel writes it, dense: x as the kernel takes it. One mean for each element of `stats`;
 * groups 0: over rows. */
static td_tensor *normalised(td_tensor *y, td_tensor *x, td_tensor *dense, td_shape stats,
                             int64_t groups, td_tensor *weight, td_tensor *bias, double eps,
                             td_site at)
{
    td_layer_norm_params params = { td_or_usual(eps, 1e-5), groups };
    td_tensor *mean = td_op_new(stats, x->dtype, x, at);
    td_tensor *inv_std = td_op_new(stats, x->dtype, x, at);
    const td_kernels *kernels = td_kernels_for(x);
    (groups == 0 ? kernels->layer_norm : kernels->group_norm)(y, mean, inv_std, dense, weight, bias,
                                                              params.eps);
    return TD_RECORD(at, .op = groups == 0 ? "layer_norm" : "group_norm",
                     .backward = layer_norm_backward, .out = y, .inputs = { x, weight, bias },
                     .saved = { dense, weight, mean, inv_std }, TD_PARAMS(&params));
}

/* Over the last dimension. */
static td_tensor *of_rows(td_tensor *x, td_tensor *weight, td_tensor *bias,
                          const td_layer_norm_options *o, td_site at)
{
    layer_norm_check(x, weight, bias, at);
    td_shape per_row = TD_SHAPE(td_numel(x) / x->shape[x->ndim - 1]);
    td_dtype dtype = o->for_products ? td_op_product_dtype(x) : x->dtype;
    return normalised(td_op_new(td_shape_of(x), dtype, x, at), x, td_op_row_major(x, at), per_row,
                      0, weight, bias, o->eps, at);
}

/* [..., d, ...] with the last `dims` dimensions as one. */
static td_tensor *joined(td_tensor *x, int dims, td_site at)
{
    td_shape shape = { .ndim = x->ndim - dims + 1 };
    int64_t last = 1;
    for (int d = 0; d < x->ndim; d++) {
        if (d < x->ndim - dims) {
            shape.dim[d] = x->shape[d];
        } else {
            last *= x->shape[d];
        }
    }
    shape.dim[shape.ndim - 1] = last;
    return td_reshape_at(x, shape, at);
}

td_tensor *td_layer_norm_at(td_layer_norm_options o, td_site at)
{
    td_tensor *x = td_op_input(o.x, "layer_norm", "x", TD_RULE_OF(layer_norm), at);
    td_tensor *given = o.weight != NULL ? o.weight : o.bias;
    int dims = o.dims != 0 ? o.dims : given != NULL && given->ndim > 1 ? given->ndim : 1;
    if (dims == 1) {
        return of_rows(x, o.weight, o.bias, &o, at);
    }
    bool fits = dims >= 1 && dims <= x->ndim;
    for (int i = 0; fits && i < 2; i++) {
        const td_tensor *t = i == 0 ? o.weight : o.bias;
        fits = t == NULL || t->ndim == dims;
        for (int d = 0; fits && t != NULL && d < dims; d++) {
            fits = t->shape[d] == x->shape[x->ndim - dims + d];
        }
    }
    TD_REQUIRE(fits, at,
               "layer_norm: weight%s and bias%s must have the shape of the last %d dimensions of "
               "x%s",
               o.weight != NULL ? TD_SHAPE_TEXT(o.weight) : " (none)",
               o.bias != NULL ? TD_SHAPE_TEXT(o.bias) : " (none)", dims, TD_SHAPE_TEXT(x));
    td_tensor *y =
        of_rows(joined(x, dims, at), o.weight != NULL ? joined(o.weight, dims, at) : NULL,
                o.bias != NULL ? joined(o.bias, dims, at) : NULL, &o, at);
    return td_reshape_at(y, td_shape_of(x), at);
}

td_tensor *td_op_group_norm_image(td_tensor *x, int64_t groups, td_tensor *weight, td_tensor *bias,
                                  double eps, td_site at)
{
    return normalised(td_step_new_like(x, at), x, x, TD_SHAPE(x->shape[0], groups), groups, weight,
                      bias, eps, at);
}
