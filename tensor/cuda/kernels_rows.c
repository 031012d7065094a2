/* Layer and RMS normalisation, softmax, cross-entropy. */
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/kernels_norm.h"
#include "tensor/cuda/launch_rows.h"

static const td_cuda_groups no_groups = { 0, 0, 0 };

/* Channels of x [N,C,H,W] in as many groups as mean [N,groups] has. */
static td_cuda_groups groups_of(const td_tensor *x, const td_tensor *mean)
{
    int64_t channels = x->shape[1];
    return (td_cuda_groups){ x->shape[2] * x->shape[3], channels, channels / mean->shape[1] };
}

static void *pointer_of(const td_tensor *t)
{
    return t != NULL ? td_ptr(t) : NULL;
}

/* mean NULL: it is not subtracted. */
static void normalise(const char *name, td_cuda_groups groups, td_tensor *y, td_tensor *mean,
                      td_tensor *inv_std, const td_tensor *x, const td_tensor *weight,
                      const td_tensor *bias, double eps)
{
    if (td_numel(x) == 0) {
        return;
    }
    td_layout layout = groups.each > 0 ? TD_IMAGE : TD_ROW_MAJOR;
    int64_t rows = td_numel(inv_std);
    td_staged sy, sx, sw, sb;
    const void *from = td_stage_in(&sx, x, layout);
    const void *scale = td_stage_in(&sw, weight, TD_ROW_MAJOR);
    const void *shift = td_stage_in(&sb, bias, TD_ROW_MAJOR);
    void *to = td_stage_out(&sy, y, layout, false);
    td_cuda_launch_layer_norm(y->dtype, rows, td_numel(x) / rows, groups, to, pointer_of(mean),
                              td_ptr(inv_std), from, scale, shift, eps, td_cuda_stream(x));
    td_cuda_launched(name);
    td_stage_end(&sy, &sb, &sw, &sx);
}

void td_cuda_layer_norm(td_tensor *y, td_tensor *mean, td_tensor *inv_std, const td_tensor *x,
                        const td_tensor *weight, const td_tensor *bias, double eps)
{
    normalise("layer_norm", no_groups, y, mean, inv_std, x, weight, bias, eps);
}

void td_cuda_rms_norm(td_tensor *y, td_tensor *inv_rms, const td_tensor *x, const td_tensor *weight,
                      double eps)
{
    normalise("rms_norm", no_groups, y, NULL, inv_rms, x, weight, NULL, eps);
}

void td_cuda_group_norm(td_tensor *y, td_tensor *mean, td_tensor *inv_std, const td_tensor *x,
                        const td_tensor *weight, const td_tensor *bias, double eps)
{
    normalise("group_norm", groups_of(x, mean), y, mean, inv_std, x, weight, bias, eps);
}

static void normalise_grad(const char *name, td_cuda_groups groups, td_tensor *dx,
                           td_tensor *dweight, td_tensor *dbias, const td_tensor *dy,
                           const td_tensor *x, const td_tensor *weight, const td_tensor *mean,
                           const td_tensor *inv_std, bool accumulate_dx, bool accumulate_dweight,
                           bool accumulate_dbias)
{
    td_device device = td_device_of(x);
    td_layout layout = groups.each > 0 ? TD_IMAGE : TD_ROW_MAJOR;
    int64_t rows = td_numel(inv_std), size = td_numel(x);
    int64_t channels = groups.each > 0 ? groups.channels : x->shape[x->ndim - 1];
    if (size == 0) {
        td_cuda_norm_clear(dweight, accumulate_dweight);
        td_cuda_norm_clear(dbias, accumulate_dbias);
        return;
    }
    td_staged sdx, sdy, sx, sw;
    td_cuda_layer_grad grad = {
        .dx = td_stage_out(&sdx, dx, layout, accumulate_dx),
        .dy = td_stage_in(&sdy, dy, layout),
        .x = td_stage_in(&sx, x, layout),
        .weight = td_stage_in(&sw, weight, TD_ROW_MAJOR),
        .mean = pointer_of(mean),
        .inv_std = td_ptr(inv_std),
        .accumulate_dx = accumulate_dx,
        .accumulate_dweight = accumulate_dweight,
        .accumulate_dbias = accumulate_dbias,
        .dweight = td_cuda_channel_of(dweight),
        .dbias = td_cuda_channel_of(dbias),
    };
    if (dweight || dbias) {
        grad.m = td_cuda_matrix_of(size / channels, channels, x->dtype, false, TD_CUDA_MATRIX_SUMS);
        grad.sums = td_cuda_sums_of(&grad.m, NULL, device);
        grad.sum_blocks = (unsigned)(grad.m.tiles * grad.m.chunks);
    }
    td_cuda_launch_layer_norm_grad(dy->dtype, rows, size / rows, groups, &grad, td_cuda_stream(x));
    td_cuda_launched(name);
    td_scratch_free(device, grad.sums.partial);
    td_stage_end(&sdx, &sw, &sdy, &sx);
}

