/* Decoding pictures, and refusing bad ones, against what PIL made of the same small files. */
#include "tandem.h"
#include "tests/data/pictures_check.h"
#include "tests/help/temp_folder.h"

#include "data/images/transform.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- decoding ---- */

static void check_decode(const char *name, const td_safetensors_entry *entry)
{
    td_bitmap bitmap = pictures_decode(name, 0);
    assert_int_equal(bitmap.height, entry->shape.dim[0]);
    assert_int_equal(bitmap.width, entry->shape.dim[1]);
    pictures_require_near(name, bitmap.rgb, entry->data, entry->bytes, 0.0, 0);
    free(bitmap.rgb);
}

static void test_decode(void **state)
{
    (void)state;
    assert_int_equal(pictures_each(NULL, "decode", check_decode), 16);
}

/* A decoder that stops early gives the same rows. */
static void test_decode_rows(void **state)
{
    (void)state;
    static const char *const names[] = { "420.jpg",   "444.jpg",  "progressive.jpg",
                                         "large.jpg", "cmyk.jpg", "rgb.png" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        td_bitmap whole = pictures_decode(names[i], 0);
        for (int rows = 1; rows < whole.height; rows += 5) {
            td_bitmap part = pictures_decode(names[i], rows);
            assert_in_range(part.height, rows, whole.height);
            assert_memory_equal(part.rgb, whole.rgb, (size_t)part.width * (size_t)rows * 3);
            free(part.rgb);
        }
        free(whole.rgb);
    }
}

/* ---- bad pictures ---- */

static void test_cut_off(void **state)
{
    (void)state;
    static const char *const names[] = { "420.jpg", "progressive.jpg", "rgb.png" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[256];
        snprintf(path, sizeof path, PICTURES_FOLDER "%s", names[i]);
        size_t size;
        uint8_t *bytes = pictures_read_bytes(path, &size);
        for (int part = 1; part < 10; part++) {
            pictures_assert_bad(bytes, size * (size_t)part / 10, "cannot be read");
        }
        free(bytes);
    }
    pictures_assert_bad((const uint8_t *)"", 0, "empty");
    pictures_assert_bad((const uint8_t *)"hello, world", 12, "none of the images that are read");
}

/* Also a JPEG of which the end marker alone is missing: whether the last pixels are there cannot be
 * told, and PIL refuses it, too. */
static void test_no_end_marker(void **state)
{
    (void)state;
    size_t size;
    uint8_t *bytes = pictures_read_bytes(PICTURES_FOLDER "420.jpg", &size);
    pictures_assert_bad(bytes, size - 1, "Premature end");
    pictures_assert_bad(bytes, size - 2, "Premature end");
    free(bytes);
}

/* A few bytes that promise 65,000 x 65,000 pixels are refused before any memory is taken. */
static void test_bombs(void **state)
{
    (void)state;
    size_t size;
    uint8_t *bytes = pictures_read_bytes(PICTURES_FOLDER "420.jpg", &size);
    for (size_t i = 2; i + 8 < size; i++) {
        if (bytes[i] == 0xff && bytes[i + 1] == 0xc0) { /* the frame: its height, then its width */
            memcpy(bytes + i + 5, "\xfd\xe8\xfd\xe8", 4);
            break;
        }
    }
    pictures_assert_bad(bytes, size, "65000 x 65000 pixels are more than");
    free(bytes);
}

/* ---- real pictures: TANDEM_PICTURES names a folder of JPEGs ---- */

static bool run_pil(const char *folder, const char *out)
{
    const char *python = getenv("TANDEM_PYTHON");
    char command[8192];
    snprintf(command, sizeof command, "%s tests/data/make_pictures.py decode '%s' '%s' >'%s' 2>&1",
             python != NULL ? python : "/usr/bin/python3", folder, out, temp_path("log"));
    return system(command) == 0;
}

static const char *pictures;

static void check_real(const char *name, const td_safetensors_entry *entry)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", pictures, name);
    size_t size;
    uint8_t *bytes = pictures_read_bytes(path, &size);
    td_encoded picture = pictures_encoded(bytes, size, path);
    picture.most_pixels = 100000000;
    td_bitmap bitmap = { 0 };
    if (td_bitmap_open(&picture) != TD_OK || td_bitmap_decode(&picture, 0, &bitmap) != TD_OK) {
        fail_msg("%s", td_last_error());
    }
    pictures_require_near(name, bitmap.rgb, entry->data, entry->bytes, 2.0, 255);
    free(bitmap.rgb);
    free(bytes);
}

static void check_real_evaluation(const char *name, const td_safetensors_entry *entry)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", pictures, name);
    size_t size;
    uint8_t *bytes = pictures_read_bytes(path, &size), *rgb = malloc(entry->bytes);
    assert_non_null(rgb);
    td_encoded picture = pictures_encoded(bytes, size, path);
    picture.most_pixels = 100000000;
    td_image_folder_transform t = { .size = 224, .resize = 256 };
    assert_int_equal(td_image_folder_transform_check(&t), TD_OK);
    assert_int_equal(td_picture_load(&t, &picture, 0, 0, rgb), TD_OK);
    pictures_require_near(name, rgb, entry->data, entry->bytes, 2.0, 255);
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
    td_safetensors *file;
    assert_int_equal(td_safetensors_open(out, &file), TD_OK);
    int count = pictures_each(file, "decode", check_real);
    pictures_each(file, "evaluate", check_real_evaluation);
    td_safetensors_close(file);
    print_message("# %d pictures\n", count);
    assert_true(count > 0);
}

/* A file that is larger than any picture is refused before it is read. */
static void test_huge_file(void **state)
{
    (void)state;
    td_image_folder_transform transform = { .size = 8 };
    td_tensor *x = td_full(TD_SHAPE(1, 3, 8, 8), 0.0, TD_F32, TD_CPU);
    temp_write("huge.png", "\x89PNG\r\n\x1a\n", 8);
    assert_int_equal(truncate(temp_path("huge.png"), (off_t)1 << 40), 0);
    assert_int_equal(td_image_read(temp_path("huge.png"), &transform, x), TD_E_FORMAT);
    assert_error_says("huge.png: 1099511627776 bytes (a PNG image) are more than the",
                      "make it smaller", NULL);
    assert_int_equal(mkfifo(temp_path("fifo.png"), 0600), 0); /* which nobody writes to */
    assert_int_equal(td_image_read(temp_path("fifo.png"), &transform, x), TD_E_IO);
    assert_error_says("fifo.png: a FIFO or device, not a regular file", NULL);
    td_free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode),
        cmocka_unit_test(test_decode_rows),
        cmocka_unit_test(test_cut_off),
        cmocka_unit_test(test_no_end_marker),
        cmocka_unit_test(test_bombs),
        cmocka_unit_test_setup_teardown(test_huge_file, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_real_pictures, temp_folder_setup,
                                        temp_folder_teardown),
    };
    return cmocka_run_group_tests_name("data: pictures", tests, pictures_open_expected,
                                       pictures_close_expected);
}
