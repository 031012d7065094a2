/* Captured steps on GPUs, real or emulated: what is recorded does not run, and runs when it is
 * launched; training in captured steps equals eager training, to the bit; what cannot be captured
 * is named, and done eagerly. */
#include "tensor/backend.h"
#include "autograd/losses.h"
#include "autograd/ops/shapes.h"
#include "nn/extra/inspect.h"
#include "tensor/extend.h"
#include "tensor/storage.h"
#include "tests/tensor/captured_job.h"
#include "tests/help/expect_fatal.h"
#include "tests/cuda/needs_gpu.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 24 };

static const captured_kind sgd_kind = { .device = { .type = TD_DEVICE_CUDA },
                                        .optim = CAPTURED_SGD };
static const captured_kind pictures_kind = { .device = { .type = TD_DEVICE_CUDA },
                                             .optim = CAPTURED_SGD,
                                             .pictures = true };

static void expect_why(const td_captured *captured, const char *part)
{
    const char *why = td_captured_now(captured).why;
    if (strstr(why, part) == NULL) {
        fail_msg("'%s' is not in '%s'", part, why);
    }
}

/* ---- graphs ---- */

static void test_recorded_work_runs_when_launched(void **state)
{
    NEEDS_GPU(0);
    const td_graphs *graphs = td_backend_of(TD_CUDA)->graphs;
    td_tensor *x = td_zeros(TD_SHAPE(5), TD_F32, TD_CUDA);
    void *graph;
    assert_int_equal(graphs->begin(TD_CUDA), TD_OK);
    td_fill_(x, 3.0);
    td_kernels_of(TD_CUDA)->unary(TD_UNARY_add_scalar, x, x, 4.0, 0.0);
    assert_int_equal(graphs->end(TD_CUDA, &graph), TD_OK);
    assert_true(td_get(x, (int64_t[]){ 4 }) == 0);
    for (int i = 0; i < 2; i++) {
        td_fill_(x, 9.0);
        assert_int_equal(graphs->launch(TD_CUDA, graph), TD_OK);
        assert_true(td_get(x, (int64_t[]){ 4 }) == 7);
    }
    graphs->free(TD_CUDA, graph);
    td_free(x);
}

static void test_a_recording_leaves_the_host_alone(void **state)
{
    NEEDS_GPU(0);
    const td_backend *backend = td_backend_of(TD_CUDA);
    void *graph = NULL;
    assert_int_equal(backend->graphs->begin(TD_CUDA), TD_OK);
    expect_fatal("capturing", backend->wait(TD_CUDA)); /* as CUDA words it */
    assert_int_equal(backend->graphs->end(TD_CUDA, &graph), TD_E_DEVICE);
    assert_null(graph);
    backend->wait(TD_CUDA); /* all is as before */
}

/* A replay leaves alone what was given back while it was recorded: that is another's by then. */
static void test_memory_given_back_in_a_recording(void **state)
{
    NEEDS_GPU(0);
    const td_graphs *graphs = td_backend_of(TD_CUDA)->graphs;
    td_tensor *x = td_zeros(TD_SHAPE(1000), TD_F32, TD_CUDA);
    void *graph;
    assert_int_equal(graphs->begin(TD_CUDA), TD_OK);
    td_free(x);
    assert_int_equal(graphs->end(TD_CUDA, &graph), TD_OK);
    x = td_full(TD_SHAPE(1000), 3.0, TD_F32, TD_CUDA);
    assert_int_equal(graphs->launch(TD_CUDA, graph), TD_OK);
    assert_true(td_get(x, (int64_t[]){ 999 }) == 3);
    graphs->free(TD_CUDA, graph);
    td_free(x);
}

