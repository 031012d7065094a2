/* The training loop of cifar_resnet18, train_net and gpt (train.c), and around it what a run of
 * hours needs: progress, checkpoints, an end on Ctrl-C, going on afterwards to the same bits, a
 * test at the end.
 *
 * A program makes the model, the optimizer and the loader; what is special about its data and its
 * output is a train_task. The loop is the same for one process and for many: every rank runs it,
 * with its own batches; the mean of the gradients is td_backward's last act if the model went
 * through td_ddp. Rank 0 prints and saves. */
#pragma once

#include "apps/tools/common/hashes.h"
#include "apps/tools/common/log.h"
#include "apps/tools/common/notes.h"
#include "apps/tools/common/progress.h"
#include "apps/tools/common/ranks.h"
#include "apps/tools/common/runner.h"
#include "data/inspect.h"
#include "dist/comm/mesh.h"
#include "dist/leaves/leaves.h"
#include "nn/extra/scaler.h"
#include "nn/module.h"
#include "tandem.h"
#include "tensor/extend.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { TRAIN_PATH_BYTES = 4096 };

typedef struct train_run train_run;
typedef struct train_elastic train_elastic;

/* What is special about a job (apps/cifar_resnet18.c, train_net/classify_task.c, gpt.c). */
typedef struct train_task {
    const char *name; /* of the job, in checkpoints: "train_net" */
    bool tokens;      /* samples are windows of text: tokens are counted instead of images, and
                       * no accuracy is shown */
    /* The loss and what is counted, in training and tests; user is the train_run, and the batch has
     * x, y and size. NULL: a classifier's, with the recipe's label_smoothing and top_k. The first
     * two sums, divided by what was seen, are an epoch's accuracy and accuracy_k. */
    td_measure measure;
    /* Sets train, tests.data and data_name, and prints what the run begins with. */
    td_status (*open)(train_run *r);
    void (*close)(train_run *r);
    void (*begins)(train_run *r);       /* NULL, or prints a heading */
    void (*epoch_begins)(train_run *r); /* NULL, or sets what the epoch is trained with */
    void (*step_begins)(train_run *r, int64_t batch); /* NULL, or sets the learning rate; batch: of
                                                       * the epoch, from 0 */
    void (*step_done)(train_run *r, double loss);     /* prints; loss: of this rank's batch */
    /* After each epoch: prints, and may say under which name to save (path, of TRAIN_PATH_BYTES,
     * which has the name of --save if a checkpoint is due, and otherwise is empty). */
    void (*epoch_done)(train_run *r, double seconds, char *path);
    /* NULL, or runs after each epoch, before it is saved. It may end early and set r->stop; the
     * epoch then is saved as one whose steps are all done, and the resumed run validates. */
    td_status (*validate)(train_run *r);
    /* Optional: called after each batch of this rank's part, with its totals so far. */
    void (*batch_tested)(train_run *r, const td_evaluation *so_far, int64_t batches);
    /* Where a checkpoint goes that is written in mid-epoch. NULL: the file of --save or --resume,
     * or APP.safetensors. */
    void (*latest)(const train_run *r, char *path);
    void (*saved)(train_run *r, const char *path, bool at_epoch); /* says so; on rank 0 */
    /* NULL, or writes what --save-model asks for; otherwise that is the model alone. */
    td_status (*save_model)(train_run *r, const char *path);
    /* NULL, or runs where nothing has refused the run, before --log-dir is opened. */
    td_status (*accepted)(train_run *r);
    bool cuts;   /* the program cuts its model along pp and tp of --mesh */
    int metrics; /* that --log-dir gets: the first ones of train_metric */
    td_status (*tested)(train_run *r, const td_evaluation *result);
    const char *goes_on; /* how a stopped run goes on; NULL: by --resume */
} train_task;

/* Where a run stands: what a checkpoint keeps of the data, so that the run goes on to the same
 * bits.
 */
enum { TRAIN_SUMS = 2 };
typedef struct train_state {
    int64_t epoch;           /* the running one, from 0 */
    int64_t batch;           /* how many of its batches are done */
    double loss_sum;         /* of their losses, each the mean over all ranks */
    int64_t seen;            /* their targets (td_dataset_targets), of all ranks */
    double sums[TRAIN_SUMS]; /* the measure's: of right labels, and of those among the top_k */
    double best;             /* the best accuracy of a validation so far; below 0: none yet */
} train_state;

/* Starts an epoch: clears the sums; the best stays. */
void train_epoch_begin(train_state *state, int64_t epoch);

