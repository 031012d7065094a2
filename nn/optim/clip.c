/* Gradient clipping by the norm of all gradients together. */
#include "nn/params.h"
#include "tensor/capture.h"
#include "tensor/kernels.h"

#include <math.h>

double td_clip_grad_norm(td_params *params, double max_norm)
{
    TD_REQUIRE(max_norm >= 0.0, TD_HERE, "td_clip_grad_norm: max_norm is %g; it must be positive",
               max_norm);
    td_capture_note("td_clip_grad_norm reads the gradients' norm");
    const td_kernels *kernels = td_kernels_of(td_device_of(td_params_flat(params)));
    double sum = 0.0;
    /* In the order of registration, so that the layout in memory does not change the sum. */
    for (int i = 0; i < td_params_count(params); i++) {
        const td_tensor *grad = td_grad(td_params_get(params, i)->tensor);
        if (grad != NULL) {
            sum += kernels->sum_of_squares(grad);
        }
    }
    double norm = sqrt(sum);
    double scale = max_norm / (norm + 1e-6);
    for (int i = 0; scale < 1.0 && i < td_params_count(params); i++) {
        td_tensor *grad = td_grad(td_params_get(params, i)->tensor);
        if (grad != NULL) {
            kernels->unary(TD_UNARY_MUL_SCALAR, grad, grad, scale);
        }
    }
    return norm;
}
