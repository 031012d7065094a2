/* Loss scaling: what the scale does over good and bad steps, that gradients come out as they were,
 * and that a checkpoint keeps it. */
#include "tests/help/temp_folder.h"

#include "tandem.h"
#include "nn/module.h"
#include "nn/extra/inspect.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct fixture {
    td_module *net;
    td_tensor *x;
    td_optim *optim;
} fixture;

static fixture make(void)
{
    td_manual_seed(3);
    fixture f = { .net = td_nn_linear(4, 3), .x = td_full(TD_SHAPE(2, 4), 0.5, TD_F32, TD_CPU) };
    f.optim = td_sgd(td_parameters(f.net), .lr = 0.5);
    assert_non_null(f.optim);
    return f;
}

static void end(fixture *f)
{
    td_optim_free(f->optim);
    td_module_free(f->net);
    td_free(f->x);
}

/* One step with a loss that is `factor` times the mean; returns whether the optimizer stepped. */
static bool step(fixture *f, td_scaler *scaler, double factor)
{
    td_step_begin();
    td_tensor *loss = td_mul_scalar(td_mean(td_forward(f->net, f->x)), factor);
    td_zero_grad(f->optim);
    td_backward(td_scaler_loss(scaler, loss));
    bool good = td_scaler_unscale(scaler, td_parameters(f->net));
    if (good) {
        td_optim_step(f->optim);
    }
    td_step_end();
    return good;
}

static void read_params(const fixture *f, float *values)
{
    td_read(td_params_flat(td_parameters(f->net)), values, TD_F32);
}

static int64_t flat_count(const fixture *f)
{
    return td_numel(td_params_flat(td_parameters(f->net)));
}

/* A power of two scales without rounding: the same bits as without a scaler. */
static void test_same_bits_as_without(void **state)
{
    (void)state;
    fixture with = make(), without = make();
    td_scaler *scaler = td_scaler_new();
    int64_t n = flat_count(&with);
    float *a = calloc((size_t)n, sizeof *a), *b = calloc((size_t)n, sizeof *b);
    for (int i = 0; i < 5; i++) {
        assert_true(step(&with, scaler, 1.0));
        assert_true(step(&without, NULL, 1.0));
    }
    read_params(&with, a);
    read_params(&without, b);
    assert_memory_equal(a, b, (size_t)n * sizeof *a);
    assert_int_equal(td_scaler_now(scaler).good, 5);
    free(a);
    free(b);
    td_scaler_free(scaler);
    end(&with);
    end(&without);
}

static void test_backs_off_and_grows(void **state)
{
    (void)state;
    fixture f = make();
    td_scaler *scaler = td_scaler_new(.scale = 1024, .patience = 3);
    int64_t n = flat_count(&f);
    float *before = calloc((size_t)n, sizeof *before), *after = calloc((size_t)n, sizeof *after);
    read_params(&f, before);
    assert_false(step(&f, scaler, INFINITY)); /* left out: nothing has moved */
    read_params(&f, after);
    assert_memory_equal(before, after, (size_t)n * sizeof *before);
    assert_true(td_scaler_now(scaler).scale == 512 && td_scaler_now(scaler).skipped == 1);
    assert_true(step(&f, scaler, 1.0));
    assert_true(step(&f, scaler, 1.0));
    assert_false(step(&f, scaler, NAN)); /* the count of good ones begins anew */
    assert_true(td_scaler_now(scaler).scale == 256);
    for (int i = 0; i < 3; i++) {
        assert_true(td_scaler_now(scaler).scale == 256);
        assert_true(step(&f, scaler, 1.0));
    }
    assert_true(td_scaler_now(scaler).scale == 512 && td_scaler_now(scaler).good == 0);
    assert_int_equal(td_scaler_now(scaler).skipped, 2);
    free(before);
    free(after);
    td_scaler_free(scaler);
    end(&f);
}

/* However often: it does not become 0. */
static void test_scale_stays_positive(void **state)
{
    (void)state;
    fixture f = make();
    td_scaler *scaler = td_scaler_new();
    for (int i = 0; i < 200; i++) {
        bool least = td_scaler_now(scaler).scale <= 0x1p-24;
        assert_false(step(&f, scaler, NAN));
        assert_true(td_scaler_gives_up(scaler) == least);
    }
    assert_true(td_scaler_gives_up(scaler));
    assert_true(td_scaler_now(scaler).scale > 0);
    assert_int_equal(td_scaler_now(scaler).skipped, 200);
    assert_true(step(&f, scaler, 1.0));
    assert_false(td_scaler_gives_up(scaler) || td_scaler_gives_up(NULL));
    td_scaler_free(scaler);
    end(&f);
}

static void test_checkpoint_keeps_it(void **state)
{
    (void)state;
    const char *path = temp_path("model.safetensors");
    fixture f = make();
    td_scaler *scaler = td_scaler_new(), *other = td_scaler_new();
    td_scaler_set(scaler, &(td_scaler_state){ 0x1p9, 77, 5 });
    assert_int_equal(td_checkpoint_save(path, f.net, .scaler = scaler), TD_OK);
    assert_int_equal(td_checkpoint_load(path, f.net, .scaler = other), TD_OK);
    td_scaler_state now = td_scaler_now(other);
    assert_true(now.scale == 0x1p9 && now.good == 77 && now.skipped == 5);
    /* Without one in the file it stays as it is; one that nobody asks for is ignored. */
    assert_int_equal(td_checkpoint_load(path, f.net), TD_OK);
    assert_int_equal(td_checkpoint_save(path, f.net), TD_OK);
    assert_int_equal(td_checkpoint_load(path, f.net, .scaler = other), TD_OK);
    assert_int_equal(td_scaler_now(other).good, 77);
    /* Damaged. */
    td_metadata broken = { "scaler", "0 1 2" };
    assert_int_equal(td_checkpoint_save(path, f.net, .metadata = &broken, .metadata_count = 1),
                     TD_OK);
    assert_int_equal(td_checkpoint_load(path, f.net, .scaler = other), TD_E_MISMATCH);
    assert_non_null(strstr(td_last_error(), "scaler"));
    assert_int_equal(td_scaler_now(other).good, 77);
    td_scaler_free(scaler);
    td_scaler_free(other);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits_as_without),
        cmocka_unit_test(test_backs_off_and_grows),
        cmocka_unit_test(test_scale_stays_positive),
        cmocka_unit_test_setup_teardown(test_checkpoint_keeps_it, temp_folder_setup,
                                        temp_folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
