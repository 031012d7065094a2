/* Optimizers that keep less: they learn as Adam does, their state has the bytes that it should
 * have, and it goes through files and through every change of layout without loss. */
#include "tests/help/sanitized.h"
#include "tandem.h"
#include "autograd/hooks.h"
#include "nn/extra/compact.h"
#include "nn/extra/inspect.h"
#include "nn/module.h"
#include "nn/params.h"
#include "tensor/extend.h"
#include "tests/help/expect_fatal.h"
#include "tests/help/temp_folder.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- a model of blocks, as a transformer's, that learns a rule by heart ---- */

enum { ROWS = 64, WIDTH = 48, CLASSES = 10, INPUTS = 20, TESTED = 4096 };

typedef struct job {
    td_module *net;
    td_params *params;
    td_optim *optim;
} job;

typedef td_optim *(*make_optim)(td_params *params);

static td_optim *adam(td_params *p)
{
    return td_adam(p, .lr = 1e-3);
}

static td_optim *adam16(td_params *p)
{
    return td_adam_compact(p, .bits = 16, .lr = 1e-3);
}

static td_optim *adam8(td_params *p)
{
    return td_adam_compact(p, .lr = 1e-3);
}

static td_module *block(void)
{
    return td_nn_sequential(td_nn_layer_norm(WIDTH), td_nn_linear(WIDTH, 4 * WIDTH), td_nn_gelu(),
                            td_nn_linear(4 * WIDTH, WIDTH));
}

static void open_job(job *j, make_optim make)
{
    td_manual_seed(7);
    j->net = td_nn_sequential(td_nn_linear(INPUTS, WIDTH), block(), block(),
                              td_nn_layer_norm(WIDTH), td_nn_linear(WIDTH, CLASSES));
    j->params = td_parameters(j->net);
    j->optim = make(j->params);
    assert_non_null(j->optim);
}

static void close_job(job *j)
{
    td_optim_free(j->optim);
    td_module_free(j->net);
}

/* The label is the largest of ten products of pairs of the inputs. */
static void draw(td_generator *g, int64_t rows, td_tensor *x, td_tensor *y)
{
    td_normal_(x, 0.0, 1.0, g);
    const float *v = td_data(x);
    int64_t *label = td_data_rw(y);
    for (int64_t i = 0; i < rows; i++, v += INPUTS) {
        label[i] = 0;
        for (int c = 1; c < CLASSES; c++) {
            bool larger = v[2 * c] * v[2 * c + 1] > v[2 * label[i]] * v[2 * label[i] + 1];
            label[i] = larger ? c : label[i];
        }
    }
}

/* Trains from step `from` to step `to`; every step's samples are its own. */
static void train(job *j, int from, int to)
{
    td_tensor *x = td_new(TD_SHAPE(ROWS, INPUTS), TD_F32, TD_CPU);
    td_tensor *y = td_new(TD_SHAPE(ROWS), TD_I64, TD_CPU);
    for (int i = from; i < to; i++) {
        td_generator g;
        td_generator_seed(&g, 1000 + (uint64_t)i);
        draw(&g, ROWS, x, y);
        TD_STEP {
            td_tensor *loss = td_cross_entropy(td_forward(j->net, x), y);
            td_zero_grad(j->optim);
            td_backward(loss);
            td_optim_step(j->optim);
        }
    }
    td_free(x);
    td_free(y);
}

/* Over samples that no step has seen. */
static double loss_of(job *j)
{
    td_tensor *x = td_new(TD_SHAPE(TESTED, INPUTS), TD_F32, TD_CPU);
    td_tensor *y = td_new(TD_SHAPE(TESTED), TD_I64, TD_CPU);
    td_generator g;
    td_generator_seed(&g, 1);
    draw(&g, TESTED, x, y);
    double loss = NAN;
    TD_STEP {
        loss = td_item(td_cross_entropy(td_forward(j->net, x), y));
    }
    td_free(x);
    td_free(y);
    return loss;
}

static double trained_loss(make_optim make, int steps)
{
    job j;
    open_job(&j, make);
    train(&j, 0, steps);
    double loss = loss_of(&j);
    close_job(&j);
    return loss;
}

static void test_they_learn_as_adam_does(void **state)
{
    (void)state;
    int steps = checks_part() ? 50 : 500;
    double usual = trained_loss(adam, steps), half = trained_loss(adam16, steps);
    double eighth = trained_loss(adam8, steps);
    printf("# loss after %d steps: Adam %.5f, 16 bits %.5f, 8 bits %.5f\n", steps, usual, half,
           eighth);
    assert_true(steps < 500 || usual < 1.0); /* of log 10 = 2.3 */
    assert_true(fabs(half / usual - 1.0) < 0.005);
    assert_true(fabs(eighth / usual - 1.0) < 0.005);
}

