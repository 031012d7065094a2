/* Optimizers and learning-rate schedules.
 *
 *     td_optim *optim = td_sgd(td_parameters(net), .lr = 0.1, .momentum = 0.9);
 *     ... td_zero_grad(optim); td_backward(loss); td_optim_step(optim); ...
 *     td_optim_free(optim);      (before td_module_free(net))                                    */
#pragma once

#include "nn/nn.h"
#include "tensor/extern_c.h"

TD_BEGIN_C

typedef struct td_optim td_optim;

/* The formulas are PyTorch's (torch.optim). td_optim_step skips parameters that have no gradient:
 * their values, their state and their step counts do not change. The caller frees an optimizer by
 * td_optim_free. NULL with td_last_error() when memory is short. */

typedef struct td_sgd_options {
    int begin_; /* for the library: lets the macro take an empty list */
    td_params *params;
    double lr, momentum, dampening, weight_decay;
    bool nesterov;
} td_sgd_options;
td_optim *td_sgd_at(td_sgd_options options, td_site at);

typedef struct td_adam_options {
    int begin_; /* for the library */
    td_params *params;
    double lr;           /* 0: 1e-3 */
    double beta1, beta2; /* 0: 0.9 and 0.999 */
    double eps;          /* 0: 1e-8 */
    double weight_decay; /* 0: none; PyTorch's AdamW has the default 1e-2 */
    bool amsgrad;        /* divide by the largest average of squares so far */
} td_adam_options;
/* Adam (Kingma, Ba 2015): weight_decay is added to the gradient. */
td_optim *td_adam_at(td_adam_options options, td_site at);
/* AdamW (Loshchilov, Hutter 2019): weight_decay shrinks the weights directly. */
td_optim *td_adamw_at(td_adam_options options, td_site at);

/* Frees an optimizer; call it before td_module_free. NULL is fine. */
void td_optim_free(td_optim *optim);

/* Changes all parameters that have a gradient; if none has, says so on stderr, once. May be called
 * inside of TD_STEP or outside. */
void td_optim_step(td_optim *optim);
/* Forgets all gradients: td_grad returns NULL until the next backward, which overwrites the memory
 * instead of adding to it. No memory is written, so td_zero_grad costs nothing. */
void td_zero_grad(td_optim *optim);

/* Makes a parameter group and returns its number. At first all parameters are in group 0. The
 * parameters for which belongs(param, user) is true move to the new group. lr_scale multiplies the
 * optimizer's learning rate. */
int td_optim_group(td_optim *optim, bool (*belongs)(const td_param *param, void *user), void *user,
                   double lr_scale, double weight_decay);

/* td_optim_set(optim, group, ...) changes single settings of a group, from the next td_optim_step
 * on. A setting that is not named stays as it is (TD_ZERO sets 0). A new group begins with the
 * optimizer's settings. An optimizer ignores settings that are not in its formula. */
typedef struct td_optim_set_options {
    int begin_; /* for the library */
    td_optim *optim;
    int group;
    double lr_scale, weight_decay, momentum, beta1, beta2, eps;
} td_optim_set_options;
void td_optim_set_at(td_optim_set_options options, td_site at);

/* The learning rate, and setting it. A group's own rate is this rate times its lr_scale. */
double td_optim_lr(const td_optim *optim);
void td_optim_set_lr(td_optim *optim, double lr);

/* ---- learning-rate schedules ----
 *
 * A schedule gives the learning rate at a position. The position counts epochs or steps, as you
 * like; all lengths below are in the same unit. Apply a schedule by
 * td_optim_set_lr(optim, td_schedule_lr(&schedule, position)). */

typedef enum td_schedule_kind {
    /* t: the position; T: total; min: min_lr */
    TD_SCHEDULE_CONSTANT,
    TD_SCHEDULE_STEP,       /* lr * gamma^floor(t / step_size) */
    TD_SCHEDULE_MULTI_STEP, /* lr * gamma^(milestones passed) */
    TD_SCHEDULE_COSINE,     /* min + (lr - min) (1 + cos(pi t / T)) / 2 */
    TD_SCHEDULE_LINEAR,     /* a straight line from lr, where the warm-up ends, to min at total */
    TD_SCHEDULE_RESTARTS,   /* cosines one after the other, each from lr to min. The first has the
                               length step_size, every other is `growth` times as long as the one
                               before (CosineAnnealingWarmRestarts) */
    TD_SCHEDULE_ONE_CYCLE,  /* OneCycleLR over `total` steps, counted from 0: the rate rises along a
                               cosine from lr * warmup_factor to lr in `warmup` steps, then falls
                               along a cosine to min */
} td_schedule_kind;
typedef struct td_schedule {
    td_schedule_kind kind;
    double base_lr, min_lr;
    double total;            /* where cosine and linear reach min_lr; one-cycle's length */
    double step_size, gamma; /* for STEP; gamma also for MULTI_STEP, 0: 0.1 */
    double milestones[16];
    int milestone_count;
    double growth;        /* of restarts, at least 1; 0: 1 */
    double warmup;        /* length of a linear warm-up at the beginning; 0: none */
    double warmup_factor; /* the warm-up multiplies the rate by a factor from this value to 1 */
    /* For ONE_CYCLE 0 means: warmup 0.3 total, warmup_factor 1/25, min_lr 4e-6 lr. */
    bool after_warmup; /* false: warm-up and schedule both start at position 0, and their rates are
                          multiplied (PyTorch's ChainedScheduler). true: the schedule starts where
                          the warm-up ends (SequentialLR). milestones and total count from position
                          0 in both cases, so a cosine then has the length total - warmup */
} td_schedule;
double td_schedule_lr(const td_schedule *schedule, double position);

/* ---- what you call ---- */

#define td_sgd(...) TD_CALL(td_sgd, TD_OPT1(params, __VA_ARGS__))
#define td_adam(...) TD_CALL(td_adam, TD_OPT1(params, __VA_ARGS__))
#define td_adamw(...) td_adamw_at((td_adam_options){ TD_OPT1(params, __VA_ARGS__) }, TD_HERE)
#define td_optim_set(...) TD_CALL(td_optim_set, TD_OPT2(optim, group, __VA_ARGS__))

TD_END_C
