/* Products of few rows, TD_FEW_ROWS at most, by a large matrix (gemm.c asks). */
#pragma once

#include "tensor/cpu/gemm.h"
#include "tensor/kernels/kernel_types.h"

/* Whether td_gemm_few computes the product; it needs no workspace. */
bool td_gemm_is_few(const td_gemm_desc *desc);
/* A and C are f32, and so is B, or, with b_dtype, bf16: C then has the bits of a product by B as
 * f32. */
void td_gemm_few(td_pool *pool, const td_gemm_desc *desc);
