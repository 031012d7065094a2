/* Products, convolution, normalisation, pooling, losses and the rest against the slow references,
 * on odd shapes and in all orders of memory. */
#include "tests/autograd/ops_reference.h"

#include "autograd/fused.h"
#include "tensor/extend.h"
#include "tensor/storage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const td_dtype dtypes[] = { TD_F32, TD_F64 };
enum { DTYPES = 2 };

static int begin(void **state)
{
    (void)state;
    td_step_begin();
    return 0;
}

static int end(void **state)
{
    (void)state;
    td_step_end();
    ref_end();
    return 0;
}

static td_tensor *input(td_shape shape, td_dtype dtype, td_layout layout)
{
    return ref_input(shape, dtype, layout, -2.0, 2.0);
}

static td_tensor *rows(td_shape shape, td_dtype dtype)
{
    return input(shape, dtype, TD_ROW_MAJOR);
}

/* ---- products ---- */

static void check_matmul(td_tensor *a, td_tensor *b)
{
    ref_expect(td_matmul(a, b), ref_matmul(ref_read(a), ref_read(b)), "matmul");
}

static void test_matmul(void **state)
{
    (void)state;
    td_shape shapes[][2] = {
        { TD_SHAPE(1, 1), TD_SHAPE(1, 1) },       { TD_SHAPE(1, 5), TD_SHAPE(5, 1) },
        { TD_SHAPE(3, 0), TD_SHAPE(0, 4) },       { TD_SHAPE(0, 3), TD_SHAPE(3, 4) },
        { TD_SHAPE(17, 33), TD_SHAPE(33, 19) },   { TD_SHAPE(65, 7), TD_SHAPE(7, 130) },
        { TD_SHAPE(3, 5, 7), TD_SHAPE(3, 7, 9) }, { TD_SHAPE(3, 5, 7), TD_SHAPE(7, 9) },
        { TD_SHAPE(5, 7), TD_SHAPE(3, 7, 9) },    { TD_SHAPE(2, 1, 5, 7), TD_SHAPE(3, 7, 9) },
        { TD_SHAPE(0, 5, 7), TD_SHAPE(7, 9) },
    };
    for (int i = 0; i < DTYPES; i++) {
        for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++) {
            check_matmul(rows(shapes[k][0], dtypes[i]), rows(shapes[k][1], dtypes[i]));
        }
        td_tensor *a = rows(TD_SHAPE(9, 5, 6), dtypes[i]), *b = rows(TD_SHAPE(4, 9), dtypes[i]);
        check_matmul(td_permute(a, (int[]){ 2, 1, 0 }), td_transpose(b, 0, 1));
        check_matmul(td_slice(td_transpose(a, 0, 2), 0, 0, 6, 2), td_transpose(b, 0, 1));
        check_matmul(td_expand(rows(TD_SHAPE(1, 7), dtypes[i]), TD_SHAPE(3, 7)),
                     rows(TD_SHAPE(7, 2), dtypes[i]));
    }
}

static void check_linear(td_tensor *x, td_tensor *w, td_tensor *b)
{
    ref rb = b != NULL ? ref_read(b) : (ref){ .n = 0 };
    ref r = ref_linear(ref_read(x), ref_read(w), b != NULL ? &rb : NULL);
    ref_expect(td_linear(x, w, b), r, "linear");
}

static void test_linear(void **state)
{
    (void)state;
    for (int i = 0; i < DTYPES; i++) {
        td_tensor *b = rows(TD_SHAPE(19), dtypes[i]);
        for (int layout = 0; layout < 2; layout++) {
            td_tensor *w =
                input(TD_SHAPE(19, 33), dtypes[i], layout == 0 ? TD_ROW_MAJOR : TD_FILTER);
            check_linear(rows(TD_SHAPE(7, 33), dtypes[i]), w, b);
            check_linear(rows(TD_SHAPE(7, 33), dtypes[i]), w, NULL);
            check_linear(rows(TD_SHAPE(33), dtypes[i]), w, b);
            check_linear(rows(TD_SHAPE(0, 33), dtypes[i]), w, b);
            check_linear(rows(TD_SHAPE(2, 3, 5, 33), dtypes[i]), w, b);
            check_linear(td_transpose(rows(TD_SHAPE(33, 5), dtypes[i]), 0, 1), w, b);
            check_linear(td_transpose(rows(TD_SHAPE(3, 5, 33), dtypes[i]), 0, 1), w, b);
            check_linear(td_flatten(input(TD_SHAPE(5, 33, 1, 1), dtypes[i], TD_IMAGE), 1), w, b);
        }
        check_linear(rows(TD_SHAPE(3, 1), dtypes[i]), rows(TD_SHAPE(1, 1), dtypes[i]), NULL);
    }
}

