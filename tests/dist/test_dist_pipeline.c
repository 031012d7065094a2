/* Pipelines: the bits of one process that accumulates the same micro-batches, for every number of
 * ranks and every schedule; weights that stages share; data parallelism inside; mistakes; a rank
 * that dies. */
#include "autograd/autograd.h"
#include "dist/comm/mesh.h"
#include "dist/ddp/extra.h"
#include "dist/pipeline/pipeline.h"
#include "dist/pipeline/stages.h"
#include "dist/shard/zero.h"
#include "nn/around.h"
#include "nn/io/checkpoint.h"
#include "nn/models/gpt.h"
#include "nn/module.h"
#include "nn/optim/optim.h"
#include "tensor/extend.h"
#include "tests/help/dist_procs.h"
#include "tests/help/temp_folder.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { LIMIT = 120, STEPS = 3, WIDTH = 12, BLOCKS = 8 };

/* ---- models and batches ---- */

typedef enum model_kind { MLP, GPT, GPT_TIED, RESNET } model_kind;

static td_module *make_block(void)
{
    return td_nn_sequential(td_nn_layer_norm(WIDTH), td_nn_linear(WIDTH, 2 * WIDTH), td_nn_gelu(),
                            td_nn_linear(2 * WIDTH, WIDTH));
}

/* A chain of eight blocks (Sequential would take each apart). */
static td_tensor *blocks_forward(td_module *self, td_tensor *x, td_site at)
{
    for (int i = 0; i < self->child_count; i++) {
        x = td_forward_at(self->children[i], x, at);
    }
    return x;
}

static int blocks_chain(td_module *self, td_chain_link *links)
{
    for (int i = 0; links != NULL && i < self->child_count; i++) {
        links[i] = (td_chain_link){ .parts = { self->children[i] }, .uses = 1.0 };
    }
    return self->child_count;
}

static const td_module_type blocks_type = { .name = "Blocks",
                                            .forward = blocks_forward,
                                            .chain = blocks_chain };

/* Ranks along dp drop different elements, so there the model has no dropout. */
static td_module *make_model_with(model_kind kind, double dropout)
{
    td_manual_seed(5);
    if (kind == RESNET) {
        return td_model("resnet18", .classes = 10, .stem = TD_STEM_CIFAR);
    }
    if (kind != MLP) {
        return td_gpt(.vocabulary = 17, .context = 6, .layers = 6, .heads = 2, .width = 8,
                      .dropout = dropout, .untied = kind == GPT);
    }
    td_module *m = td_module_new(&blocks_type, 0);
    for (int i = 0; i < BLOCKS; i++) {
        char name[8];
        snprintf(name, sizeof name, "%d", i);
        td_module_add(m, name, td_module_mark(make_block(), TD_PART_BLOCK));
    }
    return td_module_finish(m);
}

static td_module *make_model(model_kind kind)
{
    return make_model_with(kind, 0.1);
}

/* Step `step`'s batch. */
static void make_batch(model_kind kind, int rows, int step, td_tensor **x, td_tensor **y)
{
    td_generator g;
    td_generator_seed(&g, 11 + (uint64_t)step);
    bool tokens = kind == GPT || kind == GPT_TIED;
    if (tokens) {
        *x = td_new(TD_SHAPE(rows, 6), TD_I64, TD_CPU);
        *y = td_new(TD_SHAPE(rows, 6), TD_I64, TD_CPU);
        int64_t *a = td_data_rw(*x), *b = td_data_rw(*y);
        for (int i = 0; i < rows * 6; i++) {
            a[i] = (i * 7 + step * 5) % 17;
            b[i] = (i * 3 + step) % 17;
        }
        return;
    }
    *x = td_new(kind == MLP ? TD_SHAPE(rows, WIDTH) : TD_SHAPE(rows, 3, 8, 8), TD_F32, TD_CPU);
    td_normal_(*x, 0.0, 1.0, &g);
    *y = kind == MLP ? td_new(TD_SHAPE(rows, WIDTH), TD_F32, TD_CPU)
                     : td_zeros(TD_SHAPE(rows), TD_I64, TD_CPU);
    if (kind == MLP) {
        td_normal_(*y, 0.0, 1.0, &g);
    }
}

