/* The mesh: its text, who is whose neighbour, the engines of its groups; and hybrid sharding,
 * windows along dp and replicas along rep. */
#include "dist/comm/collectives.h"
#include "dist/ddp/ddp.h"
#include "dist/ddp/extra.h"
#include "dist/comm/mesh.h"
#include "nn/module.h"
#include "tests/help/dist_procs.h"
#include "tests/help/expect_fatal.h"
#include "tests/dist/shard_run.h"
#include "tests/help/temp_folder.h"
#include "tensor/extend.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { LIMIT = 60 };

/* ---- the text ---- */

static void test_text(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int ranks, sizes[TD_MESH_DIMS]; /* sizes[0] 0: refused, with the words `says` */
        const char *says;
    } cases[] = {
        { "dp=4", 4, { 1, 1, 4, 1 }, "" },
        { "tp=2,pp=3,dp=*", 12, { 3, 1, 2, 2 }, "" },
        { "rep=2,dp=*", 2, { 1, 2, 1, 1 }, "" },
        { "pp=2,rep=3,dp=5,tp=7", 210, { 2, 3, 5, 7 }, "" },
        { "tp=2,dp=3", 0, { 1, 1, 3, 2 }, "" },
        { "pp=2,dp=2", 3, { 0 }, "'pp=2,dp=2' is for 4 ranks, not for 3: start as many" },
        { "rep=2,dp=*",
          3,
          { 0 },
          "'rep=2,dp=*' does not fit 3 ranks: 3 is no multiple of 2, the product of the other "
          "dimensions; start 4, or" },
        { "dp=2,dp=2", 4, { 0 }, "has dp twice" },
        { "dp=*,tp=*", 4, { 0 }, "only one size can be *" },
        { "ep=2", 2, { 0 }, "'ep=2' is not DIMENSION=SIZE; dimensions are pp, rep, dp and tp" },
        { "dp=2,", 2, { 0 }, "'' is not DIMENSION=SIZE" },
        { "", 2, { 0 }, "'' is not DIMENSION=SIZE" },
        { "dp", 2, { 0 }, "'dp' is not DIMENSION=SIZE" },
        { "dp=0", 2, { 0 }, "the size of dp is a whole number from 1 to 65536, or *" },
        { "dp=2x", 2, { 0 }, "the size of dp is a whole number" },
        { "dp=*2", 2, { 0 }, "the size of dp is a whole number" },
        { "dp=", 2, { 0 }, "the size of dp is a whole number" },
        { "dp=99999999999999999999", 2, { 0 }, "the size of dp is a whole number" },
        { "dp=60000,tp=60000", 2, { 0 }, "has more than 65536 ranks" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int sizes[TD_MESH_DIMS];
        td_status status = td_mesh_read(cases[i].text, cases[i].ranks, sizes);
        if (cases[i].sizes[0] > 0) {
            assert_int_equal(status, TD_OK);
            assert_memory_equal(sizes, cases[i].sizes, sizeof sizes);
        } else {
            assert_int_equal(status, TD_E_ARG);
            assert_non_null(strstr(td_last_error(), cases[i].says));
        }
    }
    int sizes[TD_MESH_DIMS];
    assert_int_equal(td_mesh_read("dp=*,tp=2", 0, sizes), TD_OK);
    assert_true(sizes[2] == 0 && sizes[3] == 2);
}

/* ---- groups ---- */

/* The sum of all ranks' numbers along dims, by the group; negative: there is none. */
static double sum_along(td_mesh *mesh, const char *dims, double value)
{
    td_group *group = td_mesh_group(mesh, dims);
    REQUIRE(group != NULL);
    REQUIRE(td_group_size(group) == td_mesh_size(mesh, dims));
    REQUIRE(td_group_rank(group) == td_mesh_rank(mesh, dims));
    REQUIRE_OK(td_all_reduce_numbers(group, &value, 1));
    return value;
}

/* rank = ((pp * 2 + rep) * 2 + dp) * 1 + tp. A rank's number is 2^rank, so that a sum says who is
 * in the group. */
