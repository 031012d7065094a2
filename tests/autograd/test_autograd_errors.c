/* Mistakes around gradients and operations: each is caught, and the message names what, where and
 * what to do. */
#include "tests/help/expect_fatal.h"

#include "autograd/autograd.h"
#include "autograd/fused.h"
#include "autograd/hooks.h"
#include "autograd/tape.h"
#include "tensor/extend.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

static td_tensor *x, *constant; /* [2,3]; x is a leaf, named */

static int begin(void **state)
{
    (void)state;
    x = td_full(TD_SHAPE(2, 3), 2.0, TD_F32, TD_CPU);
    constant = td_full(TD_SHAPE(2, 3), 3.0, TD_F32, TD_CPU);
    x->name = "layer.weight";
    td_requires_grad(x, true);
    td_fail(TD_OK, "%s", "");
    td_step_begin();
    return 0;
}

static int end(void **state)
{
    (void)state;
    td_step_abandon();
    td_set_debug_nan(false);
    assert_int_equal(x->storage->refs, 1); /* nothing of the tape is left behind */
    assert_int_equal(constant->storage->refs, 1);
    td_free(x);
    td_free(constant);
    return 0;
}

/* The message names this file: the caller's place. */
static void expect_place(void)
{
    assert_non_null(strstr(fatal_message(), "test_autograd_errors.c:"));
}

/* ---- backward ---- */

static void test_backward_of_the_wrong_thing(void **state)
{
    (void)state;
    expect_fatal("not a scalar", td_backward(td_mul(x, x)));
    expect_place();
    expect_fatal("td_mean", td_backward(td_mul(x, x)));
    expect_fatal("not computed from a leaf", td_backward(td_sum(constant)));
    expect_fatal("not computed from a leaf", td_backward(td_sum(td_detach(x))));
    expect_fatal("is a leaf", td_backward(x));
    expect_fatal("is NULL", td_backward(NULL));
    expect_fatal("[2,3]", td_backward(td_sum(x), .gradient = constant));
}

static void test_backward_twice(void **state)
{
    (void)state;
    td_tensor *square = td_mul(x, x), *loss = td_sum(square), *other = td_mean(square);
    td_backward(loss);
    expect_fatal("used up by an earlier td_backward", td_backward(loss));
    expect_place();
    expect_fatal("run the forward again", td_backward(other)); /* shares a part */
    assert_non_null(strstr(fatal_message(), "mul"));
}

static void test_wrong_leaves(void **state)
{
    (void)state;
    td_tensor *whole = td_zeros(TD_SHAPE(2), TD_I64, TD_CPU);
    expect_fatal("no float dtype", td_requires_grad(whole, true));
    td_free(whole);
    expect_fatal("belongs to a step", td_requires_grad(td_mul(x, x), true));
    td_tensor *slice = td_slice_of_storage(constant, 0, TD_SHAPE(2, 2), (int64_t[]){ 3, 1 });
    expect_fatal("td_clone", td_requires_grad(slice, true));
    td_free(slice);
    expect_fatal("is NULL", td_requires_grad(NULL, true));
    expect_fatal("not a leaf", td_zero_grad_of(constant));
    expect_fatal("not a leaf", td_grad_buffer(constant));
    expect_fatal("cannot hold the gradient", td_set_grad_storage(x, NULL));
    td_tensor *wrong_shape = td_zeros(TD_SHAPE(3, 2), TD_F32, TD_CPU);
    expect_fatal("f32[3,2]", td_set_grad_storage(x, wrong_shape));
    td_free(wrong_shape);
    expect_fatal("no gradient flows", td_retain_grad(td_neg(constant)));
}

/* ---- writing in place ---- */

static void test_saved_tensor_written(void **state)
{
    (void)state;
    td_tensor *y = td_exp(x), *loss = td_sum(y);
    td_fill_(y, 1.0);
    expect_fatal("saved by exp", td_backward(loss));
    expect_place();
    assert_non_null(strstr(fatal_message(), "written in place"));
}

/* Also through a view, and also a leaf; the message has its name. */
static void test_saved_leaf_written(void **state)
{
    (void)state;
    td_tensor *loss = td_sum(td_mul(x, x));
    td_fill_(td_slice(td_detach(x), 0, 0, 1, 1), 1.0);
    expect_fatal("'layer.weight'", td_backward(loss));
    assert_non_null(strstr(fatal_message(), "saved by mul"));
}

/* What nobody saved may be written. */
static void test_unsaved_tensor_written(void **state)
{
    (void)state;
    td_tensor *y = td_add(x, constant), *loss = td_sum(y);
    td_fill_(y, 1.0);
    td_fill_(constant, 9.0);
    td_backward(loss);
    assert_non_null(td_grad(x));
}

