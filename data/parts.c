/* Parts of a dataset: its first samples, and a split into training and test samples; standardising
 * both parts alike. */
#include "data/dataset.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- a part ---- */

static td_status part_fetch(const td_dataset *dataset, const int64_t *index, int64_t n,
                            uint64_t epoch, td_tensor *x, td_tensor *y)
{
    const td_part *part = (const td_part *)dataset;
    if (dataset->scaled != NULL || part->index == NULL) {
        const td_dataset *from = dataset->scaled != NULL ? dataset->scaled : part->whole;
        return from->vtable->fetch(from, index, n, epoch, x, y);
    }
    int64_t *numbers = malloc((size_t)n * sizeof *numbers);
    TD_CHECK(numbers != NULL, TD_E_NOMEM, "no memory for the numbers of %lld samples",
             (long long)n);
    for (int64_t i = 0; i < n; i++) {
        numbers[i] = part->index[index[i]];
    }
    td_status status = part->whole->vtable->fetch(part->whole, numbers, n, epoch, x, y);
    free(numbers);
    return status;
}

static void part_free(td_dataset *dataset)
{
    td_part *part = (td_part *)dataset;
    td_dataset_count_part(part->whole, -1);
    free(part->index);
    free(part);
}

static const td_dataset_vtable part_vtable = { "part of a dataset", part_fetch, part_free };

const td_part *td_part_of(const td_dataset *dataset)
{
    return dataset->vtable == &part_vtable ? (const td_part *)dataset : NULL;
}

/* The samples that index names, or the first n (index NULL). */
static td_dataset *part_new(const td_dataset *whole, const int64_t *index, int64_t n)
{
    td_part *part = malloc(sizeof *part);
    int64_t *numbers = index != NULL ? malloc((size_t)n * sizeof *numbers) : NULL;
    if (part == NULL || (index != NULL && numbers == NULL)) {
        free(part);
        free(numbers);
        td_fail(TD_E_NOMEM, "no memory for a part of %lld samples", (long long)n);
        return NULL;
    }
    if (index != NULL) {
        memcpy(numbers, index, (size_t)n * sizeof *numbers);
    }
    *part = (td_part){ .base = *whole, .whole = whole, .index = numbers };
    part->base.vtable = &part_vtable;
    part->base.length = n;
    part->base.loaders = part->base.parts = 0;
    part->base.freed = false;
    part->base.scaled = NULL;
    td_dataset_count_part(whole, 1);
    return &part->base;
}

td_dataset *td_dataset_head(const td_dataset *dataset, int64_t n)
{
    TD_CHECK_NULL(n >= 0, TD_E_ARG, "td_dataset_head: %lld samples were asked for; give 0 or more",
                  (long long)n);
    return part_new(dataset, NULL, n < dataset->length ? n : dataset->length);
}

/* ---- the split ---- */

/* Row numbers as scikit-learn's train_test_split(test_size, random_state=seed) gives them: a
 * permutation by NumPy's legacy shuffle; its first `test` entries are the test rows, the rest the
 * training rows, in this order. */
