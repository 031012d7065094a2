/* Slices, stages and data parallelism of one model together: meshes of up to eight ranks next to
 * one process; the norm of all gradients; checkpoints. */
#include "tests/help/sanitized.h"
#include "dist/slices/slices.h"
#include "nn/io/checkpoint.h"
#include "nn/io/fingerprint.h"
#include "nn/module.h"
#include "tensor/extend.h"
#include "tests/dist/grid_job.h"
#include "tests/help/dist_procs.h"
#include "tests/help/temp_folder.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LIMIT = 120, STEPS = 3 };

/* Weights in the order of the model: rank 0 reads them from a file. */
static double *weights_of(td_module *net, int64_t *count)
{
    td_state_list list = td_module_state(net);
    double *numbers = calloc(1 << 20, sizeof *numbers);
    REQUIRE(list.count > 0 && numbers != NULL);
    *count = 0;
    for (int i = 0; i < list.count; i++) {
        td_read(list.items[i].tensor, numbers + *count, TD_F64);
        *count += td_numel(list.items[i].tensor);
    }
    td_state_list_free(&list);
    return numbers;
}

/* Trains one process's model, and compares with what the mesh has told and saved. */
static void compare_with_one(const grid *g, const told *many, const written *text, const char *path)
{
    td_module *net = grid_model(g), *loaded = grid_model(g);
    td_optim *optim = grid_adam(net);
    int64_t count, other;
    double most = 0.0;
    for (int step = 0; step < STEPS; step++) {
        told one = grid_step(g, NULL, net, optim, step);
        REQUIRE(one.norm > 0.05); /* it is clipped */
        most = fmax(most, fabs(one.loss - many[step].loss));
        most = fmax(most, fabs(one.norm - many[step].norm));
        most = fmax(most, fabs(one.largest - many[step].largest));
    }
    grid alone = { .dtype = g->dtype };
    written own = grid_write(&alone, net);
    REQUIRE(own.count == WRITTEN);
    REQUIRE(g->sequence != NULL || memcmp(own.tokens, text->tokens, sizeof own.tokens) == 0);
    REQUIRE_OK(td_checkpoint_load(path, loaded));
    double *a = weights_of(net, &count), *b = weights_of(loaded, &other);
    for (int64_t i = 0; i < count; i++) {
        most = fmax(most, fabs(a[i] - b[i]));
    }
    if (count != other || !(most <= 1e-10)) {
        fprintf(stderr, "%s, slices %d, shard %d, %s%s: %g from one process\n", g->mesh, g->slices,
                g->shard, g->schedule != NULL ? g->schedule : "no pipeline",
                g->sequence != NULL ? ", sequence" : "", most);
        abort();
    }
    free(a);
    free(b);
    td_optim_free(optim);
    td_module_free(net);
    td_module_free(loaded);
}

/* Trains on a mesh and saves at `path`; returns what the model then writes. */
static written train_on(const grid *g, td_mesh *mesh, const char *path, told *all)
{
    td_module *net = grid_cut(g, mesh, grid_model(g));
    td_optim *optim = grid_adam(net);
    for (int step = 0; step < STEPS; step++) {
        all[step] = grid_step(g, mesh, net, optim, step);
    }
    REQUIRE_OK(td_tensor_parallel_check(net));
    if (td_dist_rank() == 0 || td_saves_together(net)) {
        REQUIRE_OK(td_checkpoint_save(path, net, .optim = optim, .with_random = true));
    }
    written text = grid_write(g, net);
    td_optim_free(optim);
    td_module_free(net);
    return text;
}

/* ---- one process's numbers ---- */

static int run_cases(int rank, int size, void *arg)
{
    static const char *const schedules[] = { "1f1b", "zb" };
    const char *text = arg;
    int sizes[TD_MESH_DIMS];
    procs_init(rank, size, 60);
    td_mesh *mesh;
    REQUIRE_OK(td_mesh_read(text, size, sizes));
    REQUIRE_OK(td_mesh_new(text, &mesh));
    for (int k = 0; k < 4; k++) {
        /* All blocks together are one link of a pipeline. */
        const char *blocks = k == 3 && sizes[0] < 4 ? "transformer.h" : "transformer.h.?";
        grid g = { .mesh = text,
                   .dtype = TD_F64,
                   .shard = k % 2,
                   .tied = k == 3,
                   .schedule = sizes[0] > 1 ? schedules[k / 2] : NULL,
                   .sequence = sizes[3] > 1 && k > 1 ? blocks : NULL };
        told all[STEPS];
        if (sizes[1] * sizes[2] == 1 && g.shard > 0 && !g.tied) {
            continue; /* nothing along dp is shared */
        }
        written says = train_on(&g, mesh, temp_path("mesh"), all);
        if (rank == 0) {
            compare_with_one(&g, all, &says, temp_path("mesh"));
        }
        REQUIRE_OK(td_barrier(NULL));
    }
    td_mesh_free(mesh);
    td_dist_destroy();
    return 0;
}

