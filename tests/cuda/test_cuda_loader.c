/* Loaders of pictures for GPUs, real or emulated: whether the GPU cuts them out of bytes that lie
 * there, or the CPU does and sends them, batches are the CPU's, bit for bit. */
#include "autograd/ops.h"
#include "data/data.h"
#include "data/inspect.h"
#include "tensor/graph/captured.h"
#include "tensor/extend.h"
#include "tests/cuda/needs_gpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#if TD_EMULATED
#include "tensor/backend.h"
#include <cuda_runtime_api.h>
#endif

enum { PICTURES = 50, BATCH = 12, ELEMENTS = 3 * 32 * 32 };

static const td_image_transform cut = {
    .crop_padding = 4,
    .flip = true,
    .mean = { 0.4914f, 0.4822f, 0.4465f },
    .std = { 0.2023f, 0.1994f, 0.2010f },
    .seed = 7,
};

typedef struct fixture {
    td_dataset *whole, *data;
    td_generator g[2];
    td_loader *loader[2]; /* on the CPU, and the one that is held against it */
    float *x[2];
} fixture;

static void open_loaders(fixture *f, const td_image_transform *transform, td_loader_options options)
{
    assert_int_equal(td_synthetic_images(PICTURES + 9, 3, &f->whole), TD_OK);
    assert_int_equal(td_dataset_set_transform(f->whole, transform), TD_OK);
    f->data = td_dataset_head(f->whole, PICTURES);
    assert_non_null(f->data);
    options.batch_size = BATCH;
    options.shuffle = true;
    for (int i = 0; i < 2; i++) {
        td_generator_seed(&f->g[i], 11);
        options.generator = &f->g[i];
        options.device = i == 0 ? TD_CPU : TD_CUDA;
        options.dataset = f->data;
        f->loader[i] = td_loader_open_at(options, TD_HERE);
        assert_non_null(f->loader[i]);
        f->x[i] = calloc((size_t)BATCH * ELEMENTS, sizeof *f->x[i]);
    }
}

static void close_loaders(fixture *f)
{
    for (int i = 0; i < 2; i++) {
        td_loader_close(f->loader[i]);
        free(f->x[i]);
    }
    td_dataset_free(f->data);
    td_dataset_free(f->whole);
}

/* Takes the next batch of both; whether there was one. */
static bool take_both(fixture *f)
{
    td_batch batch[2];
    int64_t y[2][BATCH];
    bool more = td_loader_next(f->loader[0], &batch[0]);
    assert_int_equal(td_loader_next(f->loader[1], &batch[1]), more);
    if (!more) {
        assert_int_equal(td_loader_status(f->loader[1]), TD_OK);
        return false;
    }
    size_t n = (size_t)batch[0].size;
    assert_int_equal(batch[1].size, n);
    assert_int_equal(batch[1].index, batch[0].index);
    assert_memory_equal(batch[1].samples, batch[0].samples, n * sizeof *batch[0].samples);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(batch[i].x->shape[0], n);
        td_read(batch[i].x, f->x[i], TD_F32);
        td_read(batch[i].y, y[i], TD_I64);
    }
    assert_memory_equal(f->x[1], f->x[0], n * ELEMENTS * sizeof **f->x);
    assert_memory_equal(y[1], y[0], n * sizeof **y);
    return true;
}

static int take_epoch(fixture *f)
{
    int batches = 0;
    while (take_both(f)) {
        batches++;
    }
    return batches;
}

static void check(const td_image_transform *transform, td_loader_options options)
{
    fixture f;
    open_loaders(&f, transform, options);
    assert_true(td_loader_is_resident(f.loader[1]) == !options.streamed);
    assert_false(td_loader_is_resident(f.loader[0]));
    int batches = options.drop_last ? PICTURES / BATCH : PICTURES / BATCH + 1;
    for (int epoch = 0; epoch < 3; epoch++) {
        assert_int_equal(take_epoch(&f), batches);
    }
    for (int i = 0; i < 2; i++) { /* in the middle of an epoch, and back */
        td_loader_seek(f.loader[i], 7, 2);
    }
    assert_true(take_both(&f));
    assert_int_equal(take_epoch(&f), batches - 3);
    close_loaders(&f);
}

