/* The vendors' libraries (cuDNN, cuBLASLt, NCCL), opened when they are first needed: a program
 * starts without them, and on machines that have none. */
#pragma once

#include "tensor/error.h"

/* Opens a library by its file's name, "libcudnn.so.9". Looks where the dynamic linker looks, in the
 * toolkit (CUDA_HOME, CUDA_PATH, /usr/local/cuda) and in the folders that Python's wheels are
 * unpacked to; where TANDEM_CUDA_LIBRARIES is set (folders, with colons between), only there.
 * TD_E_DEVICE: not found, or it cannot be loaded; td_last_error() says where it was looked for and
 * what was wrong. title: "cuDNN". The library stays open until the process ends. */
td_status td_cuda_library_open(const char *title, const char *file, void **library);

/* Looks up functions. TD_E_DEVICE names the first that the library does not have. */
td_status td_cuda_library_bind(void *library, const char *file, const char *const *names,
                               void *const *pointers, int count);

/* The file that a library was loaded from. Lives as long as the library. */
const char *td_cuda_library_path(void *library);
