#include "nn/extra/left_out.h"

#include "nn/params.h"
#include "tensor/storage.h"

/* What the device says now. */
static int64_t look(td_params_scaling *scaling)
{
    double numbers[TD_SCALE_NUMBERS];
    td_read(scaling->numbers, numbers, TD_F64);
    scaling->unseen = (int64_t)numbers[TD_SCALE_UNSEEN];
    return scaling->unseen;
}

void td_left_out_begin(td_left_out *l, td_params *params)
{
    *l = (td_left_out){ 0 };
    if (td_params_scaling_of(params)->numbers != NULL) {
        (void)look(td_params_scaling_of(params));
    }
}

void td_left_out_ask(td_left_out *l, td_params *params, int64_t step, td_optim_slice *slice)
{
    const td_params_scaling *scaling = td_params_scaling_of(params);
    if (scaling->numbers == NULL) {
        return;
    }
    const td_storage *numbers = scaling->numbers->storage;
    if (!l->pending) {
        *l = (td_left_out){ true, scaling->unseen, numbers };
    }
    TD_REQUIRE(l->of == numbers, TD_HERE,
               "a captured step with another loss scaler than the ones before: in between make a "
               "step that is not captured, or a checkpoint, so that the steps are counted that the "
               "first one has left out");
    slice->scale = td_ptr(scaling->numbers);
    slice->unseen = l->before;
    slice->step = step;
}

int64_t td_left_out_settle(td_left_out *l, td_params *params)
{
    if (!l->pending) {
        return 0;
    }
    int64_t before = l->before;
    l->pending = false;
    return look(td_params_scaling_of(params)) - before;
}
