/* Trains a GPT on text, and lets it write.
 *
 *   gpt --data FILE[,FILE]                            bytes of texts, or files of apps/tokenize
 *   gpt --data FILE --preset "gpt-mini dropout=0.2" --epochs 20 --save mini.safetensors
 *   gpt --resume mini.safetensors --data FILE         goes on, with the same bits
 *   gpt --init FILE-OR-FOLDER --data FILE             trains all weights of a trained model further
 *   gpt --init FILE --lora 8 --save-model ADAPTER ... trains adapters of rank 8 next to its weights
 *   gpt --model FILE --adapter ADAPTER --merge OUT    makes one model of both
 *   gpt --spawn 2 --shard parameters ...              several processes; so does tdrun
 *   gpt --generate "To be" --model mini.safetensors   writes
 *
 * An epoch is a number of steps, whose windows are drawn from the text at random; after each one
 * the validation text is read. The training loop, checkpoints and the options that other programs
 * have, too, are in apps/tools/common/train.h; what writes text is in apps/tools/gpt/write.h,
 * adapters in adapt.c, and what is special about training a GPT in task.c. */
#include "apps/tools/gpt/gpt_run.h"

#include <stdlib.h>

/* ---- what it does ---- */

/* Weight decay is for matrices: biases and norms are vectors. */
static bool is_vector(const td_param *param, void *user)
{
    (void)user;
    return param->tensor->ndim < 2;
}

static td_loader *gpt_load(train_run *r)
{
    const gpt_run *g = (const gpt_run *)r;
    int64_t windows =
        r->args.batch_size * train_world(r) * train_group_size(r) * g->learning.epoch_steps;
    td_deal deal = train_deal(r);
    int64_t parts = deal.parts > 0 ? deal.parts : 1;
    return td_loader_open(
        g->train, .batch_size = r->args.batch_size * parts, .device = r->args.device,
        .sampler = td_window_sampler(windows, (uint64_t)r->args.seed), .deal = deal,
        .workers = (int)r->args.workers, .streamed = r->args.compute.streamed);
}

static td_status train_gpt(train_run *r)
{
    gpt_run *g = (gpt_run *)r;
    TD_TRY(train_mesh(r));
    TD_TRY(train_begin(r));
    td_train(r->net);
    TD_TRY(gpt_cut(g));
    r->net = td_dist_is_initialized() ? train_ddp(r, r->net) : r->net;
    r->optim = r->net == NULL
                   ? NULL
                   : td_adamw(td_parameters(r->net), .lr = r->args.lr, .beta2 = g->learning.beta2,
                              .weight_decay = g->learning.weight_decay);
    if (r->optim == NULL || td_optim_group(r->optim, is_vector, NULL, 1.0, 0.0) < 0) {
        return TD_E_NOMEM; /* td_last_error has the reason */
    }
    return train_loop(r, gpt_load);
}

/* A tokenizer that the model's file names. */
static const char *gpt_noted(const gpt_run *g, const char *key, char *text, size_t size)
{
    return td_checkpoint_metadata(g->model, key, text, size) == TD_OK && text[0] != '\0' ? text
                                                                                         : NULL;
}

static td_status gpt_generate(const gpt_run *g)
{
    char vocab[CLI_TEXT_BYTES], merges[CLI_TEXT_BYTES];
    gpt_writing w = g->writing; /* the tokenizer's paths may be in this function's memory */
    if (w.vocab == NULL) {
        w.vocab = gpt_noted(g, "vocab", vocab, sizeof vocab);
        w.merges = gpt_noted(g, "merges", merges, sizeof merges);
    }
    int count = g->prompts.count + 1;
    const char **prompts = calloc((size_t)count, sizeof *prompts);
    TD_CHECK(prompts != NULL, TD_E_NOMEM, "no memory for %d prompts", count);
    prompts[0] = g->generate;
    for (int i = 1; i < count; i++) {
        prompts[i] = g->prompts.values[i - 1];
    }
    w.seed = g->base.args.seed;
    td_status status = gpt_write(&w, g->gpt, prompts, count);
    free(prompts);
    return status;
}

/* What needs a trained model alone. */
static td_status gpt_use(gpt_run *g)
{
    TD_TRY(train_args_apply(&g->base.args, gpt_task.name));
    g->init = g->model;
    g->gpt = g->base.net = gpt_make(g, 0);
    if (g->gpt == NULL) {
        return td_fail_context(TD_E_FORMAT, "--model");
    }
    TD_TRY(g->writing.bf16 ? td_gpt_hold_bf16(g->gpt) : TD_OK);
    return g->generate != NULL ? gpt_generate(g) : gpt_merge(g);
}

