/* Samples held in tensors. */
#include "data/dataset.h"
#include "tensor/kernels/element.h"
#include "tensor/system/list.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- fetching ---- */

/* One sample's way from one tensor into another of its shape. */
typedef struct copying {
    const td_tensor *from, *to;
    const char *source;
    char *target;
} copying;

/* Copies the elements of dimensions d and beyond; the places count elements. */
static void copy(const copying *c, int d, int64_t source, int64_t target)
{
    const td_tensor *from = c->from, *to = c->to;
    size_t size = td_dtype_size(from->dtype);
    if (d == from->ndim) {
        td_store_element(c->target, to->dtype, target,
                         td_load_element(c->source, from->dtype, source));
    } else if (d == from->ndim - 1 && from->dtype == to->dtype && from->stride[d] == 1 &&
               to->stride[d] == 1) {
        memcpy(c->target + (size_t)target * size, c->source + (size_t)source * size,
               (size_t)from->shape[d] * size);
    } else {
        for (int64_t k = 0; k < from->shape[d]; k++) {
            copy(c, d + 1, source + k * from->stride[d], target + k * to->stride[d]);
        }
    }
}

/* Bytes of a sample, if samples lie alike in both tensors, without gaps; otherwise 0. */
static size_t plain_sample(const td_tensor *from, const td_tensor *to)
{
    int64_t count = 1;
    for (int d = from->ndim - 1; d >= 1; d--) {
        if (from->stride[d] != count || to->stride[d] != count) {
            return 0;
        }
        count *= from->shape[d];
    }
    return from->dtype == to->dtype ? (size_t)count * td_dtype_size(from->dtype) : 0;
}

static void gather(const td_tensor *from, const int64_t *index, int64_t n, td_tensor *to)
{
    copying c = { .from = from, .to = to, .source = td_data(from), .target = td_data_rw(to) };
    size_t size = td_dtype_size(from->dtype), plain = plain_sample(from, to);
    for (int64_t i = 0; i < n; i++) {
        int64_t source = index[i] * from->stride[0], target = i * to->stride[0];
        if (plain == 0) {
            copy(&c, 1, source, target);
        } else if (plain == sizeof(int64_t)) { /* as labels are */
            memcpy(c.target + (size_t)target * size, c.source + (size_t)source * size,
                   sizeof(int64_t));
        } else {
            memcpy(c.target + (size_t)target * size, c.source + (size_t)source * size, plain);
        }
    }
}

static td_status rows_fetch(const td_dataset *dataset, const int64_t *index, int64_t n,
                            uint64_t epoch, td_tensor *x, td_tensor *y)
{
    (void)epoch;
    const td_rows *rows = (const td_rows *)(dataset->scaled != NULL ? dataset->scaled : dataset);
    gather(rows->x, index, n, x);
    gather(rows->y, index, n, y);
    return TD_OK;
}

/* ---- making and ending ---- */

static void rows_free(td_dataset *dataset)
{
    td_rows *rows = (td_rows *)dataset;
    td_free(rows->x);
    td_free(rows->y);
    td_free_texts(rows->names, dataset->classes);
    free(rows);
}

/* The shape of one of t's samples. */
static td_shape sample_of(const td_tensor *t)
{
    td_shape shape = { .ndim = t->ndim - 1 };
    memcpy(shape.dim, t->shape + 1, (size_t)shape.ndim * sizeof *shape.dim);
    return shape;
}

td_rows *td_rows_new(const char *kind, td_tensor *x, td_tensor *y)
{
    td_rows *rows = x != NULL && y != NULL ? calloc(1, sizeof *rows) : NULL;
    if (rows == NULL) {
        td_free(x);
        td_free(y);
        td_fail(TD_E_NOMEM, "no memory for a dataset (%s)", kind);
        return NULL;
    }
    *rows = (td_rows){ .vtable = { kind, rows_fetch, rows_free }, .x = x, .y = y };
    rows->base = (td_dataset){
        .vtable = &rows->vtable,
        .length = x->shape[0],
        .sample_shape = sample_of(x),
        .dtype = x->dtype,
        .layout = x->ndim == 4 ? TD_IMAGE : TD_ROW_MAJOR,
        .target_shape = sample_of(y),
        .target_dtype = y->dtype,
        .scalars = y->ndim == 1 && y->dtype != TD_I64,
    };
    return rows;
}

