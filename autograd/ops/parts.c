/* Sizes of 1, parts and repetitions: made of other operations, which have the gradients. */
#include "autograd/ops/op.h"
#include "autograd/ops/shapes.h"

td_tensor *td_squeeze_at(td_tensor *x, int dim, td_site at)
{
    td_check_tensor(x, "squeeze", "x", at);
    dim = td_check_dim(x, dim, at);
    TD_REQUIRE(x->shape[dim] == 1, at, "squeeze: dimension %d of x%s has not size 1", dim,
               TD_SHAPE_TEXT(x));
    return td_reshape_at(x, td_op_reduced_shape(x, TD_SHAPE(dim), false, at), at);
}

td_tensor *td_unsqueeze_at(td_tensor *x, int dim, td_site at)
{
    td_check_tensor(x, "unsqueeze", "x", at);
    TD_REQUIRE(x->ndim < TD_MAX_DIMS && dim >= -x->ndim - 1 && dim <= x->ndim, at,
               "unsqueeze: dimension %d of x%s: it must be %d to %d, and the result has at most %d",
               dim, TD_SHAPE_TEXT(x), -x->ndim - 1, x->ndim, TD_MAX_DIMS);
    dim = dim < 0 ? dim + x->ndim + 1 : dim;
    td_shape shape = { .ndim = x->ndim + 1 };
    for (int d = 0; d < shape.ndim; d++) {
        shape.dim[d] = d == dim ? 1 : x->shape[d < dim ? d : d - 1];
    }
    return td_reshape_at(x, shape, at);
}

td_tensor *td_stack_at(td_tensor *const *parts, int count, int dim, td_site at)
{
    TD_REQUIRE(parts != NULL && count > 0, at, "stack: there is nothing to put together");
    td_tensor **wide = td_step_bytes((size_t)count * sizeof *wide);
    for (int i = 0; i < count; i++) {
        td_check_tensor(parts[i], "stack", "a part", at);
        TD_REQUIRE(td_same_shape(parts[i], parts[0]), at,
                   "stack: part %d %s and part 0 %s must have one shape", i,
                   TD_SHAPE_TEXT(parts[i]), TD_SHAPE_TEXT(parts[0]));
        wide[i] = td_unsqueeze_at(parts[i], dim, at);
    }
    return td_cat_at(wide, count, dim < 0 ? dim + wide[0]->ndim : dim, at);
}

void td_split_dim_at(td_tensor *x, const int64_t *sizes, int count, int dim, td_tensor **parts,
                     td_site at)
{
    td_check_tensor(x, "split", "x", at);
    dim = td_check_dim(x, dim, at);
    int64_t begin = 0;
    for (int i = 0; i < count; i++) {
        TD_REQUIRE(sizes[i] >= 0 && sizes[i] <= x->shape[dim] - begin, at,
                   "split: part %d of %lld elements: dimension %d of x%s has %lld left", i,
                   (long long)sizes[i], dim, TD_SHAPE_TEXT(x), (long long)(x->shape[dim] - begin));
        parts[i] = td_slice_at(x, dim, begin, begin + sizes[i], 1, at);
        begin += sizes[i];
    }
    TD_REQUIRE(begin == x->shape[dim], at,
               "split: the parts have %lld elements, dimension %d of x%s", (long long)begin, dim,
               TD_SHAPE_TEXT(x));
}

void td_chunk_at(td_tensor *x, int count, int dim, td_tensor **parts, td_site at)
{
    td_check_tensor(x, "chunk", "x", at);
    dim = td_check_dim(x, dim, at);
    TD_REQUIRE(count > 0, at, "chunk: %d parts", count);
    int64_t size = x->shape[dim], each = (size + count - 1) / count;
    for (int i = 0; i < count; i++) {
        int64_t begin = i * each < size ? i * each : size;
        int64_t end = begin + each < size ? begin + each : size;
        parts[i] = td_slice_at(x, dim, begin, end, 1, at);
    }
}

td_tensor *td_tile_at(td_tensor *x, td_shape repeats, td_site at)
{
    td_check_tensor(x, "tile", "x", at);
    for (int d = 0; d < repeats.ndim; d++) {
        TD_REQUIRE(repeats.dim[d] >= 0, at, "tile: %s: a repetition is negative",
                   td_describe_shape(repeats));
    }
    TD_REQUIRE(x->ndim < TD_MAX_DIMS && repeats.ndim < TD_MAX_DIMS, at,
               "tile: x%s by %s: at most %d dimensions", TD_SHAPE_TEXT(x),
               td_describe_shape(repeats), TD_MAX_DIMS - 1);
    while (x->ndim < repeats.ndim) {
        x = td_unsqueeze_at(x, 0, at);
    }
    int missing = x->ndim - repeats.ndim;
    for (int d = 0; d < repeats.ndim; d++) { /* dimension by dimension: repeated, then joined */
        if (repeats.dim[d] != 1) {
            td_tensor *apart = td_unsqueeze_at(x, missing + d, at);
            td_shape shape = td_shape_of(apart), joined = td_shape_of(x);
            shape.dim[missing + d] = repeats.dim[d];
            joined.dim[missing + d] *= repeats.dim[d];
            x = td_reshape_at(td_expand_at(apart, shape, at), joined, at);
        }
    }
    return x;
}
