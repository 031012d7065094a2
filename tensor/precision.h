/* The arithmetic of convolutions and matrix products. The whole process has one setting; an
 * operation reads it in forward and uses the same in backward. docs/precision.md compares the
 * choices. */
#pragma once

#include "tensor/device.h"
#include "tensor/dtype.h"

TD_BEGIN_C

typedef enum td_precision {
    TD_PRECISION_FP32 = 0, /* the tensors' own dtype: plain f32 arithmetic for f32 */
    TD_PRECISION_BF16,     /* mixed: bf16 activations; f32 weights, sums and statistics
                              (autograd/ops.def says what each operation casts) */
    TD_PRECISION_BF16X3,   /* f32 tensors; each factor is split into two bf16 numbers, and three
                              products are summed: relative error about 4e-6, plain f32 has 4e-7 */
    TD_PRECISION_TF32,     /* GPUs: f32 tensors; factors are rounded to 11 bits, sums are f32:
                              relative error about 5e-4 */
    TD_PRECISION_FP16, /* GPUs: like bf16, with f16 activations. f16's range is 6e-8 to 65504, so
                          gradients need a loss scaler (nn/extra/scaler.h) */
    TD_PRECISION_COUNT
} td_precision;

/* All fields zero is the default: plain arithmetic. */
typedef struct td_math {
    td_precision precision;
    bool winograd; /* 3x3 convolutions of f32 may use Winograd's transform: relative error 2e-6 */
} td_math;

/* Sets the arithmetic of all operations of the process that run from now on. */
void td_set_math(td_math math);

TD_END_C
