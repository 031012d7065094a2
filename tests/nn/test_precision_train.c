/* Training in bf16: how far a step of ResNet-18 is from the same step in f64, that what is kept
 * between steps stays f32, and that the bits do not depend on threads. */
#include "tests/help/sanitized.h"
#include "tests/nn/train_job.h"

#include "nn/optim/optim_internal.h"
#include "tensor/extend.h"
#include "tensor/cpu/isa.h"
#include "nn/module.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static void use(td_precision precision)
{
    td_set_math((td_math){ .precision = precision });
}

/* All parameters in the order of registration, which does not depend on dtype or layout. */
static double *parameters(const train_job *job, int64_t *count)
{
    const td_params *params = td_parameters(job->net);
    *count = 0;
    for (int i = 0; i < td_params_count(params); i++) {
        *count += td_params_get(params, i)->count;
    }
    double *values = malloc((size_t)*count * sizeof *values), *next = values;
    assert_non_null(values);
    for (int i = 0; i < td_params_count(params); i++) {
        td_read(td_params_get(params, i)->tensor, next, TD_F64);
        next += td_params_get(params, i)->count;
    }
    return values;
}

/* What the first step changes. The caller frees. */
static double *first_update(td_precision precision, td_dtype dtype, int64_t batch, int64_t *count)
{
    use(precision);
    train_job job;
    train_job_open_as(&job, batch, 32, dtype);
    double *before = parameters(&job, count);
    double loss = train_job_step(&job);
    assert_true(loss > 1.0 && loss < 5.0);
    double *after = parameters(&job, count);
    for (int64_t i = 0; i < *count; i++) {
        after[i] -= before[i];
    }
    free(before);
    train_job_close(&job);
    use(TD_PRECISION_FP32);
    return after;
}

static double relative_l2(const double *a, const double *b, int64_t n)
{
    double error = 0.0, norm = 0.0;
    for (int64_t i = 0; i < n; i++) {
        error += (a[i] - b[i]) * (a[i] - b[i]);
        norm += b[i] * b[i];
    }
    return sqrt(error / norm);
}

/* Random labels and a network that has seen nothing: the worst case. PyTorch's autocast is 0.35 off
 * at batch 256, f32 2e-3 to 5e-3. */
static void test_first_update(void **state)
{
    (void)state;
    enum { BATCH = TD_SANITIZED ? 16 : 32 };
    int64_t n, m;
    double *exact = first_update(TD_PRECISION_FP32, TD_F64, BATCH, &n);
    static const struct {
        td_precision precision;
        double bound;
    } kinds[] = { { TD_PRECISION_FP32, 0.02 },
                  { TD_PRECISION_BF16X3, 0.1 },
                  { TD_PRECISION_BF16, 0.5 } };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        double *update = first_update(kinds[i].precision, TD_F32, BATCH, &m);
        assert_int_equal(n, m);
        double error = relative_l2(update, exact, n);
        print_message("%s: the update is off by %.2e\n", td_precision_name(kinds[i].precision),
                      error);
        assert_true(error <= kinds[i].bound);
        free(update);
    }
    free(exact);
}

static void test_what_is_kept_is_f32(void **state)
{
    (void)state;
    use(TD_PRECISION_BF16);
    train_job job;
    train_job_open(&job, 4, 32);
    td_step_begin();
    td_tensor *logits = td_forward(job.net, job.x);
    assert_int_equal(logits->dtype, TD_BF16);
    td_tensor *loss = td_cross_entropy(logits, job.y);
    assert_int_equal(loss->dtype, TD_F32);
    td_zero_grad(job.optim);
    td_backward(loss);
    td_optim_step(job.optim);
    td_step_end();
    td_state_list list = td_module_state(job.net);
    for (int i = 0; i < list.count; i++) {
        assert_int_equal(list.items[i].tensor->dtype, TD_F32);
        if (!list.items[i].buffer) {
            assert_int_equal(td_grad(list.items[i].tensor)->dtype, TD_F32);
        }
    }
    td_state_list_free(&list);
    assert_int_equal(job.optim->state[0]->dtype, TD_F32);
    /* Evaluation computes in the same precision. */
    td_eval(job.net);
    td_no_grad_begin();
    td_step_begin();
    assert_int_equal(td_forward(job.net, job.x)->dtype, TD_BF16);
    td_step_end();
    td_no_grad_end();
    train_job_close(&job);
    use(TD_PRECISION_FP32);
}

static uint64_t hash_after(int threads, int64_t batch, int steps)
{
    train_job job;
    assert_int_equal(td_set_threads(TD_CPU, threads), TD_OK);
    train_job_open(&job, batch, 32);
    for (int i = 0; i < steps; i++) {
        train_job_step(&job);
    }
    uint64_t hash = train_job_hash(&job);
    train_job_close(&job);
    return hash;
}

static void test_threads(void **state)
{
    (void)state;
    static const td_precision precisions[] = { TD_PRECISION_BF16, TD_PRECISION_BF16X3 };
    int steps = checks_part() ? 1 : 3;
    for (int p = 0; p < 2; p++) {
        use(precisions[p]);
        uint64_t one = hash_after(1, 13, steps);
        assert_true(checks_part() || one == hash_after(2, 13, steps));
        assert_true(one == hash_after(3, 13, steps));
        assert_true(one != hash_after(3, 12, steps));
    }
    use(TD_PRECISION_FP32);
    assert_int_equal(td_set_threads(TD_CPU, 0), TD_OK);
}

/* The logits of a forward at every instruction set are those of f64, up to bf16's rounding. */
static void test_instruction_sets(void **state)
{
    (void)state;
    train_job exact, mixed;
    train_job_open_as(&exact, 4, 32, TD_F64);
    train_job_open(&mixed, 4, 32);
    double want[40], got[40];
    td_step_begin();
    td_read(td_forward(exact.net, exact.x), want, TD_F64);
    td_step_end();
    use(TD_PRECISION_BF16);
    for (int isa = TD_ISA_PORTABLE; isa <= (int)td_isa_detect(); isa++) {
        td_isa_force((td_isa)isa);
        td_step_begin();
        td_read(td_forward(mixed.net, mixed.x), got, TD_F64);
        td_step_end();
        double error = relative_l2(got, want, 40);
        print_message("%s: logits are off by %.2e\n", td_isa_name((td_isa)isa), error);
        assert_true(error < 0.25); /* a batch of 4, statistics of 4 values in the last layer */
    }
    td_isa_force(td_isa_detect());
    use(TD_PRECISION_FP32);
    train_job_close(&exact);
    train_job_close(&mixed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_update),
        cmocka_unit_test(test_what_is_kept_is_f32),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_instruction_sets),
    };
    return cmocka_run_group_tests_name("training in bf16", tests, NULL, NULL);
}
