/* Elements in order along one dimension. */
#include "autograd/ops/op.h"
#include "autograd/ops/shapes.h"

/* x (16 bits widened), and *dim counted from the front. */
static td_tensor *checked(td_tensor *x, const char *op, td_rule rule, int *dim, td_site at)
{
    td_check_tensor(x, op, "x", at);
    *dim = td_check_dim(x, *dim, at);
    return td_is_half(x->dtype) ? td_op_input(x, op, "x", rule, at) : x;
}

/* Where the elements of x are, in order. */
static td_tensor *order_of(td_tensor *x, int dim, bool descending, td_site at)
{
    td_tensor *order = td_op_new(td_shape_of(x), TD_I64, x, at);
    td_kernels_for(x)->argsort(order, x, dim, descending);
    return TD_RECORD(at, .op = "argsort", .out = order, .inputs = { x },
                     TD_PARAMS(&(td_argsort_params){ dim, descending }));
}

td_tensor *td_sort_at(td_tensor *x, int dim, bool descending, td_tensor **index, td_site at)
{
    x = checked(x, "sort", TD_RULE_OF(sort), &dim, at);
    td_tensor *order = order_of(x, dim, descending, at);
    if (index != NULL) {
        *index = order;
    }
    return td_op_gather_known(x, dim, order, at);
}

td_tensor *td_topk_at(td_tensor *x, int64_t k, int dim, td_tensor **index, td_site at)
{
    x = checked(x, "topk", TD_RULE_OF(topk), &dim, at);
    TD_REQUIRE(k >= 0 && k <= x->shape[dim], at, "topk: k is %lld along dimension %d of x%s",
               (long long)k, dim, TD_SHAPE_TEXT(x));
    td_tensor *order = td_slice_at(order_of(x, dim, true, at), dim, 0, k, 1, at);
    if (index != NULL) {
        *index = order;
    }
    return td_op_gather_known(x, dim, order, at);
}

/* n - 1 - the first of x in the opposite order */
td_tensor *td_argmax_last_at(td_tensor *x, int dim, bool keep, td_site at)
{
    x = checked(x, "argmax_last", TD_RULE_OF(argmax_last), &dim, at);
    td_tensor *from_end = td_argmax_at(td_flip_at(td_detach_at(x, at), dim, at), dim, keep, at);
    td_tensor *last = td_op_new(TD_SCALAR, TD_I64, x, at);
    td_kernels_for(x)->fill(last, (double)(x->shape[dim] - 1));
    return td_sub_at(last, from_end, at);
}
