/* Lesson 13: the GPT of lesson 12 on several devices, a process for each.
 *
 *     gpt_ddp --data tinyshakespeare.txt --nprocs 2
 *     gpt_ddp --data tinyshakespeare.txt --nprocs 4 --shard 3
 *
 * New compared with lesson 12: td_spawn starts the processes, td_ddp averages their gradients, and
 * the loader gives each process its part of one order of windows. The processes divide the batch of
 * 12 among themselves, so the losses are the same as with one process. With --shard N they also
 * divide the optimizer's state (1), the gradients (2) and the weights (3) among themselves, as
 * lesson 11 explains; the numbers stay the same. */
#include <tandem.h>

#include <stdlib.h>

static const char *text, *model = "gpt-nano"; /* the options; text NULL: $TANDEM_TEXT */
static int steps = 2000, batch_size = 12, each = 250, nprocs = 2, shard, seed = 1337;
static const td_option options[] = {
    { "data", .text = &text },
    { "model", .text = &model },
    { "steps", .number = &steps, .least = 1 },
    { "batch-size", .number = &batch_size, .least = 1 },
    { "evaluate-every", .number = &each, .least = 1 },
    { "nprocs", .number = &nprocs, .least = 1 },
    { "shard", .number = &shard, .most = 3 },
    { "seed", .number = &seed },
    { 0 },
};
static const char usage[] = "[--data FILE] [--model NAME] [--steps N] [--batch-size N]\n"
                            "       [--evaluate-every STEPS] [--nprocs N] [--shard 0|1|2|3] "
                            "[--seed N]";

/* The last tenth of the text is for validation. */
static td_dataset *open_text(const char *path, int64_t window, bool val)
{
    td_dataset *dataset =
        td_tokens_open(path, .window = window, .stride = val ? window : 1,
                       .format = TD_TOKENS_BYTES, .val_fraction = 0.1, .val = val);
    if (dataset == NULL) {
        td_die();
    }
    return dataset;
}

/* Weight decay is for matrices: biases and norms are vectors. */
static bool is_vector(const td_param *param, void *user)
{
    (void)user;
    return param->tensor->ndim < 2;
}

/* Runs in each process. */
static int train(int local_rank, void *unused)
{
    (void)local_rank, (void)unused;
    if (td_dist_init() != TD_OK) {
        td_die();
    }
    td_device device = td_default_device();
    int ranks = td_dist_world_size();

    td_manual_seed((uint64_t)seed);
    td_module *net = td_model(model, .classes = 256);
    if (net == NULL || td_module_to(net, device, TD_F32) != TD_OK) {
        td_die();
    }
    int64_t context = td_gpt_options_of(net).context;
    net = shard > 0 ? td_ddp(net, .strategy = td_zero(shard)) : td_ddp(net);
    if (net == NULL) {
        td_die();
    }

    /* All ranks draw the same order of windows; with n ranks each takes every nth. */
    td_dataset *train_set = open_text(text, context, false);
    td_dataset *val_set = open_text(text, context, true);
    td_loader *loader =
        td_loader_open(train_set, .batch_size = batch_size / ranks, .device = device,
                       .sampler = td_window_sampler((int64_t)batch_size * each, (uint64_t)seed),
                       .deal = { .rank = td_dist_rank(), .world_size = ranks });
    td_loader *val_loader = td_loader_open(val_set, .batch_size = batch_size, .device = device,
                                           .sampler = td_distributed_sampler(.no_padding = true));
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

    for (int64_t step = 0; step < steps;) {
        double sum = 0;
        for (td_batch batch; td_loader_next(loader, &batch); step++) {
            td_optim_set_lr(optim, td_schedule_lr(&schedule, (double)step));
            TD_STEP {
                td_tensor *loss = td_forward2(net, batch.x, batch.y);
                td_zero_grad(optim);
                td_backward(loss);
                td_clip_grad_norm(td_parameters(net), 1.0);
                td_optim_step(optim);
                sum += td_item(loss);
            }
        }
        td_evaluation val = td_evaluate(net, val_loader);
        if (td_loader_status(loader) != TD_OK || val.status != TD_OK ||
            td_all_reduce_numbers(NULL, &sum, 1) != TD_OK) {
            td_die();
        }
        td_printf_rank0("step %5lld: loss %.4f | validation: loss %.4f, %.1f %% of bytes right\n",
                        (long long)step, sum / each / ranks, val.loss, 100 * val.accuracy);
    }
    /* With sharding each rank has a part of the weights: all ranks save, rank 0 writes. */
    if ((shard > 0 || td_dist_rank() == 0) && td_save("gpt_ddp.safetensors", net) != TD_OK) {
        td_die();
    }

    td_loader_close(val_loader);
    td_loader_close(loader);
    td_optim_free(optim);
    td_module_free(net);
    td_dataset_free(val_set);
    td_dataset_free(train_set);
    td_dist_destroy();
    return 0;
}

int main(int argc, char **argv)
{
    td_read_options(argc, argv, usage, options);
    each = each < steps ? each : steps;
    if (steps % each != 0) {
        td_refuse_options(usage, "--steps %d is no multiple of --evaluate-every %d", steps, each);
    }
    if (batch_size % nprocs != 0) {
        td_refuse_options(usage, "--batch-size %d cannot be divided among %d processes", batch_size,
                          nprocs);
    }
    text = text != NULL ? text : getenv("TANDEM_TEXT");
    if (text == NULL) {
        text = "*/*.c";
        printf("*** This is NOT Shakespeare: no --data. The text is this project's sources.\n");
        fflush(stdout);
    }
    if (td_spawn(train, NULL, nprocs) != TD_OK) {
        td_die();
    }
    return 0;
}
