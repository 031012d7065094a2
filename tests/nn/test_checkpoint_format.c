/* The safetensors format: files that are right, damaged, hostile. */
#include "tandem.h"
#include "tests/help/entry_data.h"
#include "tests/help/expect_fatal.h"
#include "tests/help/temp_folder.h"
#include "nn/extra/ema.h"
#include "nn/io/safetensors.h"
#include "nn/module.h"
#include "tensor/extend.h"

#include <pthread.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>
#include <string.h>

/* A file of a header and `data` bytes 0, 1, 2, ... in exact memory, so that a sanitizer sees a read
 * beyond its end. */
static unsigned char *make_file(const char *header, uint64_t claimed, size_t data, size_t *size)
{
    size_t length = strlen(header);
    *size = 8 + length + data;
    unsigned char *bytes = malloc(*size);
    assert_non_null(bytes);
    for (int i = 0; i < 8; i++) {
        bytes[i] = (unsigned char)(claimed >> (8 * i));
    }
    memcpy(bytes + 8, header, length);
    for (size_t i = 0; i < data; i++) {
        bytes[8 + length + i] = (unsigned char)i;
    }
    return bytes;
}

/* ---- what is right ---- */

static void test_reads(void **state)
{
    (void)state;
    const char *header = "{\"b\":{\"dtype\":\"I32\",\"shape\":[2,1],\"data_offsets\":[3,11]},"
                         "\"__metadata__\":{\"epoch\":\"7\",\"\\u00e9\":\"a\\\"b\"},"
                         "\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
                         "\"none\":{\"dtype\":\"F64\",\"shape\":[0,5],\"data_offsets\":[3,3]},"
                         "\"one\":{\"shape\":[],\"data_offsets\":[11,13],\"dtype\":\"BF16\"}}  \n";
    size_t size;
    unsigned char *bytes = make_file(header, strlen(header), 13, &size);
    td_safetensors *file;
    if (td_safetensors_parse(bytes, size, &file) != TD_OK) {
        fail_msg("%s", td_last_error());
    }
    assert_int_equal(td_safetensors_count(file), 4);
    const td_safetensors_entry *b = td_safetensors_find(file, "b");
    assert_non_null(b);
    assert_int_equal(b->dtype, TD_I32);
    assert_int_equal(b->shape.ndim, 2);
    assert_int_equal(b->bytes, 8);
    int32_t *numbers = entry_data(file, b); /* not aligned in the file */
    assert_int_equal(numbers[0], 0x06050403);
    free(numbers);
    assert_int_equal(td_safetensors_find(file, "one")->shape.ndim, 0);
    assert_int_equal(td_safetensors_find(file, "none")->bytes, 0);
    assert_null(td_safetensors_find(file, "c"));
    assert_null(td_safetensors_find(file, "__metadata__"));
    assert_string_equal(td_safetensors_metadata(file, "epoch"), "7");
    assert_string_equal(td_safetensors_metadata(file, "\xc3\xa9"), "a\"b");
    assert_null(td_safetensors_metadata(file, "Epoch"));
    expect_fatal("there is no tensor 4", td_safetensors_get(file, 4));
    td_safetensors_close(file);
    free(bytes);
    td_safetensors_close(NULL);
}

/* What the format has and tandem has not: a file beside whose weights there is such a tensor is
 * read, and the tensor itself is refused by its name. */
