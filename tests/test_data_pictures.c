/* Decoding, resizing, cropping and colours, against what PIL and torchvision made of the same small
 * pictures (tests/make_pictures.py). */
#include "tandem.h"
#include "tests/temp_folder.h"

#include "data/picture_transform.h"

#include <math.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#define FOLDER "tests/pictures/"

static td_safetensors *expected;

static int open_expected(void **state)
{
    (void)state;
    return td_safetensors_open(FOLDER "expected.safetensors", &expected);
}

static int close_expected(void **state)
{
    (void)state;
    td_safetensors_close(expected);
    return 0;
}

/* ---- comparing ---- */

/* Mean and largest difference of two rows of bytes. */
typedef struct difference {
    double mean;
    int most;
} difference;

static difference compare(const uint8_t *a, const uint8_t *b, size_t count)
{
    difference d = { 0.0, 0 };
    for (size_t i = 0; i < count; i++) {
        int here = abs(a[i] - b[i]);
        d.mean += here;
        d.most = here > d.most ? here : d.most;
    }
    d.mean /= count > 0 ? (double)count : 1.0;
    return d;
}

static void require_near(const char *name, const uint8_t *a, const uint8_t *b, size_t count,
                         double mean, int most)
{
    difference d = compare(a, b, count);
    if (d.mean > mean || d.most > most) {
        fail_msg("%s: %.3f levels on average, at most %d; allowed are %.3f and %d", name, d.mean,
                 d.most, mean, most);
    }
}

/* ---- files ---- */

static uint8_t *read_bytes(const char *path, size_t *size)
{
    FILE *in = fopen(path, "rb");
    if (in == NULL) {
        fail_msg("cannot open %s", path);
    }
    fseek(in, 0, SEEK_END);
    *size = (size_t)ftell(in);
    rewind(in);
    uint8_t *bytes = malloc(*size + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *size, in), *size);
    fclose(in);
    return bytes;
}

static td_encoded encoded(const uint8_t *bytes, size_t size, const char *name)
{
    return (td_encoded){ .bytes = bytes, .size = size, .name = name, .most_pixels = 1000000 };
}

static td_bitmap decode(const char *name, int rows)
{
    char path[256];
    snprintf(path, sizeof path, FOLDER "%s", name);
    size_t size;
    uint8_t *bytes = read_bytes(path, &size);
    td_encoded picture = encoded(bytes, size, name);
    td_bitmap bitmap = { 0 };
    if (td_bitmap_open(&picture) != TD_OK || td_bitmap_decode(&picture, rows, &bitmap) != TD_OK) {
        fail_msg("%s", td_last_error());
    }
    free(bytes);
    return bitmap;
}

/* Calls fn for every tensor whose name begins with a word and a slash. */
static int each_expected(const char *word,
                         void (*fn)(const char *rest, const td_safetensors_entry *))
{
    int found = 0;
    size_t length = strlen(word);
    for (int i = 0; i < td_safetensors_count(expected); i++) {
        const td_safetensors_entry *entry = td_safetensors_get(expected, i);
        if (strncmp(entry->name, word, length) == 0 && entry->name[length] == '/') {
            fn(entry->name + length + 1, entry);
            found++;
        }
    }
    return found;
}

/* ---- decoding ---- */

static void check_decode(const char *name, const td_safetensors_entry *entry)
{
    td_bitmap bitmap = decode(name, 0);
    assert_int_equal(bitmap.height, entry->shape.dim[0]);
    assert_int_equal(bitmap.width, entry->shape.dim[1]);
    bool jpeg = strstr(name, ".jpg") != NULL && strstr(name, "disguise") == NULL;
#ifdef TD_HAVE_JPEG
    double mean = 0.0;
    int most = 0;
    bool exact = true; /* the library that PIL uses */
#else
    double mean = 2.0;
    int most = 40;
    bool exact = !jpeg;
#endif
    (void)jpeg;
    require_near(name, bitmap.rgb, entry->data, entry->bytes, exact ? 0.0 : mean, exact ? 0 : most);
    free(bitmap.rgb);
}

