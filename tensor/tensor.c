/* Tensors: making, copying and freeing them. */
#include "tensor/tensor.h"

#include "tensor/kernels/element.h"
#include "tensor/kernels/kernels.h"
#include "tensor/storage.h"
#include "tensor/version.h"

#include <stdlib.h>

void (*td_free_grad_state_hook)(td_tensor *t) = NULL;

const char *td_version(void)
{
    return TANDEM_VERSION;
}

/* A persistent tensor over a storage. It takes over the caller's reference to the storage; if there
 * is no memory for the header, the reference is released. storage NULL: returns NULL. */
static td_tensor *new_header(td_storage *storage, int64_t offset, td_shape shape,
                             const int64_t *stride, td_dtype dtype)
{
    if (storage == NULL) {
        return NULL;
    }
    td_tensor *t = malloc(sizeof *t);
    if (t == NULL) {
        td_fail(TD_E_NOMEM, "out of memory for the header of a tensor %s %s", td_dtype_name(dtype),
                td_describe_shape(shape));
        td_unhold(storage);
        return NULL;
    }
    td_init_header(t, storage, offset, shape, stride, dtype);
    return t;
}

/* Bytes of a new tensor; false with td_last_error() if they are more than any machine has. */
static bool count_bytes(td_shape shape, td_dtype dtype, size_t *bytes, td_site at)
{
    td_require_shape(shape, at);
    if (!td_shape_bytes(shape, dtype, bytes)) {
        td_fail(TD_E_NOMEM, "out of memory: a tensor %s%s has more bytes than can be counted",
                td_dtype_name(dtype), td_describe_shape(shape));
        return false;
    }
    return true;
}

static td_tensor *new_strided(td_shape shape, const int64_t *stride, td_dtype dtype,
                              td_device device, bool zeroed, td_site at)
{
    size_t bytes;
    if (!count_bytes(shape, dtype, &bytes, at)) {
        return NULL;
    }
    td_storage *storage = td_storage_new(bytes, device, zeroed);
    if (storage == NULL) {
        td_fail_context(TD_E_NOMEM, "a tensor %s%s", td_dtype_name(dtype),
                        td_describe_shape(shape));
    }
    return new_header(storage, 0, shape, stride, dtype);
}

td_tensor *td_new_layout_at(td_shape shape, td_dtype dtype, td_layout layout, td_device device,
                            td_site at)
{
    td_require_shape(shape, at);
    int64_t stride[TD_MAX_DIMS];
    td_layout_strides(device, layout, shape, stride);
    return new_strided(shape, stride, dtype, device, false, at);
}

td_tensor *td_new_at(td_shape shape, td_dtype dtype, td_device device, td_site at)
{
    return td_new_layout_at(shape, dtype, TD_ROW_MAJOR, device, at);
}

td_tensor *td_full_at(td_shape shape, double value, td_dtype dtype, td_device device, td_site at)
{
    td_tensor *t = td_new_at(shape, dtype, device, at);
    if (t != NULL) {
        td_kernels_of(device)->fill(t, value);
    }
    return t;
}

td_tensor *td_zeros_at(td_shape shape, td_dtype dtype, td_device device, td_site at)
{
    td_require_shape(shape, at);
    int64_t stride[TD_MAX_DIMS];
    td_layout_strides(device, TD_ROW_MAJOR, shape, stride);
    return new_strided(shape, stride, dtype, device, true, at);
}

td_tensor *td_arange_at(int64_t n, td_dtype dtype, td_device device, td_site at)
{
    td_require_device(device, at);
    td_tensor *t = td_new_at(TD_SHAPE(n), dtype, TD_CPU, at);
    for (int64_t i = 0; t != NULL && i < n; i++) {
        td_store_element(td_ptr(t), dtype, i, (double)i);
    }
    if (t == NULL || device.type == TD_DEVICE_CPU) {
        if (t != NULL) {
            t->storage->device = device;
        }
        return t;
    }
    td_tensor *there = td_clone_as(t, dtype, device);
    td_free(t);
    return there;
}

