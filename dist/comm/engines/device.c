/* Chooses the engine for a group's GPU collectives, submits collectives to it and waits for them.
 */
#include "dist/comm/device_engine.h"

#include "tensor/clock.h"
#include "dist/comm/group.h"
#include "dist/comm/engines/nccl/nccl.h"
#include "dist/comm/watchdog.h"
#include "tensor/extend.h"

#include "tensor/hooks.h"
#include "tensor/system/number.h"
#include "tensor/system/text.h"
#include "tensor/storage.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXT = 160 };

/* What each rank tells the others before they choose. */
typedef struct candidate {
    char wish[16];   /* "", "nccl", "staged" */
    char host[TEXT]; /* the host's identity as NCCL sees it */
    char place[TEXT];
    int32_t loads; /* whether this rank has NCCL */
    char reason[256];
} candidate;

static void describe_self(const td_group *group, td_device device, candidate *c)
{
    memset(c, 0, sizeof *c);
    const char *wish =
        group->device_wish[0] != '\0' ? group->device_wish : getenv("TANDEM_DEVICE_BACKEND");
    snprintf(c->wish, sizeof c->wish, "%s", wish != NULL ? wish : "");
    const char *host = getenv("NCCL_HOSTID");
    if (host != NULL && host[0] != '\0') {
        snprintf(c->host, sizeof c->host, "%s", host);
    } else {
        (void)gethostname(c->host, sizeof c->host - 1);
    }
    const td_streams *streams = td_streams_of(device);
    if (streams != NULL) {
        streams->place(device, c->place, sizeof c->place);
    }
    bool wanted = strcmp(c->wish, "staged") != 0;
    c->loads = wanted && streams != NULL && td_nccl_load() != NULL;
    if (wanted && !c->loads) {
        snprintf(c->reason, sizeof c->reason, "%s", streams != NULL ? td_last_error() : "no GPU");
    }
}

bool td_device_can_use_nccl(int local_rank)
{
    char own[16];
    td_device device;
    snprintf(own, sizeof own, "cuda:%d", local_rank % TD_MAX_DEVICES);
    bool gpu =
        td_device_parse(own, &device) == TD_OK || td_device_parse("cuda:0", &device) == TD_OK;
    if (gpu && td_nccl_load() != NULL) {
        return true;
    }
    td_fail(TD_E_UNSUPPORTED, "backend nccl is for GPUs: %s", td_last_error());
    return false;
}

/* Gathers all ranks' facts over the CPU engine, so that all decide from the same data. malloc'ed.
 */
static candidate *gather_candidates(td_group *group, const candidate *mine)
{
    candidate *all = calloc((size_t)group->size, sizeof *all);
    TD_CHECK_NULL(all != NULL, TD_E_NOMEM, "no memory to choose an engine");
    td_collective c = { .kind = TD_COLLECTIVE_ALL_GATHER,
                        .dtype = TD_U8,
                        .in = mine,
                        .out = all,
                        .count = (int64_t)sizeof *all };
    if (td_submit(group, &c, 0, NULL) != TD_OK) {
        free(all);
        return NULL;
    }
    return all;
}

/* Why NCCL cannot be used; "" if it can. */
static void find_obstacle(const candidate *all, int size, char *text, size_t room)
{
    text[0] = '\0';
    for (int r = 0; r < size && text[0] == '\0'; r++) {
        if (!all[r].loads) {
            snprintf(text, room, "rank %d: %s", r, all[r].reason);
        }
        for (int s = 0; s < r && text[0] == '\0'; s++) {
            if (strcmp(all[r].host, all[s].host) == 0 && strcmp(all[r].place, all[s].place) == 0) {
                snprintf(text, room, "ranks %d and %d share the GPU %s", s, r, all[r].place);
            }
        }
    }
}

