/* For tests of pipelines: models that are chains, their batches, and what differs after a run. */
#pragma once

#include "nn/nn.h"
#include "dist/dist.h"

enum { PIPE_BLOCKS = 8 }; /* links of the MLP */

typedef enum pipe_kind { MLP, GPT, GPT_TIED, RESNET } pipe_kind;

/* A model with the same values at each call. Ranks along dp drop different elements, so there the
 * model has no dropout. */
td_module *pipe_model_with(pipe_kind kind, double dropout);
td_module *pipe_model(pipe_kind kind); /* with dropout, if it has one */

/* Step `step`'s batch, and the k-th of its micro-batches, in a step. */
void pipe_batch(pipe_kind kind, int rows, int step, td_tensor **x, td_tensor **y);
td_tensor *pipe_part(td_tensor *t, int k, int micro);

/* The MLP's td_measure. */
td_tensor *pipe_measure(td_module *net, const td_batch *batch, td_tensor *sums[TD_SUMS],
                        void *user);

/* The number of this rank's parameters that differ by more than `limit`; 0: by a bit. */
int pipe_differences(td_module *net, const td_module *alone, double limit);

/* A pipeline inside of data parallelism. */
typedef struct pipe_inside {
    const char *mesh, *schedule;
    int stage; /* of td_zero */
    pipe_kind kind;
} pipe_inside;
