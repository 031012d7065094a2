#include "tensor/streams.h"

#include "tensor/backend.h"

#include <string.h>

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
