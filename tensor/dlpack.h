/* Tensors to and from other libraries without a copy, by DLPack. Python wraps a DLManagedTensor
 * into a capsule named "dltensor". The structures are in the dlpack.h that other projects come
 * with, or in tensor/dlpack_abi.h. */
#ifndef TD_TENSOR_DLPACK_H
#define TD_TENSOR_DLPACK_H

#include "tensor/extern_c.h"
#include "tensor/tensor.h"

TD_BEGIN_C

struct DLManagedTensor;

/* A persistent tensor's memory, for another library: any strides, on a CPU or a GPU, whose work on
 * it is waited for. The memory lives until t is freed and the deleter has been called, on the
 * thread that uses t; borrowed memory (td_borrow) as long as its owner lets it. It is the memory
 * that t has now: td_module_to and td_parameters give a parameter other memory. A step tensor is a
 * mistake: td_clone it. NULL with td_last_error() when memory is short. */
struct DLManagedTensor *td_to_dlpack_at(const td_tensor *t, td_site at);
#define td_to_dlpack(t) td_to_dlpack_at(t, TD_HERE)

/* A persistent tensor over another library's memory; td_free calls the deleter when the last view
 * is gone. On a GPU the other library's work must be done. CPU memory is cpu:0's. NULL with
 * td_last_error(), and the structure stays the caller's: a dtype that tandem does not have, vectors
 * (lanes), more than 8 dimensions, negative strides, another device, or memory is short. */
td_tensor *td_from_dlpack(struct DLManagedTensor *managed);

TD_END_C

#endif