static void test_meshes(void **state)
{
    (void)state;
    static const char *const meshes[] = {
        "pp=2,tp=2", "dp=2,tp=2", "pp=3,dp=2", "pp=2,dp=2,tp=2",
        "pp=4,tp=2", "dp=2,tp=4", "pp=2,tp=4", "rep=2,dp=2,tp=2"
    };
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i += checks_part() ? 2 : 1) {
        procs_succeed(grid_ranks(meshes[i]), LIMIT, run_cases, (void *)(uintptr_t)meshes[i]);
    }
}

/* ---- bits ---- */

static int run_bits(int rank, int size, void *arg)
{
    const grid *g = arg;
    told all[STEPS];
    td_mesh *mesh;
    procs_init(rank, size, 60);
    REQUIRE_OK(td_mesh_new(g->mesh, &mesh));
    train_on(g, mesh, temp_path("mesh"), all);
    td_mesh_free(mesh);
    td_dist_destroy();
    return 0;
}

static void temp_rename(const char *from, const char *to)
{
    char path[1024];
    snprintf(path, sizeof path, "%s", temp_path(from));
    assert_int_equal(rename(path, temp_path(to)), 0);
}

/* With the slices given, a mesh of any width and depth has the bits of one rank, and its file. */
static void test_bits(void **state)
{
    (void)state;
    static const char *const meshes[] = { "dp=1", "tp=2", "pp=2,tp=2", "pp=2,tp=4", "pp=3" };
    for (int i = 0; i < 5; i++) {
        grid g = { .mesh = meshes[i], .slices = 4, .dtype = TD_F32, .schedule = "1f1b" };
        procs_succeed(grid_ranks(g.mesh), LIMIT, run_bits, &g);
        if (i == 0) {
            temp_rename("mesh", "one");
        } else {
            grid_same_files("one", "mesh");
        }
    }
}

/* ---- files ---- */

/* One process's file and a mesh's are the same, whoever has trained. */
static void test_files(void **state)
{
    (void)state;
    for (int shard = 0; shard < 4; shard++) {
        for (int tied = 0; tied < 2 && (tied == 0 || shard < (checks_part() ? 1 : 2)); tied++) {
            grid one = { .dtype = TD_F32, .tied = tied }, many = one;
            many.mesh = "pp=2,dp=2,tp=2";
            many.schedule = "1f1b";
            many.shard = shard;
            grid_pass(one, NULL, "one");
            grid_pass(many, "one", "many");
            grid_same_files("one", "many");
            grid_pass(many, NULL, "many");
            grid_pass(one, "many", "one");
            grid_same_files("many", "one");
        }
    }
}

/* Each layout of up to eight ranks loads what another one has saved, and saves it for the next. */
static void test_layouts(void **state)
{
    (void)state;
    enum { STEP = 11 }; /* the next one differs in most dimensions */
    char mesh[64], first[32], text[32], from[32] = "", to[32];
    for (int k = 0; k < LAYOUTS; k += checks_part() ? 3 : 1) {
        grid g = grid_layout(k * STEP % LAYOUTS, mesh);
        if (grid_ranks(mesh) > 8) {
            continue;
        }
        snprintf(to, sizeof to, "layout%d", k);
        grid_pass(g, from[0] != '\0' ? from : NULL, to);
        assert_int_equal(td_checkpoint_metadata(temp_path(to), TD_KEY_FINGERPRINT,
                                                from[0] != '\0' ? text : first, sizeof text),
                         TD_OK);
        if (from[0] != '\0') {
            print_message("# %s, td_zero(%d)\n", mesh, g.shard);
            assert_string_equal(text, first);
        }
        memcpy(from, to, sizeof from);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_meshes, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_bits, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_files, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_layouts, temp_folder_setup, temp_folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
