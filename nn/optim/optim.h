/* Optimizers over flat parameters, and learning-rate schedules. */
#ifndef TD_NN_OPTIM_H
#define TD_NN_OPTIM_H

#include "nn/nn.h"
#include "tensor/extern_c.h"

TD_BEGIN_C

typedef struct td_optim td_optim;

/* Formulas as PyTorch's. A parameter without a gradient is skipped (no decay, no step count). */
typedef struct td_sgd_options {
    int begin_; /* lets the macro take an empty list; not for you */
    td_params *params;
    double lr, momentum, dampening, weight_decay;
    bool nesterov;
} td_sgd_options;
td_optim *td_sgd_at(td_sgd_options options, td_site at);

typedef struct td_adam_options {
    int begin_;
    td_params *params;
    double lr;           /* 0: 1e-3 */
    double beta1, beta2; /* 0: 0.9 and 0.999 */
    double eps;          /* 0: 1e-8 */
    double weight_decay;
} td_adam_options;
td_optim *td_adam_at(td_adam_options options, td_site at);
/* Decoupled weight decay; PyTorch's default of 1e-2 is not assumed: 0 is 0. */
td_optim *td_adamw_at(td_adam_options options, td_site at);

void td_optim_free(td_optim *optim); /* before the model; NULL is fine */

/* One step over all parameters that have a gradient. Inside a step or outside. */
void td_optim_step(td_optim *optim);
/* All leaves have no gradient any more; no memory is touched. */
void td_zero_grad(td_optim *optim);

/* Parameter groups: all parameters are in group 0; a new group takes those that `belongs` picks.
 * Returns its number. lr_scale multiplies the learning rate that schedules set. */
int td_optim_group(td_optim *optim, bool (*belongs)(const td_param *param, void *user), void *user,
                   double lr_scale, double weight_decay);

/* Changes a group's settings from the next step on. */
void td_optim_set_group(td_optim *optim, int group, double lr_scale, double weight_decay);

/* Bytes of what it keeps beside the parameters: momentum, Adam's moments. */
size_t td_optim_state_bytes(const td_optim *optim);

double td_optim_lr(const td_optim *optim); /* of group 0 */
void td_optim_set_lr(td_optim *optim, double lr);

/* ---- schedules: pure functions of a position; position counts epochs or steps, as you like ----
 */

typedef enum td_schedule_kind {
    TD_SCHEDULE_CONSTANT,
    TD_SCHEDULE_STEP,       /* lr * gamma^floor(t / step_size) */
    TD_SCHEDULE_MULTI_STEP, /* lr * gamma^(milestones passed) */
    TD_SCHEDULE_COSINE,     /* min + (lr - min) (1 + cos(pi t / total)) / 2 */
    TD_SCHEDULE_LINEAR,     /* lr until warmup, from there in a straight line to min at total */
} td_schedule_kind;
typedef struct td_schedule {
    td_schedule_kind kind;
    double base_lr, min_lr;
    double total;            /* cosine, linear */
    double step_size, gamma; /* step, multi-step (gamma 0: 0.1) */
    double milestones[16];
    int milestone_count;
    double warmup;        /* length of the linear warm-up in front, 0: none */
    double warmup_factor; /* where it starts, times lr; it scales whatever the rest gives */
} td_schedule;
double td_schedule_lr(const td_schedule *schedule, double position);

#define td_sgd(...) td_sgd_at((td_sgd_options){ .begin_ = 0, __VA_ARGS__ }, TD_HERE)
#define td_adam(...) td_adam_at((td_adam_options){ .begin_ = 0, __VA_ARGS__ }, TD_HERE)
#define td_adamw(...) td_adamw_at((td_adam_options){ .begin_ = 0, __VA_ARGS__ }, TD_HERE)

TD_END_C

#endif
