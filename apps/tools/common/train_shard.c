/* --shard: what several processes share instead of each keeping all of it. --wire: how it travels.
 * --offload: where they keep it. --mesh: how they are arranged. */
#include "apps/tools/common/train.h"

static const char *const words[] = { "none", "optimizer", "gradients", "parameters" };

bool train_mesh_fits(const char *text)
{
    int sizes[TD_MESH_DIMS];
    return td_mesh_read(text, 0, sizes) == TD_OK;
}

td_status train_mesh(train_run *r)
{
    int sizes[TD_MESH_DIMS];
    if (ranks_elastic()) {
        return TD_OK; /* train_check_elastic refuses a mesh */
    }
    if (!td_dist_is_initialized()) {
        return r->args.ranks.mesh != NULL ? td_mesh_read(r->args.ranks.mesh, 1, sizes) : TD_OK;
    }
    TD_TRY(td_mesh_new(r->args.ranks.mesh, &r->ranks.mesh));
    int pp = td_mesh_size(r->ranks.mesh, "pp"), tp = td_mesh_size(r->ranks.mesh, "tp");
    TD_CHECK(pp * tp == 1 || r->task->cuts, TD_E_UNSUPPORTED,
             "the mesh has pp=%d and tp=%d, and %s neither cuts its model into "
             "stages nor its tensors into slices: use rep and dp",
             pp, tp, r->app);
    return TD_OK;
}

bool train_defers(const train_run *r)
{
    return td_dist_is_initialized() &&
           (r->ranks.zero.stage == TD_SHARD_PARAMETERS || train_is_cut(r));
}

td_status train_set_shard(train_run *r)
{
    int stage = TD_SHARD_PARAMETERS;
    while (stage > 0 &&
           (r->args.ranks.shard == NULL || strcmp(r->args.ranks.shard, words[stage]) != 0)) {
        stage--;
    }
    r->ranks.zero.strategy.type = &td_zero_type;
    r->ranks.zero.stage = (td_shard)stage;
    r->ranks.zero.offload = r->args.ranks.offload;
    bool narrow = r->args.ranks.wire != NULL && strcmp(r->args.ranks.wire, "none") != 0;
    r->ranks.zero.wire = narrow ? r->args.ranks.wire : NULL;
    bool several = td_dist_is_initialized() || ranks_elastic();
    bool shards = several && r->ranks.zero.stage == TD_SHARD_PARAMETERS;
    TD_CHECK(shards || (!narrow && r->args.ranks.offload == NULL), TD_E_ARG,
             "--%s is for processes with --shard parameters; one is enough (tdrun "
             "--nproc-per-node 1)",
             narrow ? "wire" : "offload");
    return TD_OK;
}

bool train_shards(const train_run *r)
{
    return r->ranks.zero.stage != TD_SHARD_NONE && td_is_ddp(r->net);
}

bool train_saves_model(const train_run *r)
{
    return ranks_first() || train_is_cut(r) ||
           (train_shards(r) && r->ranks.zero.stage == TD_SHARD_PARAMETERS);
}

void train_shard_tell(const train_run *r)
{
    if (train_copies(r) > 1) {
        td_printf_rank0("the model is cut into %d stages of %d slices\n",
                        td_mesh_size(r->ranks.mesh, "pp"), td_mesh_size(r->ranks.mesh, "tp"));
    }
    if (train_shards(r)) {
        td_shard_stats s = td_ddp_shard_stats(r->net);
        double mib = (double)(s.state + s.gradients * (r->ranks.zero.stage >= TD_SHARD_GRADIENTS) +
                              s.values * (r->ranks.zero.stage >= TD_SHARD_PARAMETERS)) /
                     1048576.0;
        static const char *const shared[] = { "", "the optimizer's state is",
                                              "the optimizer's state and gradients are",
                                              "the optimizer's state, gradients and values are" };
        int replicas = td_mesh_size(r->ranks.mesh, "rep");
        char each[64] = "";
        if (replicas > 1) {
            snprintf(each, sizeof each, " in each of %d replicas", replicas);
        }
        td_printf_rank0("%s cut into %d windows%s: %.1f MiB a process\n",
                        shared[r->ranks.zero.stage], td_mesh_size(r->ranks.mesh, "dp"), each, mib);
    } else if (r->ranks.zero.stage != TD_SHARD_NONE) {
        td_printf_rank0("--shard: there is one process%s, and nothing is shared\n",
                        train_copies(r) > 1 ? " along dp" : "");
    }
}
