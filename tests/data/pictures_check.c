/* Images of the tests, and comparisons with what PIL made of them. */
#include "tests/data/pictures_check.h"

#include "tests/help/entry_data.h"
#include "tests/help/temp_folder.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static td_safetensors *expected;

int pictures_open_expected(void **state)
{
    (void)state;
    return td_safetensors_open(PICTURES_FOLDER "expected.safetensors", &expected);
}

int pictures_close_expected(void **state)
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

void pictures_require_near(const char *name, const uint8_t *a, const uint8_t *b, size_t count,
                           double mean, int most)
{
    difference d = compare(a, b, count);
    if (d.mean > mean || d.most > most) {
        fail_msg("%s: %.3f levels on average, at most %d; allowed are %.3f and %d", name, d.mean,
                 d.most, mean, most);
    }
}

/* ---- files ---- */

uint8_t *pictures_read_bytes(const char *path, size_t *size)
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

td_encoded pictures_encoded(const uint8_t *bytes, size_t size, const char *name)
{
    return (td_encoded){ .bytes = bytes, .size = size, .name = name, .most_pixels = 1000000 };
}

td_bitmap pictures_decode(const char *name, int rows)
{
    char path[256];
    snprintf(path, sizeof path, PICTURES_FOLDER "%s", name);
    size_t size;
    uint8_t *bytes = pictures_read_bytes(path, &size);
    td_encoded picture = pictures_encoded(bytes, size, name);
    picture.intact = true; /* so that `rows` counts */
    td_bitmap bitmap = { 0 };
    if (td_bitmap_open(&picture) != TD_OK || td_bitmap_decode(&picture, rows, &bitmap) != TD_OK) {
        fail_msg("%s", td_last_error());
    }
    free(bytes);
    return bitmap;
}

int pictures_each(const td_safetensors *file, const char *word,
                  void (*fn)(const char *rest, const td_safetensors_entry *))
{
    file = file != NULL ? file : expected;
    int found = 0;
    size_t length = strlen(word);
    for (int i = 0; i < td_safetensors_count(file); i++) {
        const td_safetensors_entry *entry = td_safetensors_get(file, i);
        if (strncmp(entry->name, word, length) == 0 && entry->name[length] == '/') {
            td_safetensors_entry read = *entry;
            void *data = entry_data(file, entry);
            read.data = data;
            fn(entry->name + length + 1, &read);
            free(data);
            found++;
        }
    }
    return found;
}

void pictures_assert_bad(const uint8_t *bytes, size_t size, const char *says)
{
    uint8_t *copy = malloc(size + 1); /* exactly as long, so that a sanitizer sees more */
    assert_non_null(copy);
    memcpy(copy, bytes, size);
    td_encoded picture = pictures_encoded(copy, size, "some.jpg");
    td_bitmap bitmap = { .rgb = NULL };
    bool bad = td_bitmap_open(&picture) != TD_OK || td_bitmap_decode(&picture, 0, &bitmap) != TD_OK;
    free(bitmap.rgb);
    free(copy);
    assert_true(bad);
    assert_error_says("some.jpg", says, NULL);
}
