/* Leaves over stages, slices and data parallelism: one fingerprint, whatever the layout. */
#include "dist/comm/mesh.h"
#include "dist/leaves/leaves.h"
#include "dist/pipeline/pipeline.h"
#include "dist/shard/zero.h"
#include "nn/io/checkpoint.h"
#include "nn/io/fingerprint.h"
#include "nn/models/gpt.h"
#include "nn/module.h"
#include "nn/optim/optim.h"
#include "tensor/extend.h"
#include "tests/dist/grid_job.h"
#include "tests/dist/pipe_model.h"
#include "tests/help/dist_procs.h"
#include "tests/help/sanitized.h"
#include "tests/help/temp_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LIMIT = 120, STEPS = 3, LEAVES = 8, SAMPLES = 2, CONTEXT = 6, WORDS = 16 };

typedef struct layout {
    const char *mesh, *schedule; /* schedule NULL: no pipeline */
    int shard;                   /* td_zero */
    pipe_kind kind;
    int slices; /* 0: none */
} layout;

static td_module *layout_model(pipe_kind kind)
{
    if (kind == MLP || kind == RESNET) {
        return pipe_model(kind);
    }
    td_manual_seed(5);
    return td_gpt(.vocabulary = WORDS, .context = CONTEXT, .layers = 3, .heads = 4, .width = 16,
                  .dropout = 0.1, .untied = kind == GPT);
}

static td_module *layout_cut(const layout *l, td_mesh *mesh, td_module *net)
{
    if (l->slices > 0) {
        net = td_tensor_parallel(net, grid_rules, GRID_RULES, .mesh = mesh, .slices = l->slices);
    }
    if (l->schedule != NULL) {
        net = td_pipeline(net, .mesh = mesh, .schedule = l->schedule);
    }
    net = td_ddp(net, .mesh = mesh, .strategy = td_leaves(LEAVES, .strategy = td_zero(l->shard)));
    REQUIRE(net != NULL);
    return net;
}

/* The samples of this rank's leaves, one leaf after the other. */
static td_batch layout_batch(const layout *l, const td_module *net, int step)
{
    td_deal deal = td_leaf_deal(net, SAMPLES);
    td_tensor *x, *y, *all[2];
    pipe_batch(l->kind, LEAVES * SAMPLES, step, &x, &y);
    if (l->kind == GPT || l->kind == GPT_TIED) {
        int64_t *a = td_data_rw(x), *b = td_data_rw(y);
        for (int64_t i = 0; i < td_numel(x); i++) {
            a[i] %= WORDS;
            b[i] %= WORDS;
        }
    }
    for (int t = 0; t < 2; t++) {
        td_tensor *parts[LEAVES];
        for (int k = 0; k < deal.parts; k++) {
            int leaf = deal.rank + k * (int)deal.stride;
            parts[k] = pipe_part(t == 0 ? x : y, leaf < LEAVES ? leaf : LEAVES - 1, LEAVES);
        }
        all[t] = td_cat(parts, deal.parts, 0);
    }
    td_free(x);
    td_free(y);
    return (td_batch){ .x = all[0], .y = all[1], .size = SAMPLES * deal.parts };
}

static td_tensor *layout_loss(const layout *l, td_module *net, td_batch batch)
{
    td_tensor *sums[TD_SUMS];
    return l->kind == MLP      ? pipe_measure(net, &batch, sums, NULL)
           : l->kind == RESNET ? td_cross_entropy(td_forward(net, batch.x), batch.y)
                               : td_forward2(net, batch.x, batch.y);
}

static void layout_step(const layout *l, td_module *net, td_optim *optim, int step)
{
    if (l->schedule != NULL) {
        TD_STEP {
            td_batch all = layout_batch(l, net, step);
            REQUIRE_OK(
                td_pipeline_step(net, all.x, all.y, .measure = l->kind == MLP ? pipe_measure : NULL)
                    .status);
        }
    } else {
        while (td_leaf_next(net) >= 0) {
            TD_STEP {
                td_batch all = layout_batch(l, net, step);
                td_backward(layout_loss(l, net, td_leaf_batch(net, &all)));
            }
        }
    }
    td_clip_grad_norm(td_parameters(net), 0.05);
    td_optim_step(optim);
}

static int layout_run(int rank, int size, void *arg)
{
    const layout *l = arg;
    td_mesh *mesh;
    procs_init(rank, size, 60);
    REQUIRE_OK(td_mesh_new(l->mesh, &mesh));
    td_module *net = layout_cut(l, mesh, layout_model(l->kind));
    td_optim *optim = td_adamw(td_parameters(net), .lr = 1e-2);
    for (int step = 0; step < STEPS; step++) {
        layout_step(l, net, optim, step);
    }
    REQUIRE_OK(td_tensor_parallel_check(net));
    if (td_dist_rank() == 0 || td_saves_together(net)) {
        REQUIRE_OK(td_checkpoint_save(temp_path("many"), net, .optim = optim, .with_random = true));
    }
    td_optim_free(optim);
    td_module_free(net);
    td_mesh_free(mesh);
    td_dist_destroy();
    return 0;
}

