/* Sharding: the weights are those of td_ddp without it, bit for bit.
 * tests/dist/test_dist_shard_bytes.c has memory and wire, tests/dist/test_dist_shard_faults.c what
 * happens when a rank dies or hangs. */
#include "autograd/hooks.h"
#include "dist/ddp/extra.h"
#include "nn/extra/muon.h"
#include "nn/module.h"
#include "tensor/clock.h"
#include "dist/ddp/codec.h"
#include "tests/comm/dist_faults.h"
#include "tests/help/dist_procs.h"
#include "tests/help/expect_fatal.h"
#include "tests/help/sanitized.h"
#include "tests/dist/shard_run.h"
#include "tests/help/temp_folder.h"
#include "tensor/extend.h"

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
enum { STEPS = TD_SANITIZED ? 6 : 20, MOST_RANKS = 4 };

/* ---- the same weights ---- */

/* All ways of sharding that a case is for, next to none. */
static int run_same(int rank, int size, void *arg)
{
    const shard_case *c = arg;
    procs_init(rank, size, 20.0);
    shard_run runs[SHARD_WAYS];
    int ways = c->again || c->options.comm_hook != NULL || c->options.codec != NULL
                   ? TD_SHARD_OPTIMIZER
                   : SHARD_GATHERED;
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
        /* Woven: whole pages for each rank are more than all of a small model. */
        REQUIRE(way == TD_SHARD_NONE || size == 1 || state == 0 || mine < state ||
                shard_is_woven(way));
        shard_close(&runs[way]);
    }
    td_dist_destroy();
    return 0;
}

