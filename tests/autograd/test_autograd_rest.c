/* Backward in two halves: td_backward(.rest = &rest), td_backward_rest. The same bits as undivided,
 * hooks run once, memory is given back, mistakes are named. */
#include "autograd/hooks.h"
#include "autograd/ops/shapes.h"
#include "nn/module.h"
#include "nn/nn.h"
#include "tensor/extend.h"
#include "tests/help/expect_fatal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BATCHES = 4, MOST = 32 };

/* ---- a network with all that can be divided, and other operations between ---- */

typedef struct rest_net {
    td_module *conv, *bn, *fc, *head;
    td_tensor *square; /* used twice */
    td_tensor *x[BATCHES];
    td_tensor *leaves[MOST]; /* all of them */
    int count, ready;
} rest_net;

static void list_leaves(rest_net *n, const td_module *m)
{
    for (int i = 0; i < m->tensor_count; i++) {
        if (!m->tensors[i].buffer) {
            n->leaves[n->count++] = m->tensors[i].tensor;
        }
    }
}

static rest_net *make_net(void)
{
    rest_net *n = calloc(1, sizeof *n);
    assert_non_null(n);
    td_manual_seed(3);
    n->conv = td_nn_conv2d(3, 5, .kernel = 3, .padding = 1);
    n->bn = td_nn_batch_norm2d(5);
    n->fc = td_nn_linear(5, 5);
    n->head = td_nn_linear(5, 1);
    td_module *all[] = { n->conv, n->bn, n->fc, n->head };
    for (int i = 0; i < 4; i++) {
        list_leaves(n, all[i]);
    }
    n->square = n->leaves[n->count++] = td_new(TD_SHAPE(5, 5), TD_F32, TD_CPU);
    td_normal_(n->square, 0.0, 1.0, td_default_generator());
    td_requires_grad(n->square, true);
    for (int k = 0; k < BATCHES; k++) { /* as what a stage before has sent */
        n->x[k] = td_new(TD_SHAPE(2, 3, 4, 4), TD_F32, TD_CPU);
        td_normal_(n->x[k], 0.0, 1.0, td_default_generator());
        td_requires_grad(n->x[k], true);
    }
    return n;
}

static void free_net(rest_net *n)
{
    td_module_free(n->conv);
    td_module_free(n->bn);
    td_module_free(n->fc);
    td_module_free(n->head);
    td_free(n->square);
    for (int k = 0; k < BATCHES; k++) {
        td_free(n->x[k]);
    }
    free(n);
}

static td_tensor *forward(rest_net *n, int k)
{
    int64_t scope = td_scope_begin();
    td_tensor *x = td_reshape(n->x[k], td_shape_of(n->x[k])); /* so it is computed */
    td_tensor *h = td_relu(td_forward(n->bn, td_forward(n->conv, x)));
    h = td_flatten(td_global_avg_pool2d(h), 1);
    h = td_add(h, td_matmul(td_matmul(h, n->square), n->square));
    td_tensor *y = td_mean(td_forward(n->head, td_tanh(td_forward(n->fc, h))));
    td_scope_end(scope, y);
    return y;
}

/* The gradients of all leaves and inputs, one after the other. */
static int64_t read_gradients(const rest_net *n, float *to)
{
    int64_t count = 0;
    for (int i = 0; i < n->count + BATCHES; i++) {
        const td_tensor *leaf = i < n->count ? n->leaves[i] : n->x[i - n->count];
        const td_tensor *g = td_grad(leaf);
        assert_non_null(g);
        td_read(g, to + count, TD_F32);
        count += td_numel(g);
    }
    return count;
}

