/* Sharding: the weights are those of td_ddp without it, bit for bit; the bytes are those of the
 * formula; faults are told to all. */
#include "autograd/hooks.h"
#include "dist/collectives.h"
#include "dist/ddp_extra.h"
#include "nn/extra/inspect.h"
#include "nn/extra/muon.h"
#include "nn/module.h"
#include "tensor/clock.h"
#include "tensor/precision.h"
#include "tests/dist_faults.h"
#include "tests/dist_procs.h"
#include "tests/expect_fatal.h"
#include "tests/sanitized.h"
#include "tests/shard_run.h"
#include "tests/temp_folder.h"
#include "tensor/extend.h"

#include <malloc.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const double limit = 60.0;
enum { STEPS = 20, MOST_RANKS = 4 };

/* ---- the same weights ---- */

/* Whole pages for each rank are more than all of a small model. */
static bool is_woven(int way)
{
    return way == TD_SHARD_PARAMETERS && !procs_are_over("gloo");
}

/* All ways of sharding that a case is for, next to none. */
static int run_same(int rank, int size, void *arg)
{
    const shard_case *c = arg;
    procs_init(rank, size, 20.0);
    shard_run runs[SHARD_WAYS];
    int ways = c->again || c->options.comm_hook != NULL ? TD_SHARD_OPTIMIZER : SHARD_GATHERED;
    for (int way = TD_SHARD_NONE; way <= ways; way++) {
        shard_open(&runs[way], c, way, rank);
    }
    uint64_t before = shard_hash(&runs[0]), hash = 0;
    for (int i = 0; i < STEPS; i++) {
        for (int way = TD_SHARD_NONE; way <= ways; way++) {
            shard_step(&runs[way], c);
            uint64_t mine = shard_hash(&runs[way]);
            hash = way == TD_SHARD_NONE ? mine : hash;
            REQUIRE(mine == hash);
        }
        REQUIRE(job_all_same(hash));
    }
    REQUIRE(hash != before);
    size_t state = td_ddp_shard_stats(runs[0].job.net).state;
    for (int way = TD_SHARD_NONE; way <= ways; way++) {
        size_t mine = td_ddp_shard_stats(runs[way].job.net).state;
        REQUIRE(way == TD_SHARD_NONE || size == 1 || state == 0 || mine < state || is_woven(way));
        shard_close(&runs[way]);
    }
    td_dist_destroy();
    return 0;
}

static void run_everywhere(shard_case c)
{
    for (int size = 2; size <= MOST_RANKS; size++) {
        procs_succeed(size, limit, run_same, &c);
    }
}

static void test_weights_are_those_without_sharding(void **state)
{
    (void)state;
    for (optim_rule rule = SGD; rule < RULES; rule++) {
        run_everywhere((shard_case){ .kind = JOB_BLOCKS, .dtype = TD_F32, .rule = rule });
        run_everywhere((shard_case){ .kind = JOB_CONV_BLOCKS, .dtype = TD_F64, .rule = rule });
    }
    run_everywhere((shard_case){ .kind = JOB_MLP, .rule = ADAM }); /* no block: one unit */
    run_everywhere((shard_case){ .kind = JOB_CONV_BLOCKS, .rule = ADAM_8 });
}

/* Each layer is a unit. */
static bool is_linear(const td_module *m, const char *path, void *user)
{
    (void)user;
    return *path != '\0' && strcmp(m->type->name, "Linear") == 0;
}

static void test_with_what_else_a_step_does(void **state)
{
    (void)state;
    job_kind kind = JOB_BLOCKS;
    run_everywhere((shard_case){ .kind = kind, .rule = ADAM, .clips = true });
    run_everywhere((shard_case){ .kind = kind, .rule = SGD, .clips = true, .norm = INFINITY });
    run_everywhere((shard_case){ .kind = kind, .rule = MOMENTUM, .accumulates = true });
    run_everywhere((shard_case){ .rule = MOMENTUM, .accumulates = true, .again = true });
    run_everywhere(
        (shard_case){ .kind = kind, .rule = ADAMW_GROUPS, .averages = true, .clips = true });
    run_everywhere((shard_case){ .kind = kind, .rule = MOMENTUM, .scales = true });
    run_everywhere((shard_case){ .kind = kind, .rule = ADAM, .recomputes = true });
    run_everywhere((shard_case){ .rule = ADAM, .options.comm_hook = "bf16" });
    run_everywhere((shard_case){ .rule = ADAM, .options.comm_hook = "powersgd" });
    run_everywhere(
        (shard_case){ .kind = kind, .rule = ADAM, .options.find_unused_parameters = true });
    run_everywhere((shard_case){ .kind = kind, .rule = ADAM, .options.unit = is_linear });
    procs_succeed(1, limit, run_same, &(shard_case){ .kind = kind, .rule = ADAM });
}

