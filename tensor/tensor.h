/* Tensors: the first module header. It knows nothing of gradients.
 *
 * A tensor is a small header (dtype, shape, strides) over a storage. There are two kinds:
 *   persistent  made by the td_new/td_zeros/td_from family below; belongs to whoever made it, who
 *               ends it with td_free (parameters, gradients, optimizer state, datasets);
 *   step        made by an operation between td_step_begin and td_step_end (tensor/step.h); belongs
 *               to the step and is gone at its end. Nobody frees it, so expressions nest without
 *               leaks. To keep a result, td_clone it.
 *
 * Strides count elements and are in the order of the shape. Memory order is a matter of strides
 * alone: the layout of images and filters belongs to the device (td_layout), while their shape is
 * always N,C,H,W and O,I,H,W. */
#ifndef TD_TENSOR_TENSOR_H
#define TD_TENSOR_TENSOR_H

#include "tensor/device.h"
#include "tensor/dtype.h"
#include "tensor/error.h"
#include "tensor/extern_c.h"
#include "tensor/options.h"
#include "tensor/precision.h"

#include <stdio.h>

TD_BEGIN_C

enum { TD_MAX_DIMS = 8 };

typedef struct td_shape {
    int ndim;
    int64_t dim[TD_MAX_DIMS];
} td_shape;

/* TD_SHAPE(32, 3, 8, 8). A scalar's shape is TD_SCALAR. */
#define TD_SHAPE(...)                                                                              \
    ((td_shape){ .ndim = (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)),              \
                 .dim = { __VA_ARGS__ } })
#define TD_SCALAR ((td_shape){ .ndim = 0 })

typedef enum td_layout {
    TD_ROW_MAJOR = 0, /* last dimension fastest, as in C */
    TD_IMAGE = 1,     /* a [N,C,H,W] batch in its device's order; CPU: memory [H][W][N][C] */
    TD_FILTER = 2,    /* an [O,I,H,W] or [O,I] weight in its device's order; CPU: [H][W][I][O] */
} td_layout;

/* Reference-counted memory, shared by a tensor and its views. Not for users. */
typedef struct td_storage {
    void *data;
    size_t bytes;
    int refs;         /* headers and tape entries that hold it; not atomic: a storage is used by one
                         thread at a time */
    uint32_t version; /* counts in-place writes; the tape compares it in backward */
    td_device device;
    unsigned char kind; /* td_storage_kind in tensor/storage.h */
    bool released;      /* a step's memory that has been given back */
    void *owner;        /* kind-specific: the arena, or the storage that is borrowed from */
} td_storage;

struct td_grad_state; /* autograd's part of a tensor (autograd/tape.h); tensor/ only carries it */

typedef struct td_tensor {
    int64_t shape[TD_MAX_DIMS];
    int64_t stride[TD_MAX_DIMS]; /* in elements; 0 in an expanded dimension */
    int ndim;
    td_dtype dtype;
    td_storage *storage;
    int64_t offset;             /* of element [0,...,0] from the storage's start, in elements */
    uint64_t step;              /* 0: persistent; otherwise the number of its step */
    bool let_go;                /* by its scope (td_scope_end, td_scope_keep) */
    struct td_grad_state *grad; /* NULL: takes no part in gradients */
    const char *name;           /* for messages; not owned; may be NULL */
} td_tensor;

/* ---- creation: persistent, yours to td_free; NULL with td_last_error() when memory is short ----
 */

td_tensor *td_new_at(td_shape shape, td_dtype dtype, td_device device,
                     td_site at); /* contents undefined */
td_tensor *td_zeros_at(td_shape shape, td_dtype dtype, td_device device, td_site at);
td_tensor *td_full_at(td_shape shape, double value, td_dtype dtype, td_device device, td_site at);
td_tensor *td_arange_at(int64_t n, td_dtype dtype, td_device device,
                        td_site at); /* 0, 1, ..., n-1 */

/* Copies row-major values of the given dtype into a new tensor. */
td_tensor *td_from_at(const void *values, td_shape shape, td_dtype dtype, td_device device,
                      td_site at);

/* A persistent tensor over the caller's row-major memory, which must outlive it and its views. CPU
 * devices only. */