/* Fails unless all ranks ask for the same engine, and that engine exists. */
static td_status check_wishes(const candidate *all, int size)
{
    for (int r = 0; r < size; r++) {
        const char *wish = all[r].wish;
        TD_CHECK(wish[0] == '\0' || strcmp(wish, "nccl") == 0 || strcmp(wish, "staged") == 0,
                 TD_E_ARG, "rank %d: there is no engine '%s' for GPUs; there are nccl and staged",
                 r, wish);
        TD_CHECK(strcmp(wish, all[0].wish) == 0, TD_E_UNSUPPORTED,
                 "for GPUs rank 0 wants engine '%s' and rank %d '%s': all must want the "
                 "same ('': the best)",
                 all[0].wish, r, wish);
    }
    return TD_OK;
}

static bool is_broken(void *group)
{
    return atomic_load(&((td_group *)group)->broken) != TD_OK;
}

static td_status make_nccl(td_group *group, td_device device)
{
    td_nccl_options options = { .rank = group->rank,
                                .size = group->size,
                                .store = group->store,
                                .name = td_device_name((td_device){ device.type, 0 }),
                                .device = device,
                                .timeout = group->timeout,
                                .broken = is_broken,
                                .user = group };
    td_device_engine *engine = NULL;
    TD_TRY(td_nccl_engine_new(td_nccl_load(), td_streams_of(device), &options, &engine));
    group->device_engine = engine;
    return TD_OK;
}

static td_status choose(td_group *group, td_device device, const candidate *all)
{
    char obstacle[512];
    TD_TRY(check_wishes(all, group->size));
    find_obstacle(all, group->size, obstacle, sizeof obstacle);
    bool forced = strcmp(all[0].wish, "nccl") == 0;
    if (strcmp(all[0].wish, "staged") != 0 && (obstacle[0] == '\0' || forced)) {
        return obstacle[0] == '\0' ? make_nccl(group, device)
                                   : td_fail(TD_E_UNSUPPORTED, "backend nccl: %s", obstacle);
    }
    if (group->rank == 0 && obstacle[0] != '\0' && strcmp(all[0].wish, "staged") != 0) {
        fprintf(stderr,
                "tandem: GPUs' collectives go by way of the host, which is slow, because NCCL "
                "cannot be used: %s\n",
                obstacle);
    }
    group->staged = device;
    group->stages = true;
    return TD_OK;
}

static td_status choose_engine(td_group *group, td_device device)
{
    candidate mine;
    describe_self(group, device, &mine);
    candidate *all = gather_candidates(group, &mine);
    if (all == NULL) {
        return TD_E_NOMEM;
    }
    td_status status = choose(group, device, all);
    free(all);
    return status;
}

/* The device of the group's collectives; NULL: the engine is not chosen yet. */
static const td_device *own_device_of(const td_group *group)
{
    const td_device_engine *e = group->device_engine;
    return e != NULL ? &e->device : group->stages ? &group->staged : NULL;
}

bool td_group_uses_device(const td_group *group, const td_tensor *t)
{
    td_device device = td_device_of(t);
    const td_device *own = own_device_of(group);
    return device.type != TD_DEVICE_CPU || (own != NULL && td_same_device(*own, device));
}

/* Messages always go through the host, where two ranks may send to each other at the same time; on
 * one stream they would wait for each other forever. */
static td_status device_launch(td_group *group, td_collective *c, td_device device, td_work **work)
{
    bool message = c->kind == TD_COLLECTIVE_SEND || c->kind == TD_COLLECTIVE_RECV;
    if (!message && own_device_of(group) == NULL) {
        TD_TRY(choose_engine(group, device));
    }
    const td_device *own = own_device_of(group);
    TD_REQUIRE(own == NULL || td_same_device(*own, device), TD_NOWHERE,
               "a group has one GPU: its collectives have run on %s, and this one is for %s",
               td_device_name(*own), td_device_name(device));
    c->number = ++group->device_collectives;
    c->deadline = td_clock() + group->timeout;
    td_device_engine *engine = group->device_engine;
    if (message || engine == NULL) {
        td_not_recordable("%s goes by way of the host", td_kind_of(c->kind)->name);
        return td_staged_submit(group, c, device, work);
    }
    uint64_t ticket;
    TD_TRY(engine->type->launch(engine, c, &ticket));
    *work = td_work_of_device(group, c, engine, ticket);
    return *work != NULL ? TD_OK : TD_E_NOMEM;
}

