/* Writes the metrics of a run: a CSV file, the same as JSON, and TensorBoard's event records. */
#include "apps/tools/common/log.h"

#include "tensor/extra/protobuf.h"
#include "tensor/system/number.h"
#include "tensor/system/folders.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct metrics {
    char path[4096], json_path[4096], events_path[4096];
    FILE *csv, *json, *events;
    const char *const *names;
    int count;
};

static td_status cannot_write(const char *path)
{
    return td_fail(TD_E_IO, "cannot write %s: %s", path, strerror(errno));
}

/* ---- TensorBoard event files ----
 *
 * A file is a row of TFRecords (little-endian), each holding one Event message (protobuf):
 *
 *     record   u64 length | u32 masked crc of the length | bytes | u32 masked crc of the bytes
 *     masked   crc32c rotated right by 15, plus 0xa282ead8
 *     Event    1: double wall_time, 2: int64 step, 3: string file_version, 5: Summary
 *     Summary  1: repeated Value; Value  1: string tag, 2: float simple_value
 *
 * (tensorflow/core/lib/io/record_writer.h, core/util/event.proto, core/framework/summary.proto) */

enum { EVENT_BYTES = 8192 };
#define MESSAGE() ((td_proto){ .bytes = (unsigned char[EVENT_BYTES]){ 0 }, .room = EVENT_BYTES })

