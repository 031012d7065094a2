/* Tensors as a kernel of any device wants them: in a given layout, dense. A tensor that is not gets
 * a copy in scratch memory for the time of the call, so that each kernel is written for one layout
 * only. The same goes for dtypes. */
#ifndef TD_TENSOR_STAGED_H
#define TD_TENSOR_STAGED_H

#include "tensor/tensor.h"

typedef struct td_staged {
    td_tensor *tensor; /* what the kernel works on: the caller's tensor or `copy`; NULL: none */
    td_tensor *original;
    td_tensor copy;
    td_storage storage;
    void *scratch; /* NULL: no copy was needed */
    bool is_output;
} td_staged;

/* To read t. NULL is fine. Returns its data. */
const void *td_stage_in(td_staged *staged, const td_tensor *t, td_layout layout);

/* The same as another dtype. */
const void *td_stage_in_as(td_staged *staged, const td_tensor *t, td_layout layout, td_dtype dtype);

/* A copy in any case, for the caller to change. */
void *td_stage_copy(td_staged *staged, const td_tensor *t, td_layout layout, td_dtype dtype);

/* To read t in the dense memory order of `like`, which has the same shape. */
const void *td_stage_in_like(td_staged *staged, const td_tensor *t, const td_tensor *like);

/* To write t; with `keep`, what is in it is there before (for accumulation). Returns its data. */
void *td_stage_out(td_staged *staged, td_tensor *t, td_layout layout, bool keep);

/* The same as another dtype. */
void *td_stage_out_as(td_staged *staged, td_tensor *t, td_layout layout, td_dtype dtype, bool keep);

/* td_stage_end(&sx, &sy) ends them in this order: writes an output's copy back, and gives the
 * scratch memory back. */
#define td_stage_end(...) td_stage_end_all((td_staged *const[]){ __VA_ARGS__, NULL })
void td_stage_end_all(td_staged *const *list);

/* A tensor header over plain dense memory, for as long as both of its parts live. */
void td_wrap(td_tensor *t, td_storage *storage, void *data, td_shape shape, td_dtype dtype,
             td_layout layout, td_device device);

#endif