/* A second reduction of the same gradients adds to their average, which rounds in another order. */
static int run_again(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    shard_case c = { .kind = JOB_BLOCKS, .dtype = TD_F64, .rule = ADAM, .clips = true };
    c.again = true;
    c.norm = 3.0;
    for (int way = TD_SHARD_GRADIENTS; way < SHARD_WAYS; way++) {
        shard_run whole, sharded;
        shard_open(&whole, &c, TD_SHARD_NONE, rank);
        shard_open(&sharded, &c, way, rank);
        for (int i = 0; i < STEPS; i++) {
            shard_step(&whole, &c);
            shard_step(&sharded, &c);
        }
        REQUIRE_OK(td_unshard(sharded.job.net));
        REQUIRE(job_distance(sharded.job.net, whole.job.net, true) < 1e-12);
        shard_close(&whole);
        shard_close(&sharded);
    }
    td_dist_destroy();
    return 0;
}

/* The same next to one process with all samples. */
static int run_again_like_one(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    shard_case c = { .kind = JOB_MLP, .dtype = TD_F64, .rule = MOMENTUM, .again = true };
    c.options.unit = is_linear;
    for (int way = TD_SHARD_OPTIMIZER; way <= TD_SHARD_PARAMETERS; way++) {
        shard_run sharded;
        ddp_job one;
        shard_open(&sharded, &c, (td_shard)way, rank);
        job_open(&one, c.kind, c.dtype, NULL, 0, size * EACH);
        td_optim_free(one.optim);
        one.optim = shard_optim(c.rule, td_parameters(one.net));
        for (int i = 0; i < STEPS; i++) {
            td_zero_grad(one.optim);
            job_backward(&one, 1.0);
            job_backward(&one, 1.0);
            td_optim_step(one.optim);
            shard_step(&sharded, &c);
        }
        REQUIRE_OK(td_unshard(sharded.job.net));
        REQUIRE(job_distance(sharded.job.net, one.net, true) < 1e-12);
        job_close(&one);
        shard_close(&sharded);
    }
    td_dist_destroy();
    return 0;
}

static void test_gradients_are_added_to_their_average(void **state)
{
    (void)state;
    procs_succeed(3, limit, run_again_like_one, NULL);
    procs_succeed(3, limit, run_again, NULL);
}

/* Adafactor adds up rows and columns in another order, where ranks have parts of them. (Not with
 * biases in front of batch normalisation: their gradients are rounding errors, which an update
 * makes as large as any other.) */
static int run_adafactor(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    shard_case c = { .kind = JOB_BLOCKS, .dtype = TD_F64, .rule = ADAFACTOR };
    for (int way = TD_SHARD_OPTIMIZER; way < SHARD_WAYS; way++) {
        shard_run whole, sharded;
        shard_open(&whole, &c, TD_SHARD_NONE, rank);
        shard_open(&sharded, &c, way, rank);
        for (int i = 0; i < STEPS; i++) {
            shard_step(&whole, &c);
            shard_step(&sharded, &c);
        }
        REQUIRE(job_all_same(shard_hash(&sharded)));
        REQUIRE_OK(td_unshard(sharded.job.net));
        REQUIRE(job_distance(sharded.job.net, whole.job.net, true) < 1e-12);
        shard_close(&whole);
        shard_close(&sharded);
    }
    td_dist_destroy();
    return 0;
}

static void test_adafactor_on_parts_of_matrices(void **state)
{
    (void)state;
    procs_succeed(3, limit, run_adafactor, NULL);
}

/* ---- other models ---- */

/* One layer runs twice, one not in every step; the weight of the last is used outside of it, too,
 * by the module around all, so it belongs to no layer. */
typedef struct routed {
    td_module *twice, *sometimes, *last;
    td_tensor *tied;
    bool skips, turns; /* turns: the other way round */
} routed;

