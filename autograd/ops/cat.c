/* Tensors side by side along one dimension. */
#include "autograd/ops/op.h"

/* The part of a whole that begins at `start` along dim and has the part's shape. */
static td_tensor part_of(const td_tensor *whole, const td_tensor *part, int dim, int64_t start)
{
    td_tensor view = *whole;
    view.shape[dim] = part->shape[dim];
    if (part->shape[dim] > 0) {
        view.offset += start * whole->stride[dim];
    }
    return view;
}

static void cat_backward(td_node *node, const td_tensor *dy)
{
    const td_cat_params *params = td_params_of(node);
    int64_t start = 0;
    for (int i = 0; i < params->count; i++) {
        const td_tensor *part = td_node_input(node, i);
        td_tensor g = part_of(dy, part, params->dim, start);
        td_input_grad_is(node, i, &g);
        start += part->shape[params->dim];
    }
}

static void cat_check(td_tensor *const *parts, int count, int *dim, td_site at)
{
    for (int i = 0; i < count; i++) {
        td_check_tensor(parts[i], "cat", "a part", at);
        td_check_match(parts[0], parts[i], "cat", at);
        if (i == 0) {
            *dim = td_check_dim(parts[0], *dim, at);
        }
        td_shape shape = td_shape_of(parts[i]);
        shape.dim[*dim] = parts[0]->shape[*dim];
        TD_REQUIRE(td_shape_equal(shape, td_shape_of(parts[0])), at,
                   "cat: part %d %s does not fit part 0 %s: all but dimension %d must be equal", i,
                   TD_SHAPE_TEXT(parts[i]), TD_SHAPE_TEXT(parts[0]), *dim);
    }
}

/* Images stay images in memory. */
static td_layout layout_of(td_tensor *const *parts, int count)
{
    for (int i = 0; i < count; i++) {
        if (parts[i]->ndim != 4 || !td_is_layout(parts[i], TD_IMAGE)) {
            return TD_ROW_MAJOR;
        }
    }
    return TD_IMAGE;
}

/* With f32 parts, bf16 parts become f32; otherwise the parts themselves. */
static td_tensor *const *of_one_dtype(td_tensor *const *parts, int count, td_site at)
{
    bool mixed = false;
    td_tensor *wide = parts[0];
    for (int i = 0; i < count; i++) {
        mixed = mixed || (parts[i] != NULL && parts[i]->dtype != parts[0]->dtype);
        wide = parts[i] != NULL && parts[i]->dtype == TD_F32 ? parts[i] : wide;
    }
    if (!mixed) {
        return parts;
    }
    td_tensor **same = td_step_bytes((size_t)count * sizeof *same);
    for (int i = 0; i < count; i++) {
        same[i] = parts[i];
        if (same[i] != NULL) {
            td_op_promote(&same[i], &wide, at);
        }
    }
    return same;
}

td_tensor *td_cat_at(td_tensor *const *parts, int count, int dim, td_site at)
{
    TD_REQUIRE(parts != NULL && count > 0, at, "cat: there is nothing to put together");
    if (parts[0] != NULL) {
        parts = of_one_dtype(parts, count, at);
    }
    cat_check(parts, count, &dim, at);
    td_shape shape = td_shape_of(parts[0]);
    for (int i = 1; i < count; i++) {
        shape.dim[dim] += parts[i]->shape[dim];
    }
    td_device device = td_device_of(parts[0]);
    td_tensor *y = td_step_new(shape, parts[0]->dtype, layout_of(parts, count), device, at);
    int64_t start = 0;
    for (int i = 0; i < count; i++) {
        td_tensor view = part_of(y, parts[i], dim, start);
        td_kernels_of(device)->copy(&view, parts[i]);
        start += parts[i]->shape[dim];
    }
    return TD_RECORD(at, .op = "cat", .backward = cat_backward, .out = y, .input_list = parts,
                     .input_count = count, TD_PARAMS(&(td_cat_params){ dim, count }));
}