/* ---- bytes, files, layouts ---- */

/* Every parameter takes whole cache lines. */
static size_t padded_count(const job *j)
{
    size_t count = 0;
    for (int i = 0; i < td_params_count(j->params); i++) {
        count += ((size_t)td_params_get(j->params, i)->count + 15) / 16 * 16;
    }
    return count;
}

static void test_bytes(void **state)
{
    (void)state;
    static const make_optim makes[] = { adam, adam16, adam8 };
    static const double bytes[] = { 8.0, 4.0, 2.5 };
    for (int i = 0; i < 3; i++) {
        job j;
        open_job(&j, makes[i]);
        assert_true((double)td_optim_state_bytes(j.optim) == bytes[i] * (double)padded_count(&j));
        close_job(&j);
    }
}

static void check_same_values(job *a, job *b)
{
    for (int i = 0; i < td_params_count(a->params); i++) {
        const td_param *p = td_params_get(a->params, i);
        assert_memory_equal(td_data(p->tensor), td_data(td_params_get(b->params, i)->tensor),
                            (size_t)p->count * sizeof(float));
    }
}

/* Goes on from a file, and then as the run that was not interrupted; also where the parameters lie
 * in another order. */
static void check_resume(make_optim make, bool reordered)
{
    const char *path = temp_path("compact.safetensors");
    job a, b;
    open_job(&a, make);
    open_job(&b, make);
    train(&a, 0, 4);
    if (reordered) {
        int order[32], count = td_params_count(b.params);
        for (int k = 0; k < count; k++) {
            order[k] = (k + 3) % count;
        }
        assert_int_equal(td_params_reorder(b.params, order), TD_OK);
    }
    assert_int_equal(td_checkpoint_save(path, a.net, .optim = a.optim), TD_OK);
    assert_int_equal(td_checkpoint_load(path, b.net, .optim = b.optim), TD_OK);
    if (reordered) {
        int order[32], count = td_params_count(a.params);
        for (int k = 0; k < count; k++) {
            order[k] = count - 1 - k;
        }
        assert_int_equal(td_params_reorder(a.params, order), TD_OK); /* state moves, too */
    }
    train(&a, 4, 8);
    train(&b, 4, 8);
    check_same_values(&a, &b);
    close_job(&a);
    close_job(&b);
}

static void test_resumed_runs_go_on_bit_for_bit(void **state)
{
    (void)state;
    for (int reordered = 0; reordered < 2; reordered++) {
        check_resume(adam8, reordered);
        check_resume(adam16, reordered);
    }
}

/* Each goes on from the files of the others, and nothing is lost on the way to f32. */
static void test_files_are_those_of_adam(void **state)
{
    (void)state;
    static const make_optim makes[] = { adam8, adam16, adam };
    const char *path = temp_path("any.safetensors"), *second = temp_path("second.safetensors");
    for (int from = 0; from < 3; from++) {
        for (int to = 0; to < 3; to++) {
            job a, b;
            open_job(&a, makes[from]);
            open_job(&b, makes[to]);
            train(&a, 0, 3);
            assert_int_equal(td_checkpoint_save(path, a.net, .optim = a.optim), TD_OK);
            assert_int_equal(td_checkpoint_load(path, b.net, .optim = b.optim), TD_OK);
            assert_int_equal(td_checkpoint_save(second, b.net, .optim = b.optim), TD_OK);
            check_same_values(&a, &b);
            if (makes[to] == adam || to == from) {
                size_t sizes[2];
                char *first = temp_read(path, &sizes[0]), *again = temp_read(second, &sizes[1]);
                assert_int_equal(sizes[0], sizes[1]);
                assert_memory_equal(first, again, sizes[0]);
                free(first);
                free(again);
            }
            close_job(&a);
            close_job(&b);
        }
    }
}

static void test_what_is_refused(void **state)
{
    (void)state;
    td_module *net = td_nn_linear(3, 2);
    td_params *params = td_parameters(net);
    expect_fatal("averages of 4 bits: they have 8 or 16", td_adam_compact(params, .bits = 4));
    td_module_free(net);
    net = td_nn_linear(3, 2);
    assert_int_equal(td_module_to(net, TD_CPU, TD_F64), TD_OK);
    params = td_parameters(net);
    expect_fatal("the parameters are f64", td_adam_compact(params));
    td_module_free(net);
}

#define IN_FOLDER(test)                                                                            \
    cmocka_unit_test_setup_teardown(test, temp_folder_setup, temp_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_they_learn_as_adam_does), cmocka_unit_test(test_bytes),
        IN_FOLDER(test_resumed_runs_go_on_bit_for_bit), IN_FOLDER(test_files_are_those_of_adam),
        cmocka_unit_test(test_what_is_refused),
    };
    return cmocka_run_group_tests_name("compact optimizers", tests, NULL, NULL);
}
