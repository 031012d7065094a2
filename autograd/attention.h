/* Attention, and rotary positions. Options are given by name (tensor/options.h). B: batch, T:
 * length of a sequence, H: heads, h: width of a head. */
#pragma once

#include "autograd/ops.h"

TD_BEGIN_C

/* td_attention(qkv, .heads = H, ...): for each head
 *
 *     y = softmax(scale q k^T) v        [B,T,H h]
 *
 * PyTorch: F.scaled_dot_product_attention, without its transpositions. qkv is [B,T,(H + 2 G) h] as
 * one linear layer writes it: queries of H heads, then keys and values of G = kv_heads heads; or
 * [B,T,3,H,h]. Or there are three tensors: .q [B,T,H,h], .k and .v [B,S,G,h], with S keys. Query
 * head i reads key and value head i / (H / G).
 *
 * The attention is causal unless .full is set: query t reads keys 0 to S - T + t, so the queries
 * are the last T of S positions.
 *
 * For generation .k_cache and .v_cache [B,C,G,h] keep keys and values of a sequence of up to C
 * tokens; they are persistent, row-major, and have the dtype of the products (f32, or bf16 under
 * TD_PRECISION_BF16). A call copies its keys and values to rows past, ..., past + T - 1, and its
 * queries read rows 0 to past + t. A call with caches has no gradient. On the CPU a row has the
 * same bits as in a call with the whole sequence, however the sequence is cut into calls.
 *
 * No memory of T S elements is needed, but for heads wider than 256 on a GPU, where attention is
 * composed of products and softmax. The result has q's dtype (docs/precision.md: as products). */
typedef struct td_attention_options {
    int begin_; /* for the library: lets the macro take an empty list */
    td_tensor *qkv;
    int64_t heads, kv_heads; /* of qkv [B,T,...]; kv_heads 0: heads */
    td_tensor *q, *k, *v;
    bool full;
    double scale; /* 0: 1 / sqrt(h) */
    td_tensor *k_cache, *v_cache;
    int64_t past;
} td_attention_options;
td_tensor *td_attention_at(td_attention_options options, td_site at);

/* td_rope(x, ...): rotary position embedding of x [B,T,H,h], h even. The pair j of the token at
 * position p = past + t turns by the angle a = p scale base^(-2 j / h):
 *
 *     (x0, x1) -> (x0 cos a - x1 sin a, x1 cos a + x0 sin a)
 *
 * Pair j is elements j and j + h / 2 (Hugging Face's Llama), or, with .interleaved, 2 j and 2 j + 1
 * (Meta's Llama, llama2.c). The result has x's dtype. */
typedef struct td_rope_options {
    int begin_;
    td_tensor *x;
    int64_t past;
    double base;  /* 0: 10000 */
    double scale; /* of positions; 0: 1 */
    bool interleaved;
} td_rope_options;
td_tensor *td_rope_at(td_rope_options options, td_site at);

TD_END_C

#define td_attention(...) TD_CALL(td_attention, TD_OPT1(qkv, __VA_ARGS__))
#define td_rope(...) TD_CALL(td_rope, TD_OPT1(x, __VA_ARGS__))
