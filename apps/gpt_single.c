/* Lesson 12: a GPT learns to write, on one device.
 *
 * The model reads text as tokens, here bytes, and learns what comes next: it
 * computes, for each of 64 places in a window of the text, a probability for each of 256 bytes.
 * Then the model writes: the program draws the next byte, appends it, and asks the model again. The
 * sizes are nanoGPT's for a CPU (karpathy/nanoGPT, config/train_shakespeare_char.py): four layers,
 * 800,000 parameters.
 *
 *     gpt_single --data tinyshakespeare.txt       2,000 steps: two or three minutes
 *     gpt_single --resume gpt_single.safetensors --steps 4000
 *
 * New compared with lesson 5: windows of one text instead of images, a loss that the model
 * computes itself, a learning rate that follows a schedule, and a run that can be resumed. */
#include <tandem.h>

#include <stdlib.h>

static const char *text, *model = "gpt-nano", *resume; /* the options; text NULL: $TANDEM_TEXT */
static int steps = 2000, batch_size = 12, each = 250, length = 500, seed = 1337;
static const td_option options[] = {
    { "data", .text = &text },
    { "model", .text = &model },
    { "resume", .text = &resume },
    { "steps", .number = &steps, .least = 1 },
    { "batch-size", .number = &batch_size, .least = 1 },
    { "evaluate-every", .number = &each, .least = 1 },
    { "length", .number = &length },
    { "seed", .number = &seed },
    { 0 },
};
static const char usage[] = "[--data FILE] [--model NAME] [--resume CHECKPOINT] [--steps N]\n"
                            "       [--batch-size N] [--evaluate-every STEPS] [--length BYTES] "
                            "[--seed N]";

/* The last tenth of the text is for validation. */
static td_dataset *open_text(const char *path, int64_t window, bool val)
{
    td_dataset *dataset =
        td_tokens_open(path, .window = window, .stride = val ? window : 1,
                       .format = TD_TOKENS_BYTES, .val_fraction = 0.1, .val = val);
    if (dataset == NULL) {
        td_die(); /* prints what went wrong, and exits with 1 */
    }
    return dataset;
}

/* Weight decay is for matrices: biases and norms are vectors. */
static bool is_vector(const td_param *param, void *user)
{
    (void)user;
    return param->tensor->ndim < 2;
}

/* Prints a token as soon as it is drawn. */
static bool print_byte(int prompt, int64_t token, void *user)
{
    (void)prompt, (void)user;
    putchar((int)token);
    return fflush(stdout) == 0;
}

int main(int argc, char **argv)
{
    td_read_options(argc, argv, usage, options);
    each = each < steps ? each : steps;
    if (steps % each != 0) {
        td_refuse_options(usage, "--steps %d is no multiple of --evaluate-every %d", steps, each);
    }
    td_device device = td_default_device(); /* TANDEM_DEVICE=cuda: a GPU; otherwise the CPU */

    /* The model, with the initial weights that nanoGPT has after torch.manual_seed(seed). */
    td_manual_seed((uint64_t)seed);
    td_module *net = td_model(model, .classes = 256);
    if (net == NULL || td_module_to(net, device, TD_F32) != TD_OK) {
        td_die();
    }
    int64_t context = td_gpt_options_of(net).context;

    /* The data. A sample is a window of the text, x, and the same one byte later, y. Training draws
     * windows at random; an "epoch" is the batches between two evaluations. */
    text = text != NULL ? text : getenv("TANDEM_TEXT");
    if (text == NULL) {
        text = "*/*.c";
        printf("*** This is NOT Shakespeare: no --data. The text is this project's sources.\n");
    }
    td_dataset *train_set = open_text(text, context, false);
    td_dataset *val_set = open_text(text, context, true);
    td_loader *loader =
        td_loader_open(train_set, .batch_size = batch_size, .device = device,
                       .sampler = td_window_sampler((int64_t)batch_size * each, (uint64_t)seed));
    td_loader *val_loader = td_loader_open(val_set, .batch_size = batch_size, .device = device);

    /* The optimizer. Its learning rate rises for 100 steps, then falls along a cosine. */
    td_optim *optim = td_adamw(td_parameters(net), .lr = 1e-3, .beta2 = 0.99, .weight_decay = 0.1);
    if (loader == NULL || val_loader == NULL || optim == NULL ||
        td_optim_group(optim, is_vector, NULL, 1.0, 0.0) < 0) {
        td_die();
    }
    td_schedule schedule = { .kind = TD_SCHEDULE_COSINE,
                             .base_lr = 1e-3,
                             .min_lr = 1e-4,
                             .total = steps,
                             .warmup = 100,
                             .after_warmup = true };

    /* A checkpoint has the weights, the optimizer, and the loader's place in the data: the resumed
     * run goes on as if it had never stopped, with the same bits. */
    if (resume != NULL && td_checkpoint_load(resume, net, .optim = optim, .loader = loader,
                                             .with_random = true) != TD_OK) {
        td_die();
    }
    printf("%s: %lld parameters, %lld windows of text, %d threads\n", model,
           (long long)td_parameter_count(net), (long long)train_set->length, td_threads(device));

    int64_t step = (int64_t)td_loader_epoch(loader) * each;
    while (step < steps) {
        double sum = 0;
        for (td_batch batch; td_loader_next(loader, &batch); step++) {
            td_optim_set_lr(optim, td_schedule_lr(&schedule, (double)step));
            TD_STEP {
                /* A forward of two inputs: tokens, and the tokens that follow them. It returns the
                 * mean cross-entropy over all places of all windows. */
                td_tensor *loss = td_forward2(net, batch.x, batch.y);
                td_zero_grad(optim);
                td_backward(loss);
                td_clip_grad_norm(td_parameters(net), 1.0);
                td_optim_step(optim);
                sum += td_item(loss);
            }
        }
        td_evaluation val = td_evaluate(net, val_loader);
        if (td_loader_status(loader) != TD_OK || val.status != TD_OK) {
            td_die();
        }
        /* ln 256 = 5.55 is the loss of a model that has learned nothing. */
        printf("step %5lld: loss %.4f | validation: loss %.4f, %.1f %% of bytes right\n",
               (long long)step, sum / each, val.loss, 100 * val.accuracy);
        if (td_checkpoint_save("gpt_single.safetensors", net, .optim = optim, .loader = loader,
                               .with_random = true) != TD_OK) {
            td_die();
        }
    }

    /* The model writes, from the beginning of a line. */
    printf("---- %d bytes ----\n", length);
    if (td_gpt_generate(net, .prompts = &(td_gpt_prompt){ (int64_t[]){ '\n' }, 1 },
                        .length = length, .temperature = 0.8, .top_k = 200, .seed = (uint64_t)seed,
                        .slide = true, .token = print_byte) != TD_OK) {
        td_die();
    }
    printf("\n----\n");

    td_loader_close(val_loader);
    td_loader_close(loader);
    td_optim_free(optim);
    td_module_free(net);
    td_dataset_free(val_set);
    td_dataset_free(train_set);
    return td_finish();
}
