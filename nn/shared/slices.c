/* Slices of tensors: which part of a whole parameter this rank has. */
#include "nn/shared/slices.h"

#include "nn/internal.h"
#include "tensor/storage.h"

void td_module_set_slicing(td_module *model, td_slicing *slicing)
{
    static const td_slicing_type type = { td_cut_of,     td_cut_whole,   td_cut_copy,
                                          td_cut_gather, td_slicing_add, td_slicing_total };
    if (slicing != NULL) {
        slicing->type = &type;
    }
    td_node_of(model)->slicing = slicing;
    if (td_node_of(model)->params != NULL) {
        td_node_of(model)->params->slicing = slicing;
    }
}

const td_cut *td_cut_of(const td_slicing *slicing, const td_tensor *parameter)
{
    for (int i = 0; slicing != NULL && i < slicing->count; i++) {
        if (slicing->cuts[i].tensor == parameter) {
            return &slicing->cuts[i];
        }
    }
    return NULL;
}

td_run td_cut_piece(const td_cut *cut, int part, int piece, int pieces)
{
    int64_t begin = 0, count = cut->parts[part] / pieces;
    for (int p = 0; p < part; p++) {
        begin += cut->parts[p];
    }
    return (td_run){ begin + piece * count, count };
}

td_run td_cut_here(const td_slicing *slicing, const td_cut *cut, int part, int s)
{
    td_run first = td_cut_piece(cut, part, 0, slicing->slices);
    return (td_run){ first.begin / slicing->ranks + s * first.count, first.count };
}

td_tensor td_cut_view(const td_tensor *t, int dim, td_run run)
{
    td_tensor view = *t;
    view.offset += run.begin * t->stride[dim];
    view.shape[dim] = run.count;
    return view;
}

td_shape td_cut_whole(const td_slicing *slicing, const td_cut *cut)
{
    td_shape shape = td_shape_of(cut->tensor);
    shape.dim[cut->dim] *= slicing->ranks;
    return shape;
}

void td_cut_copy(const td_slicing *slicing, const td_cut *cut, int rank, const td_tensor *whole,
                 const td_tensor *slice, bool put)
{
    for (int p = 0; p < TD_CUT_PARTS; p++) {
        td_run there = td_cut_piece(cut, p, rank, slicing->ranks);
        td_run here = td_cut_piece(cut, p, 0, slicing->ranks);
        here.begin /= slicing->ranks;
        td_tensor a = td_cut_view(whole, cut->dim, there);
        td_tensor b = td_cut_view(slice, cut->dim, here);
        if (here.count > 0) {
            td_copy_(put ? &a : &b, put ? &b : &a);
        }
    }
}

td_status td_cut_gather(const td_slicing *slicing, const td_cut *cut, const td_tensor *slice,
                        const td_tensor *whole)
{
    if (slicing->ranks == 1) {
        td_cut_copy(slicing, cut, 0, whole, slice, true);
        return TD_OK;
    }
    td_shape shape = td_shape_of(slice);
    td_device device = td_device_of(slice);
    td_tensor *mine = td_new(shape, slice->dtype, device);
    td_tensor *all = td_new(TD_SHAPE(slicing->ranks, td_shape_numel(shape)), slice->dtype, device);
    td_status status = mine != NULL && all != NULL ? TD_OK : TD_E_NOMEM;
    status = slicing->agree(status, slicing->user);
    if (status == TD_OK) {
        td_copy_(mine, slice);
        status = slicing->all_gather(all, mine, slicing->user);
    }
    for (int r = 0; status == TD_OK && r < slicing->ranks; r++) {
        td_tensor one;
        td_init_header(&one, all->storage, all->offset + r * all->stride[0], shape, mine->stride,
                       slice->dtype);
        td_cut_copy(slicing, cut, r, whole, &one, true);
    }
    td_free(mine);
    td_free(all);
    return status;
}

bool td_slicing_add(const td_slicing *slicing, const td_tensor *parameter, const td_tensor *grad,
                    td_part_sum of, double p)
{
    const td_cut *cut = td_cut_of(slicing, parameter);
    int here = slicing->slices / slicing->ranks;
    double *sums = slicing->sums + slicing->rank * here;
    if (cut == NULL) {
        return false;
    }
    if (!td_same_shape(grad, parameter)) { /* a window goes across slices */
        sums[0] += of(grad, p);
        return true;
    }
    for (int k = 0; k < here * TD_CUT_PARTS; k++) {
        td_run run = td_cut_here(slicing, cut, k % TD_CUT_PARTS, k / TD_CUT_PARTS);
        td_tensor view = td_cut_view(grad, cut->dim, run);
        sums[k / TD_CUT_PARTS] += run.count > 0 ? of(&view, p) : 0.0;
    }
    return true;
}

double td_slicing_total(const td_slicing *slicing)
{
    double total = 0.0;
    slicing->sum(slicing->sums, slicing->slices, slicing->user);
    for (int s = 0; s < slicing->slices; s++) {
        total += slicing->sums[s];
        slicing->sums[s] = 0.0;
    }
    return total;
}
