/* Modules: names, order, modes, moving, sharing, failure, and the messages of what goes wrong. */
#include "nn/internal.h"
#include "autograd/tape.h"
#include "tandem.h"
#include "tests/help/expect_fatal.h"
#include "autograd/hooks.h"
#include "nn/extra/layers.h"
#include "tensor/extend.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>

#include <cmocka.h>
#include <string.h>

static int end_step(void **state)
{
    (void)state;
    td_step_abandon();
    td_context_clear();
    return 0;
}

static void test_version(void **state)
{
    (void)state;
    assert_string_equal(td_version(), TANDEM_VERSION);
    assert_string_not_equal(td_version(), "");
}

/* ---- names ---- */

static void test_resnet_names(void **state)
{
    (void)state;
    static const char *const first[] = {
        "conv1.weight",        "bn1.weight",        "bn1.bias",
        "bn1.running_mean",    "bn1.running_var",   "layer1.0.conv1.weight",
        "layer1.0.bn1.weight", "layer1.0.bn1.bias", "layer1.0.bn1.running_mean",
    };
    td_module *net = td_model("resnet18", .classes = 10);
    td_state_list list = td_module_state(net);
    assert_int_equal(list.count, 102); /* 62 parameters, 20 layers' statistics */
    for (size_t i = 0; i < sizeof first / sizeof *first; i++) {
        assert_string_equal(list.items[i].name, first[i]);
    }
    assert_string_equal(list.items[100].name, "fc.weight");
    assert_string_equal(list.items[101].name, "fc.bias");
    assert_false(list.items[2].buffer);
    assert_true(list.items[3].buffer);
    assert_string_equal(list.items[5].tensor->name, "layer1.0.conv1.weight");
    td_state_list_free(&list);

    td_module *conv = td_module_find(net, "layer2.0.downsample.0");
    assert_non_null(conv);
    assert_string_equal(conv->type->name, "Conv2d");
    assert_null(td_module_find(net, "layer2.0.downsample.7"));
    assert_null(td_module_find(net, "layer2.0.downsample.0.weight"));
    assert_ptr_equal(td_module_find(net, ""), net);

    list = td_module_state(td_module_find(net, "layer2.0")); /* names within that part */
    assert_int_equal(list.count, 15);
    assert_string_equal(list.items[0].name, "conv1.weight");
    assert_string_equal(list.items[14].name, "downsample.1.running_var");
    td_state_list_free(&list);
    td_module_free(net);
}

static void test_resnet_sizes(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t classes;
        td_stem stem;
        int64_t parameters; /* torchvision's */
    } cases[] = {
        { "resnet18", 10, TD_STEM_IMAGENET, 11181642 },
        { "resnet18", 1000, TD_STEM_IMAGENET, 11689512 },
        { "resnet34", 1000, TD_STEM_IMAGENET, 21797672 },
        { "resnet50", 1000, TD_STEM_IMAGENET, 25557032 },
        { "resnet18", 10, TD_STEM_CIFAR, 11173962 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        td_module *net =
            td_model(cases[i].name, .classes = cases[i].classes, .stem = cases[i].stem);
        assert_int_equal(td_parameter_count(net), cases[i].parameters);
        assert_int_equal(td_module_find(net, "maxpool") != NULL, cases[i].stem == TD_STEM_IMAGENET);
        td_module_free(net);
    }
    assert_null(td_model("resnet17", .classes = 10, .stem = TD_STEM_CIFAR));
    assert_non_null(strstr(td_last_error(), "the nearest name is 'resnet18'"));
}

static void collect_paths(td_module *net, char *text)
{
    text[0] = '\0';
    for (const td_module *m = net; m != NULL; m = td_module_next(net, m)) {
        sprintf(text + strlen(text), "[%s %s]", td_module_path(net, m), m->type->name);
    }
}

static td_module *small_net(void)
{
    return td_nn_sequential(td_nn_conv2d(2, 3, .kernel = 3),
                            td_nn_sequential(td_nn_batch_norm2d(3), td_nn_relu()), td_nn_flatten(),
                            td_nn_dropout(0.5), td_nn_linear(12, 4));
}

