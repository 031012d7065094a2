/* Normalisations that are composed: of layer_norm over rows, or of single operations. */
#include "autograd/ops/op.h"

#include <float.h>

/* Checks a tensor with a number for each channel, and casts 16 bits if x is f32. NULL: none. */
static td_tensor *channels_of(td_tensor *t, const td_tensor *x, const char *op, const char *what,
                              td_site at)
{
    if (t == NULL) {
        return NULL;
    }
    td_check_float(t, op, what, at);
    if (td_is_half(t->dtype) && x->dtype == TD_F32) {
        t = td_cast_at(t, TD_F32, at);
    }
    td_check_match(x, t, op, at);
    TD_REQUIRE(t->ndim == 1 && t->shape[0] == x->shape[1], at,
               "%s: %s%s does not fit x%s: it must be [%lld], the channels", op, what,
               TD_SHAPE_TEXT(t), TD_SHAPE_TEXT(x), (long long)x->shape[1]);
    return t;
}

/* Images have a kernel; where a group lies in one piece, it is a row of layer_norm. */
static td_tensor *normalise_groups(const char *op, td_tensor *x, int64_t groups, td_tensor *weight,
                                   td_tensor *bias, double eps, td_site at)
{
    td_shape sample = td_shape_of(x);
    sample.dim[0] = 1;
    int64_t row = x->ndim >= 2 && groups > 0 ? td_shape_numel(sample) / groups : 0;
    TD_REQUIRE(row > 0 && x->shape[1] % groups == 0, at,
               "%s: x%s must be [N,C,...], its samples not empty, and %lld groups must divide C",
               op, TD_SHAPE_TEXT(x), (long long)groups);
    weight = channels_of(weight, x, op, "weight", at);
    bias = channels_of(bias, x, op, "bias", at);
    if (x->ndim == 4 && !td_is_contiguous(x) && td_is_layout(x, TD_IMAGE)) {
        return td_op_group_norm_image(x, groups, weight, bias, eps, at);
    }
    td_tensor *rows = td_reshape_at(x, TD_SHAPE(x->shape[0] * groups, row), at);
    td_tensor *y = td_layer_norm_at((td_layer_norm_options){ .x = rows, .eps = eps }, at);
    y = td_reshape_at(y, td_shape_of(x), at);
    if (weight != NULL) {
        y = td_mul_at(y, td_op_per_channel(weight, x, at), at);
    }
    return bias != NULL ? td_add_at(y, td_op_per_channel(bias, x, at), at) : y;
}

td_tensor *td_group_norm_at(td_tensor *x, int64_t groups, td_tensor *weight, td_tensor *bias,
                            double eps, td_site at)
{
    x = td_op_input(x, "group_norm", "x", TD_RULE_OF(group_norm), at);
    return normalise_groups("group_norm", x, groups, weight, bias, eps, at);
}

td_tensor *td_instance_norm_at(td_tensor *x, td_tensor *weight, td_tensor *bias, double eps,
                               td_site at)
{
    x = td_op_input(x, "instance_norm", "x", TD_RULE_OF(instance_norm), at);
    TD_REQUIRE(x->ndim >= 3, at, "instance_norm: x%s must be [N,C,...]", TD_SHAPE_TEXT(x));
    td_tensor *wide = td_op_input(x, "instance_norm", "x", TD_RULE_IS_WIDENS, at);
    td_tensor *y = normalise_groups("instance_norm", wide, x->shape[1], weight, bias, eps, at);
    return td_is_half(x->dtype) ? td_cast_at(y, x->dtype, at) : y;
}

/* ---- RMS normalisation ---- */

static void rms_norm_backward(td_node *node, const td_tensor *dy)
{
    const td_tensor *x = td_saved(node, 0);
    dy = td_op_row_major(dy, td_node_site(node));
    td_op_gradient dx = td_op_grad_begin(node, 0, x, td_is_contiguous(td_node_input(node, 0)));
    td_op_gradient dweight = td_op_grad_begin(node, 1, td_node_input(node, 1), true);
    td_kernels_for(x)->rms_norm_grad(dx.grad, dweight.grad, dy, x, td_saved(node, 1),
                                     td_saved(node, 2), dx.accumulate, dweight.accumulate);
    td_op_grad_end(node, 0, &dx);
}

static td_tensor *rms_norm_rows(td_tensor *x, td_tensor *weight, double eps, td_dtype dtype,
                                td_site at)
{
    td_tensor *rows = td_op_row_major(x, at), *y = td_op_new(td_shape_of(x), dtype, x, at);
    td_shape per_row = TD_SHAPE(td_numel(x) / x->shape[x->ndim - 1]);
    td_tensor *inv_rms = td_op_new(per_row, x->dtype, x, at);
    td_kernels_for(x)->rms_norm(y, inv_rms, rows, weight, eps);
    return TD_RECORD(at, .op = "rms_norm", .backward = rms_norm_backward, .out = y,
                     .inputs = { x, weight }, .saved = { rows, weight, inv_rms });
}

td_tensor *td_rms_norm_for(bool for_products, td_tensor *x, td_tensor *weight, double eps,
                           td_site at)
{
    double usual = x != NULL && x->dtype == TD_F64 ? DBL_EPSILON : FLT_EPSILON;
    x = td_op_input(x, "rms_norm", "x", TD_RULE_OF(rms_norm), at);
    int dims = weight != NULL ? weight->ndim : 1;
    bool fits = dims >= 1 && x->ndim >= dims;
    for (int d = 0; fits && weight != NULL && d < dims; d++) {
        fits = weight->shape[d] == x->shape[x->ndim - dims + d];
    }
    TD_REQUIRE(fits, at, "rms_norm: weight%s does not fit the last dimensions of x%s",
               weight != NULL ? TD_SHAPE_TEXT(weight) : "", TD_SHAPE_TEXT(x));
    eps = td_or_usual(eps, usual);
    if (!td_operations_observed() && dims == 1 && td_numel(x) > 0) {
        if (weight != NULL) {
            weight = td_op_input(weight, "rms_norm", "weight", TD_RULE_OF(rms_norm), at);
            td_check_match(x, weight, "rms_norm", at);
        }
        td_dtype dtype = for_products ? td_op_product_dtype(x) : x->dtype;
        return rms_norm_rows(x, weight, eps, dtype, at);
    }
    td_tensor *mean = td_mul_at(x, x, at);
    for (int d = 1; d <= dims; d++) {
        mean = td_mean_dim_at(mean, -d, true, at);
    }
    td_tensor *scale = td_pow_at(td_add_scalar_at(mean, eps, at), -0.5, at);
    td_tensor *y = td_mul_at(x, scale, at);
    return weight != NULL ? td_mul_at(y, weight, at) : y;
}

td_tensor *td_rms_norm_at(td_tensor *x, td_tensor *weight, double eps, td_site at)
{
    return td_rms_norm_for(false, x, weight, eps, at);
}
