/* Elastic runs: a process that dies, or joins, costs the running step, and no restart.
 * docs/elastic.md explains them.
 *
 * The processes of a run train a model with leaves (dist/leaves/leaves.h), whose bits do not depend
 * on the number of ranks. If one dies, the others keep their state, make a new world among
 * themselves, and go on. A process that is started in its place gets the state from another one.
 * The run ends with the bits of a run in which nothing has died.
 *
 *     td_optim *optim = td_adam(td_parameters(net), .lr = 1e-3);
 *     td_checkpoint_options state = { .model = net, .optim = optim };
 *     td_elastic *run = td_elastic_open(&state, .leaves = 8);
 *     while (td_elastic_meet(run)) {
 *         td_loader *loader = ...;                    of td_leaf_deal, which is new in each world
 *         td_loader_seek(loader, ...);                to the batch of td_elastic_step(run); the
 *                                                     loader has a .generator of its own
 *         while (td_elastic_stands(run) && td_elastic_step(run) < steps) {
 *             ...                                     forward and backward of the leaves
 *             if (td_elastic_commit(run)) {
 *                 td_optim_step(optim);
 *                 td_elastic_settle(run);             with .strategy
 *             }
 *         }
 *         if (td_elastic_stands(run) && ...) {        what is done with the result
 *             td_elastic_finish(run);
 *         }
 *         td_loader_close(loader);
 *     }
 *     if (td_elastic_close(run) != TD_OK) {
 *         td_die();
 *     }                                                                                         */
#pragma once

#include "dist/dist.h"
#include "nn/io/checkpoint.h"

TD_BEGIN_C

typedef struct td_elastic td_elastic;

typedef struct td_elastic_options {
    /* What a process that joins gets from another one: all that a checkpoint of the run has (the
     * path, .loader and .background are not used). Read whenever it is needed; the caller keeps it.
     * The model has not gone through td_ddp. */
    const td_checkpoint_options *state;
    int leaves; /* of a step, at least as many as there are ranks */
    /* How the ranks divide the model: td_zero(...), which the caller keeps; NULL: every rank has
     * all. Each rank keeps a copy of another rank's windows, and one of its own
     * (dist/elastic/copies.c). Then .state has no averages and no loss scaler, and its optimizer is
     * SGD, Adam, or another one that keeps single numbers. While the run is over, or between two
     * worlds, the model has no values that td_zero(3) has divided. */
    const td_strategy *strategy;
    int64_t step;        /* steps that the state has made: of the checkpoint that it comes from */
    const char *host;    /* the store's (dist/comm/store.h), which must outlive all ranks; NULL: */
    int port;            /* the launcher's (tdrun --elastic MIN:MAX) */
    int first, least;    /* processes that the first world waits for; those that a later one needs.
                            0: the launcher's numbers, otherwise 1 */
    const char *backend; /* td_dist_options.backend */
    double timeout;      /* seconds, of a collective, and for processes that live and do not answer;
                            0: 60 */
    double connect_timeout; /* seconds in which ranks connect; 0: 3 */
    /* NULL, or called when the state has come from another process, in a file that td_checkpoint
     * functions read: for metadata of the program's own. */
    td_status (*adopted)(const char *path, void *user);
    void *user;
    int end_; /* for the library */
} td_elastic_options;

/* NULL with td_last_error(): no store (not started by tdrun --elastic), or no memory. */
td_elastic *td_elastic_open_at(td_elastic_options options, td_site at);

/* Makes a world of all processes that live: td_dist_init, and td_ddp with the leaves. In it all
 * have the state of those that are furthest. false: the run is over, or cannot go on; then
 * td_elastic_close has the reason:
 *   - TD_E_PEER: all processes that had the state have died, or with .strategy those that had a
 *     window and its copy. Only a checkpoint has it now: start the run again (tdrun --max-restarts
 *     does that)
 *   - TD_E_TIMEOUT: fewer than `least` processes live, and no other has come
 *   - TD_E_NETWORK: the store has gone
 *   - what td_checkpoint_load says: this process has another model than the others. */
bool td_elastic_meet(td_elastic *run);

/* Whether the world of td_elastic_meet goes on. Afterwards td_elastic_meet makes another one. */
bool td_elastic_stands(const td_elastic *run);

/* Steps of the run so far. */
int64_t td_elastic_step(const td_elastic *run);

/* At the end of a step, after td_leaf_next has returned -1. true: all ranks have all gradients, and
 * the step counts: call td_optim_step (and whatever else changes the state) at once. false: a rank
 * has died; everything is as it was before the step. */
bool td_elastic_commit(td_elastic *run);

/* With .strategy: after td_optim_step, which is all that may follow td_elastic_commit. true: each
 * rank has a copy of another rank's windows, and only now the step counts. false: a rank has died;
 * the run is as it was before the step. Without .strategy it does nothing, and returns true. */
bool td_elastic_settle(td_elastic *run);

/* After a failure, of td_elastic_commit or of a collective of the program's own, as td_evaluate
 * has: whether the world has failed, and not this process alone. Then the world does not go on, and
 * what td_elastic_commit keeps is as it was after the latest step. */
bool td_elastic_failed(td_elastic *run);

/* After the last step, and what is done with its result. true: all ranks have come here, and the
 * run is over. false: a rank has died before; td_elastic_meet follows. */
bool td_elastic_finish(td_elastic *run);

/* Leaves the world, and frees the run. The model is no td_ddp any more. Returns why
 * td_elastic_meet returned false; TD_OK: the run is over. NULL: TD_E_ARG. */
td_status td_elastic_close(td_elastic *run);

TD_END_C

#define td_elastic_open(...)                                                                       \
    td_elastic_open_at((td_elastic_options){ TD_NAME(state) __VA_ARGS__, .end_ = 0 }, TD_HERE)
