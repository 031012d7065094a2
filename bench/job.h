/* The training job of bench_step and bench_overlap: a ResNet on a fixed random batch, SGD with
 * Nesterov momentum. */
#pragma once

#include "nn/params.h"
#include "nn/module.h"
#include "tandem.h"
#include "tensor/storage.h"
#include "tensor/extend.h"

typedef struct job {
    td_module *net; /* made by open_job, perhaps wrapped before open_optim */
    td_optim *optim;
    bool touched; /* all memory of a step has been */
    td_tensor *x, *y;
    double loss;
} job;

/* false with td_last_error(). */
static inline bool open_job(job *j, const char *arch, td_stem stem, int64_t classes, int64_t size,
                            int64_t batch, td_dtype dtype)
{
    td_manual_seed(0);
    j->net = td_model(arch, .classes = classes, .stem = stem);
    if (j->net == NULL || td_module_to(j->net, TD_CPU, dtype) != TD_OK) {
        return false;
    }
    j->x = td_new_layout(TD_SHAPE(batch, 3, size, size), dtype, TD_IMAGE, TD_CPU);
    j->y = td_new(TD_SHAPE(batch), TD_I64, TD_CPU);
    td_normal_(j->x, 0, 1, td_default_generator());
    for (int64_t i = 0; i < batch; i++) {
        td_set(j->y, &i, (double)td_random_int(td_default_generator(), 0, classes));
    }
    return true;
}

static inline void open_optim(job *j)
{
    j->optim = td_sgd(td_parameters(j->net), .lr = 0.01, .momentum = 0.9, .weight_decay = 1e-4,
                      .nesterov = true);
}

static inline void close_job(job *j)
{
    td_optim_free(j->optim);
    td_module_free(j->net);
    td_free(j->x);
    td_free(j->y);
}

/* user: a job. */
static inline void train_step(void *user)
{
    job *j = user;
    td_step_begin();
    td_tensor *loss = td_cross_entropy(td_forward(j->net, j->x), j->y);
    td_zero_grad(j->optim);
    td_backward(loss);
    td_optim_step(j->optim);
    j->loss = td_item(loss);
    td_step_end();
    if (!j->touched) { /* updates that are put off would leave memory untouched in a short run */
        (void)td_ptr(td_params_flat(td_parameters(j->net)));
        j->touched = true;
    }
}
