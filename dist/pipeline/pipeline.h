/* Pipelines: a model is cut into stages, and each rank has one of them, or several. The batch is
 * cut, too, into micro-batches, so that the stages compute at the same time. tandem.h does not
 * include this header. docs/tutorial/15-pipeline.md explains the idea, docs/distributed.md the
 * rest.
 *
 *     td_module *net = td_model("gpt-mini", .classes = 256);
 *     net = td_pipeline(net, .micro = 8);
 *     td_optim *optim = td_adamw(td_parameters(net), .lr = 1e-3);     this rank's parameters alone
 *     for (td_batch batch; td_loader_next(loader, &batch);) {         all ranks read the same batch
 *         TD_STEP {
 *             td_zero_grad(optim);
 *             td_pipeline_result r = td_pipeline_step(net, batch.x, batch.y);
 *             if (r.status != TD_OK) { td_die(); }
 *             td_optim_step(optim);
 *         }
 *     } */
#pragma once

#include "dist/dist.h"

TD_BEGIN_C

typedef struct td_pipeline_options {
    int begin_; /* for the library */
    td_module *model;
    td_group *group;      /* NULL: the world */
    struct td_mesh *mesh; /* instead of group: the ranks along pp. Free the mesh after the model */
    int micro;            /* micro-batches a step; 0: two for each rank. With td_leaves: the
                             rank's leaves, whatever .micro is */
    /* When which micro-batch runs: "gpipe", "1f1b" (NULL), "interleaved:N" with N stages a rank
     * (micro must be a multiple of the ranks), or "zb" (ZB-H1: backward in two halves). All give
     * the same bits. */
    const char *schedule;
    const char *cut; /* "3,7": the links of the chain at which stages begin, after the first; NULL:
                        stages of about equal work */
} td_pipeline_options;

/* Makes a model a pipeline and returns the same module. All ranks call td_pipeline at the same
 * place, with a whole model, drawn from the same seed; after td_module_to and td_tensor_parallel,
 * before td_ddp and td_parameters. The model must say what its chain of links is
 * (td_module_type.chain): Sequential, the GPTs and the ResNets do.
 *
 * A rank keeps the parameters of its own stages. Those of other stages lose their memory; a model
 * made under td_defer_init(true) never has memory for them. (Buffers stay everywhere.) A weight
 * that two stages share, as a GPT's embedding, is on both, and td_pipeline_step adds its gradients.
 *
 * The mean over data-parallel ranks: td_ddp(net, .mesh = mesh) afterwards, also with td_zero. With
 * td_leaves (also along a dp of one rank) the result has the bits of td_leaves on one process, on
 * any mesh: a leaf is a micro-batch, and td_pipeline_step takes the place of td_leaf_next. Stages
 * that share a weight need 1f1b or gpipe for that, td_zero(2) and td_zero(3) do anyway. Over
 * replicas (rep above 1) td_zero(2) and td_zero(3) exchange gradients in each backward;
 * td_pipeline_step refuses them then with interleaved and zb, and where stages share a weight.
 *
 * NULL with td_last_error() on every rank, and the model is freed: no chain, fewer links than
 * stages, options out of range. */
td_module *td_pipeline_at(td_pipeline_options options, td_site at);

typedef struct td_pipeline_step_options {
    int begin_; /* for the library */
    td_module *model;
    td_tensor *x, *y;   /* the whole batch, on every rank: micro-batches are equal parts of it along
                           dimension 0. The first stage reads x, the last one y; y may be NULL */
    td_measure measure; /* the loss, as td_evaluate takes it: runs td_forward(net, batch->x) or
                           td_forward2, on the last stage's rank alone. NULL: td_forward2(net, x, y)
                           if the model has two inputs, otherwise cross-entropy */
    void *user;         /* for measure */
    double scale;       /* the loss is multiplied by it (loss scaling, accumulation); 0: 1 */
} td_pipeline_step_options;

typedef struct td_pipeline_result {
    td_status status;     /* the same on all ranks of the pipeline, unless a rank has died */
    double loss;          /* the mean over micro-batches, on every rank; without `scale` */
    double sums[TD_SUMS]; /* what measure has counted, on every rank */
} td_pipeline_result;

/* Forward and backward of a batch, in a step: adds to the gradients what td_backward of all
 * micro-batches one after the other would add, bit for bit (each loss multiplied by scale / micro;
 * a weight that two stages share is summed in another order). With td_leaves the gradients are the
 * mean of all leaves, and need no td_zero_grad; for measure a batch's index is the leaf's number.
 * Inside of td_ddp the ranks along dp have exchanged gradients when td_pipeline_step returns.
 * TD_E_ARG: the batch cannot be cut into micro-batches.
 *
 * Without gradients (td_no_grad_begin, td_evaluate with .group) td_forward(net, x) runs the whole
 * pipeline for one batch, and every rank gets the result. */
td_pipeline_result td_pipeline_step_at(td_pipeline_step_options options, td_site at);

/* Writes what a schedule looks like if forward and each half of backward take one unit of time:
 * a line a rank; digits are forwards, letters backwards, capitals the second half; and the bubble,
 * the part of the time in which ranks wait. TD_E_ARG: no such schedule. */
td_status td_schedule_text(const char *schedule, int ranks, int micro, FILE *out);

/* Draws the last step with its measured times, as SVG. All ranks of the pipeline call it; the first
 * one writes the file. bubble may be NULL. */
td_status td_pipeline_picture(td_module *net, const char *path, double *bubble);

TD_END_C

#define td_pipeline(...)                                                                           \
    td_pipeline_at((td_pipeline_options){ TD_OPT1(model, __VA_ARGS__) }, TD_HERE)
#define td_pipeline_step(...)                                                                      \
    td_pipeline_step_at((td_pipeline_step_options){ TD_OPT3(model, x, y, __VA_ARGS__) }, TD_HERE)
