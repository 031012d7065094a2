/* What the training loop makes of its recipe: accumulated gradients, clipping, smoothed labels,
 * averaged weights; each against a control, alone and with two ranks. */
#include "apps/tools/common/train.h"
#include "tests/dist/ddp_job.h"
#include "tests/help/dist_procs.h"
#include "nn/extra/inspect.h"
#include "nn/module.h"
#include "tensor/extend.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

enum { SAMPLES = 96, FEATURES = 13, EPOCHS = 2, MOST_VALUES = 4096 };

/* ---- data: numbers from a generator, the same in every rank ---- */

static td_status fetch(const td_dataset *dataset, const int64_t *index, int64_t n, uint64_t epoch,
                       td_tensor *x, td_tensor *y)
{
    (void)dataset, (void)epoch;
    for (int64_t i = 0; i < n; i++) {
        td_generator g;
        td_generator_seed(&g, 1000 + (uint64_t)index[i]);
        for (int64_t k = 0; k < FEATURES; k++) {
            td_set(x, (int64_t[]){ i, k }, td_random_normal(&g));
        }
        td_set(y, &i, (double)(index[i] % 5));
    }
    return TD_OK;
}

static const td_dataset_vtable vtable = { .kind = "numbers", .fetch = fetch };

static td_dataset make_data(void)
{
    td_dataset d = { .vtable = &vtable, .length = SAMPLES, .dtype = TD_F32, .classes = 5 };
    d.sample_shape = TD_SHAPE(FEATURES);
    return d;
}

/* ---- a run of the loop ---- */

static double first_loss;

static void step_done(train_run *r, double loss)
{
    if (r->state.epoch == 0 && r->state.batch == 1) {
        first_loss = loss;
    }
}

static void epoch_done(train_run *r, double seconds, char *path)
{
    (void)r, (void)seconds, (void)path;
}

static void latest(const train_run *r, char *path)
{
    (void)r, (void)path;
}

static const train_task task = {
    .name = "recipes", .step_done = step_done, .epoch_done = epoch_done, .latest = latest
};

/* A measure of one's own: half the loss, and every sample counts. */
static td_tensor *half(td_module *net, const td_batch *batch, td_tensor **sums, void *user)
{
    const train_run *r = user;
    REQUIRE(r->args.recipe.label_smoothing == 0.5); /* which is not for us */
    td_tensor *logits = td_forward(net, batch->x);
    sums[0] = td_count_top(logits, batch->y, 5);
    return td_mul_scalar(td_cross_entropy(logits, batch->y), 0.5);
}

static int64_t tested;

static td_status took(train_run *r, const td_evaluation *result)
{
    REQUIRE(result->accuracy == 1 && result->loss < 1 && result->seen == SAMPLES);
    REQUIRE(r->state.epoch == EPOCHS);
    tested++;
    return TD_OK;
}

static void every_sample_counts(train_run *r, double seconds, char *path)
{
    (void)seconds, (void)path;
    REQUIRE(train_epoch_accuracy(r) == 1);
}

static const train_task measured = { .name = "measured",
                                     .measure = half,
                                     .step_done = step_done,
                                     .epoch_done = every_sample_counts,
                                     .tested = took,
                                     .latest = latest };

typedef struct outcome {
    double values[MOST_VALUES], averages[MOST_VALUES]; /* of all weights */
    double first_loss;
    int64_t updates; /* of the averages */
    int64_t count;
} outcome;

static int64_t read_weights(td_module *net, double *values)
{
    td_state_list list = td_module_state(net);
    int64_t count = 0;
    for (int i = 0; i < list.count; i++) {
        td_read(list.items[i].tensor, values + count, TD_F64);
        count += td_numel(list.items[i].tensor);
        REQUIRE(count <= MOST_VALUES);
    }
    td_state_list_free(&list);
    return count;
}

static td_loader *load(train_run *r)
{
    return train_loader(r, td_distributed_sampler(0));
}

