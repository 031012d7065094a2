/* Names, finds and removes the checkpoints of train_net. */
#include "apps/tools/train_net/classify.h"
#include "tensor/system/temporary.h"

#include <dirent.h>
#include <limits.h>
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

static DIR *files_open_folder(const classify_run *c, char *path)
{
    snprintf(path, TRAIN_PATH_BYTES, "%s/checkpoints", c->s.out_dir);
    return opendir(path);
}

/* Where a checkpoint stands in training. */
typedef struct place {
    int64_t epochs, steps;
} place;

static bool is_before(place a, place b)
{
    return a.epochs < b.epochs || (a.epochs == b.epochs && a.steps < b.steps);
}

/* The highest checkpoint before a place, which is then its own. */
static bool find_before(const classify_run *c, place *end)
{
    char path[TRAIN_PATH_BYTES];
    place best = { -1, 0 }, at;
    DIR *folder = files_open_folder(c, path);
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        if (read_name(entry->d_name, &at.epochs, &at.steps) && is_before(at, *end) &&
            is_before(best, at)) {
            best = at;
        }
    }
    if (folder != NULL) {
        closedir(folder);
    }
    *end = best;
    return best.epochs >= 0;
}

td_status classify_highest(const classify_run *c, int64_t *epochs_done, int64_t *steps)
{
    char path[TRAIN_PATH_BYTES];
    bool damaged = false;
    for (place at = { INT64_MAX, 0 }; find_before(c, &at); damaged = true) {
        classify_step_path(c, at.epochs, at.steps, path);
        td_status status = train_look_at(path);
        if (status != TD_E_FORMAT) {
            *epochs_done = at.epochs;
            *steps = at.steps;
            return status;
        }
        fprintf(stderr, "%s; remove it. This run goes on from the checkpoint before it\n",
                td_last_error());
    }
    *epochs_done = -1;
    return damaged ? td_fail(TD_E_FORMAT,
                             "all checkpoints in %s/checkpoints are damaged: remove them to begin "
                             "again",
                             c->s.out_dir)
                   : TD_OK;
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
    DIR *folder = files_open_folder(c, path);
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
