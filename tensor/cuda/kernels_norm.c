/* Batch normalisation. Images in CUDA's order, or [N,C], are matrices with a row for each pixel of
 * each image; other orders are copied first. */
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/kernels_norm.h"
#include "tensor/cuda/kernels_pool.h"

td_cuda_channel td_cuda_channel_of(const td_tensor *t)
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

td_cuda_sums td_cuda_sums_of(const td_cuda_matrix *m, double *total, td_device device)
{
    return (td_cuda_sums){
        .partial = td_scratch(device, (size_t)(m->chunks * 2 * m->channels) * sizeof(double)),
        .counters = td_cuda_counters(device, m->tiles),
        .total = total,
    };
}

/* ---- forward ---- */

/* The mean of each channel of x, and the sum of squares about it: memory of the caller's to free.
 */
static double *cuda_norm_find_moments(const td_tensor *like, const void *x)
{
    td_device device = td_device_of(like);
    int64_t channels = like->shape[1];
    double *moments = td_scratch(device, (size_t)(2 * channels) * sizeof *moments);
    td_cuda_matrix m = td_cuda_matrix_of(td_numel(like) / channels, channels, like->dtype,
                                         fits_packs(x), TD_CUDA_MATRIX_SUMS);
    td_cuda_sums sums = td_cuda_sums_of(&m, moments, device);
    td_cuda_launch_channel_sums(&m, &sums, x, td_cuda_stream(like));
    td_scratch_free(device, sums.partial);
    return moments;
}

static td_cuda_norm cuda_norm_describe(const td_batch_norm_args *a, const double *moments)
{
    return (td_cuda_norm){
        .training = a->training,
        .statistics = moments,
        .weight = td_cuda_channel_of(a->weight),
        .bias = td_cuda_channel_of(a->bias),
        .running_mean = td_cuda_channel_of(a->running_mean),
        .running_var = td_cuda_channel_of(a->running_var),
        .mean = td_cuda_channel_of(a->mean),
        .inv_std = td_cuda_channel_of(a->inv_std),
        .eps = a->eps,
        .momentum = a->momentum,
        .affine = a->affine ? td_ptr(a->affine) : NULL,
    };
}

static void normalize(const td_batch_norm_args *a, const td_cuda_norm *norm, void *y,
                      uint8_t *index, const void *x, const void *add)
{
    td_device device = td_device_of(a->x);
    cudaStream_t stream = td_cuda_stream(a->x);
    int64_t channels = a->x->shape[1];
    bool packs = fits_packs(x) && fits_packs(add) && fits_packs(y) && (uintptr_t)index % 8 == 0;
    td_cuda_matrix m = td_cuda_matrix_of(td_numel(a->x) / channels, channels, a->x->dtype, packs,
                                         TD_CUDA_MATRIX_ELEMENTS);
    bool empty = m.rows == 0; /* evaluation's constants are made all the same */
    if (empty || a->max_pool) {
        void *constants = td_scratch(device, (size_t)(3 * channels) * constant_size(m.dtype));
        td_cuda_launch_norm_prepare(&m, norm, constants, stream);
        if (!empty) {
            td_cuda_pool pool = td_cuda_pool_of(a->x, a->y, a->max_pool);
            td_cuda_launch_normalize_pool(&m, y, index, x, constants, &pool, stream);
        }
        td_scratch_free(device, constants);
    } else {
        td_cuda_launch_normalize(&m, norm, y, x, add, a->activation, stream);
    }
}

void td_cuda_batch_norm(const td_batch_norm_args *a)
{
    if (a->x->shape[1] == 0 || (td_numel(a->x) == 0 && a->training)) {
        return; /* an empty batch has no statistics */
    }
    td_staged sx, sadd, sy, sindex;
    const void *x = td_stage_in(&sx, a->x, TD_IMAGE);
    const void *add = td_stage_in(&sadd, a->add, TD_IMAGE);
    void *y = td_stage_out(&sy, a->y, TD_IMAGE, false);
    uint8_t *index = td_stage_out(&sindex, a->max_pool ? a->index : NULL, TD_IMAGE, false);
    double *moments = a->training ? cuda_norm_find_moments(a->x, x) : NULL;
    td_cuda_norm norm = cuda_norm_describe(a, moments);
    normalize(a, &norm, y, index, x, add);
    td_cuda_launched("batch_norm");
    td_scratch_free(td_device_of(a->x), moments);
    td_stage_end(&sindex, &sy, &sadd, &sx);
}

/* ---- the gradient ---- */

void td_cuda_norm_clear(td_tensor *t, bool accumulate)
{
    if (t && !accumulate) {
        td_cuda_fill(t, 0.0);
    }
}

