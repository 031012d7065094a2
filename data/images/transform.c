/* Draws and applies the transform of an image: crop, resize, flip, jitter. */
#include "data/images/transform.h"
#include "tensor/extend.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TRIES = 10, USUAL_SIZE = 224, MOST_SIZE = 8192 };

/* ---- options ---- */

static bool in_range(double low, double value, double high)
{
    return low <= value && value <= high; /* false for NaN */
}

td_status td_image_folder_transform_check(td_image_folder_transform *t)
{
    t->size = t->size != 0 ? t->size : USUAL_SIZE;
    if (t->scale[1] == 0.0) {
        t->scale[0] = 0.08;
        t->scale[1] = 1.0;
    }
    if (t->ratio[1] == 0.0) {
        t->ratio[0] = 3.0 / 4.0;
        t->ratio[1] = 4.0 / 3.0;
    }
    TD_CHECK(in_range(1, t->size, MOST_SIZE) &&
                 (t->resize == 0 || in_range(t->size, t->resize, MOST_SIZE)),
             TD_E_ARG,
             "images of %d pixels, resized to %d: sizes go from 1 to %d, and what is cut out "
             "cannot be larger than the image",
             t->size, t->resize, MOST_SIZE);
    TD_CHECK(t->scale[0] > 0.0 && in_range(t->scale[0], t->scale[1], 1.0) && t->ratio[0] > 0.0 &&
                 in_range(t->ratio[0], t->ratio[1], 1e3),
             TD_E_ARG,
             "random crops of scale %g to %g, ratio %g to %g: scales lie in (0, 1], ratios are "
             "positive, and the first is not above the second",
             t->scale[0], t->scale[1], t->ratio[0], t->ratio[1]);
    TD_CHECK(in_range(0, t->brightness, 1e3) && in_range(0, t->contrast, 1e3) &&
                 in_range(0, t->saturation, 1e3) && in_range(0, t->hue, 0.5),
             TD_E_ARG,
             "colour jitter of %g, %g, %g, hue %g: none can be negative, and hue at most 0.5",
             t->brightness, t->contrast, t->saturation, t->hue);
    return TD_OK;
}

/* ---- draws ---- */

static double between(double low, double high, td_uniform_source next, void *user)
{
    return low + (high - low) * next(user);
}

/* A whole number in [0, count). */
static int below(int count, td_uniform_source next, void *user)
{
    int value = (int)(next(user) * count);
    return value < count ? value : count - 1;
}

td_box td_draw_crop(int width, int height, const td_image_folder_transform *t,
                    td_uniform_source next, void *user)
{
    double area = (double)width * height;
    for (int i = 0; i < TRIES; i++) {
        double part = area * between(t->scale[0], t->scale[1], next, user);
        double ratio = exp(between(log(t->ratio[0]), log(t->ratio[1]), next, user));
        double w = nearbyint(sqrt(part * ratio)), h = nearbyint(sqrt(part / ratio));
        if (w > 0 && w <= width && h > 0 && h <= height) {
            int top = below(height - (int)h + 1, next, user);
            int left = below(width - (int)w + 1, next, user);
            return (td_box){ left, top, (int)w, (int)h };
        }
    }
    td_box box = { 0, 0, width, height };
    if ((double)width / height < t->ratio[0]) {
        box.height = (int)fmax(1.0, nearbyint(width / t->ratio[0]));
    } else if ((double)width / height > t->ratio[1]) {
        box.width = (int)fmax(1.0, nearbyint(height * t->ratio[1]));
    }
    box.left = (width - box.width) / 2;
    box.top = (height - box.height) / 2;
    return box;
}

/* Philox as a stream: the blocks of stream "picture", "picture" + 1, ... at one counter. */
typedef struct stream {
    td_philox_key key;
    uint64_t epoch, sample;
    uint32_t word[4];
    int used;
} stream;

static double next_of_stream(void *user)
{
    stream *s = user;
    if (s->used == 4) {
        td_philox(s->key, s->epoch, s->sample, s->word);
        s->key.stream++;
        s->used = 0;
    }
    return s->word[s->used++] * 0x1p-32;
}