/* late < 0: undivided. Otherwise the second half of batch k runs after the first of k + late. */
static int64_t run(int late, float *gradients)
{
    rest_net *n = make_net();
    td_step_begin();
    td_tensor *loss[BATCHES];
    td_rest *rest[BATCHES];
    for (int k = 0; k < BATCHES; k++) {
        loss[k] = forward(n, k);
    }
    for (int k = 0; k < BATCHES + (late > 0 ? late : 0); k++) {
        if (k < BATCHES) {
            td_backward(loss[k], .rest = late >= 0 ? &rest[k] : NULL);
            assert_non_null(td_grad(n->x[k]));
        }
        if (late >= 0 && k >= late) {
            td_backward_rest(rest[k - late]);
        }
    }
    int64_t count = read_gradients(n, gradients);
    td_step_end();
    free_net(n);
    return count;
}

static void test_same_bits(void **state)
{
    (void)state;
    static float whole[4096], halves[4096];
    int64_t count = run(-1, whole);
    for (int late = 0; late <= BATCHES; late++) {
        assert_int_equal(run(late, halves), count);
        assert_memory_equal(halves, whole, (size_t)count * sizeof *whole);
    }
}

/* ---- hooks ---- */

static void count_ready(td_tensor *leaf, void *user)
{
    (void)leaf;
    ++*(int *)user;
}

static void count_end(void *user)
{
    ++*(int *)user;
}

/* A weight is ready when the last rest that it waits for has run; what does not wait (a norm's) at
 * once; backward ends once. */
static void test_hooks(void **state)
{
    (void)state;
    rest_net *n = make_net();
    int weight = 0, norm = 0, twice = 0, ends = 0;
    assert_true(td_on_grad_ready(n->fc->tensors[0].tensor, count_ready, &weight) > 0);
    assert_true(td_on_grad_ready(n->bn->tensors[0].tensor, count_ready, &norm) > 0);
    assert_true(td_on_grad_ready(n->square, count_ready, &twice) > 0);
    int hook = td_on_backward_end(count_end, &ends);
    td_step_begin();
    td_rest *first, *second;
    td_tensor *a = forward(n, 0), *b = forward(n, 1);
    td_backward(a, .rest = &first);
    assert_true(weight == 0 && norm == 1 && twice == 0 && ends == 0);
    td_backward(b, .rest = &second);
    td_backward_rest(first);
    assert_true(weight == 0 && norm == 2 && twice == 0 && ends == 0);
    td_backward_rest(second);
    assert_true(weight == 1 && twice == 1 && ends == 1);
    td_step_end();
    td_remove_backward_end_hook(hook);
    free_net(n);
}

/* ---- memory ---- */

/* Bytes of step memory after the forwards, and after everything. */
static void test_memory(void **state)
{
    (void)state;
    rest_net *n = make_net();
    td_step_begin();
    size_t before = td_step_memory(TD_CPU).in_use;
    td_tensor *loss = forward(n, 0);
    size_t held = td_step_memory(TD_CPU).in_use;
    td_rest *rest;
    td_backward(loss, .rest = &rest);
    size_t half = td_step_memory(TD_CPU).in_use;
    td_backward_rest(rest);
    size_t after = td_step_memory(TD_CPU).in_use;
    assert_true(after < half && half < held + 4096 && after <= before + 1024); /* the loss */
    td_step_end();
    free_net(n);
}

/* ---- mistakes ---- */

static void test_mistakes(void **state)
{
    (void)state;
    rest_net *n = make_net();
    td_step_begin();
    td_rest *rest;
    td_tensor *y = td_forward(n->fc, td_tanh(n->square));
    td_tensor *mean = td_mean(y), *sum = td_sum(y);
    td_backward(mean, .rest = &rest);
    expect_fatal("has left a rest of linear", td_backward(sum));
    td_step_abandon();
    td_step_begin();
    td_tensor *loss = forward(n, 0);
    td_backward(loss, .rest = &rest);
    td_backward_rest(rest);
    expect_fatal("this rest has run already", td_backward_rest(rest));
    td_step_abandon();
    expect_fatal("there is no rest", td_backward_rest(NULL));
    free_net(n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_hooks),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_mistakes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