static void test_decode(void **state)
{
    (void)state;
    assert_int_equal(each_expected("decode", check_decode), 16);
}

/* stb_image by itself, also where libjpeg is there. */
static void check_stb(const char *name, const td_safetensors_entry *entry)
{
    if (strstr(name, ".jpg") == NULL || strstr(name, "disguise") != NULL) {
        return;
    }
    char path[256];
    snprintf(path, sizeof path, FOLDER "%s", name);
    size_t size;
    uint8_t *bytes = read_bytes(path, &size);
    td_encoded picture = encoded(bytes, size, name);
    td_bitmap bitmap = { 0 };
    const char *why;
    assert_int_equal(td_stb_decode(&picture, &bitmap, &why), TD_OK);
    assert_null(why);
    require_near(name, bitmap.rgb, entry->data, entry->bytes, 2.0, 60);
    free(bitmap.rgb);
    free(bytes);
}

static void test_decode_stb(void **state)
{
    (void)state;
    each_expected("decode", check_stb);
}

/* A decoder that stops early gives the same rows. */
static void test_decode_rows(void **state)
{
    (void)state;
    static const char *const names[] = { "420.jpg",   "444.jpg",  "progressive.jpg",
                                         "large.jpg", "cmyk.jpg", "rgb.png" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        td_bitmap whole = decode(names[i], 0);
        for (int rows = 1; rows < whole.height; rows += 5) {
            td_bitmap part = decode(names[i], rows);
            assert_in_range(part.height, rows, whole.height);
            assert_memory_equal(part.rgb, whole.rgb, (size_t)part.width * (size_t)rows * 3);
            free(part.rgb);
        }
        free(whole.rgb);
    }
}

/* ---- bad pictures ---- */

static void assert_bad(const uint8_t *bytes, size_t size, const char *says)
{
    uint8_t *copy = malloc(size + 1); /* exactly as long, so that a sanitizer sees more */
    assert_non_null(copy);
    memcpy(copy, bytes, size);
    td_encoded picture = encoded(copy, size, "some.jpg");
    td_bitmap bitmap = { .rgb = NULL };
    bool bad = td_bitmap_open(&picture) != TD_OK || td_bitmap_decode(&picture, 0, &bitmap) != TD_OK;
    free(bitmap.rgb);
    free(copy);
    assert_true(bad);
    assert_error_says("some.jpg", says, NULL);
}

static void test_cut_off(void **state)
{
    (void)state;
    static const char *const names[] = { "420.jpg", "progressive.jpg", "rgb.png", "rgb.bmp",
                                         "palette.gif" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[256];
        snprintf(path, sizeof path, FOLDER "%s", names[i]);
        size_t size;
        uint8_t *bytes = read_bytes(path, &size);
        for (int part = 1; part < 10; part++) {
            assert_bad(bytes, size * (size_t)part / 10, "cannot be read");
        }
        free(bytes);
    }
    assert_bad((const uint8_t *)"", 0, "empty");
    assert_bad((const uint8_t *)"hello, world", 12, "neither JPEG, PNG, BMP nor GIF");
}

/* Also a JPEG of which the end marker alone is missing: whether the last pixels are there cannot be
 * told, and PIL refuses it, too. */
static void test_no_end_marker(void **state)
{
    (void)state;
    size_t size;
    uint8_t *bytes = read_bytes(FOLDER "420.jpg", &size);
    assert_bad(bytes, size - 1, "cut off");
    assert_bad(bytes, size - 2, "cut off");
    free(bytes);
}

/* A few bytes that promise 65,000 x 65,000 pixels are refused before any memory is taken. */
static void test_bombs(void **state)
{
    (void)state;
    size_t size;
    uint8_t *bytes = read_bytes(FOLDER "420.jpg", &size);
    for (size_t i = 2; i + 8 < size; i++) {
        if (bytes[i] == 0xff && bytes[i + 1] == 0xc0) { /* the frame: its height, then its width */
            memcpy(bytes + i + 5, "\xfd\xe8\xfd\xe8", 4);
            break;
        }
    }
    assert_bad(bytes, size, "65000 x 65000 pixels are more than");
    free(bytes);
    bytes = read_bytes(FOLDER "rgb.bmp", &size);
    memcpy(bytes + 18, "\xe8\xfd\x00\x00\xe8\xfd\x00\x00", 8);
    assert_bad(bytes, size, "65000 x 65000 pixels are more than");
    free(bytes);
}

