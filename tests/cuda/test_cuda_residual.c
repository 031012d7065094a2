/* What a GPT's layers ask of a GPU besides its products: norms that write the 16 bits that products
 * read, products that add a residual, and the residual's gradient in 16 bits. */
#include "autograd/fused.h"
#include "autograd/norms.h"
#include "autograd/ops/shapes.h"
#include "autograd/tape.h"
#include "nn/models/gpt.h"
#include "nn/optim/optim.h"
#include "tandem.h"
#include "tensor/extend.h"
#include "tests/cuda/needs_gpu.h"
#include "tests/tensor/reference.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static td_tensor *on_gpu(td_shape shape, td_dtype dtype, uint64_t seed)
{
    double *values = malloc((size_t)td_shape_numel(shape) * sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < td_shape_numel(shape); i++) {
        values[i] = ref_random(seed, i);
    }
    td_tensor *wide = td_from(values, shape, TD_F64, TD_CPU);
    td_tensor *t = td_new(shape, dtype, TD_CUDA);
    td_copy_(t, wide);
    td_free(wide);
    free(values);
    return t;
}

static void same_bits(const td_tensor *a, const td_tensor *b, const char *what)
{
    double *x = ref_values(a), *y = ref_values(b);
    assert_int_equal(a->dtype, b->dtype);
    for (int64_t i = 0; i < td_numel(a); i++) {
        if (memcmp(&x[i], &y[i], sizeof *x) != 0) {
            fail_msg("%s: element %lld is %g, not %g", what, (long long)i, x[i], y[i]);
        }
    }
    free(x);
    free(y);
}

static const td_dtype halves[] = { TD_BF16, TD_F16 };
enum { HALVES = 2 };

/* ---- a residual's gradient: 16 bits, and the sums of its columns ---- */

static void check_narrow(td_tensor *x, td_dtype dtype, bool sums, bool accumulate)
{
    const td_kernels *k = td_kernels_of(TD_CUDA);
    int64_t n = x->shape[1], rows = x->shape[0];
    td_tensor *y = td_new(TD_SHAPE(rows, n), dtype, TD_CUDA);
    td_tensor *want = td_new(TD_SHAPE(rows, n), dtype, TD_CUDA);
    td_tensor *sum = td_full(TD_SHAPE(n), 0.5, TD_F32, TD_CUDA);
    k->copy(want, x);
    k->narrow(y, sums ? sum : NULL, x, accumulate);
    same_bits(y, want, "narrow");
    double *values = ref_values(x), *columns = ref_zeros(n), *terms = ref_zeros(n);
    for (int64_t i = 0; i < rows * n; i++) {
        columns[i % n] += values[i];
        terms[i % n] += fabs(values[i]);
    }
    for (int64_t i = 0; i < n; i++) {
        columns[i] = sums ? columns[i] + (accumulate ? 0.5 : 0.0) : 0.5;
        terms[i] += 0.5;
    }
    ref_close(sum, columns, terms, ref_tolerance(TD_F32), "the sums of columns");
    free(values);
    free(columns);
    free(terms);
    td_free(y);
    td_free(want);
    td_free(sum);
}

static void test_narrow(void **state)
{
    NEEDS_GPU(0);
    const td_shape shapes[] = { TD_SHAPE(1, 1),    TD_SHAPE(5, 3),     TD_SHAPE(37, 1025),
                                TD_SHAPE(1025, 8), TD_SHAPE(3, 50257), TD_SHAPE(50257, 3),
                                TD_SHAPE(130, 68), TD_SHAPE(1100, 128) };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        td_tensor *x = on_gpu(shapes[i], TD_F32, i);
        for (int h = 0; h < HALVES; h++) {
            check_narrow(x, halves[h], true, h == 0);
        }
        check_narrow(x, TD_BF16, false, false);
        td_free(x);
    }
    td_tensor *one = on_gpu(TD_SHAPE(1), TD_F32, 1);
    td_tensor *all = td_slice_of_storage(one, 0, TD_SHAPE(9, 40), (const int64_t[]){ 0, 0 });
    check_narrow(all, TD_BF16, true, false); /* as a sum's gradient lies */
    td_free(all);
    td_free(one);
}

/* ---- norms ---- */

