/* td_evaluate against sums made by hand, alone and over ranks; the mean and the printing that
 * lessons use. */
#include "autograd/tape.h"
#include "tests/help/dist_procs.h"
#include "tests/help/expect_fatal.h"
#include "tests/data/toy_dataset.h"
#include "tests/help/sanitized.h"
#include "nn/module.h"
#include "tensor/extend.h"
#include "dist/comm/collectives.h"
#include "dist/comm/mesh.h"
#include "dist/shard/zero.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

enum { SAMPLES = 23, CLASSES = 10 };
static const double limit = 60.0; /* seconds */

/* With running statistics that are not those of a new module. */
static td_module *small_net(double mean)
{
    td_manual_seed(3);
    td_module *net =
        td_nn_sequential(td_nn_conv2d(3, 4, .kernel = 4, .stride = 4), td_nn_batch_norm2d(4),
                         td_nn_relu(), td_nn_flatten(), td_nn_linear(4 * 8 * 8, CLASSES));
    td_state_list list = td_module_state(net);
    for (int i = 0; i < list.count; i++) {
        if (list.items[i].buffer && td_is_float(list.items[i].tensor->dtype) &&
            strstr(list.items[i].name, "mean") != NULL) {
            td_fill_(list.items[i].tensor, mean);
        }
    }
    td_state_list_free(&list);
    return net;
}

static td_dataset *pictures(void)
{
    td_dataset *set;
    return td_synthetic_images(SAMPLES, 5, &set) == TD_OK ? set : NULL;
}

/* This rank's part of the pictures, evaluated; then both are freed. */
static td_evaluation evaluate_pictures(td_module *net, td_sampler *sampler)
{
    td_dataset *set = pictures();
    td_loader *loader = td_loader_open(set, .batch_size = 4, .sampler = sampler);
    td_evaluation e = td_evaluate(net, loader);
    td_loader_close(loader);
    td_dataset_free(set);
    return e;
}

/* -log softmax(row)[label] in double precision. */
static double loss_of(const double *row, int64_t label)
{
    double sum = 0.0;
    for (int c = 0; c < CLASSES; c++) {
        sum += exp(row[c] - row[label]);
    }
    return log(sum);
}

/* The same by hand, all samples in one batch. The net is in evaluation mode afterwards. */
static td_evaluation by_hand(td_module *net)
{
    double logits[SAMPLES * CLASSES];
    int64_t labels[SAMPLES];
    td_evaluation e = { .seen = SAMPLES };
    td_dataset *set = pictures();
    td_loader *loader = td_loader_open(set, .batch_size = SAMPLES);
    td_batch batch;
    bool got = td_loader_next(loader, &batch);
    td_eval(net);
    TD_STEP {
        td_read(td_forward(net, batch.x), logits, TD_F64);
        td_read(batch.y, labels, TD_I64);
    }
    for (int i = 0; got && i < SAMPLES; i++) {
        const double *row = logits + i * CLASSES;
        int best = 0;
        for (int c = 1; c < CLASSES; c++) {
            best = row[c] > row[best] ? c : best;
        }
        e.right += best == labels[i];
        e.loss += loss_of(row, labels[i]) / SAMPLES;
    }
    td_loader_close(loader);
    td_dataset_free(set);
    return e;
}

static bool same(td_evaluation a, td_evaluation b)
{
    return a.right == b.right && a.seen == b.seen && fabs(a.loss - b.loss) < 1e-5 &&
           a.accuracy == (double)b.right / (double)b.seen && a.status == TD_OK;
}

static void test_alone(void **state)
{
    (void)state;
    td_module *net = small_net(0.25);
    td_evaluation e = evaluate_pictures(net, NULL);
    assert_true(net->training && net->children[1]->training);
    assert_true(td_grad_enabled());
    assert_true(same(e, by_hand(net)));
    (void)evaluate_pictures(net, NULL);
    assert_false(net->training || net->children[1]->training);
    td_train(net);
    td_eval(net->children[1]); /* frozen statistics */
    (void)evaluate_pictures(net, NULL);
    assert_true(net->training && net->children[0]->training && !net->children[1]->training);
    expect_fatal("the loader is NULL", td_evaluate(net, NULL));
    assert_non_null(strstr(fatal_message(), "test_dist_evaluate.c:"));
    td_module_free(net);
    assert_true(td_all_reduce_mean(2.5) == 2.5);
}

