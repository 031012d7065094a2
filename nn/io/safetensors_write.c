/* Writing safetensors files in three parts: plan, put, finish. Until it is finished, the file is a
 * temporary one next to its target. */
#include "nn/io/safetensors_internal.h"
#include "tensor/system/temporary.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct td_safetensors_out {
    char *path;      /* the target */
    char *temporary; /* the file's name until it is finished */
    FILE *file;
    char *header;   /* its text */
    int64_t data;   /* where the tensors' data begin */
    int64_t size;   /* of all data */
    int64_t *begin; /* of each tensor's data, counted from the first tensor's */
    int64_t *bytes; /* of each tensor's data */
    int count;
};

static td_status io_failure(const td_safetensors_out *out, const char *what)
{
    return td_temporary_failed(out->path, out->size, what);
}

static td_status write_at(const td_safetensors_out *out, const void *bytes, size_t size,
                          int64_t offset)
{
    for (const char *at = bytes; size > 0;) {
        ssize_t written = pwrite(fileno(out->file), at, size, offset);
        if (written < 0 && errno != EINTR) {
            return io_failure(out, "writing");
        }
        written = written < 0 ? 0 : written;
        at += written;
        offset += written;
        size -= (size_t)written;
    }
    return TD_OK;
}

static td_status begin_file(td_safetensors_out *out)
{
    size_t length = strlen(out->header); /* padded with blanks, so that the data lie aligned */
    size_t padding = (8 - length % 8) % 8;
    TD_CHECK(length + padding <= TD_SAFETENSORS_HEADER, TD_E_ARG,
             "'%s' would have a header of %zu bytes; a safetensors file has at most %d: give less "
             "metadata",
             out->path, length, TD_SAFETENSORS_HEADER);
    TD_TRY(td_temporary_begin(out->path, out->size, &out->file, &out->temporary));
    unsigned char prefix[TD_SAFETENSORS_LENGTH];
    for (int i = 0; i < TD_SAFETENSORS_LENGTH; i++) {
        prefix[i] = (unsigned char)((uint64_t)(length + padding) >> (8 * i));
    }
    out->data = (int64_t)(sizeof prefix + length + padding);
    if (ftruncate(fileno(out->file), out->data + out->size) != 0) {
        return io_failure(out, "writing");
    }
    TD_TRY(write_at(out, prefix, sizeof prefix, 0));
    TD_TRY(write_at(out, out->header, length, sizeof prefix));
    return write_at(out, "       ", padding, (int64_t)(sizeof prefix + length));
}

/* ---- what others call ---- */

static td_status safetensors_plan(td_safetensors_out *out, const td_safetensors_entry *entries,
                                  const td_metadata *metadata, int metadata_count)
{
    for (int i = 0; i < out->count; i++) {
        out->bytes[i] = (int64_t)entries[i].bytes;
        out->size += out->bytes[i];
    }
    TD_TRY(td_safetensors_write_header(entries, out->count, metadata, metadata_count, out->begin,
                                       &out->header));
    return begin_file(out);
}

td_status td_safetensors_plan(const char *path, const td_safetensors_entry *entries, int count,
                              const td_metadata *metadata, int metadata_count,
                              td_safetensors_out **out)
{
    td_safetensors_out *o = calloc(1, sizeof *o);
    int64_t *numbers = calloc(2 * (size_t)count + 1, sizeof *numbers);
    char *target = strdup(path);
    *out = NULL;
    if (o == NULL || numbers == NULL || target == NULL) {
        free(o);
        free(numbers);
        free(target);
        return td_fail(TD_E_NOMEM, "no memory to save %d tensors to '%s'", count, path);
    }
    *o = (td_safetensors_out){
        .path = target, .begin = numbers, .bytes = numbers + count, .count = count
    };
    td_status status = safetensors_plan(o, entries, metadata, metadata_count);
    if (status != TD_OK) {
        (void)td_safetensors_finish(o, false);
        return status;
    }
    *out = o;
    return TD_OK;
}

td_status td_safetensors_put(td_safetensors_out *out, int i, int64_t offset, const void *bytes,
                             size_t size)
{
    TD_REQUIRE(i >= 0 && i < out->count && offset >= 0 && offset + (int64_t)size <= out->bytes[i],
               TD_HERE, "td_safetensors_put: %zu bytes from byte %lld are not in tensor %d of %d",
               size, (long long)offset, i, out->count);
    return write_at(out, bytes, size, out->data + out->begin[i] + offset);
}

td_status td_safetensors_set(td_safetensors_out *out, const char *key, const char *value)
{
    char before[256];
    snprintf(before, sizeof before, "\"%s\":\"", key);
    const char *at = strstr(out->header, before);
    at = at != NULL ? at + strlen(before) : NULL;
    TD_REQUIRE(at != NULL && strcspn(at, "\"") == strlen(value), TD_HERE,
               "td_safetensors_set: the plan has no value of '%s' of %zu bytes", key,
               strlen(value));
    return write_at(out, value, strlen(value), TD_SAFETENSORS_LENGTH + (at - out->header));
}

td_status td_safetensors_finish(td_safetensors_out *out, bool keep)
{
    if (out == NULL) {
        return TD_OK;
    }
    td_status status = TD_OK;
    if (out->file != NULL) {
        status = td_temporary_end(out->file, out->temporary, out->path, out->size,
                                  keep ? TD_OK : TD_E_IO);
    }
    cJSON_free(out->header);
    free(out->path);
    free(out->begin);
    free(out);
    return keep ? status : TD_OK;
}

td_safetensors_entry td_safetensors_of(const char *name, const td_tensor *t, td_dtype dtype)
{
    return (td_safetensors_entry){ .name = name,
                                   .dtype = dtype,
                                   .shape = td_shape_of(t),
                                   .bytes = (size_t)td_numel(t) * td_dtype_size(dtype),
                                   .data = t };
}

static td_status put_tensor(td_safetensors_out *out, int i, const td_safetensors_entry *entry)
{
    void *elements = malloc(entry->bytes + 1);
    TD_CHECK(elements != NULL, TD_E_NOMEM, "no memory to write '%s'", entry->name);
    td_read(entry->data, elements, entry->dtype);
    td_status status = td_safetensors_put(out, i, 0, elements, entry->bytes);
    free(elements);
    return status;
}

static td_status write_entries(const char *path, const td_safetensors_entry *entries, int count,
                               const td_metadata *metadata, int metadata_count, bool tensors)
{
    td_safetensors_out *out;
    TD_TRY(td_safetensors_plan(path, entries, count, metadata, metadata_count, &out));
    td_status status = TD_OK;
    for (int i = 0; i < count && status == TD_OK; i++) {
        const td_safetensors_entry *e = &entries[i];
        status = tensors ? put_tensor(out, i, e) : td_safetensors_put(out, i, 0, e->data, e->bytes);
    }
    td_status finished = td_safetensors_finish(out, status == TD_OK);
    return status != TD_OK ? status : finished;
}

td_status td_safetensors_write(const char *path, const td_safetensors_entry *entries, int count,
                               const td_metadata *metadata, int metadata_count)
{
    return write_entries(path, entries, count, metadata, metadata_count, false);
}

td_status td_safetensors_write_tensors(const char *path, const td_safetensors_entry *entries,
                                       int count, const td_metadata *metadata, int metadata_count)
{
    return write_entries(path, entries, count, metadata, metadata_count, true);
}