static void test_in_place_arithmetic(void **state)
{
    (void)state;
    td_tensor *row = td_full(TD_SHAPE(3), 0.5, TD_F32, TD_CPU);
    uint32_t version = constant->storage->version;
    td_add_(constant, row);
    td_mul_scalar_(constant, 2.0);
    assert_true(constant->storage->version > version);
    assert_true(td_get(constant, (int64_t[]){ 1, 2 }) == 7.0);
    expect_fatal("'layer.weight'", td_add_(x, row));
    expect_place();
    assert_non_null(strstr(fatal_message(), "td_no_grad_begin"));
    expect_fatal("takes part in gradients", td_mul_scalar_(td_neg(x), 2.0));
    td_no_grad_begin();
    td_add_(x, row);
    td_no_grad_end();
    assert_true(td_get(x, (int64_t[]){ 0, 0 }) == 2.5);
    expect_fatal("expanded", td_add_(td_expand(row, TD_SHAPE(4, 3)), row));
    expect_fatal("u[2,3]", td_add_(row, constant));
    expect_fatal("is NULL", td_add_(row, NULL));
    td_tensor *wide = td_full(TD_SHAPE(3), 0.5, TD_F64, TD_CPU);
    expect_fatal("differ in dtype", td_add_(row, wide));
    td_free(wide);
    td_free(row);
}

static void test_writing_into_an_expanded_tensor(void **state)
{
    (void)state;
    td_tensor *wide = td_expand(td_sum(constant), TD_SHAPE(4));
    wide->name = "wide";
    expect_fatal("'wide'", td_fill_(wide, 1.0));
    assert_non_null(strstr(fatal_message(), "expanded"));
}

/* ---- tensors that are gone ---- */

static void test_use_after_scope_and_step(void **state)
{
    (void)state;
    int64_t scope = td_scope_begin();
    td_tensor *inner = td_mul(x, x), *kept = td_neg(inner);
    td_scope_end(scope, kept);
    expect_fatal("scope that has ended", td_neg(inner));
    expect_place();
    td_backward(td_sum(td_neg(kept)));
    td_step_end();
    expect_fatal("td_neg outside a step", td_neg(x));
    td_step_begin();
    expect_fatal("has ended", td_neg(kept));
    expect_fatal("has ended", td_grad(kept));
}

static void test_null_inputs(void **state)
{
    (void)state;
    expect_fatal("add: b is NULL", td_add(x, NULL));
    expect_place();
    td_fail(TD_E_NOMEM, "out of memory for a thing");
    expect_fatal("out of memory for a thing", td_relu(NULL));
    expect_fatal("is NULL", td_reshape(NULL, TD_SHAPE(1)));
    expect_fatal("is NULL", td_cat(((td_tensor *[]){ x, NULL }), 2, 0));
}

/* ---- shapes and dtypes: both are shown ---- */

static td_tensor *zeros(td_shape shape)
{
    return td_step_new(shape, TD_F32, TD_ROW_MAJOR, TD_CPU, TD_HERE);
}

static void test_shapes(void **state)
{
    (void)state;
    expect_fatal("add: a[2,3] and b[2]", td_add(x, zeros(TD_SHAPE(2))));
    expect_place();
    expect_fatal("matmul: a[2,3] does not fit b[2,3]", td_matmul(x, constant));
    expect_fatal("a[5,2,2] and b[4,2,2]",
                 td_matmul(zeros(TD_SHAPE(5, 2, 2)), zeros(TD_SHAPE(4, 2, 2))));
    expect_fatal("does not fit b[4,1]", td_matmul(x, zeros(TD_SHAPE(4))));
    expect_fatal("at least one dimension", td_matmul(x, zeros(TD_SCALAR)));
    expect_fatal("linear: x[32,13] does not fit weight[64,12]: the last dimension of x must be "
                 "in_features (12)",
                 td_linear(zeros(TD_SHAPE(32, 13)), zeros(TD_SHAPE(64, 12)), NULL));
    expect_fatal("bias[63]",
                 td_linear(zeros(TD_SHAPE(2, 3)), zeros(TD_SHAPE(64, 3)), zeros(TD_SHAPE(63))));
    td_tensor *image = zeros(TD_SHAPE(2, 3, 8, 8));
    expect_fatal("x must have 4 channels", td_conv2d(image, zeros(TD_SHAPE(8, 4, 3, 3)), NULL));
    expect_fatal("larger than x[2,3,8,8]", td_conv2d(image, zeros(TD_SHAPE(8, 3, 9, 3)), NULL));
    expect_fatal("2 groups", td_conv2d(image, zeros(TD_SHAPE(8, 3, 3, 3)), NULL, .groups = 2));
    expect_fatal("padding is -1 by -1",
                 td_conv2d(image, zeros(TD_SHAPE(8, 3, 3, 3)), NULL, .padding = -1));
    expect_fatal("batch_norm: weight[4] does not fit x[2,3,8,8]",
                 td_batch_norm(image, zeros(TD_SHAPE(4)), NULL, NULL, NULL));
    expect_fatal("evaluation needs", td_batch_norm(image, NULL, NULL, NULL, NULL));
    expect_fatal("at least two",
                 td_batch_norm(zeros(TD_SHAPE(1, 3)), NULL, NULL, NULL, NULL, .training = true));
    expect_fatal("gelu goes without add",
                 td_batch_norm_fused_at(
                     (td_batch_norm_options){ .x = image, .training = true },
                     (td_batch_norm_fusion){ .activation = TD_NORM_GELU, .add = image }, TD_HERE));
    expect_fatal("layer_norm: weight[2] does not fit x[2,3]",
                 td_layer_norm(x, zeros(TD_SHAPE(2)), NULL, 0.0));
    expect_fatal("half the kernel", td_max_pool2d(image, .kernel = 2, .padding = 2));
    expect_fatal("half the kernel", td_max_pool2d(image, .kernel = 2, .padding = 1 << 30));
    expect_fatal("kernel", td_avg_pool2d(image, .stride = 1));
    expect_fatal("mse_loss: x[2,3] and target[3]", td_mse_loss(x, zeros(TD_SHAPE(3))));
}

