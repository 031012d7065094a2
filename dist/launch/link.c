#include "dist/launch/link.h"

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
    *agents = (int)count;
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
    bool there;
    *text = NULL;
    make_key(link, !link->is_agent, link->received, key);
    TD_TRY(td_store_check(link->store, key, &there));
    if (!there) {
        return TD_OK;
    }
    TD_TRY(td_store_get_text(link->store, key, 0, text));
    td_status status = td_store_delete(link->store, key, NULL);
    if (status != TD_OK) {
        free(*text);
        *text = NULL;
        return status;
    }
    link->received++;
    return TD_OK;
}
