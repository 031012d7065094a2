/* Where a training run stands, and how it is saved so that it can go on to the same bits.
 *
 * Besides weights, running statistics and optimizer state (nn/io/checkpoint.h) a checkpoint needs
 * the place in the data: the epoch, the batches that are done, the sums behind the printed means,
 * and the random generator as it was when the epoch began, since that drew the epoch's order. */
#ifndef APPS_COMMON_RESUME_H
#define APPS_COMMON_RESUME_H

#include "apps/common/train_args.h"
#include "tandem.h"
#include "nn/module.h"

typedef struct train_state {
    int64_t epoch;          /* the running one, from 0 */
    int64_t batch;          /* how many of its batches are done */
    double loss_sum;        /* of their losses, each the mean over all ranks */
    int64_t correct, seen;  /* of their samples, of all ranks */
    int64_t correct_k;      /* whose class is among the top_k, where that is counted */
    double best;            /* the best accuracy of a validation so far; below 0: none yet */
    td_generator generator; /* the default generator, when the epoch began */
} train_state;

/* Starts an epoch: remembers the default generator, clears the sums; the best stays. */
void train_epoch_begin(train_state *state, int64_t epoch);

/* Moves to another place of the epoch, before which `share` of the samples so far were seen: its
 * means stay. state->batch is not 0. */
void train_state_back(train_state *state, int64_t batch, double share);

/* What a checkpoint says about the run, besides its state. */
typedef struct train_notes {
    const char *task;          /* "wine": only runs of the same task take it up */
    const char *data;          /* the training data: "cifar10, 50000 samples" */
    const cli_option *options; /* those that a resumed run needs are written */
    int option_count;
    train_words words;
    td_ema *ema;                  /* kept beside the model, or NULL */
    td_scaler *scaler;            /* the loss scaler, or NULL */
    const td_named_tensor *extra; /* what a communication hook remembers (train_hook.h) */
    int extra_count;
    const char *choices;     /* td_autotune_text's, or NULL */
    const td_metadata *more; /* for readers of the file: notes.h */
    int more_count;
} train_notes;

/* Writes a checkpoint of the whole run: model, optimizer, place, options. TD_E_ARG: weights are not
 * finite; the file that stood there is left alone. */
td_status train_save(const char *path, td_module *model, td_optim *optim, const train_state *state,
                     const train_notes *notes);

/* Reads it back (optim NULL: without the optimizer's state, which a new one is then to gather),
 * sets the default generator, and checks that the data are the same. If the run had another number
 * of processes, batches were of another size; the place is then the same part of the epoch, rounded
 * down. */
td_status train_load(const char *path, td_module *model, td_optim *optim, train_state *state,
                     const train_notes *notes);

/* Sets options from a checkpoint (CLI_RESTORE, CLI_FIXED) that the command line does not give.
 * TD_E_MISMATCH: it gives another value for a CLI_FIXED one, or the file is of another task. */
td_status resume_options(const char *path, const char *task, cli_option *options, int count);

#endif