/* Step 4 is recorded. */
static td_status fails_once_recorded(void *user, td_tensor *const *inputs, td_tensor **results)
{
    (void)inputs, (void)results;
    int *steps = user;
    td_fill_(td_step_new(TD_SHAPE(100), TD_F32, TD_ROW_MAJOR, TD_CUDA, TD_HERE), 1.0);
    TD_REQUIRE(++*steps != 4, TD_HERE, "the recorded step is a mistake");
    return TD_OK;
}

static td_captured *open_failing(int *steps)
{
    td_captured *captured = td_captured_new(
        &(td_captured_options){ .step = fails_once_recorded, .user = steps, .device = TD_CUDA });
    assert_non_null(captured);
    return captured;
}

static void test_an_abandoned_recording_ends(void **state)
{
    NEEDS_GPU(0);
    int steps = 0;
    td_captured *captured = open_failing(&steps);
    for (int i = 0; i < 6; i++) {
        if (i == 3) {
            expect_fatal("the recorded step is a mistake", td_captured_run(captured, NULL, 0));
            td_step_abandon();
            td_backend_of(TD_CUDA)->wait(TD_CUDA); /* which no recording allows */
        } else {
            assert_int_equal(td_captured_run(captured, NULL, 0), TD_OK);
            assert_int_equal(td_captured_next(captured, NULL), TD_OK);
        }
    }
    assert_int_equal(td_captured_now(captured).recorded, 1);
    assert_int_equal(td_captured_now(captured).replayed, 1);
    assert_int_equal(steps, 5);
    td_captured_free(captured);
}

static void test_freed_while_it_records(void **state)
{
    NEEDS_GPU(0);
    int steps = 0;
    td_captured *captured = open_failing(&steps);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(td_captured_run(captured, NULL, 0), TD_OK);
    }
    expect_fatal("the recorded step is a mistake", td_captured_run(captured, NULL, 0));
    td_captured_free(captured); /* before the step is abandoned, and with unread results */
    td_step_abandon();
    td_backend_of(TD_CUDA)->wait(TD_CUDA);
}

/* ---- training ---- */

/* The same steps eagerly and captured, a smaller batch every so many; results are read late. */
static td_captured_stats compare(captured_kind kind, int tail_every)
{
    captured_job plain, job;
    captured_job_open(&plain, kind);
    captured_job_open(&job, kind);
    td_captured *captured = captured_job_capture(&job);
    double here[STEPS][2], there[STEPS][2];
    int read = 0;
    for (int i = 0; i < STEPS; i++) {
        bool tail = tail_every > 0 && i % tail_every == tail_every - 1;
        captured_job_step(&plain, tail, here[i]);
        assert_int_equal(captured_job_captured_step(&job, captured, tail), TD_OK);
        if (td_captured_full(captured)) {
            assert_int_equal(td_captured_next(captured, there[read++]), TD_OK);
        }
        if (i == STEPS / 2) { /* looking at it changes nothing */
            assert_true(captured_job_hash(&plain) == captured_job_hash(&job));
        }
    }
    while (td_captured_waiting(captured) > 0) {
        assert_int_equal(td_captured_next(captured, there[read++]), TD_OK);
    }
    assert_int_equal(read, STEPS);
    assert_memory_equal(here, there, sizeof here);
    assert_true(here[STEPS - 1][0] != here[0][0]);
    assert_true(captured_job_hash(&plain) == captured_job_hash(&job));
    td_captured_stats figures = td_captured_now(captured);
    if (kind.scaler) { /* at first, and when it has grown */
        td_scaler_state now = td_scaler_now(job.scaler);
        assert_in_range(now.skipped, 5, STEPS - 5);
    }
    assert_string_equal(figures.why, "");
    assert_int_equal(figures.eager + figures.recorded + figures.replayed, STEPS);
    td_captured_free(captured);
    captured_job_close(&job);
    captured_job_close(&plain);
    return figures;
}

