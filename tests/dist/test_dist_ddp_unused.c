/* DistributedDataParallel: unused parameters and static graphs. */
#include "dist/ddp/extra.h"
#include "nn/internal.h"
#include "tests/dist/ddp_job.h"
#include "tests/help/dist_procs.h"
#include "tests/help/expect_fatal.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const double limit = 60.0;

/* ---- a model with branches ---- */

typedef struct branch_state {
    int mask; /* which of the branches are used */
} branch_state;

static td_tensor *branch_forward(td_module *self, td_tensor *x, td_site at)
{
    const branch_state *s = self->state;
    td_tensor *y = td_forward_at(self->children[0], x, at);
    for (int i = 0; i < 3; i++) {
        if (s->mask >> i & 1) {
            y = td_add_at(y, td_forward_at(self->children[1 + i], x, at), at);
        }
    }
    return y;
}

static const td_module_type branch_type = { .name = "Branches", .forward = branch_forward };

static td_module *branch_net(void)
{
    td_manual_seed(2);
    td_module *m = td_module_new(&branch_type, sizeof(branch_state));
    td_module_add(m, "base", td_nn_linear(13, 5));
    td_module_add(m, "one", td_nn_linear(13, 5));
    td_module_add(m, "two", td_nn_linear(13, 5));
    td_module_add(m, "three", td_nn_linear(13, 5));
    return td_module_finish(m);
}

static void set_mask(td_module *net, int mask)
{
    ((branch_state *)net->state)->mask = mask;
}

static void branch_job(ddp_job *job, const td_ddp_options *options, int64_t from, int64_t to)
{
    job->net = branch_net();
    REQUIRE_OK(td_module_to(job->net, TD_CPU, TD_F64));
    if (options != NULL) {
        td_ddp_options given = *options;
        given.model = job->net;
        job->net = td_ddp_at(given, TD_HERE);
        REQUIRE(job->net != NULL);
    }
    job->optim = td_adam(td_parameters(job->net), .lr = 0.01);
    job_data(job, JOB_MLP, TD_F64, from, to);
}

static td_ddp_options small_buckets(void)
{
    return (td_ddp_options){ .bucket_cap_mb = 1e-6 };
}

/* ---- unused parameters ---- */

static int run_unused(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    ddp_job job;
    td_ddp_options options = small_buckets();
    td_module *net = branch_net();
    options.model = net;
    job.net = td_ddp_at(options, TD_HERE);
    job.optim = td_adam(td_parameters(job.net));
    job_data(&job, JOB_MLP, TD_F32, rank * 4, rank * 4 + 4);
    set_mask(job.net, 7);
    job_step(&job);
    set_mask(job.net, 5);
    job_step(&job); /* ends here */
    return 0;
}

static void test_an_unused_parameter_is_named_at_once(void **state)
{
    (void)state;
    procs_end ends[2];
    procs_run(2, limit, run_unused, NULL, ends);
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(ends[rank].signal, SIGABRT);
        procs_assert_says(ends, rank, "'two.weight', 'two.bias'");
        procs_assert_says(ends, rank, "find_unused_parameters");
    }
}

typedef struct noted {
    int count;
    char message[1024];
} noted;

static void note_error(td_status status, const char *message, void *user)
{
    noted *n = user;
    REQUIRE(status != TD_OK);
    n->count++;
    snprintf(n->message, sizeof n->message, "%s", message);
}

/* Only rank 1 leaves something out: the others learn why. */
static int run_unused_on_one(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    ddp_job job;
    td_ddp_options options = small_buckets();
    options.model = branch_net();
    job.net = td_ddp_at(options, TD_HERE);
    job.optim = td_adam(td_parameters(job.net));
    job_data(&job, JOB_MLP, TD_F32, rank * 4, rank * 4 + 4);
    noted n = { 0, "" };
    td_ddp_on_error(job.net, note_error, &n);
    set_mask(job.net, rank == 1 ? 3 : 7);
    job_backward(&job, 1.0);
    REQUIRE(n.count == 1);
    if (strstr(n.message, "'three.weight'") == NULL) {
        fprintf(stderr, "%s\n", n.message);
        return 1;
    }
    job_close(&job);
    td_dist_destroy();
    return 0;
}