td_tensor *td_borrow_at(void *values, td_shape shape, td_dtype dtype, td_device device, td_site at);

/* A persistent copy, of the same layout (dense) or on another device or of another dtype. */
td_tensor *td_clone_at(const td_tensor *t, td_site at);
td_tensor *td_clone_as_at(const td_tensor *t, td_dtype dtype, td_device device, td_site at);

/* Ends a persistent tensor; its storage goes with its last holder. NULL is fine. A step tensor is a
 * programming mistake. */
void td_free_at(td_tensor *t, td_site at);

/* ---- looking at one ---- */

td_shape td_shape_of(const td_tensor *t);
td_device td_device_of(const td_tensor *t);
int64_t td_numel(const td_tensor *t);
bool td_same_shape(const td_tensor *a, const td_tensor *b);
bool td_is_contiguous(const td_tensor *t); /* row-major and dense */
/* The address of element [0,...,0]. A stale tensor (its step is over, its memory given back) is a
 * programming mistake and named; so is one on a GPU, whose memory the host cannot touch (td_read
 * and td_write work there). td_data_rw also counts as a write (storage version). */
const void *td_data_at(const td_tensor *t, td_site at);
void *td_data_rw_at(td_tensor *t, td_site at);

/* One element as a double; td_item wants a tensor of one element. */
double td_get_at(const td_tensor *t, const int64_t *index, td_site at);
void td_set_at(td_tensor *t, const int64_t *index, double value, td_site at);
double td_item_at(const td_tensor *t, td_site at);

/* Copies all elements, row-major, into the caller's memory as the given dtype. */
void td_read_at(const td_tensor *t, void *values, td_dtype dtype, td_site at);
/* The other way: row-major values of a dtype into t (any strides). */
void td_write_at(td_tensor *t, const void *values, td_dtype dtype, td_site at);

/* Prints values in brackets, columns aligned, long dimensions abbreviated; then shape, dtype and
 * device. td_describe gives "f32[32,3,8,8] cpu:0" in a static per-thread ring of 8 buffers. */
void td_print_at(const td_tensor *t, FILE *out, td_site at);
const char *td_describe(const td_tensor *t);
const char *td_describe_shape(td_shape shape); /* "[32,3,8,8]", from the same ring */

/* ---- writing in place (persistent or step). Writing into an expanded tensor is a mistake. ---- */

void td_fill_inplace_at(td_tensor *t, double value, td_site at);
void td_copy_inplace_at(td_tensor *to, const td_tensor *from,
                        td_site at); /* same shape; converts layout, dtype, device */

/* The caller's place, supplied. */
#define td_new(...) td_new_at(__VA_ARGS__, TD_HERE)
#define td_zeros(...) td_zeros_at(__VA_ARGS__, TD_HERE)
#define td_full(...) td_full_at(__VA_ARGS__, TD_HERE)
#define td_arange(...) td_arange_at(__VA_ARGS__, TD_HERE)
#define td_from(...) td_from_at(__VA_ARGS__, TD_HERE)
#define td_borrow(...) td_borrow_at(__VA_ARGS__, TD_HERE)
#define td_clone(...) td_clone_at(__VA_ARGS__, TD_HERE)
#define td_clone_as(...) td_clone_as_at(__VA_ARGS__, TD_HERE)
#define td_free(...) td_free_at(__VA_ARGS__, TD_HERE)
#define td_data(...) td_data_at(__VA_ARGS__, TD_HERE)
#define td_data_rw(...) td_data_rw_at(__VA_ARGS__, TD_HERE)
#define td_get(...) td_get_at(__VA_ARGS__, TD_HERE)
#define td_set(...) td_set_at(__VA_ARGS__, TD_HERE)
#define td_item(...) td_item_at(__VA_ARGS__, TD_HERE)
#define td_read(...) td_read_at(__VA_ARGS__, TD_HERE)
#define td_write(...) td_write_at(__VA_ARGS__, TD_HERE)
#define td_print(...) td_print_at(__VA_ARGS__, TD_HERE)
#define td_fill_(...) td_fill_inplace_at(__VA_ARGS__, TD_HERE)
#define td_copy_(...) td_copy_inplace_at(__VA_ARGS__, TD_HERE)

TD_END_C

#include "tensor/random.h"
#include "tensor/step.h"

#endif
