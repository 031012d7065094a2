/* SyncBatchNorm: batch normalisation whose statistics are those of all ranks' batches.
 *
 * Forward: each rank sends its count n_r, mean and M2 (sum of squares about the mean). They are
 * merged in double, in rank order, by the formula for the variance of a union (Chan, Golub and
 * LeVeque 1979). Backward, with g = dy times the activation's slope and sums over all ranks:
 *
 *     dx = w inv_std (g - sum(g)/n - x_hat sum(g x_hat)/n)      x_hat = (x - mean) inv_std
 *
 * The gradients of weight and bias are this rank's own sums; DDP averages them. The device's plain
 * batch-norm kernels make all passes over the images, with the statistics as arguments. Numbers per
 * channel are computed on the host, also for GPUs. */

#include "dist/comm/collectives.h"
#include "dist/dist.h"

#include "autograd/tape.h"
#include "nn/internal.h"
#include "tensor/extend.h"

#include <stdlib.h>
#include <string.h>

typedef struct sync_norm {
    td_group *group;
    td_tensor *mine; /* f64 [1 + 2 channels]: count, means, M2s */
    td_tensor *all;  /* f64 [ranks, 1 + 2 channels] */
    td_tensor *sums; /* f64 [2, channels]: of g, of g x_hat */
} sync_norm;

typedef struct sync_params {
    sync_norm *sync;
    double count; /* of values per channel, on all ranks */
    td_norm_activation activation;
} sync_params;

enum { X, WEIGHT, BIAS, ADD, INPUTS };
enum { SAVED_X, SAVED_Y, SAVED_WEIGHT, SAVED_MEAN, SAVED_INV_STD, SAVED_AFFINE, SAVED };

static td_tensor *new_channels(const td_tensor *x, td_dtype dtype, td_site at)
{
    return td_step_new(TD_SHAPE(x->shape[1]), dtype, TD_ROW_MAJOR, td_device_of(x), at);
}

static void require_collective(td_status status, td_site at)
{
    TD_REQUIRE(status == TD_OK, at, "SyncBatchNorm: %s", td_last_error());
}

/* ---- forward ---- */

/* Count, means and M2s of this rank's batch. */
static void find_moments(sync_norm *sync, const td_tensor *x, td_site at)
{
    int64_t channels = x->shape[1];
    double *mine = td_data_rw(sync->mine);
    memset(mine, 0, (size_t)(1 + 2 * channels) * sizeof *mine);
    int64_t count = channels > 0 ? td_numel(x) / channels : 0;
    if (count == 0) {
        return;
    }
    int64_t scope = td_scope_begin();
    td_tensor *mean = new_channels(x, TD_F64, at), *inv_std = new_channels(x, TD_F64, at);
    td_kernels_of(td_device_of(x))
        ->batch_norm(&(td_batch_norm_args){ .x = x,
                                            .training = true,
                                            .mean = mean,
                                            .inv_std = inv_std,
                                            .y = td_step_new_like(x, at) });
    mine[0] = (double)count;
    double *m = mine + 1, *m2 = m + channels;
    td_read(mean, m, TD_F64);
    td_read(inv_std, m2, TD_F64);
    for (int64_t c = 0; c < channels; c++) {
        m2[c] = (double)count / (m2[c] * m2[c]); /* 0 where inv_std is infinite */
    }
    td_scope_end(scope, NULL);
}

/* Merges all ranks' moments; returns the count. variance: M2 / count. */
static double merge_moments(const sync_norm *sync, int64_t channels, double *mean, double *variance)
{
    const double *all = td_data(sync->all);
    double n = 0.0;
    memset(mean, 0, (size_t)channels * sizeof *mean);
    memset(variance, 0, (size_t)channels * sizeof *variance);
    for (int rank = 0; rank < td_group_size(sync->group); rank++) {
        const double *theirs = all + rank * (1 + 2 * channels);
        double nb = theirs[0];
        if (nb == 0.0) {
            continue;
        }
        for (int64_t c = 0; c < channels; c++) {
            double delta = theirs[1 + c] - mean[c];
            mean[c] += delta * nb / (n + nb);
            variance[c] += theirs[1 + channels + c] + delta * delta * n * nb / (n + nb);
        }
        n += nb;
    }
    for (int64_t c = 0; c < channels; c++) {
        variance[c] /= n;
    }
    return n;
}

