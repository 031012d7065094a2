/* Exchanges tensors with other libraries without a copy, by DLPack (github.com/dmlc/dlpack). Python
 * wraps a DLManagedTensor into a capsule named "dltensor". The structures are declared in
 * tensor/extra/dlpack_abi.h, or in the dlpack.h of another project. */
#pragma once

#include "tensor/tensor.h"

TD_BEGIN_C

struct DLManagedTensor;

/* Shares a persistent tensor's memory with another library, with any strides, on a CPU or a GPU.
 * The call waits until the GPU's work on t is done. The other library calls the deleter when it has
 * finished, on the thread that uses t. The memory lives until then, also if t is freed before; but
 * memory of td_borrow lives only as long as its owner keeps it. td_module_to and td_parameters move
 * a parameter to other memory, so call td_to_dlpack after them. A step tensor is a fatal error:
 * td_clone the tensor first. NULL with td_last_error() when memory is short. */
struct DLManagedTensor *td_to_dlpack_at(const td_tensor *t, td_site at);

/* Makes a persistent tensor over another library's memory. The caller frees the tensor by td_free;
 * the deleter is called when the tensor and its views are freed. On a GPU the other library's work
 * must be done before. CPU memory belongs to the device cpu:0. NULL with td_last_error(), and the
 * caller keeps `managed`: tandem does not have the dtype or the device, the elements are vectors
 * (lanes), the tensor has more than 8 dimensions or negative strides, or memory is short. */
td_tensor *td_from_dlpack(struct DLManagedTensor *managed);

/* ---- what you call ---- */

#define td_to_dlpack(t) td_to_dlpack_at(t, TD_HERE)

TD_END_C
