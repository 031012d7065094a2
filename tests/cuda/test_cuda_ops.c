/* Every operation on a GPU, real or emulated: values and gradients of the table of operations, in
 * f32, against the CPU's in f64; and everything twice, with the same bits. The shapes of
 * tests/gpu/extra.def, too. */
#include "tensor/kernels/kernels.h"
#include "tests/help/expect_fatal.h"
#include "tests/cuda/needs_gpu.h"
#include "tests/gpu/extra_cases.h"
#include "autograd/losses.h"
#include "autograd/ops/shapes.h"
#include "autograd/tape.h"
#include "tensor/extend.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const double BOUND = 1e-5; /* relative L2 */

static ops_outcome run(const ops_case *c, td_dtype dtype, td_device device)
{
    td_tensor *inputs[OPS_MAX_INPUTS];
    int count = ops_case_inputs_on(c, dtype, device, inputs);
    ops_outcome o = ops_case_outcome(c, inputs, count, false);
    assert_true(td_same_device(o.device, device));
    ops_case_free(inputs, count);
    return o;
}

static const char *name_of(int k)
{
    return k == 0 ? "the value" : "a gradient";
}

static void test_case(void **state)
{
    const ops_case *c = *state;
    NEEDS_GPU(0);
    const td_device device = TD_CUDA;
    ops_outcome wide = run(c, TD_F64, TD_CPU), here = run(c, TD_F32, device);
    ops_outcome again = run(c, TD_F32, device);
    for (int k = 0; k <= OPS_MAX_INPUTS; k++) {
        int64_t n = wide.count[k];
        assert_int_equal(here.count[k], n);
        double error = relative_l2(here.values[k], wide.values[k], n);
        if (!(error <= BOUND)) {
            fail_msg("%s: %s (%d) is off by %.2e, more than %.0e", c->name, name_of(k), k, error,
                     BOUND);
        }
        if (n > 0 && memcmp(here.values[k], again.values[k], (size_t)n * sizeof(double)) != 0) {
            fail_msg("%s: %s (%d) has other bits the second time", c->name, name_of(k), k);
        }
    }
    ops_outcome_free(&wide);
    ops_outcome_free(&here);
    ops_outcome_free(&again);
}

static void test_operands_must_be_together(void **state)
{
    NEEDS_GPU(0);
    const td_device device = TD_CUDA;
    td_tensor *a = td_zeros(TD_SHAPE(2), TD_F32, TD_CPU),
              *b = td_zeros(TD_SHAPE(2), TD_F32, device);
    td_step_begin();
    expect_fatal("add: f32[2] cpu:0 and f32[2] cuda:0 are on different devices", td_add(a, b));
    td_step_abandon();
    td_free(a);
    td_free(b);
}

/* A part of a larger tensor, which begins `offset` elements behind a multiple of 16 bytes; small
 * whole numbers. */
static td_tensor *part_of(td_tensor **whole, int64_t offset, td_shape shape, const int64_t *stride,
                          td_device device)
{
    enum { COUNT = 400 };
    float values[COUNT];
    for (int i = 0; i < COUNT; i++) {
        values[i] = (float)(i * 7 % 11 - 5);
    }
    *whole = td_from(values, TD_SHAPE(COUNT), TD_F32, device);
    return td_slice_of_storage(*whole, offset, shape, stride);
}

enum { BATCHED = 2 * 3 * 4 * 5 };

/* c + a b + bias, where `first` of c, a and bias are at odd places, or only their later batches. */
static void multiply(td_device device, int64_t first, float values[BATCHED])
{
    td_tensor *whole[4];
    td_tensor *a =
        part_of(&whole[0], first, TD_SHAPE(2, 3, 4, 6), (const int64_t[]){ 75, 24, 6, 1 }, device);
    td_tensor *b =
        part_of(&whole[1], 0, TD_SHAPE(2, 3, 6, 5), (const int64_t[]){ 93, 30, 5, 1 }, device);
    td_tensor *c =
        part_of(&whole[2], first, TD_SHAPE(2, 3, 4, 5), (const int64_t[]){ 61, 20, 5, 1 }, device);
    td_tensor *bias = part_of(&whole[3], first, TD_SHAPE(5), (const int64_t[]){ 1 }, device);
    td_kernels_of(device)->matmul(c, a, b, bias, true, (td_math){ .precision = TD_PRECISION_FP32 });
    td_read(c, values, TD_F32);
    td_tensor *all[] = { a, b, c, bias, whole[0], whole[1], whole[2], whole[3] };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        td_free(all[i]);
    }
}