static td_tensor *measure_mlp(td_module *net, const td_batch *batch, td_tensor *sums[TD_SUMS],
                              void *user)
{
    (void)user;
    td_tensor *y = td_forward(net, batch->x);
    sums[0] = td_l1_loss(y, batch->y, .reduction = TD_LOSS_SUM);
    return td_mse_loss(y, batch->y);
}

/* ---- one process ---- */

typedef struct setting {
    model_kind kind;
    int micro, rows;
    const char *schedule, *cut;
    double clip; /* 0: no */
} setting;

static td_optim *make_optim(td_module *net)
{
    return td_sgd(td_parameters(net), .lr = 0.05, .momentum = 0.9);
}

static td_tensor *part_of(td_tensor *t, int k, int micro)
{
    int64_t rows = t->shape[0] / micro;
    return td_slice(t, 0, k * rows, (k + 1) * rows, 1);
}

static td_tensor *loss_of(const setting *s, td_module *net, td_tensor *x, td_tensor *y)
{
    td_tensor *sums[TD_SUMS];
    return s->kind == MLP      ? measure_mlp(net, &(td_batch){ .x = x, .y = y }, sums, NULL)
           : s->kind == RESNET ? td_cross_entropy(td_forward(net, x), y)
                               : td_forward2(net, x, y);
}

static void clip(const setting *s, td_module *net)
{
    if (s->clip > 0) {
        REQUIRE(td_clip_grad_norm(td_parameters(net), s->clip) > s->clip);
    }
}

/* Trains in this process, micro-batch after micro-batch; the caller frees net. */
static td_module *train_alone(const setting *s, td_module *net, double *loss)
{
    td_optim *optim = make_optim(net);
    for (int step = 0; step < STEPS; step++) {
        td_tensor *x, *y;
        make_batch(s->kind, s->rows, step, &x, &y);
        *loss = 0;
        TD_STEP {
            td_zero_grad(optim);
            for (int k = 0; k < s->micro; k++) {
                td_tensor *one = loss_of(s, net, part_of(x, k, s->micro), part_of(y, k, s->micro));
                *loss += td_item(one) / s->micro;
                td_backward(td_mul_scalar(one, 1.0 / s->micro));
            }
            clip(s, net);
            td_optim_step(optim);
        }
        td_free(x);
        td_free(y);
    }
    td_optim_free(optim);
    return net;
}

/* ---- a pipeline ---- */

/* Trains by net, made a pipeline; frees the optimizer. */
static double train_steps(const setting *s, td_module *net)
{
    td_optim *optim = make_optim(net);
    td_pipeline_result r = { .status = TD_OK };
    for (int step = 0; step < STEPS; step++) {
        td_tensor *x, *y;
        make_batch(s->kind, s->rows, step, &x, &y);
        TD_STEP {
            td_zero_grad(optim);
            r = td_pipeline_step(net, x, y, .measure = s->kind == MLP ? measure_mlp : NULL);
            REQUIRE_OK(r.status);
            clip(s, net);
            td_optim_step(optim);
        }
        REQUIRE(s->kind != MLP || r.sums[0] > 0);
        td_free(x);
        td_free(y);
    }
    td_optim_free(optim);
    return r.loss;
}

/* The number of this rank's parameters that differ by more than `limit` of the largest. */
static int count_differences(td_module *net, const td_module *alone, double limit)
{
    td_state_list mine = td_module_state(net), whole = td_module_state(alone);
    int differ = 0;
    bool here = true;
    REQUIRE(mine.count == whole.count);
    for (int i = 0; i < mine.count; i++) {
        const td_tensor *a = mine.items[i].tensor, *b = whole.items[i].tensor;
        here = mine.items[i].buffer ? here : !a->storage->released;
        if (!here) { /* buffers come behind their module's parameters */
            continue;
        }
        size_t count = (size_t)td_numel(a);
        double *va = malloc(count * sizeof *va), *vb = malloc(count * sizeof *vb), most = 0;
        td_read(a, va, TD_F64);
        td_read(b, vb, TD_F64);
        for (size_t k = 0; k < count; k++) {
            most = fmax(most, fabs(va[k] - vb[k]));
        }
        differ += limit > 0 ? most > limit : memcmp(va, vb, count * sizeof *va) != 0;
        free(va);
        free(vb);
    }
    td_state_list_free(&mine);
    td_state_list_free(&whole);
    return differ;
}

