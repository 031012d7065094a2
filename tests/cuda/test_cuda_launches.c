/* How many launches a training step on a GPU makes, and how many bytes they move, without a GPU:
 * the kernels that nvcc has compiled are counted instead of run (tests/count/). A step may move
 * little more than its operations must:
 *
 *     operation    forward                  backward
 *     conv2d,      x, w, y once each        for dx: dy, w, dx; for dw: dy, x, dw; for a bias: dy
 *     linear
 *     batch_norm   x twice (statistics,     dy and x twice (sums, then dx), dx once
 *                  then y), y once
 *       + add      add                      y once and dadd once: the masked dy, which is written
 *                                           when the sums are made, and read instead of dy then
 *       + pool     y and its index are      dy and its index are small
 *                  small
 *       + gelu     nothing more             nothing more: the slope is computed from x
 *     others       x and y                  dy, dx and what the slope reads: a pool's index, x
 *
 * in the dtypes that the operations have: dw is f32. Products read weights in 16 bits. SGD with
 * momentum moves 22 bytes a parameter: weight and momentum are read and written, the gradient is
 * read, and the weight is written in 16 bits, too, as the next step's products read it. */
#include "tests/count/count.h"
#include "tests/autograd/ops_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#if TD_HAVE_CUDA && !TD_EMULATED

#include "autograd/hooks.h"
#include "autograd/ops/params.h"
#include "autograd/tape.h"
#include "examples/speedrun/airbench.h"
#include "tandem.h"
#include "tensor/extend.h"

/* ---- what a step must move ---- */

typedef struct minimum {
    double bytes;
    char unknown[64]; /* an operation that the table does not have */
} minimum;

static double bytes_of(const td_tensor *t)
{
    return t != NULL ? (double)td_numel(t) * (double)td_dtype_size(t->dtype) : 0;
}

static double product(const td_record_args *a)
{
    double x = bytes_of(a->inputs[0]), w = 2.0 * (double)td_numel(a->inputs[1]);
    double y = bytes_of(a->out), dw = bytes_of(a->inputs[1]);
    bool for_x = td_needs_grad(a->inputs[0]), for_w = td_needs_grad(a->inputs[1]);
    bool bias = a->inputs[2] != NULL && td_needs_grad(a->inputs[2]);
    return (1 + for_x) * (x + w + y) + for_w * (x + dw + y) + (bias ? y : 0);
}

static double batch_norm(const td_record_args *a)
{
    const td_batch_norm_params *params = a->params;
    double x = bytes_of(a->inputs[0]), add = bytes_of(a->inputs[3]);
    double y = bytes_of(a->out) + (params->pools ? (double)td_numel(a->out) : 0); /* and index */
    return 2 * x + add + y + 2 * (y + x) + x + (add > 0 ? y + add : 0);
}

static double others(const td_record_args *a)
{
    double x = bytes_of(a->inputs[0]), y = bytes_of(a->out), reads = 0;
    for (int i = 0; i < TD_MAX_SAVED; i++) {
        reads += a->saved[i] == NULL || i > 0 ? 0 : bytes_of(a->saved[i]);
    }
    return x + y + (td_needs_grad(a->inputs[0]) ? y + x + reads : 0);
}

/* Views, and what is small beside the images: logits, losses. */
static double nothing(const td_record_args *a)
{
    (void)a;
    return 0;
}

static void add_operation(const td_record_args *args, td_site at, void *user)
{
    static const struct {
        const char *op;
        double (*bytes)(const td_record_args *args);
    } table[] = {
        { "conv2d", product },
        { "linear", product },
        { "batch_norm", batch_norm },
        { "max_pool2d", others },
        { "global_avg_pool2d", others },
        { "gelu", others },
        { "relu", others },
        { "cast", others },
        { "flatten", nothing },
        { "reshape", nothing },
        { "mul_scalar", nothing },
        { "cross_entropy", nothing },
    };
    (void)at;
    minimum *sum = user;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (strcmp(table[i].op, args->op) == 0) {
            sum->bytes += table[i].bytes(args);
            return;
        }
    }
    snprintf(sum->unknown, sizeof sum->unknown, "%s", args->op);
}