static void test_resident(void **state)
{
    NEEDS_GPU(0);
    td_image_transform far = cut;
    far.crop_padding = 31;
    far.reflect = far.alternate_flip = true;
    check(&(td_image_transform){ 0 }, (td_loader_options){ 0 });
    check(&cut, (td_loader_options){ .workers = 2 });
    check(&far, (td_loader_options){ .drop_last = true });
}

static void test_streamed(void **state)
{
    NEEDS_GPU(0);
    for (int workers = 0; workers < 3; workers++) {
        check(&cut, (td_loader_options){ .streamed = true, .workers = workers });
    }
    check(&cut, (td_loader_options){ .streamed = true, .workers = 1, .drop_last = true });
}

/* A new transform is that of the next batch. */
static void test_transform_changes(void **state)
{
    NEEDS_GPU(0);
    fixture f;
    open_loaders(&f, &cut, (td_loader_options){ 0 });
    assert_true(take_both(&f));
    td_image_transform other = { .shift = { 2, -1 }, .mirror = true, .std = { 2, 3, 4 } };
    assert_int_equal(td_dataset_set_transform(f.whole, &other), TD_OK);
    assert_true(take_both(&f));
    assert_int_equal(td_dataset_set_transform(f.whole, &cut), TD_OK);
    assert_int_equal(take_epoch(&f), PICTURES / BATCH + 1 - 2);
    close_loaders(&f);
}

/* Work on a batch that is still to be done when the next one is asked for comes first. */
static void test_work_on_a_batch_comes_first(void **state)
{
    NEEDS_GPU(0);
    for (int streamed = 0; streamed < 2; streamed++) {
        fixture f;
        open_loaders(&f, &cut, (td_loader_options){ .streamed = streamed != 0, .workers = 2 });
        td_tensor *kept[3];
        td_batch batch;
        for (int i = 0; i < 3; i++) {
            assert_true(td_loader_next(f.loader[1], &batch));
            kept[i] = td_clone(batch.x); /* on the GPU: nothing waits for it */
        }
        for (int i = 0; i < 3; i++) {
            assert_true(td_loader_next(f.loader[0], &batch));
            td_read(batch.x, f.x[0], TD_F32);
            td_read(kept[i], f.x[1], TD_F32);
            assert_memory_equal(f.x[1], f.x[0], BATCH * ELEMENTS * sizeof **f.x);
            td_free(kept[i]);
        }
        close_loaders(&f);
    }
}

/* ---- batches that a captured step makes itself ---- */

typedef struct making {
    td_loader *loader;
    td_tensor *x[2], *y[2]; /* what a step has seen, of a full batch and of the last one */
} making;

static td_status make_and_keep(void *user, td_tensor *const *inputs, td_tensor **results)
{
    making *m = user;
    int tail = inputs[1]->shape[0] != BATCH;
    td_loader_make(m->loader);
    td_copy_(m->x[tail], inputs[0]);
    td_copy_(m->y[tail], inputs[1]);
    results[0] = td_sum(inputs[0]);
    return TD_OK;
}

static td_captured *begin_making(making *m, td_loader *loader)
{
    static const int64_t sizes[] = { BATCH, PICTURES % BATCH };
    *m = (making){ .loader = loader };
    for (int i = 0; i < 2; i++) {
        m->x[i] = td_new(TD_SHAPE(sizes[i], 3, 32, 32), TD_F32, TD_CUDA);
        m->y[i] = td_new(TD_SHAPE(sizes[i]), TD_I64, TD_CUDA);
    }
    return td_captured_new(&(td_captured_options){
        .device = TD_CUDA, .step = make_and_keep, .user = m, .results = 1, .inputs_stay = true });
}

/* The next batch of both loaders; whether there was one. */
static bool make_both(fixture *f, making *m, td_captured *captured)
{
    td_batch batch[2];
    int64_t y[2][BATCH];
    double sum;
    bool more = td_loader_next(f->loader[0], &batch[0]);
    assert_int_equal(td_loader_next(f->loader[1], &batch[1]), more);
    if (!more) {
        return false;
    }
    assert_int_equal(td_captured_run(captured, (td_tensor *[]){ batch[1].x, batch[1].y }, 2),
                     TD_OK);
    assert_int_equal(td_captured_next(captured, &sum), TD_OK);
    int tail = batch[0].size != BATCH;
    size_t n = (size_t)batch[0].size;
    td_read(batch[0].x, f->x[0], TD_F32);
    td_read(batch[0].y, y[0], TD_I64);
    td_read(m->x[tail], f->x[1], TD_F32);
    td_read(m->y[tail], y[1], TD_I64);
    assert_memory_equal(f->x[1], f->x[0], n * ELEMENTS * sizeof **f->x);
    assert_memory_equal(y[1], y[0], n * sizeof **y);
    return true;
}

