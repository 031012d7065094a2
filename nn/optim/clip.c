/* Gradient clipping: by the norm of all gradients together, or each element by itself. */
#include "nn/params.h"
#include "nn/module.h"
#include "tensor/hooks.h"
#include "tensor/kernels.h"

#include <math.h>
#include <stdlib.h>

/* The gradients in the order of registration, so that the layout in memory does not change the sum.
 */
static int list_gradients(td_params *params, td_tensor **list)
{
    int count = 0;
    for (int i = 0; i < td_params_count(params); i++) {
        td_tensor *grad = td_grad(td_params_get(params, i)->tensor);
        if (grad != NULL) {
            list[count++] = grad;
        }
    }
    return count;
}

static void scale_all(td_tensor *const *grads, int count, double scale)
{
    for (int i = 0; !(scale >= 1.0) && i < count; i++) { /* NaN: makes all NaN, as in PyTorch */
        td_kernels_of(td_device_of(grads[i]))
            ->unary(TD_UNARY_mul_scalar, grads[i], grads[i], scale, 0.0);
    }
}

static double clip_by_host(td_tensor *const *grads, int count, double max_norm)
{
    double sum = 0.0;
    for (int i = 0; i < count; i++) {
        sum += td_kernels_of(td_device_of(grads[i]))->sum_of_squares(grads[i]);
    }
    double norm = sqrt(sum);
    scale_all(grads, count, max_norm / (norm + 1e-6));
    return norm;
}

/* sum |g|^p, or the largest |g|, of one gradient. */
static double power_sum(const td_tensor *grad, double p, td_site at)
{
    const td_kernels *kernels = td_kernels_of(td_device_of(grad));
    td_tensor *work = td_clone(grad), *sum = td_new(TD_SCALAR, grad->dtype, td_device_of(grad));
    TD_REQUIRE(work != NULL && sum != NULL, at, "td_clip_grad_norm: no memory for a norm");
    kernels->unary(TD_UNARY_abs, work, work, 0.0, 0.0);
    if (isfinite(p)) {
        kernels->unary(TD_UNARY_pow, work, work, p, 0.0);
    }
    td_tensor one = *sum;
    one.ndim = work->ndim;
    for (int d = 0; d < work->ndim; d++) {
        one.shape[d] = one.stride[d] = 1;
    }
    kernels->reduce(isfinite(p) ? TD_REDUCE_SUM : TD_REDUCE_MAX, &one, work, false);
    double value;
    td_read(sum, &value, TD_F64);
    td_free(work);
    td_free(sum);
    return value;
}

static double clip_by_power(td_tensor *const *grads, int count, double max_norm, double p,
                            td_site at)
{
    double all = 0.0;
    for (int i = 0; i < count; i++) {
        double one = td_numel(grads[i]) > 0 ? power_sum(grads[i], p, at) : 0.0;
        all = isfinite(p) ? all + one : one > all || isnan(one) ? one : all;
    }
    double norm = isfinite(p) ? pow(all, 1.0 / p) : all;
    scale_all(grads, count, max_norm / (norm + 1e-6));
    return norm;
}

static td_tensor **list_of(td_params *params, int *count, td_site at)
{
    td_tensor **grads = calloc((size_t)td_params_count(params) + 1, sizeof *grads);
    TD_REQUIRE(grads != NULL, at, "clipping: no memory for a list of gradients");
    *count = list_gradients(params, grads);
    return grads;
}

double td_clip_grad_norm_at(td_clip_options o, td_site at)
{
    td_params *params = o.params;
    double p = o.norm_type != 0.0 ? o.norm_type : 2.0;
    TD_REQUIRE(o.max_norm >= 0.0 && p > 0.0, at,
               "td_clip_grad_norm: max_norm is %g and norm_type %g; they must be positive",
               o.max_norm, p);
    const td_kernels *kernels = td_kernels_of(td_device_of(td_params_flat(params)));
    int count;
    td_tensor **grads = list_of(params, &count, at);
    double norm = NAN;
    if (p != 2.0) {
        td_not_recordable("td_clip_grad_norm with norm_type %g: the host computes it", p);
        norm = clip_by_power(grads, count, o.max_norm, p, at);
    } else if (kernels->clip != NULL) {
        bool whole = count == td_params_count(params);
        kernels->clip(grads, count, whole ? td_params_flat_grad(params) : NULL, o.max_norm,
                      td_recorder_now() == NULL ? &norm : NULL);
    } else {
        norm = clip_by_host(grads, count, o.max_norm);
    }
    free(grads);
    return td_recorder_now() == NULL ? norm : NAN;
}

void td_clip_grad_value_at(td_params *params, double limit, td_site at)
{
    TD_REQUIRE(limit >= 0.0, at, "td_clip_grad_value: the limit is %g; it must be positive", limit);
    int count;
    td_tensor **grads = list_of(params, &count, at);
    for (int i = 0; i < count; i++) {
        td_kernels_of(td_device_of(grads[i]))
            ->unary(TD_UNARY_clamp, grads[i], grads[i], -limit, limit);
    }
    free(grads);
}