static void permute(uint32_t seed, int64_t n, int64_t *order)
{
    td_generator g;
    td_generator_seed(&g, seed);
    for (int64_t i = 0; i < n; i++) {
        order[i] = i;
    }
    for (int64_t i = n - 1; i >= 1; i--) {
        uint32_t mask = UINT32_MAX >> __builtin_clz((uint32_t)i); /* smallest 2^k-1 >= i */
        int64_t j;
        do {
            j = td_random_u32(&g) & mask;
        } while (j > i);
        int64_t kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

td_status td_split(const td_dataset *dataset, double test_size, uint32_t seed, td_dataset **train,
                   td_dataset **test)
{
    *train = *test = NULL;
    TD_CHECK(dataset != NULL, TD_E_ARG, "td_split: the dataset is NULL: %s", td_last_reason());
    TD_CHECK(test_size > 0 && test_size < 1, TD_E_ARG,
             "a test share of %g; give a number between 0 and 1", test_size);
    int64_t tests = (int64_t)ceil(test_size * (double)dataset->length);
    int64_t trains = dataset->length - tests;
    TD_CHECK(trains >= 1 && dataset->length <= UINT32_MAX, TD_E_ARG,
             "%lld rows with a test share of %g leave none to train with",
             (long long)dataset->length, test_size);
    int64_t *order = malloc((size_t)dataset->length * sizeof *order);
    TD_CHECK(order != NULL, TD_E_NOMEM, "no memory to split %lld rows", (long long)dataset->length);
    permute(seed, dataset->length, order);
    *test = part_new(dataset, order, tests);
    *train = *test != NULL ? part_new(dataset, order + tests, trains) : NULL;
    free(order);
    if (*train == NULL) {
        td_dataset_free(*test);
        *test = NULL;
        return TD_E_NOMEM;
    }
    return TD_OK;
}

/* ---- standardising ---- */

/* Mean and population standard deviation of each feature, summed in the order of the samples:
 * mean = sum(x)/n; var = (sum(d^2) - sum(d)^2/n)/n with d = x - mean. A feature that is constant up
 * to rounding gets scale 1. */
static void fit(const td_dataset *dataset, td_standard_scaler *scaler)
{
    double deviation[TD_SCALER_FEATURES] = { 0 }, square[TD_SCALER_FEATURES] = { 0 };
    double values[TD_SCALER_FEATURES], count = (double)dataset->length;
    int features = (int)dataset->sample_shape.dim[0];
    *scaler = (td_standard_scaler){ .features = features };
    for (int64_t i = 0; i < dataset->length; i++) {
        td_rows_read(dataset, i, values);
        for (int f = 0; f < features; f++) {
            scaler->mean[f] += values[f];
        }
    }
    for (int f = 0; f < features; f++) {
        scaler->mean[f] /= count;
    }
    for (int64_t i = 0; i < dataset->length; i++) {
        td_rows_read(dataset, i, values);
        for (int f = 0; f < features; f++) {
            double d = values[f] - scaler->mean[f];
            deviation[f] += d;
            square[f] += d * d;
        }
    }
    for (int f = 0; f < features; f++) {
        double variance = (square[f] - deviation[f] * deviation[f] / count) / count;
        double noise = count * scaler->mean[f] * DBL_EPSILON;
        bool constant = variance <= count * DBL_EPSILON * variance + noise * noise;
        scaler->scale[f] = constant ? 1.0 : sqrt(variance);
    }
}

static td_status check_scalable(td_dataset *dataset, const char *name)
{
    bool floats = td_is_float(dataset->dtype);
    TD_CHECK(dataset->length >= 1 && floats && td_rows_read(dataset, 0, NULL), TD_E_UNSUPPORTED,
             "td_standardize: the %s set is a %s with %lld samples %s of %s; only rows of numbers "
             "in memory (CSV, float tensors [n, features]) can be standardised",
             name, dataset->vtable->kind, (long long)dataset->length,
             td_describe_shape(dataset->sample_shape), td_dtype_name(dataset->dtype));
    TD_CHECK(dataset->sample_shape.dim[0] <= TD_SCALER_FEATURES, TD_E_UNSUPPORTED,
             "td_standardize: %lld features; at most %d are possible",
             (long long)dataset->sample_shape.dim[0], TD_SCALER_FEATURES);
    TD_CHECK(dataset->scaled == NULL && dataset->loaders <= 0, TD_E_ARG,
             "td_standardize: the %s set %s", name,
             dataset->loaders > 0 ? "has an open loader; standardise before opening one"
                                  : "is standardised already");
    return TD_OK;
}

static td_status scale(td_dataset *dataset, const td_standard_scaler *scaler)
{
    td_rows *scaled = td_rows_scaled(dataset, scaler);
    dataset->scaled = scaled != NULL ? &scaled->base : NULL;
    return scaled != NULL ? TD_OK : TD_E_NOMEM;
}

td_status td_standardize(td_dataset *train, td_dataset *test, td_standard_scaler *scaler)
{
    td_standard_scaler local;
    td_standard_scaler *s = scaler != NULL ? scaler : &local;
    TD_TRY(check_scalable(train, "training"));
    TD_CHECK(test != train, TD_E_ARG,
             "td_standardize: the training set and the test set are the same; give NULL as the "
             "test set");
    if (test != NULL) {
        TD_TRY(check_scalable(test, "test"));
        TD_CHECK(td_shape_equal(test->sample_shape, train->sample_shape), TD_E_MISMATCH,
                 "td_standardize: the training set has samples %s, the test set %s",
                 td_describe_shape(train->sample_shape), td_describe_shape(test->sample_shape));
    }
    fit(train, s);
    TD_TRY(scale(train, s));
    return test != NULL ? scale(test, s) : TD_OK;
}