static void test_reads_files_of_others(void **state)
{
    (void)state;
    static const struct {
        const char *fields;
        size_t bytes;
        const char *unknown;
    } cases[] = {
        { "\"dtype\":\"BOOL\",\"shape\":[3]", 3, "BOOL" },
        { "\"dtype\":\"I8\",\"shape\":[]", 1, "I8" },
        { "\"dtype\":\"U16\",\"shape\":[1,2]", 4, "U16" },
        { "\"dtype\":\"I16\",\"shape\":[0,7]", 0, "I16" },
        { "\"dtype\":\"U64\",\"shape\":[2]", 16, "U64" },
        { "\"dtype\":\"C64\",\"shape\":[2]", 16, "C64" },
        { "\"dtype\":\"F8_E4M3\",\"shape\":[5]", 5, "F8_E4M3" },
        { "\"dtype\":\"F4\",\"shape\":[2,3]", 3, "F4" },
        { "\"dtype\":\"F6_E2M3\",\"shape\":[4]", 3, "F6_E2M3" },
        { "\"dtype\":\"LATER\",\"shape\":[4]", 2, "LATER" },
        { "\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2]", 8, "of more than 8 dimensions" },
        { "\"dtype\":\"F32\",\"shape\":[2],\"x\":[{}],\"x\":1", 8, NULL },
        { "\"dtype\":\"F32\",\"shape\":[2,0,1]", 0, NULL },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char header[400];
        unsigned char data[16];
        int length = snprintf(header, sizeof header,
                              "{\"__metadata__\":null,\"w\":{\"dtype\":\"U8\",\"shape\":[2],"
                              "\"data_offsets\":[0,2]},\"t\":{%s,\"data_offsets\":[2,%zu]}}",
                              cases[i].fields, 2 + cases[i].bytes);
        size_t size;
        unsigned char *bytes = make_file(header, (size_t)length, 2 + cases[i].bytes, &size);
        td_safetensors *file;
        if (td_safetensors_parse(bytes, size, &file) != TD_OK) {
            fail_msg("%s: %s", cases[i].fields, td_last_error());
        }
        const td_safetensors_entry *t = td_safetensors_find(file, "t");
        assert_int_equal(td_safetensors_read(file, td_safetensors_find(file, "w"), data), TD_OK);
        assert_int_equal(t->bytes, cases[i].bytes);
        assert_null(td_safetensors_metadata(file, "epoch"));
        if (cases[i].unknown == NULL) {
            assert_null(td_safetensors_unknown(file, t));
            assert_int_equal(td_safetensors_read(file, t, data), TD_OK);
        } else {
            assert_string_equal(td_safetensors_unknown(file, t), cases[i].unknown);
            assert_int_equal(td_safetensors_read(file, t, data), TD_E_UNSUPPORTED);
            assert_error_says("'t'", cases[i].unknown, NULL);
        }
        td_safetensors_close(file);
        free(bytes);
    }
}

/* ---- what is not ---- */

#define ONE(fields) "{\"t\":{" fields "}}"
#define DTYPE "\"dtype\":\"F32\","
#define SHAPE "\"shape\":[2],"

