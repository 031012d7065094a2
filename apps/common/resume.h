/* Where a training run stands, and how it is saved so that it can go on to the same bits.
 *
 * Besides weights, running statistics and optimizer state (nn/checkpoint.h) a checkpoint needs the
 * place in the data: the epoch, the batches that are done, the sums behind the printed means, and
 * the random generator as it was when the epoch began, since that drew the epoch's order. */
#ifndef APPS_COMMON_RESUME_H
#define APPS_COMMON_RESUME_H

#include "apps/common/cli.h"
#include "tandem.h"

typedef struct train_state {
    int64_t epoch;          /* the running one, from 0 */
    int64_t batch;          /* how many of its batches are done */
    double loss_sum;        /* of their losses */
    int64_t correct, seen;  /* of their samples */
    td_generator generator; /* the default generator, when the epoch began */
} train_state;

/* Starts an epoch: remembers the default generator, clears the sums. */
void train_epoch_begin(train_state *state, int64_t epoch);

/* Writes a checkpoint of the whole run: model, optimizer, place, and those options that a resumed
 * run needs. `data` describes the training data ("cifar10, 50000 samples"). TD_E_ARG: weights are
 * not finite; the file that stood there is left alone. */
td_status train_save(const char *path, td_module *model, td_optim *optim, const train_state *state,
                     const char *data, const cli_option *options, int option_count);

/* Reads it back, sets the default generator, and checks that the data are the same. */
td_status train_load(const char *path, td_module *model, td_optim *optim, train_state *state,
                     const char *data);

/* Sets options from a checkpoint (CLI_RESTORE, CLI_FIXED) that the command line does not give.
 * TD_E_MISMATCH: it gives another value for a CLI_FIXED one. */
td_status resume_options(const char *path, cli_option *options, int count);

#endif