td_tensor *td_from_at(const void *values, td_shape shape, td_dtype dtype, td_device device,
                      td_site at)
{
    TD_REQUIRE(values != NULL || td_shape_numel(shape) == 0, at, "td_from: the values are NULL");
    td_tensor *t = td_new_at(shape, dtype, device, at);
    if (t != NULL) {
        td_write(t, values, dtype);
    }
    return t;
}

td_tensor *td_borrow_at(void *values, td_shape shape, td_dtype dtype, td_device device, td_site at)
{
    TD_REQUIRE(device.type == TD_DEVICE_CPU, at,
               "td_borrow: %s has memory of its own, and the caller's is not in it: td_from copies",
               td_device_name(device));
    size_t bytes;
    if (!count_bytes(shape, dtype, &bytes, at)) {
        return NULL;
    }
    int64_t stride[TD_MAX_DIMS];
    td_layout_strides(device, TD_ROW_MAJOR, shape, stride);
    return new_header(td_storage_borrow(values, bytes, device), 0, shape, stride, dtype);
}

td_tensor *td_new_away(td_shape shape, td_dtype dtype, td_layout layout, td_device device,
                       td_lender *lender)
{
    size_t bytes;
    int64_t stride[TD_MAX_DIMS];
    if (!count_bytes(shape, dtype, &bytes, TD_NOWHERE)) {
        return NULL;
    }
    td_layout_strides(device, layout, shape, stride);
    td_tensor *t = new_header(td_storage_borrow(NULL, bytes, device), 0, shape, stride, dtype);
    if (t != NULL) {
        td_set_address(t, NULL);
        t->storage->kind = lender != NULL ? TD_STORAGE_LENT : TD_STORAGE_BORROWED;
        t->storage->owner = lender;
    }
    return t;
}

void td_set_address(td_tensor *t, void *data)
{
    t->storage->data = data;
    t->storage->released = data == NULL;
}

td_tensor *td_slice_of_storage(const td_tensor *base, int64_t offset, td_shape shape,
                               const int64_t *stride)
{
    if (base == NULL || base->storage == NULL || base->storage->kind != TD_STORAGE_BORROWED) {
        td_check_alive(base, TD_NOWHERE);
    }
    TD_REQUIRE(base->step == 0, TD_NOWHERE,
               "td_slice_of_storage: %s belongs to a step; a persistent slice needs a persistent "
               "tensor: td_clone it first",
               td_label(base));
    td_require_shape(shape, TD_NOWHERE);
    td_require_inside(base->storage, offset, shape, stride, base->dtype, TD_NOWHERE);
    td_hold(base->storage);
    return new_header(base->storage, offset, shape, stride, base->dtype);
}

td_tensor *td_clone_at(const td_tensor *t, td_site at)
{
    td_check_alive(t, at);
    return td_clone_as_at(t, t->dtype, td_device_of(t), at);
}

td_tensor *td_clone_as_at(const td_tensor *t, td_dtype dtype, td_device device, td_site at)
{
    td_check_alive(t, at);
    int64_t stride[TD_MAX_DIMS];
    td_strides_like(t, stride);
    td_tensor *copy = new_strided(td_shape_of(t), stride, dtype, device, false, at);
    if (copy != NULL) {
        td_copy_across(copy, t);
    }
    return copy;
}

void td_free_at(td_tensor *t, td_site at)
{
    if (t == NULL) {
        return;
    }
    TD_REQUIRE(t->storage != NULL, at,
               "td_free: this tensor has been freed already; whoever made it frees it, once");
    TD_REQUIRE(t->step == 0, at,
               "td_free: %s belongs to step %llu, and step tensors are not freed: they go with "
               "their step",
               td_label(t), (unsigned long long)t->step);
    TD_REQUIRE(!t->lent, at, "td_free: %s is not yours: whoever has lent it frees it", td_label(t));
    if (t->grad != NULL && td_free_grad_state_hook != NULL) {
        td_free_grad_state_hook(t);
    }
    td_unhold(t->storage);
    /* Until malloc reuses the memory, a use of the freed tensor finds NULL and is reported.
     * volatile: otherwise the compiler would drop this write. */
    *(td_storage *volatile *)&t->storage = NULL;
    free(t);
}
