/* Which arithmetic convolutions and matrix products use. */
#include "tensor/precision.h"

#include "tensor/kernels/kernels.h"
#include "tensor/extend.h"

#include <stdatomic.h>
#include <string.h>

static const char *const names[TD_PRECISION_COUNT] = {
    [TD_PRECISION_FP32] = "fp32", [TD_PRECISION_BF16] = "bf16", [TD_PRECISION_BF16X3] = "bf16x3",
    [TD_PRECISION_TF32] = "tf32", [TD_PRECISION_FP16] = "fp16",
};

/* Both fields in one word, so that no thread sees half of a change. */
static atomic_uint current;

void td_set_math(td_math math)
{
    atomic_store(&current, (unsigned)math.precision * 2 + math.winograd);
}

td_math td_math_now(void)
{
    unsigned word = atomic_load_explicit(&current, memory_order_relaxed);
    return (td_math){ .precision = (td_precision)(word / 2), .winograd = word % 2 };
}

const char *td_precision_name(td_precision precision)
{
    return (unsigned)precision < TD_PRECISION_COUNT ? names[precision] : "unknown";
}

bool td_precision_parse(const char *name, td_precision *precision)
{
    for (int i = 0; i < TD_PRECISION_COUNT; i++) {
        if (strcmp(name, names[i]) == 0) {
            *precision = (td_precision)i;
            return true;
        }
    }
    return false;
}

td_dtype td_precision_dtype(td_precision precision)
{
    return precision == TD_PRECISION_BF16   ? TD_BF16
           : precision == TD_PRECISION_FP16 ? TD_F16
                                            : TD_F32;
}

td_status td_precision_check(td_device device, td_precision precision)
{
    return td_kernels_of(device)->check_precision(device, precision);
}
