/* Steps that the device skips: a loss scaler's decision, which kernels of captured steps read, and
 * the count of such steps. */
#include "nn/optim/skips.h"

#include "tensor/extend.h"
#include "tensor/storage.h"

static int64_t skipped(const td_params *params, bool but_the_last)
{
    double numbers[TD_SCALE_NUMBERS] = { 0 };
    const td_tensor *scaling = td_params_training_of(params)->scaling;
    if (scaling == NULL) {
        return 0;
    }
    td_read(scaling, numbers, TD_F64);
    bool last = numbers[TD_SCALE_OUTCOME] != TD_SCALE_TAKEN;
    return (int64_t)numbers[TD_SCALE_UNSEEN] - (but_the_last && last);
}

int64_t td_params_skipped(const td_params *params)
{
    return skipped(params, false);
}

int64_t td_params_skipped_before(const td_params *params)
{
    return skipped(params, true);
}

void td_params_ask(const td_params *params, td_optim_slice *slice, int64_t step, int64_t skipped)
{
    td_tensor *scaling = td_params_training_of(params)->scaling;
    if (scaling != NULL) {
        slice->scale = td_ptr(scaling);
        slice->unseen = skipped;
        slice->step = step;
    }
}

/* Adds the steps that the old scaler has skipped to the new scaler's count. */
static void take_over_skipped(const td_params *params, td_tensor *held)
{
    double numbers[TD_SCALE_NUMBERS];
    td_read(held, numbers, TD_F64);
    numbers[TD_SCALE_UNSEEN] += (double)td_params_skipped(params);
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
