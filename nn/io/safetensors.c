/* Reading safetensors files. The file may be damaged or hostile: nothing of it is used before it is
 * checked, and what a check finds is said with the name of the tensor. */
#include "nn/io/safetensors_internal.h"
#include "tensor/system/files.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- order: no holes, no overlaps, no name twice ---- */

static int compare_data(const void *a, const void *b)
{
    const td_safetensors_place *x = a, *y = b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    return x->entry.bytes < y->entry.bytes ? -1 : x->entry.bytes > y->entry.bytes;
}

static td_status check_data(td_safetensors *file)
{
    qsort(file->places, (size_t)file->count, sizeof *file->places, compare_data);
    int64_t end = 0;
    for (int i = 0; i < file->count; i++) {
        const td_safetensors_place *place = &file->places[i];
        TD_CHECK(place->begin == end, TD_E_FORMAT, "the data of tensor '%s' %s", place->entry.name,
                 place->begin < end ? "overlap those of another tensor" : "begin after a hole");
        end += (int64_t)place->entry.bytes;
        file->entries[i] = place->entry;
    }
    TD_CHECK(file->data + end == file->size, TD_E_FORMAT,
             "%lld bytes at the end of the file belong to no tensor",
             (long long)(file->size - file->data - end));
    return TD_OK;
}