static void check_same(const setting *s, double limit)
{
    double loss, alone_loss;
    td_module *net = make_model(s->kind);
    net = td_pipeline(net, .micro = s->micro, .schedule = s->schedule, .cut = s->cut);
    REQUIRE(net != NULL);
    loss = train_steps(s, net);
    td_module *alone = train_alone(s, make_model(s->kind), &alone_loss);
    int differ = count_differences(net, alone, limit);
    if (differ > 0) {
        fprintf(stderr, "rank %d: %s, %d micro-batches: %d parameters differ, loss %.9g or %.9g\n",
                td_dist_rank(), s->schedule, s->micro, differ, loss, alone_loss);
    }
    REQUIRE(differ == 0);
    REQUIRE(limit > 0 ? fabs(loss - alone_loss) < limit : fabs(loss - alone_loss) < 1e-12);
    td_module_free(net);
    td_module_free(alone);
}

/* All schedules, with fewer, as many and more micro-batches than ranks. */
static int run_mlp(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 60);
    static const char *const schedules[] = { "gpipe", "1f1b", "zb" };
    for (int m = 1; m <= 8; m = m == 1 ? 3 : m == 3 ? 8 : 9) {
        for (int i = 0; i < 3; i++) {
            check_same(&(setting){ MLP, m, 2 * m, schedules[i], NULL, 0 }, 0);
        }
    }
    for (int v = 2; v * size <= BLOCKS; v++) {
        char text[32];
        snprintf(text, sizeof text, "interleaved:%d", v);
        check_same(&(setting){ MLP, size, 2 * size, text, NULL, 0 }, 0);
        check_same(&(setting){ MLP, 3 * size, 3 * size, text, NULL, 0 }, 0);
    }
    td_dist_destroy();
    return 0;
}

static void test_mlp(void **state)
{
    (void)state;
    for (int p = 1; p <= 8; p++) {
        procs_succeed(p, LIMIT, run_mlp, NULL);
    }
}

static int run_models(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 60);
    check_same(&(setting){ GPT, 4, 8, "1f1b", NULL, 0 }, 0);
    check_same(&(setting){ GPT, 6, 6, "zb", NULL, 0.01 }, 0);
    check_same(&(setting){ GPT, 6, 6, "interleaved:2", NULL, 0 }, 0);
    check_same(&(setting){ GPT_TIED, 6, 6, "gpipe", NULL, 0 }, 1e-6);
    check_same(&(setting){ GPT_TIED, 3, 6, "interleaved:2", NULL, 0 }, 1e-6);
    td_dist_destroy();
    return 0;
}

static int run_resnet(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 60);
    check_same(&(setting){ RESNET, 4, 8, "1f1b", NULL, 0 }, 0);
    check_same(&(setting){ RESNET, 2, 4, "zb", "1,9", 0 }, 0);
    td_dist_destroy();
    return 0;
}

static void test_models(void **state)
{
    (void)state;
    procs_succeed(3, LIMIT, run_models, NULL);
    procs_succeed(3, LIMIT, run_resnet, NULL);
}

/* ---- data parallelism inside ---- */

typedef struct inside {
    const char *mesh, *schedule;
    int stage; /* of td_zero */
    model_kind kind;
} inside;

/* The mean of two shares of a batch is that of the whole batch, but for rounding; ranks along dp
 * have the same bits. */