/* An operation of a program's own that returns its input, a leaf. */
static void no_backward(td_node *node, const td_tensor *dy)
{
    (void)node, (void)dy;
}

static void test_result_is_a_leaf(void **state)
{
    (void)state;
    td_tensor *leaf = td_zeros(TD_SHAPE(2), TD_F32, TD_CPU);
    leaf->name = "w";
    td_requires_grad(leaf, true);
    expect_fatal(
        "mine: the result 'w' f32[2] cpu:0 is a persistent tensor",
        TD_RECORD(TD_HERE, .op = "mine", .backward = no_backward, .out = leaf, .inputs = { leaf }));
    assert_true(td_is_leaf(leaf));
    td_free(leaf);
}

static void test_shapes_of_views(void **state)
{
    (void)state;
    expect_fatal("x[2,3] to [4,-1]", td_reshape(x, TD_SHAPE(4, -1)));
    expect_fatal("x[2,3] to [7]: 6 elements to 7", td_reshape(x, TD_SHAPE(7)));
    expect_fatal("at most one may be -1", td_reshape(x, TD_SHAPE(-1, -1)));
    const int64_t huge = INT64_C(1) << 40; /* squared it is more than 64 bits hold */
    expect_fatal("6 elements to", td_reshape(x, TD_SHAPE(huge, huge)));
    expect_fatal("no size in place of -1", td_reshape(x, TD_SHAPE(huge, huge, -1)));
    expect_fatal("appears twice", td_permute(x, (int[]){ 1, 1 }));
    expect_fatal("dimension 2 is out of range", td_transpose(x, 0, 2));
    expect_fatal("a scalar has no dimensions", td_sum_dim(zeros(TD_SCALAR), 0, false));
    expect_fatal("x[2,3] cannot become [2,4]", td_expand(x, TD_SHAPE(2, 4)));
    expect_fatal("x[2,3] cannot become [3]", td_expand(x, TD_SHAPE(3)));
    expect_fatal("step is 0", td_slice(x, 0, 0, 2, 0));
    expect_fatal("start 3", td_slice(x, 0, 3, 4, 1));
    expect_fatal("part 1 [3]", td_cat(((td_tensor *[]){ x, zeros(TD_SHAPE(3)) }), 2, 0));
    expect_fatal("nothing to put together", td_cat(NULL, 0, 0));
    expect_fatal("empty", td_max_dim(zeros(TD_SHAPE(2, 0)), 1, false));
    expect_fatal("empty", td_max(zeros(TD_SHAPE(0))));
    expect_fatal("empty", td_argmax(zeros(TD_SHAPE(0, 2)), 0, false));
}

