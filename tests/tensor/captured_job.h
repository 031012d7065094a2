/* For tests: a training job that is done eagerly, step by step, or as a captured step
 * (tensor/graph/captured.h), with batches, learning rates and, if wanted, masks that change from
 * step to step. */
#pragma once

#include "nn/extra/ema.h"
#include "nn/extra/scaler.h"
#include "examples/speedrun/lookahead.h"
#include "dist/comm/mesh.h"
#include "tandem.h"
#include "tensor/graph/captured.h"

enum { CAPTURED_JOB_BATCH = 6, CAPTURED_JOB_TAIL = 4, CAPTURED_JOB_CLASSES = 3 };

typedef enum captured_optim { CAPTURED_SGD, CAPTURED_ADAM, CAPTURED_MUON } captured_optim;

typedef struct captured_kind {
    td_device device;
    captured_optim optim;
    bool pictures; /* a convolution with batch normalisation; otherwise Dropout and StochasticDepth
                    */
    bool maps;     /* with pictures: smaller batches have pictures of one pixel */
    bool loader;   /* pictures come from a loader, of whose batches each fifth is a smaller one */
    bool ema;
    bool lookahead; /* whose slow weights are updated in each third step */
    bool scaler;    /* of the loss, whose factor grows until gradients in f16 overflow, time and
                       again; vectors are sometimes infinite, too */
    bool ddp;       /* a rank's share of a job of all ranks */
    td_shard shard; /* with ddp; each Linear is a unit */
    const char *wire, *offload; /* of td_ddp */
    bool replicas;              /* all ranks have the same windows */
    double clip;                /* gradients, to this norm; 0: not */
    int accumulate;             /* so many steps' gradients are added up; 0: 1 */
} captured_kind;

typedef struct captured_job {
    captured_kind kind;
    td_mesh *mesh;
    td_module *net;
    td_optim *optim;
    td_ema *ema;
    td_scaler *scaler;
    lookahead *lookahead;
    td_tensor *x[2], *y[2]; /* a full batch, and a smaller one */
    td_dataset *data;       /* and these, of kind.loader */
    td_loader *loader;
    td_generator order;
    td_batch batch;
    int64_t steps; /* done */

    /* What the step does beside training. */
    bool reads;      /* its loss, on the host */
    int64_t more_at; /* at this step it takes more memory, of so many floats; -1: never */
    int64_t more;
    int64_t bad_label; /* in the next batch; 0: none */
} captured_job;

void captured_job_open(captured_job *job, captured_kind kind);
void captured_job_close(captured_job *job);

/* An eager step, on a full or a smaller batch. values: loss, right answers. */
void captured_job_step(captured_job *job, bool tail, double values[2]);

/* For td_captured_options.step; two results. Steps of which the optimizer makes one differ. */
td_status captured_job_run(void *job, td_tensor *const *inputs, td_tensor **results);
td_captured *captured_job_capture(captured_job *job);
/* Prepares the next batch and learning rate, and has it run; its results are not read. */
td_status captured_job_captured_step(captured_job *job, td_captured *captured, bool tail);

/* A hash of the bits of all parameters, running statistics and averages; with a loss scaler also of
 * its state and of what has been counted. */
uint64_t captured_job_hash(const captured_job *job);
