/* Runs of models with leaves, for their tests. */
#include "tests/dist/leaf_run.h"

#include "dist/comm/collectives.h"
#include "nn/extra/ema.h"
#include "nn/extra/scaler.h"
#include "nn/internal.h"
#include "tandem.h"
#include "tensor/extend.h"
#include "tensor/system/text.h"
#include "tests/dist/ddp_job.h"
#include "tests/help/dist_procs.h"

#include <stdlib.h>
#include <sys/mman.h>

enum { FEATURES = 24, CLASSES = 10, SIDE = 8, SAMPLES = 3 };

typedef struct leaf_job {
    leaf_case c;
    uint64_t hash; /* rank 0's */
} leaf_job;

/* With BatchNorm, Dropout, and blocks of which each is a unit. */
static td_module *mlp(void)
{
    return td_nn_sequential(td_nn_linear(FEATURES, 96),
                            td_nn_sequential(td_nn_linear(96, 100), td_nn_batch_norm2d(100),
                                             td_nn_relu(), td_nn_dropout(0.2)),
                            td_nn_sequential(td_nn_linear(100, 64), td_nn_layer_norm(64),
                                             td_nn_gelu(), td_nn_dropout(0.1)),
                            td_nn_linear(64, CLASSES));
}

typedef struct routed {
    td_module *first, *sometimes, *last;
    bool skips;
} routed;

static td_tensor *routed_forward(td_module *self, td_tensor *x, td_site at)
{
    const routed *r = self->state;
    x = td_gelu(td_forward_at(r->first, x, at));
    x = r->skips ? x : td_forward_at(r->sometimes, x, at);
    return td_forward_at(r->last, x, at);
}

static const td_module_type routed_type = { .name = "Routed", .forward = routed_forward };

static td_module *new_routed(void)
{
    td_module *m = td_module_new(&routed_type, sizeof(routed));
    routed *r = m->state;
    r->first = td_module_add(m, "first", td_nn_linear(FEATURES, 32));
    r->sometimes = td_module_add(m, "sometimes", td_nn_linear(32, 32));
    r->last = td_module_add(m, "last", td_nn_linear(32, CLASSES));
    return td_module_finish(m);
}

static td_module *new_net(const leaf_case *c)
{
    td_manual_seed(1);
    td_module *net = c->model == LEAF_MLP ? mlp()
                     : c->model == LEAF_ROUTED
                         ? new_routed()
                         : td_model("resnet18", .classes = CLASSES, .stem = TD_STEM_CIFAR);
    REQUIRE(net != NULL);
    REQUIRE_OK(td_module_to(net, TD_CPU, c->dtype));
    return net;
}

/* Random samples; those of a leaf in a step have a seed of their own. */
static td_batch new_batch(const leaf_case *c, int64_t size, uint64_t seed)
{
    td_generator g;
    td_generator_seed(&g, seed);
    bool flat = c->model != LEAF_RESNET;
    td_shape shape = flat ? TD_SHAPE(size, FEATURES) : TD_SHAPE(size, 3, SIDE, SIDE);
    td_batch batch = { .x = td_new_layout(shape, c->dtype, flat ? TD_ROW_MAJOR : TD_IMAGE, TD_CPU),
                       .y = td_new(TD_SHAPE(size), TD_I64, TD_CPU) };
    REQUIRE(batch.x != NULL && batch.y != NULL);
    td_normal_(batch.x, 0, 1, &g);
    int64_t *labels = td_data_rw(batch.y);
    for (int64_t i = 0; i < size; i++) {
        labels[i] = td_random_int(&g, 0, CLASSES);
    }
    return batch;
}

static void free_batch(td_batch *batch)
{
    td_free(batch->x);
    td_free(batch->y);
}

typedef struct leaf_run {
    const leaf_case *c;
    td_module *net;
    td_optim *optim;
    td_ema *ema;
    td_scaler *scaler;
    td_dataset *data;
    td_loader *loader;
    double *loss; /* of each leaf, summed over steps */
    int places;
} leaf_run;

/* all: this rank's samples of the step, or NULL. */
static double learn(const leaf_run *r, int step, int leaf, const td_batch *all)
{
    td_batch own = { 0 };
    double value = 0.0;
    if (all == NULL) {
        own = new_batch(r->c, SAMPLES, (uint64_t)(step * 1000 + leaf));
    }
    if (r->c->model == LEAF_ROUTED) {
        ((routed *)r->net->state)->skips = (step + leaf) % 3 != 0 || step == 1;
    }
    TD_STEP {
        td_batch batch = all != NULL ? td_leaf_batch(r->net, all) : own;
        td_tensor *loss = td_cross_entropy(td_forward(r->net, batch.x), batch.y);
        td_backward(td_scaler_loss(r->scaler, loss));
        value = td_item(loss);
    }
    free_batch(&own);
    return value;
}

/* Forward and backward of a step. */
static void learn_all(const leaf_run *r, int step)
{
    const leaf_case *c = r->c;
    td_batch all;
    if (c->leaves == 0) {
        int rank = td_dist_rank();
        td_zero_grad(r->optim);
        r->loss[rank] += learn(r, step, rank, NULL);
        return;
    }
    while (c->loads && !td_loader_next(r->loader, &all)) {
        REQUIRE_OK(td_loader_status(r->loader));
    }
    for (int leaf; (leaf = td_leaf_next(r->net)) >= 0;) {
        if (c->empty == 0 || leaf != c->empty) {
            double value = learn(r, step, leaf, c->loads ? &all : NULL);
            r->loss[leaf] += td_leaf_counts(r->net) ? value : 0.0;
        }
    }
}

