/* Datasets of tensors, their parts, and standardising. */
#include "data/data.h"
#include "data/inspect.h"
#include "tensor/step.h"
#include "tests/help/expect_fatal.h"
#include "tests/help/temp_folder.h"
#include "tests/data/toy_dataset.h"
#include "tensor/extend.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <cmocka.h>

enum { ROWS = 10, FEATURES = 3 };

/* x[i][f] = 10 i + f, y[i] = i % 4. */
static td_dataset *open_rows(td_dtype dtype)
{
    double values[ROWS * FEATURES];
    int64_t labels[ROWS];
    for (int i = 0; i < ROWS; i++) {
        labels[i] = i % 4;
        for (int f = 0; f < FEATURES; f++) {
            values[i * FEATURES + f] = 10 * i + f;
        }
    }
    td_tensor *x = td_new(TD_SHAPE(ROWS, FEATURES), dtype, TD_CPU);
    td_tensor *y = td_from(labels, TD_SHAPE(ROWS), TD_I64, TD_CPU);
    td_write(x, values, TD_F64);
    td_dataset *dataset = td_tensor_dataset(x, y);
    assert_non_null(dataset);
    td_free(x); /* the dataset shares their memory */
    td_free(y);
    return dataset;
}

static void test_batches_of_tensors(void **state)
{
    (void)state;
    const td_dtype dtypes[] = { TD_F32, TD_F64, TD_BF16, TD_F16 };
    for (int d = 0; d < 4; d++) {
        td_dataset *dataset = open_rows(dtypes[d]);
        assert_int_equal(dataset->length, ROWS);
        assert_int_equal(dataset->classes, 4);
        td_loader *loader = td_loader_open(dataset, .batch_size = 4, .workers = d);
        int seen = 0;
        for (td_batch batch; td_loader_next(loader, &batch);) {
            assert_int_equal(batch.x->dtype, dtypes[d]);
            assert_int_equal(batch.x->shape[1], FEATURES);
            for (int64_t i = 0; i < batch.size; i++, seen++) {
                assert_true(td_get(batch.y, &i) == seen % 4);
                for (int64_t f = 0; f < FEATURES; f++) {
                    assert_true(td_get(batch.x, (int64_t[]){ i, f }) == 10 * seen + (double)f);
                }
            }
        }
        assert_int_equal(td_loader_status(loader), TD_OK);
        assert_int_equal(seen, ROWS);
        td_loader_close(loader);
        td_dataset_free(dataset);
    }
}

/* Images of any strides become batches in the layout of images; targets keep their shape. */
static void test_images_and_targets(void **state)
{
    (void)state;
    double values[5 * 2 * 3 * 4], targets[5 * 2];
    for (int i = 0; i < 120; i++) {
        values[i] = i;
    }
    for (int i = 0; i < 10; i++) {
        targets[i] = -i;
    }
    const td_layout layouts[] = { TD_ROW_MAJOR, TD_IMAGE };
    for (int l = 0; l < 2; l++) {
        td_tensor *x = td_new_layout(TD_SHAPE(5, 2, 3, 4), TD_F32, layouts[l], TD_CPU);
        td_tensor *y = td_new(TD_SHAPE(5, 2), TD_F32, TD_CPU);
        td_write(x, values, TD_F64);
        td_write(y, targets, TD_F64);
        td_dataset *dataset = td_tensor_dataset(x, y);
        assert_true(dataset->target_dtype == TD_F32 && dataset->classes == 0);
        td_loader *loader = td_loader_open(dataset, .batch_size = 3);
        int64_t first = 0;
        for (td_batch batch; td_loader_next(loader, &batch); first += batch.size) {
            double got[3 * 24], got_y[3 * 2];
            assert_true(td_is_layout(batch.x, TD_IMAGE));
            assert_true(td_shape_equal(td_shape_of(batch.y), TD_SHAPE(batch.size, 2)));
            assert_int_equal(batch.y->dtype, TD_F32);
            td_read(batch.x, got, TD_F64);
            td_read(batch.y, got_y, TD_F64);
            assert_memory_equal(got, values + 24 * first, (size_t)batch.size * 24 * sizeof *got);
            for (int i = 0; i < 2 * batch.size; i++) {
                assert_true(got_y[i] == targets[2 * first + i]);
            }
        }
        assert_int_equal(first, 5);
        td_loader_close(loader);
        td_dataset_free(dataset);
        td_free(x);
        td_free(y);
    }
}