static void test_captured_is_eager(void **state)
{
    NEEDS_GPU(0);
    const captured_kind kinds[] = {
        { .device = TD_CUDA, .optim = CAPTURED_SGD, .pictures = true, .ema = true },
        { .device = TD_CUDA, .optim = CAPTURED_SGD }, /* with Dropout, as all without pictures */
        { .device = TD_CUDA, .optim = CAPTURED_ADAM, .ema = true },
        { .device = TD_CUDA, .optim = CAPTURED_MUON, .pictures = true },
        { .device = TD_CUDA, .optim = CAPTURED_SGD, .pictures = true, .clip = 0.05 },
        { .device = TD_CUDA, .optim = CAPTURED_SGD, .clip = 0.02, .ema = true },
    };
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        td_captured_stats figures = compare(kinds[k], 0);
        assert_int_equal(figures.eager, 3);
        assert_int_equal(figures.recorded, 1);
        assert_int_equal(figures.replayed, STEPS - 4);
    }
}

/* A smaller last batch is done eagerly until it has been seen often enough, and then has a graph of
 * its own. */
static void test_other_shapes(void **state)
{
    NEEDS_GPU(0);
    td_captured_stats figures = compare(sgd_kind, 10);
    assert_int_equal(figures.eager, 3 + 2);
    assert_int_equal(figures.recorded, 1);
    figures = compare(pictures_kind, 4);
    assert_int_equal(figures.eager, 3 + 3);
    assert_int_equal(figures.recorded, 2);
    assert_int_equal(figures.replayed, STEPS - 8);
    /* In pictures of one pixel most taps of a filter meet padding alone. */
    captured_kind maps_kind = pictures_kind;
    maps_kind.maps = true;
    figures = compare(maps_kind, 2);
    assert_int_equal(figures.recorded, 2);
    assert_int_equal(figures.replayed, STEPS - 8);
}

/* The first, the last and those between are recorded for themselves, and so are smaller batches. */
static void test_accumulated_gradients(void **state)
{
    NEEDS_GPU(0);
    const captured_kind kinds[] = {
        { .device = TD_CUDA, .optim = CAPTURED_SGD, .pictures = true, .accumulate = 4 },
        { .device = TD_CUDA, .optim = CAPTURED_ADAM, .ema = true, .accumulate = 4 },
        { .device = TD_CUDA, .optim = CAPTURED_SGD, .accumulate = 4, .clip = 0.02 },
    };
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        td_captured_stats figures = compare(kinds[k], 0);
        assert_int_equal(figures.eager, 3 * 3);
        assert_int_equal(figures.recorded, 3);
        assert_int_equal(figures.replayed, STEPS - 12);
        figures = compare(kinds[k], 4); /* each last one */
        assert_int_equal(figures.replayed, STEPS - 12);
        figures = compare(kinds[k], 3);
        assert_true(figures.replayed > 0);
    }
}

/* The GPU cuts the batches out of pictures that lie there, as a part of the step. */
static void test_a_loaders_batches(void **state)
{
    NEEDS_GPU(0);
    captured_kind kind = { .device = TD_CUDA, .optim = CAPTURED_SGD, .loader = true };
    td_captured_stats figures = compare(kind, 5);
    assert_int_equal(figures.recorded, 2);
    assert_int_equal(figures.replayed, STEPS - 2 * 4);
    kind.accumulate = 2;
    figures = compare(kind, 5);
    assert_true(figures.replayed > 0);
}

/* Steps that update slow weights have a graph of their own; the decay changes from one to the next.
 */
static void test_lookahead(void **state)
{
    NEEDS_GPU(0);
    captured_kind kind = {
        .device = TD_CUDA, .optim = CAPTURED_SGD, .pictures = true, .lookahead = true
    };
    td_captured_stats figures = compare(kind, 0);
    assert_int_equal(figures.recorded, 2);
    assert_int_equal(figures.replayed, STEPS - 8);
}

/* f16 and a loss scaler: the device skips steps, and neither optimizer nor averages count
 * them. */
