/* The header of a safetensors file: how it is read and checked, and how it is written. */
#include "nn/io/safetensors_internal.h"
#include "tensor/system/text.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define METADATA "__metadata__"

static const char *const dtype_names[TD_DTYPE_COUNT] = {
    [TD_F32] = "F32", [TD_F64] = "F64", [TD_BF16] = "BF16", [TD_F16] = "F16",
    [TD_I64] = "I64", [TD_I32] = "I32", [TD_U8] = "U8",
};

/* ---- reading ---- */

/* A zero would cut a name short in C: as a byte, or as the escape that JSON has for it. */
static bool has_zero(const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (text[i] == '\0' || (size - i >= 6 && memcmp(text + i, "\\u0000", 6) == 0)) {
            return true;
        }
        i += text[i] == '\\'; /* what is escaped */
    }
    return false;
}

static td_status parse_json(td_safetensors *file, const char *text, size_t size)
{
    TD_CHECK(*text == '{', TD_E_FORMAT, "the header does not begin with '{'");
    TD_CHECK(!has_zero(text, size), TD_E_FORMAT, "a zero character is in the header");
    const char *end = NULL;
    file->header = cJSON_ParseWithLengthOpts(text, size, &end, false);
    TD_CHECK(cJSON_IsObject(file->header), TD_E_FORMAT,
             "the header is not valid JSON (near offset %lld)",
             (long long)(end != NULL ? end - text : 0));
    while (end < text + size && strchr(" \t\r\n", *end) != NULL) {
        end++;
    }
    TD_CHECK(end == text + size, TD_E_FORMAT,
             "the header goes on after its JSON ends, at offset %lld", (long long)(end - text));
    return TD_OK;
}

static td_status read_dtype(const cJSON *item, td_safetensors_place *place)
{
    td_safetensors_entry *entry = &place->entry;
    TD_CHECK(cJSON_IsString(item), TD_E_FORMAT, "tensor '%s' has no string as its dtype",
             entry->name);
    int i = 0;
    while (i < TD_DTYPE_COUNT && strcmp(dtype_names[i], item->valuestring) != 0) {
        i++;
    }
    entry->dtype = i < TD_DTYPE_COUNT ? (td_dtype)i : TD_U8;
    place->unknown = i < TD_DTYPE_COUNT ? NULL : item->valuestring;
    return TD_OK;
}

/* The bits of an element, which the names of the format's dtypes say: "I16", "F8_E4M3", "BOOL". 0:
 * the name says nothing. */
static int64_t bits_of(const td_safetensors_place *place)
{
    const char *name = place->unknown;
    return name == NULL                ? 8 * (int64_t)td_dtype_size(place->entry.dtype)
           : strcmp(name, "BOOL") == 0 ? 8
           : *name != '\0'             ? strtol(name + 1, NULL, 10)
                                       : 0;
}

/* A whole number from 0 to 2^53 (JSON's numbers are doubles). */
static bool read_size(const cJSON *item, int64_t *value)
{
    double number = cJSON_IsNumber(item) ? item->valuedouble : -1.0;
    bool valid = number >= 0.0 && number <= 0x1p53 && number == floor(number);
    *value = valid ? (int64_t)number : 0;
    return valid;
}

static td_status read_offsets(const cJSON *list, int64_t data_size, td_safetensors_place *place)
{
    int64_t end;
    bool numbers = cJSON_IsArray(list) && cJSON_GetArraySize(list) == 2 &&
                   read_size(list->child, &place->begin) && read_size(list->child->next, &end) &&
                   place->begin <= end;
    TD_CHECK(numbers && end <= data_size, TD_E_FORMAT,
             "the data_offsets of tensor '%s' do not lie inside the file's %lld bytes of data%s",
             place->entry.name, (long long)data_size, numbers ? ": the file was cut short" : "");
    place->entry.bytes = (size_t)(end - place->begin);
    return TD_OK;
}