/* With y, and dy, in 16 bits: the bits of the norm in f32, y rounded, and dy widened. */
static void check_norm(td_shape shape, td_dtype dtype, bool rms)
{
    const td_kernels *k = td_kernels_of(TD_CUDA);
    int64_t d = shape.dim[shape.ndim - 1];
    td_shape rows = TD_SHAPE(td_shape_numel(shape) / d);
    td_tensor *x = on_gpu(shape, TD_F32, 1), *weight = on_gpu(TD_SHAPE(d), TD_F32, 2);
    td_tensor *bias = on_gpu(TD_SHAPE(d), TD_F32, 3), *dy[2] = { on_gpu(shape, dtype, 4) };
    td_tensor *y[2], *mean[2], *inv[2], *dx[2], *dw[2], *db[2];
    dy[1] = td_new(shape, TD_F32, TD_CUDA);
    k->copy(dy[1], dy[0]);
    for (int i = 0; i < 2; i++) {
        y[i] = td_new(shape, i == 0 ? dtype : TD_F32, TD_CUDA);
        mean[i] = td_zeros(rows, TD_F32, TD_CUDA);
        inv[i] = td_zeros(rows, TD_F32, TD_CUDA);
        dx[i] = td_full(shape, 0.5, TD_F32, TD_CUDA);
        dw[i] = td_full(TD_SHAPE(d), 0.5, TD_F32, TD_CUDA);
        db[i] = td_full(TD_SHAPE(d), 0.5, TD_F32, TD_CUDA);
        if (rms) {
            k->rms_norm(y[i], inv[i], x, weight, 1e-5);
            k->rms_norm_grad(dx[i], dw[i], dy[i], x, weight, inv[i], true, false);
        } else {
            k->layer_norm(y[i], mean[i], inv[i], x, weight, bias, 1e-5);
            k->layer_norm_grad(dx[i], dw[i], db[i], dy[i], x, weight, mean[i], inv[i], true, false,
                               true);
        }
    }
    td_tensor *rounded = td_new(shape, dtype, TD_CUDA);
    k->copy(rounded, y[1]);
    same_bits(y[0], rounded, "y");
    same_bits(inv[0], inv[1], "1 / std");
    same_bits(dx[0], dx[1], "dx");
    same_bits(dw[0], dw[1], "dweight");
    same_bits(db[0], db[1], "dbias");
    td_tensor **pairs[] = { dy, y, mean, inv, dx, dw, db };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        td_free(pairs[i][0]);
        td_free(pairs[i][1]);
    }
    td_free(x);
    td_free(weight);
    td_free(bias);
    td_free(rounded);
}

static void test_norms_write_16_bits(void **state)
{
    NEEDS_GPU(0);
    for (int i = 0; i < 2 * HALVES; i++) {
        check_norm(TD_SHAPE(1, 1), halves[i / 2], i % 2 == 1);
        check_norm(TD_SHAPE(5, 7, 33), halves[i / 2], i % 2 == 1);
        check_norm(TD_SHAPE(3, 1025), halves[i / 2], i % 2 == 1);
        check_norm(TD_SHAPE(1025, 6), halves[i / 2], i % 2 == 1);
        check_norm(TD_SHAPE(2, 50257), halves[i / 2], i % 2 == 1);
    }
}

/* Only where products take them, and only what is f32 where they take 16 bits. */
static void test_norms_for_products_follow_the_precision(void **state)
{
    NEEDS_GPU(0);
    td_tensor *x = on_gpu(TD_SHAPE(3, 8), TD_F32, 1), *wide = on_gpu(TD_SHAPE(3, 8), TD_F64, 1);
    td_set_math((td_math){ .precision = TD_PRECISION_BF16 });
    td_step_begin();
    assert_int_equal(td_layer_norm(x, .for_products = true)->dtype, TD_BF16);
    assert_int_equal(td_layer_norm(x)->dtype, TD_F32);
    assert_int_equal(td_layer_norm(wide, .for_products = true)->dtype, TD_F64);
    assert_int_equal(td_rms_norm_for(true, x, NULL, 0.0, TD_HERE)->dtype, TD_BF16);
    assert_int_equal(td_rms_norm(x, NULL, 0.0)->dtype, TD_F32);
    td_set_math((td_math){ .precision = TD_PRECISION_FP32 });
    assert_int_equal(td_layer_norm(x, .for_products = true)->dtype, TD_F32);
    td_step_end();
    td_free(x);
    td_free(wide);
}

/* ---- a product that adds a residual ---- */

enum { LINEAR = 4 }; /* x, weight, bias, residual */

