/* Resizing, cropping and colours, against what PIL and torchvision made of the same small pictures.
 */
#include "tandem.h"
#include "tests/data/pictures_check.h"
#include "tests/help/temp_folder.h"

#include "data/images/transform.h"
#include "tensor/extend.h"

#include <math.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- resizing ---- */

static void check_resize(const char *rest, const td_safetensors_entry *entry)
{
    td_box crop;
    int width, height;
    assert_int_equal(sscanf(rest, "%d,%d,%d,%d,%d,%d", &crop.left, &crop.top, &crop.width,
                            &crop.height, &width, &height),
                     6);
    td_bitmap bitmap = pictures_decode("rgb.png", 0);
    uint8_t *rgb = malloc(entry->bytes);
    assert_non_null(rgb);
    td_box all = { 0, 0, width, height };
    assert_int_equal(td_resample(&bitmap, crop, width, height, all, rgb), TD_OK);
    pictures_require_near(rest, rgb, entry->data, entry->bytes, 0.0, 0);
    /* A part of the result is the same part. */
    if (width > 4 && height > 4) {
        td_box window = { 1, 2, width - 3, height - 3 };
        uint8_t *part = malloc(entry->bytes);
        assert_non_null(part);
        assert_int_equal(td_resample(&bitmap, crop, width, height, window, part), TD_OK);
        for (int y = 0; y < window.height; y++) {
            assert_memory_equal(part + (size_t)y * (size_t)window.width * 3,
                                rgb + ((size_t)(y + 2) * (size_t)width + 1) * 3,
                                (size_t)window.width * 3);
        }
        free(part);
    }
    free(rgb);
    free(bitmap.rgb);
}

static void test_resize(void **state)
{
    (void)state;
    assert_int_equal(pictures_each(NULL, "resize", check_resize), 8);
}

static void check_evaluate(const char *rest, const td_safetensors_entry *entry)
{
    char name[64], path[256];
    td_image_folder_transform t = { .resize = 0 };
    assert_int_equal(sscanf(rest, "%63[^,],%d,%d", name, &t.resize, &t.size), 3);
    assert_int_equal(td_image_folder_transform_check(&t), TD_OK);
    snprintf(path, sizeof path, PICTURES_FOLDER "%s", name);
    size_t size;
    uint8_t *bytes = pictures_read_bytes(path, &size), *rgb = malloc(entry->bytes);
    assert_non_null(rgb);
    td_encoded picture = pictures_encoded(bytes, size, name);
    assert_int_equal(td_picture_load(&t, &picture, 0, 0, rgb), TD_OK);
    pictures_require_near(rest, rgb, entry->data, entry->bytes, 0.0, 0);
    free(bytes);
    free(rgb);
}

static void test_evaluate(void **state)
{
    (void)state;
    assert_int_equal(pictures_each(NULL, "evaluate", check_evaluate), 8);
}

/* ---- colours ---- */

static void check_jitter(const char *rest, const td_safetensors_entry *entry)
{
    int kind, thousandths;
    assert_int_equal(sscanf(rest, "%d,%d", &kind, &thousandths), 2);
    td_bitmap bitmap = pictures_decode("rgb.png", 0);
    td_jitter((td_jitter_kind)kind, thousandths / 1000.0, bitmap.rgb, entry->bytes / 3);
    pictures_require_near(rest, bitmap.rgb, entry->data, entry->bytes,
                          kind == TD_JITTER_HUE ? 0.01 : 0.0, kind == TD_JITTER_HUE ? 1 : 0);
    free(bitmap.rgb);
}

static void test_jitter(void **state)
{
    (void)state;
    assert_int_equal(pictures_each(NULL, "jitter", check_jitter), 17);
}

/* ---- draws ---- */

static double torch_uniform(void *user)
{
    return td_random_f32(user);
}

