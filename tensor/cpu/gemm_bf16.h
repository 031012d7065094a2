/* The products of gemm.h in bf16, for processors that multiply it. */
#ifndef TD_TENSOR_CPU_GEMM_BF16_H
#define TD_TENSOR_CPU_GEMM_BF16_H

#include "tensor/cpu/gemm.h"

/* What td_gemm_desc does not say: the factors' dtypes. Each is bf16, or f32 that is rounded; or
 * both are f32 and split. The description's dtype is that of C, TD_F32 or TD_BF16; bias is f32. */
typedef struct td_gemm_bf16_types {
    td_dtype a, b;
    bool split;
} td_gemm_bf16_types;

/* Whether the instruction set in use multiplies bf16. */
bool td_gemm_bf16_available(void);

/* Each factor must be dense along its rows or along its columns. Workspace and pool as for td_gemm.
 */
size_t td_gemm_bf16_workspace(const td_gemm_desc *desc, const td_gemm_bf16_types *types);
void td_gemm_bf16(td_pool *pool, const td_gemm_desc *desc, const td_gemm_bf16_types *types,
                  void *workspace);

#endif
