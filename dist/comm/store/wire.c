/* Packs and unpacks the messages of the TCP store. */
#include "dist/comm/store/wire.h"

#include <stdlib.h>
#include <string.h>

unsigned char *td_wire_pack(const td_store_request *r, size_t *size)
{
    const td_bytes parts[] = { { r->key, strlen(r->key) }, r->value, r->desired };
    *size = TD_WIRE_REQUEST_BYTES + parts[0].size + parts[1].size + parts[2].size;
    unsigned char *bytes = malloc(*size), *at = bytes + TD_WIRE_REQUEST_BYTES;
    if (bytes == NULL) {
        return NULL;
    }
    td_wire_put32(bytes, (uint32_t)r->op);
    for (int i = 0; i < 3; i++) {
        td_wire_put32(bytes + 4 * (i + 1), (uint32_t)parts[i].size);
        if (parts[i].size > 0) {
            memcpy(at, parts[i].data, parts[i].size);
        }
        at += parts[i].size;
    }
    return bytes;
}

bool td_wire_is_sane(const unsigned char *head, size_t *body)
{
    size_t op = td_wire_get32(head), key = td_wire_get32(head + 4);
    size_t value = td_wire_get32(head + 8), extra = td_wire_get32(head + 12);
    bool keyless = op == TD_STORE_COUNT || op == TD_STORE_ADDRESS;
    bool valued = op == TD_STORE_SET || op == TD_STORE_ADD || op == TD_STORE_COMPARE_SET;
    *body = key + value + extra;
    return op >= TD_STORE_SET && op <= TD_STORE_WILL && key <= TD_STORE_MAX_KEY &&
           (key == 0) == keyless && value <= (valued ? TD_STORE_MAX_VALUE : 0) &&
           (op != TD_STORE_ADD || value == 8) &&
           extra <= (op == TD_STORE_COMPARE_SET ? TD_STORE_MAX_VALUE : 0);
}

bool td_wire_unpack(const unsigned char *head, const unsigned char *body,
                    char key[TD_STORE_MAX_KEY + 1], td_store_request *r)
{
    size_t key_size = td_wire_get32(head + 4), value_size = td_wire_get32(head + 8);
    *r = (td_store_request){ .op = (td_store_op)td_wire_get32(head), .key = key };
    if (key_size > 0) {
        memcpy(key, body, key_size);
        r->value = (td_bytes){ body + key_size, value_size };
        r->desired = (td_bytes){ body + key_size + value_size, td_wire_get32(head + 12) };
    }
    key[key_size] = '\0';
    return strlen(key) == key_size;
}
