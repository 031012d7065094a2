#include "dist/launch/hostlist.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAME = 255, MAX_DIGITS = 9 };

typedef struct expansion {
    const char *text; /* the whole list, for messages */
    char **hosts;
    int count, capacity;
} expansion;

static td_status fail_at(const expansion *e, const char *at, const char *what)
{
    return td_fail(TD_E_ARG, "host list '%s': %s at character %d", e->text, what,
                   (int)(at - e->text) + 1);
}

static td_status add_host(expansion *e, const char *name)
{
    if (e->count == TD_MAX_HOSTS) {
        return td_fail(TD_E_ARG, "host list '%.200s': more than %d hosts", e->text, TD_MAX_HOSTS);
    }
    if (e->count == e->capacity) {
        int capacity = e->capacity == 0 ? 16 : 2 * e->capacity;
        char **hosts = realloc(e->hosts, (size_t)capacity * sizeof(char *));
        if (hosts == NULL) {
            return td_fail(TD_E_NOMEM, "no memory for %d hosts", capacity);
        }
        e->hosts = hosts;
        e->capacity = capacity;
    }
    e->hosts[e->count] = strdup(name);
    if (e->hosts[e->count] == NULL) {
        return td_fail(TD_E_NOMEM, "no memory for a host's name");
    }
    e->count++;
    return TD_OK;
}

/* Reads digits; *width is how many there are. */
static td_status read_number(expansion *e, const char **at, int *number, int *width)
{
    const char *begin = *at;
    *number = *width = 0;
    while (isdigit((unsigned char)**at)) {
        if (*at - begin == MAX_DIGITS) {
            return fail_at(e, begin, "a number that is too long");
        }
        *number = 10 * *number + (*(*at)++ - '0');
    }
    *width = (int)(*at - begin);
    return *width > 0 ? TD_OK : fail_at(e, begin, "a number is missing");
}

static td_status expand_from(expansion *e, const char *at, const char *end, char *name,
                             size_t length);

/* at: behind '['. Goes through the ranges, each with all that follows the ']'. */
static td_status expand_brackets(expansion *e, const char *at, const char *end, char *name,
                                 size_t length)
{
    const char *close = memchr(at, ']', (size_t)(end - at));
    if (close == NULL) {
        return fail_at(e, at, "a '[' without its ']'");
    }
    for (;;) {
        int first, last, width, last_width;
        TD_TRY(read_number(e, &at, &first, &width));
        last = first;
        if (*at == '-') {
            at++;
            TD_TRY(read_number(e, &at, &last, &last_width));
        }
        if (last < first) {
            return fail_at(e, at, "a range that goes down");
        }
        for (int i = first; i <= last; i++) {
            size_t more = (size_t)snprintf(name + length, MAX_NAME + 1 - length, "%0*d", width, i);
            if (length + more > MAX_NAME) {
                return fail_at(e, at, "a name that is too long");
            }
            TD_TRY(expand_from(e, close + 1, end, name, length + more));
        }
        if (at == close) {
            return TD_OK;
        }
        if (*at++ != ',') {
            return fail_at(e, at - 1, "',', '-' or ']' is missing");
        }
    }
}

/* One host's pattern from at to end, behind the length characters of the name that are there. */
static td_status expand_from(expansion *e, const char *at, const char *end, char *name,
                             size_t length)
{
    for (; at < end; at++) {
        if (*at == '[') {
            return expand_brackets(e, at + 1, end, name, length);
        }
        if (*at == ']' || isspace((unsigned char)*at)) {
            return fail_at(e, at, "a character that does not belong there");
        }
        if (length == MAX_NAME) {
            return fail_at(e, at, "a name that is too long");
        }
        name[length++] = *at;
    }
    name[length] = '\0';
    return length > 0 ? add_host(e, name) : fail_at(e, at, "a name is missing");
}

static td_status expand_all(expansion *e)
{
    char name[MAX_NAME + 1];
    const char *at = e->text;
    for (;;) {
        const char *end = at;
        for (bool inside = false; *end != '\0' && (inside || *end != ','); end++) {
            inside = *end == '[' || (inside && *end != ']');
        }
        TD_TRY(expand_from(e, at, end, name, 0));
        if (*end == '\0') {
            return TD_OK;
        }
        at = end + 1;
    }
}

td_status td_hostlist_expand(const char *text, char ***hosts, int *count)
{
    expansion e = { .text = text };
    td_status status = expand_all(&e);
    if (status != TD_OK) {
        td_hostlist_free(e.hosts, e.count);
        return status;
    }
    *hosts = e.hosts;
    *count = e.count;
    return TD_OK;
}

void td_hostlist_free(char **hosts, int count)
{
    for (int i = 0; i < count; i++) {
        free(hosts[i]);
    }
    free(hosts);
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