static int run_groups(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20);
    td_mesh *mesh;
    REQUIRE_OK(td_mesh_new("dp=2,rep=2,pp=*", &mesh));
    int pp = rank / 4, rep = rank / 2 % 2, dp = rank % 2;
    REQUIRE(td_mesh_rank(mesh, "pp") == pp && td_mesh_rank(mesh, "rep") == rep);
    REQUIRE(td_mesh_rank(mesh, "dp") == dp && td_mesh_rank(mesh, "tp") == 0);
    REQUIRE(td_mesh_rank(mesh, "dp+rep") == 2 * rep + dp && td_mesh_size(mesh, "rep+dp") == 4);
    REQUIRE(td_mesh_rank(mesh, "pp+dp") == 2 * pp + dp && td_mesh_size(mesh, "tp") == 1);
    double mine = 1 << rank;
    int stage = 4 * pp;
    REQUIRE(sum_along(mesh, "dp", mine) == 3 << (stage + 2 * rep));
    REQUIRE(sum_along(mesh, "rep", mine) == 5 << (stage + dp));
    REQUIRE(sum_along(mesh, "rep+dp", mine) == 15 << stage);
    REQUIRE(sum_along(mesh, "pp", mine) == 17 << (2 * rep + dp));
    REQUIRE(sum_along(mesh, "tp", mine) == mine);
    REQUIRE(td_mesh_group(mesh, "tp+dp+rep+pp") == td_dist_world());
    REQUIRE(td_mesh_group(mesh, "dp") == td_mesh_group(mesh, "dp"));
    td_mesh_free(mesh);
    td_mesh_free(NULL);
    td_dist_destroy();
    return 0;
}

/* The number of this process's threads. */
static int count_threads(void)
{
    DIR *tasks = opendir("/proc/self/task");
    REQUIRE(tasks != NULL);
    int count = 0;
    for (const struct dirent *task; (task = readdir(tasks)) != NULL;) {
        count += task->d_name[0] != '.';
    }
    closedir(tasks);
    return count;
}

/* A group costs threads only where it is used: none, the watchdog, and the communication thread for
 * what the caller does not wait for. (gloo has threads of its own.) */
static int run_threads(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20);
    td_mesh *mesh;
    REQUIRE_OK(td_mesh_new("dp=2,rep=2", &mesh));
    td_group *dp = td_mesh_group(mesh, "dp"), *rep = td_mesh_group(mesh, "rep");
    int before = count_threads();
    REQUIRE(dp != NULL && rep != NULL && td_mesh_group(mesh, "rep+dp") != NULL);
    REQUIRE(count_threads() == before);
    double one = 1.0;
    REQUIRE_OK(td_all_reduce_numbers(dp, &one, 1));
    REQUIRE(count_threads() == before + 1);
    td_tensor *t = td_zeros(TD_SHAPE(3), TD_F32, TD_CPU);
    td_work *work;
    REQUIRE_OK(td_all_reduce(dp, t, TD_SUM, &work));
    REQUIRE_OK(td_work_wait(work, 0));
    REQUIRE(count_threads() == before + 2);
    td_free(t);
    td_mesh_free(mesh);
    REQUIRE(count_threads() == before);
    td_dist_destroy();
    return 0;
}

static void test_threads(void **state)
{
    (void)state;
    if (procs_are_over("shm")) {
        procs_succeed(4, LIMIT, run_threads, NULL);
    }
}

static void test_groups(void **state)
{
    (void)state;
    procs_succeed(8, LIMIT, run_groups, NULL);
}

