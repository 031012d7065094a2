/* Stochastic gradient descent (Robbins, Monro 1951; momentum: Polyak 1964; Nesterov 1983), in
 * PyTorch's form: g += wd p;  b = g at first, then mu b + (1 - damp) g;  p -= lr b, or with
 * nesterov lr (g + mu b). Of a parameter p: g its gradient, wd weight decay, b its momentum buffer,
 * mu momentum, damp dampening. */
#include "nn/optim/optim_internal.h"

static void sgd_fill(const td_optim *optim, int i, td_optim_slice *slice)
{
    const td_sgd_options *options = optim->own;
    slice->first = optim->steps[i] == 0;
    slice->momentum = td_optim_settings(optim, i)->momentum;
    slice->dampening = options->dampening;
    slice->nesterov = options->nesterov;
}

static void sgd_run(td_optim *optim, const td_kernels *kernels, td_tensor *flat,
                    const td_tensor *flat_grad, int slices)
{
    kernels->sgd(flat, flat_grad, optim->state[0], optim->table, slices);
}

#define SGD(...)                                                                                   \
    {                                                                                              \
        .name = "sgd", .fill = sgd_fill, .run = sgd_run, __VA_ARGS__                               \
    }

static const td_optim_kind plain_kind = SGD(.no_momentum = true),
                           momentum_kind = SGD(.states = { "momentum_buffer" });

td_optim *td_sgd_at(td_sgd_options options, td_site at)
{
    td_require_lr(options.lr, "td_sgd", at);
    TD_REQUIRE(options.momentum >= 0.0 && options.weight_decay >= 0.0, at,
               "td_sgd: momentum %g and weight decay %g must not be negative", options.momentum,
               options.weight_decay);
    TD_REQUIRE(!options.nesterov || (options.momentum > 0.0 && options.dampening == 0.0), at,
               "td_sgd: nesterov needs a momentum (it is %g) and no dampening (%g)",
               options.momentum, options.dampening);
    td_optim_group_settings group = { .weight_decay = options.weight_decay,
                                      .momentum = options.momentum };
    bool momentum = options.momentum != 0.0;
    return td_optim_new(momentum ? &momentum_kind : &plain_kind, options.params, options.lr, &group,
                        momentum, &options, sizeof options, at);
}