static int run_pictures(int rank, int size, void *arg)
{
    (void)arg;
    td_module *first = small_net(0.25), *net = small_net(0.25 + rank);
    td_evaluation wanted = by_hand(first);
    procs_init(rank, size, 20.0);
    td_sampler *part = td_distributed_sampler(.no_padding = true);
    REQUIRE(same(evaluate_pictures(net, part), wanted));
    REQUIRE(td_all_reduce_mean(rank) == (size - 1) / 2.0);
    td_module_free(net);
    td_module_free(first);
    td_dist_destroy();
    return 0;
}

static void test_ranks(void **state)
{
    (void)state;
    procs_succeed(2, limit, run_pictures, NULL);
    procs_succeed(3, limit, run_pictures, NULL); /* 8, 8 and 7 samples */
}

/* Three ranks and two pictures: rank 2 has none, and takes part. */
static int run_few(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    td_module *net = td_ddp(small_net(0.25));
    td_dataset *set = pictures();
    td_dataset *few = td_dataset_head(set, 2);
    for (int workers = 0; workers < 2; workers++) {
        td_loader *loader = td_loader_open(few, .batch_size = 4, .workers = workers,
                                           .sampler = td_distributed_sampler(.no_padding = true));
        REQUIRE(loader != NULL && td_loader_batches(loader) == (rank < 2));
        for (int again = 0; again < 2; again++) {
            td_evaluation e = td_evaluate(net, loader);
            REQUIRE(e.status == TD_OK && e.seen == 2 && isfinite(e.loss));
        }
        td_loader_close(loader);
    }
    td_sampler *part = td_distributed_sampler(.drop_last = true);
    REQUIRE(td_loader_open(few, .sampler = part) == NULL);
    REQUIRE(strstr(td_last_error(), "use fewer ranks") != NULL);
    td_module_free(net);
    td_dataset_free(few);
    td_dataset_free(set);
    td_dist_destroy();
    return 0;
}

static void test_a_rank_without_samples(void **state)
{
    (void)state;
    procs_succeed(3, limit, run_few, NULL);
}

/* Somebody has read a part of the epoch: all samples are evaluated all the same. */
static void test_after_a_look(void **state)
{
    (void)state;
    td_module *net = small_net(0.25);
    td_dataset *set = pictures();
    for (int workers = 0; workers < 2; workers++) {
        td_loader *loader = td_loader_open(set, .batch_size = 4, .workers = workers);
        td_evaluation whole = td_evaluate(net, loader);
        td_batch batch;
        for (int read = 0; read < 3; read++) {
            assert_true(td_loader_next(loader, &batch));
        }
        assert_true(same(td_evaluate(net, loader), whole));
        td_loader_seek(loader, 3, 5);
        assert_true(same(td_evaluate(net, loader), whole));
        assert_true(same(td_evaluate(net, loader), whole));
        td_loader_close(loader);
    }
    td_dataset_free(set);
    td_module_free(net);
}

/* A sampler that gives no sample; weights that overflow. */
static void test_no_number(void **state)
{
    (void)state;
    td_module *net = small_net(0.25);
    td_evaluation e = evaluate_pictures(
        net, td_distributed_sampler(.no_padding = true, .rank = 30, .world_size = 31));
    assert_true(e.status == TD_E_ARG && e.seen == 0);
    assert_non_null(strstr(td_last_error(), "no sample"));
    td_fill_(td_module_find(net, "0")->tensors[0].tensor, 3e38);
    e = evaluate_pictures(net, NULL);
    assert_true(e.status == TD_E_ARG && e.seen == SAMPLES);
    assert_non_null(strstr(td_last_error(), "over 23 samples"));
    td_module_free(net);
}

/* A measure of one's own: the deviation of y from what is predicted, x itself. */
static td_tensor *deviation(td_module *net, const td_batch *batch, td_tensor **sums, void *user)
{
    REQUIRE(*(int *)user == 5 && sums[0] == NULL && sums[3] == NULL && batch->size <= 3);
    td_tensor *result = td_forward(net, batch->x);
    sums[0] = td_l1_loss(result, batch->y, .reduction = TD_LOSS_SUM);
    sums[3] = td_sum(batch->y);
    return td_mse_loss(result, batch->y);
}

static bool twice(const td_evaluation *so_far, void *user)
{
    REQUIRE(*(int *)user == 5 && so_far->seen == 3 * so_far->batches && so_far->loss == 9);
    return so_far->batches < 2;
}

static td_dataset *numbers(void)
{
    double values[8];
    for (int i = 0; i < 8; i++) {
        values[i] = i % 2 == 0 ? 3 : -3;
    }
    td_tensor *x = td_from(values, TD_SHAPE(8, 1), TD_F64, TD_CPU);
    td_tensor *y = td_zeros(TD_SHAPE(8, 1), TD_F64, TD_CPU);
    td_dataset *set = td_tensor_dataset(x, y);
    td_free(x);
    td_free(y);
    return set;
}