void td_cuda_layer_norm_grad(td_tensor *dx, td_tensor *dweight, td_tensor *dbias,
                             const td_tensor *dy, const td_tensor *x, const td_tensor *weight,
                             const td_tensor *mean, const td_tensor *inv_std, bool accumulate_dx,
                             bool accumulate_dweight, bool accumulate_dbias)
{
    normalise_grad("layer_norm_grad", no_groups, dx, dweight, dbias, dy, x, weight, mean, inv_std,
                   accumulate_dx, accumulate_dweight, accumulate_dbias);
}

void td_cuda_rms_norm_grad(td_tensor *dx, td_tensor *dweight, const td_tensor *dy,
                           const td_tensor *x, const td_tensor *weight, const td_tensor *inv_rms,
                           bool accumulate_dx, bool accumulate_dweight)
{
    normalise_grad("rms_norm_grad", no_groups, dx, dweight, NULL, dy, x, weight, NULL, inv_rms,
                   accumulate_dx, accumulate_dweight, false);
}

void td_cuda_group_norm_grad(td_tensor *dx, td_tensor *dweight, td_tensor *dbias,
                             const td_tensor *dy, const td_tensor *x, const td_tensor *weight,
                             const td_tensor *mean, const td_tensor *inv_std, bool accumulate_dx,
                             bool accumulate_dweight, bool accumulate_dbias)
{
    normalise_grad("group_norm_grad", groups_of(x, mean), dx, dweight, dbias, dy, x, weight, mean,
                   inv_std, accumulate_dx, accumulate_dweight, accumulate_dbias);
}

void td_cuda_narrow(td_tensor *y, td_tensor *sums, const td_tensor *x, bool accumulate)
{
    if (td_numel(x) == 0) {
        td_cuda_norm_clear(sums, accumulate);
        return;
    }
    td_device device = td_device_of(x);
    int64_t n = x->shape[x->ndim - 1];
    td_staged sx;
    const void *from = td_stage_in(&sx, x, TD_ROW_MAJOR);
    void *to = td_ptr(y);
    bool packs = ((uintptr_t)from | (uintptr_t)to) % 16 == 0;
    td_cuda_matrix m = td_cuda_matrix_of(td_numel(x) / n, n, y->dtype, packs, TD_CUDA_MATRIX_SUMS);
    td_cuda_sums partial = td_cuda_sums_of(&m, NULL, device);
    td_cuda_launch_narrow(&m, &partial, to, from, td_cuda_channel_of(sums), accumulate,
                          td_cuda_stream(x));
    td_cuda_launched("narrow");
    td_scratch_free(device, partial.partial);
    td_stage_end(&sx);
}

/* ---- softmax: memory is [outer][d][inner] ---- */

typedef struct cut {
    int64_t outer, d, inner;
} cut;

static cut cut_along(const td_tensor *t, int dim)
{
    cut c = { .d = t->shape[dim] };
    c.inner = c.d > 1 ? t->stride[dim] : 1;
    c.outer = td_numel(t) / (c.d * c.inner);
    return c;
}

