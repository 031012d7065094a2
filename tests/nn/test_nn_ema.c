/* Averages of weights: their formula, swapping, checkpoints, and that they move with the
 * parameters. */
#include "nn/params.h"
#include "nn/extra/inspect.h"
#include "tandem.h"
#include "tests/help/expect_fatal.h"
#include "tests/help/temp_folder.h"
#include "nn/io/safetensors.h"
#include "tests/help/entry_data.h"
#include "tensor/extend.h"
#include "nn/module.h"

#include <math.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BATCH = 6, MOST_VALUES = 512, MOST_TENSORS = 16 };

typedef struct job {
    td_module *net;
    td_optim *optim;
    td_ema *ema;
    td_tensor *x, *y;
} job;

/* A net with all that has state: filters, matrices, running statistics, dropout. */
static void job_open(job *j, uint64_t seed, td_dtype dtype, const td_ema_options *options)
{
    td_manual_seed(seed);
    j->net =
        td_nn_sequential(td_nn_conv2d(2, 3, .kernel_hw = { 3, 2 }), td_nn_batch_norm2d(3),
                         td_nn_relu(), td_nn_flatten(), td_nn_dropout(0.2), td_nn_linear(18, 4));
    assert_int_equal(td_module_to(j->net, TD_CPU, dtype), TD_OK);
    j->optim = td_sgd(td_parameters(j->net), .lr = 0.1, .momentum = 0.9);
    j->ema = NULL;
    if (options != NULL) {
        td_ema_options given = *options;
        given.model = j->net;
        j->ema = td_ema_new_at(given, TD_HERE);
    }
    j->x = td_new_layout(TD_SHAPE(BATCH, 2, 4, 4), dtype, TD_IMAGE, TD_CPU);
    j->y = td_new(TD_SHAPE(BATCH), TD_I64, TD_CPU);
    td_normal_(j->x, 1.0, 2.0, td_default_generator());
    for (int64_t i = 0; i < BATCH; i++) {
        td_set(j->y, &i, (double)(i % 4));
    }
}

static void job_close(job *j)
{
    td_optim_free(j->optim);
    td_ema_free(j->ema);
    td_module_free(j->net);
    td_free(j->x);
    td_free(j->y);
}

static void step(job *j)
{
    td_step_begin();
    td_tensor *loss = td_cross_entropy(td_forward(j->net, j->x), j->y);
    td_zero_grad(j->optim);
    td_backward(loss);
    td_optim_step(j->optim);
    td_step_end();
    if (j->ema != NULL) {
        td_ema_update(j->ema);
    }
}

/* All values of a model, parameters and statistics, one after the other. */
static int values_of(const td_module *net, double *values)
{
    td_state_list list = td_module_state(net);
    int64_t count = 0;
    for (int i = 0; i < list.count; i++) {
        int64_t n = td_numel(list.items[i].tensor);
        assert_true(count + n <= MOST_VALUES);
        td_read(list.items[i].tensor, values + count, TD_F64);
        count += n;
    }
    td_state_list_free(&list);
    return (int)count;
}

static int averages_of(job *j, double *values)
{
    td_ema_swap(j->ema);
    int count = values_of(j->net, values);
    td_ema_swap(j->ema);
    return count;
}

static double largest_difference(const double *a, const double *b, int count)
{
    double largest = 0.0;
    for (int i = 0; i < count; i++) {
        largest = fmax(largest, fabs(a[i] - b[i]));
    }
    return largest;
}

/* ---- the formula ---- */

static void check_formula(td_dtype dtype, td_ema_options options, double tolerance)
{
    static double mean[MOST_VALUES], now[MOST_VALUES], got[MOST_VALUES], plain[MOST_VALUES];
    job j, other;
    job_open(&j, 3, dtype, &options);
    job_open(&other, 3, dtype, NULL);
    int count = values_of(j.net, mean);
    for (int n = 0; n < 12; n++) {
        double early = (1.0 + n) / (10.0 + n);
        double decay = options.warmup ? fmin(options.decay, early) : options.decay;
        assert_true(td_ema_decay(j.ema) == decay);
        step(&j);
        step(&other);
        assert_int_equal(td_ema_updates(j.ema), n + 1);
        values_of(j.net, now);
        for (int i = 0; i < count; i++) {
            mean[i] = decay * mean[i] + (1.0 - decay) * now[i];
        }
        averages_of(&j, got);
        assert_true(largest_difference(got, mean, count) <= tolerance);
    }
    /* Training goes on as if nobody averaged; and the averages are not the weights. */
    values_of(other.net, plain);
    assert_true(largest_difference(now, plain, count) == 0.0);
    assert_true(largest_difference(got, now, count) > 0.01);
    job_close(&j);
    job_close(&other);
}

static void test_formula(void **state)
{
    (void)state;
    check_formula(TD_F64, (td_ema_options){ .decay = 0.9 }, 1e-14);
    check_formula(TD_F32, (td_ema_options){ .decay = 0.9 }, 1e-6);
    check_formula(TD_F64, (td_ema_options){ .decay = 0.4, .warmup = true }, 1e-14);
    check_formula(TD_F32, (td_ema_options){ .decay = 0.999, .warmup = true }, 1e-6);
}