/* ---- the step ---- */

typedef struct job {
    td_module *net;
    td_optim *optim;
    td_tensor *x, *y; /* images or tokens, and labels */
} job;

static void step(job *j, td_operation_fn observe, void *user)
{
    td_step_begin();
    td_observe_operations(observe, user);
    td_tensor *loss = j->x->dtype == TD_I64 ? td_forward2(j->net, j->x, j->y)
                                            : td_cross_entropy(td_forward(j->net, j->x), j->y);
    td_observe_operations(NULL, NULL);
    td_zero_grad(j->optim);
    td_backward(loss);
    td_optim_step(j->optim);
    td_step_end();
}

/* What must not grow: launches; bytes as a multiple of the minimum; elements of the largest launch
 * that converts or transposes one by one. */
typedef struct bounds {
    int launches;
    double bytes;
    int64_t scalars;
} bounds;

enum { WARM_UP = 5 };

static void end_job(const job *j)
{
    td_optim_free(j->optim);
    td_module_free(j->net);
    td_free(j->x);
    td_free(j->y);
}

static void check(td_module *net, int64_t batch, int64_t size, bounds most)
{
    td_device device;
    assert_int_equal(td_device_parse("cuda:0", &device), TD_OK);
    td_set_math((td_math){ .precision = TD_PRECISION_BF16 });
    assert_non_null(net);
    assert_int_equal(td_module_to(net, device, TD_F32), TD_OK);
    job j = {
        .net = net,
        .x = td_new_layout(TD_SHAPE(batch, 3, size, size), TD_F32, TD_IMAGE, device),
        .y = td_new(TD_SHAPE(batch), TD_I64, device),
        .optim = td_sgd(td_parameters(net), .lr = 0.01, .momentum = 0.9, .weight_decay = 1e-4,
                        .nesterov = true),
    };
    for (int i = 0; i < WARM_UP; i++) {
        step(&j, NULL, NULL);
    }
    minimum least = { .bytes = 22.0 * (double)td_parameter_count(net) };
    count_begin();
    step(&j, add_operation, &least);
    count_totals counted = count_end();
    count_print();
    print_message("# %d launches, %.1f MB, %.3f of the minimum (%.1f MB); scalars: %lld %s\n",
                  counted.launches, counted.bytes / 1e6, counted.bytes / least.bytes,
                  least.bytes / 1e6, (long long)counted.most_scalars, counted.scalar);
    assert_string_equal(counted.unknown, "");
    assert_string_equal(least.unknown, "");
    assert_int_equal(counted.waits, 0);
    assert_true(counted.launches <= most.launches);
    assert_true(counted.bytes <= most.bytes * least.bytes);
    assert_true(counted.most_scalars <= most.scalars);
    end_job(&j);
}

/* The bounds are the numbers that were counted: larger ones are a regression. */

static void test_resnet18(void **state)
{
    (void)state;
    check(td_model("resnet18", .classes = 10), 256, 32, (bounds){ 178, 1.119, 1 });
}

static void test_resnet50(void **state)
{
    (void)state;
    check(td_model("resnet50", .classes = 1000), 128, 224, (bounds){ 442, 1.049, 1 });
}

static void test_airbench94(void **state)
{
    (void)state;
    check(airbench_new(10), 1024, 32, (bounds){ 77, 1.013, 1 });
}

/* ---- GPT-2, 124M but for the number of its layers: 16 sequences of 1,024 tokens ---- */

/* What a step must move. r: a matrix of rows x width in 16 bits; w: width x width weights likewise.
 * The residual and its gradient are f32, and so are the gradients of weights; products read 16
 * bits. Forward and backward of a layer, in the order of the model:
 *
 *     a norm         x 2r, y r                        dy r, x 2r, the residual's gradient 2 x 2r
 *     c_attn         x r, y 3r, w 3                   dx: 3r + 3w + r; dw: r + 3r + 6w; db: 3r
 *     attention      q, k, v 3r, y r                  q, k, v 3r, y r, dy r, dq, dk, dv 3r
 *     c_proj         x r, w 1, residual 2r, y 2r      dy 2r, and r in 16 bits; dx: 2r + w;
 *                                                     dw: 2r + 2w; db from the same dy
 *     c_fc           x r, y 4r, w 4                   dx: 4r + 4w + r; dw: 5r + 8w; db: 4r
 *     gelu           8r                               12r
 *     mlp's c_proj   x 4r, w 4, residual 2r, y 2r     dy 3r; dx: 5r + 4w; dw: 5r + 8w
 *
 * The rest: rows of the table (f32) and their sum with positions, and the gradient of both; the
 * last norm; the head, whose logits are written, read for the loss, become their gradient, and are
 * a factor of two products; AdamW, 30 bytes a parameter. */
