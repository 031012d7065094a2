/* Loss scaling for training in f16 (Micikevicius et al. 2018), whose numbers end at 6e-8 below:
 * gradients of a loss that is multiplied by a large factor do not vanish. The factor grows while
 * all gradients stay finite, and shrinks when they do not; then that step is left out.
 *
 *     td_backward(td_scaler_loss(scaler, loss));
 *     if (td_scaler_unscale(scaler, td_parameters(net))) {
 *         td_optim_step(optim);
 *     }
 */
#ifndef TD_NN_OPTIM_SCALER_H
#define TD_NN_OPTIM_SCALER_H

#include "nn/nn.h"
#include "tensor/extern_c.h"

TD_BEGIN_C

typedef struct td_scaler td_scaler;

/* The defaults are PyTorch's. Factors are best powers of 2: then scaling rounds nothing. */
typedef struct td_scaler_options {
    int begin_;
    double scale;     /* at first; 0: 65536 */
    double growth;    /* 0: 2 */
    double backoff;   /* 0: 0.5 */
    int64_t patience; /* so many steps in a row that all are finite, and the scale grows; 0: 2000 */
} td_scaler_options;

/* options NULL: the defaults. NULL with td_last_error() when memory is short. */
td_scaler *td_scaler_new_at(td_scaler_options options, td_site at);
void td_scaler_free(td_scaler *scaler); /* NULL is fine */

/* loss * scale, a step tensor. scaler NULL: the loss itself. */
td_tensor *td_scaler_loss(td_scaler *scaler, td_tensor *loss);

/* Once a step, after the last backward (and so after DDP's sums, which all ranks have alike),
 * before clipping: divides all gradients by the scale, and adapts the scale. false: some are not
 * finite, and the optimizer's step is to be left out. Waits for the device. scaler NULL: true.
 *
 * In a captured step (tensor/graph/captured.h) it does not wait, and says true: the device decides.
 * SGD, Adam, AdamW and td_ema over these params then leave a step out by themselves, and count it
 * as if the host had (Muon keeps a step from being captured). */
bool td_scaler_unscale(td_scaler *scaler, td_params *params);

/* What became of the latest step, a scalar on the device, a result for captured steps: 0 if it was
 * taken; 1: left out; 2: left out, and td_scaler_gives_up. The scaler's. After td_scaler_loss. */
td_tensor *td_scaler_outcome(const td_scaler *scaler);

/* Whether the last step was left out although the scale was at its least already: the gradients are
 * not finite for another reason, and no step will be taken any more. scaler NULL: false. */
bool td_scaler_gives_up(td_scaler *scaler);

/* What checkpoints keep (td_checkpoint.scaler). */
typedef struct td_scaler_state {
    double scale;
    int64_t good;    /* steps since the scale has changed */
    int64_t skipped; /* steps that were left out, ever */
} td_scaler_state;
td_scaler_state td_scaler_now(td_scaler *scaler); /* waits for captured steps */
void td_scaler_set(td_scaler *scaler, const td_scaler_state *state);

#define td_scaler_new(...)                                                                         \
    td_scaler_new_at((td_scaler_options){ .begin_ = 0, __VA_ARGS__ }, TD_HERE)

TD_END_C

#endif