static void test_products_of_unaligned_memory(void **state)
{
    NEEDS_GPU(0);
    const td_device device = TD_CUDA;
    for (int64_t first = 0; first < 4; first++) {
        float expected[BATCHED], found[BATCHED];
        multiply(TD_CPU, first, expected);
        multiply(device, first, found);
        assert_memory_equal(found, expected, sizeof found);
    }
}

/* Nobody waits for the check of labels: the loss is NaN, and reading it is fatal. */
static void test_a_wrong_label_is_reported_when_a_value_is_read(void **state)
{
    NEEDS_GPU(0);
    const td_device device = TD_CUDA;
    td_tensor *x = td_zeros(TD_SHAPE(2, 3), TD_F32, device);
    td_tensor *right = td_from((int64_t[]){ 0, 2 }, TD_SHAPE(2), TD_I64, device);
    td_tensor *wrong = td_from((int64_t[]){ 0, 3 }, TD_SHAPE(2), TD_I64, device);
    td_step_begin();
    td_tensor *good = td_cross_entropy(x, right), *bad = td_cross_entropy(x, wrong);
    expect_fatal("cross_entropy: label 3, number 1 of its tensor, is out of range: it must be 0 to "
                 "2 (found by the device, and reported when a value was read)",
                 (void)td_item(good));
    assert_true(isnan(td_item(bad)));
    assert_true(fabs(td_item(td_cross_entropy(x, right)) - log(3.0)) < 1e-6);
    td_step_end();
    td_free(x);
    td_free(right);
    td_free(wrong);
}

static td_tensor *look_up(int i, td_tensor *x, td_tensor *index, td_tensor *source)
{
    return i == 0   ? td_embedding(index, x)
           : i == 1 ? td_gather_dim(x, 0, index)
           : i == 2 ? td_index_select(x, 0, td_reshape(index, TD_SHAPE(4)))
                    : td_scatter_add(x, 0, index, source);
}

/* Kernels bear the index of 2^40: results are NaN, the gradient leaves it out. */
static void check_wrong_index(int i, td_tensor *x, td_tensor *far, td_tensor *ones,
                              const char *message)
{
    double read[8];
    td_step_begin();
    td_tensor *y = look_up(i, x, far, ones);
    td_backward(td_sum(y));
    expect_fatal(message, (void)td_item(td_sum(x)));
    td_read(y, read, TD_F64);
    assert_true(i == 3 ? read[2] == 2.0 : isnan(read[i == 1 ? 1 : 2]) != 0);
    td_read(td_grad(x), read, TD_F64);
    assert_true(isfinite(read[0] + read[1] + read[2] + read[3] + read[4] + read[5]));
    td_step_end();
}

/* Look-ups do not wait either. */
static void test_a_wrong_index_is_borne_and_reported(void **state)
{
    NEEDS_GPU(0);
    static const char *const messages[] = { ("embedding: index 1099511627776, number 1 of its "
                                             "tensor, is out of range: it must be 0 to 2"),
                                            "gather_dim: index 1099511627776, number 1",
                                            "index_select: index 1099511627776, number 1",
                                            "scatter_add: index 1099511627776, number 1" };
    td_tensor *x = td_full(TD_SHAPE(3, 2), 1.0, TD_F32, TD_CUDA);
    td_tensor *ones = td_full(TD_SHAPE(2, 2), 1.0, TD_F32, TD_CUDA);
    const int64_t indices[] = { 1, (int64_t)1 << 40, -7, 0 };
    td_tensor *far = td_from(indices, TD_SHAPE(2, 2), TD_I64, TD_CUDA);
    td_requires_grad(x, true);
    for (int i = 0; i < 4; i++) {
        check_wrong_index(i, x, far, ones, messages[i]);
    }
    td_free(x);
    td_free(ones);
    td_free(far);
}

int main(void)
{
    struct CMUnitTest others[EXTRAS + 4] = {
        cmocka_unit_test(test_operands_must_be_together),
        cmocka_unit_test(test_products_of_unaligned_memory),
        cmocka_unit_test(test_a_wrong_label_is_reported_when_a_value_is_read),
        cmocka_unit_test(test_a_wrong_index_is_borne_and_reported),
    };
    for (int i = 0; i < EXTRAS; i++) {
        others[4 + i] = (struct CMUnitTest){ extras[i].name, test_case, NULL, NULL,
                                             (void *)(uintptr_t)&extras[i] };
    }
    return ops_cases_run("cuda_ops", others, sizeof others / sizeof *others, test_case);
}