static const struct {
    const char *name, *header;
    size_t data;
    const char *says;
} bad[] = {
    { "not JSON", "{\"t\":}", 0, "not valid JSON" },
    { "cut JSON", "{\"t\":{\"dtype\":\"F32\"", 0, "not valid JSON" },
    { "open string", "{\"t", 0, "not valid JSON" },
    { "a backslash at the end", "{\"t\\", 0, "not valid JSON" },
    { "an array", "[1,2]", 0, "does not begin with '{'" },
    { "blanks in front", " {}", 0, "does not begin with '{'" },
    { "text behind", "{}  {}", 0, "goes on after its JSON" },
    { "data without tensors", "{}", 4, "4 bytes at the end" },
    { "an entry that is a number", "{\"t\":1}", 0, "'t' is no object" },
    { "an entry that is a list", "{\"t\":[1,2,3]}", 0, "'t' is no object" },
    { "no dtype", ONE(SHAPE "\"data_offsets\":[0,8]"), 8, "must have one dtype" },
    { "no shape", ONE(DTYPE "\"data_offsets\":[0,8]"), 8, "must have one dtype" },
    { "no offsets", ONE(DTYPE "\"shape\":[2]"), 8, "must have one dtype" },
    { "a field twice", ONE(DTYPE DTYPE SHAPE "\"data_offsets\":[0,8]"), 8, "one dtype" },
    { "a dtype of another kind", ONE("\"dtype\":5," SHAPE "\"data_offsets\":[0,8]"), 8,
      "no string as its dtype" },
    { "booleans that are too few", ONE("\"dtype\":\"BOOL\"," SHAPE "\"data_offsets\":[0,1]"), 1,
      "BOOL[2], does not have the 1 bytes" },
    { "half a byte of 4 bits", ONE("\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]"), 1,
      "does not have the 1 bytes" },
    { "a shape of another kind", ONE(DTYPE "\"shape\":2,\"data_offsets\":[0,8]"), 8,
      "no list as its shape" },
    { "a negative size", ONE(DTYPE "\"shape\":[-2],\"data_offsets\":[0,8]"), 8, "no whole number" },
    { "a size with a fraction", ONE(DTYPE "\"shape\":[1.5],\"data_offsets\":[0,6]"), 6,
      "no whole number" },
    { "a size that is a string", ONE(DTYPE "\"shape\":[\"2\"],\"data_offsets\":[0,8]"), 8,
      "no whole number" },
    { "a size beyond all", ONE(DTYPE "\"shape\":[1e300],\"data_offsets\":[0,8]"), 8,
      "no whole number" },
    { "nine dimensions", ONE(DTYPE "\"shape\":[1,1,1,1,1,1,1,1,3],\"data_offsets\":[0,8]"), 8,
      "more than 8 dimensions" },
    { "a product that overflows",
      ONE(DTYPE "\"shape\":[4294967296,4294967296,2],\"data_offsets\":[0,8]"), 8,
      "does not have the 8 bytes" },
    { "a shape larger than its data", ONE(DTYPE "\"shape\":[3],\"data_offsets\":[0,8]"), 8,
      "does not have the 8 bytes" },
    { "one offset", ONE(DTYPE SHAPE "\"data_offsets\":[0]"), 8, "do not lie inside" },
    { "three offsets", ONE(DTYPE SHAPE "\"data_offsets\":[0,8,8]"), 8, "do not lie inside" },
    { "offsets of another kind", ONE(DTYPE SHAPE "\"data_offsets\":\"08\""), 8,
      "do not lie inside" },
    { "offsets behind the end", ONE(DTYPE SHAPE "\"data_offsets\":[4,12]"), 8,
      "do not lie inside the file's 8 bytes of data: the file was cut short" },
    { "offsets in the wrong order", ONE(DTYPE SHAPE "\"data_offsets\":[8,0]"), 8,
      "do not lie inside" },
    { "negative offsets", ONE(DTYPE SHAPE "\"data_offsets\":[-8,0]"), 8, "do not lie inside" },
    { "a hole in front", ONE(DTYPE SHAPE "\"data_offsets\":[4,12]"), 12, "begin after a hole" },
    { "bytes behind", ONE(DTYPE SHAPE "\"data_offsets\":[0,8]"), 9, "1 bytes at the end" },
    { "an overlap",
      "{\"t\":{" DTYPE SHAPE "\"data_offsets\":[0,8]},"
      "\"u\":{" DTYPE SHAPE "\"data_offsets\":[4,12]}}",
      12, "overlap those of another" },
    { "the same data twice",
      "{\"t\":{" DTYPE SHAPE "\"data_offsets\":[0,8]},"
      "\"u\":{" DTYPE SHAPE "\"data_offsets\":[0,8]}}",
      8, "overlap those of another" },
    { "a hole between",
      "{\"t\":{" DTYPE SHAPE "\"data_offsets\":[0,8]},"
      "\"u\":{" DTYPE SHAPE "\"data_offsets\":[12,20]}}",
      20, "begin after a hole" },
    { "a name twice",
      "{\"t\":{" DTYPE SHAPE "\"data_offsets\":[0,8]},"
      "\"t\":{" DTYPE SHAPE "\"data_offsets\":[8,16]}}",
      16, "'t' twice" },
    { "metadata twice", "{\"__metadata__\":{},\"__metadata__\":{}}", 0, "twice" },
    { "a metadata value twice", "{\"__metadata__\":{\"a\":\"1\",\"b\":\"2\",\"a\":\"3\"}}", 0,
      "the metadata have 'a' twice" },
    { "metadata of another kind", "{\"__metadata__\":[\"a\"]}", 0, "is no object" },
    { "metadata that are no strings", "{\"__metadata__\":{\"epoch\":7}}", 0,
      "'epoch' is no string" },
    { "a zero in a name", "{\"a\\u0000b\":{}}", 0, "zero character" },
    { "depth", "{\"t\":{" DTYPE "\"shape\":[[1]],\"data_offsets\":[0,0]}}", 0, "no whole number" },
};