/* The value, and the gradients of x, weight, bias, residual, of inputs that a GPU holds. */
static void run_linear(td_tensor *const *from, td_device device, bool fused,
                       double *values[LINEAR + 1])
{
    td_tensor *leaf[LINEAR];
    for (int i = 0; i < LINEAR; i++) {
        leaf[i] = from[i] == NULL
                      ? NULL
                      : td_new(td_shape_of(from[i]), fused ? from[i]->dtype : TD_F64, device);
        if (leaf[i] != NULL) {
            td_copy_(leaf[i], from[i]);
            td_requires_grad(leaf[i], true);
        }
    }
    td_step_begin();
    td_tensor *y = fused ? td_linear_add_at(leaf[0], leaf[1], leaf[2], leaf[3], TD_HERE)
                         : td_add(leaf[3], td_linear(leaf[0], leaf[1], leaf[2]));
    values[0] = ref_values(y);
    td_backward(td_sum(td_mul(y, y)));
    for (int i = 0; i < LINEAR; i++) {
        values[i + 1] = leaf[i] != NULL ? ref_values(td_grad(leaf[i])) : NULL;
    }
    td_step_end();
    for (int i = 0; i < LINEAR; i++) {
        td_free(leaf[i]);
    }
}

static void check_linear(int64_t rows, int64_t in, int64_t out, td_dtype dtype, bool bias)
{
    td_dtype wide = dtype == TD_F64 ? TD_F64 : TD_F32;
    td_tensor *from[LINEAR] = { on_gpu(TD_SHAPE(rows, in), dtype, 1),
                                on_gpu(TD_SHAPE(out, in), wide, 2),
                                bias ? on_gpu(TD_SHAPE(out), wide, 3) : NULL,
                                on_gpu(TD_SHAPE(rows, out), wide, 4) };
    double bound = dtype == TD_F64 ? 1e-12 : dtype == TD_F32 ? 1e-5 : dtype == TD_F16 ? 1e-3 : 8e-3;
    double *got[LINEAR + 1], *again[LINEAR + 1], *want[LINEAR + 1];
    run_linear(from, TD_CPU, false, want);
    run_linear(from, TD_CUDA, true, got);
    run_linear(from, TD_CUDA, true, again);
    const int64_t count[] = { rows * out, rows * in, out * in, out, rows * out };
    for (int i = 0; i <= LINEAR; i++) {
        double off = 0.0, size = 0.0;
        for (int64_t k = 0; want[i] != NULL && k < count[i]; k++) {
            off += (got[i][k] - want[i][k]) * (got[i][k] - want[i][k]);
            size += want[i][k] * want[i][k];
            assert_memory_equal(&got[i][k], &again[i][k], sizeof got[i][k]);
        }
        if (!(sqrt(off) <= bound * sqrt(size))) {
            fail_msg("%lld x %lld x %lld %s: %d is off by %g", (long long)rows, (long long)in,
                     (long long)out, td_dtype_name(dtype), i, sqrt(off / size));
        }
        free(got[i]);
        free(again[i]);
        free(want[i]);
    }
    for (int i = 0; i < LINEAR; i++) {
        td_free(from[i]);
    }
}

static void check_linears(void)
{
    const td_dtype dtypes[] = { TD_BF16, TD_F16, TD_F32, TD_F64 };
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        check_linear(1, 1, 1, dtypes[i], true);
        check_linear(7, 5, 3, dtypes[i], i % 2 == 0);
        check_linear(64, 24, 40, dtypes[i], true);
        check_linear(1025, 9, 4, dtypes[i], true);
        check_linear(3, 4, 1025, dtypes[i], i % 2 == 1);
    }
}

static void test_linear_add(void **state)
{
    NEEDS_GPU(0);
    check_linears();
    check_linear(2, 1, 50257, TD_BF16, true);
    check_linear(50257, 1, 2, TD_BF16, true);
    setenv("TANDEM_EMULATED_REFUSES", "bias", 1); /* only an emulated GPU listens */
    check_linears();
    unsetenv("TANDEM_EMULATED_REFUSES");
}

/* What the product cannot add is added as td_add does. */
static void test_linear_adds_what_is_of_another_kind(void **state)
{
    NEEDS_GPU(0);
    td_tensor *x = on_gpu(TD_SHAPE(6, 5), TD_F32, 1), *w = on_gpu(TD_SHAPE(4, 5), TD_F32, 2);
    td_tensor *row = on_gpu(TD_SHAPE(1, 4), TD_F32, 3), *half = on_gpu(TD_SHAPE(6, 4), TD_BF16, 4);
    td_tensor *turned = on_gpu(TD_SHAPE(4, 6), TD_F32, 5);
    td_step_begin();
    same_bits(td_linear_add_at(x, w, NULL, row, TD_HERE), td_add(row, td_linear(x, w, NULL)),
              "broadcast");
    same_bits(td_linear_add_at(x, w, NULL, half, TD_HERE), td_add(half, td_linear(x, w, NULL)),
              "16 bits");
    td_tensor *view = td_transpose(turned, 0, 1);
    same_bits(td_linear_add_at(x, w, NULL, view, TD_HERE),
              td_linear_add_at(x, w, NULL, td_contiguous(view), TD_HERE), "a view");
    td_step_end();
    td_tensor *all[] = { x, w, row, half, turned };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        td_free(all[i]);
    }
}