/* Another text on one rank, or a wrong one: all are told. */
static int run_other_texts(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20);
    td_mesh *mesh;
    REQUIRE(td_mesh_new(rank == 1 ? "rep=2,tp=2" : "rep=2,dp=*", &mesh) == TD_E_MISMATCH);
    REQUIRE(mesh == NULL && strstr(td_last_error(), "the ranks have different meshes"));
    REQUIRE(td_mesh_new(rank == 3 ? "dp=3" : "dp=4", &mesh) == TD_E_ARG);
    REQUIRE(strstr(td_last_error(), "rank 3: the mesh 'dp=3' is for 3 ranks, not for 4"));
    unsetenv("TANDEM_MESH");
    REQUIRE_OK(td_mesh_new(NULL, &mesh));
    REQUIRE(td_mesh_size(mesh, "dp") == 4);
    td_mesh_free(mesh);
    setenv("TANDEM_MESH", "rep=4", 1);
    REQUIRE_OK(td_mesh_new(NULL, &mesh));
    REQUIRE(td_mesh_size(mesh, "dp") == 1 && td_mesh_size(mesh, "rep") == 4);
    td_mesh_free(mesh);
    td_dist_destroy();
    return 0;
}

static void test_other_texts(void **state)
{
    (void)state;
    procs_succeed(4, LIMIT, run_other_texts, NULL);
}

/* Memory of one rank alone. */
static void refuse_to_weave(td_group *group, const char *says)
{
    td_tensor *own = td_zeros(TD_SHAPE(1024), TD_F32, TD_CPU);
    REQUIRE(td_group_weave(group, own, (int64_t[]){ 0, 2048 }, 1) == NULL);
    REQUIRE(strstr(td_last_error(), says) != NULL);
    td_free(own);
}

/* Two hosts of two ranks each: groups inside a host have shared memory, others not. GROUP_RANK is
 * what tdrun sets: its nodes count as hosts, also on one machine. backend: what the program wants.
 */
static int run_hosts(int rank, int size, void *backend)
{
    char node[16], local[16];
    snprintf(node, sizeof node, "%d", rank / 2);
    snprintf(local, sizeof local, "%d", rank % 2);
    unsetenv("TANDEM_BACKEND");
    setenv("GROUP_RANK", node, 1);
    td_dist_options options = { .timeout = 20, .backend = backend };
    REQUIRE_OK(procs_try_init(rank, size, &options));
    REQUIRE(td_dist_local_rank() == rank % 2 && td_dist_local_world_size() == 2);
    td_mesh *mesh;
    REQUIRE_OK(td_mesh_new("rep=2,dp=2", &mesh));
    const char *inside = backend != NULL ? backend : "shm";
    REQUIRE(strcmp(td_group_backend(td_mesh_group(mesh, "dp")), inside) == 0);
    REQUIRE(strcmp(td_group_backend(td_mesh_group(mesh, "rep")), "gloo") == 0);
    REQUIRE(strcmp(td_group_backend(NULL), "gloo") == 0);
    REQUIRE(sum_along(mesh, "dp", 1 << rank) == 3 << rank / 2 * 2);
    REQUIRE(sum_along(mesh, "rep", 1 << rank) == 5 << rank % 2);
    refuse_to_weave(td_mesh_group(mesh, "rep"), "the backend gloo has no shared memory");
    if (backend == NULL) {
        refuse_to_weave(td_mesh_group(mesh, "dp"), "is not of td_group_memory");
    }
    td_mesh_free(mesh);
    td_dist_destroy();
    return 0;
}

static void test_shared_memory_inside_a_host(void **state)
{
    (void)state;
    procs_meet_over_tcp(true);
    procs_succeed(4, LIMIT, run_hosts, NULL);
    procs_succeed(4, LIMIT, run_hosts, "gloo");
    procs_meet_over_tcp(false);
}

