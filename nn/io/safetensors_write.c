/* Writing safetensors files in three parts: plan, put, finish. Until it is finished, the file is a
 * temporary one next to its target. */
#include "nn/io/checkpoint.h"
#include "nn/io/safetensors_internal.h"
#include "tensor/extend.h"
#include "tensor/temporary.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct td_safetensors_out {
    td_safetensors_place place;
    const char *path; /* the target */
    char *temporary;  /* NULL: the file is another process's */
    FILE *file;
    const td_safetensors_entry *entries;
    int count;
    int *order;     /* the entries by the place of their data */
    int64_t *begin; /* of each entry's data, from the beginning of all data */
    int64_t bytes;  /* of all data */
};

/* ---- the plan ---- */

/* Wide elements first, so that all lie aligned. */
static void lay_out(td_safetensors_out *out)
{
    int n = 0;
    for (size_t width = 8; width > 0; width /= 2) {
        for (int i = 0; i < out->count; i++) {
            if (td_dtype_size(out->entries[i].dtype) == width) {
                out->order[n++] = i;
                out->begin[i] = out->bytes;
                out->bytes += (int64_t)out->entries[i].bytes;
            }
        }
    }
}

static bool add_number(cJSON *array, int64_t value)
{
    return cJSON_AddItemToArray(array, cJSON_CreateNumber((double)value));
}

static bool add_entry(cJSON *root, const td_safetensors_entry *entry, int64_t begin)
{
    cJSON *item = cJSON_AddObjectToObject(root, entry->name);
    bool made =
        cJSON_AddStringToObject(item, "dtype", td_safetensors_dtype_name(entry->dtype)) != NULL;
    cJSON *shape = cJSON_AddArrayToObject(item, "shape");
    for (int i = 0; i < entry->shape.ndim; i++) {
        made = made && add_number(shape, entry->shape.dim[i]);
    }
    cJSON *offsets = cJSON_AddArrayToObject(item, "data_offsets");
    return made && add_number(offsets, begin) && add_number(offsets, begin + (int64_t)entry->bytes);
}

/* The header's text, to be freed by cJSON_free. NULL when memory is short. */
static char *make_header(const td_safetensors_out *out, const td_metadata *metadata, int count)
{
    cJSON *root = cJSON_CreateObject();
    bool made = root != NULL;
    if (count > 0) {
        cJSON *strings = cJSON_AddObjectToObject(root, TD_SAFETENSORS_METADATA);
        for (int i = 0; made && i < count; i++) {
            made = cJSON_AddStringToObject(strings, metadata[i].key, metadata[i].value) != NULL;
        }
    }
    for (int k = 0; made && k < out->count; k++) {
        int i = out->order[k];
        made = add_entry(root, &out->entries[i], out->begin[i]);
    }
    char *text = made ? cJSON_PrintUnformatted(root) : NULL;
    cJSON_Delete(root);
    return text;
}

static int compare_strings(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Two equal names would make a file that cannot be read. Sorts the names. */
static td_status check_distinct(const char **names, int count, const char *what)
{
    qsort(names, (size_t)count, sizeof *names, compare_strings);
    for (int i = 1; i < count; i++) {
        if (strcmp(names[i - 1], names[i]) == 0) {
            return td_fail(TD_E_ARG, "two %s are called '%s'; give each a name of its own", what,
                           names[i]);
        }
    }
    return TD_OK;
}

static td_status check_names(const td_safetensors_entry *entries, int count,
                             const td_metadata *metadata, int metadata_count)
{
    const char **names = calloc((size_t)count + (size_t)metadata_count + 1, sizeof *names);
    if (names == NULL) {
        return td_fail(TD_E_NOMEM, "no memory to write a file of %d tensors", count);
    }
    td_status status = TD_OK;
    for (int i = 0; i < count; i++) {
        names[i] = entries[i].name;
        if (strcmp(names[i], TD_SAFETENSORS_METADATA) == 0) {
            status = td_fail(TD_E_ARG, "no tensor can be called '%s'", names[i]);
        }
    }
    for (int i = 0; i < metadata_count; i++) {
        names[count + i] = metadata[i].key;
    }
    status = status == TD_OK ? check_distinct(names, count, "tensors") : status;
    status =
        status == TD_OK ? check_distinct(names + count, metadata_count, "metadata values") : status;
    free(names);
    return status;
}

static td_status io_failure(const td_safetensors_out *out, const char *what)
{
    return td_temporary_failed(out->path, out->bytes, what);
}

/* ---- the three parts ---- */

static td_status write_at(const td_safetensors_out *out, const void *bytes, size_t size,
                          int64_t offset)
{
    const char *at = bytes;
    while (size > 0) {
        ssize_t written = pwrite(fileno(out->file), at, size, offset);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written < 0) {
            return io_failure(out, "writing");
        }
        at += written;
        offset += written;
        size -= (size_t)written;
    }
    return TD_OK;
}

static td_status write_header(td_safetensors_out *out, const char *header)
{
    size_t length = strlen(header); /* padded with blanks, so that the data lie aligned */
    size_t padding = (8 - length % 8) % 8;
    unsigned char prefix[8];
    for (int i = 0; i < 8; i++) {
        prefix[i] = (unsigned char)((uint64_t)(length + padding) >> (8 * i));
    }
    out->place.data = (int64_t)(sizeof prefix + length + padding);
    out->place.bytes = out->bytes;
    if (ftruncate(fileno(out->file), out->place.data + out->bytes) != 0) {
        return io_failure(out, "writing");
    }
    TD_TRY(write_at(out, prefix, sizeof prefix, 0));
    TD_TRY(write_at(out, header, length, sizeof prefix));
    return write_at(out, "       ", padding, (int64_t)(sizeof prefix + length));
}

