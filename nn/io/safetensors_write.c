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

/* A tensor's data, counted from the beginning of all data. */
typedef struct span {
    int64_t begin, bytes;
} span;

struct td_safetensors_out {
    td_safetensors_place place;
    char *path;      /* the target */
    char *temporary; /* NULL: the file is another process's */
    FILE *file;
    span *spans; /* of each tensor */
    int count;
    int64_t bytes; /* of all data */
};

/* ---- the plan ---- */

static td_status no_memory(const td_safetensors_out *out)
{
    return td_fail(TD_E_NOMEM, "no memory to save %d tensors to '%s'", out->count, out->path);
}

/* Two equal names would make a file that cannot be read. */
static td_status check_new(const cJSON *object, const char *name, const char *what)
{
    return cJSON_GetObjectItemCaseSensitive(object, name) == NULL
               ? TD_OK
               : td_fail(TD_E_ARG, "two %s are called '%s'; give each a name of its own", what,
                         name);
}

static bool add_number(cJSON *array, int64_t value)
{
    return cJSON_AddItemToArray(array, cJSON_CreateNumber((double)value));
}

static td_status add_entry(const td_safetensors_out *out, cJSON *root,
                           const td_safetensors_entry *entry, span at)
{
    if (strcmp(entry->name, TD_SAFETENSORS_METADATA) == 0) {
        return td_fail(TD_E_ARG, "no tensor can be called '%s'", entry->name);
    }
    TD_TRY(check_new(root, entry->name, "tensors"));
    cJSON *item = cJSON_AddObjectToObject(root, entry->name);
    bool made =
        cJSON_AddStringToObject(item, "dtype", td_safetensors_dtype_name(entry->dtype)) != NULL;
    cJSON *shape = cJSON_AddArrayToObject(item, "shape");
    for (int i = 0; i < entry->shape.ndim; i++) {
        made = made && add_number(shape, entry->shape.dim[i]);
    }
    cJSON *offsets = cJSON_AddArrayToObject(item, "data_offsets");
    made = made && add_number(offsets, at.begin) && add_number(offsets, at.begin + at.bytes);
    return made ? TD_OK : no_memory(out);
}

/* Wide elements first, so that all lie aligned. header: NULL, or gets the entries. */
static td_status lay_out(td_safetensors_out *out, const td_safetensors_entry *entries,
                         cJSON *header)
{
    for (size_t width = 8; width > 0; width /= 2) {
        for (int i = 0; i < out->count; i++) {
            if (td_dtype_size(entries[i].dtype) != width) {
                continue;
            }
            out->spans[i] = (span){ out->bytes, (int64_t)entries[i].bytes };
            out->bytes += out->spans[i].bytes;
            if (header != NULL) {
                TD_TRY(add_entry(out, header, &entries[i], out->spans[i]));
            }
        }
    }
    return TD_OK;
}

