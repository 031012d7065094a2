/* Samplers and the loader: order, batches that do not depend on the workers, resuming, errors. */
#include "data/data.h"
#include "tests/temp_folder.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <setjmp.h>
#include <cmocka.h>

/* ---- a dataset that can be slow or fail: x = (number, epoch), y = 3 * number ---- */

typedef struct toy {
    td_dataset base;
    int64_t fails_at; /* -1: never */
    long nanoseconds; /* that a fetch takes */
} toy;

static td_status toy_fetch(const td_dataset *dataset, const int64_t *index, int64_t n,
                           uint64_t epoch, td_tensor *x, td_tensor *y)
{
    const toy *t = (const toy *)dataset;
    float *values = td_data_rw(x);
    int64_t *labels = td_data_rw(y);
    nanosleep(&(struct timespec){ .tv_nsec = t->nanoseconds }, NULL);
    for (int64_t i = 0; i < n; i++) {
        if (index[i] == t->fails_at) {
            return td_fail(TD_E_IO, "toy sample %lld is broken", (long long)index[i]);
        }
        values[2 * i] = (float)index[i];
        values[2 * i + 1] = (float)epoch;
        labels[i] = 3 * index[i];
    }
    return TD_OK;
}

static void toy_free(td_dataset *dataset)
{
    (void)dataset;
}

static const td_dataset_vtable toy_vtable = { "toy", toy_fetch, toy_free };

static toy make_toy(int64_t length)
{
    toy t = { .fails_at = -1 };
    t.base = (td_dataset){ .vtable = &toy_vtable, .length = length, .sample_shape = TD_SHAPE(2) };
    return t;
}

/* Takes a whole epoch; writes its samples in order and returns how many. */
static int64_t take_epoch(td_loader *loader, int64_t *samples)
{
    int64_t taken = 0;
    for (td_batch batch; td_loader_next(loader, &batch);) {
        memcpy(samples + taken, batch.samples, (size_t)batch.size * sizeof *samples);
        taken += batch.size;
    }
    assert_int_equal(td_loader_status(loader), TD_OK);
    return taken;
}

static bool same_generators(const td_generator *a, const td_generator *b)
{
    return a->next == b->next && memcmp(a->state, b->state, sizeof a->state) == 0;
}

/* ---- samplers ---- */

static void test_samplers(void **state)
{
    (void)state;
    int64_t order[100], expected[100];
    td_sampler *sampler = td_sequential_sampler();
    assert_int_equal(sampler->count(sampler, 100), 100);
    assert_int_equal(sampler->order(sampler, 5, 100, order), 100);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(order[i], i);
    }
    td_sampler_free(sampler);

    td_generator g, twin, fresh;
    td_generator_seed(&g, 11);
    twin = g;
    sampler = td_random_sampler(&g);
    for (int epoch = 0; epoch < 2; epoch++) {
        assert_int_equal(sampler->order(sampler, 0, 100, order), 100);
        td_generator_seed(&fresh, (uint64_t)td_random_i63(&twin));
        td_random_permutation(&fresh, expected, 100);
        assert_memory_equal(order, expected, sizeof order);
        assert_true(same_generators(&g, &twin));
    }
    td_sampler_free(sampler);
    td_sampler_free(NULL);
}

/* What an epoch draws, with and without shuffling, and when: at its first batch and not before. */
static void test_draws_of_an_epoch(void **state)
{
    (void)state;
    toy t = make_toy(20);
    int64_t samples[20];
    for (int shuffle = 0; shuffle <= 1; shuffle++) {
        td_generator g, twin;
        td_generator_seed(&g, 3);
        twin = g;
        td_loader *loader = td_loader_open(
            &t.base, &(td_loader_options){
                         .batch_size = 6, .shuffle = shuffle != 0, .workers = 2, .generator = &g });
        assert_true(same_generators(&g, &twin));
        for (int epoch = 0; epoch < 3; epoch++) {
            td_random_i63(&twin); /* the loader's base seed */
            if (shuffle) {
                td_random_i63(&twin); /* the sampler's */
            }
            assert_int_equal(take_epoch(loader, samples), 20);
            assert_true(same_generators(&g, &twin));
        }
        td_loader_close(loader);
    }
}

