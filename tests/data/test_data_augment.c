/* Crop, flip and normalise: against a plain reference that follows PyTorch's steps one by one. */
#include "data/augment.h"
#include "data/data.h"
#include "data/inspect.h"
#include "tests/help/temp_folder.h"
#include "tensor/extend.h"

#include <math.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <cmocka.h>

enum { PICTURES = 40, SIDE = 32 };

static const td_image_transform cifar = {
    .crop_padding = 4,
    .flip = true,
    .mean = { 0.4914f, 0.4822f, 0.4465f },
    .std = { 0.2023f, 0.1994f, 0.2010f },
    .seed = 7,
};

static td_dataset *make_pictures(void)
{
    td_dataset *dataset;
    assert_int_equal(td_synthetic_images(PICTURES, 3, &dataset), TD_OK);
    return dataset;
}

/* What the draws of (seed, epoch, sample) say, straight from Philox. */
static void reference_draw(const td_image_transform *t, uint64_t epoch, int64_t sample, int *top,
                           int *left, bool *flip)
{
    uint32_t word[4];
    td_philox((td_philox_key){ t->seed, 0x6175676d656e74 }, epoch, (uint64_t)sample, word);
    *top = (int)(word[0] % (unsigned)(2 * t->crop_padding + 1));
    *left = (int)(word[1] % (unsigned)(2 * t->crop_padding + 1));
    if (t->alternate_flip) {
        td_philox((td_philox_key){ t->seed, 0x6175676d656e74 }, 0, (uint64_t)sample, word);
    }
    *flip = t->flip && (word[2] >= 0x80000000u) != (t->alternate_flip && epoch % 2 == 1);
    *flip = *flip != t->mirror;
}

/* numpy.pad(mode="reflect") */
static int reflect(int i)
{
    return i < 0 ? -i : i >= SIDE ? 2 * SIDE - 2 - i : i;
}

/* Pad, crop, flip, divide by 255, normalise: one element. */
static float reference(const td_dataset *dataset, const td_image_transform *t, uint64_t epoch,
                       int64_t sample, int c, int h, int w)
{
    int top, left;
    bool flip;
    reference_draw(t, epoch, sample, &top, &left, &flip);
    int row = top + h - t->crop_padding + t->shift[0];
    int column = left + (flip ? SIDE - 1 - w : w) - t->crop_padding + t->shift[1];
    if (t->reflect) {
        row = reflect(row);
        column = reflect(column);
    }
    bool inside = row >= 0 && row < SIDE && column >= 0 && column < SIDE;
    const uint8_t *pixels = td_dataset_pixels(dataset);
    uint8_t byte = inside ? pixels[((sample * 3 + c) * SIDE + row) * SIDE + column] : 0;
    float value = (float)byte / 255.0f;
    return t->std[c] != 0 ? (value - t->mean[c]) / t->std[c] : value;
}

/* Fetches n pictures, backwards from the last, into a batch of a layout, and checks each element.
 */
static void check_fetch(td_dataset *dataset, const td_image_transform *t, int n, uint64_t epoch,
                        td_layout layout)
{
    assert_int_equal(td_dataset_set_transform(dataset, t), TD_OK);
    int64_t index[PICTURES];
    for (int i = 0; i < n; i++) {
        index[i] = PICTURES - 1 - i;
    }
    td_tensor *x = td_new_layout(TD_SHAPE(n, 3, SIDE, SIDE), TD_F32, layout, TD_CPU);
    td_tensor *y = td_new(TD_SHAPE(n), TD_I64, TD_CPU);
    assert_int_equal(dataset->vtable->fetch(dataset, index, n, epoch, x, y), TD_OK);
    const float *out = td_data(x);
    for (int i = 0; i < n; i++) {
        assert_int_equal(((const int64_t *)td_data(y))[i], td_dataset_labels(dataset)[index[i]]);
        for (int c = 0; c < 3; c++) {
            for (int h = 0; h < SIDE; h++) {
                for (int w = 0; w < SIDE; w++) {
                    float value = out[i * x->stride[0] + c * x->stride[1] + h * x->stride[2] +
                                      w * x->stride[3]];
                    assert_true(value == reference(dataset, t, epoch, index[i], c, h, w));
                }
            }
        }
    }
    td_free(x);
    td_free(y);
}

