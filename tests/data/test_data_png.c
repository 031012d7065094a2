/* PNGs of every kind that the format knows, written here: all depths, colours, palettes, with and
 * without interlacing; and one whose data are far larger than its pixels. */
#include "tests/data/pictures_check.h"
#include "tests/help/temp_folder.h"
#include "data/images/transform.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

/* ---- writing ---- */

static uint8_t *put_big_endian(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++) {
        *at++ = (uint8_t)(value >> (24 - 8 * i));
    }
    return at;
}

/* CRC-32 (ISO 3309), and Adler-32 (RFC 1950). */
static uint32_t crc_of(const uint8_t *bytes, size_t size)
{
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < size; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
        }
    }
    return ~crc;
}

static uint32_t adler_of(const uint8_t *bytes, size_t size)
{
    uint32_t a = 1, b = 0;
    for (size_t i = 0; i < size; i++) {
        a = (a + bytes[i]) % 65521;
        b = (b + a) % 65521;
    }
    return b << 16 | a;
}

static uint8_t *put_chunk(uint8_t *at, const char *name, const uint8_t *data, size_t size)
{
    at = put_big_endian(at, (uint32_t)size);
    memcpy(at, name, 4);
    memcpy(at + 4, data, size);
    return put_big_endian(at + 4 + size, crc_of(at, 4 + size));
}

/* zlib's frame around blocks that are stored as they are (RFC 1950, 1951). */
static size_t store(const uint8_t *bytes, size_t size, uint8_t *out)
{
    enum { MOST = 65535 };
    uint8_t *at = out;
    *at++ = 0x78;
    *at++ = 0x01;
    for (size_t done = 0; done < size || done == 0;) {
        size_t n = size - done < MOST ? size - done : MOST;
        *at++ = done + n == size; /* the last one */
        *at++ = (uint8_t)n;
        *at++ = (uint8_t)(n >> 8);
        *at++ = (uint8_t)~n;
        *at++ = (uint8_t)(~n >> 8);
        memcpy(at, bytes + done, n);
        at += n;
        done += n;
    }
    return (size_t)(put_big_endian(at, adler_of(bytes, size)) - out);
}

enum { GREY = 0, RGB = 2, PALETTE = 3, GREY_ALPHA = 4, RGB_ALPHA = 6 };
enum { MOST_SIDE = 40, ROOM = 1 << 16 };

typedef struct png {
    int width, height, kind, depth;
    bool interlaced;
} png;

static int channels_of(const png *p)
{
    static const int channels[] = {
        [GREY] = 1, [RGB] = 3, [PALETTE] = 1, [4] = 2, [RGB_ALPHA] = 4, [5] = 0
    };
    return channels[p->kind];
}

/* What stands in channel c of a pixel: anything, but the same each time. */
static unsigned value_of(const png *p, int x, int y, int c)
{
    unsigned hash = (unsigned)(x * 7919 + y * 104729 + c * 15485863 + 12345) * 2654435761u;
    return hash >> (32 - p->depth);
}

static uint8_t colour_of(unsigned entry, int c)
{
    return (uint8_t)(entry * 37 + (unsigned)c * 101 + 11);
}

/* What a decoder is to make of it: the upper byte of 16 bits (so does PIL), grey of fewer than 8
 * bits spread over all levels, alpha left out. */
static uint8_t expected_of(const png *p, int x, int y, int c)
{
    bool grey = p->kind == GREY || p->kind == GREY_ALPHA;
    unsigned value = value_of(p, x, y, grey || p->kind == PALETTE ? 0 : c);
    return p->kind == PALETTE ? colour_of(value, c)
           : p->depth == 16   ? (uint8_t)(value >> 8)
                              : (uint8_t)(value * 255 / ((1u << p->depth) - 1));
}

/* The rows of one pass: pixels (x0 + i dx, y0 + j dy), each row with its filter (none) in front,
 * samples packed from the highest bit down. */
