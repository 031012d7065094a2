/* SyncBatchNorm against plain batch normalisation of all ranks' pictures together. */
#include "dist/ddp/extra.h"
#include "nn/internal.h"
#include "tests/dist/ddp_job.h"
#include "tests/help/dist_procs.h"
#include "autograd/hooks.h"
#include "tensor/extend.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const double limit = 60.0;

enum { CHANNELS = 5, SIDE = 3, TOTAL = 12, PICTURE = CHANNELS * SIDE * SIDE };

typedef struct norm_case {
    td_dtype dtype;
    td_norm_activation activation;
    bool add;
    double mean, tolerance;
    int counts[4]; /* pictures of each rank; TOTAL in all */
} norm_case;

static td_tensor *pictures(const norm_case *c, uint64_t seed, double mean, int from, int count)
{
    td_generator g;
    td_generator_seed(&g, seed);
    double all[TOTAL * PICTURE];
    for (int i = 0; i < TOTAL * PICTURE; i++) {
        all[i] = mean + td_random_normal(&g);
    }
    td_tensor *t = td_new_layout(TD_SHAPE(count, CHANNELS, SIDE, SIDE), c->dtype, TD_IMAGE, TD_CPU);
    REQUIRE(t != NULL);
    if (count > 0) {
        td_write(t, all + from * PICTURE, TD_F64);
    }
    return t;
}

typedef struct outcome {
    double y[TOTAL * PICTURE], dx[TOTAL * PICTURE], dadd[TOTAL * PICTURE];
    double dweight[CHANNELS], dbias[CHANNELS], mean[CHANNELS], var[CHANNELS];
} outcome;

static void read_into(const td_tensor *t, double *values)
{
    if (td_numel(t) > 0) {
        td_read(t, values, TD_F64);
    }
}

/* Two training steps (the second one's values are kept), in the share [from, from + count). */
static void run_norm(const norm_case *c, td_module *bn, int from, int count, outcome *o)
{
    REQUIRE_OK(td_module_to(bn, TD_CPU, c->dtype));
    for (int64_t i = 0; i < CHANNELS; i++) {
        td_set(bn->tensors[0].tensor, &i, 0.5 + 0.2 * (double)i);
        td_set(bn->tensors[1].tensor, &i, 0.1 * (double)i);
    }
    td_tensor *add = pictures(c, 8, 0.0, from, count), *r = pictures(c, 9, 0.0, from, count);
    td_requires_grad(add, true);
    for (int step = 0; step < 2; step++) {
        td_tensor *x = pictures(c, 5 + (uint64_t)step, c->mean, from, count);
        td_requires_grad(x, true);
        for (int i = 0; i < 2; i++) {
            td_zero_grad_of(bn->tensors[i].tensor);
        }
        td_zero_grad_of(add);
        td_step_begin();
        td_tensor *y = td_nn_batch_norm2d_fused(bn, x, c->add ? add : NULL, c->activation, TD_HERE);
        td_backward(td_sum(td_mul(y, r)));
        read_into(y, o->y);
        read_into(td_grad(x), o->dx);
        if (c->add) {
            read_into(td_grad(add), o->dadd);
        }
        td_step_end();
        td_free(x);
    }
    read_into(td_grad(bn->tensors[0].tensor), o->dweight);
    read_into(td_grad(bn->tensors[1].tensor), o->dbias);
    read_into(bn->tensors[2].tensor, o->mean);
    read_into(bn->tensors[3].tensor, o->var);
    td_free(add);
    td_free(r);
    td_module_free(bn);
}

static void require_near(const char *what, const double *a, const double *b, int n,
                         double tolerance)
{
    for (int i = 0; i < n; i++) {
        if (!(fabs(a[i] - b[i]) <= tolerance * (1.0 + fabs(b[i])))) {
            fprintf(stderr, "%s[%d]: %.17g, expected %.17g\n", what, i, a[i], b[i]);
            REQUIRE(false);
        }
    }
}

