/* For tests of tensor slices: small models and the plans that cut them. */
#pragma once

#include "dist/comm/mesh.h"
#include "nn/extra/ema.h"
#include "tandem.h"

typedef enum slices_kind { SLICES_MLP, SLICES_ATTENTION, SLICES_GPT, SLICES_LLAMA } slices_kind;

typedef struct slices_case {
    slices_kind kind;
    td_dtype dtype;
    int tp, slices; /* slices 0: one process's model, which is not cut */
    int steps;
    int dp; /* 0: 1; all of them read the same data */
    td_shard shard;
    bool clip, deferred;
    double dropout;
    bool ema, sequence;
    bool logits;             /* a GPT's loss is computed from its logits */
    const char *load, *save; /* checkpoints before and after the steps; NULL: none */
} slices_case;

typedef struct slices_job {
    const slices_case *c;
    td_module *net;
    td_mesh *mesh; /* NULL: one process's model */
    td_optim *optim;
    td_ema *ema;
    td_tensor *x, *y;
} slices_job;

/* The model with the weights of a seed, not cut. */
td_module *slices_net(slices_kind kind, td_dtype dtype, double dropout);
/* The plan of a kind; *count rules. */
const td_tp_rule *slices_plan(slices_kind kind, bool sequence, int *count);
/* Model, Adam and data of a rank; loads. */
void slices_open(slices_job *job, const slices_case *c);
void slices_close(slices_job *job);
double slices_step(slices_job *job); /* the loss */
/* All whole parameters, one after the other, as f64; returns how many numbers there are.
 * Collective. NULL: only counts. */
int64_t slices_weights(td_module *net, double *numbers);
