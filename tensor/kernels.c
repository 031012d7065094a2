#include "tensor/kernels.h"

#include "tensor/backend.h"
#include "tensor/storage.h"

#include <stdatomic.h>

static _Atomic(td_kernels_wrap) wrapper;

void td_kernels_set_wrap(td_kernels_wrap wrap)
{
    atomic_store(&wrapper, wrap);
}

const td_kernels *td_kernels_of(td_device device)
{
    td_require_device(device, TD_NOWHERE);
    const td_backend *backend = td_backend_of(device);
    const td_kernels *own = backend != NULL ? backend->kernels() : td_cpu_kernels();
    td_kernels_wrap wrap = atomic_load_explicit(&wrapper, memory_order_acquire);
    return wrap != NULL ? wrap(device, own) : own;
}