void td_cuda_softmax(td_tensor *y, const td_tensor *x, int dim, bool log)
{
    if (td_numel(y) == 0) {
        return;
    }
    td_staged sx;
    const void *from = td_stage_in_like(&sx, x, y);
    cut c = cut_along(y, dim);
    td_cuda_launch_softmax(y->dtype, c.outer, c.d, c.inner, td_ptr(y), from, log,
                           td_cuda_stream(y));
    td_cuda_launched("softmax");
    td_stage_end(&sx);
}

void td_cuda_softmax_grad(td_tensor *dx, const td_tensor *dy, const td_tensor *y, int dim, bool log,
                          bool accumulate)
{
    if (td_numel(dx) == 0) {
        return;
    }
    td_staged sdy, sy;
    const void *gradient = td_stage_in_like(&sdy, dy, dx), *from = td_stage_in_like(&sy, y, dx);
    cut c = cut_along(dx, dim);
    td_cuda_launch_softmax_grad(dx->dtype, c.outer, c.d, c.inner, td_ptr(dx), gradient, from, log,
                                accumulate, td_cuda_stream(dx));
    td_cuda_launched("softmax_grad");
    td_stage_end(&sy, &sdy);
}

/* ---- cross-entropy ---- */

/* What both passes take; staged by the caller. */
static td_cuda_entropy entropy_of(const td_tensor *rows, const td_tensor *loss,
                                  const td_tensor *total, const td_entropy_params *params)
{
    return (td_cuda_entropy){ .rows = rows->shape[0],
                              .k = rows->shape[1],
                              .total = td_ptr(total),
                              .per_row = loss->ndim == 1,
                              .params = *params };
}

void td_cuda_cross_entropy(td_tensor *loss, td_tensor *total, td_tensor *log_p,
                           const td_tensor *logits, const td_tensor *labels,
                           const td_tensor *weight, const td_entropy_params *params)
{
    td_device device = td_device_of(logits);
    td_staged in, out, label, weights, row;
    td_cuda_entropy e = entropy_of(logits, loss, total, params);
    const void *from = td_stage_in(&in, logits, TD_ROW_MAJOR);
    e.labels = td_stage_in(&label, labels, TD_ROW_MAJOR);
    e.weight = td_stage_in(&weights, weight, TD_ROW_MAJOR);
    void *to = td_stage_out(&out, log_p, TD_ROW_MAJOR, false);
    void *result = td_stage_out(&row, loss, TD_ROW_MAJOR, false);
    double *losses = td_scratch(device, (2 * (size_t)e.rows + 1) * sizeof *losses);
    td_cuda_launch_cross_entropy(logits->dtype, &e, result, losses, to, from,
                                 td_cuda_stream(logits));
    td_cuda_launched("cross_entropy");
    td_scratch_free(device, losses);
    td_stage_end(&row, &out, &weights, &label, &in);
}

void td_cuda_cross_entropy_grad(td_tensor *dlogits, const td_tensor *dloss, const td_tensor *total,
                                const td_tensor *log_p, const td_tensor *labels,
                                const td_tensor *weight, const td_entropy_params *params,
                                bool accumulate)
{
    if (td_numel(dlogits) == 0) {
        return;
    }
    td_device device = td_device_of(dlogits);
    td_staged in, out, label, weights, row;
    td_cuda_entropy e = entropy_of(dlogits, dloss, total, params);
    const void *from = td_stage_in(&in, log_p, TD_ROW_MAJOR);
    const void *gradient = td_stage_in(&row, dloss, TD_ROW_MAJOR);
    e.labels = td_stage_in(&label, labels, TD_ROW_MAJOR);
    e.weight = td_stage_in(&weights, weight, TD_ROW_MAJOR);
    void *to = td_stage_out(&out, dlogits, TD_ROW_MAJOR, accumulate);
    bool sums = weight != NULL && params->smoothing != 0.0;
    double *sum = sums ? td_scratch(device, sizeof *sum) : NULL;
    td_cuda_launch_cross_entropy_grad(dlogits->dtype, &e, to, gradient, sum, from, accumulate,
                                      td_cuda_stream(dlogits));
    td_cuda_launched("cross_entropy_grad");
    if (sums) {
        td_scratch_free(device, sum);
    }
    td_stage_end(&out, &weights, &label, &row, &in);
}
