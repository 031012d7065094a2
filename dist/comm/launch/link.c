/* Messages between agents and the coordinator, as texts in the store. */
#include "dist/comm/launch/link.h"

#include "dist/comm/launch/launcher.h"
#include "tensor/clock.h"
#include "tensor/system/number.h"
#include "tensor/system/text.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    td_vsnprintf(text, sizeof(text), format, args);
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

/* ---- a failure on its way from node to coordinator, and as people read it ---- */

void td_failure_pack(const td_worker_failure *f, char *text, size_t size)
{
    td_snprintf(text, size, "%.6f %d %d %d %ld %d %s\n%s\n%s", td_clock() - f->when, f->rank,
                f->local_rank, f->node, f->pid, f->status, f->host, f->log, f->message);
}

bool td_failure_unpack(const char *text, td_worker_failure *f)
{
    *f = (td_worker_failure){ 0 };
    const char *log = strchr(text, '\n');
    const char *message = log != NULL ? strchr(log + 1, '\n') : NULL;
    char *rest;
    double ago = td_strtod(text, &rest);
    if (message == NULL || rest == text ||
        sscanf(rest, " %d %d %d %ld %d %127s", &f->rank, &f->local_rank, &f->node, &f->pid,
               &f->status, f->host) != 6) {
        return false;
    }
    f->when = td_clock() - ago;
    snprintf(f->log, sizeof(f->log), "%.*s", (int)(message - log - 1), log + 1);
    snprintf(f->message, sizeof(f->message), "%s", message + 1);
    return true;
}

void td_failure_text(const td_worker_failure *f, int round, char *text, size_t size)
{
    char end[64];
    td_child_end_text(f->status, end, sizeof(end));
    snprintf(text, size,
             "rank %d failed first: %s\n  host %s, node %d, local rank %d, pid %ld, attempt %d",
             f->rank, end, f->host, f->node, f->local_rank, f->pid, round);
    if (f->log[0] != '\0') {
        td_append(text, size, "\n  its output: %s", f->log);
    }
    /* Each line of the message goes in by two. */
    for (const char *line = f->message; *line != '\0';) {
        int width = (int)strcspn(line, "\n");
        td_append(text, size, "\n  | %.*s", width, line);
        line += width + (line[width] == '\n');
    }
}