static void test_equals_reference(void **state)
{
    (void)state;
    td_dataset *dataset = make_pictures();
    const int sizes[] = { 1, 15, 16, 17, 40 };
    for (int i = 0; i < 5; i++) {
        check_fetch(dataset, &cifar, sizes[i], (uint64_t)i, TD_IMAGE);
        check_fetch(dataset, &cifar, sizes[i], (uint64_t)i, TD_ROW_MAJOR);
    }
    td_dataset_free(dataset);
}

static void test_each_transform_alone(void **state)
{
    (void)state;
    td_dataset *dataset = make_pictures();
    const td_image_transform alone[] = {
        { .crop_padding = 0 },
        { .crop_padding = 4, .seed = 1 },
        { .crop_padding = SIDE - 1, .seed = 2, .flip = true }, /* mostly zeros */
        { .flip = true, .seed = 3 },
        { .mean = { 0.5f, 0, -1 }, .std = { 0.25f, 1, 2 } },
        { .crop_padding = 1, .flip = true, .seed = UINT64_MAX },
    };
    for (size_t i = 0; i < sizeof alone / sizeof *alone; i++) {
        check_fetch(dataset, &alone[i], 20, 11, TD_IMAGE);
    }
    td_dataset_free(dataset);
}

/* All 81 places and both directions, equally often. */
static void test_draws_are_even(void **state)
{
    (void)state;
    int places[9][9] = { { 0 } }, flips = 0, draws = 81 * 400;
    for (int i = 0; i < draws; i++) {
        td_picture cut = td_augment_draw(&cifar, (uint64_t)(i % 5), (uint64_t)(i / 5));
        assert_in_range(cut.down + 4, 0, 8);
        assert_in_range(cut.right + 4, 0, 8);
        places[cut.down + 4][cut.right + 4]++;
        flips += cut.flip;
    }
    for (int i = 0; i < 81; i++) {
        assert_in_range(places[i / 9][i % 9], 300, 500); /* 400, five standard deviations */
    }
    assert_in_range(flips, draws / 2 - 500, draws / 2 + 500);
}

static bool same_cut(td_picture a, td_picture b)
{
    return a.down == b.down && a.right == b.right && a.flip == b.flip;
}

static void test_draws_depend_on_epoch_sample_and_seed(void **state)
{
    (void)state;
    td_image_transform other = cifar;
    other.seed++;
    int same_epoch = 0, same_sample = 0, same_seed = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        td_picture cut = td_augment_draw(&cifar, 1, i);
        assert_true(same_cut(cut, td_augment_draw(&cifar, 1, i)));
        same_epoch += same_cut(cut, td_augment_draw(&cifar, 2, i));
        same_sample += same_cut(cut, td_augment_draw(&cifar, 1, i + 1));
        same_seed += same_cut(cut, td_augment_draw(&other, 1, i));
    }
    assert_in_range(same_epoch, 0, 25); /* one in 162 by chance */
    assert_in_range(same_sample, 0, 25);
    assert_in_range(same_seed, 0, 25);
}

static void expect_refused(td_dataset *dataset, td_image_transform transform, const char *says)
{
    assert_int_equal(td_dataset_set_transform(dataset, &transform), TD_E_ARG);
    assert_error_says(says, NULL);
}

