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
#include "nn/module.h"
#include "nn/optim/optim.h"
#include "tensor/extend.h"
#include "tests/dist/pipe_model.h"
#include "tests/help/dist_procs.h"
#include "tests/help/sanitized.h"

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

enum { LIMIT = 120, STEPS = 3 };

/* ---- one process ---- */

typedef struct setting {
    pipe_kind kind;
    int micro, rows;
    const char *schedule, *cut;
    double clip; /* 0: no */
} setting;

static td_optim *make_optim(td_module *net)
{
    return td_sgd(td_parameters(net), .lr = 0.05, .momentum = 0.9);
}

static td_tensor *loss_of(const setting *s, td_module *net, td_tensor *x, td_tensor *y)
{
    td_tensor *sums[TD_SUMS];
    return s->kind == MLP      ? pipe_measure(net, &(td_batch){ .x = x, .y = y }, sums, NULL)
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
        pipe_batch(s->kind, s->rows, step, &x, &y);
        *loss = 0;
        TD_STEP {
            td_zero_grad(optim);
            for (int k = 0; k < s->micro; k++) {
                td_tensor *one =
                    loss_of(s, net, pipe_part(x, k, s->micro), pipe_part(y, k, s->micro));
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
        pipe_batch(s->kind, s->rows, step, &x, &y);
        TD_STEP {
            td_zero_grad(optim);
            r = td_pipeline_step(net, x, y, .measure = s->kind == MLP ? pipe_measure : NULL);
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

static void check_same(const setting *s, double limit)
{
    double loss, alone_loss;
    td_module *net = pipe_model(s->kind);
    net = td_pipeline(net, .micro = s->micro, .schedule = s->schedule, .cut = s->cut);
    REQUIRE(net != NULL);
    loss = train_steps(s, net);
    td_module *alone = train_alone(s, pipe_model(s->kind), &alone_loss);
    int differ = pipe_differences(net, alone, limit);
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
    for (int v = 2; v * size <= PIPE_BLOCKS; v++) {
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
    for (int p = 1; p <= (checks_part() ? 4 : 8); p += checks_part() ? 2 : 1) {
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
    if (!checks_part()) {
        check_same(&(setting){ RESNET, 4, 8, "1f1b", NULL, 0 }, 0);
    }
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

/* The mean of two shares of a batch is that of the whole batch, but for rounding; ranks along dp
 * have the same bits. */
static int run_inside(int rank, int size, void *arg)
{
    const pipe_inside *in = arg;
    procs_init(rank, size, 60);
    td_mesh *mesh;
    REQUIRE_OK(td_mesh_new(in->mesh, &mesh));
    int dp = td_mesh_size(mesh, "dp"), me = td_mesh_rank(mesh, "dp");
    setting s = { in->kind, 4, 8, in->schedule, NULL, 0 }, all = s;
    all.rows = 8 * dp;
    all.micro = 4 * dp;
    td_module *net = td_pipeline(pipe_model_with(s.kind, 0), .mesh = mesh, .micro = s.micro,
                                 .schedule = s.schedule);
    net = in->stage > 0 ? td_ddp(net, .mesh = mesh, .strategy = td_zero(in->stage))
                        : td_ddp(net, .mesh = mesh);
    REQUIRE(net != NULL);
    td_optim *optim = make_optim(net);
    for (int step = 0; step < STEPS; step++) {
        td_tensor *x, *y;
        pipe_batch(s.kind, all.rows, step, &x, &y);
        TD_STEP {
            td_zero_grad(optim);
            td_pipeline_result r = td_pipeline_step(net, pipe_part(x, me, dp), pipe_part(y, me, dp),
                                                    .measure = s.kind == MLP ? pipe_measure : NULL);
            REQUIRE_OK(r.status);
            td_optim_step(optim);
        }
        td_free(x);
        td_free(y);
    }
    double loss;
    td_module *alone = train_alone(&all, pipe_model_with(s.kind, 0), &loss);
    REQUIRE_OK(td_module_gather(net, true));
    REQUIRE(pipe_differences(net, alone, 2e-6) == 0);
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
    static const pipe_inside cases[] = {
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
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += checks_part() ? 2 : 1) {
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
    pipe_batch(RESNET, 10, 0, &x, &y);
    td_dataset *data = td_tensor_dataset(x, y);
    td_module *alone = pipe_model(RESNET);
    td_manual_seed(5);
    td_defer_init(true);
    td_module *net = td_model("resnet18", .classes = 10, .stem = TD_STEM_CIFAR);
    td_defer_init(false);
    net = td_pipeline(net, .mesh = mesh, .micro = 2);
    REQUIRE(data != NULL && net != NULL);
    REQUIRE(pipe_differences(net, alone, 0) == 0);
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

/* ---- mistakes ---- */

static void refused(td_module *net, td_status status, const char *says)
{
    (void)status;
    REQUIRE(net == NULL && strstr(td_last_error(), says) != NULL);
}

static td_status step_of(td_module *net, int rows)
{
    td_tensor *x, *y;
    pipe_batch(MLP, rows, 0, &x, &y);
    td_status status = TD_OK;
    TD_STEP {
        status = td_pipeline_step(net, x, y, .measure = pipe_measure).status;
    }
    td_free(x);
    td_free(y);
    return status;
}

static int run_mistakes(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 60);
    refused(td_pipeline(pipe_model(MLP), .schedule = "interleaved:5"), TD_E_ARG,
            "10 stages are more than the model's 8 links");
    refused(td_pipeline(pipe_model(MLP), .schedule = "2f"), TD_E_ARG, "there is no schedule '2f'");
    refused(td_pipeline(pipe_model(MLP), .cut = "8"), TD_E_ARG, "the cut '8' does not make 2");
    refused(td_pipeline(pipe_model(MLP), .cut = "3,5"), TD_E_ARG, "the cut '3,5' does not make 2");
    refused(td_pipeline(td_nn_linear(3, 3)), TD_E_ARG, "2 stages are more than the model's 1 link");
    refused(td_pipeline(pipe_model(MLP), .micro = 2 + rank), TD_E_MISMATCH,
            "the ranks differ in schedule, .micro, .cut or model");
    refused(td_pipeline(pipe_model(MLP), .cut = rank == 0 ? "3" : "4"), TD_E_MISMATCH, "differ");
    refused(td_pipeline(pipe_model(rank == 0 ? MLP : GPT_TIED), .micro = 2), TD_E_MISMATCH,
            "the ranks differ");
    td_module *net = td_pipeline(pipe_model(MLP), .micro = 3);
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
    td_module *net = td_pipeline(pipe_model(MLP), .mesh = mesh, .micro = 2, .schedule = "zb");
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

static void note_status(td_status status, const char *message, void *user)
{
    (void)message;
    *(td_status *)user = status;
}

/* No rank ends before all others have been told: they are told by ranks that live, too. */
static int run_death(int rank, int size, void *arg)
{
    const char *text = arg;
    procs_init(rank, size, 60);
    td_mesh *mesh;
    REQUIRE_OK(td_mesh_new(text, &mesh));
    td_module *net = td_pipeline(pipe_model(MLP), .mesh = mesh, .micro = 4);
    REQUIRE(net != NULL);
    victim v = { .rank = 1, .calls = 6 };
    for (int i = 0; i < net->child_count; i++) {
        td_around around = { .run = die_here, .user = &v };
        REQUIRE_OK(td_module_surround(net->children[i], &around));
    }
    net = td_ddp(net, .mesh = mesh);
    REQUIRE(net != NULL);
    td_status noted = TD_OK;
    td_ddp_on_error(net, note_status, &noted);
    td_status status = step_of(net, 8);
    fprintf(stderr, "%s\n", td_last_error());
    procs_arrive();
    procs_await(size - 1);
    return status == TD_OK && noted == TD_OK ? 1 : 42;
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
            if (r != 1 && (ends[r].code != 42 || !named || ends[r].seconds > 20)) {
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
        cmocka_unit_test(test_mlp),           cmocka_unit_test(test_models),
        cmocka_unit_test(test_data_parallel), cmocka_unit_test(test_evaluation),
        cmocka_unit_test(test_mistakes),      cmocka_unit_test(test_death),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