static td_cuda_mask cuda_norm_mask_of(const td_batch_norm_grad_args *a)
{
    if (a->activation == TD_NORM_LINEAR || a->max_pool) { /* then relu's mask is in the index */
        return TD_CUDA_MASK_NONE;
    }
    if (a->activation == TD_NORM_GELU) {
        return TD_CUDA_MASK_GELU;
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
        g = scratch = td_scratch(td_device_of(a->x), td_tensor_bytes(a->x));
    }
    td_cuda_pool pool = td_cuda_pool_of(a->x, a->dy, a->max_pool);
    td_cuda_launch_max_pool_grad(&pool, g, dy, index, false, td_cuda_stream(a->x));
    td_stage_end(&sindex, &sdy);
    grad->dy = g;
    return scratch;
}

/* The passes, over staged memory. */
static void cuda_norm_run_grad(const td_batch_norm_grad_args *a, td_cuda_norm_grad *grad)
{
    td_device device = td_device_of(a->x);
    cudaStream_t stream = td_cuda_stream(a->x);
    int64_t channels = a->x->shape[1];
    void *pooled = a->max_pool ? gather_pooled(a, grad) : NULL;
    bool packs = fits_packs(grad->dy) && fits_packs(grad->x) && fits_packs(grad->y) &&
                 fits_packs(grad->dx) && fits_packs(grad->dadd);
    int64_t rows = td_numel(a->x) / channels;
    td_cuda_matrix m = td_cuda_matrix_of(rows, channels, a->x->dtype, packs, TD_CUDA_MATRIX_SUMS);
    grad->constants = td_scratch(device, (size_t)(3 * channels) * constant_size(m.dtype));
    if ((a->training && a->dx) || a->dweight || a->dbias) {
        grad->sums = td_cuda_sums_of(&m, NULL, device);
    }
    grad->early_dadd =
        grad->sums.partial && grad->mask == TD_CUDA_MASK_Y && grad->dadd && !grad->accumulate_dadd;
    td_cuda_launch_norm_grad_sums(&m, grad, stream);
    if (grad->early_dadd) {
        grad->mask = TD_CUDA_MASK_NONE;
        grad->dy = grad->dadd;
        grad->dadd = NULL;
    }
    if (grad->dx || grad->dadd) {
        m = td_cuda_matrix_of(rows, channels, a->x->dtype, packs, TD_CUDA_MATRIX_ELEMENTS);
        td_cuda_launch_norm_grad_apply(&m, grad, stream);
    }
    td_cuda_launched("batch_norm_grad");
    td_scratch_free(device, grad->sums.partial);
    td_scratch_free(device, grad->constants);
    td_scratch_free(device, pooled);
}

void td_cuda_batch_norm_grad(const td_batch_norm_grad_args *a)
{
    if (td_numel(a->x) == 0) { /* sums of nothing */
        td_cuda_norm_clear(a->dbias, a->accumulate_dbias);
        td_cuda_norm_clear(a->dweight, a->accumulate_dweight);
        return;
    }
    td_cuda_mask mask = cuda_norm_mask_of(a);
    td_staged sdy, sx, sy, sdx, sdadd;
    td_cuda_norm_grad grad = {
        .mask = mask,
        .dy = td_stage_in(&sdy, a->max_pool ? NULL : a->dy, TD_IMAGE),
        .x = td_stage_in(&sx, a->x, TD_IMAGE),
        .y = td_stage_in(&sy, mask == TD_CUDA_MASK_Y ? a->y : NULL, TD_IMAGE),
        .mean = td_cuda_channel_of(a->mean),
        .inv_std = td_cuda_channel_of(a->inv_std),
        .weight = td_cuda_channel_of(a->weight),
        .affine = a->affine ? td_ptr(a->affine) : NULL,
        .training = a->training,
        .dx = td_stage_out(&sdx, a->dx, TD_IMAGE, a->accumulate_dx),
        .dadd = td_stage_out(&sdadd, a->dadd, TD_IMAGE, a->accumulate_dadd),
        .accumulate_dx = a->dx && a->accumulate_dx,
        .accumulate_dadd = a->dadd && a->accumulate_dadd,
        .dweight = td_cuda_channel_of(a->dweight),
        .dbias = td_cuda_channel_of(a->dbias),
        .accumulate_dweight = a->accumulate_dweight,
        .accumulate_dbias = a->accumulate_dbias,
    };
    cuda_norm_run_grad(a, &grad);
    td_stage_end(&sdadd, &sdx, &sy, &sx, &sdy);
}
