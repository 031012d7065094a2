/* DistributedDataParallel: equal to one process on all data, buckets, no_sync, buffers, weights. */
#include "dist/ddp/extra.h"
#include "tests/dist/ddp_job.h"
#include "tests/help/dist_procs.h"
#include "tests/help/golden.h"
#include "tests/help/temp_folder.h"
#include "nn/module.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const double limit = 60.0; /* seconds; nothing here takes more than a few */

/* ---- five steps equal one process on the joined batch ---- */

typedef struct equal_case {
    job_kind kind;
    td_dtype dtype;
    double tolerance;
    td_ddp_options options;
} equal_case;

static int run_equal(int rank, int size, void *arg)
{
    const equal_case *c = arg;
    procs_init(rank, size, 20.0);
    enum { EACH = 6 };
    ddp_job mine, whole;
    job_open(&mine, c->kind, c->dtype, &c->options, rank * EACH, (rank + 1) * EACH);
    job_open(&whole, c->kind, c->dtype, NULL, 0, size * EACH);
    for (int i = 0; i < 5; i++) {
        double loss[1] = { job_step(&mine) }, expected = job_step(&whole);
        REQUIRE_OK(td_all_reduce_numbers(NULL, loss, 1));
        REQUIRE(fabs(loss[0] / size - expected) <= c->tolerance * fabs(expected));
    }
    REQUIRE(job_distance(mine.net, whole.net, true) <= c->tolerance);
    REQUIRE(job_all_same(job_hash(mine.net)));
    job_close(&mine);
    job_close(&whole);
    td_dist_destroy();
    return 0;
}

static void test_five_steps_equal_one_process(void **state)
{
    (void)state;
    equal_case cases[] = {
        { JOB_MLP, TD_F32, 1e-5, { .bucket_cap_mb = 0.0 } },
        { JOB_MLP, TD_F64, 1e-12, { .bucket_cap_mb = 0.001 } },
        { JOB_CONV, TD_F32, 1e-5, { .bucket_cap_mb = 0.001 } },
        { JOB_CONV, TD_F64, 1e-12, { .static_graph = true, .bucket_cap_mb = 0.001 } },
        { JOB_CONV, TD_F64, 1e-12, { .find_unused_parameters = true, .bucket_cap_mb = 0.001 } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int size = 2; size <= 4; size++) {
            procs_succeed(size, limit, run_equal, &cases[i]);
        }
    }
}

/* ---- buckets ---- */

/* The MLP's gradients in bytes, last first: bias 5, weight 120, 24, 768, 32, 416 floats. */
typedef struct bucket_case {
    double cap_kib;
    td_dtype dtype;
    int count;
    int64_t bytes[6]; /* slices are rounded up to 64 bytes */
} bucket_case;

static const bucket_case bucket_cases[] = {
    { 0.001, TD_F32, 6, { 64, 512, 128, 3072, 128, 1664 } },
    { 0.5, TD_F32, 3, { 704, 3072, 1792 } },
    { 3.0, TD_F32, 2, { 3776, 1792 } },
    { 1024, TD_F32, 1, { 5568 } },
    { 3.0, TD_F64, 2, { 7360, 3584 } },
};

static int run_buckets(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    for (size_t i = 0; i < sizeof bucket_cases / sizeof *bucket_cases; i++) {
        const bucket_case *c = &bucket_cases[i];
        ddp_job job;
        job_open(&job, JOB_MLP, c->dtype, &(td_ddp_options){ .bucket_cap_mb = c->cap_kib / 1024 },
                 0, 4);
        td_ddp_stats figures = td_ddp_last_stats(job.net);
        REQUIRE(figures.buckets == c->count && !figures.rebuilt);
        for (int b = 0; b < c->count; b++) {
            REQUIRE(figures.bucket_bytes[b] == c->bytes[b]);
        }
        job_close(&job);
    }
    td_dist_destroy();
    return 0;
}

static void test_buckets_for_several_limits(void **state)
{
    (void)state;
    procs_succeed(2, limit, run_buckets, NULL);
}