static void test_loss_scaling(void **state)
{
    NEEDS_GPU(0);
    const captured_kind kinds[] = {
        { .device = TD_CUDA, .optim = CAPTURED_SGD, .pictures = true, .scaler = true, .ema = true },
        { .device = TD_CUDA, .optim = CAPTURED_ADAM, .scaler = true, .ema = true, .clip = 1e-4 },
        { .device = TD_CUDA, .optim = CAPTURED_ADAM, .scaler = true, .accumulate = 2 },
    };
    td_math before = td_math_now();
    td_set_math((td_math){ .precision = TD_PRECISION_FP16 });
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        td_captured_stats figures = compare(kinds[k], 0);
        int forms = kinds[k].accumulate > 0 ? kinds[k].accumulate : 1;
        assert_int_equal(figures.recorded, forms);
        assert_int_equal(figures.replayed, STEPS - 4 * forms);
        figures = compare(kinds[k], 5); /* smaller batches are eager in between */
        assert_true(figures.replayed > 0);
    }
    td_set_math(before);
}

/* ---- look-ups ---- */

enum { WORDS = 11, WIDE = 4, TOKENS = 6, CLASSES = 3 };

typedef struct reading {
    td_module *net; /* words to classes */
    td_optim *optim;
    td_tensor *words, *labels, *order;
} reading;

/* Embedding, dropout, and each operation that looks indices up. */
static td_status read_and_learn(void *user, td_tensor *const *inputs, td_tensor **results)
{
    reading *r = user;
    td_tensor *x = td_forward(r->net, inputs[0]);
    td_tensor *wide = td_expand(td_reshape(inputs[2], TD_SHAPE(TOKENS, 1)), td_shape_of(x));
    x = td_gather_dim(td_index_select(x, 0, inputs[2]), 0, wide);
    x = td_add(x, td_scatter_add(x, 0, wide, td_sort(x, 0, true, NULL)));
    td_tensor *hot = td_cast(td_one_hot(inputs[2], TOKENS), TD_F32);
    results[0] = td_cross_entropy(td_matmul(hot, x), inputs[1], .ignore_index = -100);
    results[1] = td_sum(td_topk(x, 2, 1, NULL));
    td_zero_grad(r->optim);
    td_backward(td_add(results[0], td_mul_scalar(results[1], 0.01)));
    td_optim_step(r->optim);
    return TD_OK;
}

static void open_reading(reading *r)
{
    td_manual_seed(5);
    r->net = td_nn_sequential(td_nn_embedding(WORDS, WIDE), td_nn_dropout(0.25),
                              td_nn_linear(WIDE, CLASSES));
    assert_int_equal(td_module_to(r->net, TD_CUDA, TD_F32), TD_OK);
    r->optim = td_adam(td_parameters(r->net));
    r->words = td_new(TD_SHAPE(TOKENS), TD_I64, TD_CUDA);
    r->labels = td_new(TD_SHAPE(TOKENS), TD_I64, TD_CUDA);
    r->order = td_new(TD_SHAPE(TOKENS), TD_I64, TD_CUDA);
}

static void close_reading(reading *r)
{
    td_optim_free(r->optim);
    td_module_free(r->net);
    td_free(r->words);
    td_free(r->labels);
    td_free(r->order);
}

/* One label of each batch is ignored. */
static void next_text(reading *r, int step, int64_t wrong)
{
    int64_t words[TOKENS], labels[TOKENS], order[TOKENS];
    for (int i = 0; i < TOKENS; i++) {
        words[i] = (3 * i + step) % WORDS;
        labels[i] = i == step % TOKENS ? -100 : words[i] % CLASSES;
        order[i] = (5 * i + step) % TOKENS;
    }
    words[2] = wrong != 0 ? wrong : words[2];
    td_write(r->words, words, TD_I64);
    td_write(r->labels, labels, TD_I64);
    td_write(r->order, order, TD_I64);
}

