/* What batch normalisation does in the same pass as other work: masks found from x, gelu. */
#include "tests/tensor/norm_case.h"

#include "tensor/kernels/kernels.h"
#include "tensor/extend.h"

#include <math.h>
#include <stdlib.h>

static const td_kernels *k(void)
{
    return ref_kernels();
}

/* A mask from x is the one from y, to the bit. */
static void mask_from_x(td_dtype dtype)
{
    const norm_case *c = &norm_cases[4];
    norm_data d;
    norm_make(&d, c, dtype);
    td_dtype fine = norm_per_channel(dtype);
    td_shape per = TD_SHAPE(d.channels);
    td_tensor *y = norm_input(c, dtype, 9, 0.0), *dy = norm_input(c, dtype, 12, 0.0);
    td_batch_norm_args args = { .x = d.x,
                                .weight = d.weight,
                                .bias = d.bias,
                                .activation = TD_NORM_RELU,
                                .training = true,
                                .eps = 1e-5,
                                .mean = td_new(per, fine, ref_device()),
                                .inv_std = td_new(per, fine, ref_device()),
                                .affine = td_new(TD_SHAPE(2, d.channels), fine, ref_device()),
                                .y = y };
    k()->batch_norm(&args);
    td_batch_norm_grad_args grad = { .dy = dy,
                                     .x = d.x,
                                     .y = y,
                                     .weight = d.weight,
                                     .mean = args.mean,
                                     .inv_std = args.inv_std,
                                     .activation = TD_NORM_RELU,
                                     .training = true,
                                     .dx = norm_input(c, dtype, 13, 0.0),
                                     .dweight = td_new(per, fine, ref_device()),
                                     .dbias = td_new(per, fine, ref_device()) };
    k()->batch_norm_grad(&grad);
    double *dx = ref_values(grad.dx), *dw = ref_values(grad.dweight), *db = ref_values(grad.dbias);
    grad.y = NULL;
    grad.affine = args.affine;
    k()->batch_norm_grad(&grad);
    ref_close(grad.dx, dx, NULL, 0.0, "dx without y");
    ref_close(grad.dweight, dw, NULL, 0.0, "dweight without y");
    ref_close(grad.dbias, db, NULL, 0.0, "dbias without y");
    free(dx);
    free(dw);
    free(db);
    td_tensor *all[] = { y,           dy,      args.mean,    args.inv_std,
                         args.affine, grad.dx, grad.dweight, grad.dbias };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        td_free(all[i]);
    }
    norm_free(&d);
}

static void test_batch_norm_mask_from_x(void **state)
{
    (void)state;
    ref_run(mask_from_x);
    ref_run_half(mask_from_x);
}

/* The forward and the gradients of a case: in one pass, or batch normalisation and gelu after each
 * other. */
typedef struct gelu_results {
    td_tensor *y, *dx, *dweight, *dbias;
} gelu_results;

static gelu_results gelu_of(const norm_case *c, td_dtype dtype, bool fused, bool over_dy)
{
    norm_data d;
    norm_make(&d, c, dtype);
    td_dtype fine = norm_per_channel(dtype);
    td_shape per = TD_SHAPE(d.channels);
    td_norm_activation activation = fused ? TD_NORM_GELU : TD_NORM_LINEAR;
    td_tensor *dy = norm_input(c, dtype, 12, 0.0), *z = norm_input(c, dtype, 9, 0.0);
    gelu_results r = { norm_input(c, dtype, 9, 0.0), over_dy ? dy : norm_filled(c, c->shape, dtype),
                       norm_filled(c, per, fine), norm_filled(c, per, fine) };
    td_batch_norm_args args = { .x = d.x,
                                .weight = d.weight,
                                .bias = d.bias,
                                .activation = activation,
                                .training = c->training,
                                .eps = 1e-5,
                                .momentum = 0.1,
                                .running_mean = d.mean,
                                .running_var = d.var,
                                .mean = td_new(per, fine, ref_device()),
                                .inv_std = td_new(per, fine, ref_device()),
                                .affine = td_new(TD_SHAPE(2, d.channels), fine, ref_device()),
                                .y = fused ? r.y : z };
    k()->batch_norm(&args);
    if (!fused) {
        k()->unary(TD_UNARY_gelu, r.y, z, 0.0, 0.0);
        k()->unary_grad(TD_UNARY_gelu, dy, dy, z, r.y, 0.0, 0.0, false);
    }
    k()->batch_norm_grad(&(td_batch_norm_grad_args){ .dy = dy,
                                                     .x = d.x,
                                                     .affine = fused ? args.affine : NULL,
                                                     .weight = d.weight,
                                                     .mean = args.mean,
                                                     .inv_std = args.inv_std,
                                                     .activation = activation,
                                                     .training = c->training,
                                                     .dx = r.dx,
                                                     .dweight = r.dweight,
                                                     .dbias = r.dbias,
                                                     .accumulate_dx = c->accumulate && !over_dy,
                                                     .accumulate_dweight = !c->accumulate,
                                                     .accumulate_dbias = c->accumulate });
    td_tensor *all[] = { z, args.mean, args.inv_std, args.affine, over_dy ? NULL : dy };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        td_free(all[i]);
    }
    norm_free(&d);
    return r;
}

static void same_and_free(td_tensor *got, td_tensor *expected, const char *what)
{
    double *want = ref_values(expected);
    ref_close(got, want, NULL, 0.0, what);
    free(want);
    td_free(got);
    td_free(expected);
}

static void gelu_cases(td_dtype dtype)
{
    static const norm_case wide = { { 2, { 5, 5000 } }, /* rows that are computed in pieces */
                                    TD_IMAGE,           0, false, false, true, true, false, false };
    size_t count = NORM_CASES;
    for (size_t i = 0; i < 2 * (count + 1); i++) {
        const norm_case *c = i / 2 < count ? &norm_cases[i / 2] : &wide;
        bool over_dy = i % 2 != 0;
        gelu_results fused = gelu_of(c, dtype, true, over_dy);
        gelu_results apart = gelu_of(c, dtype, false, over_dy);
        same_and_free(fused.y, apart.y, "batch_norm with gelu");
        same_and_free(fused.dx, apart.dx, "dx with gelu");
        same_and_free(fused.dweight, apart.dweight, "dweight with gelu");
        same_and_free(fused.dbias, apart.dbias, "dbias with gelu");
    }
}

static void test_batch_norm_gelu(void **state)
{
    (void)state;
    ref_run(gelu_cases);
    ref_run_half(gelu_cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch_norm_mask_from_x),
        cmocka_unit_test(test_batch_norm_gelu),
    };
    return cmocka_run_group_tests_name("kernels: batch normalisation, fused", tests, NULL, NULL);
}