/* Layers of a little over 1 MiB, and how many each bucket has: the first is small, and so are those
 * that nothing hides. */
typedef struct tail_case {
    double cap;
    int layers, buckets, counts[10];
} tail_case;

static const tail_case tail_cases[] = {
    { 0.0, 10, 6, { 1, 5, 1, 1, 1, 1 } },
    { 0.0, 11, 7, { 1, 5, 1, 1, 1, 1, 1 } },
    { 0.0, 12, 7, { 1, 5, 2, 1, 1, 1, 1 } },
    { 25.0, 20, 6, { 1, 15, 1, 1, 1, 1 } },
};

static void check_tail(const tail_case *c)
{
    const int64_t layer = (512 * 512 + 512) * (int64_t)sizeof(float);
    td_module *list[20];
    for (int i = 0; i < c->layers; i++) {
        list[i] = td_nn_linear(512, 512);
    }
    td_module *net = td_ddp(td_nn_sequential_list(list, c->layers), .bucket_cap_mb = c->cap);
    td_ddp_stats figures = td_ddp_last_stats(net);
    REQUIRE(figures.buckets == c->buckets);
    for (int b = 0; b < figures.buckets; b++) {
        REQUIRE(figures.bucket_bytes[b] == c->counts[b] * layer);
    }
    td_module_free(net);
}

static int run_tail(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    for (size_t i = 0; i < sizeof tail_cases / sizeof *tail_cases; i++) {
        check_tail(&tail_cases[i]);
    }
    td_dist_destroy();
    return 0;
}

static void test_last_buckets_are_small(void **state)
{
    (void)state;
    procs_succeed(2, limit, run_tail, NULL);
}

/* Its forward uses the children in the opposite order of registration. */
static td_tensor *backwards_forward(td_module *self, td_tensor *x, td_site at)
{
    x = td_forward_at(self->children[1], x, at);
    return td_forward_at(self->children[0], x, at);
}

static const td_module_type backwards_type = { .name = "Backwards", .forward = backwards_forward };

static td_module *backwards_net(void)
{
    td_manual_seed(1);
    td_module *m = td_module_new(&backwards_type, 0);
    td_module_add(m, "second", td_nn_linear(8, 5));
    td_module_add(m, "first", td_nn_linear(13, 8));
    return td_module_finish(m);
}

static int run_rebuild(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    ddp_job mine = { .net = td_ddp(backwards_net(), .bucket_cap_mb = 1e-6) };
    ddp_job whole = { .net = backwards_net() };
    mine.optim = td_adam(td_parameters(mine.net));
    whole.optim = td_adam(td_parameters(whole.net));
    job_data(&mine, JOB_MLP, TD_F32, rank * 4, (rank + 1) * 4);
    job_data(&whole, JOB_MLP, TD_F32, 0, size * 4);
    const td_params *params = td_parameters(mine.net);
    REQUIRE(td_params_get(params, 2)->begin < td_params_get(params, 0)->begin);
    for (int i = 0; i < 4; i++) {
        job_step(&mine);
        job_step(&whole);
        REQUIRE(td_ddp_last_stats(mine.net).rebuilt);
        REQUIRE(td_params_get(params, 0)->begin < td_params_get(params, 2)->begin);
    }
    REQUIRE(td_ddp_last_stats(mine.net).steps == 4);
    REQUIRE(job_distance(mine.net, whole.net, true) <= 1e-5);
    job_close(&mine);
    job_close(&whole);
    td_dist_destroy();
    return 0;
}

static void test_buckets_are_rebuilt_once(void **state)
{
    (void)state;
    procs_succeed(3, limit, run_rebuild, NULL);
}

/* ---- mismatches ---- */