static void test_walk(void **state)
{
    (void)state;
    td_module *net = small_net();
    char text[512];
    collect_paths(net, text);
    assert_string_equal(text, "[ Sequential][0 Conv2d][1 Sequential][1.0 BatchNorm2d][1.1 ReLU]"
                              "[2 Flatten][3 Dropout][4 Linear]");
    collect_paths(td_module_find(net, "1"), text);
    assert_string_equal(text, "[ Sequential][0 BatchNorm2d][1 ReLU]");
    collect_paths(td_module_find(net, "1.1"), text);
    assert_string_equal(text, "[ ReLU]");
    collect_paths(NULL, text);
    assert_string_equal(text, "");
    td_module_free(net);
}

/* ---- forward ---- */

static td_tensor *random_pictures(int64_t n, int64_t c, int64_t side)
{
    td_tensor *x = td_new_layout(TD_SHAPE(n, c, side, side), TD_F32, TD_IMAGE, TD_CPU);
    td_normal_(x, 0.0, 1.0, td_default_generator());
    return x;
}

static void test_layers_shapes(void **state)
{
    (void)state;
    static const struct {
        td_shape in, out;
    } cases[] = {
        { { 4, { 2, 3, 8, 6 } }, { 4, { 2, 5, 4, 7 } } }, /* conv2d */
        { { 4, { 2, 3, 8, 6 } }, { 4, { 2, 3, 4, 3 } } }, /* max pool */
        { { 4, { 2, 3, 8, 6 } }, { 4, { 2, 3, 2, 2 } } }, /* avg pool */
        { { 4, { 2, 3, 8, 6 } }, { 4, { 2, 3, 1, 1 } } }, /* global avg pool */
        { { 4, { 2, 3, 8, 6 } }, { 2, { 2, 144 } } },     /* flatten */
        { { 3, { 2, 3, 8 } }, { 3, { 2, 3, 8 } } },       /* layer norm */
        { { 2, { 2, 3 } }, { 2, { 2, 3 } } },             /* gelu */
        { { 2, { 2, 3 } }, { 2, { 2, 7 } } },             /* linear without bias */
        { { 4, { 2, 3, 8, 6 } }, { 4, { 2, 5, 8, 6 } } }, /* conv2d padded in one direction */
        { { 4, { 2, 3, 8, 6 } }, { 4, { 2, 5, 8, 6 } } }, /* and in the other */
    };
    td_module *layers[] = {
        td_nn_conv2d(3, 5, .kernel_hw = { 3, 2 }, .stride_hw = { 2, 1 }, .padding = 1),
        td_nn_max_pool2d(2),
        td_nn_avg_pool2d(3),
        td_nn_global_avg_pool2d(),
        td_nn_flatten(),
        td_nn_layer_norm(8),
        td_nn_gelu(),
        td_nn_linear(3, 7, .no_bias = true),
        td_nn_conv2d(3, 5, .kernel_hw = { 7, 1 }, .padding_hw = { 3, 0 }),
        td_nn_conv2d(3, 5, .kernel_hw = { 1, 7 }, .padding_hw = { 0, 3 }),
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        td_tensor *x = td_zeros(cases[i].in, TD_F32, TD_CPU);
        td_step_begin();
        td_tensor *y = td_forward(layers[i], x);
        assert_true(td_shape_equal(td_shape_of(y), cases[i].out));
        td_step_end();
        td_free(x);
        td_module_free(layers[i]);
    }
}

static void test_embedding(void **state)
{
    (void)state;
    td_manual_seed(1);
    td_module *m = td_nn_embedding(5, 3);
    int64_t rows[] = { 4, 0, 4 };
    td_tensor *index = td_from(rows, TD_SHAPE(3), TD_I64, TD_CPU);
    td_step_begin();
    td_tensor *y = td_forward(m, index);
    for (int64_t i = 0; i < 3; i++) {
        for (int64_t j = 0; j < 3; j++) {
            assert_true(td_get(y, (int64_t[]){ i, j }) ==
                        td_get(m->tensors[0].tensor, (int64_t[]){ rows[i], j }));
        }
    }
    td_step_end();
    td_free(index);
    td_module_free(m);
}

/* A Sequential runs BatchNorm2d and an activation in one pass; values, statistics and gradients are
 * those of the two after each other. */
