/* BatchNorm2d and LayerNorm. */
#include "nn/layer.h"
#include "autograd/tape.h"
#include "tensor/hooks.h"
#include "tensor/system/number.h"

#include <string.h>

/* ---- BatchNorm2d ---- */

typedef struct batch_norm_state {
    int64_t channels;
    double eps, momentum;
    td_tensor *weight, *bias, *running_mean, *running_var; /* weight NULL: it is 1 */
    td_tensor *batches; /* i64: how many were counted; NULL: momentum is a number */
    td_batch_norm_override override;
} batch_norm_state;

/* The momentum for the next batch that makes the running statistics averages over all batches. */
static double cumulative_momentum(td_tensor *batches)
{
    td_not_recordable("a cumulative BatchNorm: the host counts its batches");
    double count = td_item(batches) + 1.0;
    td_fill_(batches, count);
    return 1.0 / count;
}

static td_tensor *layer_norm_normalise(td_module *bn, td_tensor *x, td_batch_norm_fusion fusion,
                                       td_site at)
{
    const batch_norm_state *s = bn->state;
    /* A second forward of the same batch (td_recompute) must not count it twice. */
    bool counted = bn->training && td_recomputing();
    td_batch_norm_options options = {
        .x = x,
        .weight = s->weight,
        .bias = s->bias,
        .running_mean = counted ? NULL : s->running_mean,
        .running_var = counted ? NULL : s->running_var,
        .training = bn->training,
        .eps = s->eps,
        .momentum = s->momentum,
    };
    if (s->batches != NULL && bn->training && !counted) {
        options.momentum = cumulative_momentum(s->batches);
    }
    return s->override.normalise != NULL
               ? s->override.normalise(s->override.user, options, fusion, at)
               : td_batch_norm_fused_at(options, fusion, at);
}

/* The same for x of any shape [N,C,...]. */
static td_tensor *normalise_any(td_module *bn, td_tensor *x, td_batch_norm_fusion fusion,
                                td_site at)
{
    td_shape shape = td_shape_of(x), images = td_batch_norm_images(x);
    if (td_shape_equal(images, shape)) {
        return layer_norm_normalise(bn, x, fusion, at);
    }
    fusion.add = fusion.add != NULL ? td_reshape_at(fusion.add, images, at) : NULL;
    td_tensor *y = layer_norm_normalise(bn, td_reshape_at(x, images, at), fusion, at);
    return td_reshape_at(y, shape, at);
}

static td_tensor *batch_norm_forward(td_module *self, td_tensor *x, td_site at)
{
    return normalise_any(self, x, (td_batch_norm_fusion){ .add = NULL }, at);
}

static void batch_norm_describe(const td_module *self, char *text, size_t size)
{
    const batch_norm_state *s = self->state;
    double eps = td_or_usual(s->eps, 1e-5), momentum = td_or_usual(s->momentum, 0.1);
    char eps_text[40] = "", momentum_text[40] = "";
    if (eps != 1e-5) {
        td_snprintf(eps_text, sizeof eps_text, ", eps %g", eps);
    }
    if (momentum != 0.1) {
        td_snprintf(momentum_text, sizeof momentum_text, ", momentum %g", momentum);
    }
    snprintf(text, size, "%lld%s%s%s%s", (long long)s->channels,
             s->weight == NULL ? ", no weight" : "", eps_text, momentum_text,
             s->batches != NULL ? ", cumulative" : "");
}

static void batch_norm_free(td_module *self)
{
    const batch_norm_state *s = self->state;
    if (s->override.free != NULL) {
        s->override.free(s->override.user);
    }
}

/* Fails if the normalisation was exchanged (SyncBatchNorm): its owner does not know the copy. */
static td_status batch_norm_copy(td_module *to, const td_module *from)
{
    const batch_norm_state *s = from->state;
    ((batch_norm_state *)to->state)->override = (td_batch_norm_override){ .user = NULL };
    TD_CHECK(s->override.normalise == NULL, TD_E_UNSUPPORTED,
             "%s: a BatchNorm2d with statistics of its own kind cannot be copied; copy "
             "the model before it is converted",
             td_node_of(from)->label);
    return TD_OK;
}

static const td_module_type batch_norm_type = {
    .name = "BatchNorm2d",
    .forward = batch_norm_forward,
    .free = batch_norm_free,
    .describe = batch_norm_describe,
    .copy = batch_norm_copy,
};

void td_batch_norm2d_set_override(td_module *m, td_batch_norm_override override)
{
    TD_REQUIRE(td_is_batch_norm2d(m), TD_HERE,
               "td_batch_norm2d_set_override: the module is a %s, not a BatchNorm2d",
               m->type->name);
    batch_norm_free(m);
    ((batch_norm_state *)m->state)->override = override;
}

td_batch_norm_override td_batch_norm2d_override(const td_module *m)
{
    return ((const batch_norm_state *)m->state)->override;
}

bool td_has_batch_norm_override(td_module *model)
{
    bool found = false;
    for (const td_module *m = model; m != NULL; m = td_module_next(model, m)) {
        found |= td_is_batch_norm2d(m) && td_batch_norm2d_override(m).normalise != NULL;
    }
    return found;
}

bool td_is_batch_norm2d(const td_module *m)
{
    return m->type == &batch_norm_type;
}