static void test_dtypes_and_values(void **state)
{
    (void)state;
    td_tensor *wide = td_cast(x, TD_F64), *half = td_cast(x, TD_F16);
    expect_fatal("f32[2,3] cpu:0 and f64[2,3] cpu:0 differ in dtype", td_mul(x, wide));
    expect_fatal("td_cast", td_exp(half));
    assert_non_null(strstr(fatal_message(), "f16[2,3]"));
    expect_fatal("probability is 1", td_dropout(x, 1.0, ((td_philox_key){ 0, 0 }), 0));
    td_tensor *labels = td_step_new(TD_SHAPE(2), TD_I64, TD_ROW_MAJOR, TD_CPU, TD_HERE);
    td_write(labels, (int64_t[]){ 2, 3 }, TD_I64);
    expect_fatal("label 3 is out of range: it must be 0 to 2", td_cross_entropy(x, labels));
    expect_fatal("embedding: index 3 is out of range: it must be 0 to 1",
                 td_embedding(td_slice(labels, 0, 1, 2, 1), x));
    expect_fatal("i64", td_cross_entropy(x, td_cast(labels, TD_I32)));
    td_write(labels, (int64_t[]){ 0, -1 }, TD_I64);
    expect_fatal("label -1", td_cross_entropy(x, labels));
    td_write(labels, (int64_t[]){ 1, 3 }, TD_I64);
    expect_fatal("label 3 with 3 classes", td_cross_entropy(x, labels, .ignore_index = 1));
    expect_fatal("smoothing is 2", td_cross_entropy(x, labels, .label_smoothing = 2.0));
    td_tensor *elsewhere = td_step_new(TD_SHAPE(2, 3), TD_F32, TD_ROW_MAJOR, TD_CPU_N(1), TD_HERE);
    expect_fatal("different devices", td_add(x, elsewhere));
}

/* ---- NaN ---- */

static td_tensor *bad_forward(void)
{
    td_context_push("features.3 (Linear)");
    td_tensor *y = td_log(td_add_scalar(x, -5.0)); /* of negative numbers */
    td_context_pop();
    return y;
}

static void test_nan_in_forward_is_named(void **state)
{
    (void)state;
    bad_forward(); /* nobody looks */
    td_set_debug_nan(true);
    assert_true(td_debug_nan());
    td_relu(x);
    expect_fatal("log: the result f32[2,3]", bad_forward());
    expect_place();
    assert_non_null(strstr(fatal_message(), "features.3 (Linear)"));
    assert_non_null(strstr(fatal_message(), "NaN"));
}

static void test_nan_in_backward_is_named(void **state)
{
    (void)state;
    td_set_debug_nan(true);
    td_fill_(x, 0.0);
    td_context_clear();
    td_context_push("head (Sqrt)");
    td_tensor *root = td_sqrt(x); /* its slope at 0 is infinite */
    td_context_pop();
    expect_fatal("sqrt: its backward made NaN or infinity", td_backward(td_sum(root)));
    expect_place();
    assert_non_null(strstr(fatal_message(), "'layer.weight'"));
    assert_non_null(strstr(fatal_message(), "head (Sqrt)"));
}

/* After a mistake was caught and the step abandoned, everything works again. */
static void test_recovery(void **state)
{
    (void)state;
    td_tensor *y = td_exp(x), *loss = td_sum(td_mul(y, td_tanh(y)));
    td_fill_(y, 1.0);
    td_no_grad_begin();
    expect_fatal("written in place", td_backward(loss));
    td_step_abandon();
    assert_true(td_grad_enabled());
    for (int i = 0; i < 2; i++) {
        td_step_begin();
        td_zero_grad_of(x);
        td_backward(td_sum(td_mul(x, x)));
        td_step_end();
        assert_true(td_get(td_grad(x), (int64_t[]){ 1, 1 }) == 4.0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_backward_of_the_wrong_thing, begin, end),
        cmocka_unit_test_setup_teardown(test_backward_twice, begin, end),
        cmocka_unit_test_setup_teardown(test_wrong_leaves, begin, end),
        cmocka_unit_test_setup_teardown(test_saved_tensor_written, begin, end),
        cmocka_unit_test_setup_teardown(test_saved_leaf_written, begin, end),
        cmocka_unit_test_setup_teardown(test_unsaved_tensor_written, begin, end),
        cmocka_unit_test_setup_teardown(test_in_place_arithmetic, begin, end),
        cmocka_unit_test_setup_teardown(test_writing_into_an_expanded_tensor, begin, end),
        cmocka_unit_test_setup_teardown(test_use_after_scope_and_step, begin, end),
        cmocka_unit_test_setup_teardown(test_null_inputs, begin, end),
        cmocka_unit_test_setup_teardown(test_shapes, begin, end),
        cmocka_unit_test_setup_teardown(test_result_is_a_leaf, begin, end),
        cmocka_unit_test_setup_teardown(test_shapes_of_views, begin, end),
        cmocka_unit_test_setup_teardown(test_dtypes_and_values, begin, end),
        cmocka_unit_test_setup_teardown(test_nan_in_forward_is_named, begin, end),
        cmocka_unit_test_setup_teardown(test_nan_in_backward_is_named, begin, end),
        cmocka_unit_test_setup_teardown(test_recovery, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
