/* The innermost loops of the memory-bound kernels. They are plain C that the compiler vectorises;
 * loops.inc compiles them once for every instruction set (ops_loops_*.c) and float type, and
 * td_loops_of picks a table. What they are called on (blocks, threads, shapes) is decided in
 * ops_*.c, once for all types: hence the void pointers, which are to elements of the table's type.
 * bf16 is computed in float; its table has no loops (NULL) of elements, nor for what needs more
 * than bf16 can hold.
 *
 * n counts elements; a stride follows its pointer and counts elements too. */
#pragma once

#include "tensor/cpu/gemm_kernels.h"
#include "tensor/kernels/kernels.h"

/* loops_elements.inc: of elements side by side. y may be x, or a, or b. */
typedef void (*td_unary_loop)(int64_t n, void *y, const void *x, double p, double q);
/* dx = what g (the gradient of the result) becomes, given two values. */
typedef void (*td_grad_loop)(int64_t n, void *dx, const void *g, const void *first,
                             const void *second, double p, double q);
typedef void (*td_binary_loop)(int64_t n, void *y, const void *a, const void *b);

/* A window's taps for one output pixel (pooling): pointers to rows of n elements. */
typedef struct td_taps {
    int count;
    const void *const *row;
    const uint8_t *const *index; /* max pooling's backward: what was chosen, per row */
    const uint8_t *place;        /* the tap's number in the window */
} td_taps;

/* The constants of one optimizer slice, as the loops want them. */
typedef struct td_sgd_step {
    double lr, momentum, dampening;
    double weight_decay, shrink; /* added to the gradient; what the parameter is multiplied by */
    bool first, nesterov;
} td_sgd_step;

typedef struct td_update_step {
    double weight_decay, shrink; /* as td_sgd_step's */
    double lr, mu, eps, beta1, beta2, size, root_bias2;
} td_update_step;

/* Batch normalisation's constants, each [channels], of the type that is computed in. */
typedef struct td_norm_constants {
    const void *mean, *scale, *shift; /* y = (x - mean) * scale + shift */
    const void *a, *b, *c;            /* dx = a * g + b * (x - mean) + c */
} td_norm_constants;

/* How its gradient finds g, which is dy where the relu let it through. */
typedef enum td_norm_mask {
    TD_NORM_MASK_NONE, /* no relu: g is dy */
    TD_NORM_MASK_Y,    /* where y > 0 */
    TD_NORM_MASK_X,    /* where (x - mean) * scale + shift > 0: nothing was added, y is not read */
} td_norm_mask;

typedef struct td_norm_grad {
    td_norm_mask mask;
    const void *dy, *x, *y;
} td_norm_grad;

enum { TD_SOFTMAX_COLUMNS = 64 };

/* A tile of attention's scores: `keys` rows, TD_ATTENTION_TILE elements apart, in each of which
 * `lanes` (whole TD_ATTENTION_LANES) queries lie side by side. What belongs to a query is an array
 * over lanes. Query q reads key k if k <= q + shift; other scores may be undefined. */
enum { TD_ATTENTION_TILE = 64, TD_ATTENTION_LANES = 16 };
typedef struct td_attention_tile {
    int64_t keys, lanes, shift;
    double scale;
    void *scores, *grads;
    bool first;               /* of the queries' tiles */
    void *top, *sum, *factor; /* largest score so far, sum of exponentials of the distances to it,
                                 what sums from before are multiplied by */
    const void *lse, *dots;
} td_attention_tile;

/* f32 and f64; rope and few_rows bf16, too. */
typedef struct td_transformer_loops {
    /* loops_attention.inc */
    /* scores -> exp(scale (score - top)) */
    void (*tile)(const td_attention_tile *tile);
    /* scores -> p = exp(scale score - lse); grads, of p, -> those of scores, p (grad - dots) scale
     */
    void (*grad_tile)(const td_attention_tile *tile);
    /* factor = 1 / sum; lse = log of the sum of exp(scale score) */
    void (*end)(const td_attention_tile *tile, void *lse);
    /* rows of n elements *= factor[row] */
    void (*scale_rows)(int64_t rows, int64_t n, void *x, const void *factor);
    double (*dot)(int64_t n, const void *a, const void *b);
    /* loops_rope.inc: a row of pairs turns; turns: their cosines, then their sines. */
    void (*rope)(int64_t pairs, bool interleaved, void *y, const void *x, const void *turns,
                 bool accumulate);
    /* loops_softmax.inc, cross-entropy of a row that comes in pieces: n more logits for the sum of
     * exponentials of the distances to `top`, the largest one so far; x = exp(x - lse) scale. */
    void (*add_exponentials)(int64_t n, const void *x, double *top, double *sum);
    void (*entropy_piece_grad)(int64_t n, void *x, double lse, double scale);
    void (*few_rows)(const td_few_rows *product); /* loops_few.inc; of B: f32 and bf16 */
} td_transformer_loops;

typedef struct td_loops {
    /* f32 and f64; ops_elements.c takes 16-bit floats through f32, piece by piece. */
    td_unary_loop unary[TD_UNARY_COUNT];
    td_grad_loop unary_grad[TD_UNARY_COUNT]; /* given x and y */
    td_binary_loop binary[TD_BINARY_COUNT];
    td_grad_loop binary_grad[2][TD_BINARY_COUNT]; /* of a and of b, given a and b; p and q: 0 */
    td_binary_loop compare[TD_COMPARE_COUNT];     /* y: u8 */
#define TD_LOOP(type, name, parameters) type(*name) parameters;
#define TD_LOOP_REAL(type, name, parameters) type(*name) parameters;
#include "tensor/cpu/loops.def"
    td_transformer_loops transformer;
    /* f32 only: blocks of 16 averages (tensor/kernels/packed.h). */
    void (*unpack)(int64_t blocks, float *to, const uint8_t *from, td_dtype packed);
    void (*pack)(int64_t blocks, uint8_t *to, const float *from, td_dtype packed,
                 const uint32_t *draw, int shift);
    /* bf16 only: to float and back, n elements side by side. */
    void (*widen)(int64_t n, float *y, const void *x);
    void (*narrow)(int64_t n, void *y, const float *x);
} td_loops;

/* For TD_F32, TD_F64 or TD_BF16, on the instruction set in use. */
const td_loops *td_loops_of(td_dtype dtype);

/* The tables, each in its own file. */
extern const td_loops td_loops_f32_portable, td_loops_f64_portable, td_loops_bf16_portable;
extern const td_loops td_loops_f32_avx2, td_loops_f64_avx2, td_loops_bf16_avx2;
extern const td_loops td_loops_f32_avx512, td_loops_bf16_avx512; /* f64: AVX2's */
extern const td_loops td_loops_bf16_avx512_bf16;                 /* bf16 alone: f32 is AVX-512's */
