/* Expands Slurm's host lists. */
#include "dist/comm/launch/hostlist.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

td_status td_hostlist_first(const char *text, char host[TD_HOST_BYTES])
{
    size_t length = 0;
    const char *at = text;
    while (*at != '\0' && *at != ',') {
        bool range = *at == '['; /* of which the first number counts; leading zeros stay */
        at += range;
        size_t width = range ? strspn(at, "0123456789") : 1;
        const char *end = range ? strchr(at, ']') : at;
        TD_CHECK(width != 0 && end != NULL && *at != ']' && !isspace((unsigned char)*at) &&
                     length + width < TD_HOST_BYTES,
                 TD_E_ARG, "host list '%.200s' cannot be read at character %d", text,
                 (int)(at - text) + 1);
        memcpy(host + length, at, width);
        length += width;
        at = end + 1;
    }
    host[length] = '\0';
    return length > 0 ? TD_OK : td_fail(TD_E_ARG, "host list '%.200s' begins with no name", text);
}

int td_hostlist_count_at(const char *text, int index)
{
    int value, length;
    while (sscanf(text, "%9d%n", &value, &length) == 1) {
        int times = 1, end = 0; /* end: 0 if the bracket does not close */
        text += length;
        if (sscanf(text, "(x%9d)%n", &times, &end) == 1 && (end == 0 || times < 1)) {
            return -1;
        }
        text += end;
        if (index < times) {
            return value;
        }
        index -= times;
        text += *text == ',';
    }
    return -1;
}
