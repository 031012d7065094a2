/* Adam (Kingma, Ba 2015) and AdamW (Loshchilov, Hutter 2019), in PyTorch's form, at step t:
 * g += wd p (Adam), p *= 1 - lr wd (AdamW);  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;
 * p -= lr / (1 - b1^t) m / (sqrt(v) / sqrt(1 - b2^t) + eps). */
#include "nn/optim/optim_internal.h"

#include <math.h>

static void adam_fill(const td_optim *optim, int i, td_optim_slice *slice)
{
    const td_adam_options *a = &optim->adam;
    slice->beta1 = a->beta1;
    slice->beta2 = a->beta2;
    slice->eps = a->eps;
    slice->step = optim->steps[i] + 1;
    slice->bias1 = 1.0 - pow(a->beta1, (double)slice->step);
    slice->bias2 = 1.0 - pow(a->beta2, (double)slice->step);
}

static void adamw_fill(const td_optim *optim, int i, td_optim_slice *slice)
{
    adam_fill(optim, i, slice);
    slice->decoupled = true;
}

static void adam_run(td_optim *optim, const td_kernels *kernels, td_tensor *flat,
                     const td_tensor *flat_grad, int slices)
{
    kernels->adam(flat, flat_grad, optim->state[0], optim->state[1], optim->table, slices);
}

static const td_optim_kind adam_kind = {
    .name = "adam",
    .states = { "exp_avg", "exp_avg_sq" },
    .fill = adam_fill,
    .run = adam_run,
};

static const td_optim_kind adamw_kind = {
    .name = "adamw",
    .states = { "exp_avg", "exp_avg_sq" },
    .fill = adamw_fill,
    .run = adam_run,
};

static double or_default(double value, double usual)
{
    return value != 0.0 ? value : usual;
}

static td_optim *make_adam(const td_optim_kind *kind, td_params *params,
                           const td_adam_options *options)
{
    td_adam_options a = options != NULL ? *options : (td_adam_options){ .lr = 0.0 };
    a.lr = or_default(a.lr, 1e-3);
    a.beta1 = or_default(a.beta1, 0.9);
    a.beta2 = or_default(a.beta2, 0.999);
    a.eps = or_default(a.eps, 1e-8);
    TD_REQUIRE(a.lr > 0.0 && a.eps > 0.0 && a.weight_decay >= 0.0, TD_HERE,
               "td_%s: lr %g and eps %g must be positive, weight decay %g not negative", kind->name,
               a.lr, a.eps, a.weight_decay);
    TD_REQUIRE(a.beta1 > 0.0 && a.beta1 < 1.0 && a.beta2 > 0.0 && a.beta2 < 1.0, TD_HERE,
               "td_%s: beta1 %g and beta2 %g must be between 0 and 1", kind->name, a.beta1,
               a.beta2);
    td_optim *o = td_optim_new(kind, params, a.lr, a.weight_decay, true);
    if (o != NULL) {
        o->adam = a;
    }
    return o;
}

td_optim *td_adam(td_params *params, const td_adam_options *options)
{
    return make_adam(&adam_kind, params, options);
}

td_optim *td_adamw(td_params *params, const td_adam_options *options)
{
    return make_adam(&adamw_kind, params, options);
}
