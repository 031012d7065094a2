/* Loss scaling as a device does it by itself: the same on every device. */
#pragma once

#include "tensor/kernels/kernel_types.h"
#include "tensor/kernels/philox.h"

#include <math.h>

/* A scaler's numbers after a step whose gradients were all finite, or not. */
TD_EVERYWHERE void td_scale_adapt(double *scale, bool found, const td_scale_rule *rule)
{
    double factor = scale[TD_SCALE_FACTOR];
    scale[TD_SCALE_OUTCOME] = !found                  ? TD_SCALE_TAKEN
                              : factor <= rule->least ? TD_SCALE_HOPELESS
                                                      : TD_SCALE_SKIPPED;
    if (found) {
        scale[TD_SCALE_GOOD] = 0.0;
        scale[TD_SCALE_SKIPS] += 1.0;
        scale[TD_SCALE_UNSEEN] += rule->unseen ? 1.0 : 0.0;
        scale[TD_SCALE_FACTOR] = fmax(factor * rule->backoff, rule->least);
    } else if (++scale[TD_SCALE_GOOD] >= (double)rule->patience) {
        scale[TD_SCALE_GOOD] = 0.0;
        scale[TD_SCALE_FACTOR] = fmin(factor * rule->growth, rule->most);
    }
}

/* The part of an average's way that is left after n updates. */
TD_EVERYWHERE double td_average_decay(double decay, double n)
{
    return fmin((1.0 + n) / (10.0 + n), decay);
}

/* A slice that asks a scaler (slice->device.scale), as the host would have filled it in if it knew
 * which steps were skipped. */
TD_EVERYWHERE void td_slice_settle(td_optim_slice *s)
{
    int64_t skipped = (int64_t)s->device.scale[TD_SCALE_UNSEEN] - s->device.unseen;
    s->skip = s->skip || s->device.scale[TD_SCALE_OUTCOME] != TD_SCALE_TAKEN;
    if (skipped == 0) {
        return;
    }
    s->step -= skipped;
    s->first = s->step == 1;
    if (s->beta2 > 0.0) {
        s->bias1 = 1.0 - pow(s->beta1, (double)s->step);
        s->bias2 = 1.0 - pow(s->beta2, (double)s->step);
    }
    if (s->device.average > 0.0) {
        s->lr = -(1.0 - td_average_decay(s->device.average, (double)(s->step - 1)));
    }
}
