/* What batch, layer and group normalisation share on the host. */
#pragma once

#include "tensor/cuda/launch_norm.h"
#include "tensor/tensor.h"

/* A tensor [C], or NULL. */
td_cuda_channel td_cuda_channel_of(const td_tensor *t);

/* Memory for sums over a matrix's rows; `partial` is the caller's to free (td_scratch_free). */
td_cuda_sums td_cuda_sums_of(const td_cuda_matrix *m, double *total, td_device device);