/* ---- convolution ---- */

typedef struct conv_case {
    td_shape x, w;
    td_conv2d_options options;
    ref_window window; /* the same, spelled out; the kernel is w's */
} conv_case;

static const conv_case conv_cases[] = {
    { { 4, { 2, 3, 9, 7 } }, { 4, { 5, 3, 3, 3 } }, { .groups = 0 }, { .stride = { 1, 1 } } },
    { { 4, { 3, 17, 6, 5 } },
      { 4, { 19, 17, 3, 3 } },
      { .padding = 1 },
      { .stride = { 1, 1 }, .pad = { 1, 1 } } },
    { { 4, { 2, 3, 15, 13 } },
      { 4, { 33, 3, 7, 7 } },
      { .stride = 2, .padding = 3 },
      { .stride = { 2, 2 }, .pad = { 3, 3 } } },
    { { 4, { 5, 16, 4, 4 } }, { 4, { 32, 16, 1, 1 } }, { .stride = 2 }, { .stride = { 2, 2 } } },
    { { 4, { 1, 9, 1, 1 } },
      { 4, { 1, 9, 3, 3 } },
      { .padding = 1 },
      { .stride = { 1, 1 }, .pad = { 1, 1 } } },
    { { 4, { 2, 2, 8, 9 } },
      { 4, { 3, 2, 3, 2 } },
      { .stride_hw = { 1, 3 }, .padding_hw = { 2, 1 }, .dilation_hw = { 2, 3 } },
      { .stride = { 1, 3 }, .pad = { 2, 1 }, .dilation = { 2, 3 } } },
    { { 4, { 2, 6, 5, 5 } },
      { 4, { 9, 2, 3, 3 } },
      { .padding = 1, .groups = 3 },
      { .stride = { 1, 1 }, .pad = { 1, 1 } } },
    { { 4, { 2, 7, 5, 6 } },
      { 4, { 14, 1, 3, 3 } },
      { .stride = 2, .padding = 1, .groups = 7 },
      { .stride = { 2, 2 }, .pad = { 1, 1 } } },
    { { 4, { 2, 3, 6, 5 } },
      { 4, { 4, 3, 7, 1 } },
      { .padding_hw = { 3, 0 } },
      { .stride = { 1, 1 }, .pad = { 3, 0 } } },
    { { 4, { 2, 3, 6, 5 } },
      { 4, { 4, 3, 1, 7 } },
      { .padding_hw = { 0, 3 } },
      { .stride = { 1, 1 }, .pad = { 0, 3 } } },
    { { 4, { 0, 3, 5, 5 } }, { 4, { 4, 3, 3, 3 } }, { .groups = 1 }, { .stride = { 1, 1 } } },
};

static void test_conv2d(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof conv_cases / sizeof conv_cases[0]; k++) {
        conv_case c = conv_cases[k];
        for (int d = 0; d < 2; d++) {
            c.window.kernel[d] = (int)c.w.dim[2 + d];
            c.window.dilation[d] = c.window.dilation[d] > 0 ? c.window.dilation[d] : 1;
        }
        int64_t groups = c.options.groups > 0 ? c.options.groups : 1;
        for (int i = 0; i < 2 * DTYPES; i++) {
            td_dtype dtype = dtypes[i / 2];
            td_tensor *x = input(c.x, dtype, i % 2 == 0 ? TD_IMAGE : TD_ROW_MAJOR);
            td_tensor *w = input(c.w, dtype, i % 2 == 0 ? TD_FILTER : TD_ROW_MAJOR);
            td_tensor *b = rows(TD_SHAPE(c.w.dim[0]), dtype);
            ref rx = ref_read(x), rw = ref_read(w), rb = ref_read(b);
            c.options.x = x;
            c.options.w = w;
            c.options.b = b;
            td_tensor *y = td_conv2d_at(c.options, TD_HERE);
            assert_true(td_is_layout(y, TD_IMAGE));
            ref_expect(y, ref_conv2d(rx, rw, &rb, c.window, groups), "conv2d");
            c.options.b = NULL;
            y = td_conv2d_at(c.options, TD_HERE);
            ref_expect(y, ref_conv2d(rx, rw, NULL, c.window, groups), "conv2d without bias");
        }
    }
}

