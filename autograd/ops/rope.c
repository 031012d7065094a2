/* Rotary position embedding: pairs of elements turn by an angle that grows with the position. */
#include "autograd/ops/elements.h"
#include "autograd/ops/op.h"
#include "autograd/ops/shapes.h"

/* 0, 1, 2, ... of f32 */
static td_tensor *counted(int64_t n, td_device device, td_dtype dtype, td_site at)
{
    td_tensor *ones = td_step_new(TD_SHAPE(n), dtype, TD_ROW_MAJOR, device, at);
    td_kernels_of(device)->fill(ones, 1.0);
    return td_add_scalar_at(td_cumsum_at(ones, 0, at), -1.0, at);
}

/* The angles [T,1,h/2]. */
static td_tensor *angles(const td_tensor *x, const td_rope_params *p, td_dtype dtype, td_site at)
{
    td_device device = td_device_of(x);
    int64_t tokens = x->shape[1], pairs = x->shape[3] / 2;
    double step = -log(p->base) / (double)pairs;
    td_tensor *position = td_add_scalar_at(counted(tokens, device, dtype, at), (double)p->past, at);
    position = td_mul_scalar_at(position, p->scale, at);
    td_tensor *frequency =
        td_exp_at(td_mul_scalar_at(counted(pairs, device, dtype, at), step, at), at);
    return td_mul_at(td_reshape_at(position, TD_SHAPE(tokens, 1, 1), at), frequency, at);
}

static td_tensor *rope_composed(td_tensor *x, const td_rope_params *p, td_site at)
{
    td_dtype dtype = x->dtype == TD_F64 ? TD_F64 : TD_F32;
    td_tensor *angle = angles(x, p, dtype, at),
              *wide = td_op_input(x, "rope", "x", TD_RULE_IS_WIDENS, at);
    td_tensor *c = td_cos_at(angle, at), *s = td_sin_at(angle, at);
    int64_t width = x->shape[3], step = p->interleaved ? 2 : 1,
            half = p->interleaved ? width : width / 2;
    td_tensor *x0 = td_slice_at(wide, 3, 0, half, step, at);
    td_tensor *x1 = td_slice_at(wide, 3, p->interleaved ? 1 : half, width, step, at);
    td_tensor *parts[2] = {
        td_sub_at(td_mul_at(x0, c, at), td_mul_at(x1, s, at), at),
        td_add_at(td_mul_at(x1, c, at), td_mul_at(x0, s, at), at),
    };
    td_tensor *y = p->interleaved ? td_reshape_at(td_stack_at(parts, 2, 4, at), td_shape_of(x), at)
                                  : td_cat_at(parts, 2, 3, at);
    return td_is_half(x->dtype) ? td_cast_at(y, x->dtype, at) : y;
}

static void rope_backward(td_node *node, const td_tensor *dy)
{
    td_rope_params params = *(const td_rope_params *)td_params_of(node);
    td_grad_slot dx = td_input_grad(node, 0);
    params.backwards = true;
    td_kernels_for(dy)->rope(dx.grad, dy, &params, dx.accumulate);
}

td_tensor *td_rope_at(td_rope_options o, td_site at)
{
    td_tensor *x = td_op_input(o.x, "rope", "x", TD_RULE_OF(rope), at);
    TD_REQUIRE(x->ndim == 4 && x->shape[3] > 0 && x->shape[3] % 2 == 0, at,
               "rope: x%s must be [B,T,heads,width] with an even width", TD_SHAPE_TEXT(x));
    TD_REQUIRE(o.past >= 0 && o.base >= 0.0 && o.scale >= 0.0, at,
               "rope: past is %lld, the base %g, the scale %g; they must not be negative",
               (long long)o.past, o.base, o.scale);
    td_rope_params params = { .past = o.past,
                              .base = td_or_usual(o.base, 10000.0),
                              .scale = td_or_usual(o.scale, 1.0),
                              .interleaved = o.interleaved };
    if (td_operations_observed()) {
        return rope_composed(x, &params, at);
    }
    td_tensor *y = td_op_new(td_shape_of(x), x->dtype, x, at);
    td_kernels_for(x)->rope(y, x, &params, false);
    return TD_RECORD(at, .op = "rope", .backward = rope_backward, .out = y, .inputs = { x },
                     TD_PARAMS(&params));
}
