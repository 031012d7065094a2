#include "tensor/kernels.h"

#include "tensor/storage.h"
#include "tensor/watch.h"

const td_kernels *td_kernels_of(td_device device)
{
    td_require_device(device, TD_NOWHERE);
    return td_watching() ? td_watched_kernels() : td_cpu_kernels();
}