/* ---- the same batches whatever the workers ---- */

typedef struct recording {
    float *x;
    int64_t *y, *samples;
    int64_t batches, count;
} recording;

static void record_batch(recording *r, const td_batch *batch, int64_t numel)
{
    int64_t all = r->count + batch->size;
    r->x = realloc(r->x, (size_t)(all * numel) * sizeof *r->x);
    r->y = realloc(r->y, (size_t)all * sizeof *r->y);
    r->samples = realloc(r->samples, (size_t)all * sizeof *r->samples);
    assert_true(r->x != NULL && r->y != NULL && r->samples != NULL);
    td_read(batch->x, r->x + r->count * numel, TD_F32);
    td_read(batch->y, r->y + r->count, TD_I64);
    memcpy(r->samples + r->count, batch->samples, (size_t)batch->size * sizeof *r->samples);
    r->count = all;
    r->batches++;
}

static recording record(const td_dataset *dataset, td_loader_options options, int epochs)
{
    td_generator g;
    td_generator_seed(&g, 99);
    options.generator = &g;
    td_loader *loader = td_loader_open(dataset, &options);
    assert_non_null(loader);
    recording r = { 0 };
    int64_t numel = td_shape_numel(dataset->sample_shape);
    for (int epoch = 0; epoch < epochs; epoch++) {
        assert_int_equal(td_loader_epoch(loader), epoch);
        int64_t index = 0;
        for (td_batch batch; td_loader_next(loader, &batch); index++) {
            assert_int_equal(batch.index, index);
            assert_int_equal(batch.x->shape[0], batch.size);
            assert_int_equal(batch.y->shape[0], batch.size);
            assert_true(td_is_layout(batch.x, dataset->layout));
            record_batch(&r, &batch, numel);
        }
        assert_int_equal(td_loader_status(loader), TD_OK);
        assert_int_equal(index, td_loader_batches(loader));
    }
    assert_int_equal(r.count, epochs * td_loader_samples(loader));
    td_loader_close(loader);
    return r;
}

static void free_recording(recording *r)
{
    free(r->x);
    free(r->y);
    free(r->samples);
}

static void check_workers(const td_dataset *dataset, td_loader_options options)
{
    int64_t numel = td_shape_numel(dataset->sample_shape);
    recording alone = record(dataset, options, 3);
    const int workers[] = { 1, 2, 5 }, prefetch[] = { 3, 1, 2 };
    for (int i = 0; i < 3; i++) {
        options.workers = workers[i];
        options.prefetch = prefetch[i];
        recording other = record(dataset, options, 3);
        assert_int_equal(other.count, alone.count);
        assert_memory_equal(other.samples, alone.samples,
                            (size_t)alone.count * sizeof *alone.samples);
        assert_memory_equal(other.y, alone.y, (size_t)alone.count * sizeof *alone.y);
        assert_memory_equal(other.x, alone.x, (size_t)(alone.count * numel) * sizeof *alone.x);
        free_recording(&other);
    }
    free_recording(&alone);
}

static void test_same_batches_for_any_workers(void **state)
{
    (void)state;
    td_dataset *pictures;
    assert_int_equal(td_synthetic_images(70, 1, &pictures), TD_OK);
    td_image_transform transform = {
        .crop_padding = 4, .flip = true, .mean = { 0.5f, 0.5f, 0.5f }, .std = { 0.2f, 0.3f, 0.4f }
    };
    assert_int_equal(td_dataset_set_transform(pictures, &transform), TD_OK);
    td_dataset *head = td_dataset_head(pictures, 41);
    check_workers(pictures, (td_loader_options){ .batch_size = 16, .shuffle = true });
    check_workers(pictures,
                  (td_loader_options){ .batch_size = 32, .shuffle = true, .drop_last = true });
    check_workers(head, (td_loader_options){ .batch_size = 7 });
    td_dataset_free(head);
    td_dataset_free(pictures);
    toy t = make_toy(500);
    check_workers(&t.base, (td_loader_options){ .batch_size = 3, .shuffle = true });
}