static void test_refuses(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        size_t size;
        unsigned char *bytes = make_file(bad[i].header, strlen(bad[i].header), bad[i].data, &size);
        td_safetensors *file = (td_safetensors *)bytes;
        td_status status = td_safetensors_parse(bytes, size, &file);
        if (status >= 0 || file != NULL) {
            fail_msg("%s: accepted", bad[i].name);
        }
        if (strstr(td_last_error(), bad[i].says) == NULL) {
            fail_msg("%s: the error \"%s\" does not say \"%s\"", bad[i].name, td_last_error(),
                     bad[i].says);
        }
        free(bytes);
    }
}

static void expect_bad_length(uint64_t claimed, const char *says)
{
    size_t size;
    unsigned char *bytes = make_file("{}", claimed, 0, &size);
    td_safetensors *file;
    assert_int_equal(td_safetensors_parse(bytes, size, &file), TD_E_FORMAT);
    assert_error_says(says, NULL);
    free(bytes);
}

static void test_refuses_lengths(void **state)
{
    (void)state;
    expect_bad_length(0, "header has 0 bytes");
    expect_bad_length(1, "header has 1 bytes");
    expect_bad_length(3, "cut short");
    expect_bad_length(100000000, "cut short");
    expect_bad_length(100000001, "possible are");
    expect_bad_length(UINT64_MAX, "possible are");
    expect_bad_length(UINT64_MAX - 7, "possible are");
    td_safetensors *file;
    for (size_t size = 0; size < 8; size++) {
        assert_int_equal(td_safetensors_parse("\2\0\0\0\0\0\0", size, &file), TD_E_FORMAT);
        assert_error_says("too few", NULL);
    }
}

static void test_other_kinds_of_files(void **state)
{
    (void)state;
    static const char *const files[][2] = {
        { "PK\3\4\1\1\10\10archive/data.pkl", "this is a zip archive, as torch.save writes it" },
        { "\xff\xd8\xff\xe0\1\20JFIF, and so on", "this is a JPEG image" },
        { "BM\1\1\1\1\1\1\1\1, and so on, and on", "this is a BMP image" },
        { "\10\11\22\6tandem, and so on, and on", "this is an ONNX model" },
        { "\x80\4\x95\1\1\1\1\1\1, and so on, on", "this is a pickle" },
        { "\x1f\x8b\10\10, and so on, and on, on", "this is a gzip archive" },
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        td_safetensors *file;
        assert_int_equal(td_safetensors_parse(files[i][0], strlen(files[i][0]), &file),
                         TD_E_FORMAT);
        assert_error_says(files[i][1], "safetensors.torch.save_file", NULL);
    }
}

/* Brackets enough to exhaust a parser's stack, raw zeros, every cut of a good file. */
static void test_refuses_mutations(void **state)
{
    (void)state;
    enum { DEEP = 1000000 };
    size_t size;
    char *deep = malloc(DEEP + 1);
    assert_non_null(deep);
    memset(deep, '[', DEEP);
    memcpy(deep, "{\"a\":", 5);
    deep[DEEP] = '\0';
    unsigned char *bytes = make_file(deep, DEEP, 0, &size);
    td_safetensors *file;
    assert_int_equal(td_safetensors_parse(bytes, size, &file), TD_E_FORMAT);
    assert_error_says("not valid JSON", NULL);
    free(bytes);
    free(deep);

    const char *header = ONE(DTYPE SHAPE "\"data_offsets\":[0,8]");
    bytes = make_file(header, strlen(header), 8, &size);
    for (size_t cut = 0; cut < size; cut++) {
        unsigned char *part = malloc(cut + 1);
        assert_non_null(part);
        memcpy(part, bytes, cut);
        assert_true(td_safetensors_parse(part, cut, &file) < 0);
        free(part);
    }
    bytes[10] = '\0';
    assert_int_equal(td_safetensors_parse(bytes, size, &file), TD_E_FORMAT);
    assert_error_says("zero character", NULL);
    free(bytes);
}