/* ---- pooling ---- */

static void check_pool(td_tensor *x, td_pool2d_options options, ref_window window)
{
    ref r = ref_read(x);
    options.x = x;
    window.dilation[0] = window.dilation[1] = 1;
    ref_expect_exact(td_max_pool2d_at(options, TD_HERE), ref_max_pool2d(r, window), "max_pool2d");
    for (int exclude = 0; exclude < 2; exclude++) {
        options.exclude_pad = exclude;
        ref_expect(td_avg_pool2d_at(options, TD_HERE), ref_avg_pool2d(r, window, !exclude),
                   "avg_pool2d");
    }
}

static void test_pooling(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * DTYPES; i++) {
        td_dtype dtype = dtypes[i / 2];
        td_layout layout = i % 2 == 0 ? TD_IMAGE : TD_ROW_MAJOR;
        td_tensor *x = input(TD_SHAPE(3, 17, 9, 8), dtype, layout);
        check_pool(x, (td_pool2d_options){ .kernel = 2 },
                   (ref_window){ .kernel = { 2, 2 }, .stride = { 2, 2 } });
        check_pool(x, (td_pool2d_options){ .kernel = 3, .stride = 2, .padding = 1 },
                   (ref_window){ .kernel = { 3, 3 }, .stride = { 2, 2 }, .pad = { 1, 1 } });
        check_pool(x,
                   (td_pool2d_options){
                       .kernel_hw = { 4, 2 }, .stride_hw = { 1, 3 }, .padding_hw = { 2, 1 } },
                   (ref_window){ .kernel = { 4, 2 }, .stride = { 1, 3 }, .pad = { 2, 1 } });
        check_pool(input(TD_SHAPE(1, 1, 1, 1), dtype, layout), (td_pool2d_options){ .kernel = 1 },
                   (ref_window){ .kernel = { 1, 1 }, .stride = { 1, 1 } });
        ref_window all = { .kernel = { 9, 8 }, .stride = { 9, 8 }, .dilation = { 1, 1 } };
        ref_expect(td_global_avg_pool2d(x), ref_avg_pool2d(ref_read(x), all, true),
                   "global_avg_pool2d");
    }
}

/* ---- normalisation ---- */

static void check_batch_norm(td_tensor *x, td_tensor *add)
{
    td_dtype dtype = x->dtype;
    td_shape channels = TD_SHAPE(x->shape[1]);
    td_tensor *w = rows(channels, dtype), *b = rows(channels, dtype);
    td_tensor *mean = rows(channels, dtype);
    td_tensor *var = ref_input(channels, dtype, TD_ROW_MAJOR, 0.5, 2.0);
    ref rx = ref_read(x), rw = ref_read(w), rb = ref_read(b), radd, m, v;
    ref old_mean = ref_read(mean), old_var = ref_read(var);
    ref_channel_stats(rx, &m, &v);
    if (add != NULL) {
        radd = ref_read(add);
    }
    for (int relu = 0; relu < 2; relu++) {
        td_batch_norm_fusion fusion = { .activation = relu ? TD_NORM_RELU : TD_NORM_LINEAR,
                                        .add = add };
        td_batch_norm_options o = {
            .x = x, .weight = w, .bias = b, .running_mean = mean, .running_var = var, .eps = 1e-3
        };
        ref_expect(
            td_batch_norm_fused_at(o, fusion, TD_HERE),
            ref_batch_norm(rx, &rw, &rb, old_mean, old_var, 1e-3, add != NULL ? &radd : NULL, relu),
            "batch_norm in evaluation");
        ref_expect_exact(mean, old_mean, "running_mean after evaluation");
        o.training = true;
        o.running_mean = o.running_var = NULL;
        ref_expect(td_batch_norm_fused_at(o, fusion, TD_HERE),
                   ref_batch_norm(rx, &rw, &rb, m, v, 1e-3, add != NULL ? &radd : NULL, relu),
                   "batch_norm in training");
    }
    ref_expect(td_batch_norm(x, NULL, NULL, mean, var, .training = true, .momentum = 0.3),
               ref_batch_norm(rx, NULL, NULL, m, v, 1e-5, NULL, false), "batch_norm, plain");
    double n = (double)(rx.n / channels.dim[0]);
    for (int64_t c = 0; c < channels.dim[0]; c++) {
        m.v[c] = 0.7 * old_mean.v[c] + 0.3 * m.v[c];
        v.v[c] = 0.7 * old_var.v[c] + 0.3 * v.v[c] * n / (n - 1.0);
    }
    ref_expect(mean, m, "running_mean");
    ref_expect(var, v, "running_var");
}

