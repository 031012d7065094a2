/* Weights that no data meets decay late, several steps at once (tensor/cpu/ops_optim_late.c). Every
 * run is held against one whose weights' address is known to the caller, where nothing is put off:
 * all bits must be equal, whoever looks, and whenever. */
#include "tandem.h"

#include "nn/optim/ema.h"
#include "nn/optim/optim_internal.h"
#include "nn/params.h"
#include "tensor/storage.h"
#include "tests/dead_taps.h"
#include "tests/temp_folder.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { CHANNELS = 128, FILTERS = 65, TAPS = 9, WEIGHTS = FILTERS * CHANNELS * TAPS };

typedef struct job {
    td_module *net;
    td_params *params;
    td_tensor *w;
    td_optim *optim;
    int number; /* of the next batch */
} job;

/* shown: the caller takes the address of the parameters, so that nothing may be put off. */
static job open_job(dead_taps_optim which, bool shown)
{
    job j = { .number = 0 };
    td_manual_seed(11);
    j.net = td_nn_conv2d(CHANNELS, FILTERS,
                         &(td_nn_conv2d_options){ .kernel = { 3, 3 }, .padding = { 1, 1 } });
    j.params = td_parameters(j.net);
    j.w = td_params_get(j.params, 0)->tensor;
    j.optim = dead_taps_open(j.params, which);
    assert_non_null(j.optim);
    if (shown) {
        assert_non_null(td_data(td_params_flat(j.params)));
    }
    return j;
}

static void close_job(job *j)
{
    td_optim_free(j->optim);
    td_module_free(j->net);
}

/* One training step on images of size x size. */
static void step(job *j, int size)
{
    td_zero_grad(j->optim);
    dead_taps_backward(j->net, 2, CHANNELS, size, j->number);
    td_optim_set_lr(j->optim, 0.01 + 0.001 * (j->number % 7)); /* constants differ by step */
    td_optim_step(j->optim);
    j->number++;
}

static void steps(job *j, int count, int size)
{
    for (int i = 0; i < count; i++) {
        step(j, size);
    }
}

/* How many elements of the weights are not in memory what they are for who asks. */
static int stale(const job *j)
{
    static float before[WEIGHTS], after[WEIGHTS];
    memcpy(before, td_ptr_as_is(j->w), sizeof before);
    memcpy(after, td_ptr(j->w), sizeof after);
    int count = 0;
    for (int i = 0; i < WEIGHTS; i++) {
        count += before[i] != after[i];
    }
    return count;
}

static void assert_same(job *a, job *b)
{
    static float mine[WEIGHTS], other[WEIGHTS];
    td_read(a->w, mine, TD_F32);
    td_read(b->w, other, TD_F32);
    assert_memory_equal(mine, other, sizeof mine);
    for (int i = 0; i < TD_OPTIM_STATES; i++) {
        if (a->optim->state[i] != NULL) {
            td_tensor *left = td_params_view(a->params, a->optim->state[i], 0);
            td_tensor *right = td_params_view(b->params, b->optim->state[i], 0);
            td_read(left, mine, TD_F32);
            td_read(right, other, TD_F32);
            assert_memory_equal(mine, other, sizeof mine);
            td_free(left);
            td_free(right);
        }
    }
}

/* After each number of steps up to more than are put off at most. */
static void test_the_same_bits(void **state)
{
    (void)state;
    for (dead_taps_optim which = DEAD_TAPS_SGD; which < DEAD_TAPS_OPTIMS; which++) {
        for (int count = 1; count < 40; count += which == DEAD_TAPS_MOMENTUM ? 3 : 12) {
            job late = open_job(which, false), now = open_job(which, true);
            steps(&late, count, 1);
            steps(&now, count, 1);
            assert_non_null(late.w->storage->late);
            assert_null(now.w->storage->late);
            assert_same(&late, &now);
            close_job(&late);
            close_job(&now);
        }
    }
}

/* What is under test happens: the taps but the middle one wait, and not for ever. */
static void test_they_are_put_off(void **state)
{
    (void)state;
    job late = open_job(DEAD_TAPS_MOMENTUM, false);
    for (int count = 1; count <= 33; count++) {
        step(&late, 1);
        if (count == 1 || count == 15 || count == 33) { /* looking makes them, so it counts anew */
            assert_true(stale(&late) > FILTERS * CHANNELS * (TAPS - 1) * 9 / 10);
            assert_int_equal(stale(&late), 0);
        }
    }
    close_job(&late);
    late = open_job(DEAD_TAPS_MOMENTUM, false);
    steps(&late, 16, 1);
    assert_int_equal(stale(&late), 0);
    close_job(&late);
}

