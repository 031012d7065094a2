/* Products of few rows by a large matrix (gemm.c asks). */
#ifndef TD_TENSOR_CPU_GEMM_FEW_H
#define TD_TENSOR_CPU_GEMM_FEW_H

#include "tensor/cpu/gemm.h"

enum { TD_GEMM_FEW = 8 }; /* rows */

/* Whether td_gemm_few computes the product; it needs no workspace. */
bool td_gemm_is_few(const td_gemm_desc *desc);
void td_gemm_few(td_pool *pool, const td_gemm_desc *desc);

#endif
