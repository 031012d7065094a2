/* For tests: a training job small enough to be run many times: ResNet-18 or an MLP on fixed random
 * input, SGD with momentum. */
#pragma once

#include "tandem.h"

typedef struct train_job {
    td_module *net;
    td_optim *optim;
    td_tensor *x, *y;
} train_job;

/* Seeds with 0 and builds all. batch pictures of 3 x side x side. */
void train_job_open(train_job *job, int64_t batch, int64_t side);
/* The same with parameters and pictures in another float dtype, of the values that f32 has. */
void train_job_open_as(train_job *job, int64_t batch, int64_t side, td_dtype dtype);
/* One step; returns the loss. */
double train_job_step(train_job *job);
/* A hash of the bits of all parameters, gradients and running statistics. */
uint64_t train_job_hash(train_job *job);
void train_job_close(train_job *job);
