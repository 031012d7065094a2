/*
 * Matrix products on the CPU, over plain pointers:
 *
 *     C[i][j] = (accumulate ? C[i][j] : 0) + sum over k of A[i][k] * B[k][j] + (bias ? bias[j] : 0)
 *
 * with C m x n, A m x k, B k x n. Strides count elements, so that a transposed matrix is the same
 * matrix with its strides exchanged. Any size may be 0.
 *
 * The order in which an element's terms are added depends on k and on the instruction set only,
 * not on the other sizes' strides, packing or threads.
 */
#pragma once

#include "tensor/cpu/pool.h"
#include "tensor/cpu/turns.h"
#include "tensor/dtype.h"

enum {
    /* Columns of A that are summed in registers before C is touched: a panel of B of this height
     * (32 KB) stays in the first-level cache while the rows of A pass by. */
    TD_GEMM_BLOCK_K = 128,
};

typedef struct td_gemm_desc {
    td_dtype dtype; /* TD_F32 or TD_F64; with `bf16` C's, TD_F32 or TD_BF16 */
    int64_t m, n, k;

    const void *a; /* element (i, k) at a[i*a_row + k*a_col]; any strides */
    int64_t a_row, a_col;
    const void *b; /* element (k, j) at b[k*b_row + j*b_col]; any strides */
    int64_t b_row, b_col;
    void *c; /* element (i, j) at c[i*c_row + j]; must not overlap a, b or bias */
    int64_t c_row;
    const void *bias; /* n elements, or NULL */
    bool accumulate;

    /* `count` products, 1 for a plain one; operand number t begins t times its stride (a, b, c)
     * further on. A stride of 0 uses the same matrix for all (not for c). */
    struct {
        int64_t count;
        int64_t a, b, c;
    } batch;

    /* Multiplied in bf16, where td_gemm_kernels_for has kernels for it, and added up in f32. Each
     * factor is bf16, or f32 that is rounded; or both are f32 and split in two. It must be dense
     * along its rows or its columns. bias is f32. */
    bool bf16, split;
    td_dtype a_dtype, b_dtype; /* then; td_gemm_few looks at b_dtype, too */
} td_gemm_desc;

/* Bytes of workspace that the product needs, for B in the kernels' order; often 0. It depends on
 * dtype, sizes and strides, and on the instruction set, not on the pointers. */
size_t td_gemm_workspace(const td_gemm_desc *desc);

/* Computes the product. `workspace` is best aligned to 64 bytes; its contents do not matter.
 * Allocates nothing; small products stay on the calling thread. `pool` may be NULL. */
void td_gemm(td_pool *pool, const td_gemm_desc *desc, void *workspace);