static int run_equal(int rank, int size, void *arg)
{
    const norm_case *c = arg;
    procs_init(rank, size, 20.0);
    int from = 0;
    for (int r = 0; r < rank; r++) {
        from += c->counts[r];
    }
    int count = c->counts[rank];
    static outcome mine, whole;
    run_norm(c, td_convert_sync_batch_norm(td_nn_batch_norm2d(CHANNELS), NULL), from, count, &mine);
    run_norm(c, td_nn_batch_norm2d(CHANNELS), 0, TOTAL, &whole);
    double tolerance = c->tolerance;
    require_near("y", mine.y, whole.y + from * PICTURE, count * PICTURE, tolerance);
    require_near("dx", mine.dx, whole.dx + from * PICTURE, count * PICTURE, tolerance);
    if (c->add) {
        require_near("dadd", mine.dadd, whole.dadd + from * PICTURE, count * PICTURE, tolerance);
    }
    require_near("mean", mine.mean, whole.mean, CHANNELS, tolerance);
    require_near("var", mine.var, whole.var, CHANNELS, tolerance);
    REQUIRE_OK(td_all_reduce_numbers(NULL, mine.dweight, CHANNELS)); /* local until DDP */
    REQUIRE_OK(td_all_reduce_numbers(NULL, mine.dbias, CHANNELS));
    require_near("dweight", mine.dweight, whole.dweight, CHANNELS, 10 * tolerance);
    require_near("dbias", mine.dbias, whole.dbias, CHANNELS, 10 * tolerance);
    td_dist_destroy();
    return 0;
}

static void test_equals_the_global_batch(void **state)
{
    (void)state;
    norm_case cases[] = {
        { TD_F32, TD_NORM_LINEAR, false, 0.0, 1e-5, { 6, 6 } },
        { TD_F64, TD_NORM_LINEAR, false, 0.0, 1e-12, { 5, 7 } },
        { TD_F64, TD_NORM_RELU, false, 0.3, 1e-12, { 1, 8, 3 } },
        { TD_F64, TD_NORM_GELU, false, 0.3, 1e-12, { 1, 0, 11 } },
        { TD_F32, TD_NORM_GELU, false, 0.3, 1e-5, { 5, 7 } },
        { TD_F64, TD_NORM_RELU, true, 0.3, 1e-12, { 4, 0, 8 } }, /* an empty rank */
        { TD_F64, TD_NORM_LINEAR, true, 0.0, 1e-12, { 0, 0, 11, 1 } },
        { TD_F32, TD_NORM_RELU, true, 100.0, 1e-3, { 3, 9 } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int size = 2 + (cases[i].counts[2] > 0) + (cases[i].counts[3] > 0);
        procs_succeed(size, limit, run_equal, &cases[i]);
    }
}

/* A whole network under DDP equals one process on the joined batch, batch norm included. */
static int run_network(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    ddp_job whole, mine = { .net = job_net(JOB_BATCH_NORM, 1, TD_F64) };
    mine.net = td_ddp(td_convert_sync_batch_norm(mine.net, NULL), .bucket_cap_mb = 0.001);
    REQUIRE(mine.net != NULL && td_has_batch_norm_override(mine.net));
    mine.optim = td_sgd(td_parameters(mine.net), .lr = 0.05, .momentum = 0.9);
    job_data(&mine, JOB_BATCH_NORM, TD_F64, rank * 4, rank * 4 + 4);
    job_open(&whole, JOB_BATCH_NORM, TD_F64, NULL, 0, size * 4);
    for (int i = 0; i < 5; i++) {
        job_step(&mine);
        job_step(&whole);
    }
    REQUIRE(job_distance(mine.net, whole.net, true) <= 1e-10);
    REQUIRE(job_all_same(job_hash(mine.net)));
    if (rank == 0) { /* alone, in evaluation: nobody is waited for */
        td_eval(mine.net);
        td_step_begin();
        td_forward(mine.net, mine.x);
        td_step_end();
    }
    job_close(&mine);
    job_close(&whole);
    td_dist_destroy();
    return 0;
}

static void test_a_network_equals_one_process(void **state)
{
    (void)state;
    procs_succeed(2, limit, run_network, NULL);
    procs_succeed(3, limit, run_network, NULL);
}

static int run_one(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    norm_case c = { TD_F32, TD_NORM_RELU, true, 0.0, 0.0, { TOTAL } };
    static outcome mine, whole;
    run_norm(&c, td_convert_sync_batch_norm(td_nn_batch_norm2d(CHANNELS), NULL), 0, TOTAL, &mine);
    run_norm(&c, td_nn_batch_norm2d(CHANNELS), 0, TOTAL, &whole);
    REQUIRE(memcmp(&mine, &whole, sizeof mine) == 0);
    td_dist_destroy();
    return 0;
}

static void test_a_world_of_one_is_plain(void **state)
{
    (void)state;
    procs_succeed(1, limit, run_one, NULL);
}

static int run_join(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    td_module *net = td_convert_sync_batch_norm(job_net(JOB_BATCH_NORM, 1, TD_F32), NULL);
    td_ddp_join_begin(td_ddp(net), true); /* ends here */
    return 0;
}

static void test_uneven_inputs_fail_on_all_ranks(void **state)
{
    (void)state;
    procs_end ends[2];
    procs_run(2, limit, run_join, NULL, ends);
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(ends[rank].signal, SIGABRT);
        procs_assert_says(ends, rank, "SyncBatchNorm");
    }
}