static void check_sequential_fuses(td_module *(*new_activation)(void))
{
    td_manual_seed(2);
    td_module *bn = td_nn_batch_norm2d(3), *activation = new_activation();
    td_module *both = td_nn_sequential(td_nn_batch_norm2d(3), new_activation());
    td_tensor *x = random_pictures(4, 3, 5);
    td_requires_grad(x, true);
    float apart[300], fused[300], apart_dx[300], fused_dx[300], mean[2][3];

    td_step_begin();
    td_tensor *y = td_forward(activation, td_forward(bn, x));
    td_read(y, apart, TD_F32);
    td_backward(td_sum(td_mul(y, y)));
    td_read(td_grad(x), apart_dx, TD_F32);
    td_step_end();

    td_zero_grad_of(x);
    td_step_begin();
    y = td_forward(both, x);
    td_read(y, fused, TD_F32);
    td_backward(td_sum(td_mul(y, y)));
    td_read(td_grad(x), fused_dx, TD_F32);
    td_step_end();

    td_read(bn->tensors[2].tensor, mean[0], TD_F32);
    td_read(both->children[0]->tensors[2].tensor, mean[1], TD_F32);
    assert_memory_equal(apart, fused, sizeof apart);
    assert_memory_equal(mean[0], mean[1], sizeof mean[0]);
    for (int i = 0; i < 300; i++) {
        assert_float_equal(apart_dx[i], fused_dx[i], 1e-6);
    }
    td_free(x);
    td_module_free(bn);
    td_module_free(activation);
    td_module_free(both);
}

static void test_sequential_fuses(void **state)
{
    (void)state;
    check_sequential_fuses(td_nn_relu);
    check_sequential_fuses(td_nn_gelu);
}

static void test_train_and_eval(void **state)
{
    (void)state;
    td_manual_seed(3);
    td_module *net = small_net();
    td_module *bn = td_module_find(net, "1.0");
    td_tensor *x = random_pictures(6, 2, 4);
    float first[24], second[24], mean[3], later_mean[3];

    assert_true(bn->training); /* modules start in training mode */
    td_step_begin();
    td_forward(net, x);
    td_step_end();
    td_read(bn->tensors[2].tensor, mean, TD_F32);
    assert_true(mean[0] != 0.0f);

    td_eval(net);
    assert_false(bn->training);
    td_step_begin();
    td_read(td_forward(net, x), first, TD_F32);
    td_read(td_forward(net, x), second, TD_F32);
    td_step_end();
    assert_memory_equal(first, second, sizeof first); /* no dropout */
    td_read(bn->tensors[2].tensor, later_mean, TD_F32);
    assert_memory_equal(mean, later_mean, sizeof mean); /* statistics untouched */

    td_train(net);
    assert_true(bn->training);
    td_free(x);
    td_module_free(net);
}

/* Which of 256 elements a Dropout keeps. */
static void read_mask(td_module *m, const td_tensor *ones, bool kept[256])
{
    float values[256];
    td_step_begin();
    td_read(td_forward(m, (td_tensor *)(uintptr_t)ones), values, TD_F32);
    td_step_end();
    for (int i = 0; i < 256; i++) {
        assert_true(values[i] == 0.0f || values[i] == 2.0f);
        kept[i] = values[i] != 0.0f;
    }
}

static void test_dropout_streams(void **state)
{
    (void)state;
    td_tensor *ones = td_full(TD_SHAPE(256), 1.0, TD_F32, TD_CPU);
    bool masks[2][2][256];
    for (int run = 0; run < 2; run++) { /* the same seed: the same masks */
        td_manual_seed(4);
        td_module *net = td_nn_sequential(td_nn_dropout(0.5), td_nn_dropout(0.5));
        read_mask(net->children[0], ones, masks[run][0]);
        read_mask(net->children[0], ones, masks[run][1]);
        if (run == 1) {
            bool other[256];
            read_mask(net->children[1], ones, other); /* another place: another stream */
            assert_memory_not_equal(masks[0][0], other, sizeof other);
        }
        td_module_free(net);
    }
    assert_memory_equal(masks[0], masks[1], sizeof masks[0]);
    assert_memory_not_equal(masks[0][0], masks[0][1], sizeof masks[0][0]); /* call by call */

    td_manual_seed(5);
    td_module *alone = td_nn_sequential(td_nn_dropout(0.5));
    read_mask(alone->children[0], ones, masks[1][0]);
    assert_memory_not_equal(masks[0][0], masks[1][0], sizeof masks[0][0]);
    td_module_free(alone);
    td_free(ones);
}