static void gpt_check_use(const gpt_run *g, bool uses)
{
    CLI_CHECK(uses || g->model == NULL,
              "--model is for --generate TEXT and --merge FILE; --init FILE trains further");
    CLI_CHECK(g->generate != NULL || g->prompts.count == 0, "prompts are for --generate TEXT");
    CLI_CHECK(!uses || g->model != NULL,
              "--generate and --merge need --model FILE: what a run wrote by --save or "
              "--save-model");
    CLI_CHECK(g->lora.merge == NULL || (g->lora.adapter != NULL && g->generate == NULL),
              "--merge needs --adapter FILE, and is not for --generate");
    CLI_CHECK(!g->writing.bf16 || g->generate != NULL,
              "--bf16 is for --generate TEXT; --precision bf16 trains");
    CLI_CHECK(g->lora.rank == 0 || (g->lora.adapter == NULL && !uses),
              "--lora trains new adapters: not with --adapter, --generate or --merge");
    CLI_CHECK(g->spawn == 0 || (!td_dist_is_launched() && !uses),
              "--spawn starts processes for training, once: not with --generate or --merge, "
              "nor in a process that tdrun, srun or mpirun has started");
}

static int gpt_begin(gpt_run *g)
{
    train_run *r = &g->base;
    bool uses = g->generate != NULL || g->lora.merge != NULL;
    gpt_check_use(g, uses);
    if (uses) {
        int code = gpt_use(g) != TD_OK ? app_failed(r->app) : 0;
        td_module_free(r->net);
        return code;
    }
    return train_start(r, train_gpt, sizeof *g, g->spawn);
}

/* ---- options ---- */

static void training_options(gpt_run *g)
{
    train_recipe *recipe = &g->base.args.recipe;
    const cli_option table[] = {
        cli_text("preset", "NAME", &g->preset,
                 "The model: gpt-nano, gpt-mini, gpt2, ..., and options: \"gpt-nano layers=6 rope "
                 "rms_norm swiglu dropout=0.1\"",
                 .resume = CLI_FIXED, .first = true),
        cli_text("init", "PATH", &g->init,
                 "Train this model further, all of its weights: a file of --save-model, a folder "
                 "of Hugging Face, gpt2_124M.bin of llm.c",
                 .resume = CLI_RESTORE, .first = true),
        cli_int("vocabulary", &g->vocabulary, 0, 1 << 24,
                "Number of different tokens, where no file says it; 0: a file says it",
                .resume = CLI_FIXED),
        cli_text("validation", "PATH", &g->validation,
                 "Text for validation; otherwise the last part of --data"),
        cli_real("val-fraction", &g->val_fraction, 0, 0.9, "That part's share; 0: no validation",
                 .resume = CLI_FIXED),
        cli_int("epoch-steps", &g->learning.epoch_steps, 1, 1e6,
                "Steps of an epoch, before each validation", .resume = CLI_FIXED, .first = true),
        cli_int("warmup", &g->learning.warmup, 0, 1e9,
                "Steps in which the learning rate rises, at most half of all; then it falls along "
                "a cosine",
                .resume = CLI_RESTORE),
        cli_real("min-lr", &g->learning.min_lr, 0, 1e6, "Learning rate at the end",
                 .resume = CLI_RESTORE),
        cli_real("beta2", &g->learning.beta2, 0, 0.999999, "Of AdamW", .resume = CLI_RESTORE),
        cli_real("weight-decay", &g->learning.weight_decay, 0, 1e3, "Of AdamW, for matrices",
                 .resume = CLI_RESTORE),
        cli_int("accumulate", &recipe->accumulate, 1, 1e6,
                "Batches whose mean gradient makes one step: a batch N times as large, in the "
                "memory of one",
                .resume = CLI_FIXED),
        cli_real("clip-grad-norm", &recipe->clip_grad_norm, 0, 1e30,
                 "Shorten the gradient to this norm where it is longer; 0: off",
                 .resume = CLI_RESTORE),
        cli_real("ema", &recipe->ema_decay, 0, 0.999999999,
                 "Average the weights with this decay (0.999), and validate, save and write "
                 "samples with the averages; 0: off",
                 .resume = CLI_RESTORE),
        cli_text("save-best", "FILE", &g->save_best,
                 "Write the model alone each time the validation loss is the lowest so far"),
        cli_int("print-every", &g->print_every, 1, 1e9, "Steps between two lines of progress"),
        cli_int("sample-every", &g->sample_every, 0, 1e9,
                "Steps after which the model writes a sample; 0: never"),
        cli_text("sample", "TEXT", &g->sample, "What samples begin with; otherwise a new line"),
        cli_int("spawn", &g->spawn, 0, 1024, "Start N processes here (td_ddp); 0: none"),
        { 0 }
    };
    train_args_add(&g->base.args, table);
    train_args_rank_options(&g->base.args);
    train_cut_options(&g->base.args);
}