static uint8_t *put_pass(const png *p, int x0, int y0, int dx, int dy, uint8_t *at)
{
    for (int y = y0; y < p->height && x0 < p->width; y += dy) {
        int bit = 0;
        *at++ = 0;
        *at = 0;
        for (int x = x0; x < p->width; x += dx) {
            for (int c = 0; c < channels_of(p); c++) {
                for (int b = p->depth - 1; b >= 0; b--) {
                    *at |= (uint8_t)((value_of(p, x, y, c) >> b & 1) << (7 - bit));
                    bit = (bit + 1) % 8;
                    if (bit == 0) {
                        *++at = 0;
                    }
                }
            }
        }
        at += bit > 0;
    }
    return at;
}

static uint8_t *put_header(const png *p, uint8_t *at)
{
    uint8_t header[13];
    put_big_endian(put_big_endian(header, (uint32_t)p->width), (uint32_t)p->height);
    header[8] = (uint8_t)p->depth;
    header[9] = (uint8_t)p->kind;
    header[10] = header[11] = 0;
    header[12] = p->interlaced;
    memcpy(at, "\x89PNG\r\n\x1a\n", 8);
    return put_chunk(at + 8, "IHDR", header, sizeof header);
}

static size_t write_png(const png *p, uint8_t *file)
{
    static const int adam7[7][4] = { { 0, 0, 8, 8 }, { 4, 0, 8, 8 }, { 0, 4, 4, 8 }, { 2, 0, 4, 4 },
                                     { 0, 2, 2, 4 }, { 1, 0, 2, 2 }, { 0, 1, 1, 2 } };
    static uint8_t rows[ROOM / 2], data[ROOM / 2];
    uint8_t *at = put_header(p, file), *end = rows;
    if (p->kind == PALETTE) {
        uint8_t colours[256 * 3];
        int entries = 1 << p->depth;
        for (int i = 0; i < 3 * entries; i++) {
            colours[i] = colour_of((unsigned)i / 3, i % 3);
        }
        at = put_chunk(at, "PLTE", colours, (size_t)(3 * entries));
    }
    for (int i = 0; i < 7 && p->interlaced; i++) {
        end = put_pass(p, adam7[i][0], adam7[i][1], adam7[i][2], adam7[i][3], end);
    }
    if (!p->interlaced) {
        end = put_pass(p, 0, 0, 1, 1, end);
    }
    at = put_chunk(at, "IDAT", data, store(rows, (size_t)(end - rows), data));
    return (size_t)(put_chunk(at, "IEND", rows, 0) - file);
}

/* ---- reading ---- */

static void check(const png *p)
{
    static uint8_t file[ROOM];
    char name[64];
    snprintf(name, sizeof name, "%dx%d, kind %d, %d bits%s", p->width, p->height, p->kind, p->depth,
             p->interlaced ? ", interlaced" : "");
    td_encoded picture = pictures_encoded(file, write_png(p, file), name);
    td_bitmap bitmap;
    if (td_bitmap_open(&picture) != TD_OK || td_bitmap_decode(&picture, 0, &bitmap) != TD_OK) {
        fail_msg("%s", td_last_error());
    }
    assert_int_equal(bitmap.width, p->width);
    assert_int_equal(bitmap.height, p->height);
    for (int i = 0; i < p->width * p->height * 3; i++) {
        int x = i / 3 % p->width, y = i / 3 / p->width;
        if (bitmap.rgb[i] != expected_of(p, x, y, i % 3)) {
            fail_msg("%s: (%d, %d) channel %d is %d, should be %d", name, x, y, i % 3,
                     bitmap.rgb[i], expected_of(p, x, y, i % 3));
        }
    }
    free(bitmap.rgb);
}

