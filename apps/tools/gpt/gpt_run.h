/* A run of gpt: its options, its model and data, and the task of training (task.c). */
#pragma once

#include "apps/tools/common/train.h"
#include "apps/tools/gpt/write.h"

/* The learning rate's way, and AdamW's options. */
typedef struct gpt_learning {
    int64_t epoch_steps, warmup;
    double min_lr, beta2, weight_decay;
} gpt_learning;

/* Adapters (nn/extra/lora.h). */
typedef struct gpt_lora {
    int64_t rank; /* 0: none, or those of `adapter` */
    double alpha;
    const char *layers, *adapter;
    const char *merge; /* where the model with its adapters merged goes */
    int64_t trained;   /* parameters of the adapters */
} gpt_lora;

typedef struct gpt_run {
    train_run base; /* first: a train_run * of this program is a gpt_run * */
    const char *preset, *init, *validation, *save_best;
    int64_t vocabulary, print_every, sample_every, spawn;
    double val_fraction;
    gpt_learning learning;
    const char *sample; /* the prompt of samples */
    const char *generate, *model;
    cli_rest prompts; /* more of them */
    gpt_writing writing;
    gpt_lora lora;
    td_module *gpt; /* base.net, or what base.net wraps */
    td_dataset *train, *val;
} gpt_run;

/* What is special about training a GPT. Its open() makes base.net, as the windows of text have the
 * length of the model's context. */
extern const train_task gpt_task;

/* The GPT of g->init or, if that is NULL, of g->preset, on the run's device. A resumed run that
 * began with g->init takes its checkpoint instead. NULL with td_last_error(). */
td_module *gpt_make(gpt_run *g, int64_t vocabulary);

/* cut.c: cuts base.net along pp and tp of the mesh. */
td_status gpt_cut(gpt_run *g);

/* adapt.c: gives a model the adapters of the options, if any; tells their number; writes the
 * trained model, or its adapters alone; writes g->gpt, which has adapters, as an ordinary model. */
td_status gpt_adapt(gpt_run *g, td_module *gpt);
void gpt_adapt_tell(const gpt_run *g);
td_status gpt_save_model(train_run *r, const char *path);
td_status gpt_merge(gpt_run *g);