static void run(train_recipe recipe, int64_t batch, outcome *result)
{
    td_dataset data = make_data();
    bool ranks = td_dist_is_initialized();
    train_run r = { .task = recipe.label_smoothing == 0.5 ? &measured : &task,
                    .app = "test",
                    .args = { .epochs = EPOCHS,
                              .batch_size = batch,
                              .compute.recompute = "none",
                              .recipe = recipe },
                    .train = &data,
                    .tests.data = &data };
    r.net = job_net(JOB_MLP, 1, TD_F32);
    if (ranks) {
        r.net = td_ddp(r.net, .bucket_cap_mb = 0.001);
    }
    r.optim = td_sgd(td_parameters(r.net), .lr = 0.1, .momentum = 0.9);
    REQUIRE_OK(train_loop(&r, load));
    *result = (outcome){ .first_loss = first_loss };
    result->count = read_weights(r.net, result->values);
    if (r.made.ema != NULL) {
        result->updates = td_ema_updates(r.made.ema);
        td_ema_swap(r.made.ema);
        read_weights(r.net, result->averages);
        td_ema_swap(r.made.ema);
    }
    td_ema_free(r.made.ema);
    td_loader_close(r.loader);
    td_optim_free(r.optim);
    td_module_free(r.net);
}

static double distance(const double *a, const double *b, int64_t count)
{
    double error = 0.0, size = 0.0;
    for (int64_t i = 0; i < count; i++) {
        error += (a[i] - b[i]) * (a[i] - b[i]);
        size += b[i] * b[i];
    }
    return sqrt(error / size);
}

static double weights_distance(const outcome *a, const outcome *b)
{
    return distance(a->values, b->values, b->count);
}

/* ---- alone ---- */

static void test_accumulated_batches_are_one(void **state)
{
    (void)state;
    static outcome large, pieces, small;
    run((train_recipe){ 0 }, 24, &large);
    run((train_recipe){ .accumulate = 4 }, 6, &pieces);
    run((train_recipe){ 0 }, 6, &small);
    assert_true(weights_distance(&pieces, &large) < 1e-5);
    assert_true(weights_distance(&small, &large) > 0.05);
    /* 14 batches, the last one of 5 samples: it counts by its samples. */
    run((train_recipe){ 0 }, 28, &large);
    run((train_recipe){ .accumulate = 4 }, 7, &pieces);
    assert_true(weights_distance(&pieces, &large) < 1e-5);
    /* 16 batches in groups of 5: the last group of an epoch has one, and counts as much as others.
     */
    run((train_recipe){ .accumulate = 5, .ema_decay = 0.5 }, 6, &pieces);
    assert_int_equal(pieces.updates, EPOCHS * 4);
}

static void test_clipping(void **state)
{
    (void)state;
    static outcome plain, wide, tight, start, tight_pieces;
    run((train_recipe){ 0 }, 24, &plain);
    run((train_recipe){ .clip_grad_norm = 1e6 }, 24, &wide);
    run((train_recipe){ .clip_grad_norm = 1e-3 }, 24, &tight);
    assert_memory_equal(plain.values, wide.values, sizeof plain.values);
    td_module *net = job_net(JOB_MLP, 1, TD_F32);
    start.count = read_weights(net, start.values);
    td_module_free(net);
    /* 8 steps of at most lr * norm / (1 - momentum). */
    double moved = 0.0;
    for (int64_t i = 0; i < start.count; i++) {
        moved += (tight.values[i] - start.values[i]) * (tight.values[i] - start.values[i]);
    }
    assert_true(sqrt(moved) > 1e-4 && sqrt(moved) < 8 * 0.1 * 1e-3 / (1 - 0.9));
    assert_true(weights_distance(&plain, &start) > 0.05);
    /* What is clipped is the whole group's gradient. */
    run((train_recipe){ .clip_grad_norm = 1e-3, .accumulate = 4 }, 6, &tight_pieces);
    for (int64_t i = 0; i < start.count; i++) {
        tight.values[i] -= start.values[i];
        tight_pieces.values[i] -= start.values[i];
    }
    assert_true(weights_distance(&tight_pieces, &tight) < 1e-2);
}

/* The first loss by hand, from the same weights. */
static double smoothed_loss(double smoothing, int64_t batch)
{
    td_dataset data = make_data();
    td_module *net = job_net(JOB_MLP, 1, TD_F64);
    td_tensor *x = td_new(TD_SHAPE(batch, FEATURES), TD_F64, TD_CPU);
    td_tensor *y = td_new(TD_SHAPE(batch), TD_I64, TD_CPU);
    int64_t index[SAMPLES] = { 0 };
    for (int64_t i = 0; i < batch; i++) {
        index[i] = i;
    }
    assert_int_equal(fetch(&data, index, batch, 0, x, y), TD_OK);
    double logits[SAMPLES * 5], sum = 0.0;
    td_step_begin();
    td_read(td_forward(net, x), logits, TD_F64);
    td_step_end();
    for (int64_t i = 0; i < batch; i++) {
        double all = 0.0, mean = 0.0;
        for (int k = 0; k < 5; k++) {
            all += exp(logits[i * 5 + k]);
        }
        for (int k = 0; k < 5; k++) {
            mean += (log(all) - logits[i * 5 + k]) / 5;
        }
        sum += (1 - smoothing) * (log(all) - logits[i * 5 + i % 5]) + smoothing * mean;
    }
    td_free(x);
    td_free(y);
    td_module_free(net);
    return sum / (double)batch;
}

