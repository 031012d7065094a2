/* Writes messages of protobuf. */
#include "tensor/extra/protobuf.h"

#include "tensor/extend.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "protobuf is little-endian");
enum { VARINT = 0, FIXED64 = 1, LENGTH = 2, FIXED32 = 5 }; /* wire types */

void td_proto_bytes(td_proto *m, const void *bytes, size_t count)
{
    if (m->count + count > m->room) {
        m->room = 2 * (m->count + count) + 64;
        unsigned char *more = td_step_bytes(m->room);
        if (m->count > 0) {
            memcpy(more, m->bytes, m->count);
        }
        m->bytes = more;
    }
    if (count > 0) {
        memcpy(m->bytes + m->count, bytes, count);
    }
    m->count += count;
}

static void put_varint(td_proto *m, uint64_t value)
{
    unsigned char bytes[10];
    size_t count = 0;
    do {
        unsigned char low = value & 127;
        value >>= 7;
        bytes[count++] = value != 0 ? low | 128 : low;
    } while (value != 0);
    td_proto_bytes(m, bytes, count);
}

static void put_key(td_proto *m, int field, int wire)
{
    put_varint(m, (uint64_t)field << 3 | (uint64_t)wire);
}

void td_proto_integer(td_proto *m, int field, int64_t value)
{
    put_key(m, field, VARINT);
    put_varint(m, (uint64_t)value);
}

void td_proto_float(td_proto *m, int field, double value)
{
    float narrow = (float)value;
    put_key(m, field, FIXED32);
    td_proto_bytes(m, &narrow, sizeof narrow);
}

void td_proto_double(td_proto *m, int field, double value)
{
    put_key(m, field, FIXED64);
    td_proto_bytes(m, &value, sizeof value);
}

void td_proto_length(td_proto *m, int field, size_t length)
{
    put_key(m, field, LENGTH);
    put_varint(m, length);
}

void td_proto_text(td_proto *m, int field, const char *text)
{
    td_proto_length(m, field, strlen(text));
    td_proto_bytes(m, text, strlen(text));
}

void td_proto_message(td_proto *m, int field, const td_proto *inner)
{
    td_proto_length(m, field, inner->count);
    td_proto_bytes(m, inner->bytes, inner->count);
}
