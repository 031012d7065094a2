/* Steps that the device skips: a loss scaler's decision, which kernels of captured steps read, and
 * the count of such steps. */
#include "nn/optim/skips.h"

#include "tensor/extend.h"
#include "tensor/hooks.h"
#include "tensor/storage.h"

/* How many captured steps the device has skipped so far. before: without the running captured step,
 * on which the scaler has decided already. */
static int64_t skipped(const td_params *params, bool before)
{
    double numbers[TD_SCALE_NUMBERS] = { 0 };
    const td_tensor *scaling = td_params_training_of(params)->scaling;
    if (scaling == NULL) {
        return 0;
    }
    td_read(scaling, numbers, TD_F64);
    bool last = numbers[TD_SCALE_OUTCOME] != TD_SCALE_TAKEN;
    return (int64_t)numbers[TD_SCALE_UNSEEN] - (before && last);
}

int64_t td_skips_settle(td_skips *s, const td_params *params)
{
    int64_t now = skipped(params, false), extra = s->counted ? now - s->seen : 0;
    s->seen = now;
    s->counted = false;
    return extra;
}

int64_t td_skips_step(td_skips *s, const td_params *params)
{
    if (td_recorder_now() == NULL) {
        return td_skips_settle(s, params);
    }
    if (!s->begun) { /* the first is a warm-up: the device can be asked */
        s->seen = skipped(params, true);
    }
    return 0;
}

void td_skips_ask(const td_skips *s, const td_params *params, td_optim_slice *slice, int64_t step)
{
    td_tensor *scaling = td_params_training_of(params)->scaling;
    if (scaling != NULL) {
        slice->device.scale = td_ptr(scaling);
        slice->device.unseen = s->seen;
        slice->step = step;
    }
}

/* Adds the steps that the old scaler has skipped to the new scaler's count. */
static void take_over_skipped(const td_params *params, td_tensor *held)
{
    double numbers[TD_SCALE_NUMBERS];
    td_read(held, numbers, TD_F64);
    numbers[TD_SCALE_UNSEEN] += (double)skipped(params, false);
    td_write(held, numbers, TD_F64);
}

td_status td_params_scale_by(td_params *params, const td_tensor *numbers)
{
    td_tensor *before = td_params_training_of(params)->scaling;
    if (before != NULL && before->storage == numbers->storage) {
        return TD_OK;
    }
    td_tensor *held =
        td_slice_of_storage(numbers, numbers->offset, td_shape_of(numbers), numbers->stride);
    if (held == NULL) {
        return TD_E_NOMEM;
    }
    if (before != NULL) {
        TD_REQUIRE(before->storage->refs == 1, TD_HERE,
                   "these parameters have been trained in captured steps with another loss scaler; "
                   "free that one first, or keep to it (td_scaler_set changes its state)");
        take_over_skipped(params, held);
    }
    td_free(before);
    td_params_training_of(params)->scaling = held;
    return TD_OK;
}