td_tensor *td_nn_batch_norm2d_fused(td_module *bn, td_tensor *x, td_tensor *add,
                                    td_norm_activation activation, td_site at)
{
    TD_REQUIRE(bn != NULL && td_is_batch_norm2d(bn), at,
               "td_nn_batch_norm2d_fused: the module is %s, not a BatchNorm2d",
               bn == NULL ? "NULL" : bn->type->name);
    if (td_is_surrounded(bn)) {
        td_tensor *y = td_forward_at(bn, x, at);
        y = add != NULL ? td_add_at(y, add, at) : y;
        return activation == TD_NORM_RELU   ? td_relu_at(y, at)
               : activation == TD_NORM_GELU ? td_gelu_at(y, at)
                                            : y;
    }
    td_context_push(td_node_of(bn)->label);
    td_batch_norm_fusion fusion = { .activation = activation, .add = add };
    td_tensor *y = normalise_any(bn, x, fusion, at);
    td_context_pop();
    return y;
}

td_tensor *td_nn_conv2d_batch_norm(td_module *conv, td_module *bn, td_tensor *x,
                                   const td_nn_batch_norm_then *then, td_site at)
{
    static const td_nn_batch_norm_then nothing;
    TD_REQUIRE(conv != NULL && td_is_conv2d(conv) && bn != NULL && td_is_batch_norm2d(bn), at,
               "td_nn_conv2d_batch_norm: the modules are %s and %s, not a Conv2d and a BatchNorm2d",
               conv == NULL ? "NULL" : conv->type->name, bn == NULL ? "NULL" : bn->type->name);
    then = then != NULL ? then : &nothing;
    bool plain = ((const batch_norm_state *)bn->state)->override.normalise == NULL;
    bool pools = then->max_pool != NULL && plain && then->activation == TD_NORM_RELU &&
                 then->add == NULL && td_max_pool2d_window(then->max_pool) != NULL &&
                 !td_is_surrounded(then->max_pool);
    int64_t scope = td_scope_begin();
    if (td_is_surrounded(conv) || td_is_surrounded(bn)) { /* one by one */
        td_tensor *y = td_forward_at(conv, x, at);
        y = td_nn_batch_norm2d_fused(bn, y, then->add, then->activation, at);
        y = then->max_pool != NULL ? td_forward_at(then->max_pool, y, at) : y;
        td_scope_end(scope, y);
        return y;
    }
    td_tensor *y = td_conv2d_module_run(conv, x, at);
    td_batch_norm_fusion fusion = {
        .activation = then->activation,
        .add = then->add,
        .over_x = true, /* nobody else has seen y */
        .max_pool = pools ? td_max_pool2d_window(then->max_pool) : NULL,
    };
    td_context_push(td_node_of(bn)->label);
    td_tensor *normal = layer_norm_normalise(bn, y, fusion, at);
    td_context_pop();
    if (then->max_pool != NULL && !pools) {
        normal = td_forward_at(then->max_pool, normal, at);
    }
    td_scope_end(scope, normal);
    return normal;
}

td_module *td_nn_batch_norm2d_at(td_nn_batch_norm2d_options options, td_site at)
{
    int64_t channels = options.channels;
    TD_REQUIRE(channels > 0, at, "td_nn_batch_norm2d(%lld): there must be a channel",
               (long long)channels);
    TD_REQUIRE(options.eps >= 0.0 && options.momentum >= 0.0 && options.momentum <= 1.0, at,
               "td_nn_batch_norm2d: eps %g must not be negative, momentum %g must be in [0, 1]",
               options.eps, options.momentum);
    TD_REQUIRE(!options.cumulative || options.momentum == 0.0, at,
               "td_nn_batch_norm2d: give .momentum (%g) or .cumulative, not both",
               options.momentum);
    batch_norm_state s = { .channels = channels, .eps = options.eps, .momentum = options.momentum };
    td_shape shape = TD_SHAPE(channels);
    td_module *m = td_module_new(&batch_norm_type, sizeof s);
    td_layer_scales(m, options.no_weight ? NULL : &s.weight, &s.bias, shape);
    s.running_mean = td_module_buffer(m, "running_mean", td_zeros(shape, TD_F32, TD_CPU));
    s.running_var = td_module_buffer(m, "running_var", td_full(shape, 1.0, TD_F32, TD_CPU));
    if (options.cumulative) {
        s.batches = td_module_buffer(m, "num_batches_tracked", td_zeros(TD_SCALAR, TD_I64, TD_CPU));
    }
    return td_module_finish_with(m, &s);
}

/* ---- LayerNorm ---- */

/* Options of the operation tell how many dimensions; the shape is for messages. */
typedef struct layer_norm_state {
    td_layer_norm_options options;
    td_shape shape;
} layer_norm_state;

static void layer_norm_describe(const td_module *self, char *text, size_t size)
{
    const layer_norm_state *s = self->state;
    snprintf(text, size, s->shape.ndim == 1 ? "%.*s" : "[%.*s]",
             (int)strlen(td_describe_shape(s->shape)) - 2, td_describe_shape(s->shape) + 1);
}

TD_LAYER(layer_norm, td_layer_norm_options, x, "LayerNorm", .describe = layer_norm_describe);

td_module *td_nn_layer_norm_at(td_nn_layer_norm_options o, td_site at)
{
    TD_REQUIRE((o.features > 0) != (o.shape.ndim > 0), at,
               "td_nn_layer_norm(%lld): there must be a feature, or a .shape instead",
               (long long)o.features);
    td_shape shape = o.features > 0 ? TD_SHAPE(o.features) : o.shape;
    layer_norm_state s = {
        .options = { .eps = o.eps, .dims = shape.ndim, .for_products = o.for_products },
        .shape = shape
    };
    td_module *m = td_module_new(&layer_norm_type, sizeof s);
    td_layer_scales(m, o.no_weight ? NULL : &s.options.weight,
                    o.no_weight || o.no_bias ? NULL : &s.options.bias, shape);
    return td_module_finish_with(m, &s);
}
