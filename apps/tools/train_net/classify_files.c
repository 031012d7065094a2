/* Names, finds and removes the checkpoints of train_net. */
#include "apps/tools/train_net/classify.h"
#include "tensor/system/temporary.h"

#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

void classify_epoch_path(const classify_run *c, int64_t epochs_done, char *path)
{
    snprintf(path, TRAIN_PATH_BYTES, "%s/checkpoints/ckpt_ep_%03" PRId64, c->s.out_dir,
             epochs_done);
}

void classify_step_path(const classify_run *c, int64_t epochs_done, int64_t steps, char *path)
{
    if (steps == 0) {
        classify_epoch_path(c, epochs_done, path);
    } else {
        snprintf(path, TRAIN_PATH_BYTES, "%s/checkpoints/ckpt_ep_%03" PRId64 "_step_%06" PRId64,
                 c->s.out_dir, epochs_done, steps);
    }
}

/* Whether it is a checkpoint's name, and nothing more (no temporary file). */
static bool read_name(const char *name, int64_t *epochs_done, int64_t *steps)
{
    int epoch_end = 0, step_end = 0;
    *steps = 0;
    int numbers = sscanf(name, "ckpt_ep_%" SCNd64 "%n_step_%" SCNd64 "%n", epochs_done, &epoch_end,
                         steps, &step_end);
    return (numbers == 1 && name[epoch_end] == '\0' && *epochs_done >= 0) ||
           (numbers == 2 && name[step_end] == '\0' && *epochs_done >= 0 && *steps > 0);
}

static int is_checkpoint_name(const struct dirent *entry)
{
    int64_t epochs, steps;
    return read_name(entry->d_name, &epochs, &steps);
}

/* Numbers in names are sorted as numbers: an epoch's steps follow the epoch. */
td_status classify_highest(const classify_run *c, int64_t *epochs_done, int64_t *steps)
{
    char folder[TRAIN_PATH_BYTES], path[TRAIN_PATH_BYTES + NAME_MAX + 2];
    struct dirent **list = NULL;
    snprintf(folder, sizeof folder, "%s/checkpoints", c->s.out_dir);
    int count = scandir(folder, &list, is_checkpoint_name, versionsort);
    td_status status = count > 0 ? TD_E_FORMAT : TD_OK;
    *epochs_done = -1;
    for (int i = count - 1; i >= 0; i--) {
        if (status == TD_E_FORMAT) { /* so far */
            snprintf(path, sizeof path, "%s/%s", folder, list[i]->d_name);
            status = train_look_at(path);
            if (status == TD_E_FORMAT) {
                fprintf(stderr, "%s; remove it. This run goes on from the checkpoint before it\n",
                        td_last_error());
            } else {
                (void)read_name(list[i]->d_name, epochs_done, steps);
            }
        }
        free(list[i]);
    }
    free(list);
    return status == TD_E_FORMAT
               ? td_fail(status, "all checkpoints in %s are damaged: remove them to begin again",
                         folder)
               : status;
}

/* What a process that was killed while it saved has left:
 * "ckpt_ep_000_step_000002.tmp.HOST.PID.RANDOM". */
static bool is_leftover(const char *name, int64_t *epochs_done)
{
    char saved[NAME_MAX + 1];
    int64_t steps;
    const char *end = strstr(name, TD_TEMPORARY_MARK);
    if (end == NULL) {
        return false;
    }
    snprintf(saved, sizeof saved, "%.*s", (int)(end - name), name);
    return read_name(saved, epochs_done, &steps);
}

void classify_remove_old(const classify_run *c, int64_t epochs_done)
{
    char path[TRAIN_PATH_BYTES];
    int64_t keep = c->s.train.keep_checkpoints;
    snprintf(path, sizeof path, "%s/checkpoints", c->s.out_dir);
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        int64_t epoch, step;
        bool old = read_name(entry->d_name, &epoch, &step)
                       ? step > 0 || (keep > 0 && epoch <= epochs_done - keep)
                       : is_leftover(entry->d_name, &epoch);
        if (old && epoch < epochs_done) {
            unlinkat(dirfd(folder), entry->d_name, 0);
        }
    }
    if (folder != NULL) {
        closedir(folder);
    }
}

td_status classify_save_best(classify_run *c, double accuracy)
{
    train_run *r = &c->base;
    char path[TRAIN_PATH_BYTES];
    notes all = { .count = 0 };
    notes_append(&all, &r->notes);
    notes_add(&all, "epoch", "%" PRId64, r->state.epoch + 1);
    notes_add(&all, "accuracy", "%.6f", accuracy);
    snprintf(path, sizeof path, "%s/best", c->s.out_dir);
    return notes_save_model(&all, path, r->net, r->made.ema);
}
