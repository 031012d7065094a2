/* norm.cu, norm_grad.cu: batch normalisation over matrices with a row per image and pixel and a
 * column per channel, dense. Elements are f32, f64, bf16 or f16; T is the type that is computed
 * in: f64 beside f64, f32 otherwise. */
#pragma once

#include "tensor/cuda/launch_pool.h"

TD_EXTERN_C_BEGIN

/* How the threads of all kernels here share a matrix: blocks of TD_CUDA_THREADS are `wide` packs of
 * channels wide and TD_CUDA_THREADS / wide rows high; each goes down `chunk` rows. Decided by the
 * shape alone. */
typedef struct td_cuda_matrix {
    int64_t rows, channels;
    td_dtype dtype;
    int lanes;     /* channels of a pack */
    int wide;      /* a power of 2 */
    int64_t tiles; /* of channels */
    int64_t chunk, chunks;
} td_cuda_matrix;

/* packs: all matrices of the call begin at multiples of 16 bytes. */
typedef enum td_cuda_matrix_use {
    TD_CUDA_MATRIX_ELEMENTS,
    TD_CUDA_MATRIX_SUMS /* over the rows: fewer and longer chunks */
} td_cuda_matrix_use;
td_cuda_matrix td_cuda_matrix_of(int64_t rows, int64_t channels, td_dtype dtype, bool packs,
                                 td_cuda_matrix_use use);

/* Memory for sums over the rows, two for each channel. */
typedef struct td_cuda_sums {
    double *partial;    /* [chunks][2][channels] */
    unsigned *counters; /* [tiles], 0 before and after each launch */
    double *total;      /* [2][channels] */
} td_cuda_sums;

/* A [C] tensor; at NULL: there is none. */
typedef struct td_cuda_channel {
    void *at;
    int64_t stride;
    bool f64; /* otherwise f32: what is merged between ranks is kept in f64, whatever T is */
} td_cuda_channel;

/* sums->total: the mean, and the sum of squares about it. */
void td_cuda_launch_channel_sums(const td_cuda_matrix *m, const td_cuda_sums *sums, const void *x,
                                 cudaStream_t stream);

/* From statistics to what y = (x - mean) * scale + shift needs, and to what they leave behind. */
typedef struct td_cuda_norm {
    bool training;
    const double *statistics; /* training: what td_cuda_launch_channel_sums leaves */
    td_cuda_channel weight, bias;
    td_cuda_channel running_mean, running_var;
    td_cuda_channel mean, inv_std; /* written */
    double eps, momentum;
    void *affine; /* T [2][channels], written: scale, shift; NULL: not wanted */
} td_cuda_norm;

/* y = activation((x - mean) * scale + shift (+ add)); y may be x, add NULL. */
void td_cuda_launch_normalize(const td_cuda_matrix *m, const td_cuda_norm *norm, void *y,
                              const void *x, const void *add, td_norm_activation activation,
                              cudaStream_t stream);

/* constants: T [3][channels], written: mean, scale, shift; for normalize_pool. */
void td_cuda_launch_norm_prepare(const td_cuda_matrix *m, const td_cuda_norm *norm, void *constants,
                                 cudaStream_t stream);

/* y: the largest of each window of that and 0; index: its place, 255 where that is 0 (NULL: not
 * wanted). m: x's rows. */
void td_cuda_launch_normalize_pool(const td_cuda_matrix *m, void *y, uint8_t *index, const void *x,
                                   const void *constants, const td_cuda_pool *pool,
                                   cudaStream_t stream);

/* ---- the gradient ---- */

/* How it finds g, which is dy times the activation's slope. */
typedef enum td_cuda_mask {
    TD_CUDA_MASK_NONE, /* dy */
    TD_CUDA_MASK_Y,    /* where y > 0 */
    TD_CUDA_MASK_X,    /* where (x - mean) * scale + shift > 0: y is not read */
    TD_CUDA_MASK_GELU  /* dy times gelu's slope there */
} td_cuda_mask;

typedef struct td_cuda_norm_grad {
    td_cuda_mask mask;
    const void *dy, *x, *y;
    td_cuda_channel mean, inv_std, weight;
    const void *affine; /* T [2][channels]: the forward's scale and shift; NULL: not needed */
    bool training;
    void *dx, *dadd; /* NULL: not wanted. dx may be dy. */
    bool accumulate_dx, accumulate_dadd;
    bool early_dadd; /* dadd = g is written with the sums; the second pass reads it instead of dy
                        and y */
    td_cuda_channel dweight, dbias;
    bool accumulate_dweight, accumulate_dbias;
    td_cuda_sums sums; /* partial NULL: nobody needs them; total is not used */
    void *constants;   /* T [3][channels]: a, b, c of dx = a g + b (x - mean) + c */
} td_cuda_norm_grad;

/* dweight, dbias and the constants, by the sums of g and of g (x - mean); with early_dadd, dadd. */
void td_cuda_launch_norm_grad_sums(const td_cuda_matrix *m, const td_cuda_norm_grad *grad,
                                   cudaStream_t stream);
/* dx and dadd. */
void td_cuda_launch_norm_grad_apply(const td_cuda_matrix *m, const td_cuda_norm_grad *grad,
                                    cudaStream_t stream);

TD_EXTERN_C_END