/* The factors in the order in which they are applied, which is drawn, too. */
static void draw_jitter(td_picture_draw *d, const td_image_folder_transform *t, stream *s)
{
    const double width[TD_JITTER_KINDS] = {
        [TD_JITTER_BRIGHTNESS] = t->brightness,
        [TD_JITTER_CONTRAST] = t->contrast,
        [TD_JITTER_SATURATION] = t->saturation,
        [TD_JITTER_HUE] = t->hue,
    };
    for (int k = 0; k < TD_JITTER_KINDS; k++) {
        if (width[k] > 0.0) {
            double low = k == TD_JITTER_HUE ? -width[k] : fmax(0.0, 1.0 - width[k]);
            double high = k == TD_JITTER_HUE ? width[k] : 1.0 + width[k];
            d->kind[d->jitters] = (td_jitter_kind)k;
            d->factor[d->jitters++] = between(low, high, next_of_stream, s);
        }
    }
    for (int i = d->jitters - 1; i > 0; i--) {
        int j = below(i + 1, next_of_stream, s);
        td_jitter_kind kind = d->kind[i];
        double factor = d->factor[i];
        d->kind[i] = d->kind[j];
        d->factor[i] = d->factor[j];
        d->kind[j] = kind;
        d->factor[j] = factor;
    }
}

td_picture_draw td_picture_draw_for(const td_image_folder_transform *t, int width, int height,
                                    uint64_t epoch, uint64_t sample)
{
    stream s = { .key = { t->seed, 0x70696374757265 /* "picture" in ASCII */ },
                 .epoch = epoch,
                 .sample = sample,
                 .used = 4 };
    td_picture_draw d = { .jitters = 0 };
    /* Flip and jitter first: their numbers do not depend on how many tries the crop takes. */
    d.flip = next_of_stream(&s) < 0.5 && t->flip;
    draw_jitter(&d, t, &s);
    d.crop = td_draw_crop(width, height, t, next_of_stream, &s);
    return d;
}

/* ---- doing it ---- */

static void flip_rows(uint8_t *rgb, int size)
{
    for (int y = 0; y < size; y++) {
        uint8_t *left = rgb + (size_t)y * (size_t)size * 3, *right = left + 3 * (size - 1);
        for (; left < right; left += 3, right -= 3) {
            uint8_t pixel[3];
            memcpy(pixel, left, 3);
            memcpy(left, right, 3);
            memcpy(right, pixel, 3);
        }
    }
}

static td_status load_for_training(const td_image_folder_transform *t, const td_encoded *picture,
                                   uint64_t epoch, uint64_t sample, uint8_t *rgb)
{
    td_picture_draw d = td_picture_draw_for(t, picture->width, picture->height, epoch, sample);
    td_bitmap bitmap;
    TD_TRY(td_bitmap_decode(picture, d.crop.top + d.crop.height, &bitmap));
    td_status status =
        td_resample(&bitmap, d.crop, t->size, t->size, (td_box){ 0, 0, t->size, t->size }, rgb);
    free(bitmap.rgb);
    if (status == TD_OK && d.flip) {
        flip_rows(rgb, t->size);
    }
    for (int i = 0; i < d.jitters && status == TD_OK; i++) {
        td_jitter(d.kind[i], d.factor[i], rgb, (size_t)t->size * (size_t)t->size);
    }
    return status;
}

/* The shorter side becomes `resize`, and the square in the middle is taken. */
static td_status load_for_evaluation(const td_image_folder_transform *t, const td_encoded *picture,
                                     uint8_t *rgb)
{
    int64_t width = picture->width, height = picture->height;
    int64_t w = width <= height ? t->resize : t->resize * width / height;
    int64_t h = width <= height ? t->resize * height / width : t->resize;
    TD_CHECK(w <= INT_MAX && h <= INT_MAX, TD_E_FORMAT,
             "%s: %d x %d pixels, whose shorter side is to be %d, would be longer than %d",
             picture->name, picture->width, picture->height, t->resize, INT_MAX);
    td_box window = { (int)nearbyint((double)(w - t->size) / 2.0),
                      (int)nearbyint((double)(h - t->size) / 2.0), t->size, t->size };
    td_bitmap bitmap;
    TD_TRY(td_bitmap_decode(picture, 0, &bitmap));
    td_status status = td_resample(&bitmap, (td_box){ 0, 0, (int)width, (int)height }, (int)w,
                                   (int)h, window, rgb);
    free(bitmap.rgb);
    return status;
}

td_status td_picture_load(const td_image_folder_transform *t, td_encoded *picture, uint64_t epoch,
                          uint64_t sample, uint8_t *rgb)
{
    TD_TRY(td_bitmap_open(picture));
    return t->resize > 0 ? load_for_evaluation(t, picture, rgb)
                         : load_for_training(t, picture, epoch, sample, rgb);
}