/* ---- moving ---- */

static void test_module_to(void **state)
{
    (void)state;
    td_manual_seed(6);
    td_module *net = small_net();
    td_module *fc = td_module_find(net, "4");
    td_tensor *weight = fc->tensors[0].tensor;
    float before[48], after[48];
    td_read(weight, before, TD_F32);
    assert_int_equal(td_module_to(net, TD_CPU_N(1), TD_F64), TD_OK);
    assert_ptr_equal(fc->tensors[0].tensor, weight); /* whoever holds it sees the new one */
    assert_int_equal(weight->dtype, TD_F64);
    assert_true(td_same_device(td_device_of(weight), TD_CPU_N(1)));
    assert_true(td_is_layout(weight, TD_FILTER));
    assert_true(td_is_leaf(weight));
    assert_int_equal(fc->dtype, TD_F64);
    td_read(weight, after, TD_F32);
    assert_memory_equal(before, after, sizeof before);
    assert_int_equal(td_module_find(net, "1.0")->tensors[3].tensor->dtype, TD_F64);

    td_tensor *x = td_zeros(TD_SHAPE(2, 2, 4, 4), TD_F64, TD_CPU_N(1));
    td_step_begin();
    td_tensor *y = td_forward(net, x);
    assert_int_equal(y->dtype, TD_F64);
    td_backward(td_sum(y));
    assert_int_equal(td_grad(weight)->dtype, TD_F64);
    td_step_end();
    td_free(x);

    td_parameters(net);
    expect_fatal("before the first td_parameters", td_module_to(net, TD_CPU, TD_F32));
    expect_fatal("before the first td_parameters", td_module_to(fc, TD_CPU, TD_F32));
    expect_fatal("no float dtype", td_module_to(net, TD_CPU, TD_I64));
    td_module_free(net);
}

/* ---- sharing ---- */

/* y = second(first(x)) with one weight for both. */
typedef struct tied_state {
    td_tensor *weight;
} tied_state;

static td_tensor *tied_forward(td_module *self, td_tensor *x, td_site at)
{
    (void)at;
    return td_linear(x, ((tied_state *)self->state)->weight, NULL);
}

static const td_module_type tied_type = { .name = "Tied", .forward = tied_forward };

static td_module *tied(td_tensor *weight)
{
    td_module *m = td_module_new(&tied_type, sizeof(tied_state));
    ((tied_state *)m->state)->weight = td_module_parameter(m, "weight", weight);
    return td_module_finish(m);
}

static void test_shared_parameter(void **state)
{
    (void)state;
    td_tensor *weight = td_full(TD_SHAPE(2, 2), 0.5, TD_F32, TD_CPU);
    td_module *net = td_nn_sequential(tied(weight), tied(weight));
    td_state_list list = td_module_state(net);
    assert_int_equal(list.count, 2); /* under each of its names */
    assert_string_equal(list.items[0].name, "0.weight");
    assert_string_equal(list.items[1].name, "1.weight");
    assert_ptr_equal(list.items[0].tensor, list.items[1].tensor);
    td_state_list_free(&list);
    assert_int_equal(td_parameter_count(net), 4); /* but once */
    td_params *params = td_parameters(net);
    assert_int_equal(td_params_count(params), 1);
    assert_string_equal(td_params_get(params, 0)->name, "0.weight");

    td_tensor *x = td_full(TD_SHAPE(1, 2), 1.0, TD_F32, TD_CPU);
    td_step_begin();
    td_backward(td_sum(td_forward(net, x)));
    td_step_end();
    /* Both uses count: of the second layer, h = (1,1); of the first, w^T (1,1) x^T. */
    float grad[4];
    td_read(td_grad(weight), grad, TD_F32);
    for (int i = 0; i < 4; i++) {
        assert_true(grad[i] == 2.0f);
    }
    td_free(x);
    td_module_free(net); /* ends it once */
}

/* ---- what goes wrong ---- */