static int run_measure(int rank, int size, void *arg)
{
    (void)arg;
    if (size > 1) {
        procs_init(rank, size, 20.0);
    }
    int number = 5;
    td_dataset *set = numbers();
    td_module *net = td_nn_sequential(td_nn_flatten());
    td_sampler *part = size > 1 ? td_distributed_sampler(.no_padding = true) : NULL;
    td_loader *loader = td_loader_open(set, .batch_size = 3, .sampler = part);
    td_evaluation e = td_evaluate(net, loader, .measure = deviation, .user = &number);
    REQUIRE(e.status == TD_OK && e.seen == 8 && e.loss == 9);
    REQUIRE(e.sums[0] == 24 && e.accuracy == 3 && e.sums[1] == 0 && e.sums[3] == 0);
    REQUIRE(e.batches == (size > 1 ? 2 : 3));
    if (size == 1) { /* ends early, and begins again */
        e = td_evaluate(net, loader, .measure = deviation, .batch_done = twice, .user = &number);
        REQUIRE(e.status == TD_OK && e.seen == 6 && e.batches == 2 && e.sums[0] == 18);
        REQUIRE(td_evaluate(net, loader, .measure = deviation, .user = &number).seen == 8);
    }
    td_loader_close(loader);
    td_module_free(net);
    td_dataset_free(set);
    if (size > 1) {
        td_dist_destroy();
    }
    return 0;
}

static void test_a_measure(void **state)
{
    (void)state;
    assert_int_equal(run_measure(0, 1, NULL), 0);
    procs_succeed(2, limit, run_measure, NULL);
}

/* Tokens: logits [n,T,classes] and y [n,T]. Each token counts. */
static void test_tokens(void **state)
{
    (void)state;
    int64_t words[2 * 3] = { 0, 1, 2, 3, 0, 1 }, next[2 * 3] = { 0, 1, 2, 3, 1, 1 };
    td_tensor *x = td_new(TD_SHAPE(2, 3), TD_I64, TD_CPU);
    td_tensor *y = td_new(TD_SHAPE(2, 3), TD_I64, TD_CPU);
    td_write(x, words, TD_I64);
    td_write(y, next, TD_I64);
    td_dataset *set = td_tensor_dataset(x, y);
    td_module *net = td_nn_embedding(4, 4); /* says the word again */
    for (int64_t i = 0; i < 16; i++) {
        td_set(net->tensors[0].tensor, (int64_t[]){ i / 4, i % 4 }, i % 5 == 0 ? log(5) : 0);
    }
    td_loader *loader = td_loader_open(set, .batch_size = 2);
    td_evaluation e = td_evaluate(net, loader);
    assert_true(e.status == TD_OK && e.seen == 6 && e.right == 5 && e.accuracy == 5.0 / 6);
    assert_true(fabs(e.loss - (5 * log(8.0 / 5) + log(8)) / 6) < 1e-6);
    td_loader_close(loader);
    td_module_free(net);
    td_dataset_free(set);
    td_free(x);
    td_free(y);
}

static void test_inside_a_step(void **state)
{
    (void)state;
    td_module *net = small_net(0.25);
    td_dataset *set = pictures();
    td_loader *loader = td_loader_open(set);
    td_step_begin();
    expect_fatal("td_evaluate: call it outside of a step", td_evaluate(net, loader));
    assert_non_null(strstr(fatal_message(), "test_dist_evaluate.c:"));
    td_step_abandon();
    td_loader_close(loader);
    td_dataset_free(set);
    td_module_free(net);
}

/* What rank 0 says without td_ddp (weights of its own on each rank), or without a sampler. */
typedef struct forgotten {
    bool ddp, sampler;
} forgotten;

static int run_forgotten(int rank, int size, void *arg)
{
    const forgotten *f = arg;
    procs_init(rank, size, 20.0);
    td_manual_seed(rank);
    td_module *net = td_nn_sequential(td_nn_flatten(), td_nn_linear(3 * 32 * 32, CLASSES));
    net = f->ddp ? net : td_ddp(net);
    td_evaluation e =
        evaluate_pictures(net, f->sampler ? NULL : td_distributed_sampler(.no_padding = true));
    REQUIRE(e.status == TD_OK && e.seen == (f->sampler ? size * SAMPLES : SAMPLES));
    td_module_free(net);
    td_dist_destroy();
    return 0;
}