static td_tensor *routed_forward(td_module *self, td_tensor *x, td_site at)
{
    routed *r = self->state;
    x = r->turns ? td_forward_at(r->last, x, at) : x;
    x = td_gelu(td_forward_at(r->twice, x, at));
    x = r->skips ? x : td_forward_at(r->sometimes, x, at);
    x = td_gelu(td_forward_at(r->twice, x, at));
    x = td_forward_at(r->last, td_linear(x, r->tied, NULL), at);
    return x;
}

static const td_module_type routed_type = { .name = "Routed", .forward = routed_forward };

static td_module *new_routed(void)
{
    td_manual_seed(5);
    td_module *m = td_module_new(&routed_type, sizeof(routed));
    routed *r = m->state;
    r->twice = td_module_add(m, "twice", td_nn_linear(13, 13));
    r->sometimes = td_module_add(m, "sometimes", td_nn_linear(13, 13));
    r->last = td_module_add(m, "last", td_nn_linear(13, 13));
    r->tied = td_module_parameter(m, "tied", r->last->tensors[0].tensor);
    return td_module_finish(m);
}

static void open_routed(shard_run *r, int way, int rank)
{
    bool gathers = way == SHARD_GATHERED;
    *r = (shard_run){ .ema = NULL };
    r->job.net = td_ddp(new_routed(), .shard = gathers ? TD_SHARD_PARAMETERS : (td_shard)way,
                        .gathers = gathers, .unit = is_linear, .find_unused_parameters = true);
    REQUIRE(r->job.net != NULL);
    r->job.optim = shard_optim(MOMENTUM, td_parameters(r->job.net));
    job_data(&r->job, JOB_MLP, TD_F32, rank * EACH, (rank + 1) * EACH);
}

/* Which ranks skip the layer: all in the first two steps, then none, one, all, none, ... If units
 * are gathered, all ranks run the same. */
static int run_routed(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    for (int way = TD_SHARD_GRADIENTS; way < SHARD_WAYS; way++) {
        shard_run runs[2];
        open_routed(&runs[0], TD_SHARD_NONE, rank);
        open_routed(&runs[1], way, rank);
        for (int i = 0; i < STEPS; i++) {
            bool alone =
                (way == TD_SHARD_GRADIENTS || is_woven(way)) && i % 3 == 0 && rank == size - 1;
            for (int k = 0; k < 2; k++) {
                ((routed *)runs[k].job.net->state)->skips = i < 2 || i % 3 == 1 || alone;
                shard_step(&runs[k], &(shard_case){ .rule = MOMENTUM });
            }
            REQUIRE(shard_hash(&runs[0]) == shard_hash(&runs[1]));
        }
        REQUIRE(td_ddp_shard_stats(runs[1].job.net).units == 4);
        shard_close(&runs[0]);
        shard_close(&runs[1]);
    }
    td_dist_destroy();
    return 0;
}

static void note_message(td_status status, const char *message, void *user)
{
    (void)status;
    snprintf(user, 512, "%s", message);
}

/* One rank runs another unit first. */
static int run_another_order(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    shard_run r;
    char told[512] = "";
    open_routed(&r, SHARD_GATHERED, rank);
    td_ddp_on_error(r.job.net, note_message, told);
    shard_step(&r, &(shard_case){ .rule = MOMENTUM });
    ((routed *)r.job.net->state)->turns = rank == 1;
    shard_backward(&r);
    REQUIRE(strstr(told, "the ranks do not do the same: rank ") != NULL);
    REQUIRE(strstr(told, ", unit 1)") != NULL && strstr(told, ", unit 2)") != NULL);
    shard_close(&r);
    td_dist_destroy();
    return 0;
}

static void test_another_order_on_one_rank(void **state)
{
    (void)state;
    procs_succeed(2, limit, run_another_order, NULL);
}

static void test_unused_shared_and_repeated_layers(void **state)
{
    (void)state;
    procs_succeed(2, limit, run_routed, NULL);
    procs_succeed(3, limit, run_routed, NULL);
}

/* ---- bytes ---- */

/* What the formulas are made of, in elements: the model's units in the order of children, the
 * children that are none together, each parameter rounded up to 64 bytes and each unit to W times
 * `grain`. Without units all is one. */
typedef struct extent {
    int64_t all, largest, root;
} extent;

