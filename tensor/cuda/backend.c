/* The CUDA backend's table, which tensor/backend.c asks for. */
#include "tensor/cuda/backend.h"

#include "tensor/cuda/cuda.h"
#include "tensor/cuda/library.h"

static const char *title(td_device device)
{
    return td_cuda_of(device)->name;
}

static void zero(td_device device, void *memory, size_t bytes)
{
    td_cuda *gpu = td_cuda_of(device);
    td_cuda_must(cudaMemsetAsync(memory, 0, bytes, gpu->stream), "zeroing memory");
}

static void cuda_wait(td_device device)
{
    td_cuda_wait(td_cuda_of(device), "waiting for the GPU");
}

const td_backend *td_cuda_backend(void)
{
    static const td_backend backend = {
        .open = td_cuda_open,
        .title = title,
        .kernels = td_cuda_kernels,
        .take = td_cuda_take,
        .give = td_cuda_give,
        .zero = zero,
        .upload = td_cuda_upload,
        .download = td_cuda_download,
        .move = td_cuda_move,
        .reserve = td_cuda_reserve,
        .commit = td_cuda_commit,
        .release = td_cuda_release,
        .wait = cuda_wait,
        .library = td_cuda_library_open,
        .check_later = td_cuda_check_later,
        .streams = &td_cuda_streams,
        .graphs = &td_cuda_graphs,
    };
    return &backend;
}