static void test_an_unused_parameter_of_one_rank_ends_all(void **state)
{
    (void)state;
    procs_succeed(3, limit, run_unused_on_one, NULL);
}

/* Frozen after td_ddp, and perhaps trained again: the message says so, with each way of sharding.
 */
typedef struct freeze_case {
    int stage;
    bool finds_unused, again;
} freeze_case;

static int run_frozen_later(int rank, int size, void *arg)
{
    const freeze_case *c = arg;
    procs_init(rank, size, 20.0);
    ddp_job job;
    td_module *net = branch_net();
    td_tensor *early = td_module_find(net, "one")->tensors[0].tensor;
    td_requires_grad(early, false);
    job.net = td_ddp(net, .strategy = c->stage > 0 ? td_zero(c->stage) : NULL,
                     .find_unused_parameters = c->finds_unused);
    job.optim = td_adam(td_parameters(job.net), .lr = 0.01);
    job_data(&job, JOB_MLP, TD_F32, rank * 4, rank * 4 + 4);
    noted n = { 0, "" };
    td_ddp_on_error(job.net, note_error, &n);
    set_mask(job.net, 7);
    job_step(&job);
    REQUIRE(n.count == 0 && td_grad(early) == NULL);
    td_tensor *later = td_module_find(job.net, "two")->tensors[1].tensor;
    td_requires_grad(later, false);
    td_requires_grad(later, c->again);
    job_backward(&job, 1.0);
    REQUIRE(n.count == 1);
    REQUIRE(strstr(n.message, "'two.bias' was frozen after td_ddp") != NULL);
    job_close(&job);
    td_dist_destroy();
    return 0;
}

