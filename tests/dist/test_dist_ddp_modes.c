/* DistributedDataParallel: uneven inputs, shared weights, communication hooks, dropout, failures.
 */
#include "nn/internal.h"
#include "dist/ddp/extra.h"
#include "tests/dist/ddp_job.h"
#include "tests/help/dist_procs.h"
#include "dist/ddp/codec.h"
#include "dist/comm/collectives.h"

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

/* ---- uneven inputs ---- */

/* Rank r has r batches (rank 0 has none) if by rank, otherwise size - r. */
typedef struct join_case {
    bool descending, by_initial, adam;
} join_case;

static void join_open(ddp_job *job, const join_case *c, const td_ddp_options *options)
{
    job_open(job, JOB_MLP, TD_F64, options, 0, 1);
    if (c->adam) {
        td_optim_free(job->optim);
        job->optim = td_adam(td_parameters(job->net), .lr = 0.01);
        REQUIRE(job->optim != NULL);
    }
}

static void take_data(ddp_job *job, int64_t from, int64_t to)
{
    td_free(job->x);
    td_free(job->y);
    job_data(job, JOB_MLP, TD_F64, from, to);
}

static int run_join(int rank, int size, void *arg)
{
    const join_case *c = arg;
    procs_init(rank, size, 20.0);
    ddp_job mine, whole;
    td_ddp_options options = { .bucket_cap_mb = 0.001 };
    join_open(&mine, c, &options);
    join_open(&whole, c, NULL);
    int batches = c->descending ? size - 1 - rank : rank;
    td_ddp_join_begin(mine.net, c->by_initial);
    for (int i = 0; i < batches; i++) {
        take_data(&mine, (i * size + rank) * 4, (i * size + rank) * 4 + 4);
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
                take_data(&whole, (i * size + r) * 4, (i * size + r) * 4 + 4);
                job_backward(&whole, 1.0 / (c->by_initial ? size : live));
            }
        }
        td_optim_step(whole.optim);
    }
    REQUIRE(job_all_same(job_hash(mine.net)));
    REQUIRE(job_distance(mine.net, whole.net, true) <= 1e-12);
    int64_t steps = td_ddp_last_stats(mine.net).steps;
    REQUIRE(steps == size - 1);
    take_data(&mine, rank * 4, rank * 4 + 4); /* and together again: the optimizers agree, too */
    take_data(&whole, 0, size * 4);
    for (int i = 1; i <= 3; i++) {
        job_step(&mine);
        job_step(&whole);
        REQUIRE(td_ddp_last_stats(mine.net).steps == steps + i);
        REQUIRE(job_all_same(job_hash(mine.net)));
    }
    REQUIRE(job_distance(mine.net, whole.net, true) <= 1e-12);
    job_close(&mine);
    job_close(&whole);
    td_dist_destroy();
    return 0;
}

static void test_uneven_inputs(void **state)
{
    (void)state;
    join_case cases[] = {
        { false, true, false }, { false, false, true }, { true, true, true }, { true, false, false }
    };
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
    x = td_relu_at(td_forward_at(self->children[0], x, at), at);
    x = td_relu_at(td_linear_at(x, self->tensors[0].tensor, NULL, at), at);
    return td_forward_at(self->children[1], x, at);
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
    ddp_job mine = { .net = td_ddp(shared_net(), .bucket_cap_mb = 1e-6) },
            whole = { .net = shared_net() };
    REQUIRE(td_ddp_last_stats(mine.net).buckets == 4);
    mine.optim = td_sgd(td_parameters(mine.net), .lr = 0.1);
    whole.optim = td_sgd(td_parameters(whole.net), .lr = 0.1);
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
    REQUIRE(td_ddp_last_stats(mine.net).packing > 0.0);
    REQUIRE(job_all_same(job_hash(mine.net)));
    job_close(&mine);
    job_close(&whole);
    td_dist_destroy();
    return 0;
}

/* A codec of a program's own: it sends a copy of the bucket. */
static td_status attach_copy(void *state, const td_bucket *b, void **part)
{
    (void)state;
    *part = td_zeros(TD_SHAPE(b->count), TD_F32, TD_CPU);
    return *part != NULL ? TD_OK : TD_E_NOMEM;
}

static void detach_copy(void *state, void *part)
{
    (void)state;
    td_free(part);
}

static td_status encode_copy(void *state, void *part, const td_bucket *b, int round, double scale,
                             td_wire *wire)
{
    (void)state, (void)scale;
    if (round == 0) {
        td_copy_(part, b->grad);
        wire->tensor = part;
    }
    return TD_OK;
}

static td_status decode_copy(void *state, void *part, const td_bucket *b)
{
    (void)state;
    td_copy_(b->grad, part);
    return TD_OK;
}

static td_status open_nothing(td_group *group, td_params *params, const td_ddp_options *options,
                              void **state)
{
    (void)group, (void)params, (void)options, (void)state;
    return TD_OK;
}

static void close_nothing(void *state)
{
    (void)state;
}

static const td_bucket_codec copy_codec = { .name = "copy",
                                            .open = open_nothing,
                                            .close = close_nothing,
                                            .attach = attach_copy,
                                            .detach = detach_copy,
                                            .encode = encode_copy,
                                            .decode = decode_copy };

static void test_communication_hooks(void **state)
{
    (void)state;
    hook_case cases[] = {
        { { .comm_hook = "bf16", .bucket_cap_mb = 0.001 }, 5e-3, false },
        { { .comm_hook = "fp16", .bucket_cap_mb = 0.001 }, 1e-3, false },
        /* plain until step 10 */
        { { .codec = td_powersgd(.start = 10), .bucket_cap_mb = 0.001 }, 1e-5, true },
        { { .codec = td_powersgd(.start = 2, .rank = 2) }, 1e-5, false },
        { { .codec = &copy_codec, .bucket_cap_mb = 0.001 }, 1e-5, true },
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
    REQUIRE(td_ddp(job_net(JOB_MLP, 1, TD_F32), .comm_hook = "gzip") == NULL);
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
    td_module *net = td_ddp(td_nn_sequential(td_nn_dropout(0.5), td_nn_linear(64, 2)));
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
            mine.net = td_ddp(mine.net, .bucket_cap_mb = 0.001);
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
    td_ddp_stats f = td_ddp_last_stats(job.net);
    REQUIRE(f.steps == 2 && f.rebuilt);
    REQUIRE(f.forward > 0.0 && f.backward > 0.0 && f.communication > 0.0 && f.exposed > 0.0);
    REQUIRE(f.waiting > 0.0 && f.hooks > 0.0 && f.packing >= 0.0 && f.lost >= 0.0);
    REQUIRE(fabs(f.waiting + f.hooks + f.packing + f.lost - f.exposed) <= 1e-9);
    REQUIRE(f.overlap >= 0.0 && f.overlap <= 1.0);
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    td_ddp_print_stats(job.net, out);
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
    procs_init(rank, size, 60.0);
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
        assert_true(ends[rank].seconds < 30.0); /* not the time-out */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
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