/* A batch's y has the tensor's dtype and shape: tokens, and numbers of another dtype than x's. */
static void test_dtypes_of_targets(void **state)
{
    (void)state;
    const struct {
        td_dtype x, y;
        td_shape shape;
        int64_t targets; /* of a sample */
        int classes;
    } cases[] = {
        { TD_I64, TD_I64, TD_SHAPE(4, 3), 3, 0 }, { TD_F32, TD_F64, TD_SHAPE(4, 3), 1, 0 },
        { TD_F64, TD_F32, TD_SHAPE(4), 1, 0 },    { TD_BF16, TD_F64, TD_SHAPE(4), 1, 0 },
        { TD_I64, TD_I64, TD_SHAPE(4), 1, 4 },
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        double values[12], got[12];
        for (int i = 0; i < 12; i++) {
            values[i] = i;
        }
        td_tensor *x = td_zeros(TD_SHAPE(4, 3), cases[c].x, TD_CPU);
        td_tensor *y = td_new(cases[c].shape, cases[c].y, TD_CPU);
        td_write(y, values, TD_F64);
        td_dataset *dataset = td_tensor_dataset(x, y);
        assert_int_equal(td_dataset_targets(dataset), cases[c].targets);
        assert_int_equal(dataset->classes, cases[c].classes);
        td_loader *loader = td_loader_open(dataset, .batch_size = 4);
        td_batch batch;
        assert_true(td_loader_next(loader, &batch));
        assert_int_equal(batch.x->dtype, cases[c].x);
        assert_int_equal(batch.y->dtype, cases[c].y);
        assert_true(td_shape_equal(td_shape_of(batch.y), cases[c].shape));
        td_read(batch.y, got, TD_F64);
        assert_memory_equal(got, values, (size_t)td_numel(y) * sizeof *got);
        td_status indices = cases[c].x == TD_I64 ? TD_E_UNSUPPORTED : TD_E_ARG; /* or open */
        assert_int_equal(td_standardize(dataset, NULL, NULL), indices);
        td_loader_close(loader);
        td_dataset_free(dataset);
        td_free(x);
        td_free(y);
    }
}

static void test_tensors_that_do_not_fit(void **state)
{
    (void)state;
    td_tensor *x = td_zeros(TD_SHAPE(4, 2), TD_F32, TD_CPU);
    td_tensor *y = td_zeros(TD_SHAPE(4), TD_I64, TD_CPU),
              *more = td_zeros(TD_SHAPE(5), TD_I64, TD_CPU);
    td_tensor *bytes = td_zeros(TD_SHAPE(4), TD_U8, TD_CPU);
    td_fail(TD_E_IO, "no such file");
    expect_fatal("no such file", td_tensor_dataset(NULL, y));
    expect_fatal("y is NULL", td_tensor_dataset(x, NULL));
    expect_fatal("x is u8[4]", td_tensor_dataset(bytes, y));
    expect_fatal("x has 4 samples, f32[4,2] cpu:0, and y has 5", td_tensor_dataset(x, more));
    expect_fatal("y is u8[4]", td_tensor_dataset(x, bytes));
    expect_fatal("test_data_rows.c", td_tensor_dataset(x, bytes));
    td_set(y, (int64_t[]){ 2 }, -1);
    expect_fatal("label 2 is -1", td_tensor_dataset(x, y));
    td_tensor *all[] = { x, y, more, bytes };
    for (int i = 0; i < 4; i++) {
        td_free(all[i]);
    }
}

/* ---- parts ---- */

static int64_t labels_of(const td_dataset *dataset, int64_t *labels)
{
    td_loader *loader = td_loader_open(dataset, .batch_size = 7);
    int64_t count = 0;
    for (td_batch batch; td_loader_next(loader, &batch); count += batch.size) {
        td_read(batch.y, labels + count, TD_I64);
    }
    assert_int_equal(td_loader_status(loader), TD_OK);
    td_loader_close(loader);
    return count;
}

/* Of a dataset that is nothing but a fetch, and of a part of one. The order is scikit-learn's
 * train_test_split(range(10), test_size=0.25, random_state=0). */
static void test_split_of_any_dataset(void **state)
{
    (void)state;
    static const int64_t tests[] = { 2, 8, 4 }, trains[] = { 9, 1, 6, 7, 3, 0, 5 };
    toy t = make_toy(12); /* y = 3 * number */
    td_dataset *head = td_dataset_head(&t.base, 10), *train, *test;
    assert_int_equal(td_split(head, 0.25, 0, &train, &test), TD_OK);
    td_dataset_free(head);
    int64_t labels[12];
    assert_int_equal(labels_of(test, labels), 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(labels[i], 3 * tests[i]);
    }
    td_dataset_free(test);
    assert_int_equal(labels_of(train, labels), 7);
    for (int i = 0; i < 7; i++) {
        assert_int_equal(labels[i], 3 * trains[i]);
    }
    td_dataset_free(train);
    assert_int_equal(t.base.parts, 0);
}