static int compare_names(const void *a, const void *b)
{
    const td_safetensors_entry *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static td_status sort_names(td_safetensors *file)
{
    for (int i = 0; i < file->count; i++) {
        file->by_name[i] = &file->entries[i];
    }
    qsort(file->by_name, (size_t)file->count, sizeof(void *), compare_names);
    for (int i = 1; i < file->count; i++) {
        TD_CHECK(compare_names(&file->by_name[i - 1], &file->by_name[i]) != 0, TD_E_FORMAT,
                 "the header has tensor '%s' twice", file->by_name[i]->name);
    }
    return TD_OK;
}

/* ---- the whole ---- */

/* Bytes of the file from `offset` on, which were in the file when it was opened. */
static td_status read_at(const td_safetensors *file, int64_t offset, void *to, size_t size)
{
    if (file->memory != NULL) {
        memcpy(to, file->memory + offset, size);
        return TD_OK;
    }
    return td_file_read(file->in, offset, to, size);
}

td_status td_safetensors_read(const td_safetensors *file, const td_safetensors_entry *entry,
                              void *to)
{
    TD_REQUIRE(entry >= file->entries && entry < file->entries + file->count, TD_HERE,
               "td_safetensors_read: the entry is not of this file");
    const char *unknown = td_safetensors_unknown(file, entry);
    TD_CHECK(unknown == NULL, TD_E_UNSUPPORTED,
             "tensor '%s' is %s, which tandem does not have: convert it in the program that wrote "
             "the file",
             entry->name, unknown);
    int64_t begin = file->places[entry - file->entries].begin;
    return read_at(file, file->data + begin, to, entry->bytes);
}

td_status td_safetensors_take(const td_safetensors *file, const td_safetensors_entry *entry,
                              td_tensor *to)
{
    void *elements = malloc(entry->bytes + 1);
    TD_CHECK(elements != NULL, TD_E_NOMEM, "no memory to read '%s'", entry->name);
    td_status status = td_safetensors_read(file, entry, elements);
    if (status == TD_OK) {
        td_write(to, elements, entry->dtype);
    }
    free(elements);
    return status;
}

/* The header's length, and thereby where the data begin. */
static td_status read_length(td_safetensors *file)
{
    unsigned char first[TD_SAFETENSORS_LENGTH + 1] = { 0 }; /* with the header's first byte */
    TD_CHECK(file->size >= TD_SAFETENSORS_LENGTH, TD_E_FORMAT,
             "%lld bytes are too few for a safetensors file", (long long)file->size);
    TD_TRY(read_at(file, 0, first,
                   file->size > TD_SAFETENSORS_LENGTH ? sizeof first : sizeof first - 1));
    const char *kind =
        first[TD_SAFETENSORS_LENGTH] != '{' ? td_file_kind(first, sizeof first) : NULL;
    TD_CHECK(kind == NULL, TD_E_FORMAT,
             "this is %s, not a safetensors file. Tensors are saved in Python by "
             "safetensors.torch.save_file",
             kind);
    uint64_t length = 0;
    for (int i = TD_SAFETENSORS_LENGTH - 1; i >= 0; i--) {
        length = length << 8 | first[i];
    }
    TD_CHECK(length >= 2 && length <= TD_SAFETENSORS_HEADER, TD_E_FORMAT,
             "it says that its header has %llu bytes; possible are 2 to %d: this is no safetensors "
             "file, or a damaged one",
             (unsigned long long)length, TD_SAFETENSORS_HEADER);
    file->data = TD_SAFETENSORS_LENGTH + (int64_t)length;
    TD_CHECK(file->data <= file->size, TD_E_FORMAT,
             "the header should have %llu bytes, but only %lld are there: the file was cut short",
             (unsigned long long)length, (long long)(file->size - TD_SAFETENSORS_LENGTH));
    return TD_OK;
}

/* The header is parsed in memory of its own, which nobody else can change meanwhile. */
static td_status parse(td_safetensors *file)
{
    TD_TRY(read_length(file));
    size_t length = (size_t)(file->data - TD_SAFETENSORS_LENGTH);
    char *header = malloc(length);
    TD_CHECK(header != NULL, TD_E_NOMEM, "no memory for a header of %zu bytes", length);
    td_status status = read_at(file, TD_SAFETENSORS_LENGTH, header, length);
    status = status == TD_OK ? td_safetensors_read_header(file, header, length) : status;
    free(header);
    TD_TRY(status);
    TD_TRY(check_data(file));
    return sort_names(file);
}

/* Takes from.in over, also when it fails. */
static td_status open_file(td_safetensors from, td_safetensors **file)
{
    td_safetensors *f = *file = calloc(1, sizeof *f);
    if (f == NULL) {
        if (from.in != NULL) {
            fclose(from.in);
        }
        return td_fail(TD_E_NOMEM, "no memory to read a safetensors file");
    }
    *f = from;
    td_status status = parse(f);
    if (status != TD_OK) {
        td_safetensors_close(f);
        *file = NULL;
    }
    return status;
}

td_status td_safetensors_parse(const void *bytes, size_t size, td_safetensors **file)
{
    return open_file((td_safetensors){ .memory = bytes, .size = (int64_t)size }, file);
}

td_status td_safetensors_open(const char *path, td_safetensors **file)
{
    FILE *in;
    struct stat info = { .st_size = 0 };
    *file = NULL;
    TD_TRY(td_open_to_read(path, &in));
    (void)fstat(fileno(in), &info);
    td_status status = open_file((td_safetensors){ .in = in, .size = info.st_size }, file);
    return status == TD_OK ? TD_OK : td_fail_context(status, "'%s' cannot be used", path);
}

void td_safetensors_close(td_safetensors *file)
{
    if (file == NULL) {
        return;
    }
    if (file->in != NULL) {
        fclose(file->in);
    }
    free(file->places);
    free(file->entries);
    free(file->by_name);
    free(file->texts);
    cJSON_Delete(file->header);
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

const char *td_safetensors_unknown(const td_safetensors *file, const td_safetensors_entry *entry)
{
    return file->places[entry - file->entries].unknown;
}

const td_safetensors_entry *td_safetensors_find(const td_safetensors *file, const char *name)
{
    const td_safetensors_entry wanted = { .name = name }, *key = &wanted;
    const td_safetensors_entry *const *found =
        bsearch(&key, file->by_name, (size_t)file->count, sizeof(void *), compare_names);
    return found != NULL ? *found : NULL;
}
