/* oneDNN as a peer for single operations (make deps-bench; only bench/ uses it). Each operation
 * takes the layouts that oneDNN likes best for it; what converting to them costs is not counted. */
#ifndef TD_BENCH_ONEDNN_H
#define TD_BENCH_ONEDNN_H

#include "tensor/cpu/conv.h"
#include "tensor/cpu/gemm.h"

typedef struct onednn onednn;

/* An operation on data of its own; NULL where oneDNN is not there or cannot do it. Passes are the
 * three with products: forward, backward-data, backward-weights. */
onednn *onednn_conv(const td_conv2d_desc *desc, td_conv2d_pass pass);

/* C = A B of the description's sizes and strides. */
onednn *onednn_gemm(const td_gemm_desc *desc);

/* Computes it once, on OMP_NUM_THREADS threads. */
void onednn_run(onednn *operation);

/* NULL is fine. */
void onednn_free(onednn *operation);

#endif