/* ---- files ---- */

static void test_opens(void **state)
{
    (void)state;
    td_safetensors *file;
    assert_int_equal(td_safetensors_open(temp_path("nothing"), &file), TD_E_NOTFOUND);
    assert_error_says("nothing", "No such file", NULL);
    assert_int_equal(td_safetensors_open(temp_folder(), &file), TD_E_IO);
    assert_error_says("a directory, not a regular file", NULL);
    temp_write("empty", "", 0);
    assert_int_equal(td_safetensors_open(temp_path("empty"), &file), TD_E_FORMAT);
    assert_error_says("empty' cannot be used", "0 bytes are too few", NULL);
    temp_write("text", "This is no checkpoint, but it is long enough.", 45);
    assert_int_equal(td_safetensors_open(temp_path("text"), &file), TD_E_FORMAT);
    assert_error_says("text' cannot be used", "no safetensors file", NULL);
}

static void test_writes(void **state)
{
    (void)state;
    const uint8_t bytes[] = { 1, 2, 3 };
    const double wide[] = { 1.5, -2.5 };
    const float scalar = 3.25f;
    const td_safetensors_entry entries[] = {
        { "bytes", TD_U8, TD_SHAPE(3), bytes, 3 },
        { "wide \"\\\n", TD_F64, TD_SHAPE(2), wide, 16 },
        { "scalar", TD_F32, TD_SCALAR, &scalar, 4 },
        { "empty", TD_F16, TD_SHAPE(4, 0), NULL, 0 },
    };
    const td_metadata metadata[] = { { "epoch", "12" },
                                     { "note", "line\nline \"quoted\" \xc3\xa9" } };
    const char *path = temp_path("file.safetensors");
    assert_int_equal(td_safetensors_write(path, entries, 4, metadata, 2), TD_OK);
    td_safetensors *file;
    assert_int_equal(td_safetensors_open(path, &file), TD_OK);
    assert_int_equal(td_safetensors_count(file), 4);
    for (int i = 0; i < 4; i++) {
        const td_safetensors_entry *entry = td_safetensors_find(file, entries[i].name);
        assert_non_null(entry);
        assert_int_equal(entry->dtype, entries[i].dtype);
        assert_true(td_shape_equal(entry->shape, entries[i].shape));
        assert_int_equal(entry->bytes, entries[i].bytes);
        void *data = entry_data(file, entry);
        assert_true(entry->bytes == 0 || memcmp(data, entries[i].data, entry->bytes) == 0);
        free(data);
    }
    assert_string_equal(td_safetensors_metadata(file, "note"), metadata[1].value);
    td_safetensors_close(file);

    char value[3];
    assert_int_equal(td_checkpoint_metadata(path, "epoch", value, sizeof value), TD_OK);
    assert_string_equal(value, "12");
    assert_int_equal(td_checkpoint_metadata(path, "epoch", value, 2), TD_E_ARG);
    assert_int_equal(td_checkpoint_metadata(path, "step", value, 3), TD_E_NOTFOUND);

    const td_safetensors_entry twice[] = { entries[0], entries[2], entries[0] };
    assert_int_equal(td_safetensors_write(path, twice, 3, NULL, 0), TD_E_ARG);
    assert_error_says("two tensors are called 'bytes'", NULL);
    const td_metadata same[] = { { "a", "1" }, { "a", "2" } };
    assert_int_equal(td_safetensors_write(path, entries, 1, same, 2), TD_E_ARG);
    const td_safetensors_entry reserved[] = { { "__metadata__", TD_U8, TD_SHAPE(3), bytes, 3 } };
    assert_int_equal(td_safetensors_write(path, reserved, 1, NULL, 0), TD_E_ARG);
    assert_int_equal(td_checkpoint_metadata(path, "epoch", value, sizeof value), TD_OK);

    enum { LONG = 100000000 }; /* more than a header can have */
    char *text = malloc(LONG + 1);
    assert_non_null(text);
    memset(text, 'a', LONG);
    text[LONG] = '\0';
    assert_int_equal(td_safetensors_write(path, NULL, 0, &(td_metadata){ "a", text }, 1), TD_E_ARG);
    assert_error_says("give less metadata", NULL);
    free(text);

    assert_int_equal(td_safetensors_write(path, NULL, 0, NULL, 0), TD_OK); /* of nothing */
    assert_int_equal(td_safetensors_open(path, &file), TD_OK);
    assert_int_equal(td_safetensors_count(file), 0);
    td_safetensors_close(file);
}