static double gpt_minimum(int layers, const td_module *net)
{
    const double rows = 16.0 * 1024, width = 768, words = 50257;
    double r = 2 * rows * width, w = 2 * width * width, logits = 2 * rows * words;
    double head = 2 * words * width, norm = 3 * r + 7 * r;
    double layer = 2 * norm + (4 + 4 + 4 + 3) * r + (3 + 3 + 6) * w + (4 + 8) * r +
                   (5 + 3 + 2 + 2) * r + (1 + 1 + 2) * w + (5 + 5 + 5 + 4) * r + (4 + 4 + 8) * w +
                   (8 + 12) * r + (8 + 3 + 5 + 5) * r + (4 + 4 + 8) * w;
    double rest = 4 * r + 2 * r + norm + (r + head + logits) + logits + 2 * logits +
                  (logits + head + r) + (logits + r + 2 * head);
    return layers * layer + rest + 30.0 * (double)td_parameter_count(net);
}

typedef struct gpt_count {
    int launches;
    double bytes, least;
} gpt_count;

static gpt_count count_gpt(int layers)
{
    td_device device;
    assert_int_equal(td_device_parse("cuda:0", &device), TD_OK);
    td_set_math((td_math){ .precision = TD_PRECISION_BF16 });
    td_module *net = td_gpt(.preset = "gpt2", .layers = layers, .blank = true);
    assert_non_null(net);
    assert_int_equal(td_module_to(net, device, TD_F32), TD_OK);
    td_shape shape = TD_SHAPE(16, 1024);
    job j = { .net = net,
              .x = td_zeros(shape, TD_I64, device),
              .y = td_zeros(shape, TD_I64, device),
              .optim = td_adamw(td_parameters(net), .lr = 6e-4, .weight_decay = 0.1) };
    for (int i = 0; i < WARM_UP; i++) {
        step(&j, NULL, NULL);
    }
    count_begin();
    step(&j, NULL, NULL);
    count_totals counted = count_end();
    count_print();
    assert_string_equal(counted.unknown, "");
    assert_int_equal(counted.waits, 0);
    assert_true(counted.most_scalars <= 1);
    gpt_count all = { counted.launches, counted.bytes, gpt_minimum(layers, net) };
    end_job(&j);
    return all;
}

static void test_gpt2(void **state)
{
    (void)state;
    gpt_count two = count_gpt(2), three = count_gpt(3);
    int each = three.launches - two.launches, rest = two.launches - 2 * each;
    double layer = three.bytes - two.bytes, least = three.least - two.least;
    double whole = two.bytes + 10 * layer, whole_least = two.least + 10 * least;
    print_message("# %d launches a layer, and %d; a layer %.1f MB, %.3f of the minimum; 12 layers "
                  "%.1f MB, %.3f of the minimum\n",
                  each, rest, layer / 1e6, layer / least, whole / 1e6, whole / whole_least);
    assert_true(each <= 25 && rest <= 20);
    assert_true(layer <= 1.079 * least && whole <= 1.066 * whole_least);
}

/* ---- each operation alone ---- */

/* The operations of tests/autograd/ops_cases.def, by their first cases, that do not make one launch
 * forward and one for each gradient, and why. A check of indices is a kernel and a copy to the
 * host; a copy from one order of memory to another is a launch, too. */
