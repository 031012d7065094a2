/* Reading safetensors files. The file may be damaged or hostile: nothing of it is used before it is
 * checked, and what a check finds is said with the name of the tensor. */
#include "nn/safetensors.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LENGTH_BYTES = 8, DEEPEST_NESTING = 3 };

struct td_safetensors {
    void *map; /* the mapped file; NULL: the bytes are the caller's */
    size_t map_size;
    cJSON *header;                 /* names and metadata point into it */
    const cJSON *metadata;         /* NULL: none */
    td_safetensors_entry *entries; /* in the order of their data */
    void **copies;                 /* aligned copies of data that are not; mostly NULL */
    int *by_name;                  /* numbers of entries, sorted by name */
    int count;
};

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

/* Looks through the text before the JSON parser gets it: brackets nested deeper than the format
 * needs would only exhaust the parser's stack, and a name with a zero in it would be cut short. */
static td_status scan_header(const char *text, size_t size)
{
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < size; i++) {
        char c = text[i];
        if (c == '\0') {
            return td_fail(TD_E_FORMAT, "the header has a zero byte at offset %zu", i);
        }
        if (in_string && c == '\\') {
            i++;
            if (size - i >= 5 && memcmp(text + i, "u0000", 5) == 0) {
                return td_fail(TD_E_FORMAT, "a name in the header has a zero character");
            }
        } else if (c == '"') {
            in_string = !in_string;
        } else if (!in_string && (c == '{' || c == '[')) {
            if (++depth > DEEPEST_NESTING) {
                return td_fail(TD_E_FORMAT,
                               "the header's JSON is nested deeper than %d levels at offset %zu",
                               DEEPEST_NESTING, i);
            }
        } else if (!in_string && (c == '}' || c == ']')) {
            depth--;
        }
    }
    return TD_OK;
}