static int run_inside(int rank, int size, void *arg)
{
    const inside *in = arg;
    procs_init(rank, size, 60);
    td_mesh *mesh;
    REQUIRE_OK(td_mesh_new(in->mesh, &mesh));
    int dp = td_mesh_size(mesh, "dp"), me = td_mesh_rank(mesh, "dp");
    setting s = { in->kind, 4, 8, in->schedule, NULL, 0 }, all = s;
    all.rows = 8 * dp;
    all.micro = 4 * dp;
    td_module *net = td_pipeline(make_model_with(s.kind, 0), .mesh = mesh, .micro = s.micro,
                                 .schedule = s.schedule);
    net = in->stage > 0 ? td_ddp(net, .mesh = mesh, .strategy = td_zero(in->stage))
                        : td_ddp(net, .mesh = mesh);
    REQUIRE(net != NULL);
    td_optim *optim = make_optim(net);
    for (int step = 0; step < STEPS; step++) {
        td_tensor *x, *y;
        make_batch(s.kind, all.rows, step, &x, &y);
        TD_STEP {
            td_zero_grad(optim);
            td_pipeline_result r = td_pipeline_step(net, part_of(x, me, dp), part_of(y, me, dp),
                                                    .measure = s.kind == MLP ? measure_mlp : NULL);
            REQUIRE_OK(r.status);
            td_optim_step(optim);
        }
        td_free(x);
        td_free(y);
    }
    double loss;
    td_module *alone = train_alone(&all, make_model_with(s.kind, 0), &loss);
    REQUIRE_OK(td_module_gather(net, true));
    REQUIRE(count_differences(net, alone, 2e-6) == 0);
    REQUIRE_OK(td_module_gather(net, false));
    td_optim_free(optim);
    td_module_free(net);
    td_module_free(alone);
    td_mesh_free(mesh);
    td_dist_destroy();
    return 0;
}

static void test_data_parallel(void **state)
{
    (void)state;
    static const inside cases[] = {
        { "pp=2,dp=2", "zb", 2, MLP },
        { "pp=2,dp=2", "1f1b", 1, GPT_TIED },
        { "pp=2,dp=2", "1f1b", 2, GPT_TIED },
        { "pp=2,dp=2", "zb", 3, GPT_TIED },
        { "pp=2,dp=2", "zb", 3, MLP },
        { "pp=2,dp=2", "interleaved:2", 2, MLP },
        { "pp=2,dp=2", "interleaved:2", 3, MLP },
        { "pp=2,dp=2", "1f1b", 0, MLP },
        { "pp=2,dp=2", "zb", 0, MLP },
        { "pp=2,dp=2", "interleaved:2", 0, MLP },
        { "pp=2,dp=3", "gpipe", 1, MLP },
        { "pp=2,dp=2", "zb", 1, MLP },
        { "pp=3,dp=2", "1f1b", 2, MLP },
        { "pp=2,dp=2", "gpipe", 3, MLP },
        { "pp=2,dp=2", "interleaved:2", 1, MLP },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int sizes[TD_MESH_DIMS];
        assert_int_equal(td_mesh_read(cases[i].mesh, 0, sizes), TD_OK);
        procs_succeed(sizes[0] * sizes[2], LIMIT, run_inside, (void *)(uintptr_t)&cases[i]);
    }
}

/* ---- evaluation, and a model that is never whole ---- */