/* With a decay near 1 an average of constant values must stay them: decay and 1 - decay, each
 * rounded, would not sum to 1. */
static void test_constants_stay(void **state)
{
    (void)state;
    static double before[MOST_VALUES], after[MOST_VALUES];
    job j;
    job_open(&j, 4, TD_F32, &(td_ema_options){ .decay = 0.99999 });
    int count = values_of(j.net, before);
    for (int i = 0; i < 1000; i++) {
        td_ema_update(j.ema);
    }
    averages_of(&j, after);
    assert_true(largest_difference(before, after, count) == 0.0);
    job_close(&j);
}

static void test_default_decay(void **state)
{
    (void)state;
    job j;
    job_open(&j, 4, TD_F32, &(td_ema_options){ .decay = 0.0 });
    assert_true(td_ema_decay(j.ema) == 0.9999);
    job_close(&j);
}

/* ---- swapping ---- */

static void forward(td_module *net, td_tensor *x, float *y)
{
    td_eval(net);
    td_no_grad_begin();
    td_step_begin();
    td_read(td_forward(net, x), y, TD_F32);
    td_step_end();
    td_no_grad_end();
    td_train(net);
}

/* What is evaluated while they are swapped is a model of the averages. */
static void test_swapped_model_computes_with_averages(void **state)
{
    (void)state;
    static double averages[MOST_VALUES], before[MOST_VALUES], after[MOST_VALUES];
    float plain[BATCH * 4], swapped[BATCH * 4], expected[BATCH * 4], back[BATCH * 4];
    job j;
    job_open(&j, 5, TD_F32, &(td_ema_options){ .decay = 0.8 });
    for (int i = 0; i < 5; i++) {
        step(&j);
    }
    values_of(j.net, before);
    averages_of(&j, averages);
    td_module *other = td_module_clone(j.net);
    td_state_list list = td_module_state(other);
    int64_t at = 0;
    for (int i = 0; i < list.count; i++) {
        td_write(list.items[i].tensor, averages + at, TD_F64);
        at += td_numel(list.items[i].tensor);
    }
    td_state_list_free(&list);
    forward(j.net, j.x, plain);
    td_ema_swap(j.ema);
    assert_true(td_ema_swapped(j.ema));
    forward(j.net, j.x, swapped);
    td_ema_swap(j.ema);
    assert_false(td_ema_swapped(j.ema));
    forward(other, j.x, expected);
    forward(j.net, j.x, back);
    assert_memory_equal(swapped, expected, sizeof expected);
    assert_memory_equal(back, plain, sizeof plain);
    assert_true(memcmp(swapped, plain, sizeof plain) != 0);
    assert_true(largest_difference(before, after, values_of(j.net, after)) == 0.0);
    td_module_free(other);
    job_close(&j);
}

/* More elements than are exchanged at a time, of a model with padding between its parameters. */
static void test_swapping_large_models(void **state)
{
    (void)state;
    enum { IN = 301, OUT = 701 };
    td_manual_seed(1);
    td_module *net = td_nn_sequential(td_nn_linear(IN, OUT), td_nn_linear(OUT, 3));
    td_ema *ema = td_ema_new(net, .decay = 0.5);
    td_tensor *weight = net->children[0]->tensors[0].tensor;
    float *before = malloc(sizeof(float) * IN * OUT), *half = malloc(sizeof(float) * IN * OUT);
    td_read(weight, before, TD_F32);
    td_fill_(weight, 0.0);
    td_ema_update(ema);
    td_ema_swap(ema);
    td_read(weight, half, TD_F32);
    for (int i = 0; i < IN * OUT; i++) {
        assert_true(half[i] == 0.5f * before[i]);
    }
    td_ema_swap(ema);
    td_read(weight, half, TD_F32);
    for (int i = 0; i < IN * OUT; i++) {
        assert_true(half[i] == 0.0f);
    }
    free(before);
    free(half);
    td_ema_free(ema);
    td_module_free(net);
}

/* Data parallelism lays the parameters out in another order. */
static void test_reordered_parameters(void **state)
{
    (void)state;
    static double before[MOST_VALUES], after[MOST_VALUES];
    job j;
    job_open(&j, 6, TD_F32, &(td_ema_options){ .decay = 0.7 });
    step(&j);
    int count = averages_of(&j, before);
    assert_int_equal(td_params_reorder(td_parameters(j.net), (int[]){ 5, 3, 1, 0, 2, 4 }), TD_OK);
    averages_of(&j, after);
    assert_true(largest_difference(before, after, count) == 0.0);
    step(&j); /* and go on there */
    job same;
    job_open(&same, 6, TD_F32, &(td_ema_options){ .decay = 0.7 });
    step(&same);
    step(&same);
    averages_of(&j, before);
    averages_of(&same, after);
    assert_true(largest_difference(before, after, count) == 0.0);
    job_close(&j);
    job_close(&same);
}

