/* The loader when something is wrong: datasets that fail, bad options, samplers of one's own. */
#include "data/data.h"
#include "tests/help/expect_fatal.h"
#include "tests/help/temp_folder.h"
#include "tests/data/toy_dataset.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

static void test_worker_errors_reach_the_caller(void **state)
{
    (void)state;
    toy t = make_toy(40);
    t.fails_at = 25;
    for (int workers = 0; workers <= 5; workers++) {
        td_loader *loader = td_loader_open(&t.base, .batch_size = 4, .workers = workers);
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
        td_loader_seek(loader, 0, 0); /* starts over */
        assert_int_equal(td_loader_status(loader), TD_OK);
        assert_true(td_loader_next(loader, &batch));
        assert_int_equal(batch.samples[0], 0);
        td_loader_close(loader);
    }
}

static void expect_no_loader(td_loader_options options, const char *says)
{
    toy t = make_toy(20);
    options.dataset = &t.base;
    assert_null(td_loader_open_at(options, TD_HERE));
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
    expect_no_loader((td_loader_options){ .device = TD_CUDA_N(15) }, "cuda:15 cannot be used");
    toy none = make_toy(0);
    assert_null(td_loader_open(&none.base, .batch_size = 1));
    assert_error_says("no samples", NULL);
}

/* A batch belongs to the loader; a clone of it to the caller. */
static void test_a_batch_is_not_freed(void **state)
{
    (void)state;
    toy t = make_toy(5);
    for (int workers = 0; workers < 2; workers++) {
        td_loader *loader = td_loader_open(&t.base, .batch_size = 2, .workers = workers);
        for (td_batch batch; td_loader_next(loader, &batch);) {
            expect_fatal("td_free: 'the loader's x'", td_free(batch.x));
            assert_non_null(strstr(fatal_message(), "test_data_loader_errors.c:"));
            expect_fatal("td_free: 'the loader's y'", td_free(batch.y));
            td_free(td_clone(batch.x));
        }
        td_loader_close(loader);
    }
}

static void test_null(void **state)
{
    (void)state;
    td_batch batch;
    td_fail(TD_E_IO, "no such file");
    assert_null(td_loader_open(NULL));
    assert_error_says("the dataset is NULL", "no such file", NULL);
    expect_fatal("td_loader_open failed", td_loader_next(NULL, &batch));
    toy t = make_toy(3);
    td_loader *loader = td_loader_open(&t.base);
    assert_int_equal(td_loader_batches(loader), 3);
    td_loader_close(loader);
}

/* What a function writes to stderr. */
static const char *stderr_of(void (*function)(td_loader *loader), td_loader *loader)
{
    static char text[2048];
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stderr);
    int kept = dup(STDERR_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    function(loader);
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(kept);
    rewind(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return text;
}

static void test_an_error_cannot_be_overlooked(void **state)
{
    (void)state;
    toy t = make_toy(8);
    t.fails_at = 2;
    td_batch batch;
    td_loader *loader = td_loader_open(&t.base, .batch_size = 2);
    assert_true(td_loader_next(loader, &batch));
    assert_false(td_loader_next(loader, &batch));
    expect_fatal("toy sample 2 is broken", td_loader_next(loader, &batch));
    expect_fatal("td_loader_status", td_loader_seek(loader, 1, 0));
    const char *said = stderr_of(td_loader_close, loader);
    assert_non_null(strstr(said, "td_loader_status"));
    assert_non_null(strstr(said, "toy sample 2 is broken"));

    loader = td_loader_open(&t.base, .batch_size = 2);
    while (td_loader_next(loader, &batch)) {
    }
    assert_int_equal(td_loader_status(loader), TD_E_IO);
    td_loader_seek(loader, 1, 0);
    assert_true(td_loader_next(loader, &batch));
    assert_string_equal(stderr_of(td_loader_close, loader), "");
}

static void test_a_dataset_is_freed_after_its_loaders(void **state)
{
    (void)state;
    td_dataset *images;
    assert_int_equal(td_synthetic_images(4, 0, &images), TD_OK);
    td_dataset *head = td_dataset_head(images, 2);
    td_loader *loader[2] = { td_loader_open(images), td_loader_open(head) };
    expect_fatal("this dataset (synthetic) has 1 open loader;", td_dataset_free(images));
    expect_fatal("test_data_loader_errors.c:", td_dataset_free(images));
    expect_fatal("(part of a dataset) has 1 open loader;", td_dataset_free(head));
    td_loader_close(loader[0]);
    td_dataset_free(images); /* the head keeps it */
    td_batch batch;
    assert_true(td_loader_next(loader[1], &batch));
    td_loader_close(loader[1]);
    td_dataset_free(head);
}

/* A sampler that gives what it is told to. */
typedef struct told_sampler {
    td_sampler base;
    int64_t counts, gives, first;
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

static void told_free(td_sampler *sampler)
{
    free(sampler);
}

static td_loader *open_told(const toy *t, int64_t counts, int64_t gives, int64_t first)
{
    told_sampler *told = malloc(sizeof *told);
    assert_non_null(told);
    *told = (told_sampler){
        .base = { told_order, told_count, told_free },
        .counts = counts,
        .gives = gives,
        .first = first,
    };
    return td_loader_open(&t->base, .batch_size = 4, .workers = 1, .sampler = &told->base);
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
    td_loader_seek(loader, 2, 0);
    assert_int_equal(take_epoch(loader, samples), 9);
    assert_int_equal(samples[0], 3);
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
        assert_int_equal(td_loader_status(loader), TD_E_ARG);
        td_loader_close(loader);
    }
    assert_null(open_told(&t, TD_E_NOMEM, 0, 0));
    assert_error_says("loader", NULL);
    loader = open_told(&t, 0, 0, 0); /* a rank without samples */
    assert_int_equal(td_loader_batches(loader), 0);
    for (int epoch = 0; epoch < 2; epoch++) {
        assert_false(td_loader_next(loader, &batch));
        assert_int_equal(td_loader_status(loader), TD_OK);
    }
    td_loader_seek(loader, 5, 3);
    assert_false(td_loader_next(loader, &batch));
    assert_int_equal(td_loader_status(loader), TD_OK);
    td_loader_close(loader);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_worker_errors_reach_the_caller),
        cmocka_unit_test(test_bad_options),
        cmocka_unit_test(test_null),
        cmocka_unit_test(test_a_batch_is_not_freed),
        cmocka_unit_test(test_an_error_cannot_be_overlooked),
        cmocka_unit_test(test_a_dataset_is_freed_after_its_loaders),
        cmocka_unit_test(test_own_samplers),
    };
    return cmocka_run_group_tests_name("data: the loader's errors", tests, NULL, NULL);
}