static int run_mismatch(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    const char *const expected[] = {
        "'2.weight' f32[24,32] where rank 0 has the parameter '2.weight' f32[24,33]",
        "rank 1: the parameter '0.weight' f64[32,13]",
        "rank 2: the frozen parameter '4.bias'",
        "bucket_cap_mb",
    };
    for (int i = 0; i < 4; i++) {
        td_module *net = NULL;
        td_ddp_options options = { .bucket_cap_mb = i == 3 && rank == 1 ? 7.0 : 0.0 };
        if (i == 0) {
            net = td_nn_sequential(td_nn_linear(13, 32), td_nn_relu(),
                                   td_nn_linear(rank == 0 ? 33 : 32, 24));
        } else if (i == 1) {
            net = job_net(JOB_MLP, 1, rank == 1 ? TD_F64 : TD_F32);
        } else {
            net = job_net(JOB_MLP, 1, TD_F32);
            if (i == 2 && rank == size - 1) {
                td_requires_grad(td_module_find(net, "4")->tensors[1].tensor, false);
            }
        }
        options.model = net;
        REQUIRE(td_ddp_at(options, TD_HERE) == NULL);
        if (strstr(td_last_error(), expected[i]) == NULL) {
            fprintf(stderr, "%s\n", td_last_error());
            return 1;
        }
    }
    td_dist_destroy();
    return 0;
}

static void test_mismatches_fail_on_all_ranks(void **state)
{
    (void)state;
    procs_succeed(3, limit, run_mismatch, NULL);
}

/* ---- no_sync ---- */

static int run_no_sync(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    enum { K = 3, EACH = 4 };
    ddp_job mine, whole;
    td_ddp_options options = { .bucket_cap_mb = 0.001 };
    job_open(&mine, JOB_MLP, TD_F64, &options, 0, 1);
    job_open(&whole, JOB_MLP, TD_F64, NULL, 0, K * EACH * size);
    for (int step = 0; step < 3; step++) {
        td_zero_grad(mine.optim);
        for (int k = 0; k < K; k++) {
            int64_t from = (int64_t)(k * size + rank) * EACH;
            td_free(mine.x);
            td_free(mine.y);
            job_data(&mine, JOB_MLP, TD_F64, from, from + EACH);
            if (k + 1 < K) {
                td_ddp_no_sync_begin(mine.net);
            }
            job_backward(&mine, 1.0 / K);
            if (k + 1 < K) {
                td_ddp_no_sync_end(mine.net);
            }
        }
        td_zero_grad(whole.optim);
        job_backward(&whole, 1.0);
        REQUIRE(job_grad_distance(mine.net, whole.net) <= 1e-12);
        td_optim_step(mine.optim);
        td_optim_step(whole.optim);
    }
    REQUIRE(td_ddp_last_stats(mine.net).steps == 3);
    job_close(&mine);
    job_close(&whole);
    td_dist_destroy();
    return 0;
}

static void test_no_sync_steps_equal_a_big_batch(void **state)
{
    (void)state;
    procs_succeed(2, limit, run_no_sync, NULL);
}

/* ---- buffers, evaluation, checkpoints ---- */

static int run_buffers(int rank, int size, void *arg)
{
    procs_init(rank, size, 20.0);
    ddp_job mine;
    td_ddp_options options = { .bucket_cap_mb = 0.001 };
    job_open(&mine, JOB_BATCH_NORM, TD_F32, &options, rank * 6, rank * 6 + 6);
    for (int i = 0; i < 50; i++) {
        job_step(&mine);
    }
    REQUIRE(job_all_same(job_hash(mine.net)));

    /* Rank 0 alone: evaluation, a forward without gradients, and a checkpoint. */
    char *path = arg;
    if (rank == 0) {
        td_eval(mine.net);
        td_step_begin();
        td_forward(mine.net, mine.x);
        td_step_end();
        td_train(mine.net);
        td_no_grad_begin();
        td_step_begin();
        td_forward(mine.net, mine.x);
        td_step_end();
        td_no_grad_end();
        REQUIRE_OK(td_checkpoint_save(path, mine.net, .optim = mine.optim));
    }
    REQUIRE_OK(td_barrier(NULL));
    ddp_job loaded; /* by everybody, into a bare model */
    job_open(&loaded, JOB_BATCH_NORM, TD_F32, NULL, 0, 6);
    td_fill_(td_params_flat(td_parameters(loaded.net)), 0.25);
    REQUIRE_OK(td_checkpoint_load(path, loaded.net, .optim = loaded.optim));
    REQUIRE(job_all_same(job_hash(loaded.net)));
    REQUIRE(job_hash(loaded.net) == job_hash(mine.net));
    job_close(&loaded);
    job_step(&mine);
    REQUIRE(job_all_same(job_hash(mine.net)));
    job_close(&mine);
    td_dist_destroy();
    return 0;
}