/* running = (1-m) running + m value; the running variance divides by n-1. */
static void update_running(td_tensor *running, double momentum, const double *value, double scale)
{
    if (running == NULL) {
        return;
    }
    int64_t channels = running->shape[0];
    double *values = td_scratch(TD_CPU, (size_t)channels * sizeof *values);
    td_read(running, values, TD_F64);
    for (int64_t c = 0; c < channels; c++) {
        values[c] = (1.0 - momentum) * values[c] + momentum * value[c] * scale;
    }
    td_write(running, values, TD_F64);
    td_scratch_free(TD_CPU, values);
}

static void sync_backward(td_node *node, const td_tensor *dy);

static td_tensor *normalise(sync_norm *sync, const td_batch_norm_options *o,
                            const td_batch_norm_fusion *fusion, td_tensor *mean,
                            td_tensor *variance, double count, td_site at)
{
    td_tensor *x = o->x, *weight = o->weight, *bias = o->bias;
    td_tensor *y = td_step_new_like(x, at), *inv_std = new_channels(x, TD_F64, at);
    bool active = fusion->activation != TD_NORM_LINEAR;
    td_dtype dtype = x->dtype == TD_F64 ? TD_F64 : TD_F32;
    td_tensor *affine = active && !fusion->add ? td_step_new(TD_SHAPE(2, x->shape[1]), dtype,
                                                             TD_ROW_MAJOR, td_device_of(x), at)
                                               : NULL;
    td_kernels_of(td_device_of(x))
        ->batch_norm(&(td_batch_norm_args){ .x = x,
                                            .weight = weight,
                                            .bias = bias,
                                            .add = fusion->add,
                                            .activation = fusion->activation,
                                            .eps = td_or_usual(o->eps, 1e-5),
                                            .running_mean = mean,
                                            .running_var = variance,
                                            .mean = new_channels(x, TD_F64, at),
                                            .inv_std = inv_std,
                                            .affine = affine,
                                            .y = y });
    return TD_RECORD(at, .op = "sync_batch_norm", .backward = sync_backward, .out = y,
                     .inputs = { x, weight, bias, fusion->add },
                     .saved = { x, active && !affine ? y : NULL, weight, mean, inv_std, affine },
                     .params = &(sync_params){ sync, count, fusion->activation },
                     .params_size = sizeof(sync_params));
}

static void check(const sync_norm *sync, const td_tensor *x, const td_tensor *weight,
                  const td_tensor *add, td_site at)
{
    int64_t channels = sync->sums->shape[1];
    td_check_float(x, "sync_batch_norm", "x", at);
    TD_REQUIRE((x->ndim == 2 || x->ndim == 4) && x->shape[1] == channels, at,
               "sync_batch_norm: x%s must be [N,%lld] or [N,%lld,H,W]",
               td_describe_shape(td_shape_of(x)), (long long)channels, (long long)channels);
    if (weight != NULL) { /* otherwise it is 1 */
        td_check_mixed(x, weight, "sync_batch_norm", at);
    }
    if (add != NULL) {
        td_check_tensor(add, "sync_batch_norm", "add", at);
        td_check_match(x, add, "sync_batch_norm", at);
        TD_REQUIRE(td_same_shape(x, add), at, "sync_batch_norm: add%s must have the shape of x%s",
                   td_describe_shape(td_shape_of(add)), td_describe_shape(td_shape_of(x)));
    }
}

