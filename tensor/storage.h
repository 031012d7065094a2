/* Storages and tensor headers from the inside: for tensor/, the kernels and the tape. Not for
 * users. */
#pragma once

#include "tensor/extend.h"

enum { TD_ALIGNMENT = 64 }; /* bytes; of every storage that is not borrowed */

typedef enum td_storage_kind {
    /* What happens when the last user of the storage releases it: */
    TD_STORAGE_PERSISTENT, /* the memory, which is malloc's or the device's, is freed */
    TD_STORAGE_BORROWED,   /* the memory is the caller's and stays */
    TD_STORAGE_STEP,       /* the memory goes back to the step's arena (owner), in which the storage
                              itself lies, too */
    TD_STORAGE_LENT,       /* the lender (owner) is told */
} td_storage_kind;

/* An object that lends memory to a storage, such as another library (tensor/extra/dlpack.c);
 * give_back is called once, when nobody uses the storage any more. */
typedef struct td_lender {
    void (*give_back)(struct td_lender *lender, void *data);
} td_lender;

/* The address of element [0,...,0], without any check and without counting a write: for kernels,
 * whose callers have checked. */
static inline void *td_ptr(const td_tensor *t)
{
    size_t size = td_dtype_size(t->dtype);
    return (char *)t->storage->data + t->offset * (int64_t)size;
}

/* Bytes of all elements; NULL has none. (A view's storage may have more.) */
static inline size_t td_tensor_bytes(const td_tensor *t)
{
    return t != NULL ? (size_t)td_numel(t) * td_dtype_size(t->dtype) : 0;
}

/* New storages, retained once. NULL with td_last_error() when memory is short. Contents are zeros
 * or undefined; a large storage of zeros costs no memory where it is never written. */
td_storage *td_storage_new(size_t bytes, td_device device, bool zeroed);
td_storage *td_storage_borrow(void *data, size_t bytes, td_device device);
td_storage *td_storage_lend(void *data, size_t bytes, td_device device, td_lender *lender);

/* Gives freed memory of the heap back to the system, where the C library can (glibc). */
void td_trim_heap(void);

/* For sharding: tensors whose memory comes and goes. td_new_away makes a persistent tensor without
 * memory. td_set_address gives the tensor and all its views memory, or takes it away (NULL); using
 * one of them without memory is a fatal error that says why. td_slice_of_storage makes views at any
 * time. lender is NULL or is told when nobody uses the storage any more. */
td_tensor *td_new_away(td_shape shape, td_dtype dtype, td_layout layout, td_device device,
                       td_lender *lender);
void td_set_address(td_tensor *t, void *data);

/* Bytes of a shape; false if they are more than can be counted. */
bool td_shape_bytes(td_shape shape, td_dtype dtype, size_t *bytes);

/* Fills in the header of a persistent tensor; for a step tensor the caller then sets t->step. Does
 * not retain the storage. */
void td_init_header(td_tensor *t, td_storage *storage, int64_t offset, td_shape shape,
                    const int64_t *stride, td_dtype dtype);

/* Fills in a header and a storage over the caller's row-major memory. Both are the caller's
 * variables, so nothing is allocated and nothing is freed. */
void td_init_borrowed(td_tensor *t, td_storage *storage, void *values, td_shape shape,
                      td_dtype dtype);

/* Strides of a dense tensor in the memory order of t (row-major if t is expanded). */
void td_strides_like(const td_tensor *t, int64_t *stride);

/* Programming mistakes that creation checks: a shape of 0 to 8 dimensions, none negative; a device
 * that this build has; a view that stays inside its storage. */
void td_require_shape(td_shape shape, td_site at);
void td_require_device(td_device device, td_site at);
void td_require_inside(const td_storage *storage, int64_t offset, td_shape shape,
                       const int64_t *stride, td_dtype dtype, td_site at);

/* A fatal error unless t can be read now and no two of its elements share memory; then counts a
 * write. what: the name of the calling function, for the message. */
void td_begin_write(td_tensor *t, const char *what, td_site at);

/* y = x, element by element, between any devices; converts dtype and memory order. x and y have one
 * shape and do not overlap. When the call returns, you may read host memory that was y's, and write
 * host memory that was x's. */
void td_copy_across(td_tensor *y, const td_tensor *x);

/* "'fc1.weight' f32[64,13] cpu:0" or "a tensor f32[64,13] cpu:0", from td_describe's ring. */
const char *td_label(const td_tensor *t);

/* "1.5 GiB", from td_describe's ring. */
const char *td_describe_bytes(size_t bytes);

/* td_free calls this function, which frees autograd's part of a tensor (t->grad), if there is one.
 * Autograd sets it. */
extern void (*td_free_grad_state_hook)(td_tensor *t);
