/* Sharding on GPUs, real or emulated, a rank on each in turn: what travels as bf16, windows in the
 * host's memory and in files, replicas; and checkpoints of these. Without a GPU only what is
 * refused on CPUs. */
#include "dist/comm/mesh.h"
#include "nn/internal.h"
#include "nn/params.h"
#include "tensor/extend.h"
#include "tensor/precision.h"
#include "tests/help/dist_procs.h"
#include "tests/dist/shard_run.h"
#include "tests/help/temp_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const double limit = 120.0;
enum { STEPS = 5 };

static bool have_gpu(int number)
{
    char name[16];
    td_device device;
    snprintf(name, sizeof name, "cuda:%d", number);
    return td_device_parse(name, &device) == TD_OK;
}

static int look_for_gpu(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    return have_gpu(0);
}

/* Looks in a process of its own: a process that has used a GPU cannot be forked. */
static void need_gpu(void)
{
    static procs_end end[1];
    procs_run(1, limit, look_for_gpu, NULL, end);
    if (end->code != 1) {
        skip();
    }
}

static void begin(int rank, int size)
{
    char name[16];
    td_device device;
#if TD_EMULATED
    setenv("TANDEM_NCCL", "emulated", 1);
#endif
    snprintf(name, sizeof name, "cuda:%d", have_gpu(1) ? rank % 2 : 0);
    REQUIRE_OK(td_device_parse(name, &device));
    job_use_device(device);
    procs_init(rank, size, 30.0);
}

/* ---- the same weights ---- */

typedef struct gpu_case {
    const char *mesh; /* NULL: none */
    shard_case c;
    bool mixed;   /* bf16 arithmetic, in which .wire changes no bit, or with a loss scaler f16;
                     otherwise f64, to 1e-12 */
    bool exactly; /* all that a step does is done by the GPU, in the same order */
} gpu_case;

static void require_windows_on_the_host(const shard_run *r)
{
    const td_params *params = td_parameters(r->job.net);
    REQUIRE(td_device_of(td_params_flat(params)).type == TD_DEVICE_CPU);
    REQUIRE(td_device_of(td_params_flat_grad(params)).type == TD_DEVICE_CPU);
    for (int i = 0; i < params->extra_count; i++) {
        REQUIRE(td_device_of(params->extra[i].state).type == TD_DEVICE_CPU);
    }
    REQUIRE(td_device_of(td_params_get(params, 0)->tensor).type != TD_DEVICE_CPU);
}

/* Next to a model that is not sharded, on the same GPU. */
static int run_next_to_none(int rank, int size, void *arg)
{
    const gpu_case *g = arg;
    shard_case whole = g->c, sharded = g->c;
    begin(rank, size);
    td_set_math((td_math){ .precision = g->c.scales ? TD_PRECISION_FP16
                                        : g->mixed  ? TD_PRECISION_BF16
                                                    : TD_PRECISION_FP32 });
    whole.zero.wire = whole.zero.offload = NULL;
    whole.defers = false;
    if (g->mesh != NULL) {
        REQUIRE_OK(td_mesh_new(g->mesh, &sharded.options.mesh));
    }
    shard_run runs[2];
    shard_open(&runs[0], &whole, TD_SHARD_NONE, rank);
    shard_open(&runs[1], &sharded, TD_SHARD_PARAMETERS, rank);
    REQUIRE(shard_hash(&runs[1]) == shard_hash(&runs[0]));
    for (int i = 0; i < STEPS; i++) {
        shard_step(&runs[0], &whole);
        shard_step(&runs[1], &sharded);
        uint64_t hash = shard_hash(&runs[1]);
        REQUIRE(job_all_same(hash));
        REQUIRE(!g->exactly || hash == shard_hash(&runs[0]));
    }
    REQUIRE_OK(td_unshard(runs[1].job.net));
    REQUIRE(job_distance(runs[1].job.net, runs[0].job.net, true) < (g->mixed ? 0.02 : 1e-12));
    td_reshard(runs[1].job.net);
    if (sharded.zero.offload != NULL) {
        require_windows_on_the_host(&runs[1]);
    }
    shard_close(&runs[0]);
    shard_close(&runs[1]);
    td_mesh_free(sharded.options.mesh);
    td_dist_destroy();
    return 0;
}

static void test_weights_are_those_without_sharding(void **state)
{
    (void)state;
    need_gpu();
    const char *folder = temp_folder();
    const shard_case adam = { .kind = JOB_BLOCKS, .dtype = TD_F64, .rule = ADAM };
    const shard_case conv = { .kind = JOB_CONV_BLOCKS, .dtype = TD_F64, .rule = MOMENTUM };
    shard_case more = { .kind = JOB_BLOCKS, .dtype = TD_F64, .rule = ADAMW_GROUPS };
    more.clips = more.accumulates = more.averages = more.recomputes = more.defers = true;
    const shard_case scaled = { .kind = JOB_BLOCKS, .rule = ADAM, .scales = true };
    gpu_case cases[] = {
        { NULL, adam, false, true },
        { NULL, { .kind = JOB_BLOCKS, .rule = ADAM, .zero.wire = "bf16" }, true, true },
        { "rep=2,dp=*", adam, false, false },
        { NULL, adam, false, false },
        { NULL, conv, false, false },
        { NULL, more, false, false },
        { NULL, scaled, true, false },
        { NULL, adam, false, false },
        { "rep=2,dp=*", more, false, false },
    };
    enum { CASES = sizeof cases / sizeof *cases, OFFLOADED = 3 };
    for (int i = 0; i < CASES; i++) {
        gpu_case *g = &cases[i];
        g->c.zero.offload = i < OFFLOADED ? NULL : i == CASES - 2 ? folder : "cpu";
        procs_succeed(g->mesh != NULL ? 4 : 2, limit, run_next_to_none, g);
    }
    procs_succeed(1, limit, run_next_to_none, &cases[OFFLOADED]);
    gpu_case all = cases[1]; /* bf16 from the host, within replicas */
    all.mesh = "rep=2,dp=*";
    all.c.zero.offload = "cpu";
    all.exactly = false;
    procs_succeed(4, limit, run_next_to_none, &all);
}