/* Eight ranks of gloo on two cores take long to say the same. */
static int most_ranks(void)
{
    return procs_are_over("gloo") ? 4 : 8;
}

/* All layouts have the first one's fingerprint; a part of the checks has every other layout. Under
 * mpirun those that have its number of ranks; the fingerprint is said, to be compared with other
 * runs'. */
static void layouts_agree(const char *what, pipe_kind kind, int slices, const layout *list)
{
    char first[32] = "", one[32];
    int failures = 0;
    for (int i = 0; list[i].mesh != NULL; i++) {
        if (checks_part() && i % 2 != 0) {
            continue;
        }
        int sizes[TD_MESH_DIMS];
        layout l = { list[i].mesh, list[i].schedule, list[i].shard, kind, slices };
        assert_int_equal(td_mesh_read(l.mesh, 0, sizes), TD_OK);
        int ranks = sizes[0] * sizes[1] * sizes[2] * sizes[3];
        if (ranks > most_ranks()) {
            continue;
        }
        procs_succeed(ranks, LIMIT, layout_run, &l);
        if (!procs_would_run(ranks)) {
            continue;
        }
        assert_int_equal(
            td_checkpoint_metadata(temp_path("many"), TD_KEY_FINGERPRINT, one, sizeof one), TD_OK);
        if (first[0] == '\0') {
            memcpy(first, one, sizeof first);
            print_message("# layouts of %s: %s\n", what, first);
        } else if (strcmp(first, one) != 0) {
            print_error("%s, %s, td_zero(%d): %s, not %s\n", l.mesh,
                        l.schedule != NULL ? l.schedule : "no pipeline", l.shard, one, first);
            failures++;
        }
    }
    assert_int_equal(failures, 0);
}

#define LAYOUT(mesh, schedule, shard)                                                              \
    {                                                                                              \
        mesh, schedule, shard, MLP, 0                                                              \
    }
#define LAST LAYOUT(NULL, NULL, 0)

static void test_blocks(void **state)
{
    (void)state;
    static const layout list[] = {
        LAYOUT("dp=1", NULL, 0),         LAYOUT("pp=2", "1f1b", 0),
        LAYOUT("pp=3", "zb", 0),         LAYOUT("pp=2", "interleaved:2", 0),
        LAYOUT("pp=2,dp=2", "gpipe", 1), LAYOUT("pp=2,dp=3", "1f1b", 0), /* of 2, 3 and 3 leaves */
        LAYOUT("pp=2,dp=2", "zb", 1),    LAYOUT("pp=2,dp=2", "interleaved:4", 0),
        LAYOUT("pp=2,dp=2", "1f1b", 2),  LAYOUT("pp=2,dp=2", "1f1b", 3),
        LAYOUT("pp=8", "1f1b", 0),       LAST,
    };
    layouts_agree("blocks", MLP, 0, list);
}

/* Running statistics are those of leaf 0. */
static void test_batch_norm(void **state)
{
    (void)state;
    static const layout list[] = {
        LAYOUT("dp=1", NULL, 0),
        LAYOUT("pp=2", "1f1b", 0),
        LAYOUT("pp=2,dp=2", "zb", 0),
        LAYOUT("pp=2", "interleaved:2", 0),
        LAST,
    };
    layouts_agree("a ResNet", RESNET, 0, list);
}

static void test_slices(void **state)
{
    (void)state;
    static const layout list[] = {
        LAYOUT("dp=1", NULL, 0),           LAYOUT("tp=2", NULL, 0),
        LAYOUT("dp=2,tp=2", NULL, 3),      LAYOUT("pp=2,tp=2", "1f1b", 0),
        LAYOUT("pp=2,dp=2,tp=2", "zb", 1), LAYOUT("pp=2,dp=2,tp=2", "1f1b", 3),
        LAYOUT("pp=2,tp=4", "gpipe", 0),   LAST,
    };
    layouts_agree("a GPT in slices", GPT, 4, list);
}

/* The last stage's part of the embedding's gradient begins the first stage's. */
static void test_tied(void **state)
{
    (void)state;
    static const layout list[] = {
        LAYOUT("dp=1", NULL, 0),
        LAYOUT("pp=1", "1f1b", 0),
        LAYOUT("pp=2", "1f1b", 0),
        LAYOUT("pp=3", "gpipe", 0),
        LAYOUT("pp=2,dp=3", "1f1b", 1),
        LAYOUT("pp=2,dp=2,tp=2", "1f1b", 0),
        LAST,
    };
    layouts_agree("a tied GPT", GPT_TIED, 4, list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_blocks, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_batch_norm, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_slices, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_tied, temp_folder_setup, temp_folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