/* The shape must be that of the entry's bytes. */
static td_status read_shape(const cJSON *list, td_safetensors_place *place)
{
    td_safetensors_entry *entry = &place->entry;
    TD_CHECK(cJSON_IsArray(list), TD_E_FORMAT, "tensor '%s' has no list as its shape", entry->name);
    int64_t all = bits_of(place), bits = all, size;
    bool counted = true;
    const cJSON *item;
    cJSON_ArrayForEach(item, list)
    {
        TD_CHECK(read_size(item, &size), TD_E_FORMAT,
                 "a size in the shape of tensor '%s' is no whole number", entry->name);
        counted = counted && !__builtin_mul_overflow(all, size, &all);
        if (entry->shape.ndim < TD_MAX_DIMS) {
            entry->shape.dim[entry->shape.ndim++] = size;
        } else if (place->unknown == NULL) {
            place->unknown = "of more than 8 dimensions";
        }
    }
    TD_CHECK(bits == 0 || (counted && (uint64_t)all == 8 * (uint64_t)entry->bytes), TD_E_FORMAT,
             "tensor '%s', %s%s, does not have the %zu bytes of its data", entry->name,
             place->unknown != NULL ? place->unknown : td_dtype_name(entry->dtype),
             td_describe_shape(entry->shape), entry->bytes);
    return TD_OK;
}
_Static_assert(TD_MAX_DIMS == 8, "the text above says so");

/* A member of an object that has it once; further members, of newer versions, do not matter. */
static const cJSON *only_member(const cJSON *object, const char *name)
{
    const cJSON *found = NULL, *item;
    int count = 0;
    cJSON_ArrayForEach(item, object)
    {
        found = strcmp(item->string, name) == 0 ? item : found;
        count += found == item;
    }
    return count == 1 ? found : NULL;
}

static td_status read_entry(const cJSON *item, int64_t data_size, td_safetensors_place *place)
{
    td_safetensors_entry *entry = &place->entry;
    entry->name = item->string;
    TD_CHECK(cJSON_IsObject(item), TD_E_FORMAT, "the header's '%s' is no object", entry->name);
    const cJSON *dtype = only_member(item, "dtype");
    const cJSON *shape = only_member(item, "shape");
    const cJSON *offsets = only_member(item, "data_offsets");
    TD_CHECK(dtype != NULL && shape != NULL && offsets != NULL, TD_E_FORMAT,
             "tensor '%s' must have one dtype, one shape and data_offsets once", entry->name);
    TD_TRY(read_dtype(dtype, place));
    TD_TRY(read_offsets(offsets, data_size, place));
    return read_shape(shape, place);
}

static int compare_keys(const void *a, const void *b)
{
    const cJSON *const *x = a, *const *y = b;
    return strcmp((*x)->string, (*y)->string);
}

/* Lists the metadata by their keys. */
static td_status read_metadata(td_safetensors *file, const cJSON *item)
{
    TD_CHECK(file->texts == NULL, TD_E_FORMAT, "the header has " METADATA " twice");
    TD_CHECK(cJSON_IsObject(item) || cJSON_IsNull(item), TD_E_FORMAT,
             "the header's " METADATA " is no object");
    file->texts = calloc((size_t)cJSON_GetArraySize(item) + 1, sizeof *file->texts);
    TD_CHECK(file->texts != NULL, TD_E_NOMEM, "no memory for the metadata");
    for (const cJSON *value = item->child; value != NULL; value = value->next) {
        TD_CHECK(cJSON_IsString(value), TD_E_FORMAT, "the metadata value '%s' is no string",
                 value->string);
        file->texts[file->text_count++] = value;
    }
    qsort(file->texts, (size_t)file->text_count, sizeof *file->texts, compare_keys);
    for (int i = 1; i < file->text_count; i++) {
        TD_CHECK(compare_keys(&file->texts[i - 1], &file->texts[i]) != 0, TD_E_FORMAT,
                 "the metadata have '%s' twice", file->texts[i]->string);
    }
    return TD_OK;
}

const char *td_safetensors_metadata(const td_safetensors *file, const char *key)
{
    const cJSON wanted = { .string = (char *)(uintptr_t)key }, *item = &wanted;
    const cJSON **found = NULL;
    if (file->texts != NULL) {
        found = bsearch(&item, file->texts, (size_t)file->text_count, sizeof *file->texts,
                        compare_keys);
    }
    return found != NULL ? (*found)->valuestring : NULL;
}

void td_safetensors_text(const td_safetensors *file, int i, const char **key, const char **text)
{
    *key = file->texts[i]->string;
    *text = file->texts[i]->valuestring;
}

