/* Writes messages of protobuf: fields that are integers, floats, texts or messages. A field is its
 * key (number << 3 | wire type) and its value. Not for users. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Begins as all zero; or with the caller's memory in `bytes` and its size in `room`. A message that
 * needs more room takes it from the running step. */
typedef struct td_proto {
    unsigned char *bytes;
    size_t count, room;
} td_proto;

void td_proto_integer(td_proto *m, int field, int64_t value);
void td_proto_float(td_proto *m, int field, double value);
void td_proto_double(td_proto *m, int field, double value);
void td_proto_text(td_proto *m, int field, const char *text);
void td_proto_message(td_proto *m, int field, const td_proto *inner);
/* The key and length of a field whose bytes follow. */
void td_proto_length(td_proto *m, int field, size_t length);
void td_proto_bytes(td_proto *m, const void *bytes, size_t count);
