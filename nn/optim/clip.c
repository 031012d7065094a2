/* Gradient clipping: by the norm of all gradients together, or each element by itself. */
#include "nn/module.h"
#include "nn/shared/slices.h"
#include "tensor/hooks.h"
#include "tensor/kernels/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Goes over the gradients of which this rank has something, in the order of registration, so that
 * the layout in memory does not change a sum. */
typedef struct clip_walk {
    const td_params *params;
    int next;
    td_tensor part; /* the header of one of which the rank has a part */
} clip_walk;

static td_tensor *clip_next(clip_walk *w) /* NULL: that was all */
{
    td_tensor *grad = NULL;
    while (grad == NULL && w->next < td_params_count(w->params)) {
        grad = td_params_grad_here(w->params, w->next++, &w->part);
    }
    return grad;
}

static void scale_all(const td_params *params, double scale)
{
    clip_walk w = { .params = params };
    for (td_tensor *g; !(scale >= 1.0) && (g = clip_next(&w)) != NULL;) { /* NaN: makes all NaN */
        td_kernels_of(td_device_of(g))->unary(TD_UNARY_mul_scalar, g, g, scale, 0.0);
    }
}

/* Where the number of the gradient that clip_next has given belongs; NULL: another stage of a
 * pipeline counts it, which has the same weight. Over stages each tensor has a number of its own,
 * so that the numbers are added in the order of the whole model. */
static double *clip_place(const clip_walk *w, double *sum)
{
    const td_staging *stages = w->params->staging;
    if (stages == NULL) {
        return sum;
    }
    int place = td_staging_place(stages, td_params_get(w->params, w->next - 1)->tensor);
    return stages->owners[place] == stages->rank ? &stages->numbers[place] : NULL;
}

/* `of` of all gradients of all ranks. */
static double sum_of_all(const td_params *params, td_part_sum of, double p)
{
    const td_params_training *training = td_params_training_of(params);
    const td_slicing *slicing = params->slicing;
    const td_staging *stages = params->staging;
    if (training->sum_parts != NULL && slicing == NULL && stages == NULL) {
        return training->sum_parts(params, of, p);
    }
    double one = 0.0, sum = 0.0, *numbers = stages != NULL ? stages->numbers : &one, *to;
    int count = stages != NULL ? stages->count : 1;
    memset(numbers, 0, (size_t)count * sizeof *numbers);
    clip_walk w = { .params = params };
    for (td_tensor *g; (g = clip_next(&w)) != NULL;) {
        const td_tensor *leaf = td_params_get(params, w.next - 1)->tensor;
        to = clip_place(&w, &one);
        if (to != NULL && (slicing == NULL || !slicing->type->add(slicing, leaf, g, of, p))) {
            *to += of(g, p);
        }
    }
    td_params_sum(params, numbers, count);
    for (int i = 0; i < count; i++) {
        sum += numbers[i];
    }
    if (slicing != NULL) {
        td_params_sum(params, slicing->sums, slicing->slices);
        sum += slicing->type->total(slicing);
    }
    return sum;
}

static double squares_of(const td_tensor *grad, double p)
{
    (void)p;
    return td_kernels_of(td_device_of(grad))->sum_of_squares(grad);
}

/* By a device's own kernel, which takes all gradients at once; no rank has only a part of one. */
static double clip_by_device(td_params *params, const td_kernels *kernels, double max_norm,
                             td_site at)
{
    int count = 0;
    td_tensor **grads = calloc((size_t)td_params_count(params) + 1, sizeof *grads);
    TD_REQUIRE(grads != NULL, at, "td_clip_grad_norm: no memory for a list of gradients");
    clip_walk w = { .params = params };
    for (td_tensor *g; (g = clip_next(&w)) != NULL;) {
        grads[count++] = g;
    }
    double norm = NAN;
    kernels->clip(grads, count,
                  count == td_params_count(params) ? td_params_flat_grad(params) : NULL, max_norm,
                  td_recorder_now() == NULL ? &norm : NULL);
    free(grads);
    return norm;
}