static const struct exception {
    const char *op;
    int forward, backward;
    const char *why;
} exceptions[] = {
    { "add", 1, 0, "both gradients are dy" },
    { "sub", 1, 1, "the first gradient is dy" },
    { "add_scalar", 1, 0, "the gradient is dy" },
    { "relu6", 2, 2, "the case scales first" },
    { "hardsigmoid", 2, 2, "the case scales first" },
    { "hardswish", 2, 2, "the case scales first" },
    { "prelu", 1, 3, "a sum over what was broadcast" },
    { "maximum", 1, 3, "a sum over what was broadcast" },
    { "minimum", 1, 3, "a sum over what was broadcast" },
    { "pow_tensor", 1, 3, "a sum over what was broadcast" },
    { "where", 3, 4, "the case compares first; two sums over what was broadcast" },
    { "sum", 1, 0, "the gradient is dy, expanded" },
    { "sum_dim", 1, 0, "the gradient is dy, expanded" },
    { "max_dim", 2, 2, "max and its place; zeros, then dy at the place" },
    { "max", 2, 2, "max and its place; zeros, then dy at the place" },
    { "sum_dims", 1, 0, "the gradient is dy, expanded" },
    { "var", 5, 9, "composed: mean, difference, square, mean, scale" },
    { "std", 6, 10, "composed: var, square root; nothing where it is 0" },
    { "norm", 3, 5, "composed: square, sum, square root; nothing where it is 0" },
    { "conv1d", 3, 7, "copies to and from the order of images" },
    { "conv3d", 10, 10, "composed of conv2d and copies, as depth is no dimension of an image" },
    { "conv_transpose2d", 2, 3, "the bias is written first, and the product is added" },
    { "conv_transpose1d", 4, 6, "as conv_transpose2d, and copies to and from the order of images" },
    { "interpolate", 6, 2, "two products, whose matrices come from the host" },
    { "attention", 1, 2, "dq; dk and dv of all heads" },
    { "transpose", 0, 0, "a view" },
    { "permute", 0, 0, "a view" },
    { "reshape", 0, 0, "a view" },
    { "flatten", 0, 0, "a view" },
    { "slice", 0, 2, "a view; zeros, then a copy of dy" },
    { "expand", 0, 1, "a view; a sum over what was broadcast" },
    { "cat", 3, 0, "a copy of each input; gradients are views of dy" },
    { "contiguous", 1, 0, "the gradient is a view of dy" },
    { "squeeze", 0, 0, "a view" },
    { "unsqueeze", 0, 0, "a view" },
    { "stack", 3, 2, "a copy of each input; one of them comes twice" },
    { "tile", 1, 2, "two sums over what was repeated" },
    { "pad", 2, 0, "the value, then a copy; the gradient is a view of dy" },
    { "gather_dim", 3, 2, "indices are checked; zeros, then sums" },
    { "index_select", 3, 2, "indices are checked; zeros, then sums" },
    { "scatter_add", 4, 1, "indices are checked, x is copied; x's gradient is dy" },
    { "sort", 2, 2, "argsort, then gather_dim" },
    { "topk", 2, 2, "argsort, then gather_dim" },
    { "batch_norm", 2, 2, "sums over rows, then what needs them" },
    { "layer_norm", 1, 1, "all gradients in one" },
    { "group_norm", 1, 1, "all gradients in one" },
    { "instance_norm", 1, 1, "all gradients in one" },
    { "rms_norm", 1, 1, "both gradients in one" },
    { "max_pool1d", 2, 2, "a copy to the order of images" },
    { "avg_pool1d", 2, 2, "a copy to the order of images" },
    { "adaptive_avg_pool1d", 2, 2, "a copy to the order of images" },
    { "adaptive_max_pool1d", 13, 15, "the case has windows of two sizes: each is pooled alone" },
    { "dropout2d", 3, 1, "composed: ones, dropout of them, product" },
    { "stochastic_depth", 3, 1, "composed: ones, dropout of them, product" },
    { "embedding", 3, 3, "indices are checked; zeros, sorted indices, sums" },
    { "cross_entropy", 4, 1, "labels are checked; losses of rows, then their mean" },
    { "linear_cross_entropy", 5, 3, "linear, then cross_entropy" },
    { "nll_loss", 4, 1, "labels are checked; losses of rows, then their mean" },
    { "mse_loss", 3, 6, "composed: difference, square, mean" },
    { "l1_loss", 4, 2, "composed: difference, absolute value, mean" },
    { "huber_loss", 3, 3, "composed: difference, Huber, mean" },
    { "smooth_l1_loss", 4, 4, "composed: difference, Huber, scale, mean" },
    { "bce_with_logits", 6, 8, "composed: softplus of -x, x - x target, sum, mean" },
    { "kl_div", 5, 6, "composed: log of the clamped target, difference, product, mean" },
    { "cosine_similarity", 12, 20, "composed: three sums of products, two inverse lengths" },
    { "cosine_embedding_loss", 21, 25, "composed: cosine_similarity, two losses, a choice" },
    { "hinge_loss", 6, 4, "composed: product, margin, relu, mean" },
    { "hinge_embedding_loss", 8, 5, "composed: two losses, a choice, mean" },
    { "to", 3, 2, "the case computes on a CPU: copies there and back" },
};