/* The weights are used where they are put off: larger images, and back. */
static void test_sizes_change(void **state)
{
    (void)state;
    static const int sizes[] = { 1, 1, 1, 4, 1, 1, 2, 1, 1, 3, 3, 1, 1, 1 };
    for (dead_taps_optim which = DEAD_TAPS_SGD; which < DEAD_TAPS_OPTIMS; which++) {
        job late = open_job(which, false), now = open_job(which, true);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            step(&late, sizes[i]);
            step(&now, sizes[i]);
        }
        assert_same(&late, &now);
        close_job(&late);
        close_job(&now);
    }
}

/* Some look at a part, some write one. */
static void test_looking_and_writing(void **state)
{
    (void)state;
    job jobs[2] = { open_job(DEAD_TAPS_MOMENTUM, false), open_job(DEAD_TAPS_MOMENTUM, true) };
    double seen[2];
    for (int k = 0; k < 2; k++) {
        job *j = &jobs[k];
        steps(j, 5, 1);
        seen[k] = td_get(j->w, (int64_t[]){ 3, 4, 0, 2 });
        steps(j, 3, 1);
        td_set(j->w, (int64_t[]){ 3, 4, 0, 2 }, 0.75);
        steps(j, 3, 1);
        td_fill_(j->optim->state[0], 0.125);
        steps(j, 3, 1);
        td_tensor *copy = td_clone(j->w);
        steps(j, 2, 1);
        td_copy_(j->w, copy);
        td_free(copy);
        steps(j, 2, 1);
    }
    assert_true(seen[0] == seen[1]);
    assert_same(&jobs[0], &jobs[1]);
    close_job(&jobs[0]);
    close_job(&jobs[1]);
}

/* Who has the address sees the values: from then on nothing waits. */
static void test_a_known_address(void **state)
{
    (void)state;
    job late = open_job(DEAD_TAPS_MOMENTUM, false), now = open_job(DEAD_TAPS_MOMENTUM, true);
    steps(&late, 5, 1);
    steps(&now, 9, 1);
    const float *address = td_data(late.w);
    steps(&late, 4, 1);
    assert_memory_equal(address, td_data(now.w), WEIGHTS * sizeof(float));
    close_job(&late);
    close_job(&now);
}

/* The optimizer goes, another comes; states and parameters part. */
static void test_another_optimizer(void **state)
{
    (void)state;
    job jobs[2] = { open_job(DEAD_TAPS_MOMENTUM, false), open_job(DEAD_TAPS_MOMENTUM, true) };
    for (int k = 0; k < 2; k++) {
        job *j = &jobs[k];
        steps(j, 5, 1);
        td_optim_free(j->optim);
        j->optim = dead_taps_open(j->params, DEAD_TAPS_ADAM);
        steps(j, 4, 1);
        td_optim *first = j->optim;
        j->optim = dead_taps_open(j->params,
                                  DEAD_TAPS_SGD); /* beside the first, over the same parameters */
        steps(j, 3, 1);
        td_optim_free(j->optim);
        j->optim = first;
        steps(j, 3, 1);
    }
    assert_same(&jobs[0], &jobs[1]);
    close_job(&jobs[0]);
    close_job(&jobs[1]);
}

/* Too few to be worth it, beside enough. */
static void test_frozen_and_thawed(void **state)
{
    (void)state;
    job jobs[2] = { open_job(DEAD_TAPS_MOMENTUM, false), open_job(DEAD_TAPS_MOMENTUM, true) };
    for (int k = 0; k < 2; k++) {
        job *j = &jobs[k];
        steps(j, 4, 1);
        td_requires_grad(j->w, false);
        steps(j, 3, 1);
        td_requires_grad(j->w, true);
        steps(j, 4, 1);
    }
    assert_same(&jobs[0], &jobs[1]);
    close_job(&jobs[0]);
    close_job(&jobs[1]);
}

static void *look(void *user)
{
    const job *j = user;
    static _Thread_local float values[WEIGHTS];
    memcpy(values, td_ptr(j->w), sizeof values);
    double sum = 0.0;
    for (int i = 0; i < WEIGHTS; i++) {
        sum += (double)values[i];
    }
    double *result = malloc(sizeof *result);
    assert_non_null(result);
    *result = sum;
    return result;
}