static void learn_step(const leaf_run *r)
{
    td_params *params = td_parameters(r->net);
    if (td_scaler_unscale(r->scaler, params)) {
        if (r->c->clips) {
            td_clip_grad_norm(params, 0.3, .norm_type = r->c->norm);
        }
        td_optim_step(r->optim);
    }
    if (r->ema != NULL) {
        td_ema_update(r->ema);
    }
}

static uint64_t hash_of(td_module *net, uint64_t hash)
{
    REQUIRE_OK(td_unshard(net));
    td_state_list list = td_module_state(net);
    for (int i = 0; i < list.count; i++) {
        const td_tensor *t = list.items[i].tensor;
        size_t bytes = (size_t)td_numel(t) * td_dtype_size(t->dtype);
        char *values = malloc(bytes + 1);
        td_read(t, values, t->dtype);
        hash = td_hash_bytes(hash, values, bytes);
        free(values);
    }
    td_state_list_free(&list);
    td_reshard(net);
    return hash;
}

static td_module *wrap(const leaf_case *c, td_module *net)
{
    bool gathers = c->way == LEAF_GATHERED;
    td_shard stage = gathers ? TD_SHARD_PARAMETERS : (td_shard)c->way;
    const td_strategy *inside = stage == TD_SHARD_NONE ? NULL : td_zero(stage, .gathers = gathers);
    td_ddp_options options = { .model = net,
                               .bucket_cap_mb = c->model != LEAF_RESNET ? 0.002 : 4,
                               .find_unused_parameters = c->model == LEAF_ROUTED,
                               .strategy = inside };
    options.strategy = c->leaves > 0 ? td_leaves(c->leaves, .strategy = inside) : inside;
    return td_ddp_at(options, TD_HERE);
}

static void open_loader(leaf_run *r)
{
    enum { LENGTH = 53, SEED = 3 };
    td_deal deal = td_leaf_deal(r->net, SAMPLES);
    td_batch batch = new_batch(r->c, LENGTH, SEED);
    r->data = td_tensor_dataset(batch.x, batch.y);
    r->loader = td_loader_open(
        r->data, .batch_size = SAMPLES * deal.parts,
        .sampler = td_distributed_sampler(.deal = deal, .shuffle = true, .seed = SEED));
    REQUIRE(r->loader != NULL);
    free_batch(&batch);
}

static void open_run(leaf_run *r, const leaf_case *c, int size)
{
    *r = (leaf_run){ .c = c,
                     .net = wrap(c, new_net(c)),
                     .places = c->leaves > 0 ? c->leaves : size };
    REQUIRE(r->net != NULL);
    for (int i = 0; c->recomputes && i < r->net->child_count; i++) {
        td_recompute(r->net->children[i], true);
    }
    td_params *params = td_parameters(r->net);
    r->optim = c->adam ? td_adamw(params, .lr = 0.01, .weight_decay = 0.1)
                       : td_sgd(params, .lr = 0.05, .momentum = 0.9, .nesterov = true,
                                .weight_decay = 5e-4);
    r->ema = c->averages ? td_ema_new(r->net, .decay = 0.9) : NULL;
    /* Overflows at first, so that steps are skipped. */
    r->scaler = c->scales ? td_scaler_new(.scale = 0x1p120, .backoff = 0x1p-60) : NULL;
    r->loss = calloc((size_t)r->places, sizeof *r->loss);
    if (c->loads) {
        open_loader(r);
    }
    if (c->resume != NULL) {
        REQUIRE_OK(td_checkpoint_load(.path = c->resume, .model = r->net, .optim = r->optim,
                                      .loader = r->loader, .with_random = true));
    }
}

static uint64_t end_run(leaf_run *r)
{
    REQUIRE_OK(td_all_reduce_numbers(NULL, r->loss, r->places));
    uint64_t hash = r->c->resume != NULL ? TD_HASH_BEGIN
                                         : td_hash_bytes(TD_HASH_BEGIN, (char *)r->loss,
                                                         (size_t)r->places * sizeof *r->loss);
    hash = hash_of(r->net, hash);
    if (r->ema != NULL) {
        td_ema_swap(r->ema);
        hash = hash_of(r->net, hash);
        td_ema_swap(r->ema);
    }
    if (r->c->save != NULL && (td_dist_rank() == 0 || td_saves_together(r->net))) {
        REQUIRE_OK(td_checkpoint_save(.path = r->c->save, .model = r->net, .optim = r->optim,
                                      .loader = r->loader, .with_random = true));
    }
    td_loader_close(r->loader);
    td_ema_free(r->ema);
    td_scaler_free(r->scaler);
    td_optim_free(r->optim);
    td_module_free(r->net);
    td_dataset_free(r->data);
    free(r->loss);
    return hash;
}

static int run_rank(int rank, int size, void *arg)
{
    leaf_job *job = arg;
    leaf_run r;
    procs_init(rank, size, 60.0);
    open_run(&r, &job->c, size);
    for (int step = 0; step < job->c.steps; step++) {
        learn_all(&r, step);
        learn_step(&r);
    }
    uint64_t hash = end_run(&r);
    REQUIRE(job->c.leaves == 0 || job_all_same(hash));
    if (rank == 0) {
        job->hash = hash;
    }
    td_dist_destroy();
    return 0;
}

uint64_t leaf_hash(const leaf_case *c, int ranks)
{
    leaf_job *job =
        mmap(NULL, sizeof *job, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(job != MAP_FAILED);
    *job = (leaf_job){ .c = *c };
    procs_succeed(ranks, 120.0, run_rank, job);
    uint64_t hash = job->hash;
    munmap(job, sizeof *job);
    return hash;
}