static td_safetensors_out *new_out(const char *path, const td_safetensors_entry *entries, int count)
{
    td_safetensors_out *out = calloc(1, sizeof *out);
    if (out != NULL) {
        *out = (td_safetensors_out){ .path = path, .entries = entries, .count = count };
        out->order = calloc((size_t)count + 1, sizeof *out->order);
        out->begin = calloc((size_t)count + 1, sizeof *out->begin);
    }
    if (out == NULL || out->order == NULL || out->begin == NULL) {
        td_fail(TD_E_NOMEM, "no memory to save %d tensors to '%s'", count, path);
        (void)td_safetensors_finish(out, false);
        return NULL;
    }
    lay_out(out);
    return out;
}

static td_status begin_file(td_safetensors_out *out, const char *header)
{
    if (header == NULL) {
        return td_fail(TD_E_NOMEM, "no memory to save %d tensors to '%s'", out->count, out->path);
    }
    td_temporary_remove_abandoned(out->path);
    out->file = td_temporary_file(out->path, &out->temporary);
    if (out->file == NULL) {
        return io_failure(out, "creating a file beside it");
    }
    snprintf(out->place.file, sizeof out->place.file, "%s", out->temporary);
    return write_header(out, header);
}

td_status td_safetensors_plan(const char *path, const td_safetensors_entry *entries, int count,
                              const td_metadata *metadata, int metadata_count,
                              td_safetensors_out **out)
{
    *out = NULL;
    TD_TRY(check_names(entries, count, metadata, metadata_count));
    td_safetensors_out *new = new_out(path, entries, count);
    if (new == NULL) {
        return TD_E_NOMEM;
    }
    char *header = make_header(new, metadata, metadata_count);
    td_status status = begin_file(new, header);
    cJSON_free(header);
    if (status != TD_OK) {
        (void)td_safetensors_finish(new, false);
        return status;
    }
    *out = new;
    return TD_OK;
}

const td_safetensors_place *td_safetensors_place_of(const td_safetensors_out *out)
{
    return &out->place;
}

td_status td_safetensors_join(const td_safetensors_place *place,
                              const td_safetensors_entry *entries, int count,
                              td_safetensors_out **out)
{
    *out = new_out(place->file, entries, count);
    if (*out == NULL) {
        return TD_E_NOMEM;
    }
    (*out)->place = *place;
    (*out)->path = (*out)->place.file;
    (*out)->file = td_temporary_join(place->file);
    if ((*out)->file == NULL || (*out)->bytes != place->bytes) {
        td_status status =
            (*out)->file == NULL
                ? io_failure(*out, "opening")
                : td_fail(TD_E_MISMATCH, "'%s': this rank has other tensors to save", place->file);
        (void)td_safetensors_finish(*out, false);
        *out = NULL;
        return status;
    }
    return TD_OK;
}

td_status td_safetensors_put(td_safetensors_out *out, int i, int64_t offset, const void *bytes,
                             size_t size)
{
    TD_REQUIRE(i >= 0 && i < out->count && offset >= 0 &&
                   (uint64_t)offset + size <= out->entries[i].bytes,
               TD_HERE, "td_safetensors_put: %zu bytes from byte %lld are not in tensor %d of %d",
               size, (long long)offset, i, out->count);
    return write_at(out, bytes, size, out->place.data + out->begin[i] + offset);
}

static td_status finish_file(td_safetensors_out *out, bool keep)
{
    if (out->temporary == NULL) { /* whose file it is renames or removes it */
        bool synced = !keep || fsync(fileno(out->file)) == 0;
        bool closed = fclose(out->file) == 0 || !keep;
        return synced && closed ? TD_OK : io_failure(out, "syncing");
    }
    const char *failed = td_temporary_end(out->file, out->temporary, keep ? out->path : NULL);
    if (failed != NULL) {
        return io_failure(out, failed);
    }
    return !keep || td_temporary_sync_folder(out->path)
               ? TD_OK
               : td_fail(TD_E_IO, "'%s' is saved, but syncing its folder failed: %s", out->path,
                         strerror(errno));
}

td_status td_safetensors_finish(td_safetensors_out *out, bool keep)
{
    if (out == NULL) {
        return TD_OK;
    }
    td_status status = out->file != NULL ? finish_file(out, keep) : TD_OK;
    free(out->order);
    free(out->begin);
    free(out);
    return status;
}

td_status td_safetensors_write(const char *path, const td_safetensors_entry *entries, int count,
                               const td_metadata *metadata, int metadata_count)
{
    td_safetensors_out *out;
    TD_TRY(td_safetensors_plan(path, entries, count, metadata, metadata_count, &out));
    td_status status = TD_OK;
    for (int i = 0; i < count && status == TD_OK; i++) {
        status = td_safetensors_put(out, i, 0, entries[i].data, entries[i].bytes);
    }
    td_status finished = td_safetensors_finish(out, status == TD_OK);
    return status != TD_OK ? status : finished;
}
