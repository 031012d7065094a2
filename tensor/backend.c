/* The room's registry: which device has which kernels. */
#include "tensor/backend.h"

#include <stdatomic.h>
#include <string.h>

#if TD_HAVE_CUDA
#include "tensor/cuda/backend.h"
#endif

static _Atomic(td_kernels_wrap) wrapper;

const td_backend *td_backend_of(td_device device)
{
#if TD_HAVE_CUDA
    if (device.type == TD_DEVICE_CUDA) {
        return td_cuda_backend();
    }
#endif
    (void)device;
    return NULL;
}

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

int td_index_check_place(td_index_check *list, int *count, td_index_check wanted)
{
    int i = 0;
    while (i < *count && !(list[i].op == wanted.op && list[i].what == wanted.what &&
                           list[i].limit == wanted.limit && list[i].at.file == wanted.at.file &&
                           list[i].at.line == wanted.at.line)) {
        i++;
    }
    if (i == TD_INDEX_CHECKS) {
        return -1;
    }
    list[i] = wanted;
    *count += i == *count;
    return i;
}

void td_report_index(const td_index_check *check, const double fault[2])
{
    TD_REQUIRE(fault[0] == 0, check->at,
               "%s: %s %lld, number %lld of its tensor, is out of range: it must be 0 to %lld "
               "(found by the device, and reported when a value was read)",
               check->op, check->what, (long long)fault[1], (long long)fault[0] - 1,
               (long long)check->limit - 1);
}

/* ---- memory and streams ---- */

const td_streams *td_streams_of(td_device device)
{
    const td_backend *backend = td_backend_of(device);
    return backend != NULL ? backend->streams : NULL;
}

void td_memory_move(td_device device, void *to, const void *from, size_t bytes)
{
    const td_backend *backend = td_backend_of(device);
    if (backend != NULL) {
        backend->move(device, to, device, from, bytes);
    } else {
        memmove(to, from, bytes);
    }
}

void td_memory_download(td_device device, void *host, const void *memory, size_t bytes)
{
    const td_backend *backend = td_backend_of(device);
    if (backend != NULL) {
        backend->download(device, host, memory, bytes);
    } else {
        memcpy(host, memory, bytes);
    }
}

void td_memory_upload(td_device device, void *memory, const void *host, size_t bytes)
{
    const td_backend *backend = td_backend_of(device);
    if (backend != NULL) {
        backend->upload(device, memory, host, bytes);
    } else {
        memcpy(memory, host, bytes);
    }
}