static td_status parse_header(td_safetensors *file, const char *text, size_t size)
{
    if (*text != '{') {
        return td_fail(TD_E_FORMAT, "the header does not begin with '{'");
    }
    TD_TRY(scan_header(text, size));
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

/* The three things that an entry must have, each once and no other. */
typedef struct entry_parts {
    const cJSON *dtype, *shape, *offsets;
} entry_parts;

static td_status find_parts(const cJSON *item, const char *name, entry_parts *parts)
{
    *parts = (entry_parts){ NULL, NULL, NULL };
    for (const cJSON *part = item->child; part != NULL; part = part->next) {
        const cJSON **place = NULL;
        if (part->string != NULL && strcmp(part->string, "dtype") == 0) {
            place = &parts->dtype;
        } else if (part->string != NULL && strcmp(part->string, "shape") == 0) {
            place = &parts->shape;
        } else if (part->string != NULL && strcmp(part->string, "data_offsets") == 0) {
            place = &parts->offsets;
        }
        if (place == NULL || *place != NULL) {
            return td_fail(TD_E_FORMAT, "tensor '%s' has an unknown or repeated field '%s'", name,
                           part->string != NULL ? part->string : "");
        }
        *place = part;
    }
    if (parts->dtype == NULL || parts->shape == NULL || parts->offsets == NULL) {
        return td_fail(TD_E_FORMAT, "tensor '%s' lacks one of dtype, shape and data_offsets", name);
    }
    return TD_OK;
}

static td_status read_entry(const cJSON *item, const char *data, int64_t data_size,
                            td_safetensors_entry *entry)
{
    const char *name = item->string;
    entry_parts parts;
    if (!cJSON_IsObject(item)) {
        return td_fail(TD_E_FORMAT, "the header's '%s' is no object", name);
    }
    TD_TRY(find_parts(item, name, &parts));
    if (!cJSON_IsString(parts.dtype)) {
        return td_fail(TD_E_FORMAT, "tensor '%s' has no string as its dtype", name);
    }
    if (!find_dtype(parts.dtype->valuestring, &entry->dtype)) {
        return td_fail(TD_E_UNSUPPORTED, "tensor '%s' has the dtype '%.40s', which is not known",
                       name, parts.dtype->valuestring);
    }
    TD_TRY(read_shape(parts.shape, name, &entry->shape));
    int64_t begin, end, bytes;
    if (!cJSON_IsArray(parts.offsets) || cJSON_GetArraySize(parts.offsets) != 2 ||
        !read_size(parts.offsets->child, &begin) || !read_size(parts.offsets->child->next, &end) ||
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
    file->copies = calloc(room, sizeof(void *));
    if (file->entries == NULL || file->by_name == NULL || file->copies == NULL) {
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

/* ---- order: no holes, no overlaps, no name twice ---- */

static int compare_data(const void *a, const void *b)
{
    const td_safetensors_entry *x = a, *y = b;
    uintptr_t begin_x = (uintptr_t)x->data, begin_y = (uintptr_t)y->data;
    if (begin_x != begin_y) {
        return begin_x < begin_y ? -1 : 1;
    }
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static td_status check_data(td_safetensors *file, const char *data, int64_t data_size)
{
    qsort(file->entries, (size_t)file->count, sizeof *file->entries, compare_data);
    const char *end = data;
    for (int i = 0; i < file->count; i++) {
        const td_safetensors_entry *entry = &file->entries[i];
        if ((const char *)entry->data != end) {
            return td_fail(TD_E_FORMAT, "the data of tensor '%s' %s", entry->name,
                           (const char *)entry->data < end ? "overlap those of another tensor"
                                                           : "begin after a hole");
        }
        end += entry->bytes;
    }
    if (end != data + data_size) {
        return td_fail(TD_E_FORMAT, "%lld bytes at the end of the file belong to no tensor",
                       (long long)(data + data_size - end));
    }
    return TD_OK;
}

static int compare_names(const void *a, const void *b, void *entries)
{
    const td_safetensors_entry *all = entries;
    return strcmp(all[*(const int *)a].name, all[*(const int *)b].name);
}

static td_status sort_names(td_safetensors *file)
{
    for (int i = 0; i < file->count; i++) {
        file->by_name[i] = i;
    }
    qsort_r(file->by_name, (size_t)file->count, sizeof *file->by_name, compare_names,
            file->entries);
    for (int i = 1; i < file->count; i++) {
        const char *name = file->entries[file->by_name[i]].name;
        if (strcmp(file->entries[file->by_name[i - 1]].name, name) == 0) {
            return td_fail(TD_E_FORMAT, "the header has tensor '%s' twice", name);
        }
    }
    return TD_OK;
}

/* The format does not align data; who reads them as numbers needs them aligned. */
static td_status align_data(td_safetensors *file)
{
    for (int i = 0; i < file->count; i++) {
        td_safetensors_entry *entry = &file->entries[i];
        if ((uintptr_t)entry->data % td_dtype_size(entry->dtype) == 0) {
            continue;
        }
        file->copies[i] = malloc(entry->bytes > 0 ? entry->bytes : 1);
        if (file->copies[i] == NULL) {
            return td_fail(TD_E_NOMEM, "no memory for the %zu bytes of tensor '%s'", entry->bytes,
                           entry->name);
        }
        memcpy(file->copies[i], entry->data, entry->bytes);
        entry->data = file->copies[i];
    }
    return TD_OK;
}

/* ---- the whole ---- */

static td_status read_length(const unsigned char *bytes, size_t size, size_t *length)
{
    if (size < LENGTH_BYTES) {
        return td_fail(TD_E_FORMAT, "%zu bytes are too few for a safetensors file", size);
    }
    uint64_t value = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--) {
        value = value << 8 | bytes[i];
    }
    if (value < 2 || value > TD_SAFETENSORS_MAX_HEADER) {
        return td_fail(TD_E_FORMAT,
                       "it says that its header has %llu bytes; possible are 2 to %d: this is no "
                       "safetensors file, or a damaged one",
                       (unsigned long long)value, TD_SAFETENSORS_MAX_HEADER);
    }
    if (value > size - LENGTH_BYTES) {
        return td_fail(
            TD_E_FORMAT,
            "the header should have %llu bytes, but only %zu are there: the file was cut "
            "short",
            (unsigned long long)value, size - LENGTH_BYTES);
    }
    *length = (size_t)value;
    return TD_OK;
}

static td_status parse(td_safetensors *file, const char *bytes, size_t size)
{
    size_t length;
    TD_TRY(read_length((const unsigned char *)bytes, size, &length));
    const char *data = bytes + LENGTH_BYTES + length;
    int64_t data_size = (int64_t)(size - LENGTH_BYTES - length);
    TD_TRY(parse_header(file, bytes + LENGTH_BYTES, length));
    TD_TRY(read_entries(file, data, data_size));
    TD_TRY(check_data(file, data, data_size));
    TD_TRY(sort_names(file));
    return align_data(file);
}

td_status td_safetensors_parse(const void *bytes, size_t size, td_safetensors **file)
{
    *file = calloc(1, sizeof **file);
    if (*file == NULL) {
        return td_fail(TD_E_NOMEM, "no memory to read a safetensors file");
    }
    td_status status = parse(*file, bytes, size);
    if (status != TD_OK) {
        td_safetensors_close(*file);
        *file = NULL;
    }
    return status;
}

static td_status map_file(const char *path, void **map, size_t *size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return td_fail(errno == ENOENT ? TD_E_NOTFOUND : TD_E_IO, "cannot open '%s': %s", path,
                       strerror(errno));
    }
    struct stat info;
    td_status status = TD_OK;
    if (fstat(fd, &info) != 0) {
        status = td_fail(TD_E_IO, "cannot look at '%s': %s", path, strerror(errno));
    } else if (!S_ISREG(info.st_mode)) {
        status = td_fail(TD_E_FORMAT, "'%s' is no file; give the path of a checkpoint file", path);
    } else if (info.st_size == 0) {
        status = td_fail(TD_E_FORMAT, "'%s' is empty; a checkpoint never is", path);
    } else {
        *size = (size_t)info.st_size;
        *map = mmap(NULL, *size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (*map == MAP_FAILED) {
            status = td_fail(TD_E_IO, "cannot map '%s': %s", path, strerror(errno));
        }
    }
    close(fd);
    return status;
}

td_status td_safetensors_open(const char *path, td_safetensors **file)
{
    *file = NULL;
    void *map;
    size_t size;
    TD_TRY(map_file(path, &map, &size));
    td_status status = td_safetensors_parse(map, size, file);
    if (status != TD_OK) {
        munmap(map, size);
        return td_fail_context(status, "'%s' cannot be used", path);
    }
    (*file)->map = map;
    (*file)->map_size = size;
    return TD_OK;
}

void td_safetensors_close(td_safetensors *file)
{
    if (file == NULL) {
        return;
    }
    for (int i = 0; file->copies != NULL && i < file->count; i++) {
        free(file->copies[i]);
    }
    free(file->entries);
    free(file->by_name);
    free(file->copies);
    cJSON_Delete(file->header);
    if (file->map != NULL) {
        munmap(file->map, file->map_size);
    }
    free(file);
}

/* ---- looking ---- */

int td_safetensors_count(const td_safetensors *file)
{
    return file->count;
}

const td_safetensors_entry *td_safetensors_get(const td_safetensors *file, int i)
{
    TD_REQUIRE(i >= 0 && i < file->count, TD_HERE,
               "td_safetensors_get: there is no tensor %d of %d", i, file->count);
    return &file->entries[i];
}

const td_safetensors_entry *td_safetensors_find(const td_safetensors *file, const char *name)
{
    int low = 0, high = file->count;
    while (low < high) {
        int middle = low + (high - low) / 2;
        const td_safetensors_entry *entry = &file->entries[file->by_name[middle]];
        int order = strcmp(name, entry->name);
        if (order == 0) {
            return entry;
        }
        if (order < 0) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return NULL;
}

const char *td_safetensors_metadata(const td_safetensors *file, const char *key)
{
    const cJSON *value =
        file->metadata != NULL ? cJSON_GetObjectItemCaseSensitive(file->metadata, key) : NULL;
    return value != NULL ? value->valuestring : NULL;
}