static void test_null_children(void **state)
{
    (void)state;
    td_fail(TD_OK, "%s", "");
    assert_null(td_nn_sequential(td_nn_linear(2, 2), NULL, td_nn_relu()));
    assert_string_equal(td_last_error(),
                        "Sequential: child 1 is NULL (no message: it was passed NULL)");
    td_fail(TD_E_NOMEM, "no memory for a ReLU");
    assert_null(td_nn_sequential(td_nn_linear(2, 2), NULL));
    assert_string_equal(
        td_last_error(),
        "Sequential: child 1 is NULL: its constructor failed: no memory for a ReLU");
    assert_null(td_nn_sequential(td_nn_sequential(NULL), td_nn_relu()));
    td_module *m = td_module_new(&tied_type, sizeof(tied_state));
    assert_null(td_module_parameter(m, "weight", NULL));
    assert_null(td_module_finish(m));
    assert_null(td_module_finish(NULL));
    assert_null(td_module_add(NULL, "child", td_nn_relu())); /* the child is not leaked */
    assert_null(td_module_parameter(NULL, "w", td_zeros(TD_SHAPE(1), TD_F32, TD_CPU)));
    td_module_free(NULL);
    m = td_nn_linear(2, 2);
    expect_fatal("'weight' f32[2,2] cpu:0 is not yours", td_free(m->tensors[0].tensor));
    td_module_free(m);
    expect_fatal("constructor failed", td_forward(NULL, NULL));
    expect_fatal("constructor failed", td_parameters(NULL));
    td_fail(TD_OK, "%s", "");
    expect_fatal("constructor failed (no message: it was passed NULL)", td_forward(NULL, NULL));
    expect_fatal("constructor failed (no message: it was passed NULL)", td_parameters(NULL));
}

/* ---- a forward without a result ---- */

static td_tensor *nothing_forward(td_module *self, td_tensor *x, td_site at)
{
    (void)self, (void)x, (void)at;
    return NULL;
}

static const td_module_type nothing_type = { .name = "Nothing", .forward = nothing_forward };

static void test_forward_returns_null(void **state)
{
    (void)state;
    td_module *net = td_nn_sequential(td_module_finish(td_module_new(&nothing_type, 0)),
                                      td_nn_conv2d(3, 4, .kernel = 1), td_nn_batch_norm2d(4));
    td_tensor *x = td_zeros(TD_SHAPE(1, 3, 2, 2), TD_F32, TD_CPU);
    td_step_begin();
    expect_fatal("Nothing: its forward returned NULL", td_forward(net, x));
    td_step_abandon();
    td_free(x);
    td_module_free(net);
}

/* What belongs into a step, without one: the caller's line, and what the caller has called. */
static void test_outside_a_step(void **state)
{
    (void)state;
    td_module *net = td_nn_linear(2, 2);
    td_tensor *x = td_zeros(TD_SHAPE(1, 2), TD_F32, TD_CPU);
    expect_fatal("td_forward outside a step", td_forward(net, x));
    assert_non_null(strstr(fatal_message(), "test_nn_modules.c:"));
    td_step_abandon();
    expect_fatal("td_relu outside a step", td_relu(x));
    assert_non_null(strstr(fatal_message(), "test_nn_modules.c:"));
    expect_fatal("outside a step", td_add(x, x));
    assert_non_null(strstr(fatal_message(), "test_nn_modules.c:"));
    td_free(x);
    td_module_free(net);
}

/* One optimizer a model; the message says how parts get settings of their own. */
static void test_parameters_of_a_part(void **state)
{
    (void)state;
    td_module *part = td_nn_linear(2, 2), *net = td_nn_sequential(part, td_nn_relu());
    (void)td_parameters(net);
    expect_fatal("td_optim_group", td_parameters(part));
    assert_non_null(strstr(fatal_message(), "test_nn_modules.c:"));
    td_module_free(net);
}

static void test_activations(void **state)
{
    (void)state;
    td_module *net =
        td_nn_sequential(td_nn_sigmoid(), td_nn_tanh(), td_nn_leaky_relu(), td_nn_softmax());
    td_tensor *x = td_zeros(TD_SHAPE(3, 4), TD_F32, TD_CPU);
    float got[12], want[12];
    td_normal_(x, 0.0, 3.0, NULL); /* NULL: the default generator */
    TD_STEP {
        td_read(td_forward(net, x), got, TD_F32);
        td_read(td_softmax(td_leaky_relu(td_tanh(td_sigmoid(x)), 0.01), 1), want, TD_F32);
    }
    assert_memory_equal(got, want, sizeof got);
    assert_true(want[0] != want[1]);
    td_free(x);
    td_module_free(net);
}

