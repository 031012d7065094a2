/* --mesh pp=, tp=: a model that several processes hold together, each some stages of it, and in
 * these some slices of each matrix. */
#include "apps/tools/common/train.h"
#include "dist/pipeline/pipeline.h"

#include <string.h>

void train_cut_options(train_args *args)
{
    const cli_option table[] = {
        cli_int("slices", &args->ranks.slices, 0, 1 << 16,
                "Cut matrices into N slices: the weights are the same, bit for bit, on 1 to N "
                "processes along tp; 0: one for each of them",
                .resume = CLI_RESTORE, .unwritten = "0"),
        cli_int("micro", &args->ranks.micro, 0, 1 << 16,
                "Micro-batches of a batch in a pipeline, whose sum has the same bits on any number "
                "of stages; 0: two for each process along pp, or the leaves of --leaves",
                .resume = CLI_RESTORE, .unwritten = "0"),
        cli_text(
            "schedule", "NAME", &args->ranks.schedule,
            "When which micro-batch runs in a pipeline: gpipe, 1f1b, interleaved:N or zb, which "
            "all give the same bits; otherwise 1f1b"),
        { 0 }
    };
    train_args_add(args, table);
}

bool train_has_stages(const train_run *r)
{
    const td_mesh *mesh = r->ranks.mesh;
    return mesh != NULL && (td_mesh_size(mesh, "pp") > 1 || r->args.ranks.micro > 0);
}

static bool cut_has_slices(const train_run *r)
{
    const td_mesh *mesh = r->ranks.mesh;
    return mesh != NULL && (td_mesh_size(mesh, "tp") > 1 || r->args.ranks.slices > 0);
}

bool train_is_cut(const train_run *r)
{
    return train_has_stages(r) || cut_has_slices(r);
}

int train_copies(const train_run *r)
{
    return r->ranks.mesh != NULL ? td_mesh_size(r->ranks.mesh, "pp+tp") : 1;
}

td_status train_check_cut(const train_run *r)
{
    const train_args *a = &r->args;
    bool stages = train_has_stages(r);
    const struct {
        bool given;
        const char *what, *why;
    } refused[] = {
        { a->compute.graph, "--graph",
          "between its operations the host reads tokens and sends messages, which no graph "
          "records; leave it out" },
        { a->summary, "--summary", "each process has a part of it; start one process without" },
        { stages && a->files.hash_every > 0, "--hash-every",
          "a process has no other stage's tensors; compare checkpoints (apps/compare)" },
        { stages && r->ranks.hook.rank > 0, "--comm-hook powersgd",
          "checkpoints of stages have no place for what it keeps; take bf16" },
        { stages && td_math_now().precision == TD_PRECISION_FP16, "--precision fp16",
          "the stages do not agree on which steps are skipped; take bf16" },
    };
    TD_CHECK(td_dist_is_initialized() || a->ranks.micro + a->ranks.slices == 0, TD_E_ARG,
             "--micro and --slices are for processes; one is enough (--spawn 1, or tdrun "
             "--nproc-per-node 1)");
    TD_CHECK(a->ranks.leaves <= 0 || a->ranks.micro <= 0, TD_E_ARG,
             "--leaves, and --micro: leaves are the micro-batches of a pipeline");
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        TD_CHECK(!train_is_cut(r) || !refused[i].given, TD_E_UNSUPPORTED,
                 "%s does not work with a model in %s: %s", refused[i].what,
                 stages ? "stages" : "slices", refused[i].why);
    }
    return TD_OK;
}

td_module *train_cut(train_run *r, td_module *model, const td_tp_rule *rules, int count)
{
    const train_ranks *how = &r->args.ranks;
    r->ranks.parameters = td_parameter_count(model);
    if (cut_has_slices(r)) {
        model = td_tensor_parallel(model, rules, count, .mesh = r->ranks.mesh,
                                   .slices = (int)how->slices);
    }
    if (train_has_stages(r)) {
        model = td_pipeline(model, .mesh = r->ranks.mesh, .micro = (int)how->micro,
                            .schedule = how->schedule);
    }
    return model;
}

/* Of a leaf: notes its loss. */
static td_tensor *measure_leaf(td_module *net, const td_batch *batch, td_tensor **sums, void *user)
{
    const train_run *r = user;
    td_tensor *loss = train_measure(net, batch, sums, user);
    r->ranks.leaves.loss[batch->index] = td_item(loss);
    return loss;
}

td_status train_learn_stages(void *user, td_tensor *const *inputs, td_tensor **results)
{
    train_run *r = user;
    int leaves = td_leaf_count(r->net);
    train_group group = train_group_of(r, train_batches_asked(r));
    bool unsynced = td_is_ddp(r->net) && !group.last;
    td_loader_make(r->loader);
    if (group.first) {
        td_zero_grad(r->optim);
    }
    if (unsynced) {
        td_ddp_no_sync_begin(r->net);
    }
    if (leaves > 0) {
        memset(r->ranks.leaves.loss, 0, (size_t)leaves * sizeof(double));
    }
    td_pipeline_result step = td_pipeline_step(r->net, inputs[0], inputs[1],
                                               .measure = leaves > 0 ? measure_leaf : train_measure,
                                               .user = r, .scale = group.share);
    if (unsynced) {
        td_ddp_no_sync_end(r->net);
    }
    TD_TRY(step.status);
    TD_TRY(train_check_loss(r, step.loss));
    results[RESULT_LOSS] = train_number(step.loss);
    for (int i = 0; i < TRAIN_SUMS; i++) {
        results[RESULT_SUMS + i] = train_number(step.sums[i]);
    }
    if (group.last) {
        train_optimize(r);
    }
    return TD_OK;
}
