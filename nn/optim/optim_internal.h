/* Optimizers, seen from inside: what each optimizer fills in, and what a checkpoint reads. Users
 * do not include this. */
#pragma once

#include "nn/extra/inspect.h"
#include "nn/optim/skips.h"
#include "tensor/kernels/kernels.h"

enum { TD_OPTIM_STATES = TD_UPDATE_STATES };

/* A kind of optimizer. */
typedef struct td_optim_kind {
    const char *name;                    /* "adam": in checkpoints */
    const char *states[TD_OPTIM_STATES]; /* "exp_avg", ...; NULL where there is no more */
    /* Writes the constants of parameter i's next step; lr and weight_decay are there already.
     * optim->steps[i]: how many it has made. */
    void (*fill)(const td_optim *optim, int i, td_optim_slice *slice);
    void (*run)(td_optim *optim, const td_kernels *kernels, td_tensor *flat,
                const td_tensor *flat_grad, int slices);
    void (*free)(td_optim *optim); /* what `own` points to; NULL: nothing */
    bool no_momentum; /* has no memory for momentum; another kind of the same name has it */
    td_dtype packed;  /* TD_BF16, TD_U8: states are packed (tensor/kernels/packed.h), and each
                         parameter has a slice of its own; TD_F32: they are not */
} td_optim_kind;

/* What td_optim_set changes; an optimizer reads the settings of its formula. */
typedef struct td_optim_group_settings {
    double lr_scale, weight_decay, momentum, beta1, beta2, eps;
} td_optim_group_settings;

struct td_optim {
    const td_optim_kind *kind;
    td_params *params;
    double lr;
    td_optim_group_settings *groups;
    int group_count;
    int *group_of;                     /* of each parameter */
    td_tensor *step_counts;            /* with the params, so that ranks can make them equal */
    int64_t *steps;                    /* the elements of step_counts: steps of each parameter */
    td_skips skips;                    /* steps that the device has skipped, and `steps` has not */
    td_tensor *state[TD_OPTIM_STATES]; /* flat, like the parameters; NULL: not used */
    td_optim_slice *slices;            /* at most one a parameter */
    int slice_count;                   /* of the running step */
    bool filled;                       /* slices are those of the running step already */
    const td_optim_slice *table;       /* what the running step's kernels read: slices, or their
                                          copy among a captured step's numbers */
    void *own; /* the kind's own data: its options, and what else it needs */
};

/* Corrects the counts of steps if there were captured steps, of which the device may have skipped
 * some for a loss scaler. Waits for the device then. */
void td_optim_settle(td_optim *optim);

/* An optimizer of a kind over params with one group (lr_scale is set to 1), the first `states` of
 * its states, and a copy of `own`. NULL when memory is short. */
td_optim *td_optim_new(const td_optim_kind *kind, td_params *params, double lr,
                       const td_optim_group_settings *group, int states, const void *own,
                       size_t own_size, td_site at);
/* Adam's step of parameter i; and an Adam of a kind. */
void td_adam_fill(const td_optim *optim, int i, td_optim_slice *slice);
void td_adamw_fill(const td_optim *optim, int i, td_optim_slice *slice);
void td_adam_run(td_optim *optim, const td_kernels *kernels, td_tensor *flat,
                 const td_tensor *flat_grad, int slices);
td_optim *td_adam_of_kind(const td_optim_kind *kind, td_adam_options options, td_site at);
/* The settings of parameter i's group. */
const td_optim_group_settings *td_optim_settings(const td_optim *optim, int i);
/* Fails unless a learning rate is given, finite and not negative. */
void td_require_lr(double lr, const char *what, td_site at);