static void test_reflection_and_fixed_cuts(void **state)
{
    (void)state;
    td_dataset *dataset = make_pictures();
    td_image_transform t = cifar;
    t.reflect = t.alternate_flip = true;
    for (t.crop_padding = 0; t.crop_padding < 32; t.crop_padding += 1 + t.crop_padding * 2) {
        for (uint64_t epoch = 0; epoch < 4; epoch++) {
            check_fetch(dataset, &t, 21, epoch, epoch % 2 == 0 ? TD_IMAGE : TD_ROW_MAJOR);
        }
    }
    t = (td_image_transform){ .reflect = true, .shift = { 31, -31 }, .mirror = true };
    check_fetch(dataset, &t, 17, 0, TD_IMAGE);
    t = (td_image_transform){ .shift = { -1,
                                         -1 } }; /* zeros, between pictures that reach farther */
    check_fetch(dataset, &t, 17, 0, TD_IMAGE);
    t = (td_image_transform){ .crop_padding = 3, .flip = true, .mirror = true, .shift = { 5, 2 } };
    check_fetch(dataset, &t, 17, 1, TD_ROW_MAJOR);
    td_dataset_free(dataset);
}

/* Two epochs in a row show each sample from both sides; without the option most are not. */
static void test_flips_alternate(void **state)
{
    (void)state;
    int both = 0, both_drawn = 0, first = 0;
    td_image_transform drawn = { .flip = true, .seed = 5 }, t = drawn;
    t.alternate_flip = true;
    for (uint64_t sample = 0; sample < 1000; sample++) {
        bool flips[4];
        for (uint64_t epoch = 0; epoch < 4; epoch++) {
            flips[epoch] = td_augment_draw(&t, epoch, sample).flip;
        }
        both += flips[0] != flips[1] && flips[0] == flips[2] && flips[1] == flips[3];
        first += flips[0];
        both_drawn +=
            td_augment_draw(&drawn, 0, sample).flip != td_augment_draw(&drawn, 1, sample).flip;
    }
    assert_int_equal(both, 1000);
    assert_in_range(first, 430, 570);
    assert_in_range(both_drawn, 430, 570);
}

static void test_bad_transforms(void **state)
{
    (void)state;
    td_dataset *dataset = make_pictures();
    expect_refused(dataset, (td_image_transform){ .crop_padding = -1 }, "padding is -1");
    expect_refused(dataset, (td_image_transform){ .crop_padding = 32 }, "0 to 31");
    expect_refused(dataset, (td_image_transform){ .std = { 1, 0, 1 } }, "channel 1");
    expect_refused(dataset, (td_image_transform){ .shift = { 0, -32 } }, "shift by -32");
    expect_refused(dataset, (td_image_transform){ .shift = { 30 }, .crop_padding = 2 },
                   "32 pixels");
    expect_refused(dataset, (td_image_transform){ .shift = { INT_MAX }, .crop_padding = 1 },
                   "2147483648 pixels");
    expect_refused(dataset, (td_image_transform){ .shift = { 0, INT_MIN } }, "2147483648 pixels");
    expect_refused(dataset, (td_image_transform){ .alternate_flip = true }, "set flip");
    expect_refused(dataset, (td_image_transform){ .std = { 1, 1, -1 } }, "channel 2");
    expect_refused(dataset, (td_image_transform){ .mean = { 0.5f, 0, 0 } }, "channel 0");
    expect_refused(dataset, (td_image_transform){ .mean = { NAN }, .std = { 1, 1, 1 } },
                   "must be finite");
    td_dataset_free(dataset);
    td_dataset *wine_train, *wine_test;
    assert_int_equal(td_wine_split("data/wine.csv", 0.2, 42, &wine_train, &wine_test, NULL), TD_OK);
    assert_int_equal(td_dataset_set_transform(wine_train, &cifar), TD_E_UNSUPPORTED);
    assert_error_says("wine", NULL);
    assert_null(td_dataset_pixels(wine_train));
    assert_null(td_dataset_labels(wine_train));
    td_dataset_free(wine_train);
    td_dataset_free(wine_test);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_reference),
        cmocka_unit_test(test_each_transform_alone),
        cmocka_unit_test(test_draws_are_even),
        cmocka_unit_test(test_draws_depend_on_epoch_sample_and_seed),
        cmocka_unit_test(test_reflection_and_fixed_cuts),
        cmocka_unit_test(test_flips_alternate),
        cmocka_unit_test(test_bad_transforms),
    };
    return cmocka_run_group_tests_name("data: augmentation", tests, NULL, NULL);
}