/* The bytes themselves: wide elements first, as short as JSON can be, blanks up to a multiple of 8.
 */
static void test_bytes_of_a_file(void **state)
{
    (void)state;
    static const char header[] =
        "{\"__metadata__\":{\"epoch\":\"12\",\"note\":\"line\\nline \\\"quoted\\\"\"},"
        "\"wide \\\"\\\\\":{\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[0,16]},"
        "\"scalar\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[16,20]},"
        "\"empty\":{\"dtype\":\"F16\",\"shape\":[4,0],\"data_offsets\":[20,20]},"
        "\"bytes\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[20,23]}}";
    static const uint8_t bytes[] = { 1, 2, 3 };
    const double wide[] = { 1.5, -2.5 };
    const float scalar = 3.25f;
    const td_safetensors_entry entries[] = {
        { "bytes", TD_U8, TD_SHAPE(3), bytes, 3 },
        { "wide \"\\", TD_F64, TD_SHAPE(2), wide, 16 },
        { "scalar", TD_F32, TD_SCALAR, &scalar, 4 },
        { "empty", TD_F16, TD_SHAPE(4, 0), NULL, 0 },
    };
    const td_metadata metadata[] = { { "epoch", "12" }, { "note", "line\nline \"quoted\"" } };
    enum { LENGTH = (sizeof header - 1 + 7) / 8 * 8 };
    unsigned char expected[8 + LENGTH + 23] = { LENGTH & 0xff, LENGTH >> 8 };
    memset(expected + 8, ' ', LENGTH);
    memcpy(expected + 8, header, sizeof header - 1);
    memcpy(expected + 8 + LENGTH, wide, 16);
    memcpy(expected + 8 + LENGTH + 16, &scalar, 4);
    memcpy(expected + 8 + LENGTH + 20, bytes, 3);
    const char *path = temp_path("file.safetensors");
    assert_int_equal(td_safetensors_write(path, entries, 4, metadata, 2), TD_OK);
    size_t size;
    unsigned char *written = temp_read(path, &size);
    assert_int_equal(size, sizeof expected);
    assert_memory_equal(written, expected, size);
    free(written);
}

/* A file that is put together from pieces in any order has the bytes of one that is written at
 * once; it gets its name when it is finished, or goes. */
