/* entropy.cu, attention.cu, rope.cu: what language models are made of. */
#pragma once

#include "tensor/cuda/launch.h"
#include "tensor/kernels/kernel_types.h"

#include <stdbool.h>

TD_EXTERN_C_BEGIN

/* Words [first, first + words) of the logits of `rows` rows, `pitch` elements apart; see
 * tensor/kernels/kernels.def. stats: three numbers a row. */
typedef struct td_cuda_chunk {
    td_dtype dtype; /* of the logits: a float type */
    int64_t rows, words, pitch, first;
    const int64_t *labels;
    double *stats;
} td_cuda_chunk;
void td_cuda_launch_entropy_chunk(const td_cuda_chunk *c, const void *logits, cudaStream_t stream);
/* loss: f64 if the logits are, otherwise f32. */
void td_cuda_launch_entropy_end(const td_cuda_chunk *c, void *loss, double *total,
                                td_entropy_params params, cudaStream_t stream);
void td_cuda_launch_entropy_chunk_grad(const td_cuda_chunk *c, void *logits, const void *dloss,
                                       const double *total, td_entropy_params params,
                                       cudaStream_t stream);

/* [B,T,heads,width], whose elements are dense; strides in elements. */
typedef struct td_cuda_heads {
    void *memory;
    int64_t batch, token, head;
} td_cuda_heads;

/* See td_attention_args. width: at most TD_GPU_ATTENTION_WIDTH. */
typedef struct td_cuda_attention_job {
    int64_t batch, queries, keys, heads, kv_heads, width;
    td_cuda_heads q, k, v, y;
    void *lse;
    bool causal;
    double scale;
} td_cuda_attention_job;
void td_cuda_launch_attention(td_dtype dtype, const td_cuda_attention_job *a, cudaStream_t stream);

typedef struct td_cuda_attention_grads {
    td_cuda_heads dy, dq, dk, dv;
    void *both; /* room for a number a row, as lse */
    bool accumulate[3];
} td_cuda_attention_grads;
void td_cuda_launch_attention_grad(td_dtype dtype, const td_cuda_attention_job *a,
                                   const td_cuda_attention_grads *g, cudaStream_t stream);

/* An even width. */
typedef struct td_cuda_rope_job {
    int64_t batch, tokens, heads, width;
    td_cuda_heads x, y;
    td_rope_params params;
    bool accumulate;
} td_cuda_rope_job;
void td_cuda_launch_rope(td_dtype dtype, const td_cuda_rope_job *r, cudaStream_t stream);

TD_EXTERN_C_END
