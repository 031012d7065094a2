/* 16-bit copies of parameters, which optimizers write: training reads the right numbers, whoever
 * has written the parameters. The reference makes all copies again in each step. */
#include "tests/tensor/captured_job.h"
#include "tests/cuda/needs_gpu.h"

#include "nn/params.h"
#include "tensor/extra/dlpack.h"
#include "tensor/extend.h"
#include "tensor/storage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void set_precision(td_precision precision)
{
    td_set_math((td_math){ .precision = precision });
}

/* All parameters lie in its storage. */
static td_tensor *first_parameter(const captured_job *job)
{
    return td_params_get(td_parameters(job->net), 0)->tensor;
}

/* Counts a write, so that copies are made again. */
static void forget_copies(const captured_job *job)
{
    td_begin_write(first_parameter(job), "test", TD_HERE);
}

static void halve_a_parameter(const captured_job *job)
{
    td_no_grad_begin();
    td_mul_scalar_(first_parameter(job), 0.5);
    td_no_grad_end();
}

/* The classes' scores in evaluation. */
static void evaluate(const captured_job *job,
                     float scores[CAPTURED_JOB_BATCH][CAPTURED_JOB_CLASSES])
{
    td_eval(job->net);
    td_step_begin();
    td_no_grad_begin();
    td_read(td_forward(job->net, job->x[0]), scores, TD_F32);
    td_no_grad_end();
    td_step_end();
    td_train(job->net);
}

static void expect_right_copies(const captured_job *job)
{
    float now[CAPTURED_JOB_BATCH][CAPTURED_JOB_CLASSES],
        again[CAPTURED_JOB_BATCH][CAPTURED_JOB_CLASSES];
    evaluate(job, now);
    forget_copies(job);
    evaluate(job, again);
    assert_memory_equal(now, again, sizeof now);
}

static void captured_step(captured_job *job, td_captured *captured)
{
    double values[2];
    assert_int_equal(captured_job_captured_step(job, captured, false), TD_OK);
    assert_int_equal(td_captured_next(captured, values), TD_OK);
}

/* Before the ninth step a parameter is written, but not by the optimizer. */
static uint64_t train(captured_kind kind, bool as_graph, bool reference)
{
    captured_job job;
    double values[2];
    captured_job_open(&job, kind);
    td_captured *captured = as_graph ? captured_job_capture(&job) : NULL;
    for (int i = 0; i < 24; i++) { /* every third step updates Lookahead's slow weights */
        if (i == 8) {
            halve_a_parameter(&job);
        }
        if (reference) {
            forget_copies(&job);
        }
        if (as_graph) {
            captured_step(&job, captured);
        } else {
            captured_job_step(&job, false, values);
        }
    }
    assert_true(!as_graph || td_captured_now(captured).replayed > 0);
    uint64_t hash = captured_job_hash(&job);
    td_captured_free(captured);
    captured_job_close(&job);
    return hash;
}

static void test_training(void **state)
{
    NEEDS_GPU(0);
    const captured_kind kinds[] = {
        { .device = TD_CUDA, .optim = CAPTURED_SGD, .pictures = true, .ema = true },
        { .device = TD_CUDA, .optim = CAPTURED_ADAM },
        { .device = TD_CUDA, .optim = CAPTURED_MUON, .pictures = true },
        { .device = TD_CUDA, .optim = CAPTURED_SGD, .lookahead = true },
    };
    td_math before = td_math_now();
    set_precision(TD_PRECISION_BF16);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        uint64_t expected = train(kinds[k], false, true);
        assert_int_equal(train(kinds[k], false, false), expected);
        assert_int_equal(train(kinds[k], true, false), expected);
    }
    td_set_math(before);
}

/* Graphs that were recorded before there were copies do not keep them. */
static void test_graphs_without_copies(void **state)
{
    NEEDS_GPU(0);
    captured_job job;
    td_math before = td_math_now();
    captured_job_open(&job, (captured_kind){ .device = TD_CUDA, .optim = CAPTURED_SGD });
    td_captured *captured = captured_job_capture(&job);
    for (int i = 0; i < 9; i++) {
        set_precision(TD_PRECISION_FP32);
        captured_step(&job, captured);
        set_precision(TD_PRECISION_BF16);
        if (i > 4) {
            expect_right_copies(&job);
        }
    }
    assert_int_equal(td_captured_now(captured).replayed, 5);
    td_captured_free(captured);
    captured_job_close(&job);
    td_set_math(before);
}

