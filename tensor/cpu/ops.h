/* The CPU's kernels (tensor/kernels/kernels.def): td_cpu_fill and so on, in ops_*.c; and what those
 * files use. */
#pragma once

#include "tensor/cpu/loops.h"
#include "tensor/cpu/ops_walk.h"
#include "tensor/kernels/element.h"
#include "tensor/kernels/staged.h"
#include "tensor/storage.h"

#define TD_KERNEL(TYPE, NAME, PARAMETERS, ARGUMENTS, COST) TYPE td_cpu_##NAME PARAMETERS;
#define TD_KERNEL_GPU(TYPE, NAME, PARAMETERS, ARGUMENTS, COST)
#include "tensor/kernels/kernels.def"

/* ops_limits.c */
td_status td_cpu_check_precision(td_device device, td_precision precision);
td_status td_cpu_measure_limits(td_device device, td_limits *limits);

/* ops_elements.c: unary and unary_grad (of operations that read x) of n elements side by side, by
 * the calling thread. y may be x, dx may be dy. */
void td_cpu_unary_run(td_unary_op op, td_dtype dtype, int64_t n, void *y, const void *x);
void td_cpu_unary_grad_run(td_unary_op op, td_dtype dtype, int64_t n, void *dx, const void *dy,
                           const void *x);
