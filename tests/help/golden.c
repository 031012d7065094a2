/* Opens files of values that PyTorch computed. */
#include "tests/help/golden.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* The whole file and a zero behind it. */
static char *read_text(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        fail_msg("cannot open '%s'", path);
    }
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long size = ftell(file);
    assert_true(size >= 0);
    rewind(file);
    char *text = malloc((size_t)size + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)size, file), size);
    text[size] = '\0';
    fclose(file);
    return text;
}

cJSON *golden_open(const char *file)
{
    const char *folder = getenv("TANDEM_GOLDEN");
    if (folder == NULL) {
        print_message("# skipped: set TANDEM_GOLDEN to the folder with %s\n", file);
        return NULL;
    }
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    return golden_open_path(path);
}

cJSON *golden_open_path(const char *path)
{
    char *text = read_text(path);
    cJSON *json = cJSON_Parse(text);
    free(text);
    if (json == NULL) {
        fail_msg("'%s' is no JSON", path);
    }
    return json;
}

const cJSON *golden_get(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    if (item == NULL) {
        fail_msg("the golden file has no '%s'", name);
    }
    return item;
}

double golden_number(const cJSON *object, const char *name)
{
    const cJSON *item = golden_get(object, name);
    assert_true(cJSON_IsNumber(item));
    return item->valuedouble;
}

double *golden_array(const cJSON *object, const char *name, int count)
{
    const cJSON *array = golden_get(object, name);
    assert_int_equal(cJSON_GetArraySize(array), count);
    double *values = calloc((size_t)count, sizeof *values);
    assert_non_null(values);
    int i = 0;
    for (const cJSON *item = array->child; item != NULL; item = item->next) {
        values[i++] = item->valuedouble;
    }
    return values;
}

uint32_t crc32_more(uint32_t crc, const void *bytes, size_t size)
{
    uint32_t table[256];
    for (uint32_t i = 0; i < 256; i++) {
        table[i] = i;
        for (int bit = 0; bit < 8; bit++) {
            table[i] = table[i] >> 1 ^ (0xedb88320u & (0u - (table[i] & 1u)));
        }
    }
    const unsigned char *at = bytes;
    crc = ~crc;
    for (size_t i = 0; i < size; i++) {
        crc = crc >> 8 ^ table[(crc ^ at[i]) & 0xff];
    }
    return ~crc;
}

uint32_t crc32_of(const void *bytes, size_t size)
{
    return crc32_more(0, bytes, size);
}