static extent extent_of(const td_module *net, bool units, int64_t grain, int64_t size)
{
    int64_t line = 64 / size, sums[16] = { 0 };
    td_state_list state = td_module_state(net);
    for (int i = 0; i < state.count; i++) {
        int child = units ? atoi(state.items[i].name) : 0;
        bool block = units && net->children[child]->child_count > 0;
        if (!state.items[i].buffer) {
            sums[block ? child + 1 : 0] +=
                (td_numel(state.items[i].tensor) + line - 1) / line * line;
        }
    }
    td_state_list_free(&state);
    extent e = { 0 };
    for (int i = 0; i < 16; i++) {
        int64_t padded = (sums[i] + grain - 1) / grain * grain;
        e.all += padded;
        e.largest = i > 0 && padded > e.largest ? padded : e.largest;
        e.root = i == 0 ? padded : e.root;
    }
    return e;
}

/* What one rank keeps, in elements, with `arrays` of state. docs/sharding.md has the formulas. */
static td_shard_stats formula(int way, extent e, int64_t arrays, int64_t world)
{
    bool own_values = way >= TD_SHARD_PARAMETERS, own_grads = way >= TD_SHARD_GRADIENTS;
    return (td_shard_stats){
        .values = (size_t)(own_values ? e.all / world : e.all),
        .gradients = (size_t)(own_grads ? e.all / world : e.all),
        .state = (size_t)(arrays * e.all / world),
        .slots = (size_t)(way == SHARD_GATHERED ? 4 * e.largest + 2 * e.root
                          : own_grads           ? 2 * e.largest + e.root
                                                : 0),
    };
}

static void check_bytes(const td_module *net, td_shard_stats want, size_t width)
{
    td_shard_stats got = td_ddp_shard_stats(net);
    REQUIRE(got.values == width * want.values);
    REQUIRE(got.gradients == width * want.gradients);
    REQUIRE(got.state == width * want.state);
    REQUIRE(got.slots == width * want.slots);
}

/* Bytes from the other ranks in one step, in windows: gradients are scattered, values gathered;
 * without weaving twice, but for the root, which is here all the time, and the last unit,
 * which is here when backward begins. Not with buffers, which are broadcast, too. */
static void check_wire(shard_run *r, const shard_case *c, int way, extent e, int64_t world)
{
    uint64_t before = td_ddp_shard_stats(r->job.net).wire;
    shard_step(r, c);
    uint64_t got = td_ddp_shard_stats(r->job.net).wire - before;
    uint64_t window = (uint64_t)(e.all / world * (world - 1)) * td_dtype_size(c->dtype);
    if (c->kind == JOB_BATCH_NORM || c->kind == JOB_CONV_BLOCKS) {
        return;
    }
    REQUIRE(way != TD_SHARD_GRADIENTS || got == 2 * window);
    REQUIRE(way != TD_SHARD_PARAMETERS || got == window);
    bool units = td_ddp_shard_stats(r->job.net).units > 1;
    REQUIRE(way != SHARD_GATHERED || units || got == 2 * window);
    REQUIRE(way != SHARD_GATHERED || !units || world == 1 ||
            (got > 2 * window && got < 3 * window));
}

static int run_bytes(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    static const int64_t arrays[RULES] = { 0, 1, 2, 2 };
    static const job_kind kinds[] = { JOB_MLP, JOB_CONV, JOB_BATCH_NORM, JOB_BLOCKS,
                                      JOB_CONV_BLOCKS };
    for (int k = 0; k < 5 * 2 * SHARD_GATHERED; k++) {
        int way = TD_SHARD_OPTIMIZER + k / 10;
        shard_case c = { .kind = kinds[k % 5],
                         .dtype = k / 5 % 2 ? TD_F64 : TD_F32,
                         .rule = (optim_rule)(k % RULES) };
        shard_run r;
        shard_open(&r, &c, way, rank);
        size_t width = td_dtype_size(c.dtype);
        /* Woven pieces are whole pages. */
        bool woven = way == TD_SHARD_PARAMETERS && (size == 1 || is_woven(way));
        REQUIRE(td_ddp_shard_stats(r.job.net).woven == woven);
        int64_t grain = woven ? sysconf(_SC_PAGESIZE) : 64;
        extent e = extent_of(r.job.net, way >= TD_SHARD_GRADIENTS, size * grain / (int64_t)width,
                             (int64_t)width);
        td_shard_stats want =
            formula(way + (way == TD_SHARD_PARAMETERS && !woven), e, arrays[c.rule], size);
        check_bytes(r.job.net, want, width);
        REQUIRE(td_optim_state_bytes(r.job.optim) == width * want.state);
        for (int i = 0; i < 3; i++) { /* steps add nothing */
            shard_step(&r, &c);
        }
        check_bytes(r.job.net, want, width);
        REQUIRE(td_ddp_shard_stats(r.job.net).gather > 0.0);
        check_wire(&r, &c, woven ? way : way + (way == TD_SHARD_PARAMETERS), e, size);
        shard_close(&r);
    }
    td_dist_destroy();
    return 0;
}

