/* Leaves: one hash for every number of ranks, and for every way in which they divide a model. */
#include "dist/ddp/extra.h"
#include "tensor/extend.h"
#include "tests/dist/leaf_run.h"
#include "tests/help/dist_procs.h"
#include "tests/help/expect_fatal.h"
#include "tests/help/sanitized.h"
#include "tests/help/temp_folder.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const char *const ways[] = { "none", "optimizer", "gradients", "parameters", "gathered" };

static void require_hash(const leaf_case *c, int ranks, uint64_t hash)
{
    uint64_t other = leaf_hash(c, ranks);
    if (other != hash) {
        fail_msg("%d ranks that divide %s: %016llx, and not %016llx", ranks, ways[c->way],
                 (unsigned long long)other, (unsigned long long)hash);
    }
}

/* All ways on all numbers of ranks of a list, which ends with 0, give the hash of one rank. A part
 * of the checks has the last number. */
static void require_one_hash(leaf_case c, const int *ranks)
{
    c.way = TD_SHARD_NONE;
    uint64_t hash = leaf_hash(&c, 1);
    while (checks_part() && ranks[0] > 0 && ranks[1] > 0) {
        ranks++;
    }
    for (; *ranks > 0; ranks++) {
        for (c.way = TD_SHARD_NONE; c.way < LEAF_WAYS; c.way++) {
            require_hash(&c, *ranks, hash);
        }
    }
}

static void test_one_hash(void **state)
{
    (void)state;
    const leaf_case c = { .model = LEAF_MLP, .leaves = 8, .steps = 4 };
    if (procs_are_over("gloo")) { /* the hash of shared memory: its sums are the same */
        require_one_hash(c, (int[]){ 2, 3, 0 });
        return;
    }
    require_one_hash(c, (int[]){ 2, 5, 8, 3, 0 });
    require_one_hash((leaf_case){ .leaves = 5, .steps = 2, .adam = true }, (int[]){ 5, 3, 2, 0 });
    require_one_hash((leaf_case){ .leaves = 12, .steps = 2, .dtype = TD_F64 }, (int[]){ 3, 0 });
    require_one_hash((leaf_case){ .leaves = 1, .steps = 2 }, (int[]){ 1, 0 });
}

static void test_with_what_else_a_step_does(void **state)
{
    (void)state;
    const int some[] = { 2, 3, 0 };
    require_one_hash((leaf_case){ .leaves = 6, .steps = 3, .clips = true }, some);
    require_one_hash((leaf_case){ .leaves = 4, .steps = 3, .clips = true, .norm = 3 }, some);
    require_one_hash((leaf_case){ .leaves = 4, .steps = 3, .clips = true, .norm = INFINITY }, some);
    require_one_hash((leaf_case){ .leaves = 4, .steps = 3, .adam = true, .averages = true }, some);
    require_one_hash((leaf_case){ .leaves = 4, .steps = 9, .scales = true }, some);
    require_one_hash((leaf_case){ .leaves = 4, .steps = 3, .recomputes = true }, some);
}

/* Leaves without samples, and leaves that skip a layer. */
static void test_leaves_that_differ(void **state)
{
    (void)state;
    for (int way = TD_SHARD_NONE; way <= TD_SHARD_PARAMETERS; way++) {
        leaf_case empty = { .leaves = 4, .steps = 3, .way = way, .empty = 3 };
        leaf_case skips = { .model = LEAF_ROUTED, .leaves = 4, .steps = 4, .way = way };
        for (int ranks = checks_part() ? 3 : 2; ranks <= (checks_part() ? 3 : 4); ranks++) {
            require_hash(&empty, ranks, leaf_hash(&empty, 1));
            require_hash(&skips, ranks, leaf_hash(&skips, 1));
        }
    }
}

/* Samples from a loader, over the end of an epoch; and a run that goes on on other ranks. */
static void test_loaders(void **state)
{
    (void)state;
    leaf_case c = { .leaves = 4, .steps = 7, .loads = true };
    require_one_hash(c, (int[]){ 3, 0 });
    char path[600];
    snprintf(path, sizeof path, "%s", temp_path("leaves.safetensors"));
    for (int ranks = checks_part() ? 3 : 1; ranks <= 4; ranks++) {
        leaf_case first = { .leaves = 4, .steps = 3, .loads = true, .save = path };
        leaf_case rest = { .leaves = 4, .steps = 4, .loads = true, .resume = path };
        first.way = ranks % 3, rest.way = (ranks + 1) % 4;
        leaf_hash(&first, ranks);
        uint64_t hash = leaf_hash(&rest, 5 - ranks);
        leaf_case both = { .leaves = 4, .steps = 7, .loads = true, .resume = NULL };
        leaf_case begin = { .leaves = 4, .steps = 0, .loads = true, .save = path };
        leaf_hash(&begin, 1);
        both.resume = path; /* so that losses do not count */
        assert_true(leaf_hash(&both, 1) == hash);
    }
}

static void test_resnet(void **state)
{
    (void)state;
    leaf_case c = { .model = LEAF_RESNET, .leaves = 4, .steps = 1 };
    uint64_t hash = leaf_hash(&c, 1);
    for (c.way = TD_SHARD_NONE; c.way < LEAF_WAYS; c.way += checks_part() ? 4 : 2) {
        assert_true(leaf_hash(&c, 3) == hash);
    }
}

