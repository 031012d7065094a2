/* What is special about training a GPT: windows of tokens as data, a loss that the model computes,
 * a learning rate for each step, samples, and a validation after each epoch. */
#include "apps/tools/gpt/gpt_run.h"
#include "nn/models/files/gpt_files.h"
#include "nn/models/gpt_internal.h"

#include <stdlib.h>

enum { MOST_FILES = 256, BYTES = 256 /* tokens of a text that is not tokenized */ };

static gpt_run *gpt_of(const train_run *r)
{
    return (gpt_run *)r;
}

/* ---- the data and the model ---- */

/* Opens "FILE,FILE"; a file name may be a shell pattern if it is the only one. */
static td_dataset *gpt_open_tokens(const char *files, td_tokens_options options)
{
    const char *paths[MOST_FILES];
    char *list = strdup(files), *rest = list;
    for (char *path; list != NULL && (path = strsep(&rest, ",")) != NULL;) {
        if (options.path_count == MOST_FILES) {
            (void)td_fail(TD_E_ARG, "--data names more than %d files; use a pattern", MOST_FILES);
            free(list);
            return NULL;
        }
        paths[options.path_count++] = path;
    }
    if (options.path_count == 1) {
        options.path = files;
        options.path_count = 0;
    } else {
        options.paths = paths;
    }
    td_dataset *dataset = list != NULL ? td_tokens_open_at(options, TD_HERE) : NULL;
    free(list);
    return dataset;
}

/* The number of tokens that the data have: --vocabulary's, the tokenizer's, or what files say. */
static td_status gpt_find_tokens(gpt_run *g, int64_t *vocabulary)
{
    td_tokens_options options = { .window = 1, .vocabulary = (int)g->vocabulary };
    td_dataset *data = gpt_open_tokens(g->base.args.data, options);
    if (data == NULL) {
        return td_fail_context(TD_E_ARG, "--data (--vocabulary N says what a file does not)");
    }
    *vocabulary = data->classes;
    td_dataset_free(data);
    return TD_OK;
}

/* The model of a checkpoint, whose values are loaded later. */
static td_module *gpt_of_checkpoint(const char *path)
{
    char arch[CLI_TEXT_BYTES];
    return td_checkpoint_metadata(path, "model.arch", arch, sizeof arch) == TD_OK
               ? td_model(arch, .blank = true)
               : NULL;
}

td_module *gpt_make(gpt_run *g, int64_t vocabulary)
{
    const char *resume = g->base.args.files.resume;
    td_defer_init(g->init == NULL && train_defers(&g->base));
    td_module *gpt = g->init == NULL  ? td_model(g->preset, .classes = (int)vocabulary)
                     : resume != NULL ? gpt_of_checkpoint(resume)
                                      : td_gpt_load(g->init);
    td_defer_init(false);
    if (gpt != NULL && !td_is_gpt(gpt)) {
        (void)td_fail(TD_E_MISMATCH, "'%s' is no GPT", g->init != NULL ? g->init : g->preset);
    } else if (gpt != NULL && gpt_adapt(g, gpt) == TD_OK &&
               td_module_to(gpt, g->base.args.device, TD_F32) == TD_OK) {
        return gpt;
    }
    td_module_free(gpt);
    return NULL;
}

/* Training windows begin anywhere; those of the validation are side by side. */
static td_status gpt_open_windows(gpt_run *g, td_gpt_options model)
{
    td_tokens_options options = { .window = model.context,
                                  .stride = 1,
                                  .vocabulary = (int)model.vocabulary,
                                  .val_fraction = g->validation != NULL ? 0 : g->val_fraction };
    g->train = gpt_open_tokens(g->base.args.data, options);
    options.stride = model.context;
    options.val = g->validation == NULL;
    bool tests = g->validation != NULL || g->val_fraction > 0;
    if (g->train != NULL && tests) {
        g->val =
            gpt_open_tokens(g->validation != NULL ? g->validation : g->base.args.data, options);
    }
    return g->train == NULL || (tests && g->val == NULL)
               ? td_fail_context(TD_E_ARG, "windows of %" PRId64 " tokens", model.context)
               : TD_OK;
}