static void test_mistakes(void **state)
{
    (void)state;
    job j;
    job_open(&j, 7, TD_F32, &(td_ema_options){ .decay = 0.7 });
    td_ema_swap(j.ema);
    expect_fatal("td_ema_swap them back first", td_ema_update(j.ema));
    expect_fatal("td_ema_swap them back first", td_checkpoint_save("never", j.net, .ema = j.ema));
    expect_fatal("td_ema_swap them back first", td_checkpoint_load("never", j.net, .ema = j.ema));
    td_ema_swap(j.ema);
    expect_fatal("between 0 and 1", td_ema_new(j.net, .decay = 1.0));
    job_close(&j);
}

/* ---- checkpoints ---- */

static void save(job *j, const char *path)
{
    assert_int_equal(
        td_checkpoint_save(path, j->net, .optim = j->optim, .ema = j->ema, .with_random = true),
        TD_OK);
}

static td_status load(job *j, const char *path, bool with_average)
{
    return td_checkpoint_load(path, j->net, .optim = j->optim, .ema = with_average ? j->ema : NULL,
                              .with_random = true);
}

/* A resumed run has the averages of one that was not interrupted, bit for bit; one that starts them
 * anew has others. */
static void test_resume(void **state)
{
    (void)state;
    static double expected[MOST_VALUES], got[MOST_VALUES];
    const td_ema_options options = { .decay = 0.9, .warmup = true };
    const char *path = temp_path("run.safetensors");
    job j;
    job_open(&j, 8, TD_F32, &options);
    for (int i = 0; i < 7; i++) {
        step(&j);
        if (i == 3) {
            save(&j, path);
        }
    }
    int count = averages_of(&j, expected);
    job_close(&j);
    for (int with = 0; with < 2; with++) {
        job_open(&j, 8, TD_F32, &options); /* the same data */
        td_fill_(td_params_flat(td_parameters(j.net)), 0.1);
        step(&j);
        assert_int_equal(load(&j, path, with), TD_OK);
        assert_int_equal(td_ema_updates(j.ema), with ? 4 : 1);
        for (int i = 0; i < 3; i++) {
            step(&j);
        }
        averages_of(&j, got);
        assert_true((largest_difference(got, expected, count) == 0.0) == with);
        job_close(&j);
    }
}

static void test_what_a_file_holds(void **state)
{
    (void)state;
    static double averages[MOST_VALUES], got[MOST_VALUES];
    const char *path = temp_path("run.safetensors");
    job j;
    job_open(&j, 9, TD_F32, &(td_ema_options){ .decay = 0.6 });
    step(&j);
    step(&j);
    averages_of(&j, averages);
    save(&j, path);
    td_safetensors *file;
    assert_int_equal(td_safetensors_open(path, &file), TD_OK);
    assert_string_equal(td_safetensors_metadata(file, "ema.updates"), "2");
    td_state_list list = td_module_state(j.net);
    int64_t at = 0;
    for (int i = 0; i < list.count; i++) {
        char name[64];
        snprintf(name, sizeof name, "ema.%s", list.items[i].name);
        const td_safetensors_entry *entry = td_safetensors_find(file, name);
        assert_non_null(entry);
        float *values = entry_data(file, entry);
        for (int64_t k = 0; k < td_numel(list.items[i].tensor); k++) {
            assert_true((double)values[k] == averages[at++]);
        }
        free(values);
    }
    td_state_list_free(&list);
    td_safetensors_close(file);
    /* The model alone, for use: what was swapped in is what is saved. */
    td_ema_swap(j.ema);
    assert_int_equal(td_checkpoint_save(path, j.net), TD_OK);
    td_ema_swap(j.ema);
    assert_int_equal(td_checkpoint_load(path, j.net), TD_OK);
    assert_true(largest_difference(got, averages, values_of(j.net, got)) == 0.0);
    job_close(&j);
}

static void test_a_file_without_them(void **state)
{
    (void)state;
    static double before[MOST_VALUES], after[MOST_VALUES];
    const char *path = temp_path("run.safetensors");
    job j;
    job_open(&j, 10, TD_F32, NULL);
    step(&j);
    save(&j, path);
    job_close(&j);
    job_open(&j, 11, TD_F32, &(td_ema_options){ .decay = 0.5 });
    int count = averages_of(&j, before);
    assert_int_equal(load(&j, path, true), TD_E_MISMATCH);
    assert_non_null(strstr(td_last_error(), "averages of the weights (ema.*)"));
    averages_of(&j, after);
    assert_true(largest_difference(before, after, count) == 0.0);
    assert_int_equal(load(&j, path, false), TD_OK);
    job_close(&j);
}

#define IN_FOLDER(test)                                                                            \
    cmocka_unit_test_setup_teardown(test, temp_folder_setup, temp_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formula),
        cmocka_unit_test(test_constants_stay),
        cmocka_unit_test(test_default_decay),
        cmocka_unit_test(test_swapped_model_computes_with_averages),
        cmocka_unit_test(test_swapping_large_models),
        cmocka_unit_test(test_reordered_parameters),
        cmocka_unit_test(test_mistakes),
        IN_FOLDER(test_resume),
        IN_FOLDER(test_what_a_file_holds),
        IN_FOLDER(test_a_file_without_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
