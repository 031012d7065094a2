/* Loss scaling for training in f16 (Micikevicius et al. 2018). The smallest f16 number is 6e-8, so
 * small gradients would become 0. The scaler multiplies the loss by a large scale, and divides the
 * gradients by the scale before the optimizer uses them. The scale grows while all gradients are
 * finite. If a gradient is not finite, the scale shrinks, and the step is skipped.
 *
 *     td_backward(td_scaler_loss(scaler, loss));
 *     if (td_scaler_unscale(scaler, td_parameters(net))) {
 *         td_optim_step(optim);
 *     }
 */
#pragma once

#include "nn/nn.h"

TD_BEGIN_C

typedef struct td_scaler td_scaler;

/* The defaults are PyTorch's (torch.amp.GradScaler). Powers of 2 scale without rounding. */
typedef struct td_scaler_options {
    int begin_;       /* for the library */
    double scale;     /* the first scale; 0: 65536 */
    double growth;    /* factor by which the scale grows; 0: 2 */
    double backoff;   /* factor by which the scale shrinks; 0: 0.5 */
    int64_t patience; /* steps in a row with finite gradients until the scale grows; 0: 2000 */
} td_scaler_options;

/* td_scaler_new(...). NULL with td_last_error() when memory is short. Free the scaler by
 * td_scaler_free. */
td_scaler *td_scaler_new_at(td_scaler_options options, td_site at);
void td_scaler_free(td_scaler *scaler); /* NULL is fine */

/* Returns loss * scale, a step tensor. scaler NULL: returns the loss itself. */
td_tensor *td_scaler_loss(td_scaler *scaler, td_tensor *loss);

/* Divides all gradients by the scale and adapts the scale. Call td_scaler_unscale once per step,
 * after the last td_backward and before td_clip_grad_norm. Returns false if a gradient is not
 * finite; then skip td_optim_step. Under DDP all ranks get the same answer, because all ranks have
 * the same gradients. Waits for the device. scaler NULL: true.
 *
 * In a captured step (tensor/graph/captured.h) td_scaler_unscale does not wait and returns true:
 * the device decides. SGD, Adam, AdamW and td_ema then skip the step on the device, and count the
 * step as skipped. A step with Muon and a scaler cannot be captured. */
bool td_scaler_unscale(td_scaler *scaler, td_params *params);

/* ---- what you call ---- */

#define td_scaler_new(...)                                                                         \
    td_scaler_new_at((td_scaler_options){ .begin_ = 0, __VA_ARGS__ }, TD_HERE)

TD_END_C
