/* Sharding: what ranks keep and what they send are the bytes of the formulas in docs/sharding.md,
 * also in bf16 and when gradients are reduced twice. */
#include "dist/comm/collectives.h"
#include "dist/ddp/extra.h"
#include "nn/extra/inspect.h"
#include "nn/module.h"
#include "tensor/extend.h"
#include "tensor/precision.h"
#include "tests/help/dist_procs.h"
#include "tests/help/sanitized.h"
#include "tests/dist/shard_run.h"

#include <malloc.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const double limit = 60.0;
enum { STEPS = TD_SANITIZED ? 5 : 20, MOST_RANKS = 4, WIDTH = 256 };

/* ---- bytes ---- */

/* What the formulas are made of, in elements: the model's units in the order of children, the
 * children that are none together (the root, 0), each parameter rounded up to 64 bytes and each
 * unit to W times `grain`. Without units all is one. wide: what travels as f32 under .wire. */
enum { UNITS = 16 };
typedef struct extent {
    int64_t unit[UNITS], wide[UNITS];
    int64_t all, largest, root, last; /* last: the unit that forward comes to last */
} extent;

/* Whether a parameter of the test's models is a matrix of Linear or Conv2d. */
static bool is_matrix(const td_named_tensor *t)
{
    return t->tensor->ndim >= 2 && strstr(t->name, "weight") != NULL;
}

static extent extent_of(const td_module *net, bool units, int64_t grain, int64_t size)
{
    int64_t line = 64 / size;
    extent e = { .last = 0 };
    td_state_list state = td_module_state(net);
    for (int i = 0; i < state.count; i++) {
        int child = units ? atoi(state.items[i].name) : 0;
        bool block = units && net->children[child]->child_count > 0;
        if (!state.items[i].buffer) {
            int64_t count = (td_numel(state.items[i].tensor) + line - 1) / line * line;
            e.unit[block ? child + 1 : 0] += count;
            e.wide[block ? child + 1 : 0] += is_matrix(&state.items[i]) ? 0 : count;
        }
    }
    td_state_list_free(&state);
    for (int i = 0; i < UNITS; i++) {
        int64_t padded = (e.unit[i] + grain - 1) / grain * grain;
        e.wide[i] += padded - e.unit[i];
        e.unit[i] = padded;
        e.all += padded;
        e.largest = i > 0 && padded > e.largest ? padded : e.largest;
        e.last = i > 0 && padded > 0 ? i : e.last;
    }
    e.root = e.unit[0];
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

/* Bytes of a rank's piece of unit i in a gather: with .wire the matrices have two each, and every
 * piece is as long as that of the last rank, behind whose matrices the vectors are. */
static int64_t piece_bytes(const extent *e, int i, int64_t world, td_dtype dtype, bool wire)
{
    int64_t piece = e->unit[i] / world, wide = e->wide[i];
    bool narrow = wire && wide < e->unit[i] && 2 * wide <= piece;
    return narrow ? 2 * (piece + wide) : piece * (int64_t)td_dtype_size(dtype);
}

/* Bytes that come from the other ranks in one step: gradients are scattered, and values are
 * gathered: after a step (gradients), not at all (woven), or for forward and for backward; but for
 * backward neither the root, which is here all the time, nor the last unit, which is here when
 * backward begins. */
static uint64_t wire_formula(const extent *e, int way, int64_t world, td_dtype dtype, bool wire)
{
    int64_t bytes = 0;
    for (int i = 0; i < UNITS; i++) {
        int64_t scattered = piece_bytes(e, i, world, dtype, false);
        int64_t gathered = piece_bytes(e, i, world, dtype, wire);
        int times = way == TD_SHARD_GRADIENTS    ? 1
                    : way == TD_SHARD_PARAMETERS ? 0
                                                 : 1 + (i != 0 && i != e->last);
        bytes += (world - 1) * (scattered + times * gathered);
    }
    return (uint64_t)bytes;
}

static uint64_t wire_of_step(shard_run *r, const shard_case *c)
{
    uint64_t before = td_ddp_shard_stats(r->job.net).wire;
    shard_step(r, c);
    return td_ddp_shard_stats(r->job.net).wire - before;
}

/* Of models with buffers, which are broadcast, too, bytes on the wire are not checked. */
static bool has_buffers(const shard_case *c)
{
    return c->kind == JOB_BATCH_NORM || c->kind == JOB_CONV_BLOCKS;
}

static void check_wire(shard_run *r, const shard_case *c, int way, const extent *e, int64_t world)
{
    uint64_t got = wire_of_step(r, c);
    REQUIRE(way < TD_SHARD_GRADIENTS || has_buffers(c) ||
            got == wire_formula(e, way, world, c->dtype, c->zero.wire != NULL));
}

/* Inside of td_ddp_no_sync_begin all units keep their gradients: the two that backward comes to
 * first in the slots, and the others in memory of their own, until the next reduction. */
static void check_accumulation(shard_run *r, const extent *e, td_shard_stats want, size_t width)
{
    size_t whole = (size_t)(e->all - e->root - e->unit[e->last] - e->unit[e->last - 1]);
    td_shard_stats more = want;
    more.slots += whole;
    td_ddp_no_sync_begin(r->job.net);
    shard_backward(r);
    td_ddp_no_sync_end(r->job.net);
    check_bytes(r->job.net, more, width);
    REQUIRE(td_ddp_shard_stats(r->job.net).unit_gradients == width * (size_t)e->all);
    shard_backward(r);
    check_bytes(r->job.net, want, width);
    REQUIRE(td_ddp_shard_stats(r->job.net).unit_gradients == 0);
}

/* A step takes the memory that the step before has taken, at the same addresses. */
static void check_step_memory(td_memory_stats before)
{
    td_memory_stats now = td_step_memory(TD_CPU);
    REQUIRE(now.in_use == 0 && now.reserved == before.reserved && now.growths == before.growths);
    REQUIRE(now.peak == before.peak && now.address_hash == before.address_hash);
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
        bool woven = way == TD_SHARD_PARAMETERS && (size == 1 || shard_is_woven(way));
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
        td_memory_stats memory = td_step_memory(TD_CPU);
        shard_step(&r, &c);
        check_step_memory(memory);
        REQUIRE(td_ddp_shard_stats(r.job.net).gather > 0.0);
        check_wire(&r, &c, woven ? way : way + (way == TD_SHARD_PARAMETERS), &e, size);
        if (way >= TD_SHARD_GRADIENTS && td_ddp_shard_stats(r.job.net).units > 2) {
            check_accumulation(&r, &e, want, width);
        }
        shard_close(&r);
    }
    td_dist_destroy();
    return 0;
}