static void test_bytes_are_those_of_the_formula(void **state)
{
    (void)state;
    static const int sizes[] = { 1, 2, 3, 4, 8 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        procs_succeed(sizes[i], limit, run_bytes, NULL);
    }
}

/* ---- bf16 on the wire ---- */

static uint64_t wire_of_step(shard_run *r, const shard_case *c)
{
    uint64_t before = td_ddp_shard_stats(r->job.net).wire;
    shard_step(r, c);
    return td_ddp_shard_stats(r->job.net).wire - before;
}

/* Under bf16 arithmetic the same bits as without; else near them, and td_unshard has the
 * windows, unrounded. */
static int run_wire(int rank, int size, void *arg)
{
    shard_case c = *(const shard_case *)arg, narrow = c;
    procs_init(rank, size, 20.0);
    narrow.options.wire = "bf16";
    for (int mixed = 0; mixed < 2; mixed++) {
        td_set_math((td_math){ .precision = mixed ? TD_PRECISION_BF16 : TD_PRECISION_FP32 });
        shard_run none, wide, rounded;
        shard_open(&none, &c, TD_SHARD_NONE, rank);
        shard_open(&wide, &c, SHARD_GATHERED, rank);
        shard_open(&rounded, &narrow, TD_SHARD_PARAMETERS, rank);
        REQUIRE(shard_hash(&rounded) == shard_hash(&wide)); /* at first, whatever travels */
        for (int i = 0; i < STEPS; i++) {
            shard_step(&none, &c);
            uint64_t all = wire_of_step(&wide, &c), less = wire_of_step(&rounded, &narrow);
            uint64_t hash = shard_hash(&rounded);
            /* With more ranks small blocks' vectors fill too much of a piece. */
            REQUIRE(less < all && 2 * less > all && (size > 2 || 20 * less < 17 * all));
            REQUIRE(job_all_same(hash));
            REQUIRE((hash == shard_hash(&wide)) == mixed && (hash == shard_hash(&none)) == mixed);
        }
        REQUIRE_OK(td_unshard(rounded.job.net));
        REQUIRE(job_distance(rounded.job.net, none.job.net, false) < 0.1);
        shard_close(&none);
        shard_close(&wide);
        shard_close(&rounded);
    }
    td_set_math((td_math){ 0 });
    td_dist_destroy();
    return 0;
}

static void test_bf16_on_the_wire(void **state)
{
    (void)state;
    for (int size = 2; size <= MOST_RANKS; size++) {
        procs_succeed(size, limit, run_wire, &(shard_case){ .kind = JOB_BLOCKS, .rule = ADAM });
        procs_succeed(size, limit, run_wire,
                      &(shard_case){ .kind = JOB_CONV_BLOCKS, .rule = MOMENTUM });
    }
    shard_case layers = { .kind = JOB_BLOCKS, .rule = ADAM, .recomputes = true };
    layers.options.unit = is_linear;
    procs_succeed(2, limit, run_wire, &layers);
}

/* A model of 3.2 million parameters, so that its memory is most of what a rank has. */
static td_module *large_net(void)
{
    enum { WIDTH = 256, BLOCKS = 6 };
    td_module *blocks[BLOCKS];
    td_manual_seed(1);
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = td_nn_sequential(td_nn_linear(WIDTH, 4 * WIDTH), td_nn_gelu(),
                                     td_nn_linear(4 * WIDTH, WIDTH));
    }
    return td_nn_sequential_list(blocks, BLOCKS);
}