/* Tests of a model (evaluate.c). */
typedef struct train_tests {
    const td_dataset *data; /* the task's; NULL: none */
    td_loader *loader;      /* kept if its images lie on a GPU */
    td_generator generator;
    int64_t common; /* batches that every rank has */
} train_tests;

/* Of this process's leaves in a step. */
typedef struct train_leaf_results {
    double *loss; /* of each leaf, 0 for those of other processes; NULL: there are no leaves */
} train_leaf_results;

/* How the processes of a run work together. */
typedef struct train_together {
    td_mesh *mesh;        /* NULL: there is one process */
    train_hook hook;      /* --comm-hook */
    td_zero_options zero; /* --shard */
    train_leaf_results leaves;
    td_loader *(*load)(train_run *r); /* train_loop's */
    train_elastic *elastic;           /* NULL: the run has one world */
    int64_t parameters;               /* of the whole model, before train_cut */
    td_status status;                 /* what td_ddp_on_error has told, if anything */
} train_together;

/* --save-async: the checkpoint that a thread is writing. */
typedef struct train_saving {
    td_saving *thread; /* NULL: none */
    char path[TRAIN_PATH_BYTES];
    bool at_epoch; /* an epoch's, not one between */
    bool together; /* several ranks get its outcome */
} train_saving;

/* What the running epoch and step have taken. */
typedef struct train_clock {
    double began, waited; /* when the epoch began; seconds waited for data before it */
    double step_waited;   /* the same before the running step */
    int64_t seen_before;  /* targets of this epoch that were seen before `began` */
    int64_t step_targets; /* in the last step, of all ranks */
} train_clock;

struct train_run {
    const train_task *task;
    const char *app; /* the program's name, for messages */
    train_args args;
    char data_name[128];     /* "cifar10, 50000 images": what a checkpoint was trained on */
    const td_dataset *train; /* the task's */
    train_tests tests;
    td_module *net; /* these two are made by the program */
    td_optim *optim;
    td_loader *loader;
    train_together ranks;
    struct {               /* made by train_loop */
        td_ema *ema;       /* if the recipe has one */
        td_scaler *scaler; /* under --precision fp16 */
    } made;
    runner runner;
    struct {                           /* since the program began */
        int64_t optim_steps;           /* taken */
        int64_t targets[RUNNER_DEPTH]; /* of the latest batches, by their number in the epoch */
        bool tuned;                    /* what --autotune chooses is chosen */
        bool tuned_before;             /* the checkpoint has choices */
    } so_far;
    notes notes; /* of the model, for checkpoints; the task's open adds them, if any */

    train_state state;
    struct {
        metrics *rows;  /* --log-dir; on rank 0 */
        hashes *hashes; /* --hash-every */
    } log;
    progress progress;
    train_saving saving;
    train_clock clock;
    bool stop; /* all ranks have agreed to stop */
};

/* ---- what a program calls ---- */

/* Greets, seeds, opens the data. With several processes after td_dist_init. */
td_status train_begin(train_run *r);

/* This rank's share of an epoch's samples, in random order. */
td_sampler *train_sampler(const train_run *r);

/* A loader of batches in the sampler's order (NULL: a random one); NULL if memory is short. */
td_loader *train_loader(train_run *r, td_sampler *sampler);

/* td_ddp of a model, with the options that the command line has given. */
td_module *train_ddp(const train_run *r, td_module *model);

/* Trains r->net with r->optim, and tests it. load opens r->train for this rank (NULL with
 * td_last_error()); an elastic run calls it in each world. If a signal stops the run, it saves and
 * returns TD_OK with r->stop set. */
td_status train_loop(train_run *r, td_loader *(*load)(train_run *r));

/* ---- a program's main ---- */

typedef td_status (*train_program)(train_run *r);

/* Runs the program in this process: alone, or, if the environment says that it is one of several,
 * between joining the others and leaving them. Returns the exit code. */
int train_main(train_run *r, train_program program);
/* The same in `ranks` processes that are started here; 0: in this one, or, where leaves, slices or
 * micro-batches need one of several, or ranks are simulated, in what is started for one. r: the
 * program's job of `size` bytes begins with it. Returns the exit code: 128 + a signal that stopped
 * them all. */
int train_start(train_run *r, train_program program, size_t size, int64_t ranks);
/* Whether the ranks that are started are simulated ones (tdrun --sim). */
bool train_simulates(void);

/* ---- for tasks ---- */

int64_t train_steps_done(const train_run *r); /* in the whole run */

int64_t train_group_size(const train_run *r); /* batches for one step of the optimizer */

/* Means of the running epoch, over all ranks: of the loss, and of the measure's sums (with tokens:
 * NaN). */
