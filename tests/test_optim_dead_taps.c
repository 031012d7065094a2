/* Filters of which some taps meet only padding: their gradients are neither written nor read, and
 * their weights still decay. Every run is held against one whose gradients are whole, because a
 * hook watches them: all bits must be equal. */
#include "tests/dead_taps.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { CHANNELS = 5, FILTERS = 6, TAPS = 9, WEIGHTS = FILTERS * CHANNELS * TAPS, MAX_STEPS = 6 };

typedef struct run {
    dead_taps_optim optimizer;
    bool watched;     /* a hook on the weights: the rule is off */
    int backwards;    /* before each step of the optimizer */
    const int *sizes; /* of the images, one for each backward; 0 ends the run */
    int written_at;   /* the backward before which somebody else writes the gradient's memory; -1 */
} run;

static void ignore(td_tensor *leaf, void *user)
{
    (void)leaf;
    (void)user;
}

/* The weights after the run, and the bytes of the gradient of its last backward. */
static void play(const run *r, double *weights, double *gradient)
{
    td_manual_seed(11);
    td_module *net = td_nn_conv2d(
        CHANNELS, FILTERS, &(td_nn_conv2d_options){ .kernel = { 3, 3 }, .padding = { 1, 1 } });
    td_params *params = td_parameters(net);
    td_tensor *w = td_params_get(params, 0)->tensor;
    if (r->watched) {
        td_on_grad_ready(w, ignore, NULL);
    }
    td_optim *o = dead_taps_open(params, r->optimizer);
    for (int i = 0; r->sizes[i] > 0; i++) {
        if (i == r->written_at) {
            td_fill_(td_grad_buffer(w), 3.0);
        }
        if (i % r->backwards == 0) {
            td_zero_grad(o);
        }
        dead_taps_backward(net, 3, CHANNELS, r->sizes[i], i);
        if ((i + 1) % r->backwards == 0) {
            td_optim_step(o);
        }
    }
    td_read(w, weights, TD_F64);
    td_read(td_grad_buffer(w), gradient, TD_F64);
    td_optim_free(o);
    td_module_free(net);
}

static void check_equal(run r)
{
    static double plain[WEIGHTS], whole[WEIGHTS], gradient[WEIGHTS], whole_gradient[WEIGHTS];
    r.watched = false;
    play(&r, plain, gradient);
    r.watched = true;
    play(&r, whole, whole_gradient);
    assert_memory_equal(plain, whole, sizeof plain);
    for (int i = 0; i < WEIGHTS; i++) { /* -0 or 0: no matter */
        assert_true(gradient[i] == whole_gradient[i]);
    }
}

static void check_all(const int *sizes, int backwards, int written_at)
{
    for (dead_taps_optim which = DEAD_TAPS_SGD; which < DEAD_TAPS_OPTIMS; which++) {
        check_equal((run){
            .optimizer = which, .backwards = backwards, .sizes = sizes, .written_at = written_at });
    }
}

static void test_the_same_bits(void **state)
{
    (void)state;
    check_all((const int[]){ 1, 1, 1, 1, 0 }, 1, -1);
}

/* What was live at one size is stale at the next. */
static void test_sizes_change(void **state)
{
    (void)state;
    check_all((const int[]){ 1, 4, 1, 1, 3, 1, 0 }, 1, -1);
}

static void test_gradients_add_up(void **state)
{
    (void)state;
    check_all((const int[]){ 1, 1, 4, 1, 1, 4, 0 }, 2, -1);
}

/* From then on nothing is known about the rest of the buffer. */
static void test_somebody_writes_the_gradient(void **state)
{
    (void)state;
    check_all((const int[]){ 1, 1, 1, 1, 0 }, 1, 2);
    check_all((const int[]){ 1, 1, 1, 1, 0 }, 2, 1);
}

/* The rule is what is under test: on 1x1 images the middle tap alone is live; with a hook, all. */
static void test_only_the_middle_is_live(void **state)
{
    (void)state;
    td_module *net = td_nn_conv2d(
        CHANNELS, FILTERS, &(td_nn_conv2d_options){ .kernel = { 3, 3 }, .padding = { 1, 1 } });
    td_tensor *w = td_params_get(td_parameters(net), 0)->tensor;
    int64_t begin = -1, end = -1;
    dead_taps_backward(net, 3, CHANNELS, 1, 0);
    assert_true(td_grad_live_part(w, &begin, &end));
    assert_int_equal(begin, 4 * FILTERS * CHANNELS);
    assert_int_equal(end, 5 * FILTERS * CHANNELS);
    dead_taps_backward(net, 3, CHANNELS, 4, 1);
    assert_false(td_grad_live_part(w, &begin, &end));
    td_on_grad_ready(w, ignore, NULL);
    td_zero_grad_of(w);
    dead_taps_backward(net, 3, CHANNELS, 1, 2);
    assert_false(td_grad_live_part(w, &begin, &end));
    td_module_free(net);
}

/* A weight without a gradient: v = momentum * v + decay * p, exactly as the others. */
static void test_dead_taps_decay(void **state)
{
    (void)state;
    static double before[WEIGHTS], after[WEIGHTS], gradient[WEIGHTS];
    play(&(run){ .optimizer = DEAD_TAPS_MOMENTUM,
                 .sizes = (const int[]){ 0 },
                 .backwards = 1,
                 .written_at = -1 },
         before, gradient);
    play(&(run){ .optimizer = DEAD_TAPS_MOMENTUM,
                 .sizes = (const int[]){ 1, 0 },
                 .backwards = 1,
                 .written_at = -1 },
         after, gradient);
    int dead = 0;
    for (int i = 0; i < WEIGHTS; i++) { /* [filter][channel][tap] */
        if (i % TAPS != 4) {
            double expected = before[i] * (1 - 0.05 * 0.01 * 1.9); /* Nesterov: v twice */
            assert_true(fabs(after[i] - expected) <= 1e-7 * fabs(before[i]));
            assert_true(after[i] != before[i] && gradient[i] == 0);
            dead++;
        }
    }
    assert_int_equal(dead, 8 * FILTERS * CHANNELS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_same_bits),
        cmocka_unit_test(test_sizes_change),
        cmocka_unit_test(test_gradients_add_up),
        cmocka_unit_test(test_somebody_writes_the_gradient),
        cmocka_unit_test(test_only_the_middle_is_live),
        cmocka_unit_test(test_dead_taps_decay),
    };
    return cmocka_run_group_tests_name("optimizers: taps that meet only padding", tests, NULL,
                                       NULL);
}
