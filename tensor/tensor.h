/* Tensors: creating, reading, printing and writing them.
 *
 * A tensor is a small header (dtype, shape, strides) over a storage, the memory that holds the
 * elements. There are two kinds of tensors:
 *
 *   persistent  You create it (td_new, td_zeros, td_from, td_clone, ...) and free it with td_free.
 *               Parameters, gradients, optimizer state and datasets are persistent.
 *   step        An operation between td_step_begin and td_step_end returns it (tensor/step.h). The
 *               step owns the tensor, and the tensor is gone when the step ends. You never free a
 *               step tensor, so td_add(td_mul(a, b), c) leaks nothing. To keep a result, td_clone
 *               it.
 *
 * shape[] of images is always N,C,H,W, and of filters O,I,H,W. The order of the elements in memory
 * depends on the device; only stride[] shows that order. So do not assume that images are
 * row-major: td_read and td_write always use row-major order.
 *
 * Operations count denormal numbers as zero (f32 and bf16 below 1.2e-38, f64 below 2.2e-308).
 *
 *     td_tensor *a = td_from((float[]){ 1, 2, 3, 4 }, TD_SHAPE(2, 2), TD_F32, TD_CPU);
 *     td_print(a, stdout);
 *     td_free(a);                                                                               */
#pragma once

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

/* TD_SHAPE(32, 3, 8, 8) is a shape of four dimensions. TD_SCALAR is the shape of a scalar. */
#define TD_SHAPE(...)                                                                              \
    ((td_shape){ .ndim = (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)),              \
                 .dim = { __VA_ARGS__ } })
#define TD_SCALAR ((td_shape){ .ndim = 0 })

/* The order of elements in memory. */
typedef enum td_layout {
    TD_ROW_MAJOR = 0, /* the last dimension is contiguous, as in C */
    TD_IMAGE = 1,     /* images [N,C,H,W] in the order that the device prefers; CPU: [H][W][N][C] */
    TD_FILTER = 2,    /* weights [O,I,H,W] or [O,I], likewise; CPU: [H][W][I][O] */
} td_layout;

/* For the library: reference-counted memory that a tensor and its views share. */
typedef struct td_storage {
    void *data;
    size_t bytes;
    int refs;         /* tensors and tape entries that retain the storage; not atomic, because one
                         thread at a time retains or releases it (others may read it) */
    uint32_t version; /* counts in-place writes; backward compares it with the tape's */
    td_device device;
    unsigned char kind; /* td_storage_kind in tensor/storage.h */
    bool released;      /* the memory is not available: the step may use it for another tensor, or
                           sharding keeps these values on other ranks for now */
    bool exported;      /* other libraries may write the memory, which `version` does not count */
    void *owner;        /* depends on kind: the arena, or the storage that this one borrows from */
} td_storage;

struct td_grad_state; /* autograd's part of a tensor (autograd/tape.h); tensor/ only stores it */

typedef struct td_tensor {
    int64_t shape[TD_MAX_DIMS];
    int64_t stride[TD_MAX_DIMS]; /* in elements; 0 in an expanded dimension */
    int ndim;
    td_dtype dtype;

    /* For the library. */
    td_storage *storage;
    int64_t offset;             /* of element [0,...,0] from the storage's start, in elements */
    uint64_t step;              /* 0: persistent; otherwise the number of the tensor's step */
    bool let_go;                /* the forward that made it has returned: using it is fatal */
    bool lent;                  /* not the caller's: td_free is a fatal error */
    struct td_grad_state *grad; /* NULL: no gradients */
    const char *name;           /* for messages; not owned; may be NULL */
} td_tensor;

/* ---- creating persistent tensors ----
 *
 * The caller owns the result and frees it with td_free. All functions return NULL when memory is
 * short, and td_last_error() says so; a shape that is not valid is a fatal error.
 *
 * You call these functions without the ending _at and without their last argument: macros at the
 * end of this file supply the file and line of your call, for messages. td_fill_inplace_at and
 * td_copy_inplace_at are called td_fill_ and td_copy_, as in PyTorch. */

td_tensor *td_new_at(td_shape shape, td_dtype dtype, td_device device,
                     td_site at); /* contents undefined */
td_tensor *td_zeros_at(td_shape shape, td_dtype dtype, td_device device, td_site at);
td_tensor *td_full_at(td_shape shape, double value, td_dtype dtype, td_device device, td_site at);
td_tensor *td_arange_at(int64_t n, td_dtype dtype, td_device device,
                        td_site at); /* [n]: 0, 1, ..., n-1 */

/* Copies row-major values of the given dtype from the caller's memory. */
td_tensor *td_from_at(const void *values, td_shape shape, td_dtype dtype, td_device device,
                      td_site at);

/* A tensor over the caller's row-major memory, without a copy. The memory must live until the
 * tensor and all its views are freed; td_free does not free the memory. CPU devices only. */
td_tensor *td_borrow_at(void *values, td_shape shape, td_dtype dtype, td_device device, td_site at);

/* td_clone copies a tensor of either kind into a persistent one of the same shape, dtype, device
 * and memory order, without gaps.
 * td_clone_as copies to another dtype or device. Gradients are not copied. */
td_tensor *td_clone_at(const td_tensor *t, td_site at);
td_tensor *td_clone_as_at(const td_tensor *t, td_dtype dtype, td_device device, td_site at);

/* Frees a persistent tensor. The storage is freed when no view uses it any more. NULL is fine. A
 * step tensor is a fatal error. */
void td_free_at(td_tensor *t, td_site at);

/* ---- reading ---- */

td_shape td_shape_of(const td_tensor *t);
td_device td_device_of(const td_tensor *t);
int64_t td_numel(const td_tensor *t); /* number of elements */

/* td_read copies all elements into the caller's memory, row-major, converted to the given dtype.
 * values has room for td_numel(t) elements. Works for every memory order and device. */
void td_read_at(const td_tensor *t, void *values, td_dtype dtype, td_site at);

/* td_item returns the only element of a tensor of one element. td_get returns the element at
 * index[ndim]. Both return a double. An index out of range is a fatal error. */
double td_item_at(const td_tensor *t, td_site at);
double td_get_at(const td_tensor *t, const int64_t *index, td_site at);

/* The address of element [0,...,0]; stride[] says where the other elements are. td_data_rw is for
 * writing: it marks t as changed, so that td_backward stops with a message if it needs the old
 * values. The tensor owns the memory. It is a fatal error if t's step is over, or if t's memory is
 * on a GPU; use td_read and td_write there. */
const void *td_data_at(const td_tensor *t, td_site at);
void *td_data_rw_at(td_tensor *t, td_site at);

/* ---- printing ---- */

/* Prints values in brackets with aligned columns, long dimensions abbreviated; then shape, dtype
 * and device. */
void td_print_at(const td_tensor *t, FILE *out, td_site at);
/* "f32[32,3,8,8] cpu:0". The library owns the text, which is valid until the same thread has made
 * eight more such calls. */
const char *td_describe(const td_tensor *t);

/* ---- writing in place ----
 *
 * For tensors of both kinds. Writing into an expanded tensor is a fatal error. */

/* td_write copies row-major values of the given dtype from the caller's memory into t. */
void td_write_at(td_tensor *t, const void *values, td_dtype dtype, td_site at);
void td_set_at(td_tensor *t, const int64_t *index, double value, td_site at); /* one element */
void td_fill_inplace_at(td_tensor *t, double value, td_site at);
/* to = from, of the same shape; converts memory order, dtype and device. */
void td_copy_inplace_at(td_tensor *to, const td_tensor *from, td_site at);

/* ---- what you call ---- */

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