static void test_what_is_forgotten(void **state)
{
    (void)state;
    forgotten cases[] = { { false, false }, { true, false }, { false, true }, { true, true } };
    for (int i = 0; i < 4; i++) {
        procs_end ends[2];
        procs_run(2, limit, run_forgotten, &cases[i], ends);
        for (int rank = 0; rank < 2; rank++) {
            const char *said = ends[rank].output;
            assert_int_equal(ends[rank].code, 0);
            assert_true((strstr(said, "td_ddp is missing") != NULL) == (rank == 0 && cases[i].ddp));
            assert_true((strstr(said, "46 samples seen of a dataset of 23") != NULL) ==
                        (rank == 0 && cases[i].sampler));
        }
    }
}

/* One of rank 1's samples cannot be read: both fail, and each says its part. */
static int run_broken(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    toy data = make_toy(8);
    data.fails_at = 3;
    td_module *net = td_nn_linear(2, 22);
    td_sampler *part = td_distributed_sampler(.no_padding = true);
    td_loader *loader = td_loader_open(&data.base, .sampler = part);
    td_evaluation e = td_evaluate(net, loader);
    REQUIRE(e.status == (rank == 0 ? TD_E_PEER : TD_E_IO));
    REQUIRE(strstr(td_last_error(), rank == 0 ? "1 other rank" : "sample 3 is broken") != NULL);
    REQUIRE(e.seen == 5); /* of the part that was read */
    td_loader_close(loader);
    td_module_free(net);
    td_group_abort(NULL, "the end of the test");
    REQUIRE(isnan(td_all_reduce_mean(1.0)) && td_last_error()[0] != '\0');
    td_dist_destroy();
    return 0;
}

static void test_a_rank_fails(void **state)
{
    (void)state;
    procs_succeed(2, limit, run_broken, NULL);
}

/* Rank 1, a replica of its own, has no memory for all values: rank 0 does not wait for it. */
static int run_without_memory(int rank, int size, void *arg)
{
    (void)arg;
    enum { WIDTH = 1 << 23 }; /* 96 MiB: beyond the 64 MiB that an arena of malloc has reserved */
    procs_init(rank, size, 20.0);
    td_mesh *mesh;
    REQUIRE_OK(td_mesh_new("rep=2,dp=1", &mesh));
    td_module *net = td_nn_sequential(td_nn_sequential(td_nn_linear(2, WIDTH)));
    net = td_ddp(net, .mesh = mesh, .strategy = td_zero(TD_SHARD_PARAMETERS, .gathers = true));
    REQUIRE(net != NULL);
    toy data = make_toy(2);
    td_loader *loader = td_loader_open(&data.base, .batch_size = 1);
    struct rlimit usual, less;
    REQUIRE(getrlimit(RLIMIT_AS, &usual) == 0);
    less = usual;
    less.rlim_cur = 1 << 20; /* what there is stays */
    REQUIRE(rank == 0 || setrlimit(RLIMIT_AS, &less) == 0);
    td_evaluation e = td_evaluate(net, loader);
    REQUIRE(setrlimit(RLIMIT_AS, &usual) == 0);
    REQUIRE(e.status == (rank == 0 ? TD_E_PEER : TD_E_NOMEM));
    REQUIRE(rank == 1 || strstr(td_last_error(), "1 other rank(s) failed") != NULL);
    td_loader_close(loader);
    td_module_free(net);
    td_mesh_free(mesh);
    td_dist_destroy();
    return 0;
}

static void test_a_rank_without_memory(void **state)
{
    (void)state;
    if (!TD_SANITIZED) { /* which has its own addresses */
        procs_succeed(2, limit, run_without_memory, NULL);
    }
}

static int run_printing(int rank, int size, void *arg)
{
    (void)arg;
    int ends[2];
    char text[64] = "";
    REQUIRE(pipe(ends) == 0 && dup2(ends[1], STDOUT_FILENO) >= 0);
    procs_init(rank, size, 20.0);
    td_printf_rank0("epoch %d, rank %d\n", 3, rank);
    REQUIRE(write(ends[1], "|", 1) == 1); /* behind what has been written at once */
    REQUIRE(read(ends[0], text, sizeof text - 1) > 0);
    REQUIRE(strcmp(text, rank == 0 ? "epoch 3, rank 0\n|" : "|") == 0);
    td_dist_destroy();
    return 0;
}

static void test_printing(void **state)
{
    (void)state;
    procs_succeed(2, limit, run_printing, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks),         cmocka_unit_test(test_a_rank_without_samples),
        cmocka_unit_test(test_after_a_look),  cmocka_unit_test(test_no_number),
        cmocka_unit_test(test_a_measure),     cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_inside_a_step), cmocka_unit_test(test_what_is_forgotten),
        cmocka_unit_test(test_a_rank_fails),  cmocka_unit_test(test_a_rank_without_memory),
        cmocka_unit_test(test_printing),      cmocka_unit_test(test_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
