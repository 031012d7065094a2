/* The network of airbench94 (Jordan 2024, "94% on CIFAR-10 in 3.29 seconds on a single GPU"): a
 * frozen whitening convolution, then three blocks of two 3x3 convolutions that start by handing
 * their input on. */
#include "examples/speedrun/airbench.h"
#include "nn/internal.h"

#include <math.h>

enum { WHITENED = 24, PATCH = 2 };

void airbench_dirac(td_tensor *weight, int64_t filters)
{
    const int64_t *shape = weight->shape;
    filters = filters < shape[0] ? filters : shape[0];
    filters = filters < shape[1] ? filters : shape[1];
    for (int64_t o = 0; o < filters; o++) {
        for (int64_t i = 0; i < td_numel(weight) / shape[0]; i++) {
            int64_t at[] = { o, i / (shape[2] * shape[3]), i / shape[3] % shape[2], i % shape[3] };
            bool hands_on = at[1] == o && at[2] == shape[2] / 2 && at[3] == shape[3] / 2;
            td_set(weight, at, hands_on ? 1.0 : 0.0);
        }
    }
}

/* A 3x3 convolution that keeps the size; its first filters start as the identity. */
static td_module *new_conv(int64_t in, int64_t out)
{
    td_module *conv = td_nn_conv2d(in, out, .kernel = 3, .padding = 1, .no_bias = true);
    if (conv != NULL) {
        airbench_dirac(conv->tensors[0].tensor, in);
    }
    return conv;
}

/* Statistics of the last few batches; normalised without a weight. */
static td_module *new_norm(int64_t channels)
{
    return td_nn_batch_norm2d(channels, .eps = 1e-12, .momentum = 0.4, .no_weight = true);
}

typedef struct group_state {
    td_module *conv1, *pool, *norm1, *conv2, *norm2, *activ;
} group_state;

/* gelu(norm2(conv2(gelu(norm1(pool(conv1 x)))))) */
static td_tensor *group_forward(td_module *self, td_tensor *x, td_site at)
{
    const group_state *s = self->state;
    x = td_forward_at(s->pool, td_forward_at(s->conv1, x, at), at);
    td_nn_batch_norm_then then = { .activation = td_activation_of(s->activ) };
    bool fused = then.activation != TD_NORM_LINEAR; /* otherwise somebody watches activ */
    x = td_nn_batch_norm2d_fused(s->norm1, x, NULL, then.activation, at);
    x = fused ? x : td_forward_at(s->activ, x, at);
    x = td_nn_conv2d_batch_norm(s->conv2, s->norm2, x, &then, at);
    return fused ? x : td_forward_at(s->activ, x, at);
}

static const td_module_type group_type = { .name = "ConvGroup", .forward = group_forward };

static td_module *new_group(int64_t in, int64_t out)
{
    td_module *m = td_module_new(&group_type, sizeof(group_state));
    if (m == NULL) {
        return NULL;
    }
    group_state *s = m->state;
    s->conv1 = td_module_add(m, "conv1", new_conv(in, out));
    s->pool = td_module_add(m, "pool", td_nn_max_pool2d(2));
    s->norm1 = td_module_add(m, "norm1", new_norm(out));
    s->conv2 = td_module_add(m, "conv2", new_conv(out, out));
    s->norm2 = td_module_add(m, "norm2", new_norm(out));
    s->activ = td_module_add(m, "activ", td_nn_gelu());
    return td_module_finish(td_module_mark(m, TD_PART_BLOCK));
}

typedef struct airbench_state {
    td_module *whiten, *layers, *flatten, *head;
    double scale;
} airbench_state;

static td_tensor *airbench_forward(td_module *self, td_tensor *x, td_site at)
{
    const airbench_state *s = self->state;
    x = td_forward_at(s->layers, td_forward_at(s->whiten, x, at), at);
    x = td_forward_at(s->head, td_forward_at(s->flatten, x, at), at);
    return td_mul_scalar_at(x, s->scale, at);
}

static const td_module_type airbench_type = { .name = "Airbench", .forward = airbench_forward };

/* To a standard deviation (over n - 1) of 1. */
static void normalise_spread(td_tensor *weight)
{
    int64_t n = td_numel(weight);
    double sum = 0.0, squares = 0.0;
    for (int64_t i = 0; i < n; i++) {
        double value = td_get(weight, (int64_t[]){ i / weight->shape[1], i % weight->shape[1] });
        sum += value;
        squares += value * value;
    }
    double variance = (squares - sum * sum / (double)n) / (double)(n - 1);
    if (variance > 0.0) { /* not blank */
        td_no_grad_begin();
        td_mul_scalar_(weight, 1.0 / sqrt(variance));
        td_no_grad_end();
    }
}

td_module *airbench_new_at(airbench_options options, td_site at)
{
    const airbench_options *o = &options;
    int64_t classes = options.classes;
    int64_t first = o->widths[0] != 0 ? o->widths[0] : 64;
    int64_t second = o->widths[1] != 0 ? o->widths[1] : 256;
    int64_t third = o->widths[2] != 0 ? o->widths[2] : 256;
    TD_REQUIRE(classes > 0 && first > 0 && second > 0 && third > 0, at,
               "airbench_new: %lld classes and widths %lld, %lld, %lld must be positive",
               (long long)classes, (long long)first, (long long)second, (long long)third);
    td_module *m = td_module_new(&airbench_type, sizeof(airbench_state));
    if (m == NULL) {
        return NULL;
    }
    airbench_state *s = m->state;
    bool defers = td_defer_init(false); /* initialisations here read and write what was drawn */
    s->whiten = td_module_add(m, "whiten", td_nn_conv2d(3, WHITENED, .kernel = PATCH));
    s->layers = td_module_add(m, "layers",
                              td_nn_sequential(td_nn_gelu(), new_group(WHITENED, first),
                                               new_group(first, second), new_group(second, third),
                                               td_nn_max_pool2d(3)));
    td_module_mark(s->layers, TD_PART_STAGE);
    s->flatten = td_module_add(m, "flatten", td_nn_flatten());
    s->head = td_module_add(m, "head", td_nn_linear(third, classes, .no_bias = true));
    td_defer_init(defers);
    s->scale = o->unit_head ? 1.0 / (double)third : 1.0 / 9.0;
    m = td_module_finish(m);
    if (m != NULL) {
        td_requires_grad(s->whiten->tensors[0].tensor, false);
        if (o->unit_head) {
            normalise_spread(s->head->tensors[0].tensor);
        }
    }
    return m;
}

td_tensor *airbench_whiten(td_module *airbench, bool bias)
{
    TD_REQUIRE(airbench != NULL && airbench->type == &airbench_type, TD_HERE,
               "airbench_whiten: the module is %s, not an Airbench",
               airbench == NULL ? "NULL" : airbench->type->name);
    return ((const airbench_state *)airbench->state)->whiten->tensors[bias ? 1 : 0].tensor;
}