/* The number of classes of these labels. */
static int count_classes(const td_tensor *y, td_site at)
{
    const int64_t *label = td_data(y);
    int64_t largest = -1;
    for (int64_t i = 0; i < y->shape[0]; i++) {
        int64_t value = label[i * y->stride[0]];
        TD_REQUIRE(value >= 0 && value < INT_MAX, at,
                   "td_tensor_dataset: label %lld is %lld; classes are numbered from 0",
                   (long long)i, (long long)value);
        largest = value > largest ? value : largest;
    }
    return (int)largest + 1;
}

static void check_tensor(const td_tensor *t, const char *name, td_site at)
{
    TD_REQUIRE(t != NULL, at, "td_tensor_dataset: %s is NULL: %s", name, td_last_reason());
    TD_REQUIRE(t->step == 0, at,
               "td_tensor_dataset: %s, %s, belongs to a step, at whose end it is gone; td_clone it",
               name, td_describe(t));
    TD_REQUIRE(td_device_of(t).type == TD_DEVICE_CPU, at,
               "td_tensor_dataset: %s is %s; it must be in CPU memory, the loader sends batches to "
               "a GPU",
               name, td_describe(t));
    TD_REQUIRE(t->ndim >= 1 && (td_is_float(t->dtype) || t->dtype == TD_I64), at,
               "td_tensor_dataset: %s is %s; it must be a float or i64 tensor [samples, ...]", name,
               td_describe(t));
}

static td_tensor *share(const td_tensor *t)
{
    return td_slice_of_storage(t, t->offset, td_shape_of(t), t->stride);
}

td_dataset *td_tensor_dataset_at(const td_tensor *x, const td_tensor *y, td_site at)
{
    check_tensor(x, "x", at);
    check_tensor(y, "y", at);
    bool labels = y->dtype == TD_I64 && y->ndim == 1;
    TD_REQUIRE(x->shape[0] == y->shape[0], at,
               "td_tensor_dataset: x has %lld samples, %s, and y has %lld, %s",
               (long long)x->shape[0], td_describe(x), (long long)y->shape[0], td_describe(y));
    int classes = labels ? count_classes(y, at) : 0;
    td_rows *rows = td_rows_new("set of tensors", share(x), share(y));
    if (rows == NULL) {
        return NULL;
    }
    rows->base.classes = classes;
    return &rows->base;
}

/* ---- samples as doubles ---- */

bool td_rows_read(const td_dataset *dataset, int64_t i, double *values)
{
    const td_part *part = td_part_of(dataset);
    if (part != NULL && dataset->scaled == NULL) {
        return td_rows_read(part->whole, part->index != NULL ? part->index[i] : i, values);
    }
    const td_rows *rows = (const td_rows *)(dataset->scaled != NULL ? dataset->scaled : dataset);
    if (rows->base.vtable->fetch != rows_fetch || dataset->sample_shape.ndim != 1) {
        return false;
    }
    const void *data = td_data(rows->x);
    for (int64_t f = 0; values != NULL && f < dataset->sample_shape.dim[0]; f++) {
        values[f] =
            td_load_element(data, rows->x->dtype, i * rows->x->stride[0] + f * rows->x->stride[1]);
    }
    return true;
}

td_rows *td_rows_scaled(const td_dataset *dataset, const td_standard_scaler *scaler)
{
    int64_t n = dataset->length, features = dataset->sample_shape.dim[0];
    td_tensor *x = td_new(td_batch_shape(dataset, n), dataset->dtype, TD_CPU);
    td_tensor *y = td_new(td_batch_y_shape(dataset, n), td_batch_y_dtype(dataset), TD_CPU);
    int64_t *index = malloc((size_t)n * sizeof *index + 1);
    bool memory = x != NULL && y != NULL && index != NULL;
    for (int64_t i = 0; memory && i < n; i++) {
        index[i] = i;
    }
    bool fetched = memory && dataset->vtable->fetch(dataset, index, n, 0, x, y) == TD_OK;
    double values[TD_SCALER_FEATURES] = { 0 };
    for (int64_t i = 0; fetched && i < n; i++) {
        td_rows_read(dataset, i, values);
        for (int64_t f = 0; f < features; f++) {
            td_store_element(td_data_rw(x), x->dtype, i * features + f,
                             (values[f] - scaler->mean[f]) / scaler->scale[f]);
        }
    }
    free(index);
    if (memory && !fetched) {
        td_free(x);
        td_free(y);
        return NULL;
    }
    return td_rows_new("standardised rows", x, y);
}