static void test_batch_norm(void **state)
{
    (void)state;
    for (int i = 0; i < DTYPES; i++) {
        td_shape image = TD_SHAPE(5, 19, 3, 7);
        check_batch_norm(input(image, dtypes[i], TD_IMAGE), NULL);
        check_batch_norm(input(image, dtypes[i], TD_IMAGE), input(image, dtypes[i], TD_IMAGE));
        check_batch_norm(rows(image, dtypes[i]), rows(image, dtypes[i]));
        check_batch_norm(rows(TD_SHAPE(33, 17), dtypes[i]), NULL);
        check_batch_norm(rows(TD_SHAPE(2, 1), dtypes[i]), NULL);
        check_batch_norm(td_transpose(rows(TD_SHAPE(5, 9), dtypes[i]), 0, 1), NULL);
    }
}

static void test_layer_norm(void **state)
{
    (void)state;
    for (int i = 0; i < DTYPES; i++) {
        td_tensor *w = rows(TD_SHAPE(35), dtypes[i]), *b = rows(TD_SHAPE(35), dtypes[i]);
        ref rw = ref_read(w), rb = ref_read(b);
        td_tensor *x[] = { rows(TD_SHAPE(3, 5, 35), dtypes[i]), rows(TD_SHAPE(35), dtypes[i]),
                           rows(TD_SHAPE(0, 35), dtypes[i]),
                           td_transpose(rows(TD_SHAPE(35, 6), dtypes[i]), 0, 1) };
        for (int k = 0; k < 4; k++) {
            ref rx = ref_read(x[k]);
            ref_expect(td_layer_norm(x[k], w, b, 0.0), ref_layer_norm(rx, &rw, &rb, 1e-5),
                       "layer_norm");
            ref_expect(td_layer_norm(x[k], NULL, NULL, 0.1), ref_layer_norm(rx, NULL, NULL, 0.1),
                       "layer_norm, plain");
        }
    }
}

/* ---- softmax, losses, the rest ---- */

static void check_softmax(td_tensor *x)
{
    ref r = ref_read(x);
    for (int d = 0; d < x->ndim; d++) {
        ref_expect(td_softmax(x, d), ref_softmax(r, d, false), "softmax");
        ref_expect(td_log_softmax(x, d - x->ndim), ref_softmax(r, d, true), "log_softmax");
    }
}

static void test_softmax(void **state)
{
    (void)state;
    for (int i = 0; i < DTYPES; i++) {
        check_softmax(rows(TD_SHAPE(7, 33), dtypes[i]));
        check_softmax(rows(TD_SHAPE(3, 1, 5), dtypes[i]));
        check_softmax(rows(TD_SHAPE(3, 0), dtypes[i]));
        check_softmax(input(TD_SHAPE(3, 17, 2, 5), dtypes[i], TD_IMAGE));
        check_softmax(td_slice(rows(TD_SHAPE(9, 5), dtypes[i]), 0, 0, 9, 2));
        check_softmax(td_expand(rows(TD_SHAPE(3, 1), dtypes[i]), TD_SHAPE(2, 3, 5)));
        check_softmax(ref_input(TD_SHAPE(3, 9), dtypes[i], TD_ROW_MAJOR, -800.0, 800.0));
    }
}

static void test_losses(void **state)
{
    (void)state;
    for (int i = 0; i < DTYPES; i++) {
        td_tensor *labels = ref_input(TD_SHAPE(33), TD_I64, TD_ROW_MAJOR, 0.0, 11.0);
        td_tensor *logits[] = { ref_input(TD_SHAPE(33, 11), dtypes[i], TD_ROW_MAJOR, -9.0, 9.0),
                                td_transpose(rows(TD_SHAPE(11, 33), dtypes[i]), 0, 1) };
        ref rl = ref_read(labels);
        for (int k = 0; k < 2; k++) {
            ref r = ref_read(logits[k]);
            ref_expect(td_cross_entropy(logits[k], labels), ref_cross_entropy(r, rl, 0.0),
                       "cross_entropy");
            ref_expect(td_cross_entropy(logits[k], labels, .label_smoothing = 0.1),
                       ref_cross_entropy(r, rl, 0.1), "cross_entropy_smooth");
        }
        td_tensor *one = rows(TD_SHAPE(1, 1), dtypes[i]);
        td_tensor *zero = ref_input(TD_SHAPE(1), TD_I64, TD_ROW_MAJOR, 0.0, 1.0);
        assert_true(td_item(td_cross_entropy(one, zero)) == 0.0);
        td_tensor *x = rows(TD_SHAPE(5, 7), dtypes[i]), *target = rows(TD_SHAPE(5, 7), dtypes[i]);
        ref difference = ref_binary(REF_SUB, ref_read(x), ref_read(target));
        ref square = ref_binary(REF_MUL, difference, difference);
        ref_expect(td_mse_loss(x, target), ref_reduce(REF_MEAN, square, -1, false), "mse_loss");
    }
}

