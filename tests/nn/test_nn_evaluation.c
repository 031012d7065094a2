/* Without gradients nothing is kept that is not needed, and what nobody needs is written over: the
 * same bits, in less memory. */
#include "tests/help/sanitized.h"
#include "autograd/fused.h"
#include "tests/tensor/reference.h"

#include "tandem.h"
#include "tensor/extend.h"

#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int end_step(void **state)
{
    (void)state;
    td_step_abandon();
    return 0;
}

/* ---- batch normalisation over its input ---- */

typedef struct norm_inputs {
    td_tensor *x, *add, *weight, *bias, *mean, *var;
} norm_inputs;

static td_tensor *normalise(const norm_inputs *in, td_tensor *x, bool add,
                            td_norm_activation activation, bool training, bool over_x)
{
    td_batch_norm_options options = { .x = x,
                                      .weight = in->weight,
                                      .bias = in->bias,
                                      .running_mean = in->mean,
                                      .running_var = in->var,
                                      .training = training };
    td_batch_norm_fusion fusion = { .activation = activation,
                                    .add = add ? in->add : NULL,
                                    .over_x = over_x };
    return td_batch_norm_fused_at(options, fusion, TD_HERE);
}

static void check_over(norm_inputs *in, bool add, td_norm_activation activation, bool training)
{
    td_step_begin();
    td_no_grad_begin();
    td_tensor *x = td_mul_scalar(in->x, 1.0); /* a step tensor of our own */
    td_tensor *apart = normalise(in, x, add, activation, training, false);
    assert_ptr_not_equal(td_data(apart), td_data(x));
    td_tensor *over = normalise(in, x, add, activation, training, true);
    assert_ptr_equal(td_data(over), td_data(x));
    size_t bytes = (size_t)td_numel(x) * td_dtype_size(x->dtype);
    assert_memory_equal(td_data(over), td_data(apart), bytes);
    td_no_grad_end();
    td_tensor *kept = normalise(in, in->x, add, activation, training, true);
    assert_ptr_not_equal(td_data(kept), td_data(in->x)); /* backward reads x */
    assert_memory_equal(td_data(kept), td_data(apart), bytes);
    td_step_end();
}

static void test_batch_norm_over_x(void **state)
{
    (void)state;
    static const td_dtype dtypes[] = { TD_F32, TD_F64, TD_BF16 };
    for (int i = 0; i < 3; i++) {
        td_shape shape = TD_SHAPE(5, 37, 3, 7);
        td_dtype channel = dtypes[i] == TD_F64 ? TD_F64 : TD_F32;
        norm_inputs in = {
            .x = ref_tensor(shape, dtypes[i], TD_IMAGE, 1),
            .add = ref_tensor(shape, dtypes[i], TD_IMAGE, 2),
            .weight = ref_tensor(TD_SHAPE(37), channel, TD_ROW_MAJOR, 3),
            .bias = ref_tensor(TD_SHAPE(37), channel, TD_ROW_MAJOR, 4),
            .mean = td_full(TD_SHAPE(37), 0.25, channel, TD_CPU),
            .var = td_full(TD_SHAPE(37), 2.0, channel, TD_CPU),
        };
        for (int bits = 0; bits < 8; bits++) {
            td_norm_activation activation = (bits & 2) != 0 ? TD_NORM_RELU : TD_NORM_LINEAR;
            check_over(&in, (bits & 1) != 0, activation, (bits & 4) != 0);
        }
        for (int training = 0; training < 2; training++) {
            check_over(&in, false, TD_NORM_GELU, training != 0);
        }
        td_tensor *all[] = { in.x, in.add, in.weight, in.bias, in.mean, in.var };
        for (int t = 0; t < 6; t++) {
            td_free(all[t]);
        }
    }
}

/* ---- layers one after the other ---- */

static td_tensor *pictures(int64_t n, int64_t side)
{
    return ref_tensor(TD_SHAPE(n, 3, side, side), TD_F32, TD_IMAGE, 7);
}

static td_tensor *run(td_module *net, td_tensor *x, float *values)
{
    td_tensor *y = td_forward(net, x);
    td_read(y, values, TD_F32);
    return y;
}

/* Of six layers with results of one size two are there at a time: what a layer reads, and what it
 * writes; the third would be batch normalisation's. */
