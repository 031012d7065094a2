#include "apps/tools/common/events.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct events {
    char path[4096];
    FILE *file;
    uint32_t crc_table[256];
};

/* A message under construction. */
typedef struct message {
    unsigned char bytes[8192];
    size_t size;
} message;

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 }; /* protobuf's wire types */

static void append(message *m, const void *bytes, size_t size)
{
    TD_REQUIRE(m->size + size <= sizeof(m->bytes), TD_HERE, "an event of more than %zu bytes",
               sizeof(m->bytes));
    memcpy(m->bytes + m->size, bytes, size);
    m->size += size;
}

static void append_little_endian(message *m, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) {
        append(m, &(unsigned char){ (unsigned char)(value >> (8 * i)) }, 1);
    }
}

static void append_varint(message *m, uint64_t value)
{
    while (value >= 0x80) {
        append(m, &(unsigned char){ (unsigned char)(value | 0x80) }, 1);
        value >>= 7;
    }
    append(m, &(unsigned char){ (unsigned char)value }, 1);
}

static void append_tag(message *m, int field, int wire_type)
{
    append_varint(m, (uint64_t)(field << 3 | wire_type));
}

static void append_bytes(message *m, int field, const void *bytes, size_t size)
{
    append_tag(m, field, BYTES);
    append_varint(m, size);
    append(m, bytes, size);
}

/* CRC-32C (Castagnoli), reflected polynomial 0x82f63b78. */
static void make_crc_table(uint32_t *table)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
        }
        table[i] = crc;
    }
}

static uint32_t masked_crc(const events *e, const unsigned char *bytes, size_t size)
{
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < size; i++) {
        crc = crc >> 8 ^ e->crc_table[(crc ^ bytes[i]) & 0xff];
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static td_status write_record(events *e, const message *m)
{
    message head = { .size = 0 }, tail = { .size = 0 };
    append_little_endian(&head, m->size, 8);
    append_little_endian(&head, masked_crc(e, head.bytes, 8), 4);
    append_little_endian(&tail, masked_crc(e, m->bytes, m->size), 4);
    fwrite(head.bytes, 1, head.size, e->file);
    fwrite(m->bytes, 1, m->size, e->file);
    fwrite(tail.bytes, 1, tail.size, e->file);
    if (fflush(e->file) != 0 || ferror(e->file)) {
        return td_fail(TD_E_IO, "cannot write %s: %s", e->path, strerror(errno));
    }
    return TD_OK;
}

static void append_double(message *m, int field, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    append_tag(m, field, FIXED64);
    append_little_endian(m, bits, 8);
}

static void append_float(message *m, int field, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    append_tag(m, field, FIXED32);
    append_little_endian(m, bits, 4);
}

static double wall_time(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

td_status events_open(const char *dir, events **out)
{
    events *e = calloc(1, sizeof(*e));
    if (e == NULL) {
        return td_fail(TD_E_NOMEM, "no memory for an event file");
    }
    char host[256] = "localhost";
    gethostname(host, sizeof(host) - 1);
    snprintf(e->path, sizeof(e->path), "%s/events.out.tfevents.%010lld.%s.%ld", dir,
             (long long)time(NULL), host, (long)getpid());
    e->file = fopen(e->path, "wb");
    if (e->file == NULL) {
        td_status status = td_fail(TD_E_IO, "cannot write %s: %s", e->path, strerror(errno));
        free(e);
        return status;
    }
    make_crc_table(e->crc_table);
    message m = { .size = 0 };
    append_double(&m, 1, wall_time());
    append_bytes(&m, 3, "brain.Event:2", strlen("brain.Event:2"));
    *out = e;
    return write_record(e, &m);
}

td_status events_scalars(events *e, int64_t step, const char *const *tags, const double *values,
                         int count)
{
    message summary = { .size = 0 }, event = { .size = 0 };
    for (int i = 0; i < count; i++) {
        if (!isnan(values[i])) {
            message value = { .size = 0 };
            append_bytes(&value, 1, tags[i], strlen(tags[i]));
            append_float(&value, 2, (float)values[i]);
            append_bytes(&summary, 1, value.bytes, value.size);
        }
    }
    append_double(&event, 1, wall_time());
    append_tag(&event, 2, VARINT);
    append_varint(&event, (uint64_t)step);
    append_bytes(&event, 5, summary.bytes, summary.size);
    return write_record(e, &event);
}

void events_close(events *e)
{
    if (e != NULL) {
        fclose(e->file);
        free(e);
    }
}
