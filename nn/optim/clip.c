/* Gradient clipping by the norm of all gradients together. */
#include "nn/params.h"
#include "nn/module.h"
#include "tensor/hooks.h"
#include "tensor/kernels.h"

#include <math.h>
#include <stdlib.h>

/* The gradients in the order of registration, so that the layout in memory does not change the sum.
 */
static int list_gradients(td_params *params, td_tensor **list)
{
    int count = 0;
    for (int i = 0; i < td_params_count(params); i++) {
        td_tensor *grad = td_grad(td_params_get(params, i)->tensor);
        if (grad != NULL) {
            list[count++] = grad;
        }
    }
    return count;
}

static double clip_by_host(td_tensor *const *grads, int count, double max_norm)
{
    double sum = 0.0;
    for (int i = 0; i < count; i++) {
        sum += td_kernels_of(td_device_of(grads[i]))->sum_of_squares(grads[i]);
    }
    double norm = sqrt(sum);
    double scale = max_norm / (norm + 1e-6); /* NaN: makes all gradients NaN, as in PyTorch */
    for (int i = 0; !(scale >= 1.0) && i < count; i++) {
        td_kernels_of(td_device_of(grads[i]))
            ->unary(TD_UNARY_mul_scalar, grads[i], grads[i], scale, 0.0);
    }
    return norm;
}

double td_clip_grad_norm(td_params *params, double max_norm)
{
    TD_REQUIRE(max_norm >= 0.0, TD_HERE, "td_clip_grad_norm: max_norm is %g; it must be positive",
               max_norm);
    const td_kernels *kernels = td_kernels_of(td_device_of(td_params_flat(params)));
    td_tensor **grads = calloc((size_t)td_params_count(params) + 1, sizeof *grads);
    TD_REQUIRE(grads != NULL, TD_HERE, "td_clip_grad_norm: no memory for a list of gradients");
    int count = list_gradients(params, grads);
    double norm = NAN;
    if (kernels->clip != NULL) {
        bool whole = count == td_params_count(params);
        kernels->clip(grads, count, whole ? td_params_flat_grad(params) : NULL, max_norm,
                      td_recorder_now() == NULL ? &norm : NULL);
    } else {
        norm = clip_by_host(grads, count, max_norm);
    }
    free(grads);
    return td_recorder_now() == NULL ? norm : NAN;
}
