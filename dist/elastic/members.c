/* Who is in the next world. Worlds have numbers, from 1. Keys of the store:
 *
 *   ids                 processes that have come so far: the next one's number
 *   gone/<id>           a process has ended (its will)
 *   <world>/alive/<id>  a process wants to be in a world: its steps, and its cut (copies.c)
 *   <world>/members     who is: "<asked> <step> <cut> <whole> <id> <id> ..."
 *   latest              a world that was agreed on, mostly the latest
 *   over                the run has ended
 *
 * A process that knows of the end of its world says that it is alive for the next one. Who has
 * heard of all that live proposes the list, and the first proposal counts. */
#include "dist/elastic/internal.h"

#include "tensor/clock.h"
#include "tensor/extend.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_BYTES = 64, LIST_BYTES = 24 * (TD_ELASTIC_MOST + 4) };

static void members_key(char key[KEY_BYTES], int world)
{
    snprintf(key, KEY_BYTES, "%d/members", world);
}

static void gone_key(char key[KEY_BYTES], int64_t id)
{
    snprintf(key, KEY_BYTES, "gone/%" PRId64, id);
}

td_status td_elastic_number(td_elastic *e)
{
    char key[KEY_BYTES];
    TD_TRY(td_store_add(e->store, "ids", 1, &e->id));
    e->id--;
    gone_key(key, e->id);
    return td_store_will(e->store, key);
}

td_status td_elastic_look(void *run)
{
    td_elastic *e = run;
    for (int i = 0; i < e->members.count; i++) {
        char key[KEY_BYTES];
        bool gone;
        gone_key(key, e->members.ids[i]);
        TD_TRY(td_store_check(e->store, key, &gone));
        TD_CHECK(!gone, TD_E_PEER, "process %" PRId64 " has ended before world %d was made",
                 e->members.ids[i], e->world);
    }
    return TD_OK;
}

td_status td_elastic_arrivals(td_elastic *e, bool *come)
{
    int64_t ids;
    TD_TRY(td_store_add(e->store, "ids", 0, &ids));
    *come = ids > e->members.asked;
    return TD_OK;
}

/* ---- what was agreed on ---- */

/* A value, to be freed, without waiting: "" if there is none. */
static td_status read_now(td_elastic *e, const char *key, char **text)
{
    return td_store_compare_set(e->store, key, "-", "-", text);
}

/* Takes up a list of members. For the others a process that was not heard in time comes again
 * under a new number. Without a world of its own it has no state. */
static td_status learn_members(td_elastic *e, int world, const char *text)
{
    td_elastic_members *m = &e->members;
    char *at, *end;
    bool fresh = e->rank < 0 && m->count == 0;
    e->world = world;
    e->rank = -1;
    m->asked = strtoll(text, &at, 10);
    m->step = strtoll(at, &at, 10);
    m->cut = (int)strtol(at, &at, 10);
    m->whole = (int)strtol(at, &at, 10);
    for (m->count = 0; m->count < TD_ELASTIC_MOST; at = end) {
        int64_t id = strtoll(at, &end, 10);
        if (end == at) {
            break;
        }
        e->rank = id == e->id ? m->count : e->rank;
        m->ids[m->count++] = id;
    }
    if (e->rank >= 0) {
        return TD_OK;
    }
    e->step = fresh ? -1 : e->step;
    return e->id < m->asked ? td_elastic_number(e) : TD_OK;
}

/* Goes on to the latest world, if others have made any since. */
static td_status catch_up(td_elastic *e)
{
    char key[KEY_BYTES], *text;
    TD_TRY(read_now(e, "latest", &text));
    int latest = atoi(text);
    free(text);
    if (latest <= e->world) {
        return TD_OK;
    }
    members_key(key, latest);
    TD_TRY(td_store_get_text(e->store, key, 0, &text));
    td_status status = learn_members(e, latest, text);
    free(text);
    return status;
}

/* ---- asking all ---- */

typedef struct members_place {
    int64_t id, step;
    int cut;
} members_place;

typedef struct members_round {
    td_elastic *e;
    int world;
    int64_t asks; /* the process that is asked now */
    double deadline;
    int count;
    members_place list[TD_ELASTIC_MOST]; /* those that live, furthest first */
} members_round;

/* Whether others have agreed on the world, or have finished the run. */
static td_status round_is_over(const members_round *r, bool *over)
{
    char key[KEY_BYTES];
    members_key(key, r->world);
    TD_TRY(td_store_check(r->e->store, key, over));
    return *over ? TD_OK : td_store_check(r->e->store, "over", over);
}

/* TD_E_PEER ends the wait for a process: it has ended, or the agreement is over. */
static td_status round_look(void *user)
{
    const members_round *r = user;
    char key[KEY_BYTES];
    bool gone, agreed;
    gone_key(key, r->asks);
    TD_TRY(td_store_check(r->e->store, key, &gone));
    TD_TRY(round_is_over(r, &agreed));
    return gone || agreed ? td_fail(TD_E_PEER, "process %" PRId64 " is not waited for", r->asks)
                          : TD_OK;
}

