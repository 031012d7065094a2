/* Batch normalisation. Images in CUDA's order, or [N,C], are matrices with a row for each pixel of
 * each picture; other orders are copied first. */
#include "tensor/cuda/cuda.h"
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/kernels_pool.h"
#include "tensor/cuda/launch_norm.h"
#include "tensor/staged.h"
#include "tensor/extend.h"

static td_cuda_channel channel_of(const td_tensor *t)
{
    return t ? (td_cuda_channel){ td_ptr(t), t->stride[0], t->dtype == TD_F64 }
             : (td_cuda_channel){ NULL, 0, false };
}

static bool fits_packs(const void *address)
{
    return (uintptr_t)address % 16 == 0;
}

/* Bytes of what is there per channel. */
static size_t constant_size(td_dtype dtype)
{
    return dtype == TD_F64 ? sizeof(double) : sizeof(float);
}

/* Room for each chunk's two numbers per channel. */
static double *take_partial(const td_cuda_matrix *m, td_device device)
{
    return td_scratch(device, (size_t)(m->chunks * 2 * m->channels) * sizeof(double));
}

/* ---- sums of what a convolution has written ---- */

void td_cuda_channel_stats(td_tensor *stats, const td_tensor *y)
{
    if (td_numel(y) == 0) {
        td_cuda_fill(stats, 0.0);
        return;
    }
    td_device device = td_device_of(y);
    cudaStream_t stream = td_cuda_stream(y);
    int64_t channels = y->shape[1];
    td_staged sy, out;
    const void *data = td_stage_in(&sy, y, TD_IMAGE);
    double *sums = td_stage_out(&out, stats, TD_ROW_MAJOR, false);
    td_cuda_matrix m =
        td_cuda_matrix_of(td_numel(y) / channels, channels, y->dtype, fits_packs(data));
    double *partial = take_partial(&m, device);
    td_cuda_launch_channel_sums(&m, partial, data, stream);
    td_cuda_launch_add_chunks(&m, sums, partial, stream);
    td_cuda_launched("conv2d");
    td_scratch_free(device, partial);
    td_stage_end(&out);
    td_stage_end(&sy);
}

/* ---- forward ---- */

/* Statistics and constants: T [3][channels], the caller's to free. */
static void *prepare(const td_batch_norm_args *a, const td_cuda_matrix *m, const void *x)
{
    td_device device = td_device_of(a->x);
    cudaStream_t stream = td_cuda_stream(a->x);
    td_staged ssums;
    td_cuda_norm norm = {
        .training = a->training,
        .sums = td_stage_in(&ssums, a->training ? a->sums : NULL, TD_ROW_MAJOR),
        .weight = channel_of(a->weight),
        .bias = channel_of(a->bias),
        .running_mean = channel_of(a->running_mean),
        .running_var = channel_of(a->running_var),
        .mean = channel_of(a->mean),
        .inv_std = channel_of(a->inv_std),
        .eps = a->eps,
        .momentum = a->momentum,
        .constants = td_scratch(device, (size_t)(3 * m->channels) * constant_size(m->dtype)),
        .affine = a->affine ? td_ptr(a->affine) : NULL,
    };
    double *partial = NULL;
    if (a->training && !a->sums) {
        partial = take_partial(m, device);
        td_cuda_launch_moments(m, partial, x, stream);
        norm.partial = partial;
    }
    td_cuda_launch_norm_prepare(m, &norm, stream);
    td_scratch_free(device, partial);
    td_stage_end(&ssums);
    return norm.constants;
}

void td_cuda_batch_norm(const td_batch_norm_args *a)
{
    td_device device = td_device_of(a->x);
    cudaStream_t stream = td_cuda_stream(a->x);
    int64_t channels = a->x->shape[1], numel = td_numel(a->x);
    if (channels == 0 || (numel == 0 && a->training)) { /* an empty batch has no statistics */
        return;
    }
    td_staged sx, sadd, sy, sindex;
    const void *x = td_stage_in(&sx, a->x, TD_IMAGE);
    const void *add = td_stage_in(&sadd, a->add, TD_IMAGE);
    void *y = td_stage_out(&sy, a->y, TD_IMAGE, false);
    uint8_t *index = td_stage_out(&sindex, a->max_pool ? a->index : NULL, TD_IMAGE, false);
    bool packs = fits_packs(x) && fits_packs(add) && fits_packs(y) && (uintptr_t)index % 8 == 0;
    td_cuda_matrix m = td_cuda_matrix_of(numel / channels, channels, a->x->dtype, packs);
    void *constants = prepare(a, &m, x);
    if (numel > 0 && a->max_pool) {
        td_cuda_pool pool = td_cuda_pool_of(a->x, a->y, a->max_pool);
        td_cuda_launch_normalize_pool(&m, y, index, x, constants, &pool, stream);
    } else if (numel > 0) {
        td_cuda_launch_normalize(&m, y, x, constants, add, a->relu, stream);
    }
    td_cuda_launched("batch_norm");
    td_scratch_free(device, constants);
    td_stage_end(&sindex);
    td_stage_end(&sy);
    td_stage_end(&sadd);
    td_stage_end(&sx);
}