static td_status gpt_open_data(train_run *r)
{
    gpt_run *g = gpt_of(r);
    r->args.data = r->args.data != NULL ? r->args.data : getenv("TANDEM_TEXT");
    if (r->args.data == NULL) {
        r->args.data = "*/*.c";
        if (ranks_first()) {
            td_printf_rank0("*** No --data: the text is this project's own sources.\n");
        }
    }
    TD_CHECK(g->save_best == NULL || g->validation != NULL || g->val_fraction > 0, TD_E_ARG,
             "--save-best needs a validation: --validation FILE, or a --val-fraction above 0");
    TD_TRY(check_can_save(g->save_best));
    int64_t tokens = 0;
    TD_TRY(gpt_find_tokens(g, &tokens));
    g->gpt = r->net = gpt_make(g, tokens);
    if (g->gpt == NULL) {
        return TD_E_ARG; /* td_last_error has the reason */
    }
    td_gpt_options model = td_gpt_options_of(g->gpt);
    TD_CHECK(tokens != BYTES || model.vocabulary == BYTES || g->vocabulary != 0, TD_E_MISMATCH,
             "the data are bytes, and the model has %" PRId64
             " tokens: make its tokens of the text first, by apps/tokenize",
             model.vocabulary);
    TD_TRY(gpt_open_windows(g, model));
    r->train = g->train;
    r->tests.data = g->val;
    snprintf(r->data_name, sizeof r->data_name,
             "%" PRId64 " windows of %" PRId64 " tokens of %" PRId64, g->train->length,
             model.context, model.vocabulary);
    if (g->writing.vocab != NULL) { /* --generate finds the tokenizer by these */
        notes_add(&r->notes, "vocab", "%s", g->writing.vocab);
        notes_add(&r->notes, "merges", "%s", g->writing.merges != NULL ? g->writing.merges : "");
    }
    return TD_OK;
}

static void gpt_close_data(train_run *r)
{
    td_dataset_free(gpt_of(r)->train);
    td_dataset_free(gpt_of(r)->val);
}

/* ---- a step ---- */

/* The model of two inputs computes the loss: the mean cross-entropy of all places. */
static td_tensor *gpt_measure(td_module *net, const td_batch *batch, td_tensor **sums, void *user)
{
    (void)sums, (void)user;
    return td_forward2(net, batch->x, batch->y);
}

/* The rate rises for the warm-up, then falls along a cosine to --min-lr. */
static void gpt_step_begins(train_run *r, int64_t batch)
{
    const gpt_run *g = gpt_of(r);
    double total = (double)(r->args.epochs * g->learning.epoch_steps),
           warmup = (double)g->learning.warmup;
    td_schedule schedule = { .kind = TD_SCHEDULE_COSINE,
                             .base_lr = r->args.lr,
                             .min_lr = fmin(g->learning.min_lr, r->args.lr),
                             .total = total,
                             .warmup = fmin(warmup, floor(total / 2)),
                             .after_warmup = true };
    int64_t step = r->state.epoch * g->learning.epoch_steps + batch / train_group_size(r);
    td_optim_set_lr(r->optim, td_schedule_lr(&schedule, (double)step));
}

static void write_sample(train_run *r)
{
    gpt_run *g = gpt_of(r);
    progress_end(&r->progress);
    td_group *together = train_is_cut(r) ? td_mesh_group(r->ranks.mesh, "pp+tp") : NULL;
    td_status status = together != NULL || !train_is_cut(r) ? TD_OK : TD_E_NETWORK;
    notes_swap(r->made.ema);
    status = status == TD_OK ? td_unshard(r->net) : status; /* of what this process has of it */
    if (status == TD_OK && train_readers(r).rank == 0) {    /* the first replica */
        td_printf_rank0("---- a sample ----\n");
        gpt_writing how = g->writing;
        how.quiet = true;
        how.group = together;
        status = gpt_write(&how, g->gpt, &g->sample, 1);
        td_printf_rank0("----\n");
        fflush(stdout);
    }
    td_reshard(r->net);
    notes_swap(r->made.ema);
    if (status != TD_OK) {
        fprintf(stderr, "%s: no sample: %s\n", r->app, td_last_error());
    }
}

