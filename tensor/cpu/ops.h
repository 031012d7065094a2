/* The CPU's kernels (tensor/kernels.def): td_cpu_fill and so on, in ops_*.c. */
#ifndef TD_TENSOR_CPU_OPS_H
#define TD_TENSOR_CPU_OPS_H

#include "tensor/kernels.h"

#define TD_KERNEL(TYPE, NAME, PARAMETERS, ARGUMENTS, COST) TYPE td_cpu_##NAME PARAMETERS;
#define TD_KERNEL_GPU(TYPE, NAME, PARAMETERS, ARGUMENTS, COST)
#include "tensor/kernels.def"

/* ops_limits.c */
td_status td_cpu_check_precision(td_device device, td_precision precision);
td_status td_cpu_measure_limits(td_device device, td_limits *limits);

/* ops_channel_stats.c: [2,C] f64, the sum of every channel of y and of its squares */
void td_cpu_channel_stats(td_tensor *stats, const td_tensor *y);

#endif
