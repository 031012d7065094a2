/*
 * The micro-kernels of bf16 (tensor/cpu/gemm_kernels.h): one for AVX-512 and one for NEON with
 * products of pairs, and one for AMX tiles; all read the same packed factors.
 *
 * A is read in rows whose inner dimension is dense. A panel of B has 32 columns and is packed in
 * pairs of rows: element (p, j) at b[(p/2)*64 + j*2 + p%2].
 *
 * An f32 factor can be split into two of bf16, value = high + low, and multiplied in three terms:
 * low*high + high*low + high*high. The low part of a factor then lies a fixed distance further on.
 */
#pragma once

#include "tensor/cpu/gemm_kernels.h"

enum {
    TD_BF16_BLOCK = 32,     /* columns of a panel, rows and depth of what tiles multiply at once */
    TD_BF16_STEP = 32 * 32, /* elements of packed A or B of that size */
    TD_BF16_TERMS = 3,      /* of a product of split factors */
};

/* The kernels of the instruction set in use; NULL if it multiplies no bf16. */
const td_gemm_kernels *td_bf16_kernels_now(void);

#if TD_NEON
extern const td_gemm_kernels td_bf16_neon_kernels; /* of TD_ISA_NEON_BF16 */
#endif

/* Whether these kernels multiply 32 elements of each row at once, and fewer take as long. */
bool td_bf16_full_steps(void);

/* Steps of at most 32 that cut `elements` without a rest and without much waste: the depth of each,
 * 0 if there is no such cut. */
int td_bf16_depth(int64_t elements);

/* The terms of a product, one, or three where both have low parts, `a_low` and `b_low` elements
 * further; returns how many. */
static inline int td_bf16_terms(td_gemm_term terms[TD_BF16_TERMS], const td_bf16 *a, int64_t a_low,
                                const td_bf16 *b, int64_t b_low, int64_t k)
{
    int count = 0;
    if (a_low != 0) {
        terms[count++] = (td_gemm_term){ a + a_low, b, k };
        terms[count++] = (td_gemm_term){ a, b + b_low, k };
    }
    terms[count++] = (td_gemm_term){ a, b, k };
    return count;
}

/* ---- packing; where there are kernels ---- */

/* Where to read a factor: f32 or bf16, and how far its rows lie apart. */
typedef struct td_bf16_source {
    const void *data;
    td_dtype dtype;
    int64_t stride;
} td_bf16_source;

/*
 * Each of these packs one step, into `to` and, unless low is 0, the low parts into to + low. What
 * lies beyond the given sizes is filled with zeros. `source` is read in rows, `stride` apart.
 *
 * A: 32 rows of 32, element (i, p) at to[i*row + p]. From rows of A (rows i < m of k elements), or
 * turned, from rows p < k of m elements.
 * B: depth rows, as above. From rows of B (rows p < k of n elements), or turned, from rows j < n of
 * k elements.
 */
void td_bf16_pack_a(td_bf16 *to, int64_t row, int64_t low, const td_bf16_source *source, int m,
                    int k);
void td_bf16_pack_a_turned(td_bf16 *to, int64_t row, int64_t low, const td_bf16_source *source,
                           int m, int k);
void td_bf16_pack_b(td_bf16 *to, int64_t low, const td_bf16_source *source, int k, int n,
                    int depth);
void td_bf16_pack_b_turned(td_bf16 *to, int64_t low, const td_bf16_source *source, int k, int n,
                           int depth);

/* One row of `count` elements, filled with zeros up to `padded`. */
void td_bf16_pack_row(td_bf16 *to, int64_t low, const void *from, td_dtype dtype, int64_t count,
                      int64_t padded);
