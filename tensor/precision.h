/* In which arithmetic products are computed: convolutions and matrix products. One setting for the
 * whole process; an operation reads it in forward and keeps it for its backward. */
#ifndef TD_TENSOR_PRECISION_H
#define TD_TENSOR_PRECISION_H

#include "tensor/device.h"
#include "tensor/dtype.h"
#include "tensor/extern_c.h"

TD_BEGIN_C

typedef enum td_precision {
    TD_PRECISION_FP32 = 0, /* as the tensors' dtype says: plain f32 arithmetic for f32 */
    TD_PRECISION_BF16,   /* mixed: bf16 activations, f32 weights, sums and statistics (what is cast
                            to what is autograd's policy; kernels go by their tensors' dtypes) */
    TD_PRECISION_BF16X3, /* f32 tensors; each factor is split into two bf16 and multiplied three
                            times: relative error about 4e-6 where plain f32 has 4e-7 */
    TD_PRECISION_TF32,   /* GPUs: f32 tensors; factors are rounded to 11 bits (relative error about
                            5e-4), sums are f32 */
    TD_PRECISION_FP16,   /* GPUs: as bf16 with f16 activations. f16 ends at 65504 and at 6e-8:
                            gradients need a loss scaler (nn/optim) */
    TD_PRECISION_COUNT
} td_precision;

/* Zero is the default: plain arithmetic. */
typedef struct td_math {
    td_precision precision;
    bool winograd; /* 3x3 convolutions of f32 may use Winograd's transform: relative error 2e-6 */
} td_math;

/* Sets it for the process, for operations that run from now on. */
void td_set_math(td_math math);
td_math td_math_now(void);

/* "fp32", "bf16", "bf16x3", "tf32", "fp16". */
const char *td_precision_name(td_precision precision);
/* The other way; false if it is none of them. */
bool td_precision_parse(const char *name, td_precision *precision);

/* Whether a device computes in a precision. TD_E_UNSUPPORTED: td_last_error() says why, and what to
 * take instead. */
td_status td_precision_check(td_device device, td_precision precision);

/* What activations are cast to for products: TD_BF16, TD_F16, or TD_F32: they are not. */
td_dtype td_precision_dtype(td_precision precision);

TD_END_C

#endif
