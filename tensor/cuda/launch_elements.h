/* elements.cu: operations on elements (tensor/kernels/elementwise.def), and y += p x. */
#pragma once

#include "tensor/cuda/launch.h"
#include "tensor/kernels/kernel_types.h"

#include <stdbool.h>

TD_EXTERN_C_BEGIN

typedef enum td_cuda_elements_kind {
    TD_CUDA_UNARY,       /* y from x */
    TD_CUDA_UNARY_GRAD,  /* dx from dy, x, y */
    TD_CUDA_BINARY,      /* y from a, b; integers too */
    TD_CUDA_BINARY_GRAD, /* dx from g, a, b; op is TD_BINARY_COUNT more for the gradient of b */
    TD_CUDA_AXPY,        /* y += p x; integers too */
    TD_CUDA_COMPARE,     /* y (u8) from a, b of any dtype */
    TD_CUDA_WHERE,       /* y, any dtype, from condition (u8), a, b */
} td_cuda_elements_kind;

typedef struct td_cuda_elements {
    td_cuda_elements_kind kind;
    int op;            /* a td_unary_op, td_binary_op or td_compare_op */
    td_dtype dtype;    /* of the operands that are not u8 above */
    void *y;           /* the result */
    const void *in[3]; /* WHERE: a, b NULL are zeros. y may be an input of UNARY and BINARY */
    double p, q;
    bool accumulate;   /* UNARY_GRAD: y += result; true for AXPY */
    td_cuda_walk walk; /* over y and the inputs */
} td_cuda_elements;

void td_cuda_launch_elements(const td_cuda_elements *job, cudaStream_t stream);

TD_EXTERN_C_END
