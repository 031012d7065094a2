#include "tensor/kernels.h"

#include "tensor/backend.h"

#include "tensor/storage.h"
#include "tensor/timed.h"
#include "tensor/watch.h"

const td_kernels *td_kernels_of(td_device device)
{
    td_require_device(device, TD_NOWHERE);
    const td_backend *backend = td_backend_of(device);
    if (backend != NULL) {
        return td_watching() ? td_timed_kernels(device) : backend->kernels();
    }
    return td_watching() ? td_watched_kernels() : td_cpu_kernels();
}