/* Reads a value, which reports the checks of indices that have been asked for before. */
static void read_a_value(td_device device)
{
    td_tensor *zero = td_zeros(TD_SCALAR, TD_F32, device);
    assert_non_null(zero);
    (void)td_item(zero);
    td_free(zero);
}

/* The launches of a case, of inputs that are no leaves: of those, which a network has few of,
 * gradients may be copied. */
static struct exception count_case(const ops_case *c, td_device device, int *gradients)
{
    struct exception counted = { .op = c->op };
    td_tensor *leaves[OPS_MAX_INPUTS], *inputs[OPS_MAX_INPUTS];
    int count = ops_case_inputs_on(c, TD_F32, device, leaves);
    *gradients = 0;
    td_step_begin();
    for (int i = 0; i < count; i++) {
        inputs[i] = td_reshape(leaves[i], td_shape_of(leaves[i]));
        *gradients += td_is_leaf(leaves[i]);
    }
    count_begin();
    td_tensor *y = c->fn(inputs, NULL);
    counted.forward = count_end().launches;
    td_tensor *dy = td_step_new_like(y, TD_HERE);
    td_fill_(dy, 0.0);
    count_begin();
    td_backward(y, .gradient = dy);
    counted.backward = count_end().launches - *gradients; /* without the copies to the leaves */
    td_step_end();
    ops_case_free(leaves, count);
    return counted;
}

static void test_operations(void **state)
{
    (void)state;
    td_device device;
    assert_int_equal(td_device_parse("cuda:0", &device), TD_OK);
    td_set_math((td_math){ .precision = TD_PRECISION_FP32 });
    read_a_value(device);
    size_t next = 0;
    int wrong = 0;
    for (int i = 0; i < ops_case_count; i++) {
        if (strcmp(ops_cases[i].name, ops_cases[i].op) != 0) { /* another case of it */
            continue;
        }
        int gradients;
        struct exception got = count_case(&ops_cases[i], device, &gradients);
        struct exception want = { got.op, 1, gradients, "one for each gradient" };
        if (next < sizeof exceptions / sizeof *exceptions &&
            strcmp(exceptions[next].op, got.op) == 0) {
            want = exceptions[next++];
        }
        if (got.forward != want.forward || got.backward != want.backward) {
            print_message("# { \"%s\", %d, %d }, instead of %d, %d: %s\n", got.op, got.forward,
                          got.backward, want.forward, want.backward, want.why);
            wrong++;
        }
    }
    assert_int_equal(wrong, 0);
    assert_int_equal(next, sizeof exceptions / sizeof *exceptions); /* in the table's order */
}

#else

static void test_resnet18(void **state)
{
    (void)state;
    print_message(
        "# skipped: kernels that nvcc has compiled are counted: none are in this build\n");
    skip();
}
#define test_resnet50 test_resnet18
#define test_airbench94 test_resnet18
#define test_gpt2 test_resnet18
#define test_operations test_resnet18

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resnet18),   cmocka_unit_test(test_resnet50),
        cmocka_unit_test(test_airbench94), cmocka_unit_test(test_gpt2),
        cmocka_unit_test(test_operations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
