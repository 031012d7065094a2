/* Kernels that find, check or follow indices. */
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/launch_index.h"

void td_cuda_argmax(td_tensor *index, const td_tensor *x, int dim)
{
    if (td_numel(index) == 0) {
        return;
    }
    td_tensor rest = *x;
    rest.shape[dim] = 1;
    td_cuda_launch_argmax(td_ptr(index), td_ptr(x), x->dtype, x->shape[dim], x->stride[dim],
                          td_cuda_walk_of(2, (const td_tensor *[]){ index, &rest }),
                          td_cuda_stream(x));
    td_cuda_launched("argmax");
}

void td_cuda_embedding(td_tensor *y, const td_tensor *table, const td_tensor *index)
{
    if (td_numel(y) == 0) {
        return;
    }
    td_staged sy, stable, sindex;
    const int64_t *rows = td_stage_in(&sindex, index, TD_ROW_MAJOR);
    const void *from = td_stage_in(&stable, table, TD_ROW_MAJOR);
    void *to = td_stage_out(&sy, y, TD_ROW_MAJOR, false);
    td_cuda_launch_embedding(to, from, (int)td_dtype_size(table->dtype), rows, td_numel(index),
                             table->shape[0], table->shape[1], td_cuda_stream(y));
    td_cuda_launched("embedding");
    td_stage_end(&sy, &stable, &sindex);
}

void td_cuda_embedding_grad(td_tensor *dtable, const td_tensor *dy, const td_tensor *index,
                            bool accumulate)
{
    td_staged sdtable, sdy, sindex;
    const int64_t *rows = td_stage_in(&sindex, index, TD_ROW_MAJOR);
    const void *from = td_stage_in(&sdy, dy, TD_ROW_MAJOR);
    void *to = td_stage_out(&sdtable, dtable, TD_ROW_MAJOR, accumulate);
    if (!accumulate) {
        td_cuda_fill(sdtable.tensor, 0.0);
    }
    if (td_numel(dy) > 0) {
        int64_t count = td_numel(index), d = dtable->shape[1];
        size_t row = (size_t)d * td_dtype_size(dtable->dtype);
        td_device device = td_device_of(dtable);
        int64_t *sorted = td_scratch(device, 4 * (size_t)count * sizeof *sorted);
        void *partial = td_scratch(device, 2 * (size_t)td_cuda_embedding_pieces(count) * row);
        td_cuda_launch_embedding_grad(to, dtable->dtype, from, rows, count, dtable->shape[0], d,
                                      sorted, partial, td_cuda_stream(dtable));
        td_cuda_launched("embedding_grad");
        td_scratch_free(device, partial);
        td_scratch_free(device, sorted);
    }
    td_stage_end(&sdtable, &sdy, &sindex);
}

bool td_cuda_indices_in_range(const td_tensor *index, int64_t limit, int64_t *bad)
{
    int64_t count = td_numel(index), found[TD_CUDA_RANGE_BLOCKS];
    if (count == 0) {
        return true;
    }
    td_device device = td_device_of(index);
    td_staged sindex;
    const int64_t *values = td_stage_in(&sindex, index, TD_ROW_MAJOR);
    int64_t *first = td_scratch(device, sizeof found), least = count;
    td_cuda_launch_find_outside(first, values, count, limit, td_cuda_stream(index));
    td_cuda_launched("indices_in_range");
    td_cuda_fetch(device, found, first, sizeof found, "indices_in_range");
    for (int b = 0; b < TD_CUDA_RANGE_BLOCKS; b++) {
        least = found[b] < least ? found[b] : least;
    }
    if (least < count) {
        td_cuda_fetch(device, bad, values + least, sizeof *bad, "indices_in_range");
    }
    td_scratch_free(device, first);
    td_stage_end(&sindex);
    return least == count;
}

void td_cuda_count_top(td_tensor *count, const td_tensor *x, const td_tensor *labels, int64_t k)
{
    td_staged sx, slabels;
    td_device device = td_device_of(x);
    int64_t rows = x->shape[0];
    const void *values = td_stage_in(&sx, x, TD_ROW_MAJOR);
    const int64_t *wanted = td_stage_in(&slabels, labels, TD_ROW_MAJOR);
    int64_t *places = td_scratch(device, (size_t)(rows + 1) * sizeof *places);
    td_cuda_launch_count_top(td_ptr(count), places, values, x->dtype, wanted, rows, x->shape[1], k,
                             td_cuda_stream(count));
    td_cuda_launched("count_top");
    td_scratch_free(device, places);
    td_stage_end(&slabels, &sx);
}