static void test_mistakes(void **state)
{
    (void)state;
    char url[600];
    snprintf(url, sizeof url, "file://%s", temp_path("store"));
    td_mesh *mesh;
    expect_fatal("there is no process group", td_mesh_new("dp=1", &mesh));
    assert_int_equal(td_dist_init(.init_method = url, .world_size = 1), TD_OK);
    assert_int_equal(td_mesh_new("dp=*", &mesh), TD_OK);
    expect_fatal("no dimension 'ep'", td_mesh_size(mesh, "dp+ep"));
    expect_fatal("no dimension ''", td_mesh_rank(mesh, ""));
    expect_fatal("no dimension ''", td_mesh_group(mesh, "dp+"));
    assert_ptr_equal(td_mesh_group(mesh, "tp"), td_dist_world());
    td_module *net = job_net(JOB_MLP, 1, TD_F32);
    expect_fatal(".group and .mesh: give one of them",
                 td_ddp(net, .mesh = mesh, .group = td_dist_world()));
    td_module_free(net);
    td_mesh_free(mesh);
    td_dist_destroy();
}

/* ---- hybrid sharding ---- */

enum { STEPS = 10, RANKS = 4 };

typedef struct hybrid_case {
    const char *mesh;
    bool same; /* all bits are those without sharding, in all ways */
    shard_case c;
} hybrid_case;

/* Four ranks, all ways of sharding next to none: what dist/dist.h promises of bits. */
static int run_hybrid(int rank, int size, void *arg)
{
    const hybrid_case *h = arg;
    shard_case c = h->c;
    procs_init(rank, size, 20);
    REQUIRE_OK(td_mesh_new(h->mesh, &c.options.mesh));
    shard_run runs[SHARD_WAYS];
    for (int way = TD_SHARD_NONE; way < SHARD_WAYS; way++) {
        shard_open(&runs[way], &c, way, rank);
    }
    uint64_t hash[SHARD_WAYS], wire[SHARD_WAYS], before = shard_hash(&runs[0]);
    for (int i = 0; i < STEPS; i++) {
        for (int way = TD_SHARD_NONE; way < SHARD_WAYS; way++) {
            wire[way] = td_ddp_shard_stats(runs[way].job.net).wire;
            shard_step(&runs[way], &c);
            wire[way] = td_ddp_shard_stats(runs[way].job.net).wire - wire[way];
            hash[way] = shard_hash(&runs[way]);
            REQUIRE(job_all_same(hash[way]));
        }
        REQUIRE(hash[TD_SHARD_OPTIMIZER] == hash[TD_SHARD_NONE]);
        /* Other windows: the norm adds up in another order. */
        REQUIRE(hash[TD_SHARD_PARAMETERS] == hash[TD_SHARD_GRADIENTS] || c.clips);
        REQUIRE(hash[SHARD_GATHERED] == hash[TD_SHARD_GRADIENTS]);
        REQUIRE(hash[TD_SHARD_GRADIENTS] == hash[TD_SHARD_NONE] || !h->same);
    }
    REQUIRE(hash[TD_SHARD_NONE] != before);
    /* Replicas alone send the gradients, as without sharding. No byte counts twice. */
    REQUIRE(td_mesh_size(c.options.mesh, "dp") > 1 || 2 * wire[1] < 3 * wire[0]);
    td_module *net;
    for (int way = TD_SHARD_PARAMETERS; way < SHARD_WAYS; way++) {
        net = runs[way].job.net;
        REQUIRE_OK(td_unshard(net));
        REQUIRE(job_distance(net, runs[TD_SHARD_NONE].job.net, true) < 1e-12);
    }
    size_t all = td_ddp_shard_stats(runs[TD_SHARD_NONE].job.net).gradients;
    size_t mine = td_ddp_shard_stats(net).gradients,
           dp = (size_t)td_mesh_size(c.options.mesh, "dp");
    REQUIRE(mine >= all / dp && mine < all / dp + 4096);
    for (int way = TD_SHARD_NONE; way < SHARD_WAYS; way++) {
        shard_close(&runs[way]);
    }
    td_mesh_free(c.options.mesh);
    td_dist_destroy();
    return 0;
}