static void test_splits_that_cannot_be(void **state)
{
    (void)state;
    td_dataset *train, *test, *one;
    toy t = make_toy(1);
    assert_int_equal(td_split(&t.base, 0.5, 0, &train, &test), TD_E_ARG);
    assert_error_says("none to train with", NULL);
    assert_int_equal(td_split(&t.base, 1.5, 0, &train, &test), TD_E_ARG);
    assert_error_says("between 0 and 1", NULL);
    td_fail(TD_E_IO, "no such file");
    assert_int_equal(td_split(NULL, 0.5, 0, &train, &test), TD_E_ARG);
    assert_error_says("the dataset is NULL", "no such file", NULL);
    assert_int_equal(td_synthetic_images(10, 0, &one), TD_OK);
    assert_int_equal(td_split(one, 0.5, 0, &train, &test), TD_OK);
    assert_null(td_dataset_pixels(train));
    assert_int_equal(td_dataset_set_transform(train, &(td_image_transform){ .flip = true }),
                     TD_E_UNSUPPORTED);
    assert_error_says("whole dataset", NULL);
    td_dataset_free(one);
    td_dataset_free(train);
    td_dataset_free(test);
}

/* ---- standardising ---- */

/* The mean and the variance of a feature, through a loader. */
static void moments(const td_dataset *dataset, int64_t feature, double *mean, double *variance)
{
    td_loader *loader = td_loader_open(dataset, .batch_size = dataset->length);
    td_batch batch;
    assert_true(td_loader_next(loader, &batch));
    double sum = 0, square = 0, n = (double)batch.size;
    for (int64_t i = 0; i < batch.size; i++) {
        double value = td_get(batch.x, (int64_t[]){ i, feature });
        sum += value;
        square += value * value;
    }
    *mean = sum / n;
    *variance = square / n - *mean * *mean;
    td_loader_close(loader);
}

static void test_standardized_parts(void **state)
{
    (void)state;
    td_dataset *all = open_rows(TD_F64), *train, *test;
    assert_int_equal(td_split(all, 0.3, 1, &train, &test), TD_OK);
    td_standard_scaler scaler;
    double before, after, variance;
    moments(test, 1, &before, &variance);
    assert_int_equal(td_standardize(train, test, &scaler), TD_OK);
    assert_int_equal(scaler.features, FEATURES);
    for (int f = 0; f < FEATURES; f++) {
        moments(train, f, &after, &variance);
        assert_true(fabs(after) < 1e-12 && fabs(variance - 1.0) < 1e-12);
    }
    moments(test, 1, &after, &variance);
    assert_true(fabs(after - (before - scaler.mean[1]) / scaler.scale[1]) < 1e-12);
    moments(all, 0, &before, &variance);
    assert_true(before == 45.0); /* the whole dataset has not changed */
    assert_int_equal(td_standardize(train, NULL, NULL), TD_E_ARG);
    assert_error_says("already", NULL);
    td_dataset_free(train);
    td_dataset_free(test);

    assert_int_equal(td_standardize(all, NULL, NULL), TD_OK); /* without parts */
    moments(all, 2, &after, &variance);
    assert_true(fabs(after) < 1e-12 && fabs(variance - 1.0) < 1e-12);
    td_dataset_free(all);
}

static void test_what_cannot_be_standardized(void **state)
{
    (void)state;
    toy t = make_toy(4);
    td_dataset *rows = open_rows(TD_F32), *images;
    assert_int_equal(td_standardize(&t.base, NULL, NULL), TD_E_UNSUPPORTED);
    assert_error_says("training set", "toy", NULL);
    assert_int_equal(td_synthetic_images(4, 0, &images), TD_OK);
    assert_int_equal(td_standardize(rows, images, NULL), TD_E_UNSUPPORTED);
    assert_error_says("test set", "[3,32,32]", NULL);
    td_tensor *x = td_zeros(TD_SHAPE(2, 5), TD_F32, TD_CPU);
    td_tensor *y = td_zeros(TD_SHAPE(2), TD_I64, TD_CPU);
    td_dataset *other = td_tensor_dataset(x, y);
    assert_int_equal(td_standardize(rows, other, NULL), TD_E_MISMATCH);
    assert_error_says("[3]", "[5]", NULL);
    assert_int_equal(td_standardize(rows, rows, NULL), TD_E_ARG);
    assert_error_says("are the same", NULL);
    td_loader *loader = td_loader_open(rows);
    assert_int_equal(td_standardize(rows, NULL, NULL), TD_E_ARG);
    assert_error_says("open loader", NULL);
    td_loader_close(loader);
    td_dataset_free(other);
    td_dataset_free(images);
    td_dataset_free(rows);
    td_free(x);
    td_free(y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batches_of_tensors),
        cmocka_unit_test(test_images_and_targets),
        cmocka_unit_test(test_dtypes_of_targets),
        cmocka_unit_test(test_tensors_that_do_not_fit),
        cmocka_unit_test(test_split_of_any_dataset),
        cmocka_unit_test(test_splits_that_cannot_be),
        cmocka_unit_test(test_standardized_parts),
        cmocka_unit_test(test_what_cannot_be_standardized),
    };
    return cmocka_run_group_tests_name("data: rows", tests, NULL, NULL);
}
