#include "apps/tools/common/resume.h"

#include "dist/dist.h"
#include "tensor/kernels.h"
#include "nn/module.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void train_epoch_begin(train_state *state, int64_t epoch)
{
    *state =
        (train_state){ .epoch = epoch, .best = state->best, .generator = *td_default_generator() };
}

void train_state_back(train_state *state, int64_t batch, double share)
{
    state->loss_sum *= (double)batch / (double)state->batch;
    state->correct = llround((double)state->correct * share);
    state->correct_k = llround((double)state->correct_k * share);
    state->seen = llround((double)state->seen * share);
    state->batch = batch;
}

static bool weights_are_finite(td_module *model)
{
    td_tensor *flat = td_params_flat(td_parameters(model));
    return td_kernels_of(td_device_of(flat))->all_finite(flat);
}

/* The keys and texts of a checkpoint's metadata while it is put together. */
enum { MORE_NOTES = 16 };
typedef struct note_list {
    td_metadata items[CLI_MAX_OPTIONS + MORE_NOTES];
    char keys[CLI_MAX_OPTIONS + MORE_NOTES][64];
    char values[CLI_MAX_OPTIONS + MORE_NOTES][256];
    int count;
} note_list;

static void option_key(const cli_option *option, char *key, size_t size)
{
    snprintf(key, size, "option.%s", option->name);
}

static void note(note_list *all, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void note(note_list *all, const char *key, const char *format, ...)
{
    int i = all->count++;
    snprintf(all->keys[i], sizeof(all->keys[i]), "%s", key);
    va_list values;
    va_start(values, format);
    vsnprintf(all->values[i], sizeof(all->values[i]), format, values);
    va_end(values);
    all->items[i] = (td_metadata){ all->keys[i], all->values[i] };
}

td_status train_save(const char *path, td_module *model, td_optim *optim, const train_state *state,
                     const train_notes *notes)
{
    if (!weights_are_finite(model)) {
        return td_fail(TD_E_ARG,
                       "the weights hold NaN or infinity after epoch %" PRId64 ", step %" PRId64
                       ": %s is not written; try a lower %s, or --debug-nan to see where it began",
                       state->epoch + 1, state->batch, path, notes->words.lr);
    }
    note_list all = { 0 };
    note(&all, "task", "%s", notes->task);
    note(&all, "world", "%d", td_dist_world_size());
    note(&all, "epoch", "%" PRId64, state->epoch);
    note(&all, "batch", "%" PRId64, state->batch);
    note(&all, "loss_sum", "%a", state->loss_sum); /* hexadecimal: exact */
    note(&all, "correct", "%" PRId64, state->correct);
    note(&all, "correct_k", "%" PRId64, state->correct_k);
    note(&all, "seen", "%" PRId64, state->seen);
    note(&all, "best", "%a", state->best);
    note(&all, "data", "%s", notes->data);
    for (int i = 0; i < notes->option_count; i++) {
        const cli_option *option = &notes->options[i];
        if (option->resume != CLI_FORGET) {
            char key[64], value[256];
            option_key(option, key, sizeof(key));
            cli_get(option, value, sizeof(value));
            if (option->unwritten == NULL || strcmp(value, option->unwritten) != 0) {
                note(&all, key, "%s", value);
            }
        }
    }
    if (notes->choices != NULL) {
        all.items[all.count++] = (td_metadata){ "autotune", notes->choices };
    }
    for (int i = 0; i < notes->more_count && all.count < CLI_MAX_OPTIONS + MORE_NOTES; i++) {
        all.items[all.count++] = notes->more[i]; /* as it is: names of classes are long */
    }
    td_checkpoint checkpoint = { .model = model,
                                 .optim = optim,
                                 .ema = notes->ema,
                                 .scaler = notes->scaler,
                                 .extra = notes->extra,
                                 .extra_count = notes->extra_count,
                                 .with_random = true,
                                 .metadata = all.items,
                                 .metadata_count = all.count };
    /* The order of the running epoch is drawn again after resuming, so what is saved is the
     * generator of its beginning. */
    td_generator now = *td_default_generator();
    *td_default_generator() = state->generator;
    td_status status = td_checkpoint_save(path, &checkpoint);
    *td_default_generator() = now;
    return status;
}

static td_status read_note(const char *path, const char *key, char *text, size_t size)
{
    td_status status = td_checkpoint_metadata(path, key, text, size);
    if (status == TD_E_NOTFOUND && access(path, F_OK) == 0) {
        return td_fail(
            status,
            "%s is no checkpoint of a training run: it has no '%s'; give one that a run of this "
            "program has written",
            path, key);
    }
    return status;
}

static td_status read_count(const char *path, const char *key, int64_t *value)
{
    char text[64], *end;
    TD_TRY(read_note(path, key, text, sizeof(text)));
    *value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || *value < 0) {
        return td_fail(TD_E_FORMAT, "%s: '%s' is '%s', not a count", path, key, text);
    }
    return TD_OK;
}

