/* Shapes and strides: arithmetic, questions, checks. */
#include "tensor/storage.h"

/* Dimension numbers, slowest in memory first. */
typedef struct dim_order {
    int count;
    int dim[TD_MAX_DIMS];
} dim_order;

int64_t td_shape_numel(td_shape shape)
{
    int64_t numel = 1;
    bool overflow = false;
    for (int d = 0; d < shape.ndim; d++) {
        if (shape.dim[d] == 0) {
            return 0;
        }
        overflow |= __builtin_mul_overflow(numel, shape.dim[d], &numel);
    }
    return overflow ? INT64_MAX : numel;
}

bool td_shape_bytes(td_shape shape, td_dtype dtype, size_t *bytes)
{
    int64_t numel = td_shape_numel(shape);
    return numel < INT64_MAX && !__builtin_mul_overflow((size_t)numel, td_dtype_size(dtype), bytes);
}

bool td_shape_equal(td_shape a, td_shape b)
{
    bool equal = a.ndim == b.ndim;
    for (int d = 0; equal && d < a.ndim; d++) {
        equal = a.dim[d] == b.dim[d];
    }
    return equal;
}

bool td_broadcast_shape(td_shape a, td_shape b, td_shape *out)
{
    td_shape result = { .ndim = a.ndim > b.ndim ? a.ndim : b.ndim };
    for (int d = 0; d < result.ndim; d++) {
        /* Shapes are aligned at their last dimensions; what is missing in front counts as 1. */
        int in_a = d - (result.ndim - a.ndim);
        int in_b = d - (result.ndim - b.ndim);
        int64_t size_a = in_a >= 0 ? a.dim[in_a] : 1;
        int64_t size_b = in_b >= 0 ? b.dim[in_b] : 1;
        if (size_a != size_b && size_a != 1 && size_b != 1) {
            return false;
        }
        result.dim[d] = size_a != 1 ? size_a : size_b;
    }
    *out = result;
    return true;
}

/* Strides that make a shape dense in a memory order. They may overflow for shapes that no memory
 * can hold, which creation refuses afterwards. */
static void dense_strides(td_shape shape, dim_order order, int64_t *stride)
{
    int64_t step = 1;
    for (int i = order.count - 1; i >= 0; i--) {
        int d = order.dim[i];
        stride[d] = step;
        (void)__builtin_mul_overflow(step, shape.dim[d] > 1 ? shape.dim[d] : 1, &step);
    }
}

static dim_order row_major(int ndim)
{
    _Static_assert(TD_MAX_DIMS == 8, "the order of each dimension");
    return (dim_order){ .count = ndim, .dim = { 0, 1, 2, 3, 4, 5, 6, 7 } };
}

/* The memory order of a layout: see td_layout. CPU: images [H][W][N][C], filters [H][W][I][O], so
 * that a convolution is a sum of matrix products over its taps; CUDA: what tensor cores read,
 * [N][H][W][C] and [O][H][W][I]. */
static dim_order layout_order(td_device device, td_layout layout, int ndim)
{
    bool cpu = device.type == TD_DEVICE_CPU;
    if (layout == TD_IMAGE && ndim == 4) {
        return cpu ? (dim_order){ 4, { 2, 3, 0, 1 } } : (dim_order){ 4, { 0, 2, 3, 1 } };
    }
    if (layout == TD_FILTER && ndim == 4) {
        return cpu ? (dim_order){ 4, { 2, 3, 1, 0 } } : (dim_order){ 4, { 0, 2, 3, 1 } };
    }
    if (layout == TD_FILTER && ndim == 2 && cpu) {
        return (dim_order){ 2, { 1, 0 } };
    }
    return row_major(ndim);
}

void td_layout_strides(td_device device, td_layout layout, td_shape shape, int64_t *stride)
{
    dense_strides(shape, layout_order(device, layout, shape.ndim), stride);
}

/* The memory order of a tensor: by falling stride, equal ones as in the shape. */
static dim_order memory_order(const td_tensor *t)
{
    dim_order order = { .count = t->ndim };
    for (int d = 0; d < t->ndim; d++) {
        int at = d;
        while (at > 0 && t->stride[order.dim[at - 1]] < t->stride[d]) {
            order.dim[at] = order.dim[at - 1];
            at--;
        }
        order.dim[at] = d;
    }
    return order;
}