/* The bits of a deflated stream, the first in the lowest place. */
typedef struct bit_writer {
    uint8_t *bytes;
    size_t count; /* of bits */
} bit_writer;

static void put_bits(bit_writer *w, unsigned bits, int count)
{
    for (int i = 0; i < count; i++, w->count++) {
        w->bytes[w->count / 8] |= (uint8_t)((bits >> i & 1) << w->count % 8);
    }
}

static uint8_t *put_chunk(uint8_t *at, const char *name, const uint8_t *data, uint32_t size)
{
    const uint8_t length[4] = { (uint8_t)(size >> 24), (uint8_t)(size >> 16), (uint8_t)(size >> 8),
                                (uint8_t)size };
    memcpy(at, length, 4);
    memcpy(at + 4, name, 4);
    memcpy(at + 8, data, size);
    memset(at + 8 + size, 0, 4); /* the checksum: stb_image does not look */
    return at + 12 + size;
}

/* A PNG of 8 x 8 grey pixels whose data are `repeats` times 258 zeros when they are unpacked: a
 * fixed Huffman block of one zero and copies of it (RFC 1951). */
static uint8_t *png_of_zeros(size_t repeats, size_t *size)
{
    size_t most = repeats * 13 / 8 + 16;
    uint8_t *data = calloc(1, most), *file = malloc(most + 100);
    assert_true(data != NULL && file != NULL);
    data[0] = 0x78;
    data[1] = 0x01;
    bit_writer w = { .bytes = data, .count = 16 };
    put_bits(&w, 1 | 1 << 1, 3); /* the last block, fixed codes */
    put_bits(&w, 0x0c, 8);       /* literal 0: 00110000, the highest bit first */
    for (size_t i = 0; i < repeats; i++) {
        put_bits(&w, 0xa3, 8); /* length 258: 11000101 */
        put_bits(&w, 0, 5);    /* distance 1 */
    }
    put_bits(&w, 0, 7); /* the end */
    static const uint8_t header[13] = { 0, 0, 0, 8, 0, 0, 0, 8, 8, 0, 0, 0, 0 };
    memcpy(file, "\x89PNG\r\n\x1a\n", 8);
    uint8_t *at = put_chunk(file + 8, "IHDR", header, sizeof header);
    at = put_chunk(at, "IDAT", data, (uint32_t)(w.count / 8 + 5));
    at = put_chunk(at, "IEND", header, 0);
    *size = (size_t)(at - file);
    free(data);
    return file;
}

static size_t peak_memory(void) /* bytes */
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (size_t)usage.ru_maxrss * 1024;
}

/* 2 MB that unpack to 320 MB, for 64 pixels. */
static void test_data_larger_than_pixels(void **state)
{
    (void)state;
    size_t size;
    uint8_t *bytes = png_of_zeros(1, &size); /* as such, it is a picture */
    td_encoded picture = encoded(bytes, size, "zeros.png");
    td_bitmap bitmap;
    assert_int_equal(td_bitmap_open(&picture), TD_OK);
    assert_int_equal(td_bitmap_decode(&picture, 0, &bitmap), TD_OK);
    assert_int_equal(bitmap.width * bitmap.height, 64);
    free(bitmap.rgb);
    free(bytes);
    bytes = png_of_zeros(1300000, &size);
    assert_in_range(size, 2000000, 2200000);
    size_t before = peak_memory();
    assert_bad(bytes, size, "data are many times larger than its pixels");
    assert_true(peak_memory() - before < ((size_t)64 << 20));
    free(bytes);
}

/* ---- resizing ---- */