static void test_bytes_are_those_of_the_formula(void **state)
{
    (void)state;
    static const int sizes[] = { 1, 3, 2, 4, 8 };
    for (size_t i = 0; i < (checks_part() ? 2 : sizeof sizes / sizeof *sizes); i++) {
        procs_succeed(sizes[i], limit, run_bytes, NULL);
    }
}

/* ---- bf16 on the wire ---- */

/* Under bf16 arithmetic the same bits as without; else near them, and td_unshard has the
 * windows, unrounded. */
static int run_wire(int rank, int size, void *arg)
{
    shard_case c = *(const shard_case *)arg, narrow = c;
    procs_init(rank, size, 20.0);
    narrow.zero.wire = "bf16";
    bool counts = !has_buffers(&c) && c.zero.unit == NULL && !c.recomputes;
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
            extent e = extent_of(rounded.job.net, true, 16 * size, sizeof(float));
            REQUIRE(!counts || all == wire_formula(&e, SHARD_GATHERED, size, TD_F32, false));
            REQUIRE(!counts || less == wire_formula(&e, SHARD_GATHERED, size, TD_F32, true));
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
    for (int size = 2; size <= (checks_part() ? 2 : MOST_RANKS); size++) {
        procs_succeed(size, limit, run_wire, &(shard_case){ .kind = JOB_BLOCKS, .rule = ADAM });
        procs_succeed(size, limit, run_wire,
                      &(shard_case){ .kind = JOB_CONV_BLOCKS, .rule = MOMENTUM });
    }
    shard_case layers = { .kind = JOB_BLOCKS, .rule = ADAM, .recomputes = true };
    layers.zero.unit = shard_unit_is_linear;
    procs_succeed(2, limit, run_wire, &layers);
}

/* By how much a process is larger after a step than its counted memory, with a model of 3.2 million
 * parameters, so that its memory is most of what a rank has. */
static double uncounted_bytes(int way)
{
    /* The other ranks' memory of the model before goes when new memory comes. */
    td_free(td_group_memory(NULL, 1, TD_F32));
    REQUIRE_OK(td_barrier(NULL));
    td_shard shard = way == SHARD_GATHERED ? TD_SHARD_PARAMETERS : (td_shard)way;
    td_manual_seed(1);
    td_module *net = td_ddp(shard_wide_net(WIDTH, 6),
                            .strategy = td_zero(shard, .gathers = way == SHARD_GATHERED));
    REQUIRE(net != NULL);
    td_optim *optim = td_adam(td_parameters(net), .lr = 1e-3);
    td_tensor *x = td_zeros(TD_SHAPE(2, WIDTH), TD_F32, TD_CPU);
    TD_STEP {
        td_backward(td_mse_loss(td_forward(net, x), x));
        td_optim_step(optim);
    }
    td_shard_stats stats = td_ddp_shard_stats(net);
    malloc_trim(0); /* without shards, buckets are rebuilt: the heap keeps that copy */
    REQUIRE_OK(td_barrier(NULL));
    double bytes = shard_process_bytes("smaps_rollup", "Pss:"); /* shared pages by shares */
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
    for (int size = 1; size <= (TD_SANITIZED ? 1 : MOST_RANKS); size++) {
        procs_succeed(size, limit, run_process_bytes, NULL);
    }
}

/* ---- a second reduction ---- */

/* A second reduction of the same gradients adds to their average, which rounds in another order. */
static int run_again(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    shard_case c = { .kind = JOB_BLOCKS, .dtype = TD_F64, .rule = ADAM, .clips = true };
    c.again = true;
    c.norm = 3.0;
    shard_require_near(&c, TD_SHARD_GRADIENTS, rank, STEPS);
    td_dist_destroy();
    return 0;
}

/* The same next to one process with all samples. */
static int run_again_like_one(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    shard_case c = { .kind = JOB_MLP, .dtype = TD_F64, .rule = MOMENTUM, .again = true };
    c.zero.unit = shard_unit_is_linear;
    for (int way = TD_SHARD_OPTIMIZER; way <= TD_SHARD_PARAMETERS; way++) {
        shard_run sharded, one;
        shard_open(&sharded, &c, way, rank);
        shard_open_alone(&one, &c, size);
        for (int i = 0; i < STEPS; i++) {
            shard_step(&one, &c);
            shard_step(&sharded, &c);
        }
        REQUIRE_OK(td_unshard(sharded.job.net));
        REQUIRE(job_distance(sharded.job.net, one.job.net, true) < 1e-12);
        shard_close(&one);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_are_those_of_the_formula),
        cmocka_unit_test(test_processes_have_what_is_counted),
        cmocka_unit_test(test_bf16_on_the_wire),
        cmocka_unit_test(test_gradients_are_added_to_their_average),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