static bool is_expanded(const td_tensor *t)
{
    for (int d = 0; d < t->ndim; d++) {
        if (t->stride[d] == 0 && t->shape[d] > 1) {
            return true;
        }
    }
    return false;
}

void td_strides_like(const td_tensor *t, int64_t *stride)
{
    dim_order order = is_expanded(t) ? row_major(t->ndim) : memory_order(t);
    dense_strides(td_shape_of(t), order, stride);
}

/* ---- questions about a tensor; strides of dimensions of size 1 never matter ---- */

td_shape td_shape_of(const td_tensor *t)
{
    td_shape shape = { .ndim = t->ndim };
    for (int d = 0; d < t->ndim; d++) {
        shape.dim[d] = t->shape[d];
    }
    return shape;
}

td_device td_device_of(const td_tensor *t)
{
    return t->storage->device;
}

int64_t td_numel(const td_tensor *t)
{
    int64_t numel = 1;
    for (int d = 0; d < t->ndim; d++) {
        numel *= t->shape[d];
    }
    return numel;
}

static bool same_strides(const td_tensor *t, const int64_t *stride)
{
    for (int d = 0; d < t->ndim; d++) {
        if (t->shape[d] > 1 && t->stride[d] != stride[d]) {
            return false;
        }
    }
    return true;
}

bool td_is_layout(const td_tensor *t, td_layout layout)
{
    const dim_order order = layout_order(t->storage->device, layout, t->ndim);
    bool is = true;
    int64_t step = 1; /* as dense_strides has it; 0 once a dimension is empty */
    for (int i = order.count - 1; i >= 0; i--) {
        int d = order.dim[i];
        is = is && (t->shape[d] <= 1 || t->stride[d] == step);
        (void)__builtin_mul_overflow(step, t->shape[d], &step);
    }
    return is || step == 0;
}

bool td_is_contiguous(const td_tensor *t)
{
    return td_is_layout(t, TD_ROW_MAJOR);
}

bool td_is_dense(const td_tensor *t)
{
    int64_t stride[TD_MAX_DIMS];
    td_strides_like(t, stride);
    return td_numel(t) == 0 || same_strides(t, stride);
}

bool td_same_shape(const td_tensor *a, const td_tensor *b)
{
    return td_shape_equal(td_shape_of(a), td_shape_of(b));
}

bool td_same_order(const td_tensor *a, const td_tensor *b)
{
    return td_same_shape(a, b) && same_strides(a, b->stride);
}

/* ---- checks ---- */

int td_check_dim(const td_tensor *t, int dim, td_site at)
{
    TD_REQUIRE(t->ndim > 0, at, "dimension %d is out of range: %s, a scalar has no dimensions", dim,
               td_label(t));
    TD_REQUIRE(dim >= -t->ndim && dim < t->ndim, at,
               "dimension %d is out of range: %s has %d dimensions, so it can be %d to %d", dim,
               td_label(t), t->ndim, -t->ndim, t->ndim - 1);
    return dim < 0 ? dim + t->ndim : dim;
}

void td_require_shape(td_shape shape, td_site at)
{
    TD_REQUIRE(shape.ndim >= 0 && shape.ndim <= TD_MAX_DIMS, at,
               "a tensor cannot have %d dimensions: 0 to %d are possible", shape.ndim, TD_MAX_DIMS);
    for (int d = 0; d < shape.ndim; d++) {
        TD_REQUIRE(shape.dim[d] >= 0, at, "size %lld of dimension %d is negative in shape %s",
                   (long long)shape.dim[d], d, td_describe_shape(shape));
    }
}

void td_require_inside(const td_storage *storage, int64_t offset, td_shape shape,
                       const int64_t *stride, td_dtype dtype, td_site at)
{
    if (td_shape_numel(shape) == 0) {
        return;
    }
    int64_t first = offset, last = offset;
    bool overflow = false;
    for (int d = 0; d < shape.ndim; d++) {
        int64_t reach;
        overflow |= __builtin_mul_overflow(shape.dim[d] - 1, stride[d], &reach);
        int64_t *end = reach < 0 ? &first : &last;
        overflow |= __builtin_add_overflow(*end, reach, end);
    }
    int64_t count = (int64_t)(storage->bytes / td_dtype_size(dtype));
    TD_REQUIRE(!overflow && first >= 0 && last < count, at,
               "a view of shape %s and offset %lld does not fit into its storage of %lld elements",
               td_describe_shape(shape), (long long)offset, (long long)count);
}
