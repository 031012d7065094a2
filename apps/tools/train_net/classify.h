/* Training and testing a classifier of images in folders, as settings say it: what train_net and
 * test_net share. classify.c: settings and model; classify_data.c: folders; classify_task.c: what a
 * run prints, validates and logs; classify_files.c: its checkpoints.
 *
 * All ranks take their samples from one permutation for each epoch, and crops are drawn by (seed,
 * epoch, image): so runs with more ranks and smaller batches see the same batches. */
#pragma once

#include "apps/tools/train_net/settings.h"

typedef struct classify_run {
    train_run base; /* first: a train_run * of a classifier is a classify_run * */
    settings s;
    const char *cfg;      /* the file of settings; NULL: none */
    bool keys;            /* print all keys, and no more */
    bool tests_only;      /* train_net's data are not opened */
    td_class_names known; /* those of the file that the model comes from; none: count 0 */
    td_dataset *train_data, *test_data;
    char resume[TRAIN_PATH_BYTES];
    int64_t first_batch; /* of the running epoch, in this process */
    double step_at;      /* when the latest step ended */
} classify_run;

/* A program's main: reads the options and settings, then runs the program. c has the program's name
 * and tests_only; description is for --help. Exits on --help and wrong options; returns the exit
 * code. */
int classify_main(classify_run *c, train_program program, const char *description, int argc,
                  char **argv);

/* The seed, the folder, the checkpoint to go on from; then train_begin. */
td_status classify_begin(classify_run *c);

td_module *classify_net(const classify_run *c);
td_optim *classify_optim(const classify_run *c);

/* Which file the weights come from, and the key that says so; NULL: they are drawn. path has
 * TRAIN_PATH_BYTES. */
const char *classify_weights(const classify_run *c, char *path);
/* Loads MODEL.WEIGHTS or MODEL.PRETRAINED's file (or, for tests, OUT_DIR/best) into base.net, and
 * the optimizer's state if LOAD_OPT asks for it and the file has it. */
td_status classify_load_weights(classify_run *c);

extern const train_task classify_task;

/* ---- classify_data.c ----
 *
 * Labels are names: a model's file keeps the names of its classes, and whoever opens a folder for
 * that model numbers the sub-folders by these names. A folder may lack some; a sub-folder of
 * another name is an error that shows both lists. A model without names takes a folder that has as
 * many sub-folders as the model has classes. */

td_status classify_open(train_run *r);
void classify_close(train_run *r);
/* At the end, on all ranks: which images DATA.SKIP_BAD has replaced. */
td_status classify_report_bad(const classify_run *c);
/* For a folder of images with skip_bad: how many could not be read and were replaced by others, in
 * all ranks together, on rank 0's stdout; and each of them once, with its path and the reason, on
 * the stderr of the first rank that met it. Prints nothing where all were good. All ranks call it.
 */
td_status images_report_bad(const td_dataset *folder);

/* ---- noise.c: in place of images (MODEL.DUMMY_INPUT), for what a machine does when no disk and no
 * decoder holds it up ---- */

/* `length` samples [3,size,size] of about normal numbers, the same on every machine, with the
 * labels 0, 1, ... classes - 1, 0, ... The caller ends it by td_dataset_free. */
td_status noise_open(int64_t length, int64_t size, int classes, td_dataset **dataset);

/* ---- classify_files.c ---- */

/* OUT_DIR/checkpoints/ckpt_ep_NNN after an epoch, ckpt_ep_NNN_step_SSSSSS within the one after it.
 */
void classify_epoch_path(const classify_run *c, int64_t epochs_done, char *path);
void classify_step_path(const classify_run *c, int64_t epochs_done, int64_t steps, char *path);
/* The furthest that is whole; *epochs_done -1: there is none. Damaged ones, which it names on
 * stderr, are passed over. TD_E_FORMAT: all are damaged. */
td_status classify_highest(const classify_run *c, int64_t *epochs_done, int64_t *steps);
/* Removes what Ctrl-C has left in epochs before this one, and checkpoints beyond KEEP_CHECKPOINTS.
 */
void classify_remove_old(const classify_run *c, int64_t epochs_done);
/* OUT_DIR/best: the model (its averaged weights, if there are any), without the optimizer. */
td_status classify_save_best(classify_run *c, double accuracy);