static void test_all_kinds(void **state)
{
    (void)state;
    static const int kinds[] = { GREY, RGB, PALETTE, GREY_ALPHA, RGB_ALPHA };
    /* So small that passes are empty; odd; more than one block of eight. */
    static const int sizes[][2] = {
        { 1, 1 }, { 2, 3 }, { 5, 1 }, { 3, 9 }, { 17, 13 }, { 33, 40 }
    };
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        for (int depth = 1; depth <= 16; depth *= 2) {
            bool exists = kinds[k] == GREY || (kinds[k] == PALETTE ? depth <= 8 : depth >= 8);
            for (size_t s = 0; s < sizeof sizes / sizeof *sizes && exists; s++) {
                check(&(png){ sizes[s][0], sizes[s][1], kinds[k], depth, false });
                check(&(png){ sizes[s][0], sizes[s][1], kinds[k], depth, true });
            }
        }
    }
}

/* Data that end before the last pass are no picture. */
static void test_interlaced_cut_off(void **state)
{
    (void)state;
    static uint8_t file[ROOM];
    png p = { 17, 13, RGB, 16, true };
    size_t size = write_png(&p, file);
    for (size_t part = 0; part < size; part += 41) {
        pictures_assert_bad(file, part, part == 0 ? "empty" : "");
    }
}

/* ---- data larger than pixels ---- */

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

/* A PNG whose data are `repeats` times 258 zeros when they are unpacked: a fixed Huffman block of
 * one zero and copies of it (RFC 1951). */
static uint8_t *png_of_zeros(const png *p, size_t repeats, size_t *size)
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
    uint8_t *at = put_header(p, file);
    at = put_chunk(at, "IDAT", data, w.count / 8 + 5);
    at = put_chunk(at, "IEND", data, 0);
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

static void decode_zeros(size_t repeats)
{
    size_t size;
    uint8_t *bytes = png_of_zeros(&(png){ 8, 8, GREY, 8, false }, repeats, &size);
    td_encoded picture = pictures_encoded(bytes, size, "zeros.png");
    td_bitmap bitmap;
    assert_int_equal(td_bitmap_open(&picture), TD_OK);
    assert_int_equal(td_bitmap_decode(&picture, 0, &bitmap), TD_OK);
    assert_int_equal(bitmap.width * bitmap.height, 64);
    free(bitmap.rgb);
    free(bytes);
}

/* 2 MB that unpack to 320 MB, for 64 pixels: what is not needed takes no memory. */
static void test_data_larger_than_pixels(void **state)
{
    (void)state;
    decode_zeros(1);
    size_t before = peak_memory();
    decode_zeros(1300000);
    assert_true(peak_memory() - before < ((size_t)64 << 20));
}

/* An image of one row whose shorter side is made longer: the longer side must be a size, too. */
static void test_one_long_row(void **state)
{
    (void)state;
    enum { SIZE = 16 };
    static const struct {
        int resize;
        td_status status;
    } cases[] = { { 2147, TD_OK }, { 2148, TD_E_FORMAT }, { 8192, TD_E_FORMAT } };
    static uint8_t rgb[SIZE * SIZE * 3];
    size_t size;
    uint8_t *bytes = png_of_zeros(&(png){ 1000000, 1, GREY, 1, false }, 500, &size);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        td_image_folder_transform t = { .size = SIZE, .resize = cases[i].resize };
        td_encoded picture = pictures_encoded(bytes, size, "row.png");
        assert_int_equal(td_image_folder_transform_check(&t), TD_OK);
        assert_int_equal(td_picture_load(&t, &picture, 0, 0, rgb), cases[i].status);
    }
    assert_error_says("row.png: 1000000 x 1 pixels", NULL);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_kinds),
        cmocka_unit_test(test_interlaced_cut_off),
        cmocka_unit_test(test_data_larger_than_pixels),
        cmocka_unit_test(test_one_long_row),
    };
    return cmocka_run_group_tests_name("data: PNGs", tests, NULL, NULL);
}
