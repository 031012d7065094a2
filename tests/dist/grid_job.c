/* A small GPT on a mesh. */
#include "tests/dist/grid_job.h"
#include "dist/pipeline/pipeline.h"
#include "dist/shard/zero.h"
#include "nn/io/checkpoint.h"
#include "nn/models/gpt.h"
#include "nn/module.h"
#include "tensor/extend.h"
#include "tests/help/dist_procs.h"
#include "tests/help/temp_folder.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LIMIT = 120, ROWS = 16, CONTEXT = 6, WORDS = 16 };

const td_tp_rule grid_rules[GRID_RULES] = {
    { "*.attn.c_attn", .style = TD_TP_COLUMN, .parts = { 4, 4, 4 } },
    { "*.attn.c_proj", .style = TD_TP_ROW },
    { "*.mlp.c_fc", .style = TD_TP_COLUMN },
    { "*.mlp.c_proj", .style = TD_TP_ROW },
    { "transformer.wte", .style = TD_TP_VOCAB },
    { "lm_head", .style = TD_TP_VOCAB },
};

td_module *grid_model(const grid *g)
{
    td_manual_seed(5);
    td_module *net = td_gpt(.vocabulary = WORDS, .context = CONTEXT, .layers = 3, .heads = 4,
                            .width = 16, .untied = !g->tied);
    REQUIRE(net != NULL);
    REQUIRE_OK(td_module_to(net, TD_CPU, g->dtype));
    return net;
}

int grid_ranks(const char *mesh)
{
    int sizes[TD_MESH_DIMS];
    assert_int_equal(td_mesh_read(mesh, 0, sizes), TD_OK);
    return sizes[0] * sizes[1] * sizes[2] * sizes[3];
}

grid grid_layout(int i, char mesh[64])
{
    static const int shards[] = { 0, 1, 3 };
    int dp = 1 << i % 3, tp = 1 + i / 3 % 2, pp = 1 + i / 6 % 2;
    snprintf(mesh, 64, "pp=%d,dp=%d,tp=%d", pp, dp, tp);
    return (grid){
        .mesh = mesh, .dtype = TD_F32, .shard = shards[i / 12], .schedule = pp > 1 ? "1f1b" : NULL
    };
}

/* Cuts in the order of the dimensions: slices, stages, data. */
td_module *grid_cut(const grid *g, td_mesh *mesh, td_module *net)
{
    td_tp_rule rules[GRID_RULES + 1];
    memcpy(rules, grid_rules, sizeof grid_rules);
    rules[GRID_RULES] = (td_tp_rule){ g->sequence, .style = TD_TP_SEQUENCE };
    if (td_mesh_size(mesh, "tp") > 1 || g->slices > 0) {
        net = td_tensor_parallel(net, rules, GRID_RULES + (g->sequence != NULL), .mesh = mesh,
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

told grid_step(const grid *g, td_mesh *mesh, td_module *net, td_optim *optim, int step)
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

static bool keep_token(int prompt, int64_t token, void *user)
{
    (void)prompt;
    written *w = user;
    w->tokens[w->count++] = token;
    return true;
}

written grid_write(const grid *g, td_module *net)
{
    written w = { .count = 0 };
    td_gpt_prompt prompt = { &(int64_t){ 1 }, 1 };
    td_status status = td_gpt_generate(net, .prompts = &prompt, .length = WRITTEN, .slide = true,
                                       .token = keep_token, .user = &w);
    REQUIRE(status == (g->sequence != NULL && g->mesh != NULL ? TD_E_UNSUPPORTED : TD_OK));
    return w;
}

td_optim *grid_adam(td_module *net)
{
    return td_adamw(td_parameters(net), .lr = 1e-2);
}

void grid_same_files(const char *a, const char *b)
{
    size_t size, other;
    void *one = temp_read(temp_path(a), &size), *two = temp_read(temp_path(b), &other);
    assert_int_equal(size, other);
    assert_memory_equal(one, two, size);
    free(one);
    free(two);
}

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
    td_module *net = grid_model(&p->g);
    td_manual_seed(99);
    if (p->g.mesh != NULL) {
        REQUIRE_OK(td_mesh_new(p->g.mesh, &mesh));
        net = grid_cut(&p->g, mesh, net);
    }
    td_optim *optim = grid_adam(net);
    if (p->from != NULL) {
        REQUIRE_OK(
            td_checkpoint_load(temp_path(p->from), net, .optim = optim, .with_random = true));
    } else {
        grid_step(&p->g, mesh, net, optim, 0);
    }
    REQUIRE_OK(td_checkpoint_save(temp_path(p->to), net, .optim = optim, .with_random = true));
    td_optim_free(optim);
    td_module_free(net);
    td_mesh_free(mesh);
    td_dist_destroy();
    return 0;
}

void grid_pass(grid g, const char *from, const char *to)
{
    passing p = { .g = g, .from = from, .to = to };
    procs_succeed(g.mesh != NULL ? grid_ranks(g.mesh) : 1, LIMIT, run_passing, &p);
}