/* CRC-32C (Castagnoli), reflected polynomial 0x82f63b78. */
static uint32_t masked_crc(const void *bytes, size_t size)
{
    uint32_t crc = 0xffffffffu;
    for (const unsigned char *at = bytes; size > 0; at++, size--) {
        crc ^= *at;
        for (int bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
        }
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static td_status write_record(const metrics *l, const td_proto *m)
{
    uint64_t size = m->count;
    uint32_t head = masked_crc(&size, sizeof size), tail = masked_crc(m->bytes, m->count);
    fwrite(&size, sizeof size, 1, l->events);
    fwrite(&head, sizeof head, 1, l->events);
    fwrite(m->bytes, 1, m->count, l->events);
    fwrite(&tail, sizeof tail, 1, l->events);
    bool written = fflush(l->events) == 0 && !ferror(l->events);
    return written ? TD_OK : cannot_write(l->events_path);
}

/* The time that each event begins with. */
static void put_time(td_proto *event)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    td_proto_double(event, 1, (double)t.tv_sec + 1e-9 * (double)t.tv_nsec);
}

static td_status open_events(metrics *l, const char *dir)
{
    char host[256] = "localhost";
    gethostname(host, sizeof(host) - 1);
    snprintf(l->events_path, sizeof(l->events_path), "%s/events.out.tfevents.%010lld.%s.%ld", dir,
             (long long)time(NULL), host, (long)getpid());
    l->events = fopen(l->events_path, "wb");
    if (l->events == NULL) {
        return cannot_write(l->events_path);
    }
    td_proto event = MESSAGE();
    put_time(&event);
    td_proto_text(&event, 3, "brain.Event:2");
    return write_record(l, &event);
}

/* One event with several scalars; NaN: none. */
static td_status write_event(const metrics *l, int64_t step, const double *values)
{
    td_proto summary = MESSAGE(), event = MESSAGE();
    put_time(&event);
    for (int i = 0; i < l->count; i++) {
        if (!isnan(values[i])) {
            td_proto value = MESSAGE();
            td_proto_text(&value, 1, l->names[i]);
            td_proto_float(&value, 2, values[i]);
            td_proto_message(&summary, 1, &value);
        }
    }
    td_proto_integer(&event, 2, step);
    td_proto_message(&event, 5, &summary);
    return write_record(l, &event);
}

/* ---- metrics ---- */

long log_kept_bytes(const char *path, int64_t step)
{
    FILE *old = fopen(path, "r");
    char *line = NULL;
    size_t size = 0;
    long end = 0;
    for (ssize_t n = 0; old != NULL && (n = getline(&line, &size, old)) > 0 &&
                        line[n - 1] == '\n' &&
                        strtoll(line + strcspn(line, "0123456789"), NULL, 10) <= step;) {
        end += n;
    }
    free(line);
    if (old != NULL) {
        fclose(old);
    }
    return end;
}

/* Copies a file, if there is one, with its mode, and leaves it where it is: it may be a link. */
static td_status copy_file(const char *from_path, const char *path)
{
    char bytes[1 << 14];
    struct stat info;
    FILE *from = fopen(from_path, "r"), *to = from != NULL ? fopen(path, "w") : NULL;
    if (from == NULL) {
        return TD_OK;
    }
    if (to != NULL && fstat(fileno(from), &info) == 0) {
        (void)fchmod(fileno(to), info.st_mode & 0777);
    }
    for (size_t n; to != NULL && (n = fread(bytes, 1, sizeof bytes, from)) > 0;) {
        fwrite(bytes, 1, n, to);
    }
    bool good = to != NULL && !ferror(from) && !ferror(to);
    good = to != NULL && fclose(to) == 0 && good;
    td_status status = good ? TD_OK : cannot_write(path);
    fclose(from);
    return status;
}

/* A file of rows, with those up to first_step. *kept: it has such rows. */
static td_status open_rows(const char *path, int64_t first_step, FILE **file, bool *kept)
{
    char old[4096 + 8];
    snprintf(old, sizeof(old), "%s.old", path);
    TD_TRY(copy_file(path, old));
    long bytes = first_step > 0 ? log_kept_bytes(path, first_step) : 0;
    *file = fopen(path, "a");
    *kept = bytes > 0;
    return *file != NULL && ftruncate(fileno(*file), bytes) == 0 ? TD_OK : cannot_write(path);
}

static td_status open_tables(metrics *m, int64_t first_step)
{
    bool kept;
    TD_TRY(open_rows(m->json_path, first_step, &m->json, &kept));
    TD_TRY(open_rows(m->path, first_step, &m->csv, &kept));
    fputs(kept ? "" : "step", m->csv);
    for (int i = 0; i < m->count && !kept; i++) {
        fprintf(m->csv, ",%s", m->names[i]);
    }
    fputs(kept ? "" : "\n", m->csv);
    return fflush(m->csv) == 0 ? TD_OK : cannot_write(m->path);
}

td_status metrics_open(const char *dir, const char *const *names, int count, int64_t first_step,
                       metrics **out)
{
    TD_TRY(td_make_folders(dir));
    metrics *m = calloc(1, sizeof(*m));
    TD_CHECK(m != NULL, TD_E_NOMEM, "no memory for the metrics");
    m->names = names;
    m->count = count;
    snprintf(m->path, sizeof(m->path), "%s/metrics.csv", dir);
    snprintf(m->json_path, sizeof(m->json_path), "%s/metrics.jsonl", dir);
    td_status status = open_tables(m, first_step);
    status = status == TD_OK ? open_events(m, dir) : status;
    if (status != TD_OK) {
        metrics_close(m);
        return status;
    }
    *out = m;
    return TD_OK;
}

td_status metrics_write(metrics *m, int64_t step, const double *values)
{
    fprintf(m->csv, "%" PRId64, step);
    fprintf(m->json, "{\"step\": %" PRId64, step);
    for (int i = 0; i < m->count; i++) {
        if (isfinite(values[i])) { /* JSON has no others */
            td_fprintf(m->json, ", \"%s\": %.9g", m->names[i], values[i]);
        }
        if (isnan(values[i])) {
            fputc(',', m->csv);
        } else {
            td_fprintf(m->csv, ",%.9g", values[i]);
        }
    }
    fputc('\n', m->csv);
    fputs("}\n", m->json);
    TD_TRY(fflush(m->csv) == 0 ? TD_OK : cannot_write(m->path));
    TD_TRY(fflush(m->json) == 0 ? TD_OK : cannot_write(m->json_path));
    return write_event(m, step, values);
}

void metrics_close(metrics *m)
{
    if (m == NULL) {
        return;
    }
    FILE *const files[] = { m->csv, m->json, m->events };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        if (files[i] != NULL) {
            fclose(files[i]);
        }
    }
    free(m);
}

/* ---- files and folders ---- */

td_status check_can_save(const char *path)
{
    char folder[4096];
    if (path == NULL) {
        return TD_OK;
    }
    TD_CHECK(snprintf(folder, sizeof(folder), "%s", path) < (int)sizeof(folder), TD_E_ARG,
             "the file's name is too long: %s", path);
    char *slash = strrchr(folder, '/');
    if (slash == NULL) {
        snprintf(folder, sizeof(folder), ".");
    } else {
        slash[slash == folder] = '\0'; /* "/file" lies in "/" */
    }
    TD_CHECK(access(folder, W_OK | X_OK) == 0, TD_E_IO, "%s cannot be written: the folder %s: %s",
             path, folder, strerror(errno));
    struct stat info;
    TD_CHECK(stat(path, &info) != 0 || !S_ISDIR(info.st_mode), TD_E_IO,
             "%s cannot be written: that is a folder", path);
    return TD_OK;
}