static td_tensor *sync_forward(void *user, td_batch_norm_options o, td_batch_norm_fusion fusion,
                               td_site at)
{
    sync_norm *sync = user;
    if (!o.training || td_group_size(sync->group) == 1) {
        return td_batch_norm_fused_at(o, fusion, at);
    }
    td_tensor *x = o.x;
    fusion.add = td_batch_norm_addend(x, fusion.add, at);
    check(sync, x, o.weight, fusion.add, at);
    find_moments(sync, x, at);
    require_collective(td_all_gather(sync->group, sync->all, sync->mine, NULL), at);
    td_tensor *mean = new_channels(x, TD_F64, at), *variance = new_channels(x, TD_F64, at);
    size_t bytes = (size_t)x->shape[1] * sizeof(double);
    double *m = td_scratch(TD_CPU, 2 * bytes), *v = m + x->shape[1];
    double n = merge_moments(sync, x->shape[1], m, v);
    TD_REQUIRE(n > 1.0, at,
               "sync_batch_norm: all ranks together have %.0f value%s per channel; training needs "
               "at least two to have a variance",
               n, n == 1.0 ? "" : "s");
    double momentum = td_or_usual(o.momentum, 0.1);
    update_running(o.running_mean, momentum, m, 1.0);
    update_running(o.running_var, momentum, v, n / (n - 1.0));
    td_write(mean, m, TD_F64);
    td_write(variance, v, TD_F64);
    td_scratch_free(TD_CPU, m);
    return normalise(sync, &o, &fusion, mean, variance, n, at);
}

/* ---- backward ---- */

static td_batch_norm_grad_args grad_args(td_node *node, const td_tensor *dy)
{
    const sync_params *params = td_params_of(node);
    return (td_batch_norm_grad_args){ .dy = dy,
                                      .x = td_saved(node, SAVED_X),
                                      .y = td_saved(node, SAVED_Y),
                                      .weight = td_saved(node, SAVED_WEIGHT),
                                      .mean = td_saved(node, SAVED_MEAN),
                                      .inv_std = td_saved(node, SAVED_INV_STD),
                                      .affine = td_saved(node, SAVED_AFFINE),
                                      .activation = params->activation };
}

/* Writes a gradient [channels] that was summed in double. */
static void give_channels(td_node *node, int input, const td_tensor *sum)
{
    if (td_input_needs_grad(node, input)) {
        td_tensor *g = td_step_new_like(td_node_input(node, input), td_node_site(node));
        td_kernels_of(td_device_of(g))->copy(g, sum);
        td_input_grad_is(node, input, g);
    }
}

/* dx = w inv_std g + (x - mean) a + c. The kernel computes the first term as the gradient for
 * constant statistics, and the rest as a normalisation with weight a and bias c. */
static void give_dx(td_node *node, const td_tensor *part, const td_tensor *sums)
{
    const sync_params *params = td_params_of(node);
    const td_tensor *x = td_saved(node, SAVED_X), *weight = td_saved(node, SAVED_WEIGHT);
    td_site at = td_node_site(node);
    int64_t channels = x->shape[1];
    td_tensor *slope = new_channels(x, TD_F64, at), *shift = new_channels(x, TD_F64, at);
    td_tensor *ones = new_channels(x, TD_F64, at);
    double *a = td_scratch(TD_CPU, 4 * (size_t)channels * sizeof *a), *c = a + channels;
    double *inv_std = c + channels, *w = inv_std + channels;
    const double *g = td_data(sums), *gx = g + channels;
    td_read(td_saved(node, SAVED_INV_STD), inv_std, TD_F64);
    if (weight != NULL) {
        td_read(weight, w, TD_F64);
    }
    for (int64_t i = 0; i < channels; i++) {
        double scale = weight != NULL ? w[i] * inv_std[i] : inv_std[i];
        a[i] = -scale * inv_std[i] * gx[i] / params->count;
        c[i] = -scale * g[i] / params->count;
    }
    td_write(slope, a, TD_F64);
    td_write(shift, c, TD_F64);
    td_scratch_free(TD_CPU, a);
    const td_kernels *kernels = td_kernels_of(td_device_of(x));
    kernels->fill(ones, 1.0);
    td_tensor *dx = td_step_new_like(x, at);
    kernels->batch_norm(
        &(td_batch_norm_args){ .x = x,
                               .weight = slope,
                               .bias = shift,
                               .add = part,
                               .running_mean = (td_tensor *)(uintptr_t)td_saved(node, SAVED_MEAN),
                               .running_var = ones,
                               .mean = new_channels(x, TD_F64, at),
                               .inv_std = new_channels(x, TD_F64, at),
                               .y = dx });
    td_input_grad_is(node, X, dx);
}