/* Adapters, and writing. */
static void model_options(gpt_run *g)
{
    gpt_lora *l = &g->lora;
    gpt_writing *w = &g->writing;
    const cli_option table[] = {
        cli_int("lora", &l->rank, 0, 1 << 16,
                "Train adapters of this rank (LoRA) next to the weights of --init, which stay; "
                "--save-model then writes the adapters alone; 0: train the weights",
                .resume = CLI_RESTORE, .first = true),
        cli_real("lora-alpha", &l->alpha, 0, 1e6, "Adapters count alpha / rank; 0: rank",
                 .resume = CLI_RESTORE),
        cli_text(
            "lora-layers", "PATTERN[,PATTERN]", &l->layers,
            "The linear layers that get adapters, by their paths: \"*.attn.c_attn\"; \"*\": all",
            .resume = CLI_RESTORE),
        cli_text("adapter", "FILE", &l->adapter,
                 "Adapters for --init, to be trained further, or for --model",
                 .resume = CLI_RESTORE),
        cli_text("merge", "FILE", &l->merge,
                 "Write --model with --adapter as one model, instead of training"),
        cli_text("generate", "TEXT", &g->generate,
                 "Write what follows this text, and the PROMPTs, instead of training",
                 .first = true),
        cli_text("model", "PATH", &g->model, "The model that writes, or is merged", .first = true),
        cli_text("vocab", "FILE", &w->vocab,
                 "Tokenizer: vocab.json (with --merges), or tiktoken's ranks; otherwise the one "
                 "that the model's file names, or bytes",
                 .resume = CLI_RESTORE, .first = true),
        cli_text("merges", "FILE", &w->merges, "Tokenizer: merges.txt", .resume = CLI_RESTORE),
        cli_int("length", &w->length, 1, 1e9, "Tokens to write", .first = true),
        cli_real("temperature", &w->temperature, 0, 100,
                 "Below 1 likelier tokens, above 1 rarer ones; 0: always the likeliest"),
        cli_int("top-k", &w->top_k, 0, 1e9, "Draw one of the K likeliest tokens; 0: of all"),
        cli_real("top-p", &w->top_p, 0.000001, 1,
                 "Draw one of the likeliest whose probabilities add up to this"),
        cli_real("repetition-penalty", &w->repetition_penalty, 0.01, 100,
                 "Above 1: tokens that are in the text already become less likely"),
        cli_text("stop", "TEXT", &w->stop, "Stop before this text"),
        cli_flag("bf16", &w->bf16, "Hold the weights in bf16: half the memory, and faster"),
        { 0 }
    };
    train_args_add(&g->base.args, table);
}

int main(int argc, char **argv)
{
    gpt_run g = { .base = { .task = &gpt_task,
                            .app = "gpt",
                            .args = { .epochs = 8,
                                      .batch_size = 12,
                                      .lr = 1e-3,
                                      .seed = 1337,
                                      .files.save_every = 1,
                                      .recipe = { .accumulate = 1, .clip_grad_norm = 1 } } },
                  .preset = "gpt-nano",
                  .learning = { .epoch_steps = 250,
                                .warmup = 100,
                                .min_lr = 1e-4,
                                .beta2 = 0.99,
                                .weight_decay = 0.1 },
                  .print_every = 50,
                  .val_fraction = 0.1,
                  .sample = "\n",
                  .lora.layers = "*.attn.c_attn",
                  .prompts = { .name = "[PROMPT...]" },
                  .writing = { .length = 500,
                               .seed = 1337,
                               .temperature = 0.8,
                               .top_k = 200,
                               .top_p = 1,
                               .repetition_penalty = 1 } };
    train_args *args = &g.base.args;
    train_args_options(args,
                       "Text files or token files (apps/tokenize): FILE,FILE or a pattern; "
                       "otherwise $TANDEM_TEXT, otherwise this project's sources",
                       "Checkpoint to write; Ctrl-C writes one, too");
    training_options(&g);
    model_options(&g);
    train_args_find(args, "epochs")->help = "Number of epochs, of --epoch-steps steps each";
    train_args_find(args, "batch-size")->help = "Windows of text in a batch, of each process";
    train_args_find(args, "seed")->help = "Of all that is random, in training and in --generate";
    cli_parse_rest(argc, argv,
                   "Trains a GPT on text: on one device, by --spawn, or as one of the processes "
                   "that tdrun, srun or mpirun has started. Or writes text (--generate).",
                   args->options, args->option_count, &g.prompts);
    return gpt_begin(&g);
}
