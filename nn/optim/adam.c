/* Adam (Kingma, Ba 2015) and AdamW (Loshchilov, Hutter 2019), in PyTorch's form, at step t:
 * g += wd p (Adam), p *= 1 - lr wd (AdamW);  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;
 * p -= lr / (1 - b1^t) m / (sqrt(v) / sqrt(1 - b2^t) + eps). Of a parameter p: g its gradient, wd
 * weight decay, m and v running averages of g and g^2, b1 and b2 beta1 and beta2. With amsgrad
 * (Reddi, Kale, Kumar 2018) the largest v so far takes v's place in p's formula. */
#include "nn/optim/optim_internal.h"
#include "tensor/extend.h"

#include <math.h>

void td_adam_fill(const td_optim *optim, int i, td_optim_slice *slice)
{
    const td_optim_group_settings *group = td_optim_settings(optim, i);
    slice->beta1 = group->beta1;
    slice->beta2 = group->beta2;
    slice->eps = group->eps;
    slice->step = optim->steps[i] + 1;
    slice->bias1 = 1.0 - pow(group->beta1, (double)slice->step);
    slice->bias2 = 1.0 - pow(group->beta2, (double)slice->step);
}

void td_adamw_fill(const td_optim *optim, int i, td_optim_slice *slice)
{
    td_adam_fill(optim, i, slice);
    slice->decoupled = true;
}

void td_adam_run(td_optim *optim, const td_kernels *kernels, td_tensor *flat,
                 const td_tensor *flat_grad, int slices)
{
    td_update_op op = optim->state[2] != NULL ? TD_UPDATE_AMSGRAD : TD_UPDATE_ADAM;
    kernels->update(op, flat, flat_grad, optim->state, optim->table, slices);
}

#define ADAM(NAME, FILL)                                                                           \
    {                                                                                              \
        .name = NAME, .states = { "exp_avg", "exp_avg_sq", "max_exp_avg_sq" }, .fill = FILL,       \
        .run = td_adam_run                                                                         \
    }

static const td_optim_kind adam_kind = ADAM("adam", td_adam_fill),
                           adamw_kind = ADAM("adamw", td_adamw_fill);

td_optim *td_adam_of_kind(const td_optim_kind *kind, td_adam_options a, td_site at)
{
    a.lr = td_or_usual(a.lr, 1e-3);
    a.beta1 = td_or_usual(a.beta1, 0.9);
    a.beta2 = td_or_usual(a.beta2, 0.999);
    a.eps = td_or_usual(a.eps, 1e-8);
    TD_REQUIRE(a.lr >= 0.0 && a.eps >= 0.0 && a.weight_decay >= 0.0, at,
               "td_%s: lr %g, eps %g and weight decay %g must not be negative", kind->name, a.lr,
               a.eps, a.weight_decay);
    TD_REQUIRE(a.beta1 >= 0.0 && a.beta1 < 1.0 && a.beta2 >= 0.0 && a.beta2 < 1.0, at,
               "td_%s: beta1 %g and beta2 %g must be between 0 and 1, and less than 1", kind->name,
               a.beta1, a.beta2);
    td_optim_group_settings group = {
        .weight_decay = a.weight_decay, .beta1 = a.beta1, .beta2 = a.beta2, .eps = a.eps
    };
    return td_optim_new(kind, a.params, a.lr, &group, a.amsgrad ? 3 : 2, NULL, 0, at);
}

td_optim *td_adam_at(td_adam_options options, td_site at)
{
    return td_adam_of_kind(&adam_kind, options, at);
}

td_optim *td_adamw_at(td_adam_options options, td_site at)
{
    return td_adam_of_kind(&adamw_kind, options, at);
}