/* Bytes of this process, where shared pages count by their shares. */
static double proportional_bytes(void)
{
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    char line[256];
    double kib = 0.0;
    REQUIRE(file != NULL);
    while (kib == 0.0 && fgets(line, sizeof line, file) != NULL) {
        kib = strncmp(line, "Pss:", 4) == 0 ? strtod(line + 4, NULL) : 0.0;
    }
    fclose(file);
    return 1024.0 * kib;
}

/* By how much a process is larger after a step than its counted memory. */
static double uncounted_bytes(int way)
{
    /* The other ranks' memory of the model before goes when new memory comes. */
    td_free(td_group_memory(NULL, 1, TD_F32));
    REQUIRE_OK(td_barrier(NULL));
    td_shard shard = way == SHARD_GATHERED ? TD_SHARD_PARAMETERS : (td_shard)way;
    td_module *net = td_ddp(large_net(), .shard = shard, .gathers = way == SHARD_GATHERED);
    REQUIRE(net != NULL);
    td_optim *optim = td_adam(td_parameters(net), .lr = 1e-3);
    td_tensor *x = td_zeros(TD_SHAPE(2, 256), TD_F32, TD_CPU);
    TD_STEP {
        td_backward(td_mse_loss(td_forward(net, x), x));
        td_optim_step(optim);
    }
    td_shard_stats stats = td_ddp_shard_stats(net);
    malloc_trim(0); /* without shards, buckets are rebuilt: the heap keeps that copy */
    REQUIRE_OK(td_barrier(NULL));
    double bytes = proportional_bytes();
    REQUIRE_OK(td_barrier(NULL));
    td_free(x);
    td_optim_free(optim);
    td_module_free(net);
    return bytes - (double)(stats.values + stats.gradients + stats.state + stats.slots);
}

/* What is not counted (the program, workspaces) is the same in all ways. */
static int run_process_bytes(int rank, int size, void *arg)
{
    (void)arg;
    double tolerance = TD_SANITIZED ? INFINITY : 2 << 20;
    procs_init(rank, size, 20.0);
    double usual = uncounted_bytes(TD_SHARD_NONE);
    usual = uncounted_bytes(TD_SHARD_NONE); /* what a first time leaves is there */
    for (int way = TD_SHARD_OPTIMIZER; way < SHARD_WAYS; way++) {
        double more = uncounted_bytes(way) - usual;
        if (!(fabs(more) < tolerance)) {
            fprintf(stderr, "way %d: %.2f MiB more than counted\n", way, more / (1 << 20));
        }
        REQUIRE(fabs(more) < tolerance);
    }
    td_dist_destroy();
    return 0;
}

static void test_processes_have_what_is_counted(void **state)
{
    (void)state;
    for (int size = 1; size <= MOST_RANKS; size++) {
        procs_succeed(size, limit, run_process_bytes, NULL);
    }
}

/* ---- woven values ---- */

static double evaluate(shard_run *r)
{
    double sum = 0.0;
    td_no_grad_begin();
    TD_STEP {
        sum = td_item(td_cross_entropy(td_forward(r->job.net, r->job.x), r->job.y));
    }
    td_no_grad_end();
    return sum;
}

static void linger(td_tensor *leaf, void *user)
{
    (void)leaf, (void)user;
    usleep(2000);
}

/* One rank alone runs the model between steps, also with averaged weights, and is late: the values
 * are those without sharding. */
static int run_alone(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    shard_case c = { .kind = JOB_BLOCKS, .rule = ADAM, .averages = true, .clips = true };
    shard_run whole, woven;
    shard_open(&whole, &c, TD_SHARD_NONE, rank);
    shard_open(&woven, &c, TD_SHARD_PARAMETERS, rank);
    td_module *block = td_module_find(woven.job.net, "2.3");
    td_on_grad_ready(block->tensors[0].tensor, linger, NULL);
    for (int i = 0; i < STEPS; i++) {
        shard_step(&whole, &c);
        shard_step(&woven, &c);
        td_ema_swap(whole.ema);
        td_ema_swap(woven.ema);
        for (int k = 0; is_woven(TD_SHARD_PARAMETERS) && rank == i % size && k < 3; k++) {
            usleep(1000);
            REQUIRE(evaluate(&whole) == evaluate(&woven));
        }
        td_ema_swap(whole.ema);
        td_ema_swap(woven.ema);
        for (int k = 0; is_woven(TD_SHARD_PARAMETERS) && rank == i % size && k < 3; k++) {
            usleep(1000);
            REQUIRE(evaluate(&whole) == evaluate(&woven));
        }
    }
    shard_close(&whole);
    shard_close(&woven);
    td_dist_destroy();
    return 0;
}

