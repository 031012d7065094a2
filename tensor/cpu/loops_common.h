/* What the files that compile the loops share; see loops.inc. */
#pragma once

#include "tensor/f16.h"
#include "tensor/cpu/loops.h"
#include "tensor/kernels/formulas.h"
#include "tensor/kernels/packed.h"

#include <math.h>
#include <string.h>

#if TD_X86
#include <immintrin.h>
#endif

enum {
    LANES = 32,                 /* interleaved sums of a run */
    STRIP = TD_SOFTMAX_COLUMNS, /* columns of a matrix whose sums are kept in registers */
    SUMS = 8 * STRIP,           /* columns whose sums are made together, in memory */
    LONG_ROW = 1024,            /* of so many elements only a few rows are added up at a time */
    FEW_ROWS = 8,
    PIECE = 256, /* elements of a run that are worked on in the first-level cache */
};

/* The element types that loops.inc is compiled for. */
#define TD_LOOP_F32 0
#define TD_LOOP_F64 1
#define TD_LOOP_BF16 2 /* in memory; computed in float */

/* Clang makes no clones of functions. */
#if defined(__clang__)
#define TD_NO_CLONE __attribute__((noinline))
#else
#define TD_NO_CLONE __attribute__((noinline, noclone))
#endif

/* The next loop's elements do not depend on each other, though its arrays may be one array. Clang
 * finds out at run time. */
#if defined(__clang__)
#define TD_IVDEP
#else
#define TD_IVDEP _Pragma("GCC ivdep")
#endif