/* The default measure's numbers of a data set, with and without a pipeline. */
static int run_evaluation(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 60);
    td_mesh *mesh;
    REQUIRE_OK(td_mesh_new("pp=2,dp=2", &mesh));
    td_tensor *x, *y;
    make_batch(RESNET, 10, 0, &x, &y);
    td_dataset *data = td_tensor_dataset(x, y);
    td_module *alone = make_model(RESNET);
    td_manual_seed(5);
    td_defer_init(true);
    td_module *net = td_model("resnet18", .classes = 10, .stem = TD_STEM_CIFAR);
    td_defer_init(false);
    net = td_pipeline(net, .mesh = mesh, .micro = 2);
    REQUIRE(data != NULL && net != NULL);
    REQUIRE(count_differences(net, alone, 0) == 0);
    td_loader *all = td_loader_open(data, .batch_size = 4);
    td_loader *mine =
        td_loader_open(data, .batch_size = 4,
                       .sampler = td_distributed_sampler(.rank = td_mesh_rank(mesh, "dp"),
                                                         .world_size = td_mesh_size(mesh, "dp"),
                                                         .no_padding = true));
    td_evaluation one = td_evaluate(alone, all, .group = td_mesh_group(mesh, "tp"));
    td_evaluation two = td_evaluate(net, mine, .group = td_mesh_group(mesh, "rep+dp"));
    REQUIRE_OK(one.status);
    REQUIRE_OK(two.status);
    REQUIRE(one.seen == 10 && two.seen == 10 && one.right == two.right);
    REQUIRE(fabs(one.loss - two.loss) < 1e-5);
    td_loader_close(all);
    td_loader_close(mine);
    td_module_free(net);
    td_module_free(alone);
    td_dataset_free(data);
    td_free(x);
    td_free(y);
    td_mesh_free(mesh);
    td_dist_destroy();
    return 0;
}

static void test_evaluation(void **state)
{
    (void)state;
    procs_succeed(4, LIMIT, run_evaluation, NULL);
}

/* ---- checkpoints ---- */

/* One step of Adam in this process, or by a pipeline. */
static void adam_step(td_module *net, td_optim *optim, int step, bool pipeline)
{
    td_tensor *x, *y;
    make_batch(GPT, 4, step, &x, &y);
    TD_STEP {
        td_zero_grad(optim);
        if (pipeline) {
            REQUIRE_OK(td_pipeline_step(net, x, y).status);
        } else {
            for (int k = 0; k < 2; k++) {
                td_tensor *loss = td_forward2(net, part_of(x, k, 2), part_of(y, k, 2));
                td_backward(td_mul_scalar(loss, 0.5));
            }
        }
        td_optim_step(optim);
    }
    td_free(x);
    td_free(y);
}

static td_optim *make_adam(td_module *net)
{
    return td_adamw(td_parameters(net), .lr = 0.01, .weight_decay = 0.1);
}

/* Saves after two steps, in one process (file "alone") and by a pipeline ("mesh"). */
static int run_save(int rank, int size, void *arg)
{
    const inside *in = arg;
    procs_init(rank, size, 60);
    td_mesh *mesh;
    REQUIRE_OK(td_mesh_new(in->mesh, &mesh));
    for (int pipeline = 0; pipeline < 2; pipeline++) {
        td_module *net = make_model_with(in->kind, in->stage > 0 ? 0 : 0.1);
        if (pipeline) {
            net = td_pipeline(net, .mesh = mesh, .micro = 2, .schedule = in->schedule);
            net = in->stage > 0 ? td_ddp(net, .mesh = mesh, .strategy = td_zero(in->stage)) : net;
        }
        REQUIRE(net != NULL);
        td_optim *optim = make_adam(net);
        adam_step(net, optim, 0, pipeline);
        adam_step(net, optim, 1, pipeline);
        REQUIRE(td_saves_together(net) == pipeline);
        if (pipeline || rank == 0) {
            REQUIRE_OK(td_checkpoint_save(temp_path(pipeline ? "mesh" : "alone"), net,
                                          .optim = optim, .with_random = true));
        }
        td_optim_free(optim);
        td_module_free(net);
    }
    td_mesh_free(mesh);
    td_dist_destroy();
    return 0;
}