static void check_resize(const char *rest, const td_safetensors_entry *entry)
{
    td_box crop;
    int width, height;
    assert_int_equal(sscanf(rest, "%d,%d,%d,%d,%d,%d", &crop.left, &crop.top, &crop.width,
                            &crop.height, &width, &height),
                     6);
    td_bitmap bitmap = decode("rgb.png", 0);
    uint8_t *rgb = malloc(entry->bytes);
    assert_non_null(rgb);
    td_box all = { 0, 0, width, height };
    assert_int_equal(td_resample(&bitmap, crop, width, height, all, rgb), TD_OK);
    require_near(rest, rgb, entry->data, entry->bytes, 0.0, 0);
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
    assert_int_equal(each_expected("resize", check_resize), 8);
}

static void check_evaluate(const char *rest, const td_safetensors_entry *entry)
{
    char name[64], path[256];
    td_picture_transform t = { .resize = 0 };
    assert_int_equal(sscanf(rest, "%63[^,],%d,%d", name, &t.resize, &t.size), 3);
    assert_int_equal(td_picture_transform_check(&t), TD_OK);
    snprintf(path, sizeof path, FOLDER "%s", name);
    size_t size;
    uint8_t *bytes = read_bytes(path, &size), *rgb = malloc(entry->bytes);
    assert_non_null(rgb);
    td_encoded picture = encoded(bytes, size, name);
    assert_int_equal(td_picture_load(&t, &picture, 0, 0, rgb), TD_OK);
#ifdef TD_HAVE_JPEG
    require_near(rest, rgb, entry->data, entry->bytes, 0.0, 0);
#else
    require_near(rest, rgb, entry->data, entry->bytes, 2.0, 60);
#endif
    free(bytes);
    free(rgb);
}

static void test_evaluate(void **state)
{
    (void)state;
    assert_int_equal(each_expected("evaluate", check_evaluate), 8);
}

/* ---- colours ---- */

static void check_jitter(const char *rest, const td_safetensors_entry *entry)
{
    int kind, thousandths;
    assert_int_equal(sscanf(rest, "%d,%d", &kind, &thousandths), 2);
    td_bitmap bitmap = decode("rgb.png", 0);
    td_jitter((td_jitter_kind)kind, thousandths / 1000.0, bitmap.rgb, entry->bytes / 3);
    require_near(rest, bitmap.rgb, entry->data, entry->bytes, kind == TD_JITTER_HUE ? 0.01 : 0.0,
                 kind == TD_JITTER_HUE ? 1 : 0);
    free(bitmap.rgb);
}

static void test_jitter(void **state)
{
    (void)state;
    assert_int_equal(each_expected("jitter", check_jitter), 17);
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
    td_picture_transform t = { .size = 8 };
    assert_int_equal(td_picture_transform_check(&t), TD_OK);
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
    assert_int_equal(each_expected("crops", check_crops), 6);
}