static void run_everywhere(shard_case c)
{
    for (int size = 2; size <= MOST_RANKS; size++) {
        if (!checks_part() || size == 3) {
            procs_succeed(size, limit, run_same, &c);
        }
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
    run_everywhere((shard_case){ .rule = ADAM, .options.codec = td_powersgd(.start = 3) });
    run_everywhere(
        (shard_case){ .kind = kind, .rule = ADAM, .options.find_unused_parameters = true });
    run_everywhere((shard_case){ .kind = kind, .rule = ADAM, .zero.unit = shard_unit_is_linear });
    procs_succeed(1, limit, run_same, &(shard_case){ .kind = kind, .rule = ADAM });
    procs_succeed(8, limit, run_same, &(shard_case){ .kind = kind, .rule = ADAM, .clips = true });
}

/* ---- other models ---- */

/* Which ranks skip the layer: all in the first two steps, then none, one, all, none, ... If units
 * are gathered, all ranks run the same. */
static int run_routed(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    for (int way = TD_SHARD_GRADIENTS; way < SHARD_WAYS; way++) {
        shard_run runs[2];
        const td_ddp_options options = { .find_unused_parameters = true };
        shard_routed *routed[] = { shard_open_routed(&runs[0], options, TD_SHARD_NONE, rank),
                                   shard_open_routed(&runs[1], options, way, rank) };
        for (int i = 0; i < STEPS; i++) {
            bool alone = (way == TD_SHARD_GRADIENTS || shard_is_woven(way)) && i % 3 == 0 &&
                         rank == size - 1;
            for (int k = 0; k < 2; k++) {
                routed[k]->skips = i < 2 || i % 3 == 1 || alone;
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

/* One rank runs another unit first. */
static int run_another_order(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    shard_run r;
    char told[1024] = "";
    shard_routed *routed = shard_open_routed(&r, (td_ddp_options){ .find_unused_parameters = true },
                                             SHARD_GATHERED, rank);
    td_ddp_on_error(r.job.net, shard_note_message, told);
    shard_step(&r, &(shard_case){ .rule = MOMENTUM });
    routed->turns = rank == 1;
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

/* ---- hooks ---- */

typedef struct seen {
    double values[32 * 24];
    int times;
} seen;

static void look(td_tensor *leaf, void *user)
{
    seen *s = user;
    const td_tensor *grad = td_grad(leaf);
    REQUIRE(td_numel(grad) <= (int64_t)(sizeof s->values / sizeof *s->values));
    td_read(grad, s->values, TD_F64);
    s->times++;
}

/* A program's hook that was there before td_ddp sees this rank's own gradient, whole, as it is
 * before it is averaged. */
static int run_hooks(int rank, int size, void *arg)
{
    (void)arg;
    static seen own, sharded;
    procs_init(rank, size, 20.0);
    td_module *alone = job_net(JOB_MLP, 1, TD_F64);
    td_on_grad_ready(alone->children[2]->tensors[0].tensor, look, &own);
    shard_run r = { .job.net = alone, .job.optim = shard_optim(SGD, td_parameters(alone)) };
    job_data(&r.job, JOB_MLP, TD_F64, rank * EACH, (rank + 1) * EACH);
    shard_backward(&r);
    shard_close(&r);
    for (int way = TD_SHARD_OPTIMIZER; way < SHARD_WAYS; way++) {
        td_module *net = job_net(JOB_MLP, 1, TD_F64);
        td_on_grad_ready(net->children[2]->tensors[0].tensor, look, &sharded);
        bool gathers = way == SHARD_GATHERED;
        net = td_ddp(net, .strategy = td_zero(gathers ? TD_SHARD_PARAMETERS : (td_shard)way,
                                              .gathers = gathers, .unit = shard_unit_is_linear));
        REQUIRE(net != NULL);
        r = (shard_run){ .job.net = net, .job.optim = shard_optim(SGD, td_parameters(net)) };
        job_data(&r.job, JOB_MLP, TD_F64, rank * EACH, (rank + 1) * EACH);
        sharded.times = 0;
        shard_backward(&r);
        REQUIRE(own.times == 1 && sharded.times == 1);
        REQUIRE(memcmp(own.values, sharded.values, sizeof own.values) == 0);
        shard_close(&r);
    }
    td_dist_destroy();
    return 0;
}

static void test_hooks_see_own_gradients(void **state)
{
    (void)state;
    procs_succeed(2, limit, run_hooks, NULL);
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
        for (int k = 0; shard_is_woven(TD_SHARD_PARAMETERS) && rank == i % size && k < 3; k++) {
            usleep(1000);
            REQUIRE(evaluate(&whole) == evaluate(&woven));
        }
        td_ema_swap(whole.ema);
        td_ema_swap(woven.ema);
        for (int k = 0; shard_is_woven(TD_SHARD_PARAMETERS) && rank == i % size && k < 3; k++) {
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
    REQUIRE(td_ddp(td_module_clone(net),
                   .strategy = td_zero((td_shard)(TD_SHARD_OPTIMIZER * (rank == 0)))) == NULL);
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

/* Units are the blocks that a model's builder has marked, large or small. */
static void test_marked_blocks_are_units(void **state)
{
    (void)state;
    char url[600];
    snprintf(url, sizeof url, "file://%s", temp_path("marked"));
    assert_int_equal(td_dist_init(.init_method = url, .world_size = 1), TD_OK);
    for (int marks = 0; marks < 3; marks++) {
        td_module *net = job_net(JOB_MLP, 1, TD_F32); /* without marks: no child has children */
        for (int k = 0; k < marks; k++) {
            td_module_mark(net->children[2 * k], TD_PART_BLOCK);
        }
        net = td_ddp(net, .strategy = td_zero(TD_SHARD_GRADIENTS));
        assert_non_null(net);
        assert_int_equal(td_ddp_shard_stats(net).units, marks + 1);
        td_module_free(net);
    }
    td_dist_destroy();
}

static void test_what_cannot_be_combined(void **state)
{
    (void)state;
    char url[600];
    snprintf(url, sizeof url, "file://%s", temp_path("store"));
    assert_int_equal(td_dist_init(.init_method = url, .world_size = 1), TD_OK);
    td_module *net = td_ddp(job_net(JOB_MLP, 1, TD_F32), .strategy = td_zero(TD_SHARD_OPTIMIZER));
    assert_non_null(net);
    expect_fatal("use td_sgd, td_adam or td_adamw", td_muon(td_parameters(net), .lr = 0.1));
    expect_fatal("or td_ddp without .strategy", td_ddp_join_begin(net, false));
    td_module_free(net);
    net = job_net(JOB_MLP, 1, TD_F32);
    expect_fatal("use TD_SHARD_OPTIMIZER, or no hook",
                 td_ddp(net, .comm_hook = "bf16", .strategy = td_zero(TD_SHARD_GRADIENTS)));
    expect_fatal("there is no stage 7", td_ddp(net, .strategy = td_zero((td_shard)7)));
    expect_fatal("there is no .wire 'fp8'; there is bf16",
                 td_ddp(net, .strategy = td_zero(TD_SHARD_NONE, .wire = "fp8")));
    expect_fatal("with TD_SHARD_PARAMETERS",
                 td_ddp(net, .strategy = td_zero(TD_SHARD_NONE, .wire = "bf16")));
    expect_fatal(".offload is for windows of all",
                 td_ddp(net, .strategy = td_zero(TD_SHARD_NONE, .offload = temp_folder())));
    td_optim *early = td_sgd(td_parameters(net), .lr = 0.1, .momentum = 0.9);
    expect_fatal("are made after td_ddp", td_ddp(net, .strategy = td_zero(TD_SHARD_OPTIMIZER)));
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

/* A graph that was kept beyond a step of the optimizer is refused: its weights are others now. */
static void test_values_change_at_a_step(void **state)
{
    (void)state;
    char url[600];
    snprintf(url, sizeof url, "file://%s", temp_path("store"));
    assert_int_equal(td_dist_init(.init_method = url, .world_size = 1), TD_OK);
    const shard_case c = { .kind = JOB_MLP, .rule = MOMENTUM };
    for (int way = TD_SHARD_NONE; way < SHARD_WAYS; way++) {
        shard_run r;
        shard_open(&r, &c, way, 0);
        td_zero_grad(r.job.optim);
        td_step_begin();
        td_tensor *first = td_cross_entropy(td_forward(r.job.net, r.job.x), r.job.y);
        td_tensor *second = td_cross_entropy(td_forward(r.job.net, r.job.x), r.job.y);
        td_backward(first);
        td_optim_step(r.job.optim);
        expect_fatal("was written in place since", td_backward(second));
        td_step_abandon();
        shard_close(&r);
    }
    td_dist_destroy();
}

#define IN_FOLDER(test)                                                                            \
    cmocka_unit_test_setup_teardown(test, temp_folder_setup, temp_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights_are_those_without_sharding),
        cmocka_unit_test(test_with_what_else_a_step_does),
        cmocka_unit_test(test_unused_shared_and_repeated_layers),
        cmocka_unit_test(test_another_order_on_one_rank),
        cmocka_unit_test(test_hooks_see_own_gradients),
        cmocka_unit_test(test_one_rank_alone_runs_the_model),
        cmocka_unit_test(test_another_setting_on_one_rank),
        IN_FOLDER(test_marked_blocks_are_units), /* the last four make this process a rank */
        IN_FOLDER(test_what_cannot_be_combined),
        IN_FOLDER(test_values_change_at_a_step),
        IN_FOLDER(test_used_while_away),
    };
    return cmocka_run_group_tests(tests, fault_setup, NULL);
}