static void test_names_checked(void **state)
{
    (void)state;
    td_module *net = td_nn_sequential(td_nn_relu());
    td_module *child = td_nn_relu();
    expect_fatal("already has a child '0'", td_module_add(net, "0", child));
    assert_non_null(strstr(fatal_message(), "test_nn_modules.c:"));
    expect_fatal("a dot", td_module_add(net, "a.b", child));
    expect_fatal("empty", td_module_add(net, "", child));
    td_module_add(net, "1", child);
    td_module *other = td_nn_sequential(td_nn_relu());
    expect_fatal("a module has one place", td_module_add(other, "x", child));
    expect_fatal("this module is part of it", td_module_add(child, "x", net));
    expect_fatal("this module is part of it", td_module_add(net, "x", net));
    expect_fatal("belongs to a larger model", td_module_free(child));
    expect_fatal("test_nn_modules.c:", td_module_free(child));
    td_module_free(other);
    td_module_free(net);
}

static void test_messages_name_the_module(void **state)
{
    (void)state;
    td_module *net = td_nn_sequential(td_nn_relu(), td_nn_sequential(td_nn_linear(3, 4)));
    td_tensor *x = td_zeros(TD_SHAPE(2, 5), TD_F32, TD_CPU);
    td_step_begin();
    expect_fatal("1.0 (Linear)", td_forward(net, x));
    assert_non_null(strstr(fatal_message(), "[4,3]"));
    assert_non_null(strstr(fatal_message(), "[2,5]"));
    assert_non_null(strstr(fatal_message(), "test_nn_modules.c"));
    td_step_abandon();
    td_context_clear();
    td_free(x);
    td_module_free(net);
}

static void test_bad_sizes(void **state)
{
    (void)state;
    expect_fatal("must be positive", td_nn_linear(0, 3));
    expect_fatal("do not divide", td_nn_conv2d(3, 4, .groups = 2));
    expect_fatal("the kernel size is missing", td_nn_conv2d(3, 4));
    assert_non_null(strstr(fatal_message(), "test_nn_modules.c:"));
    expect_fatal("channel counts must be positive", td_nn_conv2d(-3, 4));
    expect_fatal("padding", td_nn_max_pool2d(2, .padding = 2));
    expect_fatal("[0, 1)", td_nn_dropout(1.0));
    td_module *fc = td_nn_linear(3, 4);
    expect_fatal("test_nn_modules.c:", td_module_to(fc, TD_CPU_N(TD_MAX_DEVICES), TD_F32));
    td_module_free(fc);
    expect_fatal("not a BatchNorm2d",
                 td_nn_batch_norm2d_fused(NULL, NULL, NULL, TD_NORM_RELU, TD_HERE));
}

/* ---- the summary ---- */

static char *summarise(td_module *net, td_shape input)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    assert_int_equal(td_summary(net, input, out), TD_OK);
    fclose(out);
    return text;
}

static void test_summary(void **state)
{
    (void)state;
    td_module *net = small_net();
    td_module_find(net, "3")->training = false;
    char *text = summarise(net, TD_SHAPE(5, 2, 4, 4));
    static const char *const wanted[] = {
        "layer  type",
        "0      Conv2d(2, 3, kernel 3x3)  [5,3,2,2]            57             1,080",
        "1.0    BatchNorm2d(3)            [5,3,2,2]             6                 0",
        "1.1    ReLU                      [5,3,2,2]             0                 0",
        "2      Flatten                   [5,12]                0                 0",
        "3      Dropout(p 0.5)            [5,12]                0                 0",
        "4      Linear(12, 4)             [5,4]                52               240",
        "parameters: 115 (0.00 MiB in f32)",
        "multiply-adds of a forward: 1,320",
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        if (strstr(text, wanted[i]) == NULL) {
            fail_msg("the summary lacks \"%s\":\n%s", wanted[i], text);
        }
    }
    free(text);
    /* Modes are as before, and no statistics have moved. */
    assert_true(td_module_find(net, "1.0")->training);
    assert_false(td_module_find(net, "3")->training);
    assert_true(td_get(td_module_find(net, "1.0")->tensors[3].tensor, (int64_t[]){ 0 }) == 1.0);
    assert_false(td_in_step());

    td_step_begin(); /* also inside a step, and with gradients on */
    text = summarise(net, TD_SHAPE(1, 2, 4, 4));
    assert_non_null(strstr(text, "[1,12]"));
    free(text);
    assert_true(td_grad_enabled());
    td_step_end();
    td_module_free(net);

    net = td_nn_sequential(td_nn_embedding(10, 4), td_nn_linear(4, 2)); /* takes indices */
    text = summarise(net, TD_SHAPE(3, 7));
    assert_non_null(strstr(text, "[3,7,2]"));
    free(text);
    td_module_free(net);
}