static void test_dropout(void **state)
{
    (void)state;
    td_philox_key key = { .seed = 12345678901, .stream = 42 };
    for (int i = 0; i < DTYPES; i++) {
        td_tensor *x[] = { rows(TD_SHAPE(7, 13), dtypes[i]), rows(TD_SHAPE(0), dtypes[i]),
                           rows(TD_SHAPE(1), dtypes[i]),
                           input(TD_SHAPE(3, 5, 4, 2), dtypes[i], TD_IMAGE),
                           td_transpose(rows(TD_SHAPE(6, 5), dtypes[i]), 0, 1) };
        for (int k = 0; k < 5; k++) {
            ref r = ref_read(x[k]);
            ref_expect(td_dropout(x[k], 0.25, key, 7), ref_dropout(r, 0.25, key, 7), "dropout");
            ref_expect_exact(td_dropout(x[k], 0.0, key, 7), r, "dropout of nothing");
        }
    }
}

static void test_embedding(void **state)
{
    (void)state;
    td_shape shapes[] = { TD_SCALAR, TD_SHAPE(9), TD_SHAPE(2, 0), TD_SHAPE(3, 4, 5) };
    for (int i = 0; i < DTYPES; i++) {
        td_tensor *table = rows(TD_SHAPE(13, 17), dtypes[i]);
        td_tensor *turned = td_transpose(rows(TD_SHAPE(17, 13), dtypes[i]), 0, 1);
        for (int k = 0; k < 4; k++) {
            td_tensor *index = ref_input(shapes[k], TD_I64, TD_ROW_MAJOR, 0.0, 13.0);
            ref_expect_exact(td_embedding(index, table),
                             ref_embedding(ref_read(index), ref_read(table)), "embedding");
            ref_expect_exact(td_embedding(index, turned),
                             ref_embedding(ref_read(index), ref_read(turned)),
                             "embedding of a transposed table");
        }
    }
}

/* The rows of a table in bf16 are widened, and not the table, unless it takes gradients. */
static void test_embedding_of_half(void **state)
{
    (void)state;
    td_tensor *table = td_full(TD_SHAPE(1000, 64), 0.375, TD_BF16, TD_CPU);
    td_tensor *index = ref_input(TD_SHAPE(5), TD_I64, TD_ROW_MAJOR, 0.0, 1000.0);
    for (int grad = 0; grad < 2; grad++) {
        td_requires_grad(table, grad != 0);
        size_t before = td_step_memory(TD_CPU).in_use;
        td_tensor *y = td_embedding(index, table);
        size_t taken = td_step_memory(TD_CPU).in_use - before;
        assert_int_equal(y->dtype, TD_F32);
        for (int64_t i = 0; i < 5 * 64; i++) {
            assert_true(((const float *)td_ptr(y))[i] == 0.375F);
        }
        assert_int_equal(taken >= 1000 * 64 * sizeof(float), grad);
    }
    td_requires_grad(table, false);
    td_free(table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_matmul, begin, end),
        cmocka_unit_test_setup_teardown(test_linear, begin, end),
        cmocka_unit_test_setup_teardown(test_conv2d, begin, end),
        cmocka_unit_test_setup_teardown(test_pooling, begin, end),
        cmocka_unit_test_setup_teardown(test_batch_norm, begin, end),
        cmocka_unit_test_setup_teardown(test_layer_norm, begin, end),
        cmocka_unit_test_setup_teardown(test_softmax, begin, end),
        cmocka_unit_test_setup_teardown(test_losses, begin, end),
        cmocka_unit_test_setup_teardown(test_dropout, begin, end),
        cmocka_unit_test_setup_teardown(test_embedding, begin, end),
        cmocka_unit_test_setup_teardown(test_embedding_of_half, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