static void gpt_step_done(train_run *r, double loss)
{
    (void)loss;
    const gpt_run *g = gpt_of(r);
    char left[32];
    int64_t group = train_group_size(r);
    if (r->state.batch % group != 0) {
        return;
    }
    int64_t step = r->state.epoch * g->learning.epoch_steps + r->state.batch / group;
    progress_eta(&r->progress, left, sizeof left);
    if (train_is_due(step, g->print_every)) {
        progress_print(
            &r->progress, "step %" PRId64 "/%" PRId64 "  loss %.4f  lr %.2e  %.0f tokens/s  ETA %s",
            step, r->args.epochs * g->learning.epoch_steps, train_epoch_loss(r),
            td_optim_lr(r->optim), progress_rate(&r->progress, r->clock.step_targets), left);
    }
    if (train_is_due(step, g->sample_every)) {
        write_sample(r);
    }
}

/* ---- an epoch ---- */

static void gpt_epoch_done(train_run *r, double seconds, char *path)
{
    (void)path;
    progress_print(&r->progress, "epoch %" PRId64 "/%" PRId64 "  loss %.4f  %.1f s  %.0f tokens/s",
                   r->state.epoch + 1, r->args.epochs, train_epoch_loss(r), seconds,
                   (double)(r->state.seen - r->clock.seen_before) / seconds);
}

/* The best so far is kept as a mean probability of the right token, exp(-loss): larger is better.
 */
static td_status gpt_validate(train_run *r)
{
    gpt_run *g = gpt_of(r);
    td_evaluation e;
    if (g->val == NULL) {
        return TD_OK;
    }
    TD_TRY(train_validate(r, r->args.batch_size, &e));
    if (e.seen == 0) {
        return TD_OK;
    }
    double before = r->state.best, now = exp(-e.loss);
    char note[64] = "";
    if (now < before) {
        snprintf(note, sizeof note, "  (the best was %.4f)", -log(before));
    }
    progress_print(&r->progress, "validation  loss %.4f  perplexity %.2f  %.3f bits a token%s",
                   e.loss, exp(e.loss), e.loss / log(2), note);
    r->state.best = fmax(before, now);
    return now > before && g->save_best != NULL && train_saves_model(r)
               ? gpt_save_model(r, g->save_best)
               : TD_OK;
}

static void gpt_saved(train_run *r, const char *path, bool at_epoch)
{
    (void)at_epoch;
    progress_print(&r->progress, "saved: %s", path);
}

static void gpt_begins(train_run *r)
{
    const gpt_run *g = gpt_of(r);
    td_gpt_options m = td_gpt_options_of(g->gpt);
    td_printf_rank0("tandem %s: a GPT of %" PRId64 " parameters: %" PRId64 " layers, %" PRId64
                    " heads, width %" PRId64 ", context %" PRId64 "\n"
                    "data: %s; a step: %d x %" PRId64 " windows; %" PRId64 " steps, seed %" PRId64
                    ", %s; %s\n",
                    TANDEM_VERSION, r->ranks.parameters, m.layers, m.heads, m.width, m.context,
                    r->data_name, (int)train_world(r), r->args.batch_size * train_group_size(r),
                    r->args.epochs * g->learning.epoch_steps, r->args.seed, train_args_arithmetic(),
                    td_device_describe(r->args.device));
    gpt_adapt_tell(g);
}

const train_task gpt_task = { .name = "gpt",
                              .tokens = true,
                              .measure = gpt_measure,
                              .open = gpt_open_data,
                              .close = gpt_close_data,
                              .begins = gpt_begins,
                              .step_begins = gpt_step_begins,
                              .step_done = gpt_step_done,
                              .epoch_done = gpt_epoch_done,
                              .validate = gpt_validate,
                              .saved = gpt_saved,
                              .save_model = gpt_save_model,
                              .cuts = true,
                              .metrics = TRAIN_FEW_METRICS };
