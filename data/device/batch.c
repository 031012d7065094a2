#include "data/device/batch.h"
#include "tensor/extend.h"

#include "data/dataset.h"

#include <stdlib.h>

struct td_device_batch {
    td_tensor *x, *y;           /* of a full batch */
    td_tensor *tail_x, *tail_y; /* of a last one that is not full, in the same memory, or NULL */
};

/* A view of full's memory of another shape. */
static td_tensor *tail_of(const td_tensor *full, td_shape shape, td_layout layout)
{
    int64_t stride[TD_MAX_DIMS];
    td_layout_strides(td_device_of(full), layout, shape, stride);
    td_tensor *tail = td_slice_of_storage(full, full->offset, shape, stride);
    if (tail != NULL) {
        tail->name = full->name;
    }
    return tail;
}

static bool make_tensors(td_device_batch *b, const td_dataset *dataset, td_device device,
                         int64_t batch_size, int64_t tail)
{
    b->x =
        td_new_layout(td_batch_shape(dataset, batch_size), dataset->dtype, dataset->layout, device);
    b->y = b->x != NULL
               ? td_new(td_batch_y_shape(dataset, batch_size), td_batch_y_dtype(dataset), device)
               : NULL;
    if (b->y == NULL) {
        return false;
    }
    b->x->name = "the loader's x";
    b->y->name = "the loader's y";
    if (tail > 0) {
        b->tail_x = tail_of(b->x, td_batch_shape(dataset, tail), dataset->layout);
        b->tail_y = tail_of(b->y, td_batch_y_shape(dataset, tail), TD_ROW_MAJOR);
        return b->tail_x != NULL && b->tail_y != NULL;
    }
    return true;
}

td_device_batch *td_device_batch_new(const td_dataset *dataset, td_device device,
                                     int64_t batch_size, int64_t tail)
{
    td_device_batch *b = calloc(1, sizeof *b);
    if (b == NULL) {
        td_fail(TD_E_NOMEM, "loader: no memory");
        return NULL;
    }
    if (!make_tensors(b, dataset, device, batch_size, tail)) {
        td_device_batch_free(b);
        td_fail_context(TD_E_NOMEM, "loader: a batch of %lld samples on %s", (long long)batch_size,
                        td_device_name(device));
        return NULL;
    }
    return b;
}

void td_device_batch_free(td_device_batch *b)
{
    if (b == NULL) {
        return;
    }
    td_free(b->tail_x);
    td_free(b->tail_y);
    td_free(b->x);
    td_free(b->y);
    free(b);
}

void td_device_batch_tensors(td_device_batch *b, int64_t n, td_tensor **x, td_tensor **y)
{
    bool full = n == b->y->shape[0];
    *x = full ? b->x : b->tail_x;
    *y = full ? b->y : b->tail_y;
}