static void test_one_rank_alone_runs_the_model(void **state)
{
    (void)state;
    procs_succeed(2, limit, run_alone, NULL);
    procs_succeed(3, limit, run_alone, NULL);
}

/* ---- what is refused ---- */

static int run_refusals(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    td_module *net = job_net(JOB_MLP, 1, TD_F32);
    td_optim *early = td_sgd(td_parameters(net), .lr = 0.1, .momentum = 0.9);
    REQUIRE(td_ddp(td_module_clone(net), .shard = (td_shard)(TD_SHARD_OPTIMIZER * (rank == 0))) ==
            NULL);
    REQUIRE(strstr(td_last_error(), "shard optimizer") != NULL); /* on one rank only */
    td_optim_free(early);
    td_module_free(net);
    td_dist_destroy();
    return 0;
}

static void test_another_setting_on_one_rank(void **state)
{
    (void)state;
    procs_succeed(2, limit, run_refusals, NULL);
}

static void test_what_cannot_be_combined(void **state)
{
    (void)state;
    char url[600];
    snprintf(url, sizeof url, "file://%s", temp_path("store"));
    assert_int_equal(td_dist_init(.init_method = url, .world_size = 1), TD_OK);
    td_module *net = td_ddp(job_net(JOB_MLP, 1, TD_F32), .shard = TD_SHARD_OPTIMIZER);
    assert_non_null(net);
    expect_fatal("use td_sgd, td_adam or td_adamw", td_muon(td_parameters(net), .lr = 0.1));
    expect_fatal("or td_ddp without .shard", td_ddp_join_begin(net, false));
    td_module_free(net);
    net = job_net(JOB_MLP, 1, TD_F32);
    expect_fatal("use TD_SHARD_OPTIMIZER, or no hook",
                 td_ddp(net, .shard = TD_SHARD_GRADIENTS, .comm_hook = "bf16"));
    expect_fatal("there is no way of sharding 7", td_ddp(net, .shard = (td_shard)7));
    expect_fatal("there is no .wire 'fp8'; there is bf16", td_ddp(net, .wire = "fp8"));
    expect_fatal("with TD_SHARD_PARAMETERS", td_ddp(net, .wire = "bf16"));
    td_optim *early = td_sgd(td_parameters(net), .lr = 0.1, .momentum = 0.9);
    expect_fatal("are made after td_ddp", td_ddp(net, .shard = TD_SHARD_OPTIMIZER));
    td_optim_free(early);
    td_module_free(net);
    td_dist_destroy();
}

/* Memory that is not there is named when it is used. */
static void test_used_while_away(void **state)
{
    (void)state;
    char url[600];
    snprintf(url, sizeof url, "file://%s", temp_path("store"));
    assert_int_equal(td_dist_init(.init_method = url, .world_size = 1), TD_OK);
    shard_case c = { .kind = JOB_BLOCKS, .rule = ADAM };
    shard_run r;
    shard_open(&r, &c, SHARD_GATHERED, 0);
    td_module *net = r.job.net, *layer = td_module_find(net, "2.3");
    td_tensor *weight = layer->tensors[0].tensor;
    td_tensor *x = td_zeros(TD_SHAPE(4, 24), TD_F32, TD_CPU);
    expect_fatal("'2.3.weight' f32[16,24] cpu:0 is away", td_clone(weight));
    td_step_begin();
    expect_fatal("'2.3.weight' f32[16,24] cpu:0 is away", td_forward(layer, x));
    td_step_abandon();
    td_free(x);
    shard_step(&r, &c);
    expect_fatal("'2.3.weight' f32[16,24] cpu:0 is away", td_clone(td_grad(weight)));
    assert_int_equal(td_unshard(net), TD_OK);
    td_tensor *copy = td_clone(weight);
    td_reshard(net);
    expect_fatal("is away", td_clone(weight));
    td_free(copy);
    shard_close(&r);
    td_dist_destroy();
}

/* ---- faults ---- */

static void note_failure(td_status status, const char *message, void *user)
{
    (void)message;
    *(td_status *)user = status;
}

typedef enum death_place { IN_FORWARD, IN_BACKWARD, IN_OPTIM, IN_SAVE } death_place;
typedef struct death {
    int way;
    death_place place;
} death;

