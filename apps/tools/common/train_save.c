/* When and what a training run saves. */
#include "apps/tools/common/train.h"

#include "tensor/tune/tune.h"
#include "tensor/kernels/kernels.h"
#include "tensor/system/number.h"

#include <ctype.h>
#include <float.h>
#include <stdlib.h>
#include <unistd.h>

void train_epoch_begin(train_state *state, int64_t epoch)
{
    *state = (train_state){ .epoch = epoch, .best = state->best };
}

/* Moves to another place of the epoch, before which `share` of the samples so far were seen: its
 * means stay. state->batch is not 0. */
static void move_back(train_state *state, int64_t batch, double share)
{
    state->loss_sum *= (double)batch / (double)state->batch;
    state->sums[0] *= share;
    state->sums[1] *= share;
    state->seen = llround((double)state->seen * share);
    state->batch = batch;
}

static void option_key(const cli_option *option, char *key, size_t size)
{
    snprintf(key, size, "option.%s", option->name);
}

void train_note_run(const train_run *r, notes *n)
{
    const train_state *s = &r->state;
    notes_add(n, "task", "%s", r->task->name);
    notes_add(n, "world", "%" PRId64, train_world(r));
    notes_add(n, "epoch", "%" PRId64, s->epoch);
    notes_add(n, "batch", "%" PRId64, s->batch);
    notes_add(n, "loss_sum", "%a", s->loss_sum); /* hexadecimal: exact */
    notes_add(n, "correct", "%.17g", s->sums[0]);
    notes_add(n, "correct_k", "%.17g", s->sums[1]);
    notes_add(n, "seen", "%" PRId64, s->seen);
    notes_add(n, "best", "%a", s->best);
    notes_add(n, "data", "%s", r->data_name);
    for (int i = 0; i < r->args.option_count; i++) {
        const cli_option *option = &r->args.options[i];
        char key[64], value[CLI_TEXT_BYTES];
        option_key(option, key, sizeof key);
        cli_get(option, value, sizeof value);
        if (option->resume != CLI_FORGET &&
            (option->unwritten == NULL || strcmp(value, option->unwritten) != 0)) {
            notes_add(n, key, "%s", value);
        }
    }
}

td_checkpoint_options train_contents(const train_run *r, const char *path)
{
    return (td_checkpoint_options){ .path = path,
                                    .model = r->net,
                                    .optim = r->optim,
                                    .ema = r->made.ema,
                                    .scaler = r->made.scaler,
                                    .loader = r->loader,
                                    .with_random = true };
}

static td_status write_checkpoint(const train_run *r, td_checkpoint_options checkpoint)
{
    size_t bytes;
    char *choices = td_autotune_text(&bytes);
    notes all = { .count = 0 };
    train_note_run(r, &all);
    if (choices != NULL) {
        notes_point(&all, "autotune", choices);
    }
    notes_append(&all, &r->notes);
    checkpoint.metadata = all.items;
    checkpoint.metadata_count = all.count;
    td_status status = td_checkpoint_save_at(checkpoint, TD_HERE);
    free(choices);
    return status;
}

/* background: NULL, or the thread that will write it. */
static td_status save(train_run *r, const char *path, td_saving **background)
{
    td_checkpoint_options checkpoint = train_contents(r, path);
    checkpoint.background = background;
    bool together = td_saves_together(r->net);
    if (!ranks_first() && !together) {
        return TD_OK;
    }
    r->saving.together = together;
    td_tensor *flat = td_params_flat(td_parameters(r->net));
    double bad = !td_kernels_of(td_device_of(flat))->all_finite(flat);
    if (together) {               /* each rank may have a part of the weights */
        (void)ranks_sum(&bad, 1); /* a failure is one of saving, too */
    }
    return bad == 0
               ? write_checkpoint(r, checkpoint)
               : td_fail(TD_E_ARG,
                         "the weights hold NaN or infinity after epoch %" PRId64 ", step %" PRId64
                         ": %s is not written; try a lower %s, or --debug-nan to see where it "
                         "began",
                         r->state.epoch + 1, r->state.batch, path, r->args.words.lr);
}

static void tell_saved(train_run *r, const char *path, bool at_epoch)
{
    if (ranks_first()) {
        r->task->saved(r, path, at_epoch);
    }
}

td_status train_save_finish(train_run *r)
{
    if (r->saving.thread != NULL) {
        TD_TRY(td_saving_wait(&r->saving.thread));
        tell_saved(r, r->saving.path, r->saving.at_epoch);
    }
    return TD_OK;
}

static td_status save_and_tell(train_run *r, const char *path, bool at_epoch)
{
    TD_TRY(train_save_finish(r));
    TD_TRY(save(r, path, r->args.files.save_async ? &r->saving.thread : NULL));
    if (r->args.files.save_async) { /* train_save_finish tells */
        snprintf(r->saving.path, sizeof r->saving.path, "%s", path);
        r->saving.at_epoch = at_epoch;
    } else {
        tell_saved(r, path, at_epoch);
    }
    return TD_OK;
}