td_status td_device_submit(td_group *group, td_collective *c, td_device device, td_work **handle)
{
    td_work *work = NULL;
    if (handle != NULL) {
        *handle = NULL;
    }
    TD_TRY(td_group_check(group));
    if (group->size == 1 && group->device_engine == NULL) {
        td_run_alone(c, device);
        work = td_work_of_device(group, c, NULL, 0);
        TD_TRY(work != NULL ? TD_OK : TD_E_NOMEM);
    } else {
        td_status status = device_launch(group, c, device, &work);
        if (status != TD_OK) { /* the other ranks wait for this rank */
            return td_group_fail(group, status);
        }
    }
    return td_work_hand_over(work, handle);
}

td_status td_device_join_all(td_group *group)
{
    td_device_engine *e = group->device_engine;
    return e != NULL ? e->type->join_all(e) : TD_OK;
}

/* Breaks the group because a collective is not done. what: "is not done", ... */
static void break_over(td_group *group, const td_device_engine *e, const td_collective *c,
                       const char *what, double seconds)
{
    td_entered entered = td_entered_of(c);
    char name[192], text[TD_CAUSE_BYTES];
    td_describe_entered(&entered, name, sizeof name);
    td_snprintf(text, sizeof text,
                "%s on %s %s after %.1f s on rank %d: another rank has not called it, or has died",
                name, td_device_name(e->device), what, seconds, group->rank);
    td_group_break(group, TD_E_TIMEOUT, text);
}

td_status td_device_await(td_group *group, td_device_engine *engine, uint64_t ticket,
                          const td_collective *c, double timeout)
{
    static const double PAUSE = 100e-6;
    double begin = td_clock();
    td_status status = td_group_check(group);
    while (status == TD_OK && !engine->type->reached(engine, ticket)) {
        if (td_clock() - begin >= timeout) {
            break_over(group, engine, c, "was given up by td_work_wait", td_clock() - begin);
        } else {
            td_sleep(PAUSE);
        }
        status = td_group_check(group);
    }
    return status;
}

/* ---- the watchdog's part ---- */

/* NCCL does not notice that a rank of this host has died, so this asks the CPU engine. */
static td_status device_look_for_dead(const td_group *group, double waited)
{
    static const double LONG = 1.0;
    bool looks = group->engine != NULL && group->engine_type->look != NULL;
    return looks && waited >= LONG ? group->engine_type->look(group->engine) : TD_OK;
}

/* Another thread may make the engine meanwhile: it is complete once group->device_engine is set. */
void td_device_look(td_group *group)
{
    td_device_engine *e = group->device_engine;
    if (e == NULL) {
        return;
    }
    if (is_broken(group)) {
        e->type->abort(e); /* again, in case the engine was set after the group broke */
        return;
    }
    td_collective oldest = { .kind = TD_COLLECTIVE_BARRIER };
    double begun = 0.0;
    char text[TD_CAUSE_BYTES];
    td_status status = e->type->look(e, &oldest, &begun);
    bool failed = status != TD_OK;
    if (!failed && begun > 0.0) {
        status = device_look_for_dead(group, td_clock() - begun);
    }
    if (status != TD_OK) {
        snprintf(text, sizeof text, "rank %d: %s", group->rank, td_last_error());
        /* An error of NCCL's may come first, and names no rank: adds which one has died. */
        if (failed && device_look_for_dead(group, HUGE_VAL) != TD_OK) {
            td_append(text, sizeof text, "; %s", td_last_error());
        }
        td_group_break(group, status, text);
        return;
    }
    double now = td_clock() - td_watchdog_stood(group, begun);
    if (begun > 0.0 && now >= oldest.deadline) {
        break_over(group, e, &oldest, "is not done", now - begun);
    }
}

void td_device_abort(td_group *group)
{
    td_device_engine *e = group->device_engine;
    if (e != NULL) {
        e->type->abort(e);
    }
}

void td_device_end(td_group *group)
{
    td_device_engine *e = group->device_engine;
    group->device_engine = NULL;
    if (e != NULL) {
        e->type->destroy(e);
    }
    td_staged_free(group->unused_staged);
    group->unused_staged = NULL;
}