/* The place of a run that had another number of processes. */
static td_status fit_place(const char *path, train_state *state)
{
    int64_t world, now = td_dist_world_size();
    TD_TRY(read_count(path, "world", &world));
    if (world != now && state->batch > 0) {
        int64_t batch = state->batch * world / now;
        train_state_back(state, batch, (double)(batch * now) / (double)(state->batch * world));
    }
    return TD_OK;
}

static td_status read_real(const char *path, const char *key, double *value)
{
    char text[256], *end;
    TD_TRY(read_note(path, key, text, sizeof(text)));
    *value = strtod(text, &end);
    if (end == text || *end != '\0') {
        return td_fail(TD_E_FORMAT, "%s: '%s' is '%s', not a number", path, key, text);
    }
    return TD_OK;
}

/* Checkpoints of earlier versions have not all. */
static bool has_note(const char *path, const char *key)
{
    char text[256];
    return td_checkpoint_metadata(path, key, text, sizeof text) != TD_E_NOTFOUND;
}

static td_status read_state(const char *path, train_state *state)
{
    state->correct_k = 0;
    state->best = -1;
    TD_TRY(read_count(path, "epoch", &state->epoch));
    TD_TRY(read_count(path, "batch", &state->batch));
    TD_TRY(read_count(path, "correct", &state->correct));
    TD_TRY(read_count(path, "seen", &state->seen));
    TD_TRY(read_real(path, "loss_sum", &state->loss_sum));
    if (has_note(path, "correct_k")) {
        TD_TRY(read_count(path, "correct_k", &state->correct_k));
    }
    if (has_note(path, "best")) {
        TD_TRY(read_real(path, "best", &state->best));
    }
    return fit_place(path, state);
}

td_status train_load(const char *path, td_module *model, td_optim *optim, train_state *state,
                     const train_notes *notes)
{
    char data[256];
    TD_TRY(read_note(path, "data", data, sizeof(data)));
    if (strcmp(data, notes->data) != 0) {
        return td_fail(TD_E_MISMATCH,
                       "%s was trained on '%s', and these data are '%s': give the same %s", path,
                       data, notes->data, notes->words.data);
    }
    TD_TRY(read_state(path, state));
    td_checkpoint checkpoint = { .model = model,
                                 .optim = optim,
                                 .ema = notes->ema,
                                 .scaler = notes->scaler,
                                 .extra = notes->extra,
                                 .extra_count = notes->extra_count,
                                 .with_random = true };
    TD_TRY(td_checkpoint_load(path, &checkpoint));
    state->generator = *td_default_generator();
    return TD_OK;
}

static td_status set_from(const char *path, cli_option *option, const char *value)
{
    char message[512];
    if (option->kind == CLI_TEXT && value[0] == '\0') {
        return TD_OK; /* it was not set */
    }
    snprintf(option->restored, sizeof(option->restored), "%s", value);
    if (!cli_set(option, option->restored, message, sizeof(message))) {
        return td_fail(TD_E_FORMAT, "%s: %s", path, message);
    }
    return TD_OK;
}

static td_status restore_option(const char *path, cli_option *option)
{
    char key[64], value[256], now[256];
    option_key(option, key, sizeof(key));
    td_status status = td_checkpoint_metadata(path, key, value, sizeof(value));
    if (status == TD_E_NOTFOUND && option->resume == CLI_RESTORE) {
        return TD_OK; /* not written, or by a program without such an option: the default holds */
    }
    TD_TRY(status == TD_E_NOTFOUND
               ? td_fail_context(status, "%s is no checkpoint of a training run", path)
               : status);
    if (!option->given) {
        return set_from(path, option, value);
    }
    cli_get(option, now, sizeof(now));
    if (option->resume == CLI_FIXED && strcmp(now, value) != 0) {
        bool is_key = isupper((unsigned char)option->name[0]); /* of train_net: it has a value */
        const char *dashes = is_key ? "" : "--";
        return td_fail(TD_E_MISMATCH,
                       "%s%s %s: %s was trained with %s%s %s; give the same to go on, or %s",
                       dashes, option->name, now, path, dashes, option->name, value,
                       is_key ? "another OUT_DIR to begin anew" : "leave it out");
    }
    return TD_OK;
}

td_status resume_options(const char *path, const char *task, cli_option *options, int count)
{
    char trained[256];
    TD_TRY(read_note(path, "task", trained, sizeof(trained)));
    if (strcmp(trained, task) != 0) {
        return td_fail(TD_E_MISMATCH, "%s is a checkpoint of '%s'; this program trains '%s'", path,
                       trained, task);
    }
    for (int i = 0; i < count; i++) {
        if (options[i].resume != CLI_FORGET) {
            TD_TRY(restore_option(path, &options[i]));
        }
    }
    return TD_OK;
}