/* Goes on from the file "alone" with one step, and compares with one process that does. */
static int run_load(int rank, int size, void *arg)
{
    const inside *in = arg;
    procs_init(rank, size, 60);
    td_mesh *mesh;
    REQUIRE_OK(td_mesh_new(in->mesh, &mesh));
    td_module *nets[2];
    td_manual_seed(99);
    for (int pipeline = 0; pipeline < 2; pipeline++) {
        td_module *net = make_model_with(in->kind, in->stage > 0 ? 0 : 0.1);
        if (pipeline) {
            net = td_pipeline(net, .mesh = mesh, .micro = 2, .schedule = in->schedule);
            net = in->stage > 0 ? td_ddp(net, .mesh = mesh, .strategy = td_zero(in->stage)) : net;
        }
        td_optim *optim = make_adam(net);
        REQUIRE_OK(td_checkpoint_load(temp_path("alone"), net, .optim = optim,
                                      .with_random = in->stage == 0));
        adam_step(net, optim, 2, pipeline);
        td_optim_free(optim);
        nets[pipeline] = net;
    }
    REQUIRE_OK(td_module_gather(nets[1], true));
    REQUIRE(count_differences(nets[1], nets[0], in->stage > 0 ? 2e-5 : 0) == 0);
    REQUIRE_OK(td_module_gather(nets[1], false));
    td_module_free(nets[0]);
    td_module_free(nets[1]);
    td_mesh_free(mesh);
    td_dist_destroy();
    return 0;
}

/* A pipeline's file is that of one process, byte for byte; and any pipeline goes on from it. */
static void test_checkpoints(void **state)
{
    (void)state;
    static const inside saved[] = {
        { "pp=2,dp=2", "1f1b", 1, GPT },
        { "pp=2,dp=2", "zb", 3, GPT },
        { "pp=4", "zb", 0, GPT },
        { "pp=2", "1f1b", 0, GPT }, /* the last: with dropout */
    };
    static const inside loaded[] = {
        { "pp=2", "gpipe", 0, GPT },
        { "pp=5", "1f1b", 0, GPT },
        { "pp=2,dp=2", "1f1b", 1, GPT },
        { "pp=2,dp=2", "1f1b", 3, GPT },
    };
    for (size_t i = 0; i < sizeof saved / sizeof *saved; i++) {
        int sizes[TD_MESH_DIMS];
        assert_int_equal(td_mesh_read(saved[i].mesh, 0, sizes), TD_OK);
        procs_succeed(sizes[0] * sizes[2], LIMIT, run_save, (void *)(uintptr_t)&saved[i]);
        size_t size, other;
        void *alone = temp_read(temp_path("alone"), &size);
        void *mesh = temp_read(temp_path("mesh"), &other);
        assert_int_equal(size, other);
        assert_memory_equal(alone, mesh, size);
        free(alone);
        free(mesh);
    }
    for (size_t i = 0; i < sizeof loaded / sizeof *loaded; i++) {
        int sizes[TD_MESH_DIMS];
        assert_int_equal(td_mesh_read(loaded[i].mesh, 0, sizes), TD_OK);
        procs_succeed(sizes[0] * sizes[2], LIMIT, run_load, (void *)(uintptr_t)&loaded[i]);
    }
}

/* ---- mistakes ---- */

static void refused(td_module *net, td_status status, const char *says)
{
    (void)status;
    REQUIRE(net == NULL && strstr(td_last_error(), says) != NULL);
}

static td_status step_of(td_module *net, int rows)
{
    td_tensor *x, *y;
    make_batch(MLP, rows, 0, &x, &y);
    td_status status = TD_OK;
    TD_STEP {
        status = td_pipeline_step(net, x, y, .measure = measure_mlp).status;
    }
    td_free(x);
    td_free(y);
    return status;
}

static int run_mistakes(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 60);
    refused(td_pipeline(make_model(MLP), .schedule = "interleaved:5"), TD_E_ARG,
            "10 stages are more than the model's 8 links");
    refused(td_pipeline(make_model(MLP), .schedule = "2f"), TD_E_ARG, "there is no schedule '2f'");
    refused(td_pipeline(make_model(MLP), .cut = "8"), TD_E_ARG, "the cut '8' does not make 2");
    refused(td_pipeline(make_model(MLP), .cut = "3,5"), TD_E_ARG, "the cut '3,5' does not make 2");
    refused(td_pipeline(td_nn_linear(3, 3)), TD_E_ARG, "2 stages are more than the model's 1 link");
    refused(td_pipeline(make_model(MLP), .micro = 2 + rank), TD_E_MISMATCH,
            "the ranks differ in schedule, .micro, .cut or model");
    refused(td_pipeline(make_model(MLP), .cut = rank == 0 ? "3" : "4"), TD_E_MISMATCH, "differ");
    refused(td_pipeline(make_model(rank == 0 ? MLP : GPT_TIED), .micro = 2), TD_E_MISMATCH,
            "the ranks differ");
    td_module *net = td_pipeline(make_model(MLP), .micro = 3);
    REQUIRE(step_of(net, 8) == TD_E_ARG);
    REQUIRE(strstr(td_last_error(), "a batch of 8 cannot be cut into 3 equal") != NULL);
    REQUIRE(step_of(net, 6) == TD_OK);
    REQUIRE(step_of(net, 9) == TD_OK); /* another shape */
    td_module_free(net);
    td_dist_destroy();
    return 0;
}