/* ---- bytes ---- */

/* Slots on the GPU as without offload, and one more piece on the host. */
static int run_bytes(int rank, int size, void *arg)
{
    (void)arg;
    begin(rank, size);
    shard_case c = { .kind = JOB_BLOCKS, .rule = ADAM }, host = c;
    host.zero.offload = "cpu";
    shard_run runs[2];
    shard_open(&runs[0], &c, TD_SHARD_PARAMETERS, rank);
    shard_open(&runs[1], &host, TD_SHARD_PARAMETERS, rank);
    shard_step(&runs[0], &c);
    shard_step(&runs[1], &host);
    td_shard_stats gpu = td_ddp_shard_stats(runs[0].job.net);
    td_shard_stats both = td_ddp_shard_stats(runs[1].job.net);
    REQUIRE(both.values == gpu.values && both.gradients == gpu.gradients);
    REQUIRE(both.state == gpu.state);
    /* 4 slots of the largest unit, n bytes, and 2 of the rest; n is larger than the rest. */
    const td_module *block = runs[0].job.net->children[1];
    int64_t line = 16, n = 0, grain = line * size;
    td_state_list state = td_module_state(block);
    for (int i = 0; i < state.count; i++) {
        n += (td_numel(state.items[i].tensor) + line - 1) / line * line;
    }
    td_state_list_free(&state);
    n = (n + grain - 1) / grain * grain;
    REQUIRE(both.slots == gpu.slots + (size_t)(n / size) * sizeof(float));
    shard_close(&runs[0]);
    shard_close(&runs[1]);
    td_dist_destroy();
    return 0;
}

static void test_bytes(void **state)
{
    (void)state;
    need_gpu();
    procs_succeed(2, limit, run_bytes, NULL);
}

/* ---- checkpoints ---- */

/* What is saved of a run: all that a checkpoint may have. */
static void save(const shard_run *r, const char *path)
{
    REQUIRE_OK(td_checkpoint_save(path, r->job.net, .optim = r->job.optim, .ema = r->ema,
                                  .with_random = true));
}

static void require_same_files(const char *a, const char *b)
{
    size_t size, other;
    char *one = temp_read(a, &size), *two = temp_read(b, &other);
    REQUIRE(size == other && memcmp(one, two, size) == 0);
    free(one);
    free(two);
}

/* Saved from one place and loaded in another: ranks that shard save the same file from there, and
 * where the same device steps, runs go on to the same weights. */
static int run_checkpoint(int rank, int size, void *path)
{
    begin(rank, size);
    shard_case gpu = { .kind = JOB_CONV_BLOCKS, .rule = ADAM, .averages = true }, host = gpu;
    host.zero.offload = "cpu";
    const struct {
        const shard_case *from, *to;
        td_shard way; /* of the run that loads */
        int steps;
    } ways[] = { { &host, &host, TD_SHARD_PARAMETERS, 2 },
                 { &host, &gpu, TD_SHARD_PARAMETERS, 0 },
                 { &gpu, &host, TD_SHARD_PARAMETERS, 0 },
                 { &host, &gpu, TD_SHARD_NONE, 0 } };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        shard_run saved, loaded;
        char again[1024];
        snprintf(again, sizeof again, "%s-again", (const char *)path);
        shard_open(&saved, ways[i].from, TD_SHARD_PARAMETERS, rank);
        shard_step(&saved, ways[i].from);
        save(&saved, path);
        shard_open(&loaded, ways[i].to, ways[i].way, rank);
        REQUIRE_OK(td_checkpoint_load(path, loaded.job.net, .optim = loaded.job.optim,
                                      .ema = loaded.ema, .with_random = true));
        if (ways[i].way != TD_SHARD_NONE) { /* with the generators of all ranks */
            save(&loaded, again);
            if (rank == 0) {
                require_same_files(path, again);
            }
        }
        shard_require_same(&saved, ways[i].from, &loaded, ways[i].to, ways[i].steps);
    }
    td_dist_destroy();
    return 0;
}

static void test_checkpoints(void **state)
{
    (void)state;
    need_gpu();
    procs_succeed(2, limit, run_checkpoint, (void *)(uintptr_t)temp_path("saved"));
}

/* ---- what is refused ---- */

static int run_refusals(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    REQUIRE(td_ddp(job_net(JOB_BLOCKS, 1, TD_F32),
                   .strategy = td_zero(TD_SHARD_PARAMETERS, .offload = "cpu")) == NULL);
    REQUIRE(strstr(td_last_error(), ".offload 'cpu' is for models on GPUs") != NULL);
    REQUIRE(td_ddp(job_net(JOB_BLOCKS, 1, TD_F64),
                   .strategy = td_zero(TD_SHARD_PARAMETERS, .wire = "bf16")) == NULL);
    REQUIRE(strstr(td_last_error(), ".wire bf16 is for f32 models") != NULL);
    td_dist_destroy();
    return 0;
}

static void test_refusals(void **state)
{
    (void)state;
    procs_succeed(2, limit, run_refusals, NULL);
}

#define IN_FOLDER(test)                                                                            \
    cmocka_unit_test_setup_teardown(test, temp_folder_setup, temp_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_weights_are_those_without_sharding),
        cmocka_unit_test(test_bytes),
        IN_FOLDER(test_checkpoints),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
