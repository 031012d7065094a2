/* What batch, layer and group normalisation share on the host. */
#pragma once

#include "tensor/cuda/launch_norm.h"
#include "tensor/tensor.h"

/* A tensor [C], or NULL. */
td_cuda_channel td_cuda_channel_of(const td_tensor *t);

/* Sums of nothing: zeros, unless they are added to what is there, or t is NULL. */
void td_cuda_norm_clear(td_tensor *t, bool accumulate);

/* Memory for sums over a matrix's rows; `partial` is the caller's to free (td_scratch_free). */
td_cuda_sums td_cuda_sums_of(const td_cuda_matrix *m, double *total, td_device device);