/* Whether a comes before b. A later cut is further than more steps: all of a world had its windows.
 */
static bool is_before(const members_place *a, const members_place *b)
{
    return a->cut != b->cut     ? a->cut > b->cut
           : a->step != b->step ? a->step > b->step
                                : a->id < b->id;
}

static void round_add(members_round *r, members_place p)
{
    int at = r->count++;
    for (; at > 0 && is_before(&p, &r->list[at - 1]); at--) {
        r->list[at] = r->list[at - 1];
    }
    r->list[at] = p;
}

/* Waits until a process says that it is alive. A process that lives and does not answer in time
 * (it was stopped, or its host cut off) is skipped; but who comes from outside of the latest world
 * waits for the members of that world as long as it stands. */
static td_status round_ask(members_round *r, int64_t id)
{
    const double year = 3e7;
    char key[KEY_BYTES], *text;
    size_t size;
    td_elastic *e = r->e;
    bool waits = e->rank < 0 && id < e->members.asked;
    double left = r->deadline - td_clock();
    r->asks = id;
    snprintf(key, sizeof key, "%d/alive/%" PRId64, r->world, id);
    td_store_request get = { .op = TD_STORE_GET,
                             .key = key,
                             .timeout = waits         ? year
                                        : left > 1e-3 ? left
                                                      : 1e-3,
                             .look = round_look,
                             .user = r };
    td_status status = round_look(r);
    status = status == TD_OK ? td_store_call(e->store, &get, &text, &size) : status;
    if (status == TD_OK && r->count < TD_ELASTIC_MOST) {
        char *end;
        int64_t step = strtoll(text, &end, 10);
        round_add(r, (members_place){ id, step, atoi(end) });
    }
    if (status == TD_OK) {
        free(text);
    }
    return status == TD_E_PEER || status == TD_E_TIMEOUT ? TD_OK : status;
}

/* Asks the members of the latest world, then those that have come since, until there are enough. */
static td_status round_ask_all(members_round *r, int64_t *asked)
{
    td_elastic *e = r->e;
    const td_elastic_members *m = &e->members;
    int wanted = m->count > 0 ? e->options.least : e->options.first;
    for (int i = 0; i < m->count; i++) {
        TD_TRY(round_ask(r, m->ids[i]));
    }
    if (e->rank < 0) { /* the time begins when the latest world has ended */
        r->deadline = td_clock() + e->options.timeout;
    }
    for (*asked = m->asked;; td_sleep(0.01)) {
        int64_t ids;
        bool agreed;
        TD_TRY(td_store_add(e->store, "ids", 0, &ids));
        while (*asked < ids) {
            TD_TRY(round_ask(r, (*asked)++));
        }
        TD_TRY(round_is_over(r, &agreed));
        if (agreed || r->count >= wanted) {
            return TD_OK;
        }
        if (td_clock() > r->deadline) {
            return r->count >= e->options.least
                       ? TD_OK
                       : td_fail(TD_E_TIMEOUT,
                                 "%d processes of the run live, and at least %d are needed; no "
                                 "other has come within %g s",
                                 r->count, e->options.least, e->options.timeout);
        }
    }
}

static td_status propose(members_round *r, int64_t asked)
{
    td_elastic *e = r->e;
    char key[KEY_BYTES], list[LIST_BYTES], *settled;
    const members_place *first = r->list;
    int whole = 0;
    while (whole < r->count && first[whole].step == first->step && first[whole].cut == first->cut) {
        whole++;
    }
    int length = snprintf(list, sizeof list, "%" PRId64 " %" PRId64 " %d %d", asked,
                          r->count > 0 ? first->step : -1, first->cut, whole);
    for (int i = 0; i < r->count; i++) {
        length += snprintf(list + length, sizeof list - (size_t)length, " %" PRId64, r->list[i].id);
    }
    members_key(key, r->world);
    TD_TRY(td_store_compare_set(e->store, key, "", list, &settled));
    td_status status = learn_members(e, r->world, settled);
    free(settled);
    if (status == TD_OK && e->rank == 0) {
        snprintf(list, sizeof list, "%d", r->world);
        status = td_store_set_text(e->store, "latest", list);
    }
    return status;
}

td_status td_elastic_agree(td_elastic *e)
{
    char key[KEY_BYTES], text[32];
    int64_t asked = 0;
    TD_TRY(catch_up(e));
    members_round r = { .e = e,
                        .world = e->world + 1,
                        .deadline = td_clock() + e->options.timeout };
    snprintf(key, sizeof key, "%d/alive/%" PRId64, r.world, e->id);
    snprintf(text, sizeof text, "%" PRId64 " %d", e->step, e->shards.cut);
    TD_TRY(td_store_set_text(e->store, key, text));
    TD_TRY(round_ask_all(&r, &asked));
    return propose(&r, asked);
}