static void test_parts(void **state)
{
    (void)state;
    enum { COUNT = 1000, PIECE = 24 };
    static uint8_t bytes[COUNT];
    static double wide[COUNT];
    for (int i = 0; i < COUNT; i++) {
        bytes[i] = (uint8_t)(i * 7);
        wide[i] = 1.0 / (i + 1);
    }
    const td_safetensors_entry entries[] = {
        { "bytes", TD_U8, TD_SHAPE(COUNT), bytes, COUNT },
        { "wide", TD_F64, TD_SHAPE(2, COUNT / 2), wide, sizeof wide },
    };
    const td_metadata note = { "note", "of both" };
    char whole[4096], parts[4096];
    snprintf(whole, sizeof whole, "%s", temp_path("whole"));
    snprintf(parts, sizeof parts, "%s", temp_path("parts"));
    assert_int_equal(td_safetensors_write(whole, entries, 2, &note, 1), TD_OK);
    td_safetensors_out *out;
    assert_int_equal(td_safetensors_plan(parts, entries, 2, &note, 1, &out), TD_OK);
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < 2; i++) {
            for (size_t at = 0, n = 0; at < entries[i].bytes; at += PIECE, n++) {
                size_t left = entries[i].bytes - at, size = left < PIECE ? left : PIECE;
                assert_true(n % 2 == (size_t)turn ||
                            td_safetensors_put(out, i, (int64_t)at,
                                               (const char *)entries[i].data + at, size) == TD_OK);
            }
        }
    }
    expect_fatal("2 bytes from byte 999 are not in tensor 0 of 2",
                 td_safetensors_put(out, 0, COUNT - 1, bytes, 2));
    assert_int_equal(access(parts, F_OK), -1);
    assert_int_equal(td_safetensors_finish(out, true), TD_OK);
    size_t size, same;
    unsigned char *a = temp_read(whole, &size), *b = temp_read(parts, &same);
    assert_int_equal(size, same);
    assert_memory_equal(a, b, size);
    free(b);

    assert_int_equal(td_safetensors_plan(whole, entries, 1, NULL, 0, &out), TD_OK);
    assert_int_equal(td_safetensors_finish(out, false), TD_OK);
    b = temp_read(whole, &same);
    assert_int_equal(size, same);
    assert_memory_equal(a, b, size);
    free(a);
    free(b);
}

/* A file that becomes shorter while it is open: an error, where a mapped file would end the
 * program. */
static void test_a_file_that_becomes_shorter(void **state)
{
    (void)state;
    enum { COUNT = 100000 };
    static float values[COUNT];
    const char *path = temp_path("file.safetensors");
    const td_safetensors_entry entry = { "values", TD_F32, TD_SHAPE(COUNT), values, sizeof values };
    td_safetensors *file;
    assert_int_equal(td_safetensors_write(path, &entry, 1, NULL, 0), TD_OK);
    assert_int_equal(td_safetensors_open(path, &file), TD_OK);
    assert_int_equal(truncate(path, COUNT), 0);
    assert_int_equal(td_safetensors_read(file, td_safetensors_get(file, 0), values), TD_E_IO);
    assert_error_says("the file became shorter", NULL);
    td_safetensors_close(file);
}

enum { READERS = 4, READ_COUNT = 5000 };

typedef struct reader {
    const td_safetensors *file;
    int number; /* of its tensor, and each of the tensor's elements */
    bool right;
} reader;

static void *read_often(void *arg)
{
    reader *r = arg;
    float values[READ_COUNT];
    for (int i = 0; i < 3000 && r->right; i++) {
        r->right =
            td_safetensors_read(r->file, td_safetensors_get(r->file, r->number), values) == TD_OK;
        for (int k = 0; k < READ_COUNT; k++) {
            r->right = r->right && values[k] == (float)r->number;
        }
    }
    return NULL;
}

static void test_threads_read_one_file(void **state)
{
    (void)state;
    static float values[READERS][READ_COUNT];
    static const char *const names[READERS] = { "0", "1", "2", "3" };
    td_safetensors_entry entries[READERS];
    const char *path = temp_path("file.safetensors");
    for (int i = 0; i < READERS; i++) {
        entries[i] = (td_safetensors_entry){ names[i], TD_F32, TD_SHAPE(READ_COUNT), values[i],
                                             sizeof values[i] };
        for (int k = 0; k < READ_COUNT; k++) {
            values[i][k] = (float)i;
        }
    }
    td_safetensors *file;
    assert_int_equal(td_safetensors_write(path, entries, READERS, NULL, 0), TD_OK);
    assert_int_equal(td_safetensors_open(path, &file), TD_OK);
    pthread_t threads[READERS];
    reader readers[READERS];
    for (int i = 0; i < READERS; i++) {
        readers[i] = (reader){ .file = file, .number = i, .right = true };
        assert_int_equal(pthread_create(&threads[i], NULL, read_often, &readers[i]), 0);
    }
    bool right = true;
    for (int i = 0; i < READERS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        right = right && readers[i].right;
    }
    assert_true(right);
    td_safetensors_close(file);
}