static void test_hybrid_sharding(void **state)
{
    (void)state;
    const hybrid_case cases[] = {
        { "rep=2,dp=2", false, { .kind = JOB_BLOCKS, .dtype = TD_F64, .rule = ADAM } },
        { "rep=2,dp=2", false, { .kind = JOB_CONV_BLOCKS, .dtype = TD_F64, .rule = MOMENTUM } },
        { "rep=4", true, { .kind = JOB_BLOCKS, .rule = ADAM, .clips = true } },
        { "dp=4", true, { .kind = JOB_BLOCKS, .rule = ADAM, .accumulates = true } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        hybrid_case h = cases[i];
        procs_succeed(RANKS, LIMIT, run_hybrid, &h);
    }
    hybrid_case h = cases[0]; /* and with what else a step does */
    h.c.clips = h.c.accumulates = h.c.averages = h.c.scales = h.c.again = h.c.recomputes = true;
    h.c.options.find_unused_parameters = true;
    procs_succeed(RANKS, LIMIT, run_hybrid, &h);
}

/* Against one process with all samples, two micro-batches a step. Meanwhile the ranks keep no whole
 * gradients, and statistics of batch normalisation are those of all samples. */
static int run_against_one(int rank, int size, void *arg)
{
    const int *way = arg;
    procs_init(rank, size, 20);
    shard_case c = { .kind = JOB_BATCH_NORM, .dtype = TD_F64, .rule = MOMENTUM, .clips = true };
    c.accumulates = true;
    REQUIRE_OK(td_mesh_new("rep=2,dp=2", &c.options.mesh));
    shard_case alone = c;
    alone.accumulates = false;
    alone.again = true;
    shard_run one;
    shard_open_alone(&one, &alone, RANKS);
    shard_run r = { .ema = NULL };
    r.job.net = td_convert_sync_batch_norm(job_net(c.kind, 1, c.dtype), NULL);
    bool gathers = *way == SHARD_GATHERED;
    r.job.net = td_ddp(
        r.job.net, .mesh = c.options.mesh,
        .strategy = td_zero(gathers ? TD_SHARD_PARAMETERS : (td_shard)*way, .gathers = gathers));
    REQUIRE(r.job.net != NULL);
    r.job.optim = shard_optim(c.rule, td_parameters(r.job.net));
    job_data(&r.job, c.kind, c.dtype, rank * EACH, (rank + 1) * EACH);
    size_t slots = td_ddp_shard_stats(r.job.net).slots;
    for (int i = 0; i < STEPS; i++) {
        shard_step(&one, &alone);
        shard_step(&r, &c);
        REQUIRE(td_ddp_shard_stats(r.job.net).slots == slots);
    }
    REQUIRE_OK(td_unshard(r.job.net));
    REQUIRE(job_distance(r.job.net, one.job.net, true) < 1e-12);
    shard_close(&r);
    shard_close(&one);
    td_mesh_free(c.options.mesh);
    td_dist_destroy();
    return 0;
}

static void test_hybrid_against_one_process(void **state)
{
    (void)state;
    for (int way = TD_SHARD_GRADIENTS; way < SHARD_WAYS; way++) {
        procs_succeed(RANKS, LIMIT, run_against_one, &way);
    }
}

/* Replicas exchange nothing while gradients accumulate. */
static int run_accumulation(int rank, int size, void *arg)
{
    const int *way = arg;
    procs_init(rank, size, 20);
    shard_case c = { .kind = JOB_BLOCKS, .rule = MOMENTUM };
    REQUIRE_OK(td_mesh_new("rep=2", &c.options.mesh));
    shard_run r;
    shard_open(&r, &c, *way, rank);
    for (int i = 0; i < 3; i++) {
        td_zero_grad(r.job.optim);
        uint64_t before = td_ddp_shard_stats(r.job.net).wire;
        td_ddp_no_sync_begin(r.job.net);
        shard_backward(&r);
        td_ddp_no_sync_end(r.job.net);
        REQUIRE(td_ddp_shard_stats(r.job.net).wire == before);
        shard_backward(&r);
        REQUIRE(td_ddp_shard_stats(r.job.net).wire > before);
        td_optim_step(r.job.optim);
    }
    shard_close(&r);
    td_mesh_free(c.options.mesh);
    td_dist_destroy();
    return 0;
}

static void test_nothing_is_exchanged_in_accumulation(void **state)
{
    (void)state;
    for (int way = TD_SHARD_NONE; way < SHARD_WAYS; way++) {
        procs_succeed(2, LIMIT, run_accumulation, &way);
    }
}

/* In which order a rank sends units within its replica, and averages them over the replicas. */
typedef struct order {
    td_ddp_part part; /* first */
    uint64_t hash;
} order;

static td_status note_order(td_ddp_part *part, td_ddp_state *s, td_ddp_event event,
                            td_ddp_unit *unit)
{
    (void)s;
    order *o = (order *)part;
    bool over_replicas = event == TD_DDP_WAITED && unit->work != NULL;
    if (event == TD_DDP_LAUNCH || over_replicas) {
        o->hash = o->hash * 64 + 2 * (uint64_t)(unit - s->units.list) + over_replicas + 1;
    }
    return TD_OK;
}

static void keep_order(td_ddp_part *part)
{
    (void)part; /* of the stack */
}

typedef struct chain {
    td_module *layers[4];
    bool skips; /* the last */
} chain;

static td_tensor *chain_forward(td_module *self, td_tensor *x, td_site at)
{
    chain *c = self->state;
    for (int i = 0; i < 4 - c->skips; i++) {
        x = td_gelu(td_forward_at(c->layers[i], x, at));
    }
    return x;
}

static const td_module_type chain_type = { .name = "Chain", .forward = chain_forward };

static td_module *new_chain(void)
{
    td_manual_seed(5);
    td_module *m = td_module_new(&chain_type, sizeof(chain));
    for (int i = 0; i < 4; i++) {
        char name[2] = { (char)('0' + i), '\0' };
        ((chain *)m->state)->layers[i] = td_module_add(m, name, td_nn_linear(13, 13));
    }
    return td_module_finish(m);
}

/* The last rank skips the last layer, whose unit is the first to be sent: it sends all units late.
 * Two groups of NCCL need the same order of both groups' collectives all the same. */
static int run_replicas(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20);
    td_mesh *mesh;
    REQUIRE_OK(td_mesh_new("rep=2,dp=2", &mesh));
    shard_run r = { .ema = NULL };
    r.job.net = td_ddp(new_chain(), .mesh = mesh, .find_unused_parameters = true,
                       .strategy = td_zero(TD_SHARD_GRADIENTS, .unit = shard_unit_is_linear));
    REQUIRE(r.job.net != NULL);
    r.job.optim = shard_optim(MOMENTUM, td_parameters(r.job.net));
    job_data(&r.job, JOB_MLP, TD_F32, rank * EACH, (rank + 1) * EACH);
    order o = { .part = { .on = note_order, .free = keep_order } };
    td_ddp_add_part(td_ddp_state_of(r.job.net), &o.part);
    for (int i = 0; i < 4; i++) {
        o.hash = 0;
        ((chain *)r.job.net->state)->skips = i % 2 == 1 && rank == size - 1;
        shard_step(&r, &(shard_case){ .rule = MOMENTUM });
        REQUIRE(o.hash != 0 && job_all_same(o.hash) && job_all_same(shard_hash(&r)));
    }
    shard_close(&r);
    td_mesh_free(mesh);
    td_dist_destroy();
    return 0;
}