static void test_look_ups_are_captured(void **state)
{
    NEEDS_GPU(0);
    reading plain, job;
    open_reading(&plain);
    open_reading(&job);
    td_captured *captured = td_captured_new(&(td_captured_options){
        .device = TD_CUDA, .step = read_and_learn, .user = &job, .results = 2 });
    td_tensor *here[] = { plain.words, plain.labels, plain.order }, *results[2];
    td_tensor *there[] = { job.words, job.labels, job.order };
    for (int i = 0; i < 10; i++) {
        double values[2], plainly[2];
        next_text(&plain, i, 0);
        next_text(&job, i, 0);
        td_step_begin();
        assert_int_equal(read_and_learn(&plain, here, results), TD_OK);
        plainly[0] = td_item(results[0]);
        plainly[1] = td_item(results[1]);
        td_step_end();
        assert_int_equal(td_captured_run(captured, there, 3), TD_OK);
        assert_int_equal(td_captured_next(captured, values), TD_OK);
        assert_memory_equal(values, plainly, sizeof values);
    }
    assert_string_equal(td_captured_now(captured).why, "");
    assert_int_equal(td_captured_now(captured).replayed, 10 - 4);
    next_text(&job, 10, WORDS);
    assert_int_equal(td_captured_run(captured, there, 3), TD_OK);
    expect_fatal("embedding: index 11, number 2 of its tensor, is out of range: it must be 0 to 10",
                 td_captured_next(captured, (double[2]){ 0 }));
    td_captured_free(captured);
    close_reading(&job);
    close_reading(&plain);
}

/* ---- what cannot be captured ---- */

typedef struct refusal {
    captured_job plain, job;
    td_captured *captured;
} refusal;

static void begin_refusal(refusal *r, captured_kind kind)
{
    captured_job_open(&r->plain, kind);
    captured_job_open(&r->job, kind);
    r->captured = captured_job_capture(&r->job);
}

static void refusal_steps(refusal *r, int count)
{
    for (int i = 0; i < count; i++) {
        double here[2], there[2];
        captured_job_step(&r->plain, false, here);
        assert_int_equal(captured_job_captured_step(&r->job, r->captured, false), TD_OK);
        assert_int_equal(td_captured_next(r->captured, there), TD_OK);
        assert_memory_equal(here, there, sizeof here);
    }
}

static void end_refusal(refusal *r)
{
    assert_true(captured_job_hash(&r->plain) == captured_job_hash(&r->job));
    td_captured_free(r->captured);
    captured_job_close(&r->job);
    captured_job_close(&r->plain);
}

static void test_reading_keeps_a_step_from_being_captured(void **state)
{
    NEEDS_GPU(0);
    refusal r;
    begin_refusal(&r, sgd_kind);
    r.job.reads = true;
    refusal_steps(&r, 6);
    expect_why(r.captured, "td_item reads a value");
    assert_int_equal(td_captured_now(r.captured).eager, 6);
    end_refusal(&r);
}

static td_status draw_by_value(void *user, td_tensor *const *inputs, td_tensor **results)
{
    (void)user;
    results[0] = td_sum(td_dropout(inputs[0], 0.5, ((td_philox_key){ 1, 2 }), 3));
    return TD_OK;
}

/* The recording would keep the counter for ever. */
static void test_numbers_by_value_are_noticed(void **state)
{
    NEEDS_GPU(0);
    td_captured *captured = td_captured_new(
        &(td_captured_options){ .device = TD_CUDA, .step = draw_by_value, .results = 1 });
    td_tensor *x = td_full(TD_SHAPE(40), 1.0, TD_F32, TD_CUDA);
    for (int i = 0; i < 5; i++) {
        double sum;
        assert_int_equal(td_captured_run(captured, &x, 1), TD_OK);
        assert_int_equal(td_captured_next(captured, &sum), TD_OK);
    }
    expect_why(captured, "dropout with a counter of its caller's");
    assert_int_equal(td_captured_now(captured).eager, 5);
    td_captured_free(captured);
    td_free(x);
}