static void latest_path(const train_run *r, char *path)
{
    const train_files *files = &r->args.files;
    const char *named = files->save != NULL ? files->save : files->resume;
    if (r->task->latest != NULL) {
        r->task->latest(r, path);
    } else {
        snprintf(path, TRAIN_PATH_BYTES, "%s%s", named != NULL ? named : r->app,
                 named != NULL ? "" : ".safetensors");
    }
}

td_status train_save_latest(train_run *r)
{
    char path[TRAIN_PATH_BYTES];
    latest_path(r, path);
    return save_and_tell(r, path, false);
}

td_status train_save_epoch(train_run *r, const char *path)
{
    char latest[TRAIN_PATH_BYTES];
    latest_path(r, latest);
    if (path[0] != '\0') {
        TD_TRY(save_and_tell(r, path, true));
    }
    /* --auto-resume will look for the latest one only. */
    bool due = train_is_due(train_steps_done(r), r->args.files.save_every_steps) ||
               (path[0] != '\0' && r->args.files.auto_resume);
    return due && strcmp(path, latest) != 0 ? save_and_tell(r, latest, false) : TD_OK;
}

td_status train_save_interrupted(train_run *r)
{
    char path[TRAIN_PATH_BYTES];
    latest_path(r, path);
    TD_TRY(train_save_finish(r));
    TD_TRY(save(r, path, NULL));
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

/* ---- what a checkpoint says ---- */

static td_status read_note(const char *path, const char *key, char *text, size_t size)
{
    td_status status = td_checkpoint_metadata(path, key, text, size);
    TD_CHECK(status != TD_E_NOTFOUND || access(path, F_OK) != 0, status,
             "%s is no checkpoint of a training run: it has no '%s'; give one that a run of this "
             "program has written",
             path, key);
    return status;
}

/* Limits of what a file says, so that no product of these numbers overflows. */
static const int64_t MOST_EPOCHS = INT32_MAX, MOST_BATCHES = INT32_MAX, MOST_RANKS = 1 << 20,
                     MOST_SAMPLES = (int64_t)1 << 48;

static td_status read_count(const char *path, const char *key, int64_t least, int64_t most,
                            int64_t *value)
{
    char text[64], *end;
    TD_TRY(read_note(path, key, text, sizeof(text)));
    *value = strtoll(text, &end, 10);
    TD_CHECK(end != text && *end == '\0' && *value >= least && *value <= most, TD_E_FORMAT,
             "%s: '%s' is '%s', not a number from %" PRId64 " to %" PRId64, path, key, text, least,
             most);
    return TD_OK;
}

static td_status read_real(const char *path, const char *key, double most, double *value)
{
    char text[256], *end;
    TD_TRY(read_note(path, key, text, sizeof(text)));
    *value = td_strtod(text, &end);
    TD_CHECK(end != text && *end == '\0' && fabs(*value) <= most, TD_E_FORMAT,
             "%s: '%s' is '%s', not a number between %g and %g", path, key, text, -most, most);
    return TD_OK;
}

static td_status read_state(const char *path, train_state *state)
{
    state->sums[1] = 0;
    state->best = -1;
    TD_TRY(read_count(path, "epoch", 0, MOST_EPOCHS, &state->epoch));
    TD_TRY(read_count(path, "batch", 0, MOST_BATCHES, &state->batch));
    TD_TRY(read_real(path, "correct", (double)MOST_SAMPLES, &state->sums[0]));
    TD_TRY(read_count(path, "seen", 0, MOST_SAMPLES, &state->seen));
    TD_TRY(read_real(path, "loss_sum", DBL_MAX, &state->loss_sum));
    if (notes_has(path, "correct_k")) { /* checkpoints of earlier versions have not all */
        TD_TRY(read_real(path, "correct_k", (double)MOST_SAMPLES, &state->sums[1]));
    }
    if (notes_has(path, "best")) {
        TD_TRY(read_real(path, "best", DBL_MAX, &state->best));
    }
    return TD_OK;
}

static td_status restore_option(const char *path, const cli_option *option, char *text)
{
    char key[64], value[CLI_TEXT_BYTES], now[CLI_TEXT_BYTES];
    option_key(option, key, sizeof(key));
    td_status status = td_checkpoint_metadata(path, key, value, sizeof(value));
    if (status == TD_E_NOTFOUND && option->resume == CLI_RESTORE) {
        return TD_OK; /* not written, or by a program without such an option: the default holds */
    }
    TD_TRY(status == TD_E_NOTFOUND
               ? td_fail_context(status, "%s is no checkpoint of a training run", path)
               : status);
    if (!option->given && option->kind == CLI_TEXT && value[0] == '\0') {
        return TD_OK; /* it was not set */
    }
    if (!option->given) {
        char why[512];
        snprintf(text, CLI_TEXT_BYTES, "%s", value);
        return cli_set(option, text, why, sizeof why)
                   ? TD_OK
                   : td_fail(TD_E_FORMAT, "%s: option %s: %s", path, option->name, why);
    }
    cli_get(option, now, sizeof(now));
    if (option->resume == CLI_FIXED && strcmp(now, value) != 0) {
        bool is_key = isupper((unsigned char)option->name[0]); /* of train_net: it has a value */
        const char *dashes = is_key ? "" : "--";
        return td_fail(TD_E_MISMATCH,
                       "%s%s %s: %s was trained with %s%s %s; give the same to go on, or %s",
                       dashes, option->name, now, path, dashes, option->name, value,
                       is_key ? "another OUT_DIR to begin again" : "leave it out");
    }
    return TD_OK;
}

td_status train_args_resume(train_args *args, const char *task)
{
    const char *path = args->files.resume;
    char trained[256];
    TD_TRY(read_note(path, "task", trained, sizeof(trained)));
    TD_CHECK(strcmp(trained, task) == 0, TD_E_MISMATCH,
             "%s is a checkpoint of '%s'; this program trains '%s'", path, trained, task);
    for (int i = 0; i < args->option_count; i++) {
        if (args->options[i].resume != CLI_FORGET) {
            TD_TRY(restore_option(path, &args->options[i], args->texts[i]));
        }
    }
    return TD_OK;
}

/* ---- going on ---- */

td_status train_look_at(const char *path)
{
    td_safetensors *file;
    td_status status = td_safetensors_open(path, &file);
    td_safetensors_close(file);
    return status;
}

td_status train_find_latest(train_run *r)
{
    static _Thread_local char path[TRAIN_PATH_BYTES]; /* args.files.resume points to it */
    latest_path(r, path);
    if (!r->args.files.auto_resume || r->args.files.resume != NULL || access(path, F_OK) != 0) {
        return TD_OK;
    }
    r->args.files.resume = path;
    td_status status = train_look_at(path);
    return status != TD_E_FORMAT
               ? status
               : td_fail(status, "%s; remove it to begin again, or give --resume FILE",
                         td_last_error());
}

/* Where the run is in its epoch, in batches of as many processes as there are now: the loader knows
 * it. Files of earlier versions have the generator of the epoch's beginning instead. */
static void find_place(train_run *r, int64_t world, bool loaded)
{
    train_state *s = &r->state;
    int64_t now = train_world(r), group = train_group_size(r);
    int64_t batch = loaded ? td_loader_position(r->loader) : s->batch * world / now;
    bool inside = s->batch > 0 && (!loaded || td_loader_epoch(r->loader) == (uint64_t)s->epoch);
    if (inside && batch != s->batch) {
        double share = (double)(batch * now) / (double)(s->batch * world);
        move_back(s, batch, loaded ? 1 : share);
    }
    /* Steps had fewer batches, or others. What another number of processes has begun stays done. */
    int64_t begun = s->batch % group;
    if (begun > 0 && s->batch < td_loader_batches(r->loader) && (!loaded || world == now)) {
        batch = s->batch - begun;
        move_back(s, batch, (double)batch / (double)s->batch);
    }
}

td_status train_take_state(train_run *r, const char *path)
{
    char data[256];
    TD_TRY(read_note(path, "data", data, sizeof(data)));
    TD_CHECK(strcmp(data, r->data_name) == 0, TD_E_MISMATCH,
             "%s was trained on '%s', and these data are '%s': give the same %s", path, data,
             r->data_name, r->args.words.data);
    return read_state(path, &r->state);
}

/* An elastic run has no loader yet: each world's finds its place by r->state. */
static td_status train_save_load(train_run *r, td_checkpoint_options checkpoint)
{
    const char *path = checkpoint.path;
    int64_t world;
    TD_TRY(train_take_state(r, path));
    TD_TRY(read_count(path, "world", 1, MOST_RANKS, &world));
    if (!notes_has(path, "loader.epoch")) { /* of earlier versions */
        checkpoint.loader = NULL;
    }
    TD_TRY(td_checkpoint_load_at(checkpoint, TD_HERE));
    find_place(r, world, checkpoint.loader != NULL);
    return TD_OK;
}

td_status train_resume(train_run *r)
{
    td_checkpoint_options checkpoint = train_contents(r, r->args.files.resume);
    r->state.best = -1;
    train_epoch_begin(&r->state, 0);
    if (r->args.files.resume == NULL) {
        return TD_OK;
    }
    checkpoint.optim = r->args.files.fresh_optim ? NULL : r->optim;
    train_hook_resume(r);
    TD_TRY(train_save_load(r, checkpoint));
    TD_TRY(train_autotune_resume(r));
    td_optim_set_lr(r->optim, r->args.lr); /* --lr may be given again */
    if (ranks_first()) {
        td_printf_rank0("resumed from %s after step %" PRId64 " of epoch %" PRId64 "\n",
                        r->args.files.resume, r->state.batch, r->state.epoch + 1);
    }
    int64_t before, now = train_world(r);
    TD_TRY(read_count(r->args.files.resume, "world", 1, MOST_RANKS, &before));
    if (before != now && r->args.ranks.leaves == 0) {
        td_printf_rank0("%" PRId64 " ranks, and %" PRId64
                        " when it was saved: together their batches "
                        "have %" PRId64 " samples, not %" PRId64 "\n",
                        now, before, now * r->args.batch_size, before * r->args.batch_size);
    }
    return TD_OK;
}