static void test_replicas_send_in_one_order(void **state)
{
    (void)state;
    procs_succeed(RANKS, LIMIT, run_replicas, NULL);
}

/* A checkpoint of replicas is written once, by rank 0, and has all: a run without sharding goes on
 * from it to the same weights. A failure is told to all. Each rank names a file of its own. */
static int run_hybrid_file(int rank, int size, void *path)
{
    char mine[4200];
    procs_init(rank, size, 20);
    snprintf(mine, sizeof mine, rank == 0 ? "%s" : "%s.%d", (char *)path, rank);
    shard_case c = { .kind = JOB_CONV_BLOCKS, .dtype = TD_F64, .rule = MOMENTUM };
    REQUIRE_OK(td_mesh_new("rep=2,dp=2", &c.options.mesh));
    shard_run saved, plain, again;
    shard_open(&saved, &c, TD_SHARD_PARAMETERS, rank);
    shard_open(&again, &c, TD_SHARD_GRADIENTS, rank);
    shard_step(&saved, &c);
    REQUIRE_OK(td_checkpoint_save(mine, saved.job.net, .optim = saved.job.optim));
    REQUIRE((access(mine, F_OK) == 0) == (rank == 0));
    REQUIRE(td_checkpoint_save("/nowhere/file", saved.job.net, .optim = saved.job.optim) != TD_OK);
    REQUIRE(strstr(td_last_error(), "rank 0: ") != NULL);
    REQUIRE_OK(td_checkpoint_load(path, again.job.net, .optim = again.job.optim));
    REQUIRE(shard_hash(&again) == shard_hash(&saved));
    shard_step(&again, &c);
    shard_step(&saved, &c);
    REQUIRE(shard_hash(&again) == shard_hash(&saved));
    shard_open(&plain, &c, TD_SHARD_NONE, rank);
    REQUIRE_OK(td_checkpoint_load(path, plain.job.net, .optim = plain.job.optim));
    shard_step(&plain, &c);
    REQUIRE_OK(td_unshard(saved.job.net));
    REQUIRE(job_distance(saved.job.net, plain.job.net, true) < 1e-12);
    shard_close(&saved);
    shard_close(&again);
    shard_close(&plain);
    td_mesh_free(c.options.mesh);
    td_dist_destroy();
    return 0;
}