static void die(void)
{
    kill(getpid(), SIGKILL);
}

static void die_at(td_tensor *leaf, void *user)
{
    (void)leaf, (void)user;
    die();
}

/* A rank dies; the others wait for what it has of all, and are told. */
static int run_death(int rank, int size, void *arg)
{
    const death *d = arg;
    procs_init(rank, size, 20.0);
    shard_case c = { .kind = JOB_BLOCKS, .rule = ADAM };
    shard_run r;
    td_status told = TD_OK;
    bool dies = rank == size - 1;
    shard_open(&r, &c, d->way, rank);
    td_ddp_on_error(r.job.net, note_failure, &told);
    shard_step(&r, &c);
    td_zero_grad(r.job.optim);
    if (dies && d->place == IN_FORWARD) {
        die();
    }
    if (dies && d->place == IN_BACKWARD) { /* when two blocks have their gradients */
        td_on_grad_ready(td_module_find(r.job.net, "2.4")->tensors[0].tensor, die_at, NULL);
    }
    *fault_at = td_clock();
    shard_backward(&r);
    if (told == TD_OK && d->place >= IN_OPTIM) {
        *fault_at = td_clock();
        if (dies) {
            die();
        }
        if (d->place == IN_OPTIM) {
            td_optim_step(r.job.optim);
        } else {
            told = td_checkpoint_save("/no/such/folder/file", r.job.net, .optim = r.job.optim);
        }
    }
    REQUIRE(told != TD_OK);
    char reason[512];
    snprintf(reason, sizeof reason, "%s", td_last_error());
    shard_close(&r);
    td_fail(told, "%s", reason);
    return fault_report(told);
}

static void test_a_death_is_told_to_all(void **state)
{
    (void)state;
    static procs_end ends[3];
    static const death deaths[] = {
        { TD_SHARD_OPTIMIZER, IN_OPTIM },    { TD_SHARD_GRADIENTS, IN_BACKWARD },
        { TD_SHARD_GRADIENTS, IN_OPTIM },    { TD_SHARD_GRADIENTS, IN_SAVE },
        { TD_SHARD_PARAMETERS, IN_FORWARD }, { TD_SHARD_PARAMETERS, IN_BACKWARD },
        { TD_SHARD_PARAMETERS, IN_OPTIM },   { TD_SHARD_PARAMETERS, IN_SAVE },
        { SHARD_GATHERED, IN_FORWARD },      { SHARD_GATHERED, IN_BACKWARD },
        { SHARD_GATHERED, IN_SAVE },
    };
    for (size_t i = 0; i < sizeof deaths / sizeof *deaths; i++) {
        bool meets = deaths[i].way != TD_SHARD_PARAMETERS || is_woven(deaths[i].way);
        if (deaths[i].place == IN_OPTIM && !meets) {
            continue; /* where values are gathered, a step needs nobody */
        }
        fault_run(3, limit, run_death, (void *)(uintptr_t)&deaths[i], ends);
        for (int rank = 0; rank < 2; rank++) {
            assert_survived(ends, rank);
            procs_assert_says(ends, rank, "rank 2 (pid ");
        }
    }
}

#define IN_FOLDER(test)                                                                            \
    cmocka_unit_test_setup_teardown(test, temp_folder_setup, temp_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights_are_those_without_sharding),
        cmocka_unit_test(test_with_what_else_a_step_does),
        cmocka_unit_test(test_gradients_are_added_to_their_average),
        cmocka_unit_test(test_adafactor_on_parts_of_matrices),
        cmocka_unit_test(test_unused_shared_and_repeated_layers),
        cmocka_unit_test(test_another_order_on_one_rank),
        cmocka_unit_test(test_bf16_on_the_wire),
        cmocka_unit_test(test_bytes_are_those_of_the_formula),
        cmocka_unit_test(test_processes_have_what_is_counted),
        cmocka_unit_test(test_one_rank_alone_runs_the_model),
        cmocka_unit_test(test_another_setting_on_one_rank),
        cmocka_unit_test(test_a_death_is_told_to_all),
        IN_FOLDER(test_what_cannot_be_combined), /* the last two make this process a rank */
        IN_FOLDER(test_used_while_away),
    };
    return cmocka_run_group_tests(tests, fault_setup, NULL);
}