static void check_crops(const char *rest, const td_safetensors_entry *entry)
{
    int width, height;
    assert_int_equal(sscanf(rest, "%d,%d", &width, &height), 2);
    td_image_folder_transform t = { .size = 8 };
    assert_int_equal(td_image_folder_transform_check(&t), TD_OK);
    const int64_t *box = entry->data;
    for (int64_t seed = 0; seed < entry->shape.dim[0]; seed++, box += 4) {
        td_generator g;
        td_generator_seed(&g, (uint64_t)seed);
        td_box got = td_draw_crop(width, height, &t, torch_uniform, &g);
        if (got.left != box[0] || got.top != box[1] || got.width != box[2] ||
            got.height != box[3]) {
            fail_msg("crop of %s, seed %lld: %d,%d %dx%d instead of %lld,%lld %lldx%lld", rest,
                     (long long)seed, got.left, got.top, got.width, got.height, (long long)box[0],
                     (long long)box[1], (long long)box[2], (long long)box[3]);
        }
    }
}

static void test_crops(void **state)
{
    (void)state;
    assert_int_equal(pictures_each(NULL, "crops", check_crops), 6);
}

/* Where the wanted ratio leaves less than half a pixel of a side. */
static void test_crops_of_one_pixel(void **state)
{
    (void)state;
    td_generator g;
    td_generator_seed(&g, 1);
    for (int tall = 0; tall < 2; tall++) {
        td_image_folder_transform t = { .size = 8, .ratio = { 0.1, 0.2 } };
        if (tall) {
            t.ratio[0] = 5.0;
            t.ratio[1] = 10.0;
        }
        assert_int_equal(td_image_folder_transform_check(&t), TD_OK);
        td_box got = td_draw_crop(tall ? 1 : 2, tall ? 2 : 1, &t, torch_uniform, &g);
        assert_int_equal(got.width, 1);
        assert_int_equal(got.height, 1);
    }
}

/* Draws depend on seed, epoch and sample, and use their whole ranges. */
static void test_draws(void **state)
{
    (void)state;
    enum { COUNT = 2000 };
    td_image_folder_transform t = { .size = 8,
                                    .flip = true,
                                    .brightness = 0.4,
                                    .contrast = 0.3,
                                    .saturation = 0.2,
                                    .hue = 0.1,
                                    .seed = 5 };
    assert_int_equal(td_image_folder_transform_check(&t), TD_OK);
    int flips = 0, first_is_hue = 0;
    double least = 2.0, most = 0.0, area = 0.0;
    for (int i = 0; i < COUNT; i++) {
        td_picture_draw d = td_picture_draw_for(&t, 100, 80, 3, (uint64_t)i);
        td_picture_draw again = td_picture_draw_for(&t, 100, 80, 3, (uint64_t)i);
        assert_true(d.flip == again.flip && d.crop.left == again.crop.left &&
                    d.factor[0] == again.factor[0]);
        assert_int_equal(d.jitters, 4);
        assert_true(d.crop.left >= 0 && d.crop.left + d.crop.width <= 100);
        assert_true(d.crop.top >= 0 && d.crop.top + d.crop.height <= 80);
        for (int k = 0; k < 4; k++) {
            if (d.kind[k] == TD_JITTER_BRIGHTNESS) {
                least = fmin(least, d.factor[k]);
                most = fmax(most, d.factor[k]);
            }
        }
        flips += d.flip;
        first_is_hue += d.kind[0] == TD_JITTER_HUE;
        area += (double)d.crop.width * d.crop.height / 8000.0 / COUNT;
    }
    assert_in_range(flips, COUNT / 2 - 100, COUNT / 2 + 100);
    assert_in_range(first_is_hue, COUNT / 4 - 100, COUNT / 4 + 100);
    assert_true(least > 0.6 && least < 0.61 && most < 1.4 && most > 1.39);
    /* 0.457: the mean of 0.08 to 1, less what never fits. */
    assert_true(area > 0.437 && area < 0.477);
    td_picture_draw other = td_picture_draw_for(&t, 100, 80, 4, 0);
    td_picture_draw here = td_picture_draw_for(&t, 100, 80, 3, 0);
    assert_true(other.factor[0] != here.factor[0]);
}

