/* Lesson 24: the GPT of lessons 13, 15 and 16 in three dimensions: stages, replicas and slices.
 *
 *     tdrun --nproc-per-node 8 gpt_3d --data tinyshakespeare.txt
 *     tdrun --nproc-per-node 4 gpt_3d --data tinyshakespeare.txt --resume 1
 *     tdrun --nproc-per-node 1 gpt_3d --data tinyshakespeare.txt --mesh pp=1
 *     tdrun --nnodes 1:2 --max-restarts 3 --rdzv-endpoint host0:29500 --nproc-per-node 4 ...
 *         gpt_3d --data tinyshakespeare.txt --resume 1               on two hosts
 *
 * New compared with lessons 13, 15 and 16: one mesh for all three, and the order in which a model
 * is made: drawn, cut into slices, cut into stages, wrapped for data parallelism, given an
 * optimizer, loaded. Leaves (lesson 17) are the micro-batches of the pipelines. So the weights do
 * not depend on the mesh, and a run may go on under another one: dp=* takes what is left. */
#include <dist/comm/mesh.h>
#include <dist/leaves/leaves.h>
#include <dist/pipeline/pipeline.h>
#include <dist/shard/zero.h>
#include <dist/slices/slices.h>
#include <nn/io/checkpoint.h>
#include <nn/io/fingerprint.h>
#include <tandem.h>

#include <stdlib.h>
#include <unistd.h>

static const char file[] = "gpt_3d.safetensors";
static const char *text, *model = "gpt-nano"; /* the options; text NULL: $TANDEM_TEXT */
static const char *shape = "pp=2,dp=*,tp=2";
static int steps = 2000, until, samples = 2, each = 250, leaves = 8, slices = 2, resume,
           seed = 1337;
static const td_option options[] = {
    { "data", .text = &text },
    { "model", .text = &model },
    { "mesh", .text = &shape },
    { "steps", .number = &steps, .least = 1 },
    { "until", .number = &until, .least = 1 },
    { "print-every", .number = &each, .least = 1 },
    { "leaves", .number = &leaves, .least = 1 },
    { "leaf-size", .number = &samples, .least = 1 },
    { "slices", .number = &slices, .least = 1 },
    { "resume", .number = &resume, .most = 1 },
    { "seed", .number = &seed },
    { 0 },
};
static const char usage[] = "[--data FILE] [--model NAME] [--mesh pp=P,dp=D,tp=T] [--steps N]\n"
                            "       [--until STEP] [--print-every STEPS] [--leaves N]\n"
                            "       [--leaf-size N] [--slices N] [--resume 0|1] [--seed N]";

/* Who has which part of the model: slices of each matrix, stages of layers, copies of a stage whose
 * optimizer state is divided. On one process the same calls cut nothing away. */
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
    };
    net = td_tensor_parallel(net, plan, sizeof plan / sizeof *plan, .mesh = mesh, .slices = slices);
    net = td_pipeline(net, .mesh = mesh);
    return td_ddp(net, .mesh = mesh,
                  .strategy = td_leaves(leaves, .strategy = td_zero(TD_SHARD_OPTIMIZER)));
}

/* Weight decay is for matrices: biases and norms are vectors. */
static bool is_vector(const td_param *param, void *user)
{
    (void)user;
    return param->tensor->ndim < 2;
}

/* All processes save: each has a part of the whole. */
static void save(td_module *net, td_optim *optim, td_loader *loader, int64_t step, double loss)
{
    td_fingerprints bits;
    if (td_checkpoint_save(file, net, .optim = optim, .loader = loader, .with_random = true) !=
            TD_OK ||
        td_fingerprint(&bits, .model = net, .optim = optim) != TD_OK) {
        td_die();
    }
    td_printf_rank0("step %5lld: loss %.4f, fingerprint %016llx\n", (long long)step, loss,
                    (unsigned long long)bits.all);
    td_fingerprints_free(&bits);
}

