/* A store whose waiting ends when a rank of this host has died. */
#include "dist/comm/rendezvous.h"

#include "dist/comm/process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAULT "fault" /* the key of why there will be no group: "<code> message" */

typedef struct watched_rank {
    int rank;
    pid_t pid; /* 0: not asked for yet */
} watched_rank;

typedef struct watched_store {
    td_store store;
    td_store *base;
    const td_rendezvous_result *met;
    int count, next; /* next: index of the rank that is looked at next */
    watched_rank ranks[];
} watched_store;

enum { AT_ONCE = 8 }; /* ranks that a look asks about */

static watched_store *of(td_store *store)
{
    return (watched_store *)store;
}

/* Whether a rank has died: the store's server has lost its connection, or, since a file notices
 * nothing, its process on this host has ended. */
static td_status has_gone(const watched_store *w, watched_rank *r, bool *gone)
{
    char key[32], *who;
    uint64_t start;
    snprintf(key, sizeof(key), "gone/%d", r->rank);
    TD_TRY(td_store_check(w->met->store, key, gone));
    if (w->met->one_host && r->pid == 0) {
        TD_TRY(td_rendezvous_who(w->met, r->rank, &who));
        const char *pid = strstr(who, "pid ");
        r->pid = pid != NULL ? (pid_t)atol(pid + strlen("pid ")) : 0;
        free(who);
    }
    *gone = *gone || (r->pid > 0 && td_process_state(r->pid, &start) == 0);
    return TD_OK;
}

bool td_watched_store_tell(td_store *store, td_status status, const char *cause)
{
    char text[1024], *settled = NULL;
    snprintf(text, sizeof(text), "%d %s", (int)status, cause);
    bool first = td_store_compare_set(of(store)->base, FAULT, "", text, &settled) == TD_OK &&
                 strcmp(settled, text) == 0;
    free(settled);
    return first;
}

/* Fails with the cause that another rank has told. */
static td_status hear(const watched_store *w)
{
    bool told = false;
    char *text;
    TD_TRY(td_store_check(w->base, FAULT, &told));
    if (!told) {
        return TD_OK;
    }
    TD_TRY(td_store_get_text(w->base, FAULT, 0, &text));
    int code = TD_E_PEER, length = 0;
    sscanf(text, "%d %n", &code, &length);
    td_status status = td_fail(code < 0 ? (td_status)code : TD_E_PEER, "%s", text + length);
    free(text);
    return status;
}

/* Fails because a rank has gone. The first rank to notice tells the others the cause; otherwise
 * they might name this rank, which leaves next. */
static td_status blame(watched_store *w, int rank)
{
    char *who, cause[400];
    TD_TRY(td_rendezvous_who(w->met, rank, &who));
    snprintf(cause, sizeof(cause), "rank %d (%s) has died, or left, before the group was made",
             rank, who);
    free(who);
    td_status status = td_fail(TD_E_PEER, "%s", cause);
    if (!td_watched_store_tell(&w->store, status, cause)) {
        TD_TRY(hear(w));
    }
    return td_fail(status, "%s", cause);
}

/* Fails if another rank has gone, or if the store does not answer. A look asks about a few ranks,
 * or the looks of many ranks would keep the store busy. Each rank begins with the ranks after it,
 * so together the ranks look at all; and who finds that a rank has gone tells the others. */
static td_status watched_look(void *store)
{
    watched_store *w = store;
    TD_TRY(hear(w));
    for (int k = 0; k < AT_ONCE && k < w->count; k++) {
        bool gone = false;
        watched_rank *r = &w->ranks[w->next];
        w->next = (w->next + 1) % w->count;
        if (r->rank != w->met->rank) {
            TD_TRY(has_gone(w, r, &gone));
        }
        if (gone) {
            return blame(w, r->rank);
        }
    }
    return TD_OK;
}

static td_status watched_call(td_store *store, const td_store_request *request, char **reply,
                              size_t *size)
{
    td_store_request r = *request;
    r.look = watched_look;
    r.user = store;
    return td_store_call(of(store)->base, &r, reply, size);
}

static void watched_close(td_store *store)
{
    free(store);
}

td_status td_watched_store_open(td_store *base, const td_rendezvous_result *met, const int *ranks,
                                int count, td_store **store)
{
    static const td_store_kind kind = { "watched", watched_call, watched_close };
    watched_store *w = malloc(sizeof(*w) + (size_t)count * sizeof(w->ranks[0]));
    TD_CHECK(w != NULL, TD_E_NOMEM, "no memory for a store");
    *w = (watched_store){ { &kind, base->timeout }, base, met, count, 0 };
    for (int i = 0; i < count; i++) {
        w->ranks[i] = (watched_rank){ .rank = ranks != NULL ? ranks[i] : i };
        w->next = w->ranks[i].rank == met->rank ? (i + 1) % count : w->next;
    }
    *store = &w->store;
    return TD_OK;
}