/* sum |g|^p, or the largest |g|, of one gradient. */
static double power_sum(const td_tensor *grad, double p)
{
    if (td_numel(grad) == 0) {
        return 0.0;
    }
    const td_kernels *kernels = td_kernels_of(td_device_of(grad));
    td_tensor *work = td_clone(grad), *sum = td_new(TD_SCALAR, grad->dtype, td_device_of(grad));
    TD_REQUIRE(work != NULL && sum != NULL, TD_HERE, "td_clip_grad_norm: no memory for a norm");
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

/* Of this rank's number and those of all, each in a place of its own. */
static double largest(double mine, const double *all, int count)
{
    for (int r = 0; r < count; r++) {
        mine = larger(mine, all[r]);
    }
    return mine;
}

/* Of all ranks. */
static double largest_of_ranks(const td_params *params, double mine, td_site at)
{
    if (!td_params_sums(params)) {
        return mine;
    }
    const td_params_peers *peers = td_params_peers_of(params);
    const td_staging *stages = params->staging;
    int ranks = peers != NULL && peers->own_grads ? peers->count : 1;
    int count = ranks * (stages != NULL ? stages->ranks : 1);
    double *all = calloc((size_t)count, sizeof *all);
    TD_REQUIRE(all != NULL, at, "td_clip_grad_norm: no memory for a norm");
    all[(stages != NULL ? stages->rank : 0) * ranks + (ranks > 1 ? peers->rank : 0)] = mine;
    td_params_sum(params, all, count);
    mine = largest(mine, all, count);
    free(all);
    return mine;
}

/* Of the ranks of a model's slices, in the same way. */
static double largest_of_slices(const td_slicing *slicing, double mine)
{
    if (slicing != NULL) {
        slicing->sums[slicing->rank] = mine;
        slicing->sum(slicing->sums, slicing->ranks, slicing->user);
        mine = largest(mine, slicing->sums, slicing->ranks);
        memset(slicing->sums, 0, (size_t)slicing->ranks * sizeof *slicing->sums);
    }
    return mine;
}

static double norm_of(const td_params *params, double p, td_site at)
{
    double norm = 0.0;
    clip_walk w = { .params = params };
    for (td_tensor *g; !isfinite(p) && (g = clip_next(&w)) != NULL;) {
        norm = larger(norm, power_sum(g, p));
    }
    return p == 2.0      ? sqrt(sum_of_all(params, squares_of, 2.0))
           : isfinite(p) ? pow(sum_of_all(params, power_sum, p), 1.0 / p)
                         : largest_of_slices(params->slicing, largest_of_ranks(params, norm, at));
}

double td_clip_grad_norm_at(td_clip_options o, td_site at)
{
    td_params *params = o.params;
    double p = o.norm_type != 0.0 ? o.norm_type : 2.0;
    TD_REQUIRE(o.max_norm >= 0.0 && p > 0.0, at,
               "td_clip_grad_norm: max_norm is %g and norm_type %g; they must be positive",
               o.max_norm, p);
    td_params_follow(params);
    const td_kernels *kernels = td_kernels_of(td_device_of(td_params_flat(params)));
    double norm;
    if (p != 2.0) {
        td_not_recordable("td_clip_grad_norm with norm_type %g: the host computes it", p);
    }
    if (p == 2.0 && kernels->clip != NULL && !td_params_sums(params) && params->slicing == NULL) {
        norm = clip_by_device(params, kernels, o.max_norm, at);
    } else {
        norm = norm_of(params, p, at);
        scale_all(params, o.max_norm / (norm + 1e-6));
    }
    return td_recorder_now() == NULL ? norm : NAN;
}

void td_clip_grad_value_at(td_params *params, double limit, td_site at)
{
    TD_REQUIRE(limit >= 0.0, at, "td_clip_grad_value: the limit is %g; it must be positive", limit);
    td_params_follow(params);
    clip_walk w = { .params = params };
    for (td_tensor *g; (g = clip_next(&w)) != NULL;) {
        td_kernels_of(td_device_of(g))->unary(TD_UNARY_clamp, g, g, -limit, limit);
    }
}
