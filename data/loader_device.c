#include "data/loader_device.h"

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

static bool make_tensors(td_device_batch *b, const td_ring *ring, td_device device)
{
    const td_tensor *x = ring->slots[0].x, *y = ring->slots[0].y;
    td_layout layout = ring->dataset->layout;
    b->x = td_new_layout(td_shape_of(x), x->dtype, layout, device);
    b->y = b->x != NULL ? td_new(td_shape_of(y), y->dtype, device) : NULL;
    if (b->y == NULL) {
        return false;
    }
    b->x->name = x->name;
    b->y->name = y->name;
    if (ring->tail_x != NULL) {
        b->tail_x = tail_of(b->x, td_shape_of(ring->tail_x), layout);
        b->tail_y = tail_of(b->y, td_shape_of(ring->tail_y), TD_ROW_MAJOR);
        return b->tail_x != NULL && b->tail_y != NULL;
    }
    return true;
}

td_device_batch *td_device_batch_new(const td_ring *ring, td_device device)
{
    td_device_batch *b = calloc(1, sizeof *b);
    if (b == NULL) {
        td_fail(TD_E_NOMEM, "loader: no memory");
        return NULL;
    }
    if (!make_tensors(b, ring, device)) {
        td_device_batch_free(b);
        td_fail_context(TD_E_NOMEM, "loader: a batch of %lld samples on %s",
                        (long long)ring->plan.batch_size, td_device_name(device));
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

void td_device_batch_fill(td_device_batch *b, td_tensor **x, td_tensor **y)
{
    bool full = (*y)->shape[0] == b->y->shape[0];
    td_tensor *there_x = full ? b->x : b->tail_x, *there_y = full ? b->y : b->tail_y;
    td_copy_(there_x, *x);
    td_copy_(there_y, *y);
    *x = there_x;
    *y = there_y;
}