double train_epoch_loss(const train_run *r);
double train_epoch_accuracy(const train_run *r);
double train_epoch_accuracy_k(const train_run *r);

/* What a run logs. A step has neither TRAIN_TEST_LOSS nor the two accuracies of a test, and a test
 * has these and TRAIN_EPOCH alone. */
typedef enum train_metric {
    TRAIN_LOSS,
    TRAIN_EPOCH_LOSS,
    TRAIN_EPOCH_ACCURACY,
    TRAIN_LR,
    TRAIN_IMAGES_PER_SECOND, /* or tokens */
    TRAIN_TEST_LOSS,
    TRAIN_TEST_ACCURACY,
    TRAIN_EPOCH,
    TRAIN_FEW_METRICS,
    TRAIN_EPOCH_ACCURACY_K = TRAIN_FEW_METRICS,
    TRAIN_TEST_ACCURACY_K,
    TRAIN_DATA_WAIT,
    TRAIN_METRICS
} train_metric;

/* --log-dir (train_log.c), on rank 0. loss: of this rank's batch; wait: seconds for data. */
td_status train_log_open(train_run *r);
td_status train_log_step(const train_run *r, double loss, double wait);
td_status train_log_test(const train_run *r, const td_evaluation *e);

/* td_evaluate of r->net on r->tests.data (evaluate.c) with the task's measure and, if there are
 * averaged weights, with those. It draws nothing from the default generator, so training goes on as
 * if it had not been. If the task validates, a signal sets r->stop on all ranks and ends the test,
 * as a resumed run validates again. Always with the same batch size. Numbers that are not finite
 * are no failure yet. */
td_status train_evaluate(train_run *r, int64_t batch_size, td_evaluation *result);
/* TD_E_ARG unless the numbers are those of at least one target, and finite. */
td_status train_check_evaluation(const train_run *r, const td_evaluation *e);
/* The test after an epoch, for a task's validate: evaluated and logged. Training may recover from
 * numbers that are not finite: unless this epoch is the last one, a warning is printed and training
 * goes on. result->seen is 0 then, and where the run is to stop: there is nothing to go by. */
td_status train_validate(train_run *r, int64_t batch_size, td_evaluation *result);
/* The task's measure or, if it has none, a classifier's. user: the train_run. */
td_tensor *train_measure(td_module *net, const td_batch *batch, td_tensor **sums, void *user);

/* Whether this step or epoch (from 1) is one of every `every`; 0: none is. */
bool train_is_due(int64_t number, int64_t every);

/* ---- the loop's parts ---- */

/* Checkpoints (train_save.c). All ranks call these; all hold the same weights, so one of them
 * writes. TD_E_ARG: weights are not finite; the file that stood there is left alone. */
td_status train_save_latest(train_run *r);
/* At the end of an epoch: under `path`, if it is not empty, and as the latest one if that is due.
 */
td_status train_save_epoch(train_run *r, const char *path);
/* What a checkpoint of the run has: model, optimizer, the place in the data, and the rest. */
td_checkpoint_options train_contents(const train_run *r, const char *path);
/* --save-async: waits for the checkpoint that is being written, and says that it is saved. Ranks
 * that share the model call this at the same place. */
td_status train_save_finish(train_run *r);
/* After a stop; says how to go on. */
td_status train_save_interrupted(train_run *r);

/* Whether a file is whole. TD_E_FORMAT: it is damaged, or no checkpoint at all; the message names
 * it, and a sentence may follow. */
td_status train_look_at(const char *path);
/* Before train_args_apply: --auto-resume takes the latest checkpoint if there is one. A damaged one
 * is an error: none is kept before it. */
td_status train_find_latest(train_run *r);
/* Takes up the run of --resume, or begins a new one. */
td_status train_resume(train_run *r);

/* --mesh (train_shard.c): arranges the processes; before train_begin. */
td_status train_mesh(train_run *r);

/* --shard, --offload and --wire (train_shard.c): into r->ranks. */
td_status train_set_shard(train_run *r);
/* --shard (train_shard.c): whether it is at work; one line on rank 0, if there is something to say.
 */
bool train_shards(const train_run *r);
/* Whether the model is made after td_defer_init: before td_ddp cuts its values into windows. */
bool train_defers(const train_run *r);
/* Whether this rank takes part in saving the model alone: rank 0, or all if they share the values.
 */
bool train_saves_model(const train_run *r);
void train_shard_tell(const train_run *r);

/* pp and tp of --mesh (train_cut.c): --slices, --micro and --schedule, what does not go with them,
 * and the cutting: the model, or NULL with td_last_error(), and then it is freed. */
