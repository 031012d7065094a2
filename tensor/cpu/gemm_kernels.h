/*
 * The micro-kernels: products of small blocks that live in registers and the first-level cache.
 * Everything that multiplies (matrix products, convolutions) is a loop over these. There is one
 * table for each instruction set and element type: f32, f64, and bf16, whose elements are
 * multiplied in pairs by AVX-512 or in whole tiles by AMX, and added up in f32.
 */
#pragma once

#include "tensor/cpu/isa.h"
#include "tensor/dtype.h"

enum {
    TD_GEMM_MAX_LANES = 16, /* floats in the widest vector */
};

/* One term of a sum of products: A m x k, B k x n. */
typedef struct td_gemm_term {
    const void *a;
    const void *b; /* element (p, j) at b[p*b_row + j]; of bf16, see tensor/cpu/bf16_kernels.h */
    int64_t k;     /* of bf16: the same for all terms, as td_bf16_depth cuts it */
} td_gemm_term;

/*
 * C = (accumulate ? C : 0) + (sum over terms of A_t * B_t) + (bias ? bias : 0), for m x n elements.
 *
 * The rows of A and of C lie anywhere: tables say where, in bytes. Within a term, a row of A goes
 * on in equal steps: element (i, p) of A_t is, in elements, a_col*p behind the byte terms[t].a +
 * a_row[i]. Row i of C begins at the byte c + c_row[i]. No two rows of C overlap.
 *
 * The sum is built in registers from zero, term after term and row after row of B, and then added
 * to C. So a long sum that is cut into blocks of terms keeps the rounding error of short ones.
 */
typedef struct td_gemm_block {
    const td_gemm_term *terms;
    int count;
    const int64_t *a_row, *c_row;
    int64_t a_col, b_row; /* elements */
    void *c;
    int64_t m; /* any number of rows */
    int n;     /* at most the kernels' panel */
    bool accumulate;
    /* C is written past the caches, for results that do not fit there. All its rows begin at
     * multiples of 64 bytes, n is a multiple of the vector's elements, and C is not accumulated.
     * Others see it after the end of the pool's run. */
    bool past;
    const void *bias; /* n elements, or NULL; of bf16: in f32 */
    td_dtype dtype;   /* only of bf16: C may be TD_F32 or TD_BF16, rounded once */
} td_gemm_block;

/* Several small groups of channels side by side in one vector: at row p of B, lane j of the result
 * meets element first[j] + p of a row of A. */
typedef struct td_gemm_lanes {
    int window; /* elements of a row of A, at most a vector of them */
    int32_t first[TD_GEMM_MAX_LANES];
} td_gemm_lanes;

/* c (m x n) = a b, sums of k terms as the micro-kernels make them. Of a and c a column, of b a row
 * or (few_turned) a column is dense; b is f32 or bf16. */
typedef struct td_few_rows {
    int64_t m, n, k;
    const float *a;
    const void *b;
    bool bf16; /* b */
    int64_t a_row, a_col, b_row, c_row;
    float *c;
} td_few_rows;

typedef struct td_gemm_kernels {
    int panel;   /* columns of a panel of B: the widest block */
    int rows;    /* rows that are computed together; blocks of a multiple of it waste nothing */
    int lanes;   /* elements of a vector */
    size_t size; /* bytes of an element of A and B */
    int pairs; /* elements that are multiplied at once, 1 or 2; sums have so many times the size */

    void (*block)(const td_gemm_block *block);
    void (*end)(void); /* what a task calls after its last block, or NULL */

    /* Copies a k x n matrix, element (p, j) at from[p*row + j*col], into a panel of `width`
     * columns: element (p, j) at to[p*width + j]. Columns from n on are not written. */
    void (*pack)(void *to, int64_t width, const void *from, int64_t k, int64_t n, int64_t row,
                 int64_t col);

    /* Only of f32, and any values of four bytes: transposes k rows of n elements, element (p, j)
     * from from[p + j*col] to to[p*row + j]. */
    void (*turn)(float *to, const float *from, int64_t row, int64_t k, int64_t n, int64_t col);

    /* Only of f32, or NULL: few rows of A by dense columns of B, which are b_row apart; k is a
     * multiple of 8, and n at least 8. */
    void (*few_turned)(const td_few_rows *product);

    /* The following are NULL in some tables, as `pack` is; their n is at most `lanes`.
     * As `block`, but element (i, j) meets, at row p of B, element (i, first[j] + p) of A. */
    void (*grouped)(const td_gemm_block *block, const td_gemm_lanes *lanes);
    /* C as above, of elements (i, j) = sum over p of A(p, first[j] + i) * B(p, j); rows of A are
     * a_col apart, their elements beside each other. */
    void (*grouped_sums)(const td_gemm_block *block, const td_gemm_lanes *lanes);
} td_gemm_kernels;

/* A block of matrices whose rows are equally far apart, in elements; it needs no tables. */
void td_gemm_strided(const td_gemm_kernels *kernels, const td_gemm_block *block, int64_t a_row,
                     int64_t c_row);

/* The table for TD_F32, TD_F64 or TD_BF16 at the instruction set in use; NULL if that multiplies no
 * bf16. */
const td_gemm_kernels *td_gemm_kernels_for(td_dtype dtype);

/* Sizes of blocks and counts of them. */
static inline int64_t td_min64(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

static inline int64_t td_divide_up(int64_t x, int64_t y)
{
    return (x + y - 1) / y;
}

enum {
    /* Products of fewer multiply-adds than this run on the calling thread: waking another one
     * takes longer. */
    TD_GEMM_SERIAL_WORK = 80000,
    /* The widest row of a panel; for buffers that hold one on the stack. */
    TD_GEMM_MAX_PANEL_BYTES = 256,
};
