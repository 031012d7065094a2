#include "apps/tools/common/train_save.h"

#include "apps/tools/common/ranks.h"
#include "apps/tools/common/train_autotune.h"
#include "apps/tools/common/train_hook.h"
#include "tensor/autotune.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static train_notes notes_of(const train_run *r)
{
    return (train_notes){ .task = r->task->name,
                          .data = r->data_name,
                          .options = r->args.options,
                          .option_count = r->args.option_count,
                          .words = r->args.words,
                          .ema = r->ema,
                          .scaler = r->scaler,
                          .more = r->notes.items,
                          .more_count = r->notes.count };
}

static td_status save(const train_run *r, const char *path)
{
    train_notes notes = notes_of(r);
    TD_TRY(train_hook_to_save(r, &notes));
    if (!ranks_first()) {
        return TD_OK;
    }
    size_t bytes;
    char *choices = td_autotune_text(&bytes);
    notes.choices = choices;
    td_status status = train_save(path, r->net, r->optim, &r->state, &notes);
    free(choices);
    return status;
}

static td_status save_and_tell(train_run *r, const char *path, bool at_epoch)
{
    char latest[TRAIN_PATH_BYTES];
    r->task->latest(r, latest);
    TD_TRY(save(r, path));
    if (strcmp(path, latest) == 0) {
        r->saved_at = train_steps_done(r);
    }
    if (ranks_first()) {
        r->task->saved(r, path, at_epoch);
    }
    return TD_OK;
}

td_status train_save_latest(train_run *r)
{
    char path[TRAIN_PATH_BYTES];
    r->task->latest(r, path);
    return save_and_tell(r, path, false);
}

td_status train_save_epoch(train_run *r, const char *path)
{
    char latest[TRAIN_PATH_BYTES];
    r->task->latest(r, latest);
    if (path[0] != '\0') {
        TD_TRY(save_and_tell(r, path, true));
    }
    /* --auto-resume will look for the latest one only. */
    bool due = train_is_due(train_steps_done(r), r->args.save_every_steps) ||
               (path[0] != '\0' && r->args.auto_resume);
    return due && strcmp(path, latest) != 0 ? save_and_tell(r, latest, false) : TD_OK;
}

td_status train_save_interrupted(train_run *r)
{
    char path[TRAIN_PATH_BYTES];
    r->task->latest(r, path);
    TD_TRY(save(r, path));
    progress_end(&r->progress); /* the message has a line of its own */
    if (ranks_first()) {
        fprintf(stderr, "stopped after step %" PRId64 " of epoch %" PRId64 "; ", r->state.batch,
                r->state.epoch + 1);
        if (r->task->goes_on != NULL) {
            fprintf(stderr, "%s\n", r->task->goes_on);
        } else {
            fprintf(stderr, "go on with --resume %s\n", path);
        }
    }
    return TD_OK;
}

/* ---- going on ---- */

void train_find_latest(train_run *r)
{
    static char path[TRAIN_PATH_BYTES]; /* args.resume points to it */
    r->task->latest(r, path);
    if (r->args.auto_resume && r->args.resume == NULL && access(path, F_OK) == 0) {
        r->args.resume = path;
    }
}

td_status train_resume(train_run *r)
{
    train_notes notes = notes_of(r);
    r->state.best = -1;
    train_epoch_begin(&r->state, 0);
    if (r->args.resume == NULL) {
        return TD_OK;
    }
    td_optim *optim = r->fresh_optim ? NULL : r->optim;
    TD_TRY(train_hook_to_load(r, r->args.resume, &notes));
    TD_TRY(train_load(r->args.resume, r->net, optim, &r->state, &notes));
    TD_TRY(train_autotune_resume(r));
    int64_t begun = r->state.batch % train_group_size(r); /* steps had fewer batches, or others */
    if (begun > 0 && r->state.batch < td_loader_batches(r->loader)) {
        int64_t batch = r->state.batch - begun;
        train_state_back(&r->state, batch, (double)batch / (double)r->state.batch);
    }
    td_optim_set_lr(r->optim, r->args.lr); /* --lr may be given anew */
    ranks_print("resumed from %s after step %" PRId64 " of epoch %" PRId64 "\n", r->args.resume,
                r->state.batch, r->state.epoch + 1);
    return TD_OK;
}

td_status train_load_on_all_ranks(train_run *r)
{
    char path[TRAIN_PATH_BYTES];
    if (!r->task->loads_at_end || !td_dist_is_initialized() || r->saved_at != train_steps_done(r)) {
        return TD_OK;
    }
    TD_TRY(ranks_barrier());
    r->task->latest(r, path);
    if (access(path, F_OK) != 0) {
        printf("(rank: %d)   == %s is not seen on this host; going on without\n", td_dist_rank(),
               path);
        return TD_OK;
    }
    train_notes notes = notes_of(r);
    TD_TRY(train_load(path, r->net, r->optim, &r->state, &notes));
    printf("(rank: %d)   == Loaded: %s\n", td_dist_rank(), path);
    fflush(stdout);
    return TD_OK;
}