/* Several threads may be the first to look. */
static void test_threads_look(void **state)
{
    (void)state;
    job late = open_job(DEAD_TAPS_MOMENTUM, false), now = open_job(DEAD_TAPS_MOMENTUM, true);
    steps(&late, 7, 1);
    steps(&now, 7, 1);
    double *expected = look(&now), *sums[3];
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, look, &late), 0);
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_join(threads[i], (void **)&sums[i]), 0);
        assert_true(*sums[i] == *expected);
        free(sums[i]);
    }
    free(expected);
    close_job(&late);
    close_job(&now);
}

/* Bytes of a checkpoint of the job as it is, in *size; to be freed. */
static char *saved(job *j, const char *name, long *size)
{
    assert_int_equal(
        td_checkpoint_save(temp_path(name), &(td_checkpoint){ .model = j->net, .optim = j->optim }),
        TD_OK);
    FILE *file = fopen(temp_path(name), "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *size = ftell(file);
    rewind(file);
    char *bytes = malloc((size_t)*size);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, (size_t)*size, file), *size);
    fclose(file);
    return bytes;
}

/* Saved with updates that wait, and loaded over some that do; with an average that looks on. */
static void test_saved_averaged_and_loaded(void **state)
{
    (void)state;
    job jobs[2] = { open_job(DEAD_TAPS_ADAM, false), open_job(DEAD_TAPS_ADAM, true) };
    char *first[2], *second[2];
    long size[2], size_then[2];
    for (int k = 0; k < 2; k++) {
        job *j = &jobs[k];
        steps(j, 7, 1);
        first[k] = saved(j, "first", &size[k]);
        td_ema *ema = td_ema_new(j->net, &(td_ema_options){ .decay = 0.9 });
        assert_non_null(ema);
        for (int i = 0; i < 3; i++) {
            steps(j, 2, 1);
            td_ema_update(ema);
        }
        td_ema_swap(ema); /* the averages are the model's values now */
        steps(j, 2, 1);
        td_ema_swap(ema);
        td_ema_free(ema);
        steps(j, 5, 1);
        assert_int_equal(td_checkpoint_load(temp_path("first"),
                                            &(td_checkpoint){ .model = j->net, .optim = j->optim }),
                         TD_OK);
        steps(j, 4, 1);
        second[k] = saved(j, "second", &size_then[k]);
    }
    assert_int_equal(size[0], size[1]);
    assert_memory_equal(first[0], first[1], (size_t)size[0]);
    assert_int_equal(size_then[0], size_then[1]);
    assert_memory_equal(second[0], second[1], (size_t)size_then[0]);
    for (int k = 0; k < 2; k++) {
        free(first[k]);
        free(second[k]);
        close_job(&jobs[k]);
    }
}

/* The order in memory changes under updates that wait, as after DDP's first step. */
static void test_reordered(void **state)
{
    (void)state;
    job jobs[2] = { open_job(DEAD_TAPS_MOMENTUM, false), open_job(DEAD_TAPS_MOMENTUM, true) };
    for (int k = 0; k < 2; k++) {
        steps(&jobs[k], 5, 1);
        assert_int_equal(td_params_reorder(jobs[k].params, (int[]){ 1, 0 }), TD_OK);
        steps(&jobs[k], 5, 1);
    }
    assert_same(&jobs[0], &jobs[1]);
    close_job(&jobs[0]);
    close_job(&jobs[1]);
}

/* A child of a fork sees the values, and so does its parent. */
static void test_forked(void **state)
{
    (void)state;
    job late = open_job(DEAD_TAPS_MOMENTUM, false), now = open_job(DEAD_TAPS_MOMENTUM, true);
    steps(&late, 6, 1);
    steps(&now, 6, 1);
    pid_t child = fork();
    if (child == 0) {
        bool same = memcmp(td_ptr(late.w), td_ptr(now.w), WEIGHTS * sizeof(float)) == 0;
        _exit(same ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_same(&late, &now);
    close_job(&late);
    close_job(&now);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_same_bits),
        cmocka_unit_test(test_they_are_put_off),
        cmocka_unit_test(test_sizes_change),
        cmocka_unit_test(test_looking_and_writing),
        cmocka_unit_test(test_a_known_address),
        cmocka_unit_test(test_another_optimizer),
        cmocka_unit_test(test_frozen_and_thawed),
        cmocka_unit_test(test_threads_look),
        cmocka_unit_test_setup_teardown(test_saved_averaged_and_loaded, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test(test_reordered),
        cmocka_unit_test(test_forked),
    };
    return cmocka_run_group_tests_name("optimizers: updates that are put off", tests, NULL, NULL);
}
