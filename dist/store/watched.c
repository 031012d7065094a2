#include "dist/rendezvous.h"

#include "dist/process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAULT "fault" /* the key of why there will be no group: "<code> message" */

typedef struct watched_store {
    td_store store;
    td_store *base;
    const td_rendezvous_result *met;
    int *ranks;
    int count;
} watched_store;

static watched_store *of(td_store *store)
{
    return (watched_store *)store;
}

/* Whether a rank has died: on this host its process shows it; on another host the store's server
 * has lost its connection. */
static bool has_gone(const watched_store *w, int rank, const char *who)
{
    char key[32];
    bool gone = false;
    uint64_t start;
    const char *pid = strstr(who, "pid ");
    snprintf(key, sizeof(key), "gone/%d", rank);
    if (td_store_check(w->met->store, key, &gone) == TD_OK && gone) {
        return true;
    }
    return w->met->one_host && pid != NULL &&
           td_process_state((pid_t)atol(pid + strlen("pid ")), &start) == 0;
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
    if (td_store_check(w->base, FAULT, &told) != TD_OK || !told ||
        td_store_get_text(w->base, FAULT, 1, &text) != TD_OK) {
        return TD_OK;
    }
    int code = TD_E_PEER, length = 0;
    sscanf(text, "%d %n", &code, &length);
    td_status status = td_fail(code < 0 ? (td_status)code : TD_E_PEER, "%s", text + length);
    free(text);
    return status;
}

/* Fails if another rank has gone. The first rank to notice tells the others the cause; otherwise
 * they might name this rank, which leaves next. */
static td_status look(void *store)
{
    watched_store *w = store;
    TD_TRY(hear(w));
    for (int i = 0; i < w->count; i++) {
        char *who;
        int rank = w->ranks[i];
        if (rank == w->met->rank || td_rendezvous_who(w->met, rank, &who) != TD_OK) {
            continue;
        }
        td_status status = TD_OK;
        if (has_gone(w, rank, who)) {
            char cause[400];
            snprintf(cause, sizeof(cause),
                     "rank %d (%s) has died, or left, before the group was made", rank, who);
            status = td_fail(TD_E_PEER, "%s", cause);
            if (!td_watched_store_tell(&w->store, status, cause)) {
                status = hear(w);
            }
        }
        free(who);
        TD_TRY(status);
    }
    return TD_OK;
}

static td_status watched_call(td_store *store, const td_store_request *request, char **reply,
                              size_t *size)
{
    td_store_request r = *request;
    r.look = look;
    r.user = store;
    return td_store_call(of(store)->base, &r, reply, size);
}

static void watched_close(td_store *store)
{
    free(of(store)->ranks);
    free(store);
}

td_status td_watched_store_open(td_store *base, const td_rendezvous_result *met, const int *ranks,
                                int count, td_store **store)
{
    static const td_store_kind kind = { "watched", watched_call, watched_close };
    watched_store *w = calloc(1, sizeof(*w));
    int *copy = malloc((size_t)count * sizeof(int));
    if (w == NULL || copy == NULL) {
        free(w);
        free(copy);
        return td_fail(TD_E_NOMEM, "no memory for a store");
    }
    for (int i = 0; i < count; i++) {
        copy[i] = ranks != NULL ? ranks[i] : i;
    }
    *w = (watched_store){ { &kind, base->timeout }, base, met, copy, count };
    *store = &w->store;
    return TD_OK;
}
