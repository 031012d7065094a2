/* Images that stb_image decodes: of each kind, against the same pixels in a PNG; JPEG and PNG as
 * where libjpeg and libpng are missing; what is cut off or promises too much is refused. */
#include "tests/data/pictures_check.h"
#include "tests/help/temp_folder.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void needs_stb(void)
{
#ifndef TD_HAVE_STB
    print_message("# skipped: this build has no stb_image: make deps\n");
    skip();
#endif
}

/* A file and one with the same pixels; how much of it, in percent, its first frame needs. */
static const struct {
    const char *name, *png;
    size_t needed;
} files[] = {
    { "rgb.bmp", "rgb.png", 99 },         { "rgb.tga", "rgb.png", 98 },
    { "rgb.ppm", "rgb.png", 99 },         { "grey.pgm", "grey.png", 99 },
    { "palette.gif", "palette.png", 50 },
};
enum { FILES = sizeof files / sizeof *files };

static void test_kinds(void **state)
{
    (void)state;
    needs_stb();
    for (size_t i = 0; i < FILES; i++) {
        td_bitmap a = pictures_decode(files[i].name, 0), b = pictures_decode(files[i].png, 0);
        assert_int_equal(a.width, b.width);
        assert_int_equal(a.height, b.height);
        pictures_require_near(files[i].name, a.rgb, b.rgb, (size_t)a.width * (size_t)a.height * 3,
                              0.0, 0);
        free(a.rgb);
        free(b.rgb);
    }
}

static void test_cut_off(void **state)
{
    (void)state;
    needs_stb();
    for (size_t i = 0; i < FILES; i++) {
        char path[256];
        snprintf(path, sizeof path, PICTURES_FOLDER "%s", files[i].name);
        size_t size;
        uint8_t *bytes = pictures_read_bytes(path, &size);
        for (size_t length = 20; length < size * files[i].needed / 100; length += 61) {
            pictures_assert_bad(bytes, length, "cannot be read: ");
        }
        free(bytes);
    }
    pictures_assert_bad((const uint8_t *)"P6 2 2 255\nsix pixels.", 22, "the file is cut off");
}

/* Decodes a file of W x 1 pixels that is written here. */
enum { W = 2 };

static void decode_row(const char *name, const void *bytes, size_t size, const uint8_t *expected)
{
    td_encoded image = pictures_encoded(bytes, size, name);
    td_bitmap bitmap;
    if (td_bitmap_open(&image) != TD_OK || td_bitmap_decode(&image, 0, &bitmap) != TD_OK) {
        fail_msg("%s", td_last_error());
    }
    assert_int_equal(bitmap.width, W);
    assert_int_equal(bitmap.height, 1);
    assert_memory_equal(bitmap.rgb, expected, (size_t)W * 3);
    free(bitmap.rgb);
}

/* Photoshop's: channel by channel. */
static void test_psd(void **state)
{
    (void)state;
    needs_stb();
    static const char psd[] = "8BPS\0\1\0\0\0\0\0\0"
                              "\0\3\0\0\0\1\0\0\0\2\0\10\0\3"
                              "\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
                              "\1\2\3\4\5\6";
    decode_row("a.psd", psd, sizeof psd - 1, (const uint8_t[]){ 1, 3, 5, 2, 4, 6 });
    pictures_assert_bad((const uint8_t *)psd, sizeof psd - 2, "cut off");
}

/* Radiance's: light of 1 and of 0.5, by a gamma of 2.2. */
static void test_hdr(void **state)
{
    (void)state;
    needs_stb();
    static const char hdr[] = "#?RADIANCE\nFORMAT=32-bit_rle_rgbe\n\n-Y 1 +X 2\n"
                              "\x80\x80\x80\x81\x80\x80\x80\x80";
    decode_row("a.hdr", hdr, sizeof hdr - 1, (const uint8_t[]){ 255, 255, 255, 186, 186, 186 });
    pictures_assert_bad((const uint8_t *)hdr, sizeof hdr - 2, "cut off");
}

/* As in a build without libjpeg and libpng. JPEG's inverse transform may round otherwise. */
static void test_for_other_libraries(void **state)
{
    (void)state;
    needs_stb();
    static const char *const names[] = { "444.jpg",  "420.jpg",        "progressive.jpg",
                                         "grey.jpg", "cmyk.jpg",       "rgb.png",
                                         "rgba.png", "grey_alpha.png", "palette.png" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[256], why[TD_DECODER_WHY] = "";
        snprintf(path, sizeof path, PICTURES_FOLDER "%s", names[i]);
        size_t size;
        uint8_t *bytes = pictures_read_bytes(path, &size);
        td_encoded image = pictures_encoded(bytes, size, names[i]);
        td_bitmap whole = pictures_decode(names[i], 0), bitmap;
        bool jpeg = strstr(names[i], ".jpg") != NULL;
        if (td_stb_read(&image, 0, NULL, why) != TD_OK ||
            td_stb_read(&image, image.height, &bitmap, why) != TD_OK) {
            fail_msg("%s: %s", names[i], why);
        }
        pictures_require_near(names[i], bitmap.rgb, whole.rgb,
                              (size_t)whole.width * (size_t)whole.height * 3, jpeg ? 1.5 : 0.0,
                              jpeg ? 40 : 0);
        image.size -= image.size / 4;
        assert_int_equal(td_stb_read(&image, image.height, &bitmap, why), TD_E_FORMAT);
        free(bytes);
        free(whole.rgb);
        free(bitmap.rgb);
    }
}

/* A JPEG whose table of codes has more symbols than there are: Debian 12's stb_image would write
 * them past its end. */
static void test_large_table(void **state)
{
    (void)state;
    needs_stb();
    size_t size;
    char why[TD_DECODER_WHY] = "";
    uint8_t *bytes = pictures_read_bytes(PICTURES_FOLDER "444.jpg", &size);
    uint8_t *table = memmem(bytes, size, "\xff\xc4", 2);
    assert_non_null(table);
    memset(table + 5, 200, 16); /* how many codes there are of each length */
    td_encoded image = pictures_encoded(bytes, size, "444.jpg");
    td_status status = td_stb_read(&image, 0, NULL, why);
    free(bytes);
    assert_int_equal(status, TD_E_FORMAT);
    assert_string_equal(why, "a table has too many symbols");
}

/* A few bytes that promise many pixels are refused before any memory is taken for them. */
static void test_bombs(void **state)
{
    (void)state;
    needs_stb();
    static const char ppm[] = "P6 65000 65000 255\nabc", gif[] = "GIF89a\xe8\xfd\xe8\xfd\0\0\0";
    static const char tga[] = "\0\0\2\0\0\0\0\0\0\0\0\0\xe8\xfd\xe8\xfd\30\0abc";
    pictures_assert_bad((const uint8_t *)ppm, sizeof ppm - 1, "65000 x 65000 pixels are more than");
    pictures_assert_bad((const uint8_t *)gif, sizeof gif - 1, "65000 x 65000 pixels are more than");
    pictures_assert_bad((const uint8_t *)tga, sizeof tga - 1, "65000 x 65000 pixels are more than");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),       cmocka_unit_test(test_cut_off),
        cmocka_unit_test(test_psd),         cmocka_unit_test(test_hdr),
        cmocka_unit_test(test_bombs),       cmocka_unit_test(test_for_other_libraries),
        cmocka_unit_test(test_large_table),
    };
    return cmocka_run_group_tests_name("data: images by stb_image", tests, NULL, NULL);
}
