/* Lesson 15: the GPT of lesson 12 as a pipeline: each process has some of the layers.
 *
 *     gpt_pipeline --data tinyshakespeare.txt --nprocs 2
 *     gpt_pipeline --nprocs 4 --micro 8 --schedule zb --drawing step.svg
 *     gpt_pipeline --nprocs 4 --micro 8 --schedule zb --show 1          what a schedule looks like
 *
 * New compared with lesson 13: td_pipeline in place of td_ddp, and td_pipeline_step, which computes
 * what td_forward2, the loss and td_backward did. All processes read the same batches.
 * td_defer_init leaves weights without memory until td_pipeline knows who has them. */
#include <dist/comm/collectives.h>
#include <dist/comm/mesh.h>
#include <dist/pipeline/pipeline.h>
#include <tandem.h>

#include <stdlib.h>

static const char *text, *model = "gpt-nano untied"; /* the options; text NULL: $TANDEM_TEXT */
static const char *schedule = "1f1b", *drawing;
static int steps = 2000, batch_size = 12, each = 250, nprocs = 2, micro = 4, show, seed = 1337;
static const td_option options[] = {
    { "data", .text = &text },
    { "model", .text = &model },
    { "steps", .number = &steps, .least = 1 },
    { "batch-size", .number = &batch_size, .least = 1 },
    { "evaluate-every", .number = &each, .least = 1 },
    { "nprocs", .number = &nprocs, .least = 1 },
    { "micro", .number = &micro, .least = 1 },
    { "schedule", .text = &schedule },
    { "drawing", .text = &drawing },
    { "show", .number = &show, .most = 1 },
    { "seed", .number = &seed },
    { 0 },
};
static const char usage[] = "[--data FILE] [--model NAME] [--steps N] [--batch-size N]\n"
                            "       [--evaluate-every STEPS] [--nprocs N] [--micro N]\n"
                            "       [--schedule gpipe|1f1b|interleaved:N|zb] [--drawing FILE]\n"
                            "       [--show 0|1] [--seed N]";

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

/* Every rank's share of the parameters. */
static void print_shares(td_module *net)
{
    double *counts = calloc((size_t)nprocs, sizeof *counts);
    const td_params *params = td_parameters(net);
    for (int i = 0; i < td_params_count(params); i++) {
        counts[td_dist_rank()] += (double)td_params_get(params, i)->count;
    }
    if (td_all_reduce_numbers(NULL, counts, nprocs) != TD_OK) {
        td_die();
    }
    for (int r = 0; r < nprocs; r++) {
        td_printf_rank0("rank %d has %.0f of %lld parameters\n", r, counts[r],
                        (long long)td_parameter_count(net));
    }
    free(counts);
}

/* Runs in each process. */
static int train(int local_rank, void *unused)
{
    (void)local_rank, (void)unused;
    td_mesh *mesh;
    if (td_dist_init() != TD_OK || td_mesh_new("pp=*", &mesh) != TD_OK) {
        td_die();
    }
    td_device device = td_default_device();

    td_manual_seed((uint64_t)seed);
    td_defer_init(true);
    td_module *net = td_model(model, .classes = 256);
    td_defer_init(false);
    if (net == NULL || td_module_to(net, device, TD_F32) != TD_OK) {
        td_die();
    }
    int64_t context = td_gpt_options_of(net).context;
    net = td_pipeline(net, .mesh = mesh, .micro = micro, .schedule = schedule);
    if (net == NULL) {
        td_die();
    }
    print_shares(net);

    /* All ranks read the same batches: the first stage takes the tokens, the last one the labels.
     */
    td_dataset *train_set = open_text(text, context, false);
    td_dataset *val_set = open_text(text, context, true);
    td_loader *loader =
        td_loader_open(train_set, .batch_size = batch_size, .device = device,
                       .sampler = td_window_sampler((int64_t)batch_size * each, (uint64_t)seed));
    td_loader *val_loader = td_loader_open(val_set, .batch_size = batch_size, .device = device);
    td_optim *optim = td_adamw(td_parameters(net), .lr = 1e-3, .beta2 = 0.99, .weight_decay = 0.1);
    if (loader == NULL || val_loader == NULL || optim == NULL ||
        td_optim_group(optim, is_vector, NULL, 1.0, 0.0) < 0) {
        td_die();
    }
    td_schedule rates = { .kind = TD_SCHEDULE_COSINE,
                          .base_lr = 1e-3,
                          .min_lr = 1e-4,
                          .total = steps,
                          .warmup = 100,
                          .after_warmup = true };

    for (int64_t step = 0; step < steps;) {
        double sum = 0;
        for (td_batch batch; td_loader_next(loader, &batch); step++) {
            td_optim_set_lr(optim, td_schedule_lr(&rates, (double)step));
            TD_STEP {
                td_zero_grad(optim);
                td_pipeline_result r = td_pipeline_step(net, batch.x, batch.y);
                if (r.status != TD_OK) {
                    td_die();
                }
                td_clip_grad_norm(td_parameters(net), 1.0); /* the norm is over all stages */
                td_optim_step(optim);
                sum += r.loss;
            }
        }
        td_evaluation val = td_evaluate(net, val_loader, .group = td_mesh_group(mesh, "rep+dp"));
        if (td_loader_status(loader) != TD_OK || val.status != TD_OK) {
            td_die();
        }
        td_printf_rank0("step %5lld: loss %.4f | validation: loss %.4f, %.1f %% of bytes right\n",
                        (long long)step, sum / each, val.loss, 100 * val.accuracy);
    }
    double bubble = 0;
    if (drawing != NULL && td_pipeline_picture(net, drawing, &bubble) != TD_OK) {
        td_die();
    }
    if (drawing != NULL) {
        td_printf_rank0("the last step is in %s; its bubble: %.3f\n", drawing, bubble);
    }

    td_loader_close(val_loader);
    td_loader_close(loader);
    td_optim_free(optim);
    td_module_free(net);
    td_dataset_free(val_set);
    td_dataset_free(train_set);
    td_mesh_free(mesh);
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
    if (batch_size % micro != 0) {
        td_refuse_options(usage, "--batch-size %d cannot be cut into --micro %d equal parts",
                          batch_size, micro);
    }
    if (show == 1) {
        if (td_schedule_text(schedule, nprocs, micro, stdout) != TD_OK) {
            td_die();
        }
        return 0;
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