/* Memory that differs while it is rehearsed only puts the recording off; in the recorded step
 * itself it is done, and not kept. */
static void test_other_memory_is_noticed(void **state)
{
    NEEDS_GPU(0);
    refusal r;
    begin_refusal(&r, sgd_kind);
    r.job.more_at = 2;
    r.job.more = 3000;
    refusal_steps(&r, 3);
    expect_why(r.captured, " of its memory is 11.8 KiB at ");
    refusal_steps(&r, 4);
    assert_int_equal(td_captured_now(r.captured).eager, 5);
    assert_int_equal(td_captured_now(r.captured).recorded, 1);
    assert_int_equal(td_captured_now(r.captured).replayed, 1);
    end_refusal(&r);

    begin_refusal(&r, sgd_kind);
    r.job.more_at = 3;
    r.job.more = 3000;
    refusal_steps(&r, 7);
    expect_why(r.captured, " of its memory is 11.8 KiB at ");
    assert_int_equal(td_captured_now(r.captured).recorded, 1);
    assert_int_equal(td_captured_now(r.captured).replayed, 0);
    end_refusal(&r);
}

static void test_a_wrong_label_is_told_later(void **state)
{
    NEEDS_GPU(0);
    for (int after = 0; after < 8; after += 7) { /* in a rehearsal, and in a replay */
        refusal r;
        double values[2];
        begin_refusal(&r, sgd_kind);
        refusal_steps(&r, after);
        r.job.bad_label = 7;
        assert_int_equal(captured_job_captured_step(&r.job, r.captured, false), TD_OK);
        expect_fatal("cross_entropy: label 7, number 2 of its tensor, is out of range: it must be "
                     "0 to 2",
                     td_captured_next(r.captured, values));
        td_captured_free(r.captured);
        captured_job_close(&r.job);
        captured_job_close(&r.plain);
    }
}

static void test_what_graphs_rely_on(void **state)
{
    NEEDS_GPU(0);
    refusal r;
    begin_refusal(&r, pictures_kind);
    refusal_steps(&r, 6);
    expect_fatal("td_captured_free them first", td_step_release_memory());
    td_tensor *weight = td_params_get(td_parameters(r.job.net), 0)->tensor;
    td_tensor *same = td_params_get(td_parameters(r.plain.net), 0)->tensor;
    td_requires_grad(weight, false);
    expect_fatal("other parameters are trained",
                 captured_job_captured_step(&r.job, r.captured, false));
    r.job.steps--;
    td_captured_forget(r.captured);
    td_step_release_memory();
    td_requires_grad(same, false);
    refusal_steps(&r, 6);
    assert_int_equal(td_captured_now(r.captured).recorded, 2);
    end_refusal(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recorded_work_runs_when_launched),
        cmocka_unit_test(test_a_recording_leaves_the_host_alone),
        cmocka_unit_test(test_memory_given_back_in_a_recording),
        cmocka_unit_test(test_an_abandoned_recording_ends),
        cmocka_unit_test(test_freed_while_it_records),
        cmocka_unit_test(test_captured_is_eager),
        cmocka_unit_test(test_other_shapes),
        cmocka_unit_test(test_accumulated_gradients),
        cmocka_unit_test(test_a_loaders_batches),
        cmocka_unit_test(test_lookahead),
        cmocka_unit_test(test_loss_scaling),
        cmocka_unit_test(test_look_ups_are_captured),
        cmocka_unit_test(test_reading_keeps_a_step_from_being_captured),
        cmocka_unit_test(test_numbers_by_value_are_noticed),
        cmocka_unit_test(test_other_memory_is_noticed),
        cmocka_unit_test(test_a_wrong_label_is_told_later),
        cmocka_unit_test(test_what_graphs_rely_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
