/* Pooling. */
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/kernels_pool.h"

td_cuda_pool td_cuda_pool_of(const td_tensor *x, const td_tensor *y, const td_pool2d_params *params)
{
    return (td_cuda_pool){
        .window = *params,
        .dtype = x->dtype,
        .n = x->shape[0],
        .h = x->shape[2],
        .w = x->shape[3],
        .c = x->shape[1],
        .oh = y->shape[2],
        .ow = y->shape[3],
    };
}

void td_cuda_max_pool2d(td_tensor *y, td_tensor *index, const td_tensor *x,
                        const td_pool2d_params *params)
{
    if (td_numel(y) == 0) {
        return;
    }
    td_staged sy, sindex, sx;
    td_cuda_pool pool = td_cuda_pool_of(x, y, params);
    const void *from = td_stage_in(&sx, x, TD_IMAGE);
    void *to = td_stage_out(&sy, y, TD_IMAGE, false);
    uint8_t *where = td_stage_out(&sindex, index, TD_IMAGE, false);
    td_cuda_launch_max_pool(&pool, to, where, from, td_cuda_stream(y));
    td_cuda_launched("max_pool2d");
    td_stage_end(&sindex, &sy, &sx);
}

void td_cuda_max_pool2d_grad(td_tensor *dx, const td_tensor *dy, const td_tensor *index,
                             const td_pool2d_params *params, bool accumulate)
{
    if (td_numel(dx) == 0) {
        return;
    }
    td_staged sdx, sdy, sindex;
    td_cuda_pool pool = td_cuda_pool_of(dx, dy, params);
    const void *from = td_stage_in(&sdy, dy, TD_IMAGE);
    const uint8_t *where = td_stage_in(&sindex, index, TD_IMAGE);
    void *to = td_stage_out(&sdx, dx, TD_IMAGE, accumulate);
    td_cuda_launch_max_pool_grad(&pool, to, from, where, accumulate, td_cuda_stream(dx));
    td_cuda_launched("max_pool2d_grad");
    td_stage_end(&sdx, &sindex, &sdy);
}

void td_cuda_avg_pool2d(td_tensor *y, const td_tensor *x, const td_pool2d_params *params)
{
    if (td_numel(y) == 0) {
        return;
    }
    td_staged sy, sx;
    td_cuda_pool pool = td_cuda_pool_of(x, y, params);
    const void *from = td_stage_in(&sx, x, TD_IMAGE);
    void *to = td_stage_out(&sy, y, TD_IMAGE, false);
    td_cuda_launch_avg_pool(&pool, to, from, td_cuda_stream(y));
    td_cuda_launched("avg_pool2d");
    td_stage_end(&sy, &sx);
}

void td_cuda_avg_pool2d_grad(td_tensor *dx, const td_tensor *dy, const td_pool2d_params *params,
                             bool accumulate)
{
    if (td_numel(dx) == 0) {
        return;
    }
    td_staged sdx, sdy;
    td_cuda_pool pool = td_cuda_pool_of(dx, dy, params);
    const void *from = td_stage_in(&sdy, dy, TD_IMAGE);
    void *to = td_stage_out(&sdx, dx, TD_IMAGE, accumulate);
    td_cuda_launch_avg_pool_grad(&pool, to, from, accumulate, td_cuda_stream(dx));
    td_cuda_launched("avg_pool2d_grad");
    td_stage_end(&sdx, &sdy);
}