static td_status add_metadata(const td_safetensors_out *out, cJSON *root,
                              const td_metadata *metadata, int count)
{
    cJSON *strings = count > 0 ? cJSON_AddObjectToObject(root, TD_SAFETENSORS_METADATA) : NULL;
    for (int i = 0; i < count; i++) {
        TD_TRY(check_new(strings, metadata[i].key, "metadata values"));
        if (cJSON_AddStringToObject(strings, metadata[i].key, metadata[i].value) == NULL) {
            return no_memory(out);
        }
    }
    return TD_OK;
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

/* NULL with td_last_error(). */
static td_safetensors_out *new_out(const char *path, int count)
{
    td_safetensors_out *out = calloc(1, sizeof *out);
    if (out != NULL) {
        out->count = count;
        out->path = strdup(path);
        out->spans = calloc((size_t)count + 1, sizeof *out->spans);
    }
    if (out == NULL || out->path == NULL || out->spans == NULL) {
        td_fail(TD_E_NOMEM, "no memory to save %d tensors to '%s'", count, path);
        (void)td_safetensors_finish(out, false);
        return NULL;
    }
    return out;
}

static td_status begin_file(td_safetensors_out *out, const cJSON *header)
{
    char *text = cJSON_PrintUnformatted(header);
    if (text == NULL) {
        return no_memory(out);
    }
    td_temporary_remove_abandoned(out->path);
    out->file = td_temporary_file(out->path, &out->temporary);
    td_status status = TD_OK;
    if (out->file != NULL) {
        snprintf(out->place.file, sizeof out->place.file, "%s", out->temporary);
        status = write_header(out, text);
    } else {
        status = io_failure(out, "creating a file beside it");
    }
    cJSON_free(text);
    return status;
}

static td_status plan(td_safetensors_out *out, const td_safetensors_entry *entries,
                      const td_metadata *metadata, int metadata_count)
{
    cJSON *header = cJSON_CreateObject();
    td_status status = header != NULL ? TD_OK : no_memory(out);
    status = status == TD_OK ? add_metadata(out, header, metadata, metadata_count) : status;
    status = status == TD_OK ? lay_out(out, entries, header) : status;
    status = status == TD_OK ? begin_file(out, header) : status;
    cJSON_Delete(header);
    return status;
}

/* After a failure there is no file. */
static td_status begun(td_status status, td_safetensors_out *new, td_safetensors_out **out)
{
    if (status != TD_OK) {
        (void)td_safetensors_finish(new, false);
    }
    *out = status == TD_OK ? new : NULL;
    return status;
}

td_status td_safetensors_plan(const char *path, const td_safetensors_entry *entries, int count,
                              const td_metadata *metadata, int metadata_count,
                              td_safetensors_out **out)
{
    td_safetensors_out *new = new_out(path, count);
    return begun(new != NULL ? plan(new, entries, metadata, metadata_count) : TD_E_NOMEM, new, out);
}

const td_safetensors_place *td_safetensors_place_of(const td_safetensors_out *out)
{
    return &out->place;
}

static td_status join(td_safetensors_out *out, const td_safetensors_place *place,
                      const td_safetensors_entry *entries)
{
    out->place = *place;
    out->file = td_temporary_join(place->file);
    if (out->file == NULL) {
        return io_failure(out, "opening");
    }
    TD_TRY(lay_out(out, entries, NULL));
    return out->bytes == place->bytes
               ? TD_OK
               : td_fail(TD_E_MISMATCH, "'%s': this rank has other tensors to save", place->file);
}

td_status td_safetensors_join(const td_safetensors_place *place,
                              const td_safetensors_entry *entries, int count,
                              td_safetensors_out **out)
{
    td_safetensors_out *new = new_out(place->file, count);
    return begun(new != NULL ? join(new, place, entries) : TD_E_NOMEM, new, out);
}

td_status td_safetensors_put(td_safetensors_out *out, int i, int64_t offset, const void *bytes,
                             size_t size)
{
    TD_REQUIRE(i >= 0 && i < out->count && offset >= 0 &&
                   offset + (int64_t)size <= out->spans[i].bytes,
               TD_HERE, "td_safetensors_put: %zu bytes from byte %lld are not in tensor %d of %d",
               size, (long long)offset, i, out->count);
    return write_at(out, bytes, size, out->place.data + out->spans[i].begin + offset);
}

td_status td_safetensors_sync(td_safetensors_out *out)
{
    return fsync(fileno(out->file)) == 0 ? TD_OK : io_failure(out, "syncing");
}

static td_status finish_file(td_safetensors_out *out, bool keep)
{
    if (out->temporary == NULL) { /* whose file it is renames or removes it */
        td_status synced = keep ? td_safetensors_sync(out) : TD_OK;
        bool closed = fclose(out->file) == 0 || !keep;
        return closed || synced != TD_OK ? synced : io_failure(out, "closing");
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
    free(out->path);
    free(out->spans);
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
