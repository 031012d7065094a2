/* What the tests of kernels and operations share: random tensors, views of awkward strides, checks
 * against double-precision references, and runs over all instruction sets and thread counts. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tensor/kernels/kernels.h"

/* The device that tensors are made on and whose kernels are tested: cpu, or what TANDEM_TEST_DEVICE
 * says (tests/cuda/test_cuda_kernels.sh). */
td_device ref_device(void);
const td_kernels *ref_kernels(void);

/* A number in [-1, 1) that depends on seed and i alone. */
double ref_random(uint64_t seed, int64_t i);

/* A persistent tensor of such numbers, row-major element i getting the i-th. For integer dtypes use
 * ref_indices. */
td_tensor *ref_tensor(td_shape shape, td_dtype dtype, td_layout layout, uint64_t seed);
td_tensor *ref_indices(td_shape shape, int64_t limit, uint64_t seed); /* i64 in [0, limit) */
td_tensor *ref_filled(td_shape shape, td_dtype dtype, td_layout layout, double value);

/* The same values in other memory: every dimension twice as far apart as it need be, in reversed
 * dimension order. Frees t. */
td_tensor *ref_scattered(td_tensor *t);

/* A tensor of this shape whose elements all are one element of memory (strides 0). */
td_tensor *ref_expanded(td_shape shape, td_dtype dtype, double value);

/* All elements, row-major; the caller frees. */
double *ref_values(const td_tensor *t);
double *ref_zeros(int64_t n);

/* Row-major element [n,c,h,w] of a 4-d shape. */
int64_t ref_at4(const td_tensor *t, int64_t n, int64_t c, int64_t h, int64_t w);

/* 1e-6 for f32, 1e-12 for f64, half an ulp for the 16-bit types: what an error may be, relative to
 * the sum of the absolute values of the terms that were added up. */
double ref_tolerance(td_dtype dtype);

/* Fails unless |got[i] - want[i]| <= tolerance * max(terms[i], tiny) everywhere; terms NULL:
 * |want[i]|. NaN matches NaN, infinity itself. Also adds got's bits to the digest (below). */
void ref_close(const td_tensor *got, const double *want, const double *terms, double tolerance,
               const char *what);

/* ||got - want|| / ||want||, 0 if both are 0. */
double ref_relative_l2(const td_tensor *got, const double *want);

/* Adds memory to the digest of the present run. */
void ref_digest(const void *memory, size_t bytes);

/* Calls body(dtype) for f32 and f64, on every instruction set that this machine has, with 1, 2, 3
 * and 8 threads; on another device than the CPU, twice. Fails unless the digest is the same for all
 * thread counts, and both times. */
void ref_run(void (*body)(td_dtype dtype));
void ref_run_as(void (*body)(td_dtype dtype), td_dtype dtype); /* for one dtype */
void ref_run_half(void (*body)(td_dtype dtype));               /* bf16; on GPUs f16 too */