/* A leaf is a rank of td_ddp. */
static void test_leaves_are_ranks(void **state)
{
    (void)state;
    const int list[] = { 2, 5, 8, 3, 0 };
    for (const int *ranks = checks_part() ? &list[3] : list; *ranks > 0; ranks++) {
        leaf_case plain = { .steps = 3 }, leaves = plain;
        leaves.leaves = *ranks;
        assert_true(leaf_hash(&plain, *ranks) == leaf_hash(&leaves, 1));
        assert_true(leaf_hash(&plain, *ranks) == leaf_hash(&leaves, (*ranks + 1) / 2));
    }
    leaf_case plain = { .model = LEAF_RESNET, .steps = 1 }, leaves = plain;
    leaves.leaves = 3;
    assert_true(leaf_hash(&plain, 3) == leaf_hash(&leaves, 2));
    assert_true(leaf_hash(&(leaf_case){ .leaves = 4, .steps = 1 }, 1) !=
                leaf_hash(&(leaf_case){ .leaves = 5, .steps = 1 }, 1));
}

/* ---- what is refused ---- */

static int run_too_few(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    td_module *net = td_nn_sequential(td_nn_linear(4, 2));
    REQUIRE(td_ddp(net, .strategy = td_leaves(2)) == NULL);
    REQUIRE(strstr(td_last_error(), "there are 3 ranks and 2 leaves") != NULL);
    net = td_nn_sequential(td_nn_linear(4, 2));
    REQUIRE(td_ddp(net, .strategy = td_leaves(rank == 0 ? 4 : 5)) == NULL);
    REQUIRE(strstr(td_last_error(), "leaves 4") != NULL); /* on one rank only */
    td_dist_destroy();
    return 0;
}

static void test_ranks_and_leaves_that_do_not_fit(void **state)
{
    (void)state;
    procs_succeed(3, 30.0, run_too_few, NULL);
}

static void copy_message(td_status status, const char *message, void *user)
{
    (void)status;
    snprintf(user, 200, "%s", message);
}

static void learn_once(td_module *net, td_tensor *x)
{
    TD_STEP {
        td_backward(td_sum(td_forward(net, x)));
    }
}

static void test_what_cannot_be_combined(void **state)
{
    (void)state;
    char url[600];
    snprintf(url, sizeof url, "file://%s", temp_path("store"));
    assert_int_equal(td_dist_init(.init_method = url, .world_size = 1), TD_OK);
    td_module *net = td_nn_sequential(td_nn_linear(4, 4), td_nn_batch_norm2d(4));
    td_tensor *x = td_full(TD_SHAPE(6, 4), 1.0, TD_F32, TD_CPU);
    expect_fatal("there are 1 to 65536 leaves", td_ddp(net, .strategy = td_leaves(0)));
    expect_fatal("td_leaves again",
                 td_ddp(net, .strategy = td_leaves(2, .strategy = td_leaves(2))));
    expect_fatal("use no hook, or no leaves",
                 td_ddp(net, .strategy = td_leaves(2), .comm_hook = "bf16"));
    expect_fatal("running statistics of leaf 0",
                 td_ddp(net, .strategy = td_leaves(2), .no_broadcast_buffers = true));
    expect_fatal("td_leaf_next: the model has no leaves", td_leaf_next(net));
    assert_int_equal(td_leaf_count(net), 0);
    net = td_ddp(net, .strategy = td_leaves(2));
    assert_int_equal(td_leaf_count(net), 2);
    char message[200] = "";
    td_ddp_on_error(net, copy_message, message);
    learn_once(net, x);
    assert_non_null(strstr(message, "td_backward outside of a leaf"));
    td_ddp_no_sync_begin(net);
    expect_fatal("accumulates by having more", td_leaf_next(net));
    td_ddp_no_sync_end(net);
    expect_fatal("or td_ddp without .strategy", td_ddp_join_begin(net, false));
    expect_fatal("of which none runs", td_leaf_batch(net, &(td_batch){ .x = x, .size = 6 }));
    assert_int_equal(td_leaf_next(net), 0);
    expect_fatal("a batch of 5 samples for 2 leaves",
                 td_leaf_batch(net, &(td_batch){ .x = x, .size = 5 }));
    td_module_free(net);
    net = td_convert_sync_batch_norm(td_nn_sequential(td_nn_batch_norm2d(4)), NULL);
    expect_fatal("use plain BatchNorm", td_ddp(net, .strategy = td_leaves(2)));
    td_module_free(net);
    td_free(x);
    td_dist_destroy();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_hash),
        cmocka_unit_test(test_with_what_else_a_step_does),
        cmocka_unit_test(test_leaves_that_differ),
        cmocka_unit_test(test_loaders),
        cmocka_unit_test(test_resnet),
        cmocka_unit_test(test_leaves_are_ranks),
        cmocka_unit_test(test_ranks_and_leaves_that_do_not_fit),
        cmocka_unit_test(test_what_cannot_be_combined),
    };
    size_t count = procs_are_over("gloo") ? 1 : sizeof tests / sizeof *tests;
    return _cmocka_run_group_tests("leaves", tests, count, NULL, NULL);
}
