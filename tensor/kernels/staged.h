/* Operands of a kernel, brought into the layout and dtype that the kernel is written for. If a
 * tensor is dense in that layout and has that dtype, the kernel works on the tensor itself.
 * Otherwise it works on a copy in scratch memory, until td_stage_end.
 *
 *     td_staged sy, sx;
 *     const float *from = td_stage_in(&sx, x, TD_IMAGE);
 *     float *to = td_stage_out(&sy, y, TD_IMAGE, accumulate);
 *     ... compute `to` from `from` ...
 *     td_stage_end(&sy, &sx);
 *
 * A NULL tensor is fine in all functions but td_stage_copy and td_stage_in_like, and gives NULL. */
#pragma once

#include "tensor/tensor.h"

typedef struct td_staged {
    td_tensor *tensor; /* the caller's tensor or `copy`, on which the kernel works; NULL: none */
    td_tensor *original;
    td_tensor copy;
    td_storage storage;
    void *scratch; /* NULL: no copy was needed */
    bool is_output;
} td_staged;

/* For reading t. Returns the address of the first element, as the other functions do. */
const void *td_stage_in(td_staged *staged, const td_tensor *t, td_layout layout);

/* For reading t in a dtype. */
const void *td_stage_in_as(td_staged *staged, const td_tensor *t, td_layout layout, td_dtype dtype);

/* A copy in any case, which the caller may change. */
void *td_stage_copy(td_staged *staged, const td_tensor *t, td_layout layout, td_dtype dtype);

/* For reading t in the dense memory order of `like`, which has the same shape. */
const void *td_stage_in_like(td_staged *staged, const td_tensor *t, const td_tensor *like);

/* For writing t. keep: the elements have t's values at first, so that the kernel can add to them;
 * otherwise they are undefined. */
void *td_stage_out(td_staged *staged, td_tensor *t, td_layout layout, bool keep);

/* For writing t in a dtype. */
void *td_stage_out_as(td_staged *staged, td_tensor *t, td_layout layout, td_dtype dtype, bool keep);

/* Ends any number of staged tensors, in this order: writes the copy of an output back to its
 * tensor, and frees the scratch memory. */
#define td_stage_end(...) td_stage_end_all((td_staged *const[]){ __VA_ARGS__, NULL })
void td_stage_end_all(td_staged *const *list);

/* Fills in *t and *storage, two variables of the caller, as a tensor over dense memory. */
void td_wrap(td_tensor *t, td_storage *storage, void *data, td_shape shape, td_dtype dtype,
             td_layout layout, td_device device);