/* What a training run gets is the crop, resized, mirrored, with its colours changed, as drawn. */
static void test_training_is_its_steps(void **state)
{
    (void)state;
    enum { SIZE = 24, SAMPLES = 40 };
    td_image_folder_transform t = {
        .size = SIZE, .flip = true, .brightness = 0.4, .saturation = 0.3, .hue = 0.2, .seed = 8
    };
    assert_int_equal(td_image_folder_transform_check(&t), TD_OK);
    size_t size;
    uint8_t *bytes = pictures_read_bytes(PICTURES_FOLDER "large.jpg", &size);
    td_encoded picture = pictures_encoded(bytes, size, "large.jpg");
    td_bitmap whole = pictures_decode("large.jpg", 0);
    int flips = 0;
    for (uint64_t sample = 0; sample < SAMPLES; sample++) {
        static uint8_t got[SIZE * SIZE * 3], expected_rgb[SIZE * SIZE * 3];
        assert_int_equal(td_picture_load(&t, &picture, 2, sample, got), TD_OK);
        td_picture_draw d = td_picture_draw_for(&t, whole.width, whole.height, 2, sample);
        assert_int_equal(
            td_resample(&whole, d.crop, SIZE, SIZE, (td_box){ 0, 0, SIZE, SIZE }, expected_rgb),
            TD_OK);
        for (int i = 0; d.flip && i < SIZE * SIZE / 2; i++) {
            int y = i / (SIZE / 2), x = i % (SIZE / 2);
            uint8_t *left = expected_rgb + 3 * (y * SIZE + x);
            uint8_t *right = expected_rgb + 3 * (y * SIZE + SIZE - 1 - x), kept[3];
            memcpy(kept, left, 3);
            memcpy(left, right, 3);
            memcpy(right, kept, 3);
        }
        for (int i = 0; i < d.jitters; i++) {
            td_jitter(d.kind[i], d.factor[i], expected_rgb, (size_t)SIZE * SIZE);
        }
        assert_memory_equal(got, expected_rgb, sizeof got);
        flips += d.flip;
    }
    assert_in_range(flips, 8, SAMPLES - 8);
    free(whole.rgb);
    free(bytes);
}

static void assert_refused(td_image_folder_transform t, const char *says)
{
    assert_int_equal(td_image_folder_transform_check(&t), TD_E_ARG);
    assert_error_says(says, NULL);
}

static void test_options(void **state)
{
    (void)state;
    assert_refused((td_image_folder_transform){ .size = -1 }, "sizes go from 1");
    assert_refused((td_image_folder_transform){ .size = 32, .resize = 31 }, "cannot be larger");
    assert_refused((td_image_folder_transform){ .scale = { 0.5, 0.4 } }, "scales lie in");
    assert_refused((td_image_folder_transform){ .scale = { 0.5, 1.4 } }, "scales lie in");
    assert_refused((td_image_folder_transform){ .ratio = { -1.0, 1.4 } }, "ratios");
    assert_refused((td_image_folder_transform){ .hue = 0.6 }, "hue at most");
    assert_refused((td_image_folder_transform){ .contrast = NAN }, "negative");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resize),  cmocka_unit_test(test_evaluate),
        cmocka_unit_test(test_jitter),  cmocka_unit_test(test_crops),
        cmocka_unit_test(test_draws),   cmocka_unit_test(test_training_is_its_steps),
        cmocka_unit_test(test_options), cmocka_unit_test(test_crops_of_one_pixel),
    };
    return cmocka_run_group_tests_name("data: transforms of pictures", tests,
                                       pictures_open_expected, pictures_close_expected);
}