static void test_weights_stay_bitwise_equal(void **state)
{
    (void)state;
    char path[512];
    snprintf(path, sizeof path, "%s", temp_path("model.safetensors"));
    procs_succeed(2, limit, run_buffers, path);
    procs_succeed(4, limit, run_buffers, path);
}

/* ---- wine, two ranks: PyTorch's losses ---- */

typedef struct wine_case {
    const char *csv;
    bool set_epoch;
    const double *losses[2];
} wine_case;

static int run_wine(int rank, int size, void *arg)
{
    const wine_case *c = arg;
    procs_init(rank, size, 20.0);
    td_dataset *train, *test;
    REQUIRE_OK(td_wine_split(c->csv, 0.2, 42, &train, &test, NULL));
    td_manual_seed(0);
    td_module *net =
        td_ddp(td_nn_sequential(td_nn_linear(13, 64), td_nn_relu(), td_nn_linear(64, 3)));
    REQUIRE(net != NULL);
    td_optim *optim = td_adam(td_parameters(net), .lr = 1e-3);
    td_sampler *sampler = td_distributed_sampler(.shuffle = true);
    td_loader *loader = td_loader_open(train, .batch_size = 32, .sampler = sampler);
    REQUIRE(loader != NULL);
    for (int epoch = 0; epoch < 100; epoch++) {
        double sum = 0.0;
        if (!c->set_epoch) {
            td_loader_seek(loader, 0, 0); /* as PyTorch's sampler that nobody tells the epoch */
        }
        for (td_batch batch; td_loader_next(loader, &batch);) {
            td_step_begin();
            td_tensor *loss = td_cross_entropy(td_forward(net, batch.x), batch.y);
            td_zero_grad(optim);
            td_backward(loss);
            td_optim_step(optim);
            sum += td_item(loss);
            td_step_end();
        }
        double mean = sum / (double)td_loader_batches(loader), expected = c->losses[rank][epoch];
        REQUIRE(fabs(mean - expected) <= 5e-5 * expected);
    }
    td_loader_close(loader);
    td_optim_free(optim);
    td_module_free(net);
    td_dataset_free(train);
    td_dataset_free(test);
    td_dist_destroy();
    return 0;
}

static void test_wine_equals_pytorch(void **state)
{
    (void)state;
    static double losses[4][100]; /* rank 0, rank 1 with the epoch set; then without */
    FILE *golden = fopen("tests/golden/wine_ddp2_losses.txt", "r");
    assert_non_null(golden);
    char line[256];
    for (int epoch = 0; epoch < 100;) {
        assert_non_null(fgets(line, sizeof line, golden));
        if (line[0] != '#') {
            assert_int_equal(sscanf(line, "%lf %lf %lf %lf", &losses[0][epoch], &losses[1][epoch],
                                    &losses[2][epoch], &losses[3][epoch]),
                             4);
            epoch++;
        }
    }
    fclose(golden);
    for (int i = 0; i < 2; i++) {
        wine_case c = { "data/wine.csv", i == 0, { losses[2 * i], losses[2 * i + 1] } };
        procs_succeed(2, limit, run_wine, &c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_five_steps_equal_one_process),
        cmocka_unit_test(test_buckets_for_several_limits),
        cmocka_unit_test(test_last_buckets_are_small),
        cmocka_unit_test(test_buckets_are_rebuilt_once),
        cmocka_unit_test(test_mismatches_fail_on_all_ranks),
        cmocka_unit_test(test_no_sync_steps_equal_a_big_batch),
        cmocka_unit_test_setup_teardown(test_weights_stay_bitwise_equal, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test(test_wine_equals_pytorch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
