/* The header of a safetensors file: its JSON, and what each entry of it must be like. */
#include "nn/io/safetensors_internal.h"
#include "tensor/extend.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

/* ---- dtypes ---- */

static const char *const dtype_names[TD_DTYPE_COUNT] = {
    [TD_F32] = "F32", [TD_F64] = "F64", [TD_BF16] = "BF16", [TD_F16] = "F16",
    [TD_I64] = "I64", [TD_I32] = "I32", [TD_U8] = "U8",
};

const char *td_safetensors_dtype_name(td_dtype dtype)
{
    return dtype_names[dtype];
}

static bool find_dtype(const char *name, td_dtype *dtype)
{
    for (int i = 0; i < TD_DTYPE_COUNT; i++) {
        if (strcmp(dtype_names[i], name) == 0) {
            *dtype = (td_dtype)i;
            return true;
        }
    }
    return false;
}

/* ---- the header as text ---- */

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
    if (*text != '{') {
        return td_fail(TD_E_FORMAT, "the header does not begin with '{'");
    }
    if (has_zero(text, size)) {
        return td_fail(TD_E_FORMAT, "a zero character is in the header");
    }
    const char *end = NULL;
    file->header = cJSON_ParseWithLengthOpts(text, size, &end, false);
    if (file->header == NULL || !cJSON_IsObject(file->header)) {
        return td_fail(TD_E_FORMAT, "the header is not valid JSON (near offset %lld)",
                       (long long)(end != NULL ? end - text : 0));
    }
    while (end < text + size && strchr(" \t\r\n", *end) != NULL) {
        end++;
    }
    if (end != text + size) {
        return td_fail(TD_E_FORMAT, "the header goes on after its JSON ends, at offset %lld",
                       (long long)(end - text));
    }
    return TD_OK;
}

/* ---- what the header says ---- */

/* A whole number from 0 to 2^53 (JSON's numbers are doubles). */
static bool read_size(const cJSON *item, int64_t *value)
{
    if (!cJSON_IsNumber(item)) {
        return false;
    }
    double number = item->valuedouble;
    if (!(number >= 0.0 && number <= 0x1p53) || number != (double)(int64_t)number) {
        return false;
    }
    *value = (int64_t)number;
    return true;
}

static td_status read_shape(const cJSON *item, const char *name, td_shape *shape)
{
    if (!cJSON_IsArray(item)) {
        return td_fail(TD_E_FORMAT, "tensor '%s' has no list as its shape", name);
    }
    *shape = TD_SCALAR;
    for (const cJSON *size = item->child; size != NULL; size = size->next) {
        if (shape->ndim == TD_MAX_DIMS) {
            return td_fail(TD_E_UNSUPPORTED, "tensor '%s' has more than %d dimensions", name,
                           TD_MAX_DIMS);
        }
        if (!read_size(size, &shape->dim[shape->ndim++])) {
            return td_fail(TD_E_FORMAT, "a size in the shape of tensor '%s' is no whole number",
                           name);
        }
    }
    return TD_OK;
}

/* Bytes of a shape; false if they cannot be counted. */
static bool count_bytes(td_shape shape, td_dtype dtype, int64_t *bytes)
{
    *bytes = (int64_t)td_dtype_size(dtype);
    for (int i = 0; i < shape.ndim; i++) {
        if (__builtin_mul_overflow(*bytes, shape.dim[i], bytes)) {
            return false;
        }
    }
    return true;
}

static td_status read_entry(const cJSON *item, const char *data, int64_t data_size,
                            td_safetensors_entry *entry)
{
    const char *name = item->string;
    if (!cJSON_IsObject(item)) {
        return td_fail(TD_E_FORMAT, "the header's '%s' is no object", name);
    }
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(item, "dtype");
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(item, "shape");
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(item, "data_offsets");
    if (dtype == NULL || shape == NULL || offsets == NULL || cJSON_GetArraySize(item) != 3) {
        return td_fail(TD_E_FORMAT,
                       "tensor '%s' must have a dtype, a shape and data_offsets, and nothing else",
                       name);
    }
    if (!cJSON_IsString(dtype)) {
        return td_fail(TD_E_FORMAT, "tensor '%s' has no string as its dtype", name);
    }
    if (!find_dtype(dtype->valuestring, &entry->dtype)) {
        return td_fail(TD_E_UNSUPPORTED, "tensor '%s' has the dtype '%.40s', which is not known",
                       name, dtype->valuestring);
    }
    TD_TRY(read_shape(shape, name, &entry->shape));
    int64_t begin, end, bytes;
    if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2 ||
        !read_size(offsets->child, &begin) || !read_size(offsets->child->next, &end) ||
        begin > end || end > data_size) {
        return td_fail(TD_E_FORMAT,
                       "the data_offsets of tensor '%s' do not lie inside the file's %lld bytes of "
                       "data",
                       name, (long long)data_size);
    }
    if (!count_bytes(entry->shape, entry->dtype, &bytes) || bytes != end - begin) {
        return td_fail(TD_E_FORMAT, "tensor '%s', %s%s, does not have the %lld bytes of its data",
                       name, td_dtype_name(entry->dtype), td_describe_shape(entry->shape),
                       (long long)(end - begin));
    }
    entry->name = name;
    entry->data = data + begin;
    entry->bytes = (size_t)bytes;
    return TD_OK;
}

static td_status read_metadata(td_safetensors *file, const cJSON *item)
{
    if (!cJSON_IsObject(item)) {
        return td_fail(TD_E_FORMAT, "the header's " TD_SAFETENSORS_METADATA " is no object");
    }
    for (const cJSON *value = item->child; value != NULL; value = value->next) {
        if (!cJSON_IsString(value)) {
            return td_fail(TD_E_FORMAT, "the metadata value '%s' is no string", value->string);
        }
    }
    file->metadata = item;
    return TD_OK;
}

static td_status read_entries(td_safetensors *file, const char *data, int64_t data_size)
{
    size_t room = (size_t)cJSON_GetArraySize(file->header) + 1;
    file->entries = calloc(room, sizeof *file->entries);
    file->by_name = calloc(room, sizeof *file->by_name);
    if (file->entries == NULL || file->by_name == NULL) {
        return td_fail(TD_E_NOMEM, "no memory for the list of %zu tensors", room - 1);
    }
    for (const cJSON *item = file->header->child; item != NULL; item = item->next) {
        if (strcmp(item->string, TD_SAFETENSORS_METADATA) != 0) {
            TD_TRY(read_entry(item, data, data_size, &file->entries[file->count]));
            file->count++;
        } else if (file->metadata == NULL) {
            TD_TRY(read_metadata(file, item));
        } else {
            return td_fail(TD_E_FORMAT, "the header has " TD_SAFETENSORS_METADATA " twice");
        }
    }
    return TD_OK;
}

td_status td_safetensors_read_header(td_safetensors *file, const char *text, size_t size,
                                     const char *data, int64_t data_size)
{
    TD_TRY(parse_json(file, text, size));
    return read_entries(file, data, data_size);
}