static void test_frozen_later(void **state)
{
    (void)state;
    freeze_case cases[] = { { 0 },
                            { .again = true },
                            { .finds_unused = true },
                            { .finds_unused = true, .again = true },
                            { .stage = 1 },
                            { .stage = 2 },
                            { .stage = 3 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        procs_succeed(2, limit, run_frozen_later, &cases[i]);
    }
}

/* Frozen before td_ddp: it cannot take part later, nor after td_parameters. */
static int run_frozen_early(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    td_module *net = branch_net();
    td_tensor *weight = td_module_find(net, "one")->tensors[0].tensor;
    td_requires_grad(weight, false);
    td_optim *optim = td_sgd(td_parameters(td_ddp(net)), .lr = 0.1);
    td_zero_grad(optim);
    td_requires_grad(weight, true);
    expect_fatal("'one.weight' f32[5,13] cpu:0 takes gradients, but was frozen at td_ddp",
                 td_zero_grad(optim));
    td_module *listed = branch_net();
    td_requires_grad(td_module_find(listed, "one")->tensors[0].tensor, false);
    (void)td_parameters(listed);
    expect_fatal("call td_ddp before td_parameters", td_ddp(listed));
    REQUIRE(strstr(fatal_message(), "test_dist_ddp_unused.c:") != NULL);
    td_module_free(listed);
    td_optim_free(optim);
    td_module_free(net);
    td_dist_destroy();
    return 0;
}

static void test_frozen_early(void **state)
{
    (void)state;
    procs_succeed(2, limit, run_frozen_early, NULL);
}

/* Each rank takes other branches in each step; "three" is used nowhere. One process does the same
 * with the sum of the ranks' losses. */
static int run_usage_map(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    ddp_job mine, whole;
    td_ddp_options options = small_buckets();
    options.find_unused_parameters = true;
    branch_job(&mine, &options, rank * 4, rank * 4 + 4);
    branch_job(&whole, NULL, 0, 4);
    for (int step = 0; step < 6; step++) {
        set_mask(mine.net, (step + rank) % 3 == 0 ? 0 : 1 << (step + rank) % 2);
        td_zero_grad(mine.optim);
        job_backward(&mine, 1.0);
        td_zero_grad(whole.optim);
        for (int r = 0; r < size; r++) {
            td_free(whole.x);
            td_free(whole.y);
            job_data(&whole, JOB_MLP, TD_F64, r * 4, r * 4 + 4);
            set_mask(whole.net, (step + r) % 3 == 0 ? 0 : 1 << (step + r) % 2);
            job_backward(&whole, 1.0 / size);
        }
        REQUIRE(job_grad_distance(mine.net, whole.net) <= 1e-12);
        REQUIRE(td_grad(td_module_find(mine.net, "three")->tensors[0].tensor) == NULL);
        td_optim_step(mine.optim);
        td_optim_step(whole.optim);
    }
    REQUIRE(job_distance(mine.net, whole.net, true) <= 1e-12);
    job_close(&mine);
    job_close(&whole);
    td_dist_destroy();
    return 0;
}

static void test_the_usage_map_with_branches_by_rank(void **state)
{
    (void)state;
    procs_succeed(2, limit, run_usage_map, NULL);
    procs_succeed(4, limit, run_usage_map, NULL);
}

/* Accumulated locally with other branches than in the reducing backward. */
static int run_no_sync_branches(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    ddp_job mine, whole;
    td_ddp_options options = small_buckets();
    options.find_unused_parameters = true;
    branch_job(&mine, &options, rank * 4, rank * 4 + 4);
    branch_job(&whole, NULL, 0, 4);
    td_ddp_no_sync_begin(mine.net);
    set_mask(mine.net, rank == 0 ? 1 : 2);
    job_backward(&mine, 0.5);
    td_ddp_no_sync_end(mine.net);
    set_mask(mine.net, 0);
    job_backward(&mine, 0.5);
    for (int r = 0; r < size; r++) {
        td_free(whole.x);
        td_free(whole.y);
        job_data(&whole, JOB_MLP, TD_F64, r * 4, r * 4 + 4);
        for (int k = 0; k < 2; k++) {
            set_mask(whole.net, k == 1 ? 0 : r == 0 ? 1 : 2);
            job_backward(&whole, 0.5 / size);
        }
    }
    REQUIRE(job_grad_distance(mine.net, whole.net) <= 1e-12);
    job_close(&mine);
    job_close(&whole);
    td_dist_destroy();
    return 0;
}

static void test_no_sync_with_branches_by_rank(void **state)
{
    (void)state;
    procs_succeed(2, limit, run_no_sync_branches, NULL);
}

/* ---- static graphs ---- */

static int run_static(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    ddp_job mine, whole;
    td_ddp_options options = small_buckets();
    options.static_graph = true;
    branch_job(&mine, &options, rank * 4, rank * 4 + 4);
    branch_job(&whole, NULL, 0, size * 4);
    for (int step = 0; step < 4; step++) {
        set_mask(mine.net, 5);
        set_mask(whole.net, 5);
        job_step(&mine);
        job_step(&whole);
        REQUIRE(td_grad(td_module_find(mine.net, "two")->tensors[0].tensor) == NULL);
    }
    REQUIRE(job_distance(mine.net, whole.net, true) <= 1e-12);
    noted n = { 0, "" };
    td_ddp_on_error(mine.net, note_error, &n);
    set_mask(mine.net, 7);
    job_backward(&mine, 1.0);
    REQUIRE(n.count == 1 && strstr(n.message, "static_graph promises") != NULL);
    job_close(&mine);
    job_close(&whole);
    td_dist_destroy();
    return 0;
}

static void test_static_graph(void **state)
{
    (void)state;
    procs_succeed(2, limit, run_static, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_unused_parameter_is_named_at_once),
        cmocka_unit_test(test_an_unused_parameter_of_one_rank_ends_all),
        cmocka_unit_test(test_frozen_later),
        cmocka_unit_test(test_frozen_early),
        cmocka_unit_test(test_the_usage_map_with_branches_by_rank),
        cmocka_unit_test(test_no_sync_with_branches_by_rank),
        cmocka_unit_test(test_static_graph),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
