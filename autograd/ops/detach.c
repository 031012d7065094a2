/* The same memory without its history: gradients do not flow through. */
#include "autograd/ops/op.h"

td_tensor *td_detach_at(td_tensor *x, td_site at)
{
    td_check_tensor(x, "detach", "x", at);
    return td_step_view(x, x->offset, td_shape_of(x), x->stride, at);
}