/* What is drawn per sample may differ from epoch to epoch. */
static void test_epochs_reach_the_dataset(void **state)
{
    (void)state;
    toy t = make_toy(10);
    recording r = record(&t.base, (td_loader_options){ .batch_size = 4, .workers = 2 }, 3);
    for (int64_t i = 0; i < 30; i++) {
        assert_true(r.x[2 * i] == (float)(i % 10));
        assert_true(r.x[2 * i + 1] == (float)(i / 10));
        assert_int_equal(r.y[i], 3 * (i % 10));
    }
    free_recording(&r);
}

/* ---- sizes ---- */

static void check_sizes(int64_t length, int64_t batch_size, bool drop_last, int64_t batches,
                        int64_t samples)
{
    toy t = make_toy(length);
    for (int workers = 0; workers <= 2; workers += 2) {
        td_loader *loader = td_loader_open(&t.base, &(td_loader_options){ .batch_size = batch_size,
                                                                          .drop_last = drop_last,
                                                                          .workers = workers });
        assert_non_null(loader);
        assert_int_equal(td_loader_batches(loader), batches);
        assert_int_equal(td_loader_samples(loader), samples);
        int64_t taken[64];
        assert_int_equal(take_epoch(loader, taken), samples);
        for (int64_t i = 0; i < samples; i++) {
            assert_int_equal(taken[i], i);
        }
        td_loader_close(loader);
    }
}

static void test_sizes(void **state)
{
    (void)state;
    check_sizes(20, 6, false, 4, 20);
    check_sizes(20, 6, true, 3, 18);
    check_sizes(20, 5, false, 4, 20);
    check_sizes(20, 5, true, 4, 20);
    check_sizes(20, 0, false, 20, 20);
    check_sizes(20, 21, false, 1, 20);
    check_sizes(20, INT64_MAX, false, 1, 20);
    check_sizes(1, 1, true, 1, 1);
}

/* ---- positions ---- */

static td_loader *open_shuffled(const toy *t, int workers, td_generator *g)
{
    td_loader *loader = td_loader_open(
        &t->base, &(td_loader_options){
                      .batch_size = 4, .shuffle = true, .workers = workers, .generator = g });
    assert_non_null(loader);
    return loader;
}

static void test_resume_in_mid_epoch(void **state)
{
    (void)state;
    toy t = make_toy(50);
    int64_t whole[2][50], rest[50];
    for (int workers = 0; workers <= 3; workers++) {
        td_generator g, at_epoch_1, end;
        td_generator_seed(&g, 5);
        td_loader *loader = open_shuffled(&t, workers, &g);
        take_epoch(loader, whole[0]);
        at_epoch_1 = g;
        take_epoch(loader, whole[1]);
        end = g;
        td_loader_close(loader);

        /* A new process: the generator as at the epoch's beginning, six batches done. */
        g = at_epoch_1;
        loader = open_shuffled(&t, workers, &g);
        td_loader_set_epoch(loader, 1);
        td_loader_skip_batches(loader, 6);
        td_batch batch;
        assert_true(td_loader_next(loader, &batch));
        assert_int_equal(batch.index, 6);
        assert_int_equal(td_loader_epoch(loader), 1);
        assert_memory_equal(batch.samples, whole[1] + 24, 4 * sizeof(int64_t));
        assert_true(((const float *)td_data(batch.x))[1] == 1.0f);
        td_loader_skip_batches(loader, 2);
        assert_int_equal(take_epoch(loader, rest), 50 - 36);
        assert_memory_equal(rest, whole[1] + 36, 14 * sizeof(int64_t));
        assert_true(same_generators(&g, &end));
        assert_int_equal(td_loader_epoch(loader), 2);
        td_loader_close(loader);
    }
}

