/* Storages and tensor headers, seen from inside: for tensor/, the kernels and the tape. Users do
 * not include this. */
#ifndef TD_TENSOR_STORAGE_H
#define TD_TENSOR_STORAGE_H

#include "tensor/tensor.h"

enum { TD_ALIGNMENT = 64 }; /* bytes; of every storage that is not borrowed */

typedef enum td_storage_kind {
    TD_STORAGE_PERSISTENT, /* memory from malloc; goes with the last holder */
    TD_STORAGE_BORROWED,   /* the caller's memory; only the storage goes with the last holder */
    TD_STORAGE_STEP, /* memory from a step's arena (owner); the storage lies in the step, too */
    TD_STORAGE_LENT, /* memory that goes back to its lender (owner) with the last holder */
} td_storage_kind;

/* Who has lent memory: shared memory of a process group. */
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

/* New storages with one hold. NULL with td_last_error() when memory is short. */
td_storage *td_storage_new(size_t bytes, td_device device);
/* Of zeros. Large ones cost no memory where they are never written. */
td_storage *td_storage_zeroed(size_t bytes, td_device device);
td_storage *td_storage_borrow(void *data, size_t bytes, td_device device);
td_storage *td_storage_lend(void *data, size_t bytes, td_device device, td_lender *lender);

/* Memory that comes and goes: a persistent tensor that has no memory yet, and the address of its
 * memory from now on. NULL: the memory is away, and who uses a tensor over it gets an error.
 * Views stay; td_slice_of_storage makes them of a tensor that is away, too. A lender (NULL: none)
 * is told when the last holder goes. */
td_tensor *td_new_away(td_shape shape, td_dtype dtype, td_layout layout, td_device device,
                       td_lender *lender);
void td_set_address(td_tensor *t, void *data);

/* Bytes of a shape; false if they are more than can be counted. */
bool td_shape_bytes(td_shape shape, td_dtype dtype, size_t *bytes);

/* Writes a persistent header; step tensors set step afterwards. Takes no hold. */
void td_init_header(td_tensor *t, td_storage *storage, int64_t offset, td_shape shape,
                    const int64_t *stride, td_dtype dtype);

/* A header and storage over the caller's row-major memory, for the time of a call: no allocation,
 * nothing to free. */
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

/* Fails unless t is alive and no element of it appears twice; then counts a write. what: the
 * function's name. */
void td_begin_write(td_tensor *t, const char *what, td_site at);

/* y = x, element by element, converting dtype and memory order, between any devices. Same shape; x
 * and y do not overlap. When it returns, host memory that it wrote can be read, and host memory
 * that it read can be written. */
void td_copy_across(td_tensor *y, const td_tensor *x);

/* "'fc1.weight' f32[64,13] cpu:0" or "a tensor f32[64,13] cpu:0", from td_describe's ring. */
const char *td_label(const td_tensor *t);

/* "1.5 GiB", from td_describe's ring. */
const char *td_describe_bytes(size_t bytes);

/* Ends what autograd has hung on a tensor; called by td_free if t->grad is not NULL. NULL until
 * autograd sets it. */
extern void (*td_free_grad_state_hook)(td_tensor *t);

#endif