/* ---- a GPT ---- */

enum { BATCH = 3, TOKENS = 21, PARAMETERS = 64 };

/* The loss, and all gradients of two steps together; the same weights each time. */
static double gpt_step(td_device device, td_precision precision, bool rms,
                       double *gradients[PARAMETERS], int *count)
{
    td_manual_seed(7);
    td_module *gpt = td_gpt(.layers = 2, .heads = 2, .width = 24, .context = TOKENS,
                            .vocabulary = 65, .rms_norm = rms, .swiglu = rms, .rope = rms);
    assert_non_null(gpt);
    assert_int_equal(td_module_to(gpt, device, TD_F32), TD_OK);
    td_set_math((td_math){ .precision = precision });
    int64_t tokens[BATCH * TOKENS];
    for (int i = 0; i < BATCH * TOKENS; i++) {
        tokens[i] = i * 31 % 65;
    }
    td_tensor *x = td_from(tokens, TD_SHAPE(BATCH, TOKENS), TD_I64, device);
    double value = 0.0;
    for (int i = 0; i < 2; i++) {
        td_step_begin();
        td_tensor *loss = td_forward2(gpt, x, x);
        value = td_item(loss);
        td_backward(loss);
        td_step_end();
    }
    td_params *params = td_parameters(gpt);
    *count = td_params_count(params);
    assert_true(*count <= PARAMETERS);
    for (int i = 0; i < *count; i++) {
        gradients[i] = ref_values(td_grad(td_params_get(params, i)->tensor));
    }
    td_set_math((td_math){ .precision = TD_PRECISION_FP32 });
    td_free(x);
    td_module_free(gpt);
    return value;
}

static void check_gpt(td_precision precision, bool rms, double bound)
{
    double *want[PARAMETERS], *got[PARAMETERS], *again[PARAMETERS];
    int count;
    double expected = gpt_step(TD_CPU, TD_PRECISION_FP32, rms, want, &count);
    double found = gpt_step(TD_CUDA, precision, rms, got, &count);
    assert_true(found == gpt_step(TD_CUDA, precision, rms, again, &count));
    assert_true(fabs(found - expected) <= bound * expected);
    td_module *shapes = td_gpt(.layers = 2, .heads = 2, .width = 24, .context = TOKENS,
                               .vocabulary = 65, .rms_norm = rms, .swiglu = rms, .rope = rms);
    for (int i = 0; i < count; i++) {
        const td_param *p = td_params_get(td_parameters(shapes), i);
        int64_t n = td_numel(p->tensor);
        assert_memory_equal(got[i], again[i], (size_t)n * sizeof(double));
        double off = 0.0, size = 0.0;
        for (int64_t k = 0; k < n; k++) {
            off += (got[i][k] - want[i][k]) * (got[i][k] - want[i][k]);
            size += want[i][k] * want[i][k];
        }
        if (!(sqrt(off) <= bound * sqrt(size))) {
            fail_msg("the gradient of %s is off by %g", p->name, sqrt(off / size));
        }
        free(want[i]);
        free(got[i]);
        free(again[i]);
    }
    td_module_free(shapes);
}

static void test_gpt(void **state)
{
    NEEDS_GPU(0);
    for (int rms = 0; rms < 2; rms++) {
        check_gpt(TD_PRECISION_FP32, rms, 1e-4);
        check_gpt(TD_PRECISION_BF16, rms, 5e-2);
        check_gpt(TD_PRECISION_FP16, rms, 1e-2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_narrow),
        cmocka_unit_test(test_norms_write_16_bits),
        cmocka_unit_test(test_norms_for_products_follow_the_precision),
        cmocka_unit_test(test_linear_add),
        cmocka_unit_test(test_linear_adds_what_is_of_another_kind),
        cmocka_unit_test(test_gpt),
    };
    return cmocka_run_group_tests_name("cuda: residuals", tests, NULL, NULL);
}