static int run_too_few(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    td_module *bn = td_convert_sync_batch_norm(td_nn_batch_norm2d(3), NULL);
    td_tensor *x = td_zeros(TD_SHAPE(rank == 0, 3), TD_F32, TD_CPU);
    td_step_begin();
    td_forward(bn, x); /* ends here */
    return 0;
}

static void test_one_value_has_no_variance(void **state)
{
    (void)state;
    procs_end ends[2];
    procs_run(2, limit, run_too_few, NULL, ends);
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(ends[rank].signal, SIGABRT);
        procs_assert_says(ends, rank, "all ranks together have 1 value per channel");
    }
}

static int run_wide(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    td_module *bn =
        td_convert_sync_batch_norm(td_nn_batch_norm2d(CHANNELS, .no_weight = true), NULL);
    td_tensor *x = td_full(TD_SHAPE(2, 1000 * CHANNELS), rank, TD_F32, TD_CPU);
    REQUIRE_OK(td_barrier(NULL)); /* a rank that ends while others still connect is another error */
    td_step_begin();
    td_forward(bn, x); /* ends here */
    return 0;
}

static void test_other_channels_are_refused(void **state)
{
    (void)state;
    procs_end ends[2];
    procs_run(2, limit, run_wide, NULL, ends);
    for (int rank = 0; rank < 2; rank++) {
        procs_assert_says(ends, rank, "x[2,5000] must be [N,5] or [N,5,H,W]");
    }
}

/* A 16-bit convolution's result and an f32 addend, as plain batch normalisation takes them. */
static int run_mixed(int rank, int size, void *arg)
{
    (void)rank, (void)arg;
    procs_init(rank, size, 20.0);
    td_tensor *x = td_full(TD_SHAPE(2, CHANNELS), 0.5, TD_F32, TD_CPU);
    td_requires_grad(x, true);
    td_module *bn = td_nn_batch_norm2d(CHANNELS);
    td_module *sync = td_convert_sync_batch_norm(td_nn_batch_norm2d(CHANNELS), NULL);
    td_tensor *y[2];
    TD_STEP {
        for (int i = 0; i < 2; i++) {
            y[i] = td_nn_batch_norm2d_fused(i == 0 ? bn : sync, td_cast(x, TD_BF16), x,
                                            TD_NORM_RELU, TD_HERE);
            REQUIRE(y[i]->dtype == TD_BF16 && td_item(td_mean(y[i])) == 0.5);
        }
        td_backward(td_mean(y[1]));
        REQUIRE(td_grad(x)->dtype == TD_F32);
    }
    td_free(x);
    td_module_free(bn);
    td_module_free(sync);
    td_dist_destroy();
    return 0;
}

static void test_an_addend_of_another_dtype(void **state)
{
    (void)state;
    procs_succeed(2, limit, run_mixed, NULL);
}

/* Rank 0 has -h and rank 1 has h: mean 0 and variance h^2, which eps would spoil. */
static int run_zeros(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    td_module *bn = td_convert_sync_batch_norm(
        td_nn_batch_norm2d(1, .momentum = TD_ZERO, .eps = TD_ZERO), NULL);
    double sign = rank == 0 ? -1.0 : 1.0;
    td_tensor *x = td_full(TD_SHAPE(1, 1), sign * 0x1p-10, TD_F32, TD_CPU);
    TD_STEP {
        REQUIRE(td_item(td_forward(bn, x)) == sign);
    }
    REQUIRE(td_item(bn->tensors[2].tensor) == 0.0); /* running mean and variance stay */
    REQUIRE(td_item(bn->tensors[3].tensor) == 1.0);
    td_free(x);
    td_module_free(bn);
    td_dist_destroy();
    return 0;
}

static void test_eps_and_momentum_of_zero(void **state)
{
    (void)state;
    procs_succeed(2, limit, run_zeros, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_the_global_batch),
        cmocka_unit_test(test_a_network_equals_one_process),
        cmocka_unit_test(test_a_world_of_one_is_plain),
        cmocka_unit_test(test_uneven_inputs_fail_on_all_ranks),
        cmocka_unit_test(test_one_value_has_no_variance),
        cmocka_unit_test(test_other_channels_are_refused),
        cmocka_unit_test(test_an_addend_of_another_dtype),
        cmocka_unit_test(test_eps_and_momentum_of_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