static void test_hybrid_checkpoints(void **state)
{
    (void)state;
    char path[600];
    snprintf(path, sizeof path, "%s", temp_path("checkpoint"));
    procs_succeed(RANKS, LIMIT, run_hybrid_file, path);
}

/* One rank fails, in forward or in backward; all are told why, also those that wait for a rank that
 * has waited for it. */
static int run_failure(int rank, int size, void *arg)
{
    const bool *in_forward = arg;
    procs_init(rank, size, 20);
    shard_run r;
    td_ddp_options options = { 0 };
    char told[1024] = "";
    REQUIRE_OK(td_mesh_new("rep=2,dp=2", &options.mesh));
    int way = *in_forward ? SHARD_GATHERED : TD_SHARD_GRADIENTS;
    shard_routed *routed = shard_open_routed(&r, options, way, rank);
    td_ddp_on_error(r.job.net, shard_note_message, told);
    *(*in_forward ? &routed->turns : &routed->skips) = rank == 3;
    td_step_begin();
    td_tensor *loss = td_cross_entropy(td_forward(r.job.net, r.job.x), r.job.y);
    REQUIRE((told[0] != '\0') == (*in_forward && rank >= 2));
    if (told[0] == '\0') {
        td_backward(loss);
    }
    td_step_end();
    if (*in_forward) {
        REQUIRE(strstr(told, "the ranks do not do the same: rank ") != NULL);
    } else {
        REQUIRE(strstr(told, "no gradient") != NULL && strstr(told, "'sometimes.weight'") != NULL);
    }
    shard_close(&r);
    td_mesh_free(options.mesh);
    td_dist_destroy();
    return 0;
}

static void test_hybrid_failure(void **state)
{
    (void)state;
    procs_succeed(RANKS, LIMIT, run_failure, &(bool){ false });
    procs_succeed(RANKS, LIMIT, run_failure, &(bool){ true });
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_other_texts),
        cmocka_unit_test(test_shared_memory_inside_a_host),
        cmocka_unit_test(test_hybrid_sharding),
        cmocka_unit_test(test_hybrid_against_one_process),
        cmocka_unit_test(test_nothing_is_exchanged_in_accumulation),
        cmocka_unit_test(test_replicas_send_in_one_order),
        cmocka_unit_test(test_hybrid_failure),
        cmocka_unit_test_setup_teardown(test_hybrid_checkpoints, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_mistakes, temp_folder_setup, temp_folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