static void sync_backward(td_node *node, const td_tensor *dy)
{
    const sync_params *params = td_params_of(node);
    const td_tensor *x = td_saved(node, SAVED_X);
    const td_kernels *kernels = td_kernels_of(td_device_of(x));
    td_site at = td_node_site(node);
    td_tensor *g = new_channels(x, TD_F64, at), *gx = new_channels(x, TD_F64, at);
    td_batch_norm_grad_args args = grad_args(node, dy);
    args.training = true;
    args.dbias = g;
    args.dweight = gx;
    kernels->batch_norm_grad(&args);
    give_channels(node, BIAS, g);
    give_channels(node, WEIGHT, gx);

    bool wants_x = td_input_needs_grad(node, X);
    bool masks_add = params->activation != TD_NORM_LINEAR && td_input_needs_grad(node, ADD);
    args = grad_args(node, dy);
    args.dx = wants_x ? td_step_new_like(x, at) : NULL;
    args.dadd = masks_add ? td_step_new_like(td_node_input(node, ADD), at) : NULL;
    if (wants_x || masks_add) {
        kernels->batch_norm_grad(&args);
    }
    if (wants_x) {
        td_tensor *sums = params->sync->sums;
        double *both = td_data_rw(sums);
        td_read(g, both, TD_F64);
        td_read(gx, both + x->shape[1], TD_F64);
        require_collective(td_all_reduce(params->sync->group, sums, TD_SUM, NULL), at);
        give_dx(node, args.dx, sums);
    }
    if (masks_add) {
        td_input_grad_is(node, ADD, args.dadd);
    } else if (params->activation == TD_NORM_LINEAR) {
        td_input_grad_is(node, ADD, dy);
    }
}

/* ---- converting ---- */

static void sync_free(void *user)
{
    sync_norm *sync = user;
    if (sync != NULL) {
        td_free(sync->mine);
        td_free(sync->all);
        td_free(sync->sums);
        free(sync);
    }
}

static sync_norm *sync_new(td_group *group, int64_t channels)
{
    sync_norm *sync = calloc(1, sizeof *sync);
    TD_CHECK_NULL(sync != NULL, TD_E_NOMEM, "no memory for SyncBatchNorm");
    int64_t size = td_group_size(group), count = 1 + 2 * channels;
    sync->group = group;
    sync->mine = td_zeros(TD_SHAPE(count), TD_F64, TD_CPU);
    sync->all = td_zeros(TD_SHAPE(size, count), TD_F64, TD_CPU);
    sync->sums = td_zeros(TD_SHAPE(2, channels), TD_F64, TD_CPU);
    if (sync->mine == NULL || sync->all == NULL || sync->sums == NULL) {
        sync_free(sync);
        return NULL;
    }
    return sync;
}

static td_status sync_bn_convert(td_module *m, td_group *group)
{
    const char *wrapper = td_module_wrapper(m);
    TD_CHECK(wrapper == NULL || td_is_ddp(m), TD_E_ARG,
             "td_convert_sync_batch_norm: the model went through %s, whose replicas are in one "
             "process; statistics of several processes need a process for each device: use td_ddp",
             wrapper);
    if (td_is_batch_norm2d(m)) {
        sync_norm *sync = sync_new(group, m->tensors[0].tensor->shape[0]);
        TD_TRY(sync != NULL ? TD_OK : TD_E_NOMEM);
        td_batch_norm2d_set_override(m, (td_batch_norm_override){ sync_forward, sync_free, sync });
    }
    return TD_OK;
}

td_module *td_convert_sync_batch_norm(td_module *net, td_group *group)
{
    for (td_module *m = net; m != NULL; m = td_module_next(net, m)) {
        if (sync_bn_convert(m, group != NULL ? group : td_dist_world()) != TD_OK) {
            td_module_free(net);
            return NULL;
        }
    }
    return net;
}