static void check_captured(bool streamed)
{
    enum { EPOCHS = 6 };
    fixture f;
    making m;
    open_loaders(&f, &cut, (td_loader_options){ .streamed = streamed, .workers = 1 });
    assert_true(td_loader_defer(f.loader[1]) == !streamed);
    td_captured *captured = begin_making(&m, f.loader[1]);
    assert_non_null(captured);
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        while (make_both(&f, &m, captured)) {
        }
    }
    td_captured_stats figures = td_captured_now(captured);
    assert_string_equal(figures.why, "");
    assert_int_equal(figures.recorded, 2);
    assert_int_equal(figures.eager, 2 * 3);
    assert_int_equal(figures.replayed, EPOCHS * (PICTURES / BATCH + 1) - 2 * 4);
    td_captured_free(captured);
    for (int i = 0; i < 2; i++) {
        td_free(m.x[i]);
        td_free(m.y[i]);
    }
    close_loaders(&f);
}

static void test_captured(void **state)
{
    NEEDS_GPU(0);
    check_captured(false);
    check_captured(true);
}

/* Targets that are numbers go to the GPU in their own shape, in a last batch that is not full, too.
 */
static void test_targets(void **state)
{
    NEEDS_GPU(0);
    float values[10];
    for (int i = 0; i < 10; i++) {
        values[i] = (float)i;
    }
    td_tensor *y = td_from(values, TD_SHAPE(5, 2), TD_F32, TD_CPU);
    td_dataset *data = td_tensor_dataset(y, y);
    td_loader *loader = td_loader_open(data, .batch_size = 3, .workers = 1, .device = TD_CUDA);
    assert_non_null(loader);
    int64_t first = 0;
    for (td_batch batch; td_loader_next(loader, &batch); first += batch.size) {
        float got[6];
        assert_true(td_shape_equal(td_shape_of(batch.y), TD_SHAPE(batch.size, 2)));
        assert_int_equal(td_device_of(batch.y).type, TD_DEVICE_CUDA);
        td_read(batch.y, got, TD_F32);
        assert_memory_equal(got, values + 2 * first, (size_t)batch.size * 2 * sizeof *got);
    }
    assert_int_equal(td_loader_status(loader), TD_OK);
    assert_int_equal(first, 5);
    td_loader_close(loader);
    td_dataset_free(data);
    td_free(y);
}

#if TD_EMULATED
/* The host reads nothing, and the compute stream is held back: the next batches wait until those
 * before them have been read. */
static void test_batches_wait_until_they_are_read(void **state)
{
    NEEDS_GPU(0);
    fixture f;
    td_batch batch;
    td_tensor *kept[PICTURES / BATCH];
    open_loaders(&f, &cut, (td_loader_options){ .streamed = true, .workers = 1 });
    for (int i = 0; i < PICTURES / BATCH; i++) {
        assert_true(td_loader_next(f.loader[1], &batch));
        kept[i] = td_clone_as(batch.x, TD_F32, TD_CUDA);
        td_emulate_run_others(td_backend_of(TD_CUDA)->streams->compute(TD_CUDA));
    }
    for (int i = 0; i < PICTURES / BATCH; i++) {
        assert_true(td_loader_next(f.loader[0], &batch));
        td_read(batch.x, f.x[0], TD_F32);
        td_read(kept[i], f.x[1], TD_F32);
        assert_memory_equal(f.x[1], f.x[0], (size_t)BATCH * ELEMENTS * sizeof **f.x);
        td_free(kept[i]);
    }
    close_loaders(&f);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resident),
        cmocka_unit_test(test_streamed),
        cmocka_unit_test(test_transform_changes),
        cmocka_unit_test(test_work_on_a_batch_comes_first),
        cmocka_unit_test(test_captured),
        cmocka_unit_test(test_targets),
#if TD_EMULATED
        cmocka_unit_test(test_batches_wait_until_they_are_read),
#endif
    };
    return cmocka_run_group_tests_name("loaders for GPUs", tests, NULL, NULL);
}
