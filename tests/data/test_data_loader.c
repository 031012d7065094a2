/* Samplers and the loader: order, batches that do not depend on the workers, resuming. */
#include "data/data.h"
#include "data/dataset.h"
#include "data/inspect.h"
#include "tests/data/toy_dataset.h"
#include "tensor/extend.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <cmocka.h>

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
        td_loader *loader = td_loader_open(&t.base, .batch_size = 6, .shuffle = shuffle != 0,
                                           .workers = 2, .generator = &g);
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
    options.dataset = dataset;
    td_loader *loader = td_loader_open_at(options, TD_HERE);
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
        td_loader *loader = td_loader_open(&t.base, .batch_size = batch_size,
                                           .drop_last = drop_last, .workers = workers);
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
    td_loader *loader = td_loader_open(&t->base, .batch_size = 4, .shuffle = true,
                                       .workers = workers, .generator = g);
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
        td_loader_seek(loader, 1, 6);
        td_batch batch;
        assert_true(td_loader_next(loader, &batch));
        assert_int_equal(batch.index, 6);
        assert_int_equal(td_loader_epoch(loader), 1);
        assert_memory_equal(batch.samples, whole[1] + 24, 4 * sizeof(int64_t));
        assert_true(((const float *)td_data(batch.x))[1] == 1.0f);
        assert_int_equal(take_epoch(loader, rest), 50 - 28);
        assert_memory_equal(rest, whole[1] + 28, 22 * sizeof(int64_t));
        assert_true(same_generators(&g, &end));
        assert_int_equal(td_loader_epoch(loader), 2);
        td_loader_close(loader);
    }
}

static void test_seek_beyond_the_end_and_back(void **state)
{
    (void)state;
    toy t = make_toy(50);
    int64_t samples[50];
    td_generator g;
    td_generator_seed(&g, 5);
    for (int workers = 0; workers <= 2; workers++) {
        td_loader *loader = open_shuffled(&t, workers, &g);
        td_loader_seek(loader, 0, INT64_MAX);
        assert_int_equal(take_epoch(loader, samples), 0);
        assert_int_equal(td_loader_epoch(loader), 1);
        td_batch batch;
        for (int i = 0; i < 3; i++) {
            assert_true(td_loader_next(loader, &batch));
        }
        td_loader_seek(loader, 7, 0); /* drops the rest of epoch 1 */
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
        td_loader *loader = td_loader_open(&t.base, .batch_size = 5, .workers = 1 + taken % 5);
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
        td_loader *loader = td_loader_open(&t.base, .batch_size = 2, .workers = workers);
        int64_t samples[8];
        assert_true(td_loader_wait_seconds(loader) == 0);
        take_epoch(loader, samples);
        /* Four fetches of 5 ms; a worker may do them while this thread does not get to run, but not
         * every time. */
        for (int i = 0; workers > 0 && i < 20 && td_loader_wait_seconds(loader) == 0; i++) {
            take_epoch(loader, samples);
        }
        double waited = td_loader_wait_seconds(loader);
        assert_true(workers == 0 ? waited > 0.015 : waited > 0);
        td_loader_close(loader);
    }
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
        cmocka_unit_test(test_seek_beyond_the_end_and_back),
        cmocka_unit_test(test_closes_at_any_time),
        cmocka_unit_test(test_waiting_is_counted),
    };
    return cmocka_run_group_tests_name("data: samplers and loader", tests, NULL, NULL);
}