static void test_skip_beyond_the_end_and_restart(void **state)
{
    (void)state;
    toy t = make_toy(50);
    int64_t samples[50];
    td_generator g;
    td_generator_seed(&g, 5);
    for (int workers = 0; workers <= 2; workers++) {
        td_loader *loader = open_shuffled(&t, workers, &g);
        td_loader_skip_batches(loader, INT64_MAX);
        assert_int_equal(take_epoch(loader, samples), 0);
        assert_int_equal(td_loader_epoch(loader), 1);
        td_batch batch;
        for (int i = 0; i < 3; i++) {
            assert_true(td_loader_next(loader, &batch));
        }
        td_loader_set_epoch(loader, 7); /* drops the rest of epoch 1 */
        assert_int_equal(td_loader_epoch(loader), 7);
        assert_true(td_loader_next(loader, &batch));
        assert_int_equal(batch.index, 0);
        assert_true(((const float *)td_data(batch.x))[1] == 7.0f);
        assert_int_equal(take_epoch(loader, samples), 46);
        td_loader_close(loader);
    }
}

static void test_closes_at_any_time(void **state)
{
    (void)state;
    toy t = make_toy(1000);
    t.nanoseconds = 200000;
    for (int taken = 0; taken < 12; taken++) {
        td_loader *loader = td_loader_open(
            &t.base, &(td_loader_options){ .batch_size = 5, .workers = 1 + taken % 5 });
        td_batch batch;
        for (int i = 0; i < taken; i++) {
            assert_true(td_loader_next(loader, &batch));
        }
        td_loader_close(loader);
    }
    td_loader_close(NULL);
}

static void test_waiting_is_counted(void **state)
{
    (void)state;
    toy t = make_toy(8);
    t.nanoseconds = 5000000;
    for (int workers = 0; workers <= 1; workers++) {
        td_loader *loader =
            td_loader_open(&t.base, &(td_loader_options){ .batch_size = 2, .workers = workers });
        int64_t samples[8];
        assert_true(td_loader_wait_seconds(loader) == 0);
        take_epoch(loader, samples);
        assert_true(td_loader_wait_seconds(loader) > 0.015); /* four fetches of 5 ms */
        td_loader_close(loader);
    }
}

/* ---- errors ---- */

static void test_worker_errors_reach_the_caller(void **state)
{
    (void)state;
    toy t = make_toy(40);
    t.fails_at = 25;
    for (int workers = 0; workers <= 5; workers++) {
        td_loader *loader =
            td_loader_open(&t.base, &(td_loader_options){ .batch_size = 4, .workers = workers });
        td_batch batch;
        for (int i = 0; i < 6; i++) {
            assert_true(td_loader_next(loader, &batch));
            assert_int_equal(batch.samples[0], 4 * i);
        }
        for (int again = 0; again < 3; again++) {
            td_fail(TD_E_ARG, "another error in between");
            assert_false(td_loader_next(loader, &batch));
            assert_int_equal(td_loader_status(loader), TD_E_IO);
            assert_error_says("toy sample 25 is broken", "epoch 0, batch 6", NULL);
            assert_null(batch.x);
        }
        td_loader_set_epoch(loader, 0); /* starts over */
        assert_int_equal(td_loader_status(loader), TD_OK);
        assert_true(td_loader_next(loader, &batch));
        assert_int_equal(batch.samples[0], 0);
        td_loader_close(loader);
    }
}

static void expect_no_loader(td_loader_options options, const char *says)
{
    toy t = make_toy(20);
    assert_null(td_loader_open(&t.base, &options));
    assert_error_says("loader", says, NULL);
}

static void test_bad_options(void **state)
{
    (void)state;
    expect_no_loader((td_loader_options){ .batch_size = -1 }, "batch size -1");
    expect_no_loader((td_loader_options){ .workers = -2 }, "-2 workers");
    expect_no_loader((td_loader_options){ .workers = 1000000 }, "0 to 256");
    expect_no_loader((td_loader_options){ .prefetch = -1 }, "-1 batches ahead");
    expect_no_loader((td_loader_options){ .prefetch = 1 << 30 }, "0 to 256");
    expect_no_loader((td_loader_options){ .batch_size = 21, .drop_last = true }, "drop_last");
    expect_no_loader((td_loader_options){ .device = { TD_DEVICE_CUDA, 0 } }, "CPU");
    toy none = make_toy(0);
    assert_null(td_loader_open(&none.base, &(td_loader_options){ .batch_size = 1 }));
    assert_error_says("no samples", NULL);
}

