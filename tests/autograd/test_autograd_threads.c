/* A small network of every kind of layer, trained for ten steps: it learns, equal steps take equal
 * memory, and the bits do not depend on the number of threads. */
#include "autograd/autograd.h"
#include "autograd/hooks.h"
#include "tensor/extend.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { BATCH = 33, CLASSES = 5, PARAMETERS = 9, STEPS = 10 };

typedef struct network {
    td_tensor *p[PARAMETERS];
    td_tensor *mean, *var;
} network;

static td_tensor *parameter(td_shape shape, double from, double to, td_generator *g)
{
    td_tensor *t = td_new_layout(shape, TD_F32, TD_FILTER, TD_CPU);
    assert_non_null(t);
    td_uniform_(t, from, to, g);
    td_requires_grad(t, true);
    return t;
}

static network make_network(void)
{
    td_generator g;
    td_generator_seed(&g, 3);
    network net = {
        .p = {
            parameter(TD_SHAPE(19, 3, 3, 3), -0.3, 0.3, &g),
            parameter(TD_SHAPE(19), 0.5, 1.5, &g),
            parameter(TD_SHAPE(19), -0.1, 0.1, &g),
            parameter(TD_SHAPE(19, 19, 3, 3), -0.1, 0.1, &g),
            parameter(TD_SHAPE(19), -0.1, 0.1, &g),
            parameter(TD_SHAPE(19), 0.5, 1.5, &g),
            parameter(TD_SHAPE(19), -0.1, 0.1, &g),
            parameter(TD_SHAPE(CLASSES, 19), -0.3, 0.3, &g),
            parameter(TD_SHAPE(CLASSES), -0.1, 0.1, &g),
        },
        .mean = td_zeros(TD_SHAPE(19), TD_F32, TD_CPU),
        .var = td_full(TD_SHAPE(19), 1.0, TD_F32, TD_CPU),
    };
    return net;
}

static void free_network(network *net)
{
    for (int i = 0; i < PARAMETERS; i++) {
        td_free(net->p[i]);
    }
    td_free(net->mean);
    td_free(net->var);
}

static td_tensor *forward(network *net, td_tensor *x, uint64_t step)
{
    td_tensor **p = net->p;
    td_tensor *y = td_conv2d(x, p[0], NULL, .padding = 1);
    y = td_relu(td_batch_norm(y, p[1], p[2], net->mean, net->var, .training = true));
    td_tensor *z = td_gelu(td_conv2d(y, p[3], p[4], .padding = 1));
    y = td_max_pool2d(td_add(y, z), .kernel = 2);
    y = td_dropout(y, 0.1, (td_philox_key){ 5, 1 }, step);
    y = td_flatten(td_global_avg_pool2d(y), 1);
    y = td_layer_norm(y, p[5], p[6], 0.0);
    return td_linear(y, p[7], p[8]);
}

/* Plain gradient descent. */
static double train_step(network *net, td_tensor *x, td_tensor *labels, uint64_t step)
{
    td_step_begin();
    td_tensor *loss = td_cross_entropy(forward(net, x, step), labels, .label_smoothing = 0.05);
    for (int i = 0; i < PARAMETERS; i++) {
        td_zero_grad_of(net->p[i]);
    }
    td_backward(loss);
    td_no_grad_begin();
    for (int i = 0; i < PARAMETERS; i++) {
        td_add_(net->p[i], td_mul_scalar(td_grad(net->p[i]), -0.2));
    }
    td_no_grad_end();
    double value = td_item(loss);
    td_step_end();
    return value;
}

typedef struct outcome {
    double loss[STEPS];
    float weights[19 * 19 * 9], gradients[19 * 19 * 9], mean[19];
} outcome;

static outcome train(int threads)
{
    td_set_threads(TD_CPU, threads);
    network net = make_network();
    td_generator g;
    td_generator_seed(&g, 4);
    td_tensor *x = td_new_layout(TD_SHAPE(BATCH, 3, 8, 8), TD_F32, TD_IMAGE, TD_CPU);
    td_tensor *labels = td_new(TD_SHAPE(BATCH), TD_I64, TD_CPU);
    td_normal_(x, 0.0, 1.0, &g);
    for (int64_t i = 0; i < BATCH; i++) {
        td_set(labels, &i, (double)(i * i % CLASSES));
    }
    outcome o;
    uint64_t hash = 0;
    for (uint64_t i = 0; i < STEPS; i++) {
        o.loss[i] = train_step(&net, x, labels, i);
        td_memory_stats memory = td_step_memory(TD_CPU);
        if (i >= 2) {
            assert_true(memory.address_hash == hash);
        }
        hash = memory.address_hash;
    }
    td_read(net.p[3], o.weights, TD_F32);
    td_read(td_grad(net.p[3]), o.gradients, TD_F32);
    td_read(net.mean, o.mean, TD_F32);
    td_free(x);
    td_free(labels);
    free_network(&net);
    td_set_threads(TD_CPU, 0);
    return o;
}

static void test_same_bits_for_any_number_of_threads(void **state)
{
    (void)state;
    outcome one = train(1);
    assert_true(one.loss[STEPS - 1] < 0.8 * one.loss[0]);
    const int threads[] = { 1, 2, 3, 8 };
    for (int i = 0; i < 4; i++) {
        outcome other = train(threads[i]);
        assert_memory_equal(one.loss, other.loss, sizeof one.loss);
        assert_memory_equal(one.weights, other.weights, sizeof one.weights);
        assert_memory_equal(one.gradients, other.gradients, sizeof one.gradients);
        assert_memory_equal(one.mean, other.mean, sizeof one.mean);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits_for_any_number_of_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