/* Draws depend on seed, epoch and sample, and use their whole ranges. */
static void test_draws(void **state)
{
    (void)state;
    enum { COUNT = 2000 };
    td_picture_transform t = { .size = 8,
                               .flip = true,
                               .brightness = 0.4,
                               .contrast = 0.3,
                               .saturation = 0.2,
                               .hue = 0.1,
                               .seed = 5 };
    assert_int_equal(td_picture_transform_check(&t), TD_OK);
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
    td_picture_transform t = {
        .size = SIZE, .flip = true, .brightness = 0.4, .saturation = 0.3, .hue = 0.2, .seed = 8
    };
    assert_int_equal(td_picture_transform_check(&t), TD_OK);
    size_t size;
    uint8_t *bytes = read_bytes(FOLDER "large.jpg", &size);
    td_encoded picture = encoded(bytes, size, "large.jpg");
    td_bitmap whole = decode("large.jpg", 0);
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

static void assert_refused(td_picture_transform t, const char *says)
{
    assert_int_equal(td_picture_transform_check(&t), TD_E_ARG);
    assert_error_says(says, NULL);
}

static void test_options(void **state)
{
    (void)state;
    assert_refused((td_picture_transform){ .size = -1 }, "sizes go from 1");
    assert_refused((td_picture_transform){ .size = 32, .resize = 31 }, "cannot be larger");
    assert_refused((td_picture_transform){ .scale = { 0.5, 0.4 } }, "scales lie in");
    assert_refused((td_picture_transform){ .scale = { 0.5, 1.4 } }, "scales lie in");
    assert_refused((td_picture_transform){ .ratio = { -1.0, 1.4 } }, "ratios");
    assert_refused((td_picture_transform){ .hue = 0.6 }, "hue at most");
    assert_refused((td_picture_transform){ .contrast = NAN }, "negative");
}

/* ---- real pictures: TANDEM_PICTURES names a folder of JPEGs ---- */

static bool run_pil(const char *folder, const char *out)
{
    const char *python = getenv("TANDEM_PYTHON");
    char command[8192];
    snprintf(command, sizeof command, "%s tests/make_pictures.py decode '%s' '%s' >'%s' 2>&1",
             python != NULL ? python : "/usr/bin/python3", folder, out, temp_path("log"));
    return system(command) == 0;
}

static const char *pictures;
static double worst_stb;

static void check_real(const char *name, const td_safetensors_entry *entry)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", pictures, name);
    size_t size;
    uint8_t *bytes = read_bytes(path, &size);
    td_encoded picture = encoded(bytes, size, path);
    picture.most_pixels = 100000000;
    td_bitmap bitmap = { 0 };
    if (td_bitmap_open(&picture) != TD_OK || td_bitmap_decode(&picture, 0, &bitmap) != TD_OK) {
        fail_msg("%s", td_last_error());
    }
    require_near(name, bitmap.rgb, entry->data, entry->bytes, 2.0, 255);
    free(bitmap.rgb);
    const char *why;
    assert_int_equal(td_stb_decode(&picture, &bitmap, &why), TD_OK);
    assert_null(why);
    worst_stb = fmax(worst_stb, compare(bitmap.rgb, entry->data, entry->bytes).mean);
    free(bitmap.rgb);
    free(bytes);
}

static void check_real_evaluation(const char *name, const td_safetensors_entry *entry)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", pictures, name);
    size_t size;
    uint8_t *bytes = read_bytes(path, &size), *rgb = malloc(entry->bytes);
    assert_non_null(rgb);
    td_encoded picture = encoded(bytes, size, path);
    picture.most_pixels = 100000000;
    td_picture_transform t = { .size = 224, .resize = 256 };
    assert_int_equal(td_picture_transform_check(&t), TD_OK);
    assert_int_equal(td_picture_load(&t, &picture, 0, 0, rgb), TD_OK);
    require_near(name, rgb, entry->data, entry->bytes, 2.0, 255);
    free(rgb);
    free(bytes);
}

static void test_real_pictures(void **state)
{
    (void)state;
    pictures = getenv("TANDEM_PICTURES");
    const char *out = temp_path("decoded.safetensors");
    if (pictures == NULL || !run_pil(pictures, out)) {
        print_message("# skipped: set TANDEM_PICTURES to a folder of JPEGs; needs PIL and torch\n");
        skip();
    }
    td_safetensors *own = expected;
    assert_int_equal(td_safetensors_open(out, &expected), TD_OK);
    int count = each_expected("decode", check_real);
    each_expected("evaluate", check_real_evaluation);
    td_safetensors_close(expected);
    expected = own;
    print_message("# %d pictures; stb_image: at most %.2f levels away on average\n", count,
                  worst_stb);
    assert_true(count > 0 && worst_stb < 2.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode),
        cmocka_unit_test(test_decode_stb),
        cmocka_unit_test(test_decode_rows),
        cmocka_unit_test(test_cut_off),
        cmocka_unit_test(test_no_end_marker),
        cmocka_unit_test(test_bombs),
        cmocka_unit_test(test_data_larger_than_pixels),
        cmocka_unit_test(test_resize),
        cmocka_unit_test(test_evaluate),
        cmocka_unit_test(test_jitter),
        cmocka_unit_test(test_crops),
        cmocka_unit_test(test_draws),
        cmocka_unit_test(test_training_is_its_steps),
        cmocka_unit_test(test_options),
        cmocka_unit_test_setup_teardown(test_real_pictures, temp_folder_setup,
                                        temp_folder_teardown),
    };
    return cmocka_run_group_tests_name("data: pictures", tests, open_expected, close_expected);
}