td_status td_safetensors_read_header(td_safetensors *file, const char *text, size_t size)
{
    TD_TRY(parse_json(file, text, size));
    size_t room = (size_t)cJSON_GetArraySize(file->header) + 1;
    file->places = calloc(room, sizeof *file->places);
    file->entries = calloc(room, sizeof *file->entries);
    file->by_name = calloc(room, sizeof *file->by_name);
    TD_CHECK(file->places != NULL && file->entries != NULL && file->by_name != NULL, TD_E_NOMEM,
             "no memory for the list of %zu tensors", room - 1);
    for (const cJSON *item = file->header->child; item != NULL; item = item->next) {
        if (strcmp(item->string, METADATA) == 0) {
            TD_TRY(read_metadata(file, item));
        } else {
            TD_TRY(read_entry(item, file->size - file->data, &file->places[file->count]));
            file->count++;
        }
    }
    return TD_OK;
}

/* ---- writing; what memory is too short for is missing, and counts as a failure at the end ---- */

/* A file with two equal names, or with what is not UTF-8, could not be read. */
static td_status check_new(const cJSON *object, const char *name, const char *what)
{
    TD_CHECK(td_is_utf8(name), TD_E_ARG, "one of the %s is called '%s', which is not UTF-8", what,
             name);
    TD_CHECK(cJSON_GetObjectItemCaseSensitive(object, name) == NULL, TD_E_ARG,
             "two %s are called '%s'; give each a name of its own", what, name);
    return TD_OK;
}

static bool add_number(cJSON *array, int64_t value)
{
    return cJSON_AddItemToArray(array, cJSON_CreateNumber((double)value));
}

static bool add_entry(cJSON *root, const td_safetensors_entry *entry, int64_t begin)
{
    cJSON *item = cJSON_AddObjectToObject(root, entry->name);
    bool made = cJSON_AddStringToObject(item, "dtype", dtype_names[entry->dtype]) != NULL;
    cJSON *shape = cJSON_AddArrayToObject(item, "shape");
    for (int i = 0; i < entry->shape.ndim; i++) {
        made = made && add_number(shape, entry->shape.dim[i]);
    }
    cJSON *offsets = cJSON_AddArrayToObject(item, "data_offsets");
    return made && shape != NULL && add_number(offsets, begin) &&
           add_number(offsets, begin + (int64_t)entry->bytes);
}

static td_status header_fill(cJSON *root, const td_safetensors_entry *entries, int count,
                             const td_metadata *metadata, int metadata_count, int64_t *begin)
{
    bool made = root != NULL;
    int64_t end = 0;
    cJSON *strings = metadata_count > 0 ? cJSON_AddObjectToObject(root, METADATA) : NULL;
    for (int i = 0; i < metadata_count; i++) {
        TD_TRY(check_new(strings, metadata[i].key, "metadata values"));
        TD_CHECK(td_is_utf8(metadata[i].value), TD_E_ARG,
                 "the metadata value of '%s' is not text in UTF-8: '%.200s'", metadata[i].key,
                 metadata[i].value);
        made = made && cJSON_AddStringToObject(strings, metadata[i].key, metadata[i].value) != NULL;
    }
    for (int width = TD_SAFETENSORS_WIDEST; width > 0; width /= 2) { /* in the order of the data */
        for (int i = 0; i < count; i++) {
            if ((int)td_dtype_size(entries[i].dtype) == width) {
                TD_CHECK(strcmp(entries[i].name, METADATA) != 0, TD_E_ARG,
                         "no tensor can be called '%s'", entries[i].name);
                TD_TRY(check_new(root, entries[i].name, "tensors"));
                begin[i] = end;
                end += (int64_t)entries[i].bytes;
                made = made && add_entry(root, &entries[i], begin[i]);
            }
        }
    }
    TD_CHECK(made, TD_E_NOMEM, "no memory for the header of %d tensors", count);
    return TD_OK;
}

td_status td_safetensors_write_header(const td_safetensors_entry *entries, int count,
                                      const td_metadata *metadata, int metadata_count,
                                      int64_t *begin, char **text)
{
    cJSON *root = cJSON_CreateObject();
    td_status status = header_fill(root, entries, count, metadata, metadata_count, begin);
    *text = status == TD_OK ? cJSON_PrintUnformatted(root) : NULL;
    cJSON_Delete(root);
    return status != TD_OK || *text != NULL
               ? status
               : td_fail(TD_E_NOMEM, "no memory for the header of %d tensors", count);
}
