/* Writing safetensors files in three parts: plan, put, finish. Until it is finished, the file is a
 * temporary one next to its target. */
#include "nn/io/safetensors_internal.h"
#include "tensor/temporary.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct td_safetensors_out {
    td_safetensors_place place;
    char *path;      /* the target */
    char *temporary; /* NULL: the file is another process's */
    FILE *file;
    int64_t *begin, *bytes; /* of each tensor's data; begin counts from the first tensor's */
    int count;
};

static td_status io_failure(const td_safetensors_out *out, const char *what)
{
    return td_temporary_failed(out->path, out->place.bytes, what);
}

/* What is needed of the entries. NULL with td_last_error(). */
static td_safetensors_out *new_out(const char *path, const td_safetensors_entry *entries, int count)
{
    td_safetensors_out *o = calloc(1, sizeof *o);
    if (o != NULL) {
        o->path = strdup(path);
        o->begin = calloc(2 * (size_t)count + 1, sizeof *o->begin);
    }
    if (o == NULL || o->path == NULL || o->begin == NULL) {
        td_fail(TD_E_NOMEM, "no memory to save %d tensors to '%s'", count, path);
        (void)td_safetensors_finish(o, false);
        return NULL;
    }
    o->bytes = o->begin + count;
    o->count = count;
    for (int width = TD_SAFETENSORS_WIDEST; width > 0; width /= 2) {
        for (int i = 0; i < count; i++) {
            if ((int)td_dtype_size(entries[i].dtype) == width) {
                o->begin[i] = o->place.bytes;
                o->bytes[i] = (int64_t)entries[i].bytes;
                o->place.bytes += o->bytes[i];
            }
        }
    }
    return o;
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

static td_status begin_file(td_safetensors_out *out, const char *header)
{
    td_temporary_remove_abandoned(out->path);
    out->file = td_temporary_file(out->path, &out->temporary);
    if (out->file == NULL) {
        return io_failure(out, "creating a file beside it");
    }
    size_t length = strlen(header); /* padded with blanks, so that the data lie aligned */
    size_t padding = (8 - length % 8) % 8;
    unsigned char prefix[TD_SAFETENSORS_LENGTH];
    for (int i = 0; i < TD_SAFETENSORS_LENGTH; i++) {
        prefix[i] = (unsigned char)((uint64_t)(length + padding) >> (8 * i));
    }
    snprintf(out->place.file, sizeof out->place.file, "%s", out->temporary);
    out->place.data = (int64_t)(sizeof prefix + length + padding);
    if (ftruncate(fileno(out->file), out->place.data + out->place.bytes) != 0) {
        return io_failure(out, "writing");
    }
    TD_TRY(write_at(out, prefix, sizeof prefix, 0));
    TD_TRY(write_at(out, header, length, sizeof prefix));
    return write_at(out, "       ", padding, (int64_t)(sizeof prefix + length));
}

/* After a failure there is no file. */
static td_status begun(td_status status, td_safetensors_out *o, td_safetensors_out **out)
{
    if (status != TD_OK) {
        (void)td_safetensors_finish(o, false);
    }
    *out = status == TD_OK ? o : NULL;
    return status;
}

/* ---- what others call ---- */

static td_status plan(td_safetensors_out *out, const td_safetensors_entry *entries,
                      const td_metadata *metadata, int metadata_count)
{
    char *header;
    TD_TRY(td_safetensors_write_header(entries, out->begin, out->count, metadata, metadata_count,
                                       &header));
    td_status status = begin_file(out, header);
    cJSON_free(header);
    return status;
}

td_status td_safetensors_plan(const char *path, const td_safetensors_entry *entries, int count,
                              const td_metadata *metadata, int metadata_count,
                              td_safetensors_out **out)
{
    td_safetensors_out *o = new_out(path, entries, count);
    return begun(o != NULL ? plan(o, entries, metadata, metadata_count) : TD_E_NOMEM, o, out);
}

const td_safetensors_place *td_safetensors_place_of(const td_safetensors_out *out)
{
    return &out->place;
}

static td_status join(td_safetensors_out *out, const td_safetensors_place *place)
{
    int64_t bytes = out->place.bytes;
    out->place = *place;
    out->file = td_temporary_join(place->file);
    if (out->file == NULL) {
        return io_failure(out, "opening");
    }
    TD_CHECK(bytes == place->bytes, TD_E_MISMATCH, "'%s': this rank has other tensors to save",
             place->file);
    return TD_OK;
}

td_status td_safetensors_join(const td_safetensors_place *place,
                              const td_safetensors_entry *entries, int count,
                              td_safetensors_out **out)
{
    td_safetensors_out *o = new_out(place->file, entries, count);
    return begun(o != NULL ? join(o, place) : TD_E_NOMEM, o, out);
}

td_status td_safetensors_put(td_safetensors_out *out, int i, int64_t offset, const void *bytes,
                             size_t size)
{
    TD_REQUIRE(i >= 0 && i < out->count && offset >= 0 && offset + (int64_t)size <= out->bytes[i],
               TD_HERE, "td_safetensors_put: %zu bytes from byte %lld are not in tensor %d of %d",
               size, (long long)offset, i, out->count);
    return write_at(out, bytes, size, out->place.data + out->begin[i] + offset);
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
