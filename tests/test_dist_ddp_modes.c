/* DistributedDataParallel: unused parameters, static graphs, uneven inputs, shared weights,
 * communication hooks, and failures. */
#include "nn/module.h"
#include "tests/ddp_job.h"
#include "tests/dist_procs.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const double limit = 60.0;

/* ---- a model with branches ---- */

typedef struct branch_state {
    int mask; /* which of the branches are used */
} branch_state;

static td_tensor *branch_forward(td_module *self, td_tensor *x, td_site at)
{
    const branch_state *s = self->state;
    td_tensor *y = (td_forward)(self->children[0], x, at);
    for (int i = 0; i < 3; i++) {
        if (s->mask >> i & 1) {
            y = (td_add)(y, (td_forward)(self->children[1 + i], x, at), at);
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
    td_module *m = strcmp(net->type->name, "Branches") == 0 ? net : net->children[0];
    ((branch_state *)m->state)->mask = mask;
}

static void branch_job(ddp_job *job, const td_ddp_options *options, int64_t from, int64_t to)
{
    job->net = branch_net();
    REQUIRE_OK(td_module_to(job->net, TD_CPU, TD_F64));
    if (options != NULL) {
        job->net = td_ddp(job->net, options);
        REQUIRE(job->net != NULL);
    }
    job->optim = td_adam(td_parameters(job->net), &(td_adam_options){ .lr = 0.01 });
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
    job.net = td_ddp(net, &options);
    job.optim = td_adam(td_parameters(job.net), NULL);
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
    job.net = td_ddp(branch_net(), &options);
    job.optim = td_adam(td_parameters(job.net), NULL);
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

/* ---- uneven inputs ---- */

/* Rank r has r batches (rank 0 has none) if by rank, otherwise size - r. */
typedef struct join_case {
    bool descending, by_initial;
} join_case;

static int run_join(int rank, int size, void *arg)
{
    const join_case *c = arg;
    procs_init(rank, size, 20.0);
    ddp_job mine, whole;
    td_ddp_options options = { .bucket_cap_mb = 0.001 };
    job_open(&mine, JOB_MLP, TD_F64, &options, 0, 1);
    job_open(&whole, JOB_MLP, TD_F64, NULL, 0, 1);
    int batches = c->descending ? size - 1 - rank : rank;
    td_ddp_join_begin(mine.net, c->by_initial);
    for (int i = 0; i < batches; i++) {
        td_free(mine.x);
        td_free(mine.y);
        job_data(&mine, JOB_MLP, TD_F64, (i * size + rank) * 4, (i * size + rank) * 4 + 4);
        job_step(&mine);
    }
    REQUIRE_OK(td_ddp_join_end(mine.net));
    for (int i = 0; i < size - 1; i++) { /* the same in one process */
        td_zero_grad(whole.optim);
        int live = 0;
        for (int r = 0; r < size; r++) {
            live += i < (c->descending ? size - 1 - r : r);
        }
        for (int r = 0; r < size; r++) {
            if (i < (c->descending ? size - 1 - r : r)) {
                td_free(whole.x);
                td_free(whole.y);
                job_data(&whole, JOB_MLP, TD_F64, (i * size + r) * 4, (i * size + r) * 4 + 4);
                job_backward(&whole, 1.0 / (c->by_initial ? size : live));
            }
        }
        td_optim_step(whole.optim);
    }
    REQUIRE(job_all_same(job_hash(mine.net)));
    REQUIRE(job_distance(mine.net, whole.net, true) <= 1e-12);
    int64_t steps = td_ddp_last_figures(mine.net).steps;
    REQUIRE(steps == size - 1);
    job_backward(&mine, 1.0); /* and together again */
    REQUIRE(td_ddp_last_figures(mine.net).steps == steps + 1);
    job_close(&mine);
    job_close(&whole);
    td_dist_destroy();
    return 0;
}

static void test_uneven_inputs(void **state)
{
    (void)state;
    join_case cases[] = { { false, true }, { false, false }, { true, true }, { true, false } };
    for (int i = 0; i < 4; i++) {
        procs_succeed(2, limit, run_join, &cases[i]);
        procs_succeed(4, limit, run_join, &cases[i]);
    }
}

/* With buffers, which the ranks that are left broadcast among themselves. */
static int run_join_buffers(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    ddp_job job;
    td_ddp_options options = { .bucket_cap_mb = 0.001 };
    job_open(&job, JOB_BATCH_NORM, TD_F32, &options, rank * 4, rank * 4 + 4);
    td_ddp_join_begin(job.net, true);
    for (int i = 0; i < 2 * rank; i++) {
        job_step(&job);
    }
    REQUIRE_OK(td_ddp_join_end(job.net));
    REQUIRE(job_all_same(job_hash(job.net)));
    job_close(&job);
    td_dist_destroy();
    return 0;
}

static void test_uneven_inputs_with_buffers(void **state)
{
    (void)state;
    procs_succeed(3, limit, run_join_buffers, NULL);
}

/* ---- shared weights ---- */

static td_tensor *shared_forward(td_module *self, td_tensor *x, td_site at)
{
    x = (td_relu)((td_forward)(self->children[0], x, at), at);
    x = (td_relu)((td_linear)(x, self->tensors[0].tensor, NULL, at), at);
    return (td_forward)(self->children[1], x, at);
}

static const td_module_type shared_type = { .name = "Shared", .forward = shared_forward };

static td_module *shared_net(void)
{
    td_manual_seed(3);
    td_module *m = td_module_new(&shared_type, 0);
    td_module *square = td_nn_linear(13, 13);
    td_module_parameter(m, "again", square->tensors[0].tensor);
    td_module_add(m, "square", square);
    td_module_add(m, "last", td_nn_linear(13, 5));
    return td_module_finish(m);
}

static int run_shared(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    td_ddp_options options = small_buckets();
    ddp_job mine = { .net = td_ddp(shared_net(), &options) }, whole = { .net = shared_net() };
    REQUIRE(td_ddp_last_figures(mine.net).buckets == 4);
    mine.optim = td_sgd(td_parameters(mine.net), &(td_sgd_options){ .lr = 0.1 });
    whole.optim = td_sgd(td_parameters(whole.net), &(td_sgd_options){ .lr = 0.1 });
    job_data(&mine, JOB_MLP, TD_F32, rank * 4, rank * 4 + 4);
    job_data(&whole, JOB_MLP, TD_F32, 0, size * 4);
    for (int i = 0; i < 5; i++) {
        job_step(&mine);
        job_step(&whole);
    }
    REQUIRE(job_distance(mine.net, whole.net, true) <= 1e-5);
    job_close(&mine);
    job_close(&whole);
    td_dist_destroy();
    return 0;
}

static void test_shared_weights_are_reduced_once(void **state)
{
    (void)state;
    procs_succeed(2, limit, run_shared, NULL);
}

/* ---- communication hooks ---- */

typedef struct hook_case {
    td_ddp_options options;
    double tolerance; /* of the gradients of the first step */
    bool exact;       /* and of later ones, too */
} hook_case;

static int run_hook(int rank, int size, void *arg)
{
    const hook_case *c = arg;
    procs_init(rank, size, 20.0);
    ddp_job mine, whole;
    job_open(&mine, JOB_CONV, TD_F32, &c->options, rank * 8, rank * 8 + 8);
    job_open(&whole, JOB_CONV, TD_F32, NULL, 0, size * 8);
    double first = 0.0, last = 0.0;
    for (int i = 0; i < 60; i++) {
        double loss = job_step(&mine);
        if (i < 5) {
            job_step(&whole);
            double distance = job_grad_distance(mine.net, whole.net);
            if (distance > c->tolerance && (i == 0 || c->exact)) {
                fprintf(stderr, "%s: step %d: %g\n", c->options.comm_hook, i, distance);
                return 1;
            }
        }
        first = i == 0 ? loss : first;
        last = loss;
    }
    REQUIRE(last < 0.25 * first); /* it learns */
    REQUIRE(job_all_same(job_hash(mine.net)));
    job_close(&mine);
    job_close(&whole);
    td_dist_destroy();
    return 0;
}

static void test_communication_hooks(void **state)
{
    (void)state;
    hook_case cases[] = {
        { { .comm_hook = "bf16", .bucket_cap_mb = 0.001 }, 5e-3, false },
        { { .comm_hook = "fp16", .bucket_cap_mb = 0.001 }, 1e-3, false },
        /* plain until step 10 */
        { { .comm_hook = "powersgd", .powersgd_start = 10, .bucket_cap_mb = 0.001 }, 1e-5, true },
        { { .comm_hook = "powersgd", .powersgd_start = 2, .powersgd_rank = 2 }, 1e-5, false },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        procs_succeed(2, limit, run_hook, &cases[i]);
    }
    procs_succeed(3, limit, run_hook, &cases[2]);
}

static int run_bad_hook(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    td_ddp_options options = { .comm_hook = "gzip" };
    REQUIRE(td_ddp(job_net(JOB_MLP, 1, TD_F32), &options) == NULL);
    REQUIRE(strstr(td_last_error(), "no communication hook 'gzip'") != NULL);
    td_dist_destroy();
    return 0;
}

static void test_an_unknown_hook(void **state)
{
    (void)state;
    procs_succeed(1, limit, run_bad_hook, NULL);
}

/* ---- dropout, and an optimizer made before the wrapper ---- */

static int run_dropout(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    td_manual_seed(4);
    td_module *bare = td_nn_sequential(td_nn_dropout(0.5), td_nn_linear(64, 2));
    td_manual_seed(4);
    td_module *net = td_ddp(td_nn_sequential(td_nn_dropout(0.5), td_nn_linear(64, 2)), NULL);
    float masks[2][64], all[PROCS_MAX][64];
    td_tensor *ones = td_full(TD_SHAPE(1, 64), 1.0, TD_F32, TD_CPU);
    td_step_begin();
    td_read(td_forward(td_module_find(net, "0"), ones), masks[0], TD_F32);
    td_read(td_forward(td_module_find(bare, "0"), ones), masks[1], TD_F32);
    td_step_end();
    REQUIRE((memcmp(masks[0], masks[1], sizeof masks[0]) == 0) == (rank == 0));
    td_tensor *in = td_borrow(masks[0], TD_SHAPE(64), TD_F32, TD_CPU);
    td_tensor *out = td_borrow(all, TD_SHAPE(size, 64), TD_F32, TD_CPU);
    REQUIRE_OK(td_all_gather(NULL, out, in, NULL));
    for (int a = 0; a < size; a++) {
        for (int b = 0; b < a; b++) {
            REQUIRE(memcmp(all[a], all[b], sizeof all[a]) != 0);
        }
    }
    td_free(in);
    td_free(out);
    td_free(ones);
    td_module_free(bare);
    td_module_free(net);
    td_dist_destroy();
    return 0;
}

static void test_ranks_drop_different_elements(void **state)
{
    (void)state;
    procs_succeed(3, limit, run_dropout, NULL);
}

/* Its state, which holds two steps already, moves along when the wrapper orders the gradients. */
static int run_early_optimizer(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    ddp_job mine, whole;
    job_open(&mine, JOB_MLP, TD_F64, NULL, 0, size * 4);
    job_open(&whole, JOB_MLP, TD_F64, NULL, 0, size * 4);
    for (int i = 0; i < 6; i++) {
        if (i == 2) {
            td_ddp_options options = { .bucket_cap_mb = 0.001 };
            mine.net = td_ddp(mine.net, &options);
            REQUIRE(mine.net != NULL);
            td_free(mine.x);
            td_free(mine.y);
            job_data(&mine, JOB_MLP, TD_F64, rank * 4, rank * 4 + 4);
        }
        job_step(&mine);
        job_step(&whole);
    }
    REQUIRE(job_distance(mine.net, whole.net, true) <= 1e-12);
    job_close(&mine);
    job_close(&whole);
    td_dist_destroy();
    return 0;
}

static void test_an_optimizer_made_before_the_wrapper(void **state)
{
    (void)state;
    procs_succeed(2, limit, run_early_optimizer, NULL);
}

/* ---- other backwards, figures, a dead peer ---- */

/* A backward that does not touch the model sends nothing; rank 0 has one more of them. */
static int run_other_backward(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    ddp_job job, other;
    td_ddp_options options = { .bucket_cap_mb = 0.001 };
    job_open(&job, JOB_MLP, TD_F32, &options, rank * 4, rank * 4 + 4);
    job_open(&other, JOB_MLP, TD_F32, NULL, 0, 4);
    job_step(&job);
    if (rank == 0) {
        job_step(&other);
    }
    job_step(&job);
    td_ddp_figures f = td_ddp_last_figures(job.net);
    REQUIRE(f.steps == 2 && f.rebuilt);
    REQUIRE(f.forward > 0.0 && f.backward > 0.0 && f.communication > 0.0 && f.exposed > 0.0);
    REQUIRE(f.overlap >= 0.0 && f.overlap <= 1.0);
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    td_ddp_print_figures(job.net, out);
    fclose(out);
    REQUIRE(strstr(text, "rebuilt by ready order") != NULL && strstr(text, "overlap") != NULL);
    free(text);
    job_close(&job);
    job_close(&other);
    td_dist_destroy();
    return 0;
}

static void test_a_backward_of_something_else(void **state)
{
    (void)state;
    procs_succeed(2, limit, run_other_backward, NULL);
}

static int run_dead_peer(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    ddp_job job;
    td_ddp_options options = { .bucket_cap_mb = 0.001 };
    job_open(&job, JOB_MLP, TD_F32, &options, rank * 4, rank * 4 + 4);
    job_step(&job);
    if (rank == 1) {
        kill(getpid(), SIGKILL);
    }
    job_step(&job); /* ends in a fatal error */
    return 0;
}

static void test_a_dead_peer_is_named(void **state)
{
    (void)state;
    procs_end ends[3];
    procs_run(3, limit, run_dead_peer, NULL, ends);
    assert_int_equal(ends[1].signal, SIGKILL);
    for (int rank = 0; rank < 3; rank += 2) {
        assert_int_equal(ends[rank].signal, SIGABRT);
        procs_assert_says(ends, rank, "DistributedDataParallel");
        procs_assert_says(ends, rank, "rank 1");
        assert_true(ends[rank].seconds < 10.0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_unused_parameter_is_named_at_once),
        cmocka_unit_test(test_an_unused_parameter_of_one_rank_ends_all),
        cmocka_unit_test(test_the_usage_map_with_branches_by_rank),
        cmocka_unit_test(test_no_sync_with_branches_by_rank),
        cmocka_unit_test(test_static_graph),
        cmocka_unit_test(test_uneven_inputs),
        cmocka_unit_test(test_uneven_inputs_with_buffers),
        cmocka_unit_test(test_shared_weights_are_reduced_once),
        cmocka_unit_test(test_communication_hooks),
        cmocka_unit_test(test_an_unknown_hook),
        cmocka_unit_test(test_ranks_drop_different_elements),
        cmocka_unit_test(test_an_optimizer_made_before_the_wrapper),
        cmocka_unit_test(test_a_backward_of_something_else),
        cmocka_unit_test(test_a_dead_peer_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