/* A type says whether its modules take indices: a first child that is an embedding says nothing. */
static td_tensor *table_forward(td_module *self, td_tensor *x, td_site at)
{
    td_tensor *index = td_step_new(TD_SHAPE(1), TD_I64, TD_ROW_MAJOR, TD_CPU, at);
    td_write(index, &(double){ 2 }, TD_F64);
    td_tensor *row = td_forward_at(self->children[0], index, at);
    return td_add_at(x, row, at);
}

static td_tensor *tokens_forward(td_module *self, td_tensor *x, td_site at)
{
    return td_forward_at(self->children[1], td_forward_at(self->children[2], x, at), at);
}

static td_module *with_children(const td_module_type *type)
{
    td_module *m = td_module_new(type, 0);
    td_module_add(m, "position", td_nn_embedding(3, 4));
    td_module_add(m, "head", td_nn_linear(4, 2));
    td_module_add(m, "token", td_nn_embedding(10, 4));
    return td_module_finish(m);
}

static void test_indices_are_declared(void **state)
{
    (void)state;
    static const td_module_type table = { .name = "Table", .forward = table_forward };
    static const td_module_type tokens = { .name = "Tokens",
                                           .forward = tokens_forward,
                                           .takes_indices = true };
    td_module *net = td_nn_sequential(with_children(&table), td_nn_linear(4, 2));
    char *text = summarise(net, TD_SHAPE(5, 4));
    assert_non_null(strstr(text, "[5,2]"));
    free(text);
    td_module_free(net);
    net = td_nn_sequential(td_nn_sequential(with_children(&tokens)));
    text = summarise(net, TD_SHAPE(5, 7));
    assert_non_null(strstr(text, "[5,7,2]"));
    free(text);
    td_module_free(net);
}

static void test_summary_resnet(void **state)
{
    (void)state;
    td_module *net = td_model("resnet18");
    char *text = summarise(net, TD_SHAPE(1, 3, 224, 224));
    assert_non_null(strstr(text, "parameters: 11,689,512 (44.59 MiB in f32)"));
    assert_non_null(strstr(text, "multiply-adds of a forward: 1,814,073,344"));
    assert_non_null(strstr(text, "layer4.0.downsample.0"));
    free(text);
    td_module_free(net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_version),
        cmocka_unit_test(test_resnet_names),
        cmocka_unit_test(test_resnet_sizes),
        cmocka_unit_test(test_walk),
        cmocka_unit_test_teardown(test_layers_shapes, end_step),
        cmocka_unit_test_teardown(test_embedding, end_step),
        cmocka_unit_test_teardown(test_sequential_fuses, end_step),
        cmocka_unit_test_teardown(test_train_and_eval, end_step),
        cmocka_unit_test_teardown(test_dropout_streams, end_step),
        cmocka_unit_test_teardown(test_module_to, end_step),
        cmocka_unit_test_teardown(test_shared_parameter, end_step),
        cmocka_unit_test_teardown(test_null_children, end_step),
        cmocka_unit_test(test_forward_returns_null),
        cmocka_unit_test(test_names_checked),
        cmocka_unit_test(test_outside_a_step),
        cmocka_unit_test(test_parameters_of_a_part),
        cmocka_unit_test(test_activations),
        cmocka_unit_test_teardown(test_messages_name_the_module, end_step),
        cmocka_unit_test(test_bad_sizes),
        cmocka_unit_test_teardown(test_summary, end_step),
        cmocka_unit_test_teardown(test_indices_are_declared, end_step),
        cmocka_unit_test_teardown(test_summary_resnet, end_step),
    };
    return cmocka_run_group_tests_name("nn: modules", tests, NULL, NULL);
}
