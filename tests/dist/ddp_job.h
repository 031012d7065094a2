/* For tests of data parallelism: small training jobs whose data can be cut into ranks' shares. */
#pragma once

#include "tandem.h"

/* The last two have blocks, which are units where a model is sharded. */
typedef enum job_kind { JOB_MLP, JOB_CONV, JOB_BATCH_NORM, JOB_BLOCKS, JOB_CONV_BLOCKS } job_kind;

typedef struct ddp_job {
    td_module *net;
    td_optim *optim;
    td_tensor *x, *y; /* this job's share */
} ddp_job;

/* Of models and data that are made next; the CPU unless it is called. */
void job_use_device(td_device device);
/* The model with the initial weights of a seed. */
td_module *job_net(job_kind kind, uint64_t seed, td_dtype dtype);
/* For pictures of 8x8, on the CPU in f32: one convolution, batch normalisation if wanted, a pool,
 * a linear layer. Weights by the default generator. */
td_module *job_small_net(bool batch_norm, int64_t classes);
/* Samples [from, to) of fixed random data. */
void job_data(ddp_job *job, job_kind kind, td_dtype dtype, int64_t from, int64_t to);
/* Net, SGD with momentum, and data. options NULL: a plain model, otherwise a wrapped one. */
void job_open(ddp_job *job, job_kind kind, td_dtype dtype, const td_ddp_options *options,
              int64_t from, int64_t to);
void job_close(ddp_job *job);

/* Forward and backward without zeroing gradients or stepping; the loss is scaled. In a step of its
 * own. */
double job_backward(ddp_job *job, double scale);
/* A whole step. */
double job_step(ddp_job *job);

/* |a - b| / |b| over all parameters (and buffers, if with_buffers), or over all gradients. */
double job_distance(const td_module *a, const td_module *b, bool with_buffers);
double job_grad_distance(td_module *a, td_module *b);
/* Of the bits of all parameters. */
uint64_t job_hash(const td_module *net);
/* Whether all ranks of the world have this number. */
bool job_all_same(uint64_t hash);