void train_cut_options(train_args *args);
td_status train_check_cut(const train_run *r);
td_module *train_cut(train_run *r, td_module *model, const td_tp_rule *rules, int count);
bool train_has_stages(const train_run *r);
bool train_is_cut(const train_run *r); /* into stages or slices */
int train_copies(const train_run *r);  /* processes that hold one model together */
/* A step as a runner takes it: of a pipeline. */
td_status train_learn_stages(void *user, td_tensor *const *inputs, td_tensor **results);

/* --leaves (train_leaves.c). The processes that read different data, as ranks of a deal. */
td_deal train_readers(const train_run *r);
int64_t train_world(const train_run *r); /* what shares a step: its leaves, otherwise the readers */
td_status train_check_leaves(const train_run *r);
/* This process's share of the samples; with r->net made. A batch has the option's batch size, or
 * that for each of .parts leaves. */
td_deal train_deal(const train_run *r);
/* Once r->net is there. */
td_status train_begin_leaves(train_run *r);
/* A step as a runner takes it: forward and backward of this process's leaves, and the optimizer. */
td_status train_learn_leaves(void *user, td_tensor *const *inputs, td_tensor **results);
/* The mean loss of all leaves of a step; all ranks call it. Without leaves *loss stays. */
td_status train_sum_leaves(train_run *r, double *loss);

/* tdrun --elastic (train_elastic.c): what does not go with it. */
td_status train_check_elastic(const train_run *r);
/* Runs a function in one world after the other until it has returned TD_OK in one that stands, or
 * has failed by itself. first: it is this process's first world. The last world stays. */
td_status train_worlds(train_run *r, td_status (*train_here)(train_run *r, bool first));
/* Whether the world goes on. If not, the function above returns. */
bool train_stands(const train_run *r);
/* The end of a step, whose results r->state has: where all ranks have all gradients, the optimizer
 * makes its step. Otherwise the step is undone. */
td_status train_commit(train_run *r);
/* Leaves the last world. */
td_status train_elastic_close(train_run *r);
/* Adds where the run is, and its options, to a checkpoint's notes; takes the place from a file of
 * the same data. (train_save.c) */
void train_note_run(const train_run *r, notes *n);
td_status train_take_state(train_run *r, const char *path);

/* What a step gives the loop. */
enum {
    RESULT_LOSS,
    RESULT_SUMS,                               /* the first */
    RESULT_OUTCOME = RESULT_SUMS + TRAIN_SUMS, /* of the loss scaler */
    RESULTS
};
void train_optimize(train_run *r);
td_tensor *train_number(double value); /* a tensor of the step */

/* The batches that make one step of the optimizer together, and where one of them stands. */
typedef struct train_group {
    double share; /* of the group's samples in this batch */
    bool first, last;
} train_group;
train_group train_group_of(const train_run *r, int64_t batch);
/* Batches of the epoch that have been trained on: the results of some may be unread. */
int64_t train_batches_asked(const train_run *r);
/* TD_E_ARG with advice: the loss is not finite. */
td_status train_check_loss(const train_run *r, double loss);

/* --comm-hook (train_hook.c): one line on rank 0, if there is something to say. With loader and net
 * made. */
void train_hook_tell(const train_run *r);
/* Says on rank 0 if the checkpoint to resume from has nothing that this hook remembers. */
void train_hook_resume(const train_run *r);

/* --report (train_report.c): names the folder and the trace, before td_trace_open. */
td_status train_report_begin(train_run *r);
/* Writes settings.json into --log-dir, on rank 0; TD_E_IO. */
td_status train_write_settings(const train_run *r);
td_status train_show_summary(const train_run *r); /* --summary */
/* Closes the trace; on rank 0 ends the server and writes the page. */
td_status train_report_end(train_run *r);

/* --hash-every (train_hash.c): before the next batch, after its backward, and after the optimizer's
 * step. train_hash does nothing in steps that are not hashed. */
typedef enum train_moment { TRAIN_BEFORE, TRAIN_GRADIENTS, TRAIN_AFTER } train_moment;
td_status train_hash_open(train_run *r);
td_status train_hash(train_run *r, train_moment moment);
/* The run's last line: runs that end alike have one fingerprint, on any number of ranks. All ranks
 * call it. */
td_status train_print_fingerprint(const train_run *r);

/* --autotune (train_autotune.c). After each batch: behind the first one all ranks choose
 * algorithms, and rank 0 says how many. A resumed run takes its checkpoint's choices instead, if
 * there are some, and so equals a run that was not stopped. */
td_status train_autotune_after_step(train_run *r);
td_status train_autotune_resume(train_run *r);
