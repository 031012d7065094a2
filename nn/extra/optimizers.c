/* Optimizers whose formula is one line of tensor/kernels/updates.def. */
#include "nn/extra/optimizers.h"
#include "nn/optim/optim_internal.h"
#include "tensor/extend.h"

static void optimizers_fill(const td_optim *optim, int i, td_optim_slice *slice)
{
    const td_optim_group_settings *group = td_optim_settings(optim, i);
    slice->momentum = group->momentum;
    slice->beta1 = group->beta1;
    slice->beta2 = group->beta2;
    slice->eps = group->eps;
}

static void fill_decoupled(const td_optim *optim, int i, td_optim_slice *slice)
{
    optimizers_fill(optim, i, slice);
    slice->decoupled = true;
}

/* own: which formula. */
static void optimizers_run(td_optim *optim, const td_kernels *kernels, td_tensor *flat,
                           const td_tensor *flat_grad, int slices)
{
    const td_update_op *op = optim->own;
    kernels->update(*op, flat, flat_grad, optim->state, optim->table, slices);
}

static void require_range(const char *name, double value, double limit, const char *what,
                          td_site at)
{
    TD_REQUIRE(value >= 0.0 && value < limit, at,
               "%s: %s is %g; it must be at least 0 and less than %g", name, what, value, limit);
}

#define KIND(variable, NAME, FILL, NO_MOMENTUM, ...)                                               \
    static const td_optim_kind variable = { .name = NAME,                                          \
                                            .states = { __VA_ARGS__ },                             \
                                            .fill = FILL,                                          \
                                            .run = optimizers_run,                                 \
                                            .no_momentum = NO_MOMENTUM }

/* [centered][momentum] */
KIND(rmsprop, "rmsprop", optimizers_fill, true, "square_avg");
KIND(rmsprop_momentum, "rmsprop", optimizers_fill, false, "square_avg", "momentum_buffer");
KIND(rmsprop_centered, "rmsprop", optimizers_fill, true, "square_avg", "grad_avg");
KIND(rmsprop_both, "rmsprop", optimizers_fill, false, "square_avg", "grad_avg", "momentum_buffer");

td_optim *td_rmsprop_at(td_rmsprop_options o, td_site at)
{
    static const td_optim_kind *const kinds[2][2] = { { &rmsprop, &rmsprop_momentum },
                                                      { &rmsprop_centered, &rmsprop_both } };
    static const td_update_op ops[2][2] = { { TD_UPDATE_RMSPROP, TD_UPDATE_RMSPROP_MOMENTUM },
                                            { TD_UPDATE_RMSPROP_CENTERED,
                                              TD_UPDATE_RMSPROP_CENTERED_MOMENTUM } };
    o.lr = td_or_usual(o.lr, 1e-2);
    td_optim_group_settings group = { .weight_decay = o.weight_decay,
                                      .momentum = o.momentum,
                                      .beta2 = td_or_usual(o.alpha, 0.99),
                                      .eps = td_or_usual(o.eps, 1e-8) };
    td_require_lr(o.lr, "td_rmsprop", at);
    require_range("td_rmsprop", group.beta2, 1.0, "alpha", at);
    TD_REQUIRE(group.eps >= 0.0 && o.momentum >= 0.0 && o.weight_decay >= 0.0, at,
               "td_rmsprop: eps %g, momentum %g and weight decay %g must not be negative",
               group.eps, o.momentum, o.weight_decay);
    bool momentum = o.momentum != 0.0;
    return td_optim_new(kinds[o.centered][momentum], o.params, o.lr, &group,
                        1 + o.centered + momentum, &ops[o.centered][momentum], sizeof **ops, at);
}

KIND(adagrad, "adagrad", optimizers_fill, false, "sum");

td_optim *td_adagrad_at(td_adagrad_options o, td_site at)
{
    o.lr = td_or_usual(o.lr, 1e-2);
    td_optim_group_settings group = { .weight_decay = o.weight_decay,
                                      .eps = td_or_usual(o.eps, 1e-10) };
    td_require_lr(o.lr, "td_adagrad", at);
    TD_REQUIRE(group.eps >= 0.0 && o.initial_value >= 0.0 && o.weight_decay >= 0.0, at,
               "td_adagrad: eps %g, initial_value %g and weight decay %g must not be negative",
               group.eps, o.initial_value, o.weight_decay);
    const td_update_op op = TD_UPDATE_ADAGRAD;
    td_optim *optim = td_optim_new(&adagrad, o.params, o.lr, &group, 1, &op, sizeof op, at);
    if (optim != NULL) {
        td_fill_(optim->state[0], o.initial_value);
    }
    return optim;
}

KIND(lion, "lion", fill_decoupled, false, "exp_avg");

td_optim *td_lion_at(td_lion_options o, td_site at)
{
    o.lr = td_or_usual(o.lr, 1e-4);
    td_optim_group_settings group = { .weight_decay = o.weight_decay,
                                      .beta1 = td_or_usual(o.beta1, 0.9),
                                      .beta2 = td_or_usual(o.beta2, 0.99) };
    td_require_lr(o.lr, "td_lion", at);
    require_range("td_lion", group.beta1, 1.0, "beta1", at);
    require_range("td_lion", group.beta2, 1.0, "beta2", at);
    TD_REQUIRE(o.weight_decay >= 0.0, at, "td_lion: weight decay %g must not be negative",
               o.weight_decay);
    const td_update_op op = TD_UPDATE_LION;
    return td_optim_new(&lion, o.params, o.lr, &group, 1, &op, sizeof op, at);
}
