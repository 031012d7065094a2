#include "nn/optim/left_out.h"

#include "nn/params.h"
#include "tensor/storage.h"

void td_left_out_ask(td_left_out *l, td_params *params, int64_t step, td_optim_slice *slice)
{
    const td_params_scaling *scaling = td_params_scaling_of(params);
    if (scaling->numbers == NULL) {
        return;
    }
    if (!l->pending) {
        *l = (td_left_out){ true, scaling->unseen };
    }
    slice->scale = td_ptr(scaling->numbers);
    slice->unseen = l->before;
    slice->step = step;
}

int64_t td_left_out_settle(td_left_out *l, td_params *params)
{
    if (!l->pending) {
        return 0;
    }
    td_params_scaling *scaling = td_params_scaling_of(params);
    double numbers[TD_SCALE_NUMBERS];
    td_read(scaling->numbers, numbers, TD_F64);
    scaling->unseen = (int64_t)numbers[TD_SCALE_UNSEEN];
    l->pending = false;
    return scaling->unseen - l->before;
}
