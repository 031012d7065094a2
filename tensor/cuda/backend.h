/* The door to tensor/cuda/ for tensor/: no CUDA header is needed to include it. */
#pragma once

#include "tensor/backend.h"

const td_backend *td_cuda_backend(void);