/* w[0] is no parameter, and so has no copy; w[1] is one. */
typedef struct first_use {
    td_tensor *w[2], *x, *y;
    int steps;
} first_use;

static td_status multiply(void *user, td_tensor *const *inputs, td_tensor **results)
{
    (void)inputs, (void)results;
    first_use *f = user;
    bool recorded = ++f->steps > 3; /* behind the warm-up */
    td_copy_(f->y, td_linear(f->x, f->w[recorded], NULL));
    return TD_OK;
}

/* A weight whose first product is recorded: memory for its copy cannot be had then (none of its
 * size has been given back), and the product converts it by itself. */
static void test_first_used_while_recording(void **state)
{
    NEEDS_GPU(0);
    enum { IN = 1000, OUT = 77 };
    td_math before = td_math_now();
    set_precision(TD_PRECISION_BF16);
    first_use f = { .w = { td_full(TD_SHAPE(OUT, IN), 0.25, TD_F32, TD_CUDA),
                           td_full(TD_SHAPE(OUT, IN), 0.5, TD_F32, TD_CUDA) },
                    .x = td_full(TD_SHAPE(3, IN), 1.0, TD_BF16, TD_CUDA),
                    .y = td_zeros(TD_SHAPE(3, OUT), TD_BF16, TD_CUDA) };
    td_requires_grad(f.w[1], true);
    td_captured *captured =
        td_captured_new(&(td_captured_options){ .step = multiply, .user = &f, .device = TD_CUDA });
    assert_non_null(captured);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(td_captured_run(captured, NULL, 0), TD_OK);
        assert_int_equal(td_captured_next(captured, NULL), TD_OK);
        assert_true(td_get(f.y, (int64_t[]){ 2, 1 }) == (i < 3 ? 250.0 : 500.0));
        td_fill_(f.y, 0.0);
    }
    assert_int_equal(td_captured_now(captured).recorded, 1);
    assert_int_equal(td_captured_now(captured).replayed, 2);
    td_captured_free(captured);
    td_tensor *all[] = { f.w[0], f.w[1], f.x, f.y };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        td_free(all[i]);
    }
    td_set_math(before);
}

/* Recorded steps read bf16, others fp16; and another library has the parameters. */
static void test_other_readers(void **state)
{
    NEEDS_GPU(0);
    td_math before = td_math_now();
    set_precision(TD_PRECISION_BF16);
    captured_kind kind = { .device = TD_CUDA, .optim = CAPTURED_SGD };
    captured_job job, plain;
    double values[2];
    captured_job_open(&job, kind);
    captured_job_open(&plain, kind);
    td_captured *captured = captured_job_capture(&job);
    td_tensor *theirs = NULL;
    for (int i = 0; i < 12; i++) {
        if (i == 9) {
            theirs = td_from_dlpack(td_to_dlpack(first_parameter(&job)));
            assert_non_null(theirs);
        }
        if (i > 9) {
            td_mul_scalar_(theirs, 0.5);
            halve_a_parameter(&plain);
        }
        captured_step(&job, captured);
        forget_copies(&plain);
        captured_job_step(&plain, false, values);
        if (i > 5 && i < 9) { /* there is a graph */
            set_precision(i % 2 == 0 ? TD_PRECISION_FP16 : TD_PRECISION_BF16);
            expect_right_copies(&job);
            set_precision(TD_PRECISION_BF16);
        }
    }
    assert_true(td_captured_now(captured).replayed > 0);
    assert_int_equal(captured_job_hash(&job), captured_job_hash(&plain));
    td_free(theirs);
    td_captured_free(captured);
    captured_job_close(&job);
    captured_job_close(&plain);
    td_set_math(before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_training),
        cmocka_unit_test(test_graphs_without_copies),
        cmocka_unit_test(test_first_used_while_recording),
        cmocka_unit_test(test_other_readers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