static void test_sequential_holds_two_results(void **state)
{
    (void)state;
    enum { SIDE = 16, WIDTH = 32, BATCH = 4, LAYERS = 6 };
    td_manual_seed(1);
    td_module *list[3 * LAYERS];
    for (int i = 0; i < LAYERS; i++) {
        list[3 * i] = td_nn_conv2d(i == 0 ? 3 : WIDTH, WIDTH, .kernel = 3, .padding = 1);
        list[3 * i + 1] = td_nn_batch_norm2d(WIDTH);
        list[3 * i + 2] = td_nn_relu();
    }
    td_module *net = td_nn_sequential_list(list, 3 * LAYERS);
    td_eval(net);
    td_tensor *x = pictures(BATCH, SIDE);
    size_t result = sizeof(float) * BATCH * WIDTH * SIDE * SIDE;
    static float values[BATCH * WIDTH * SIDE * SIDE];
    td_step_begin();
    td_no_grad_begin();
    run(net, x, values);
    assert_true(td_step_memory(TD_CPU).in_use < result + 1024);
    td_no_grad_end();
    td_step_end();
    size_t peak = td_step_memory(TD_CPU).peak;
    assert_true(peak >= 2 * result && peak < 2 * result + result / 2); /* and scratch */
    td_free(x);
    td_module_free(net);
}

/* A layer that gives its input back, and one whose result is a view: nothing is let go too early.
 */
static void test_sequential_of_views(void **state)
{
    (void)state;
    td_module *net = td_nn_sequential(td_nn_dropout(0.5), td_nn_flatten(), td_nn_dropout(0.5),
                                      td_nn_relu(), td_nn_dropout(0.5));
    td_module *same = td_nn_sequential(td_nn_dropout(0.5), td_nn_dropout(0.5));
    td_eval(net);
    td_eval(same);
    td_tensor *x = pictures(2, 3);
    td_step_begin();
    td_tensor *own = td_mul_scalar(x, -1.0), *other = td_mul_scalar(x, 2.0);
    td_tensor *y = td_forward(net, own);
    assert_int_equal(y->shape[1], 27);
    double value = td_get(own, (int64_t[]){ 1, 2, 0, 1 });
    assert_true(td_get(y, (int64_t[]){ 1, 19 }) == (value > 0.0 ? value : 0.0));
    assert_ptr_equal(td_forward(same, other), other);
    td_get(other, (int64_t[]){ 0, 0, 0, 0 });
    td_step_end();
    td_free(x);
    td_module_free(net);
    td_module_free(same);
}

/* ---- whole models ---- */

typedef struct model_case {
    const char *name;
    int64_t side;
    double peak; /* without gradients, by what it is with them, at most */
} model_case;

static void check_model(const model_case *c)
{
    enum { BATCH = 2, CLASSES = 10 };
    td_manual_seed(3);
    td_module *net = td_model(c->name, .classes = CLASSES, .image_size = c->side);
    assert_non_null(net);
    td_eval(net);
    td_tensor *x = pictures(BATCH, c->side);
    float values[2][BATCH * CLASSES];
    size_t peak[2];
    for (int quiet = 0; quiet < 2; quiet++) {
        td_step_begin();
        if (quiet) {
            td_no_grad_begin();
        }
        run(net, x, values[quiet]);
        if (quiet) {
            td_no_grad_end();
        }
        td_step_end();
        peak[quiet] = td_step_memory(TD_CPU).peak;
    }
    assert_memory_equal(values[0], values[1], sizeof values[0]);
    if ((double)peak[1] > c->peak * (double)peak[0]) {
        fail_msg("%s: %zu bytes without gradients, %zu with them", c->name, peak[1], peak[0]);
    }
    td_free(x);
    td_module_free(net);
}

static void test_models(void **state)
{
    (void)state;
    static const model_case cases[] = {
        { "resnet18", 64, 0.5 },      { "resnet50", 64, 0.25 },        { "densenet121", 64, 0.5 },
        { "regnet_y_16gf", 64, 0.5 }, { "efficientnet_b0", 64, 0.25 }, { "botnet50", 64, 0.5 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += checks_part() ? 2 : 1) {
        check_model(&cases[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_batch_norm_over_x, end_step),
        cmocka_unit_test_teardown(test_sequential_holds_two_results, end_step),
        cmocka_unit_test_teardown(test_sequential_of_views, end_step),
        cmocka_unit_test_teardown(test_models, end_step),
    };
    return cmocka_run_group_tests_name("evaluation", tests, NULL, NULL);
}
