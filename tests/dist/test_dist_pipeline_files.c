/* Checkpoints of pipelines: one file, byte for byte that of one process, which any pipeline goes on
 * from. */
#include "tests/help/sanitized.h"
#include "autograd/autograd.h"
#include "dist/comm/mesh.h"
#include "dist/pipeline/pipeline.h"
#include "dist/shard/zero.h"
#include "nn/around.h"
#include "nn/extra/ema.h"
#include "nn/io/checkpoint.h"
#include "nn/optim/optim.h"
#include "tests/dist/pipe_model.h"
#include "tests/help/dist_procs.h"
#include "tests/help/temp_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

enum { LIMIT = 120 };

static td_tensor *loss_of(pipe_kind kind, td_module *net, td_tensor *x, td_tensor *y)
{
    return kind == RESNET ? td_cross_entropy(td_forward(net, x), y) : td_forward2(net, x, y);
}

/* One step of Adam in this process, or by a pipeline, and one of the averages. */
static void adam_step(pipe_kind kind, td_module *net, td_optim *optim, td_ema *ema, int step,
                      bool pipeline)
{
    td_tensor *x, *y;
    pipe_batch(kind, 4, step, &x, &y);
    TD_STEP {
        td_zero_grad(optim);
        if (pipeline) {
            REQUIRE_OK(td_pipeline_step(net, x, y).status);
        } else {
            for (int k = 0; k < 2; k++) {
                td_tensor *loss = loss_of(kind, net, pipe_part(x, k, 2), pipe_part(y, k, 2));
                td_backward(td_mul_scalar(loss, 0.5));
            }
        }
        td_optim_step(optim);
    }
    td_ema_update(ema);
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
    const pipe_inside *in = arg;
    procs_init(rank, size, 60);
    td_mesh *mesh;
    REQUIRE_OK(td_mesh_new(in->mesh, &mesh));
    for (int pipeline = 0; pipeline < 2; pipeline++) {
        td_module *net = pipe_model_with(in->kind, in->stage > 0 ? 0 : 0.1);
        if (pipeline) {
            net = td_pipeline(net, .mesh = mesh, .micro = 2, .schedule = in->schedule);
            net = in->stage > 0 ? td_ddp(net, .mesh = mesh, .strategy = td_zero(in->stage)) : net;
        }
        REQUIRE(net != NULL);
        td_optim *optim = make_adam(net);
        td_ema *ema = td_ema_new(net, .decay = 0.9);
        adam_step(in->kind, net, optim, ema, 0, pipeline);
        adam_step(in->kind, net, optim, ema, 1, pipeline);
        REQUIRE(td_saves_together(net) == pipeline);
        if (pipeline || rank == 0) {
            REQUIRE_OK(td_checkpoint_save(temp_path(pipeline ? "mesh" : "alone"), net,
                                          .optim = optim, .ema = ema, .with_random = true));
        }
        td_ema_free(ema);
        td_optim_free(optim);
        td_module_free(net);
    }
    td_mesh_free(mesh);
    td_dist_destroy();
    return 0;
}

/* Goes on from the file "alone" with one step, and compares with one process that does; then the
 * averages, too. */
static int run_load(int rank, int size, void *arg)
{
    const pipe_inside *in = arg;
    procs_init(rank, size, 60);
    td_mesh *mesh;
    REQUIRE_OK(td_mesh_new(in->mesh, &mesh));
    td_module *nets[2];
    td_optim *optims[2];
    td_ema *emas[2];
    td_manual_seed(99);
    for (int pipeline = 0; pipeline < 2; pipeline++) {
        td_module *net = pipe_model_with(in->kind, in->stage > 0 ? 0 : 0.1);
        if (pipeline) {
            net = td_pipeline(net, .mesh = mesh, .micro = 2, .schedule = in->schedule);
            net = in->stage > 0 ? td_ddp(net, .mesh = mesh, .strategy = td_zero(in->stage)) : net;
        }
        td_optim *optim = optims[pipeline] = make_adam(net);
        td_ema *ema = emas[pipeline] = td_ema_new(net, .decay = 0.9);
        REQUIRE_OK(td_checkpoint_load(temp_path("alone"), net, .optim = optim, .ema = ema,
                                      .with_random = in->stage == 0));
        adam_step(in->kind, net, optim, ema, 2, pipeline);
        nets[pipeline] = net;
    }
    for (int average = 0; average < 2; average++) {
        REQUIRE_OK(td_module_gather(nets[1], true));
        REQUIRE(pipe_differences(nets[1], nets[0], in->stage > 0 ? 2e-5 : 0) == 0);
        REQUIRE_OK(td_module_gather(nets[1], false));
        td_ema_swap(emas[0]);
        td_ema_swap(emas[1]);
    }
    for (int i = 0; i < 2; i++) {
        td_ema_free(emas[i]);
        td_optim_free(optims[i]);
        td_module_free(nets[i]);
    }
    td_mesh_free(mesh);
    td_dist_destroy();
    return 0;
}

/* A pipeline's file is that of one process, byte for byte; and any pipeline goes on from it. */
static void test_checkpoints(void **state)
{
    (void)state;
    static const pipe_inside saved[] = {
        { "pp=2,dp=2", "1f1b", 1, GPT }, { "pp=2,dp=2", "zb", 3, GPT }, { "pp=4", "zb", 0, GPT },
        { "pp=3", "1f1b", 0, RESNET }, /* with running statistics, which are averaged */
        { "pp=2", "1f1b", 0, GPT },    /* the last: with dropout */
    };
    static const pipe_inside loaded[] = {
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
    for (size_t i = 0; i < sizeof loaded / sizeof *loaded; i += checks_part() ? 2 : 1) {
        int sizes[TD_MESH_DIMS];
        assert_int_equal(td_mesh_read(loaded[i].mesh, 0, sizes), TD_OK);
        procs_succeed(sizes[0] * sizes[2], LIMIT, run_load, (void *)(uintptr_t)&loaded[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_checkpoints, temp_folder_setup, temp_folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
