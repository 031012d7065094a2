/* CUDA's kernels (tensor/kernels/kernels.def): td_cuda_fill and so on, in kernels_*.c, each beside
 * the .cu file that it starts. */
#pragma once

#include "tensor/cuda/cuda.h"
#include "tensor/kernels/staged.h"

#define TD_KERNEL(TYPE, NAME, PARAMETERS, ARGUMENTS, COST) TYPE td_cuda_##NAME PARAMETERS;
#define TD_KERNEL_CPU(TYPE, NAME, PARAMETERS, ARGUMENTS, COST)
#include "tensor/kernels/kernels.def"