/* What td_zero(2) over replicas cannot do. */
static int run_unsupported(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 60);
    td_mesh *mesh;
    REQUIRE_OK(td_mesh_new("rep=2,dp=2", &mesh));
    td_module *net = td_pipeline(make_model(MLP), .mesh = mesh, .micro = 2, .schedule = "zb");
    net = td_ddp(net, .mesh = mesh, .strategy = td_zero(2));
    REQUIRE(net != NULL && step_of(net, 4) == TD_E_UNSUPPORTED);
    REQUIRE(strstr(td_last_error(), "before weights have theirs: take td_zero(1), or 1f1b"));
    td_module_free(net);
    td_mesh_free(mesh);
    td_dist_destroy();
    return 0;
}

static void test_mistakes(void **state)
{
    (void)state;
    procs_succeed(2, LIMIT, run_mistakes, NULL);
    procs_succeed(4, LIMIT, run_unsupported, NULL);
}

/* ---- a rank dies ---- */

typedef struct victim {
    int rank, calls;
} victim;

static td_tensor *die_here(const td_around_rest *rest, td_tensor *x, void *user)
{
    victim *v = user;
    if (td_dist_rank() == v->rank && --v->calls == 0) {
        raise(SIGKILL);
    }
    return td_run_rest(rest, x);
}

static int run_death(int rank, int size, void *arg)
{
    const char *text = arg;
    procs_init(rank, size, 60);
    td_mesh *mesh;
    REQUIRE_OK(td_mesh_new(text, &mesh));
    td_module *net = td_pipeline(make_model(MLP), .mesh = mesh, .micro = 4);
    REQUIRE(net != NULL);
    victim v = { .rank = 1, .calls = 6 };
    for (int i = 0; i < net->child_count; i++) {
        td_around around = { .run = die_here, .user = &v };
        REQUIRE_OK(td_module_surround(net->children[i], &around));
    }
    net = td_ddp(net, .mesh = mesh);
    REQUIRE(net != NULL);
    td_status status = step_of(net, 8);
    fprintf(stderr, "%s\n", td_last_error());
    return status == TD_OK ? 1 : 42;
}

static void test_death(void **state)
{
    (void)state;
    static const char *const meshes[] = { "pp=3", "pp=2,dp=2" };
    for (int i = 0; i < 2; i++) {
        static procs_end ends[4];
        int ranks = i == 0 ? 3 : 4;
        procs_run(ranks, LIMIT, run_death, (void *)(uintptr_t)meshes[i], ends);
        for (int r = 0; r < ranks; r++) {
            bool named = strstr(ends[r].output, "rank 1") != NULL ||
                         strstr(ends[r].output, "rank 0 (") != NULL;
            /* or in td_ddp's reduction, without td_ddp_on_error */
            bool ended = ends[r].code == 42 || ends[r].signal == SIGABRT;
            if (r != 1 && (!ended || !named || ends[r].seconds > 20)) {
                fail_msg("%s, rank %d: code %d after %.1f s, said '%s'", meshes[i], r, ends[r].code,
                         ends[r].seconds, ends[r].output);
            }
        }
        procs_assert_nothing_left();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_checkpoints, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test(test_mlp),
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_data_parallel),
        cmocka_unit_test(test_evaluation),
        cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_death),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
