/* Batch normalisation over [N,C] or [N,C,H,W], per channel, with an optional addition and
 * activation in the same pass: y = act((x - mean) * inv_std * weight + bias [+ add]). */
#include "autograd/fused.h"
#include "autograd/ops/op.h"

enum { X, WEIGHT, BIAS, ADD, INPUTS }; /* inputs */
enum { SAVED_X, SAVED_Y, SAVED_WEIGHT, SAVED_MEAN, SAVED_INV_STD, SAVED_MASK, SAVED };

/* dx may be written over dy, because the kernel reads an element of dy for the last time before it
 * writes the same element of dx. keeps_dy: not so, because dy itself is the addend's gradient. */
static td_op_gradient begin_dx(td_node *node, const td_tensor *dy, bool keeps_dy)
{
    td_grad_slot slot = keeps_dy ? td_input_grad(node, X) : td_input_grad_over(node, X, dy);
    return (td_op_gradient){ slot.grad, slot.accumulate, false };
}

static void batch_norm_backward(td_node *node, const td_tensor *dy)
{
    const td_batch_norm_params *params = td_params_of(node);
    td_op_gradient g[INPUTS];
    bool add_is_dy = params->activation == TD_NORM_LINEAR; /* dy is the gradient of the addend */
    g[X] = begin_dx(node, dy, add_is_dy && td_input_needs_grad(node, ADD));
    for (int i = X + 1; i < INPUTS; i++) {
        bool skip = i == ADD && add_is_dy;
        g[i] = skip ? (td_op_gradient){ NULL, false, false }
                    : td_op_grad_begin(node, i, td_node_input(node, i), !td_op_repeats(node, i));
    }
    td_kernels_for(dy)->batch_norm_grad(&(td_batch_norm_grad_args){
        .dy = dy,
        .x = td_saved(node, SAVED_X),
        .y = td_saved(node, SAVED_Y),
        .affine = params->pools ? NULL : td_saved(node, SAVED_MASK),
        .max_pool = params->pools ? &params->max_pool : NULL,
        .index = params->pools ? td_saved(node, SAVED_MASK) : NULL,
        .weight = td_saved(node, SAVED_WEIGHT),
        .mean = td_saved(node, SAVED_MEAN),
        .inv_std = td_saved(node, SAVED_INV_STD),
        .activation = params->activation,
        .training = params->training,
        .dx = g[X].grad,
        .dweight = g[WEIGHT].grad,
        .dbias = g[BIAS].grad,
        .dadd = g[ADD].grad,
        .accumulate_dx = g[X].accumulate,
        .accumulate_dweight = g[WEIGHT].accumulate,
        .accumulate_dbias = g[BIAS].accumulate,
        .accumulate_dadd = g[ADD].accumulate,
    });
    for (int i = 0; i < INPUTS; i++) {
        td_op_grad_end(node, i, &g[i]);
    }
    if (add_is_dy) {
        td_input_grad_is(node, ADD, dy);
    }
}

/* Of parameters and statistics. */
static td_dtype channel_dtype(const td_tensor *x)
{
    return x->dtype == TD_F64 ? TD_F64 : TD_F32;
}

static void check_channel(const td_tensor *x, const td_tensor *t, const char *what, td_site at)
{
    if (t == NULL) {
        return;
    }
    td_check_tensor(t, "batch_norm", what, at);
    TD_REQUIRE(t->dtype == channel_dtype(x) && td_same_device(td_device_of(x), td_device_of(t)), at,
               "batch_norm: %s is %s; beside x (%s) it must be %s and on the same device", what,
               td_describe(t), td_describe(x), td_dtype_name(channel_dtype(x)));
    TD_REQUIRE(t->ndim == 1 && t->shape[0] == x->shape[1], at,
               "batch_norm: %s%s does not fit x%s: it must be [channels] ([%lld])", what,
               TD_SHAPE_TEXT(t), TD_SHAPE_TEXT(x), (long long)x->shape[1]);
}

static void batch_norm_check(const td_batch_norm_args *args, td_site at)
{
    const td_tensor *x = args->x;
    TD_REQUIRE(x->ndim == 2 || x->ndim == 4, at, "batch_norm: x%s must be [N,C] or [N,C,...]",
               TD_SHAPE_TEXT(x));
    check_channel(x, args->weight, "weight", at);
    check_channel(x, args->bias, "bias", at);
    check_channel(x, args->running_mean, "running_mean", at);
    check_channel(x, args->running_var, "running_var", at);
    if (args->add != NULL) {
        td_check_float(args->add, "batch_norm", "add", at);
        td_check_match(x, args->add, "batch_norm", at);
        TD_REQUIRE(td_same_shape(x, args->add), at, "batch_norm: add%s must have the shape of x%s",
                   TD_SHAPE_TEXT(args->add), TD_SHAPE_TEXT(x));
    }
    TD_REQUIRE(args->activation != TD_NORM_GELU || args->add == NULL, at,
               "batch_norm: gelu goes without add");
    bool tracked = args->running_mean != NULL && args->running_var != NULL;
    if (!args->training) {
        TD_REQUIRE(tracked, at, "batch_norm: evaluation needs running_mean and running_var");
        return;
    }
    int64_t n = x->shape[1] > 0 ? td_numel(x) / x->shape[1] : 0;
    TD_REQUIRE(n > 1, at,
               "batch_norm: x%s has %lld value%s per channel; training needs at least two to have "
               "a variance (a larger batch, or drop_last in the loader)",
               TD_SHAPE_TEXT(x), (long long)n, n == 1 ? "" : "s");
}