/* Tensors beyond 1 MiB are written in pieces of whole rows, here of an odd number of bytes. */
static void test_large_odd_rows(void **state)
{
    (void)state;
    enum { ROWS = 3501, EACH = 1001 };
    td_tensor *t = td_zeros(TD_SHAPE(ROWS, EACH), TD_U8, TD_CPU);
    td_tensor *back = td_zeros(TD_SHAPE(ROWS, EACH), TD_U8, TD_CPU);
    uint8_t *values = td_data_rw(t);
    for (int i = 0; i < ROWS * EACH; i++) {
        values[i] = (uint8_t)(i % 251);
    }
    td_module *net = td_nn_linear(1, 1);
    const char *path = temp_path("large.safetensors");
    const td_named_tensor out = { .name = "extra.large", .tensor = t };
    const td_named_tensor in = { .name = "extra.large", .tensor = back };
    assert_int_equal(td_checkpoint_save(path, net, .extra = &out, .extra_count = 1), TD_OK);
    assert_int_equal(td_checkpoint_load(path, net, .extra = &in, .extra_count = 1), TD_OK);
    assert_memory_equal(td_data(back), values, ROWS * EACH);
    td_module_free(net);
    td_free(back);
    td_free(t);
}

/* Files of a run have the bytes of format 1 (FNV-1a of the whole file). */
static void test_bytes_of_a_run(void **state)
{
    (void)state;
    td_manual_seed(0);
    td_module *net = td_nn_sequential(td_nn_linear(3, 5), td_nn_dropout(0.5), td_nn_linear(5, 2));
    td_optim *optim = td_adam(td_parameters(net), .lr = 0.25);
    td_ema *ema = td_ema_new(net, .decay = 0.5);
    td_tensor *own = td_full(TD_SHAPE(3), 7.0, TD_U8, TD_CPU);
    for (int i = 0; i < td_params_count(td_parameters(net)); i++) {
        td_fill_(td_params_get(td_parameters(net), i)->tensor, i + 0.5);
    }
    td_tensor *x = td_full(TD_SHAPE(1, 3), 1.0, TD_F32, TD_CPU);
    td_step_begin(); /* of gradients of zero: the moments stay zero */
    td_zero_grad(optim);
    td_backward(td_mul_scalar(td_sum(td_forward(net, x)), 0.0));
    td_optim_step(optim);
    td_step_end();
    td_manual_seed(3);
    const td_named_tensor extra[] = { { .name = "extra.own", .tensor = own } };
    const td_metadata metadata[] = { { "epoch", "1" } };
    const char *path = temp_path("run.safetensors");
    assert_int_equal(td_checkpoint_save(path, net, .optim = optim, .ema = ema, .extra = extra,
                                        .extra_count = 1, .with_random = true, .metadata = metadata,
                                        .metadata_count = 1),
                     TD_OK);
    size_t size;
    unsigned char *bytes = temp_read(path, &size);
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < size; i++) {
        hash = (hash ^ bytes[i]) * 1099511628211u;
    }
    free(bytes);
    assert_int_equal(size, 7107);
    assert_int_equal(hash, 0xee17ce0e09fd8d34u);
    td_ema_free(ema);
    td_optim_free(optim);
    td_module_free(net);
    td_free(own);
    td_free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads),
        cmocka_unit_test(test_reads_files_of_others),
        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_refuses_lengths),
        cmocka_unit_test(test_other_kinds_of_files),
        cmocka_unit_test(test_refuses_mutations),
        cmocka_unit_test_setup_teardown(test_opens, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_writes, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_bytes_of_a_file, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_parts, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_a_file_that_becomes_shorter, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_threads_read_one_file, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_bytes_of_a_run, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_large_odd_rows, temp_folder_setup,
                                        temp_folder_teardown),
    };
    return cmocka_run_group_tests_name("checkpoints: the format", tests, NULL, NULL);
}
