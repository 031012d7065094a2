#include "dist/launch/link.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

td_status td_link_open(td_store *store, td_link *link)
{
    int64_t count;
    TD_TRY(td_store_add(store, "launch/agents", 1, &count));
    *link = (td_link){ .store = store, .agent = (int)count - 1, .is_agent = true };
    return TD_OK;
}

td_status td_link_count(td_store *store, int *agents)
{
    int64_t count;
    TD_TRY(td_store_add(store, "launch/agents", 0, &count));
    *agents = count < INT_MAX ? (int)count : INT_MAX;
    return TD_OK;
}

static void make_key(const td_link *link, bool up, int number, char key[64])
{
    snprintf(key, 64, "launch/%d/%s/%d", link->agent, up ? "up" : "down", number);
}

td_status td_link_send(td_link *link, const char *format, ...)
{
    char key[64], text[4096];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    make_key(link, link->is_agent, link->sent, key);
    TD_TRY(td_store_set_text(link->store, key, text));
    link->sent++;
    return TD_OK;
}

td_status td_link_receive(td_link *link, char **text)
{
    char key[64];
    *text = NULL;
    make_key(link, !link->is_agent, link->received, key);
    /* Reads without waiting, in one round trip: no message is the expected text, or empty. */
    TD_TRY(td_store_compare_set(link->store, key, "-", "-", text));
    bool there = (*text)[0] != '\0';
    td_status status = there ? td_store_delete(link->store, key, NULL) : TD_OK;
    if (status != TD_OK || !there) {
        free(*text);
        *text = NULL;
    }
    link->received += status == TD_OK && there;
    return status;
}