/* A sampler that gives what it is told to. */
typedef struct told_sampler {
    td_sampler base;
    int64_t counts, gives, first;
    uint64_t epoch; /* as it was set */
} told_sampler;

static int64_t told_order(td_sampler *sampler, uint64_t epoch, int64_t length, int64_t *index)
{
    (void)length;
    const told_sampler *s = (const told_sampler *)sampler;
    if (s->gives < 0) {
        return td_fail((td_status)s->gives, "the sampler is broken");
    }
    for (int64_t i = 0; i < s->gives && i < s->counts; i++) {
        index[i] = s->first + 2 * i + (int64_t)epoch;
    }
    return s->gives;
}

static int64_t told_count(const td_sampler *sampler, int64_t length)
{
    (void)length;
    return ((const told_sampler *)sampler)->counts;
}

static void told_set_epoch(td_sampler *sampler, uint64_t epoch)
{
    ((told_sampler *)sampler)->epoch = epoch;
}

static void told_free(td_sampler *sampler)
{
    free(sampler);
}

static told_sampler *told; /* the last one opened; the loader's */

static td_loader *open_told(const toy *t, int64_t counts, int64_t gives, int64_t first)
{
    told = malloc(sizeof *told);
    assert_non_null(told);
    *told = (told_sampler){
        .base = { told_order, told_count, told_free, told_set_epoch },
        .counts = counts,
        .gives = gives,
        .first = first,
    };
    return td_loader_open(
        &t->base, &(td_loader_options){ .batch_size = 4, .workers = 1, .sampler = &told->base });
}

static void test_own_samplers(void **state)
{
    (void)state;
    toy t = make_toy(20);
    int64_t samples[20];
    td_loader *loader = open_told(&t, 9, 9, 1);
    assert_int_equal(td_loader_batches(loader), 3);
    for (int epoch = 0; epoch < 2; epoch++) {
        assert_int_equal(take_epoch(loader, samples), 9);
        for (int i = 0; i < 9; i++) {
            assert_int_equal(samples[i], 1 + 2 * i + epoch);
        }
    }
    assert_int_equal(told->epoch, 0);
    td_loader_set_epoch(loader, 17);
    assert_int_equal(told->epoch, 17);
    td_loader_close(loader);

    td_batch batch;
    loader = open_told(&t, 9, 8, 0);
    assert_false(td_loader_next(loader, &batch));
    assert_int_equal(td_loader_status(loader), TD_E_ARG);
    assert_error_says("gave 8 samples", "said 9", NULL);
    td_loader_close(loader);
    loader = open_told(&t, 9, TD_E_NOMEM, 0);
    assert_false(td_loader_next(loader, &batch));
    assert_int_equal(td_loader_status(loader), TD_E_NOMEM);
    assert_error_says("epoch 0", "the sampler is broken", NULL);
    td_loader_close(loader);
    const int64_t firsts[] = { -1, 4 }, bad[] = { -1, 20 };
    for (int i = 0; i < 2; i++) {
        char says[32];
        snprintf(says, sizeof says, "sample %d of", (int)bad[i]);
        loader = open_told(&t, 9, 9, firsts[i]);
        assert_false(td_loader_next(loader, &batch));
        assert_error_says(says, "a dataset of 20", NULL);
        td_loader_close(loader);
    }
    assert_null(open_told(&t, 0, 0, 0));
    assert_error_says("no batch", NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_samplers),
        cmocka_unit_test(test_draws_of_an_epoch),
        cmocka_unit_test(test_same_batches_for_any_workers),
        cmocka_unit_test(test_epochs_reach_the_dataset),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_resume_in_mid_epoch),
        cmocka_unit_test(test_skip_beyond_the_end_and_restart),
        cmocka_unit_test(test_closes_at_any_time),
        cmocka_unit_test(test_waiting_is_counted),
        cmocka_unit_test(test_worker_errors_reach_the_caller),
        cmocka_unit_test(test_bad_options),
        cmocka_unit_test(test_own_samplers),
    };
    return cmocka_run_group_tests_name("data: samplers and loader", tests, NULL, NULL);
}