/* ---- the gradient ---- */

static void clear(td_tensor *t, bool accumulate)
{
    if (t && !accumulate) {
        td_cuda_fill(t, 0.0);
    }
}

static td_cuda_mask mask_of(const td_batch_norm_grad_args *a)
{
    if (!a->relu || a->max_pool) { /* then relu's mask is in the index */
        return TD_CUDA_MASK_NONE;
    }
    return a->affine ? TD_CUDA_MASK_X : TD_CUDA_MASK_Y;
}

/* The gradient of what was pooled becomes dy: in dx, if that is to be overwritten, which the last
 * pass then does, or in scratch memory, which is returned. */
static void *gather_pooled(const td_batch_norm_grad_args *a, td_cuda_norm_grad *grad)
{
    td_staged sdy, sindex;
    const void *dy = td_stage_in(&sdy, a->dy, TD_IMAGE);
    const uint8_t *index = td_stage_in(&sindex, a->index, TD_IMAGE);
    void *scratch = NULL, *g = grad->dx;
    if (!grad->dx || grad->accumulate_dx) {
        g = scratch =
            td_scratch(td_device_of(a->x), (size_t)td_numel(a->x) * td_dtype_size(a->x->dtype));
    }
    td_cuda_pool pool = td_cuda_pool_of(a->x, a->dy, a->max_pool);
    td_cuda_launch_max_pool_grad(&pool, g, dy, index, false, td_cuda_stream(a->x));
    td_stage_end(&sindex);
    td_stage_end(&sdy);
    grad->dy = g;
    return scratch;
}

/* The passes, over staged memory. */
static void run_grad(const td_batch_norm_grad_args *a, td_cuda_norm_grad *grad)
{
    td_device device = td_device_of(a->x);
    cudaStream_t stream = td_cuda_stream(a->x);
    int64_t channels = a->x->shape[1];
    void *pooled = a->max_pool ? gather_pooled(a, grad) : NULL;
    bool packs = fits_packs(grad->dy) && fits_packs(grad->x) && fits_packs(grad->y) &&
                 fits_packs(grad->dx) && fits_packs(grad->dadd);
    td_cuda_matrix m = td_cuda_matrix_of(td_numel(a->x) / channels, channels, a->x->dtype, packs);
    grad->constants = td_scratch(device, (size_t)(3 * channels) * constant_size(m.dtype));
    if ((a->training && a->dx) || a->dweight || a->dbias) {
        grad->partial = take_partial(&m, device);
        td_cuda_launch_norm_grad_sums(&m, grad, stream);
    }
    td_cuda_launch_norm_grad_prepare(&m, grad, stream);
    if (grad->dx || grad->dadd) {
        td_cuda_launch_norm_grad_apply(&m, grad, stream);
    }
    td_cuda_launched("batch_norm_grad");
    td_scratch_free(device, grad->partial);
    td_scratch_free(device, grad->constants);
    td_scratch_free(device, pooled);
}

void td_cuda_batch_norm_grad(const td_batch_norm_grad_args *a)
{
    if (td_numel(a->x) == 0) { /* sums of nothing */
        clear(a->dbias, a->accumulate_dbias);
        clear(a->dweight, a->accumulate_dweight);
        return;
    }
    td_cuda_mask mask = mask_of(a);
    td_staged sdy, sx, sy, sdx, sdadd;
    td_cuda_norm_grad grad = {
        .mask = mask,
        .dy = td_stage_in(&sdy, a->max_pool ? NULL : a->dy, TD_IMAGE),
        .x = td_stage_in(&sx, a->x, TD_IMAGE),
        .y = td_stage_in(&sy, mask == TD_CUDA_MASK_Y ? a->y : NULL, TD_IMAGE),
        .mean = channel_of(a->mean),
        .inv_std = channel_of(a->inv_std),
        .weight = channel_of(a->weight),
        .affine = a->affine ? td_ptr(a->affine) : NULL,
        .training = a->training,
        .dx = td_stage_out(&sdx, a->dx, TD_IMAGE, a->accumulate_dx),
        .dadd = td_stage_out(&sdadd, a->dadd, TD_IMAGE, a->accumulate_dadd),
        .accumulate_dx = a->dx && a->accumulate_dx,
        .accumulate_dadd = a->dadd && a->accumulate_dadd,
        .dweight = channel_of(a->dweight),
        .dbias = channel_of(a->dbias),
        .accumulate_dweight = a->accumulate_dweight,
        .accumulate_dbias = a->accumulate_dbias,
    };
    run_grad(a, &grad);
    td_stage_end(&sdadd);
    td_stage_end(&sdx);
    td_stage_end(&sy);
    td_stage_end(&sx);
    td_stage_end(&sdy);
}