static void train(td_module *net, td_optim *optim, td_loader *loader)
{
    td_schedule rates = { .kind = TD_SCHEDULE_COSINE,
                          .base_lr = 1e-3,
                          .min_lr = 1e-4,
                          .total = steps,
                          .warmup = 100,
                          .after_warmup = true };
    for (int64_t step = (int64_t)td_loader_epoch(loader) * each; step < until;) {
        double loss = 0;
        for (td_batch batch; td_loader_next(loader, &batch); step++) {
            td_optim_set_lr(optim, td_schedule_lr(&rates, (double)step));
            TD_STEP {
                /* Of each leaf of this pipeline: forward, loss and backward, stage by stage. */
                td_pipeline_result r = td_pipeline_step(net, batch.x, batch.y);
                if (r.status != TD_OK) {
                    td_die();
                }
                td_clip_grad_norm(td_parameters(net), 1.0); /* over all stages and slices */
                td_optim_step(optim);
                loss = td_all_reduce_mean(r.loss); /* all pipelines' */
            }
        }
        if (td_loader_status(loader) != TD_OK || td_tensor_parallel_check(net) != TD_OK) {
            td_die();
        }
        save(net, optim, loader, step, loss);
    }
}

int main(int argc, char **argv)
{
    td_read_options(argc, argv, usage, options);
    each = each < steps ? each : steps;
    if (steps % each != 0) {
        td_refuse_options(usage, "--steps %d is no multiple of --print-every %d", steps, each);
    }
    until = until > 0 && until < steps ? until : steps;
    text = text != NULL ? text : getenv("TANDEM_TEXT");
    td_mesh *mesh;
    if (td_dist_init() != TD_OK || td_mesh_new(shape, &mesh) != TD_OK) {
        td_die();
    }
    if (text == NULL) {
        text = "*/*.c";
        td_printf_rank0("*** This is NOT Shakespeare: no --data. It is this project's sources.\n");
    }
    td_printf_rank0("stages: %d, replicas: %d, processes for each matrix: %d\n",
                    td_mesh_size(mesh, "pp"), td_mesh_size(mesh, "dp"), td_mesh_size(mesh, "tp"));
    td_device device = td_default_device();

    /* The same seed everywhere. No process ever has memory for the whole model. */
    td_manual_seed((uint64_t)seed);
    td_defer_init(true);
    td_module *net = td_model(model, .classes = 256);
    td_defer_init(false);
    if (net == NULL || td_module_to(net, device, TD_F32) != TD_OK) {
        td_die();
    }
    int64_t context = td_gpt_options_of(net).context;
    net = cut(net, mesh);
    if (net == NULL) {
        td_die();
    }

    /* The processes of one pipeline read the same leaves. */
    td_deal deal = td_leaf_deal(net, samples);
    int64_t windows = (int64_t)samples * leaves * each;
    td_dataset *data = td_tokens_open(text, .window = context, .stride = 1,
                                      .format = TD_TOKENS_BYTES, .val_fraction = 0.1);
    td_loader *loader =
        td_loader_open(data, .batch_size = samples * deal.parts, .device = device,
                       .sampler = td_window_sampler(windows, (uint64_t)seed), .deal = deal);
    td_optim *optim = td_adamw(td_parameters(net), .lr = 1e-3, .beta2 = 0.99, .weight_decay = 0.1);
    if (loader == NULL || optim == NULL || td_optim_group(optim, is_vector, NULL, 1.0, 0.0) < 0) {
        td_die();
    }
    /* The file has whole tensors: every process takes its part of them. */
    if (resume && access(file, R_OK) == 0 &&
        td_checkpoint_load(file, net, .optim = optim, .loader = loader, .with_random = true) !=
            TD_OK) {
        td_die();
    }
    train(net, optim, loader);

    td_loader_close(loader);
    td_optim_free(optim);
    td_module_free(net);
    td_mesh_free(mesh);
    td_dataset_free(data);
    td_dist_destroy();
    return 0;
}
