/* Slices, stages and data parallelism of one model together: meshes of up to eight ranks next to
 * one process; the norm of all gradients; checkpoints. */
#include "dist/comm/mesh.h"
#include "dist/pipeline/pipeline.h"
#include "dist/shard/zero.h"
#include "dist/slices/slices.h"
#include "nn/io/checkpoint.h"
#include "nn/models/gpt.h"
#include "nn/module.h"
#include "nn/optim/optim.h"
#include "tensor/extend.h"
#include "tests/help/dist_procs.h"
#include "tests/help/temp_folder.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LIMIT = 120, STEPS = 3, ROWS = 16, CONTEXT = 6, WORDS = 16 };

typedef struct grid {
    const char *mesh;
    int slices; /* 0: one for each rank along tp */
    td_dtype dtype;
    bool tied;
    const char *sequence; /* the path of the SEQUENCE modules; NULL: none */
    int shard;            /* td_zero; 0: td_ddp alone */
    const char *schedule; /* NULL: no pipeline */
} grid;

static td_module *new_model(const grid *g)
{
    td_manual_seed(5);
    td_module *net = td_gpt(.vocabulary = WORDS, .context = CONTEXT, .layers = 3, .heads = 4,
                            .width = 16, .untied = !g->tied);
    REQUIRE(net != NULL);
    REQUIRE_OK(td_module_to(net, TD_CPU, g->dtype));
    return net;
}

static int ranks_of(const char *mesh)
{
    int sizes[TD_MESH_DIMS];
    assert_int_equal(td_mesh_read(mesh, 0, sizes), TD_OK);
    return sizes[0] * sizes[1] * sizes[2] * sizes[3];
}

/* Cuts in the order of the dimensions: slices, stages, data. */
static td_module *cut_model(const grid *g, td_mesh *mesh, td_module *net)
{
    const td_tp_rule rules[] = {
        { "*.attn.c_attn", .style = TD_TP_COLUMN, .parts = { 4, 4, 4 } },
        { "*.attn.c_proj", .style = TD_TP_ROW },
        { "*.mlp.c_fc", .style = TD_TP_COLUMN },
        { "*.mlp.c_proj", .style = TD_TP_ROW },
        { "transformer.wte", .style = TD_TP_VOCAB },
        { "lm_head", .style = TD_TP_VOCAB },
        { g->sequence, .style = TD_TP_SEQUENCE },
    };
    if (td_mesh_size(mesh, "tp") > 1 || g->slices > 0) {
        net = td_tensor_parallel(net, rules, g->sequence != NULL ? 7 : 6, .mesh = mesh,
                                 .slices = g->slices);
    }
    if (g->schedule != NULL) {
        net = td_pipeline(net, .mesh = mesh, .micro = 4, .schedule = g->schedule);
    }
    if (td_mesh_size(mesh, "rep+dp") > 1) {
        net = td_ddp(net, .mesh = mesh, .strategy = td_zero(g->shard));
    }
    REQUIRE(net != NULL);
    return net;
}

/* Part `part` of `parts` of a step's batch. */
static void new_batch(int step, int part, int parts, td_tensor **x, td_tensor **y)
{
    int rows = ROWS / parts;
    *x = td_new(TD_SHAPE(rows, CONTEXT), TD_I64, TD_CPU);
    *y = td_new(TD_SHAPE(rows, CONTEXT), TD_I64, TD_CPU);
    int64_t *a = td_data_rw(*x), *b = td_data_rw(*y);
    for (int i = 0; i < rows * CONTEXT; i++) {
        int at = part * rows * CONTEXT + i;
        a[i] = (at * 7 + at / 5 + step * 5) % WORDS;
        b[i] = (at * 3 + at / 7 + step) % WORDS;
    }
}

/* What a step tells, the same on all ranks. */
typedef struct told {
    double loss, norm, largest;
} told;

static told one_step(const grid *g, td_mesh *mesh, td_module *net, td_optim *optim, int step)
{
    int parts = mesh != NULL ? td_mesh_size(mesh, "rep+dp") : 1;
    td_tensor *x, *y;
    told t = { 0 };
    new_batch(step, parts > 1 ? td_mesh_rank(mesh, "rep+dp") : 0, parts, &x, &y);
    TD_STEP {
        td_zero_grad(optim);
        if (mesh != NULL && g->schedule != NULL) {
            td_pipeline_result r = td_pipeline_step(net, x, y);
            REQUIRE_OK(r.status);
            t.loss = r.loss;
        } else {
            td_tensor *loss = td_forward2(net, x, y);
            td_backward(loss);
            t.loss = td_item(loss);
        }
        t.largest = td_clip_grad_norm(td_parameters(net), 1e30, .norm_type = INFINITY);
        t.norm = td_clip_grad_norm(td_parameters(net), 0.05);
        td_optim_step(optim);
    }
    td_free(x);
    td_free(y);
    if (parts > 1) { /* the ranks along dp have other losses */
        t.loss = td_all_reduce_mean(t.loss);
    }
    return t;
}

