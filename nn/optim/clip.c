/* Gradient clipping: by the norm of all gradients together, or each element by itself. */
#include "nn/params.h"
#include "nn/module.h"
#include "tensor/hooks.h"
#include "tensor/kernels/kernels.h"

#include <math.h>
#include <stdlib.h>

/* The gradients of which a rank has something. */
typedef struct grad_list {
    const td_params *params;
    td_tensor **grads;
    td_tensor *parts; /* headers of those of which the rank has a part */
    int count;
} grad_list;

/* In the order of registration, so that the layout in memory does not change the sum. */
static grad_list list_gradients(td_params *params, td_site at)
{
    td_params_follow(params);
    size_t room = (size_t)td_params_count(params) + 1;
    grad_list l = { .params = params,
                    .grads = calloc(room, sizeof(td_tensor *)),
                    .parts = calloc(room, sizeof *l.parts) };
    TD_REQUIRE(l.grads != NULL && l.parts != NULL, at,
               "clipping: no memory for a list of gradients");
    for (int i = 0; i < td_params_count(params); i++) {
        td_tensor *grad = td_params_grad_here(params, i, &l.parts[i]);
        if (grad != NULL) {
            l.grads[l.count++] = grad;
        }
    }
    return l;
}

static void free_list(grad_list *l)
{
    free(l->grads);
    free(l->parts);
}

static void scale_all(const grad_list *l, double scale)
{
    for (int i = 0; !(scale >= 1.0) && i < l->count; i++) { /* NaN: makes all NaN, as in PyTorch */
        td_kernels_of(td_device_of(l->grads[i]))
            ->unary(TD_UNARY_mul_scalar, l->grads[i], l->grads[i], scale, 0.0);
    }
}

static double clip_by_host(const grad_list *l, double max_norm)
{
    double sum = 0.0;
    for (int i = 0; i < l->count; i++) {
        sum += td_kernels_of(td_device_of(l->grads[i]))->sum_of_squares(l->grads[i]);
    }
    td_params_sum(l->params, &sum, 1);
    double norm = sqrt(sum);
    scale_all(l, max_norm / (norm + 1e-6));
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

static double larger(double a, double b)
{
    return b > a || isnan(b) ? b : a;
}

/* Of all ranks: each tells its own number in a place of its own. */
static double largest_of_ranks(const td_params *params, double mine, td_site at)
{
    if (!td_params_sums(params)) {
        return mine;
    }
    const td_params_peers *peers = td_params_peers_of(params);
    double *all = calloc((size_t)peers->count, sizeof *all);
    TD_REQUIRE(all != NULL, at, "td_clip_grad_norm: no memory for a norm");
    all[peers->rank] = mine;
    td_params_sum(params, all, peers->count);
    for (int r = 0; r < peers->count; r++) {
        mine = larger(mine, all[r]);
    }
    free(all);
    return mine;
}

static double clip_by_power(const grad_list *l, double max_norm, double p, td_site at)
{
    double all = 0.0;
    for (int i = 0; i < l->count; i++) {
        double one = td_numel(l->grads[i]) > 0 ? power_sum(l->grads[i], p, at) : 0.0;
        all = isfinite(p) ? all + one : larger(all, one);
    }
    if (isfinite(p)) {
        td_params_sum(l->params, &all, 1);
    } else {
        all = largest_of_ranks(l->params, all, at);
    }
    double norm = isfinite(p) ? pow(all, 1.0 / p) : all;
    scale_all(l, max_norm / (norm + 1e-6));
    return norm;
}

double td_clip_grad_norm_at(td_clip_options o, td_site at)
{
    td_params *params = o.params;
    double p = o.norm_type != 0.0 ? o.norm_type : 2.0;
    TD_REQUIRE(o.max_norm >= 0.0 && p > 0.0, at,
               "td_clip_grad_norm: max_norm is %g and norm_type %g; they must be positive",
               o.max_norm, p);
    const td_kernels *kernels = td_kernels_of(td_device_of(td_params_flat(params)));
    grad_list l = list_gradients(params, at);
    double norm = NAN;
    if (p != 2.0) {
        td_not_recordable("td_clip_grad_norm with norm_type %g: the host computes it", p);
        norm = clip_by_power(&l, o.max_norm, p, at);
    } else if (kernels->clip != NULL && !td_params_sums(params)) {
        bool whole = l.count == td_params_count(params);
        kernels->clip(l.grads, l.count, whole ? td_params_flat_grad(params) : NULL, o.max_norm,
                      td_recorder_now() == NULL ? &norm : NULL);
    } else {
        norm = clip_by_host(&l, o.max_norm);
    }
    free_list(&l);
    return td_recorder_now() == NULL ? norm : NAN;
}

void td_clip_grad_value_at(td_params *params, double limit, td_site at)
{
    TD_REQUIRE(limit >= 0.0, at, "td_clip_grad_value: the limit is %g; it must be positive", limit);
    grad_list l = list_gradients(params, at);
    for (int i = 0; i < l.count; i++) {
        td_kernels_of(td_device_of(l.grads[i]))
            ->unary(TD_UNARY_clamp, l.grads[i], l.grads[i], -limit, limit);
    }
    free_list(&l);
}
