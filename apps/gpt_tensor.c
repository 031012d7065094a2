/* Lesson 16: tensor slices. The GPT of lesson 13, with every matrix cut among processes.
 *
 *     gpt_tensor --data tinyshakespeare.txt --nprocs 2
 *     gpt_tensor --data tinyshakespeare.txt --nprocs 4 --tp 2 --slices 4
 *
 * New compared with lesson 13: the plan, which says for each matrix along which dimension it is
 * cut, and td_tensor_parallel, which cuts. The model's code does not change. Of --nprocs processes,
 * groups of --tp hold one model together (all of them, unless --tp is given); the groups read
 * different parts of the batch, and td_ddp averages their gradients, as in lesson 13.
 *
 * With --slices N sums over slices are taken in an order that does not depend on the number of
 * processes: N slices on 1, 2, 4 or N processes give the same weights, bit for bit. */
#include <dist/comm/collectives.h>
#include <dist/comm/mesh.h>
#include <tandem.h>

#include <stdlib.h>

static const char *text, *model = "gpt-nano"; /* the options; text NULL: $TANDEM_TEXT */
static int steps = 2000, batch_size = 12, each = 250, nprocs = 2, tp, slices, seed = 1337;
static const td_option options[] = {
    { "data", .text = &text },
    { "model", .text = &model },
    { "steps", .number = &steps, .least = 1 },
    { "batch-size", .number = &batch_size, .least = 1 },
    { "print-every", .number = &each, .least = 1 },
    { "nprocs", .number = &nprocs, .least = 1 },
    { "tp", .number = &tp, .least = 1 },
    { "slices", .number = &slices, .least = 1 },
    { "seed", .number = &seed },
    { 0 },
};
static const char usage[] = "[--data FILE] [--model NAME] [--steps N] [--batch-size N]\n"
                            "       [--print-every STEPS] [--nprocs N] [--tp N] [--slices N] "
                            "[--seed N]";

/* Cuts the model. Queries, keys and values are cut head by head, the vocabulary word by word;
 * between the products each process has a part of the rows. */
static td_module *cut(td_module *net, td_mesh *mesh)
{
    td_gpt_options o = td_gpt_options_of(net);
    const td_tp_rule plan[] = {
        { "*.attn.c_attn", .style = TD_TP_COLUMN, .parts = { o.heads, o.kv_heads, o.kv_heads } },
        { "*.attn.c_proj", .style = TD_TP_ROW },
        { "*.mlp.c_fc", .style = TD_TP_COLUMN },
        { "*.mlp.c_proj", .style = TD_TP_ROW },
        { "transformer.wte", .style = TD_TP_VOCAB },
        { "lm_head", .style = TD_TP_VOCAB },
        { "transformer.h", .style = TD_TP_SEQUENCE },
    };
    return td_tensor_parallel(net, plan, sizeof plan / sizeof *plan, .mesh = mesh,
                              .slices = slices);
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
    char shape[64];
    td_mesh *mesh;
    snprintf(shape, sizeof shape, "dp=*,tp=%d", tp);
    if (td_dist_init() != TD_OK || td_mesh_new(shape, &mesh) != TD_OK) {
        td_die();
    }
    int parts = td_mesh_size(mesh, "dp"), part = td_mesh_rank(mesh, "dp");
    td_device device = td_default_device();

    /* The same seed everywhere: each process draws whole matrices and keeps its slice. */
    td_manual_seed((uint64_t)seed);
    td_module *net = td_model(model, .classes = 256);
    if (net == NULL || td_module_to(net, device, TD_F32) != TD_OK) {
        td_die();
    }
    int64_t context = td_gpt_options_of(net).context, whole = td_parameter_count(net);
    net = cut(net, mesh);
    net = parts > 1 ? td_ddp(net, .mesh = mesh) : net;
    if (net == NULL) {
        td_die();
    }
    td_printf_rank0("%lld parameters, of which this process has %lld\n", (long long)whole,
                    (long long)td_parameter_count(net));

    /* Processes that hold one model together read the same windows. */
    td_dataset *data = td_tokens_open(text, .window = context, .stride = 1,
                                      .format = TD_TOKENS_BYTES, .val_fraction = 0.1);
    td_loader *loader =
        td_loader_open(data, .batch_size = batch_size / parts, .device = device,
                       .sampler = td_window_sampler((int64_t)batch_size * each, (uint64_t)seed),
                       .deal = { .rank = part, .world_size = parts });
    td_optim *optim = td_adamw(td_parameters(net), .lr = 1e-3, .beta2 = 0.99, .weight_decay = 0.1);
    if (loader == NULL || optim == NULL || td_optim_group(optim, is_vector, NULL, 1.0, 0.0) < 0) {
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
        if (td_loader_status(loader) != TD_OK || td_all_reduce_numbers(NULL, &sum, 1) != TD_OK ||
            td_tensor_parallel_check(net) != TD_OK) {
            td_die();
        }
        td_printf_rank0("step %5lld: loss %.4f\n", (long long)step, sum / each / nprocs);
    }
    /* All processes save: the file has whole matrices, and loads into any model of this kind. */
    if (td_save("gpt_tensor.safetensors", net) != TD_OK) {
        td_die();
    }

    td_loader_close(loader);
    td_optim_free(optim);
    td_module_free(net);
    td_mesh_free(mesh);
    td_dataset_free(data);
    td_dist_destroy();
    return 0;
}

int main(int argc, char **argv)
{
    td_read_options(argc, argv, usage, options);
    each = each < steps ? each : steps;
    tp = tp > 0 ? tp : nprocs;
    if (steps % each != 0) {
        td_refuse_options(usage, "--steps %d is no multiple of --print-every %d", steps, each);
    }
    if (nprocs % tp != 0 || batch_size % (nprocs / tp) != 0) {
        td_refuse_options(usage,
                          "%d processes are no groups of --tp %d that can share --batch-size %d",
                          nprocs, tp, batch_size);
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