static void test_label_smoothing(void **state)
{
    (void)state;
    static outcome plain, smooth;
    run((train_recipe){ 0 }, 24, &plain);
    run((train_recipe){ .label_smoothing = 0.3 }, 24, &smooth);
    assert_true(fabs(plain.first_loss - smoothed_loss(0.0, 24)) < 1e-6);
    assert_true(fabs(smooth.first_loss - smoothed_loss(0.3, 24)) < 1e-6);
    assert_true(fabs(smooth.first_loss - plain.first_loss) > 1e-4);
    assert_true(weights_distance(&smooth, &plain) > 1e-3);
}

static void test_a_measure(void **state)
{
    (void)state;
    static outcome plain, halves;
    run((train_recipe){ 0 }, 24, &plain);
    run((train_recipe){ .label_smoothing = 0.5 }, 24, &halves);
    assert_int_equal(tested, 1);
    assert_true(halves.first_loss == plain.first_loss / 2);
}

/* Averaging changes nothing in training; the averages lag behind. */
static void test_averages(void **state)
{
    (void)state;
    static outcome plain, averaged;
    run((train_recipe){ 0 }, 24, &plain);
    run((train_recipe){ .ema_decay = 0.999 }, 24, &averaged);
    assert_memory_equal(plain.values, averaged.values, sizeof plain.values);
    assert_int_equal(averaged.updates, EPOCHS * SAMPLES / 24);
    double far = distance(averaged.averages, averaged.values, averaged.count);
    assert_true(far > 1e-3 && far < 1.0);
}

/* ---- two ranks ---- */

typedef struct shared {
    train_recipe recipe;
    int64_t batch;
    outcome result;
} shared;

static int run_rank(int rank, int size, void *arg)
{
    shared *s = arg;
    static outcome own;
    procs_init(rank, size, 20.0);
    run(s->recipe, s->batch, &own);
    uint64_t hash = 0;
    for (int64_t i = 0; i < own.count; i++) {
        uint64_t bits;
        memcpy(&bits, &own.values[i], sizeof bits);
        hash = hash * 31 + bits;
        memcpy(&bits, &own.averages[i], sizeof bits);
        hash = hash * 31 + bits;
    }
    REQUIRE(job_all_same(hash));
    if (rank == 0) {
        s->result = own;
    }
    td_dist_destroy();
    return 0;
}

/* Two ranks with batches of 6, two of which make a step, are one process with batches of 24. */
static void check_ranks(train_recipe recipe, double tolerance)
{
    static outcome alone;
    shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(s != MAP_FAILED);
    recipe.ema_decay = 0.9;
    s->recipe = recipe;
    s->recipe.accumulate = 2;
    s->batch = 6;
    procs_succeed(2, 60.0, run_rank, s);
    run(recipe, 24, &alone);
    assert_true(weights_distance(&s->result, &alone) < tolerance);
    assert_true(distance(s->result.averages, alone.averages, alone.count) < tolerance);
    assert_int_equal(s->result.updates, alone.updates);
    munmap(s, sizeof *s);
}

static void test_ranks(void **state)
{
    (void)state;
    check_ranks((train_recipe){ 0 }, 1e-5);
    check_ranks((train_recipe){ .label_smoothing = 0.1 }, 1e-5);
    /* Clipped is the mean over ranks: otherwise the sum of clipped gradients would be another. */
    check_ranks((train_recipe){ .clip_grad_norm = 0.05 }, 1e-5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accumulated_batches_are_one),
        cmocka_unit_test(test_clipping),
        cmocka_unit_test(test_label_smoothing),
        cmocka_unit_test(test_a_measure),
        cmocka_unit_test(test_averages),
        cmocka_unit_test(test_ranks),
    };
    return cmocka_run_group_tests_name("the training loop's recipe", tests, NULL, NULL);
}