static td_optim *new_adam(td_module *net)
{
    return td_adamw(td_parameters(net), .lr = 1e-2);
}

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
static void compare_with_one(const grid *g, const told *many, const char *path)
{
    td_module *net = new_model(g), *loaded = new_model(g);
    td_optim *optim = new_adam(net);
    int64_t count, other;
    double most = 0.0;
    for (int step = 0; step < STEPS; step++) {
        told one = one_step(g, NULL, net, optim, step);
        REQUIRE(one.norm > 0.05); /* it is clipped */
        most = fmax(most, fabs(one.loss - many[step].loss));
        most = fmax(most, fabs(one.norm - many[step].norm));
        most = fmax(most, fabs(one.largest - many[step].largest));
    }
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

/* Trains on a mesh and saves at `path`. */
static void train_on(const grid *g, td_mesh *mesh, const char *path, told *all)
{
    td_module *net = cut_model(g, mesh, new_model(g));
    td_optim *optim = new_adam(net);
    for (int step = 0; step < STEPS; step++) {
        all[step] = one_step(g, mesh, net, optim, step);
    }
    REQUIRE_OK(td_tensor_parallel_check(net));
    if (td_dist_rank() == 0 || td_saves_together(net)) {
        REQUIRE_OK(td_checkpoint_save(path, net, .optim = optim, .with_random = true));
    }
    td_optim_free(optim);
    td_module_free(net);
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
        train_on(&g, mesh, temp_path("mesh"), all);
        if (rank == 0) {
            compare_with_one(&g, all, temp_path("mesh"));
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
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        procs_succeed(ranks_of(meshes[i]), LIMIT, run_cases, (void *)(uintptr_t)meshes[i]);
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

static void assert_same_files(const char *a, const char *b)
{
    size_t size, other;
    void *one = temp_read(temp_path(a), &size), *two = temp_read(temp_path(b), &other);
    assert_int_equal(size, other);
    assert_memory_equal(one, two, size);
    free(one);
    free(two);
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
        procs_succeed(ranks_of(g.mesh), LIMIT, run_bits, &g);
        if (i == 0) {
            temp_rename("mesh", "one");
        } else {
            assert_same_files("one", "mesh");
        }
    }
}

/* ---- files ---- */

/* Loads "from", or trains; saves "to". mesh NULL: one process. */
typedef struct passing {
    grid g;
    const char *from, *to;
} passing;

static int run_passing(int rank, int size, void *arg)
{
    const passing *p = arg;
    td_mesh *mesh = NULL;
    procs_init(rank, size, 60);
    td_module *net = new_model(&p->g);
    td_manual_seed(99);
    if (p->g.mesh != NULL) {
        REQUIRE_OK(td_mesh_new(p->g.mesh, &mesh));
        net = cut_model(&p->g, mesh, net);
    }
    int64_t prompt = 1;
    REQUIRE(p->g.mesh == NULL ||
            td_gpt_generate(.gpt = net, .prompts = &(td_gpt_prompt){ &prompt, 1 }, .length = 1) ==
                TD_E_UNSUPPORTED);
    td_optim *optim = new_adam(net);
    if (p->from != NULL) {
        REQUIRE_OK(
            td_checkpoint_load(temp_path(p->from), net, .optim = optim, .with_random = true));
    } else {
        one_step(&p->g, mesh, net, optim, 0);
    }
    REQUIRE_OK(td_checkpoint_save(temp_path(p->to), net, .optim = optim, .with_random = true));
    td_optim_free(optim);
    td_module_free(net);
    td_mesh_free(mesh);
    td_dist_destroy();
    return 0;
}

static void pass(grid g, const char *from, const char *to)
{
    passing p = { .g = g, .from = from, .to = to };
    procs_succeed(g.mesh != NULL ? ranks_of(g.mesh) : 1, LIMIT, run_passing, &p);
}

/* One process's file and a mesh's are the same, whoever has trained. */
static void test_files(void **state)
{
    (void)state;
    for (int shard = 0; shard < 2; shard++) {
        for (int tied = 0; tied < 2; tied++) {
            grid one = { .dtype = TD_F32, .tied = tied }, many = one;
            many.mesh = "pp=2,dp=2,tp=2";
            many.schedule = "1f1b";
            many.shard = shard;
            pass(one, NULL, "one");
            pass(many, "one", "many");
            assert_same_files("one", "many");
            pass(many, NULL, "many");
            pass(one, "many", "one");
            assert_same_files("many", "one");
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_meshes, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_bits, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_files, temp_folder_setup, temp_folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