/* Makes the results, and what backward needs for the activation's slope. With max_pool this is the
 * index. Otherwise, without an addend, it is the scale and the shift of each channel (affine), by
 * which backward computes the activation's input again. With an addend it is y. */
static void new_results(td_batch_norm_args *args, td_tensor *x, const td_batch_norm_fusion *o,
                        td_batch_norm_params *params, td_site at)
{
    td_device device = td_device_of(x);
    td_dtype dtype = channel_dtype(x);
    int64_t channels = x->shape[1];
    args->mean = td_step_new(TD_SHAPE(channels), dtype, TD_ROW_MAJOR, device, at);
    args->inv_std = td_step_new(TD_SHAPE(channels), dtype, TD_ROW_MAJOR, device, at);
    if (o->max_pool != NULL) {
        TD_REQUIRE(o->activation == TD_NORM_RELU && o->add == NULL, at,
                   "batch_norm: max_pool goes with relu and without add");
        params->pools = true;
        params->max_pool = td_op_max_pool_params(x, o->max_pool, "batch_norm", at);
        args->max_pool = &params->max_pool;
        args->y = td_op_pool_output(x, args->max_pool, x->dtype, "batch_norm", at);
        args->index = td_grad_enabled()
                          ? td_op_pool_output(x, args->max_pool, TD_U8, "batch_norm", at)
                          : NULL;
        return;
    }
    if (o->over_x && !td_grad_enabled() && !td_debug_nan()) { /* its check reads x */
        td_begin_write(x, "batch_norm", at);
        args->y = x;
    } else {
        args->y = td_step_new_like(x, at);
    }
    if (o->activation != TD_NORM_LINEAR && o->add == NULL) {
        args->affine = td_step_new(TD_SHAPE(2, channels), dtype, TD_ROW_MAJOR, device, at);
    }
}

td_tensor *td_batch_norm_addend(const td_tensor *x, td_tensor *add, td_site at)
{
    bool casts = add != NULL && add->dtype != x->dtype && x->dtype != TD_F64 &&
                 (add->dtype == TD_F32 || td_is_half(add->dtype));
    return casts ? td_cast_at(add, x->dtype, at) : add;
}

td_tensor *td_batch_norm_fused_at(td_batch_norm_options options, td_batch_norm_fusion fusion,
                                  td_site at)
{
    td_tensor *x = td_op_input(options.x, "batch_norm", "x", TD_RULE_OF(batch_norm), at);
    td_tensor *add = fusion.add = td_batch_norm_addend(x, fusion.add, at);
    td_batch_norm_args args = {
        .x = x,
        .weight = options.weight,
        .bias = options.bias,
        .add = add,
        .activation = fusion.activation,
        .training = options.training,
        .eps = td_or_usual(options.eps, 1e-5),
        .momentum = td_or_usual(options.momentum, 0.1),
        .running_mean = options.running_mean,
        .running_var = options.running_var,
    };
    batch_norm_check(&args, at);
    if (options.training && options.running_mean != NULL) {
        td_begin_write(options.running_mean, "batch_norm", at);
    }
    if (options.training && options.running_var != NULL) {
        td_begin_write(options.running_var, "batch_norm", at);
    }
    td_batch_norm_params params = { .training = options.training,
                                    .activation = fusion.activation,
                                    .eps = args.eps };
    new_results(&args, x, &fusion, &params, at);
    td_kernels_for(x)->batch_norm(&args);
    bool reads_y = fusion.activation != TD_NORM_LINEAR && add != NULL;
    return TD_RECORD(at, .op = "batch_norm", .backward = batch_norm_backward, .out = args.y,
                     .inputs = { x, options.weight, options.bias, add },
                     .saved = { x, reads_y ? args.y : NULL, options.weight, args.mean, args.inv_std,
                                params.pools ? args.index : args.affine },
                     .reads = { options.running_mean, options.running_var }, TD_PARAMS(&params));
}

td_shape td_batch_norm_images(const td_tensor *x)
{
    if (x->ndim < 3) {
        return td_shape_of(x);
    }
    td_shape images = TD_SHAPE(x->shape[0], x->shape[1], x->shape[2], 1);
    for (int d = 3; d < x->ndim; d++) {
        images.dim[3] *= x->shape[d];
    }
    return images;
}

td_tensor *td_batch_norm_at(td_batch_norm_options options, td_site at)
{
    td_tensor *x = options.x;
    bool reshapes = x != NULL && !td_shape_equal(td_batch_norm_images(x), td_shape_of(x));
    options.x = reshapes ? td_reshape_at(x, td_batch_norm_images(x), at) : x;
    td_tensor *y = td_batch_norm_fused_at(options, (td_batch_norm_fusion){ .add = NULL }, at);
    return reshapes ? td_reshape_at(y, td_shape_of(x), at) : y;
}
