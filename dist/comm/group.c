/* Makes and ends process groups: rendezvous, agreement of all ranks, choice of the engine. */
#include "dist/comm/group.h"

#include "tensor/clock.h"
#include "dist/comm/process.h"
#include "dist/comm/rendezvous.h"
#include "dist/comm/thread_rank.h"
#include "dist/comm/watchdog.h"
#include "dist/comm/collectives.h"
#include "tensor/storage.h"
#include "tensor/extend.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_GROUPS = 1024 };

/* The state between td_dist_init and td_dist_destroy. */
typedef struct dist_state {
    bool initialized;
    td_rendezvous_result met; /* this process's rank and the store, found by td_rendezvous */
    char backend[64]; /* that the program or the environment asks for; "": by where ranks are */
    double timeout, connect;      /* connect 0: the same */
    td_group *groups[MAX_GROUPS]; /* by index; NULL: not a member, or freed */
    int group_count;
} dist_state;

/* The process's, or that of a rank that is a thread. */
static dist_state *dist_now(void)
{
    static dist_state of_process;
    const td_thread_rank *thread = td_thread_rank_now();
    return thread != NULL && thread->state != NULL ? thread->state : &of_process;
}

/* ---- agreeing on an engine ---- */

/* Fails after a wait for `rank` has failed. If the wait timed out, and no other rank has told a
 * cause, the message names `rank`. */
static td_status fail_missing(const td_group *group, td_store *store, td_status status, int rank)
{
    char text[TD_CAUSE_BYTES], wait[TD_CAUSE_BYTES / 2];
    snprintf(wait, sizeof wait, "%s", td_last_error());
    snprintf(text, sizeof text, "%srank %d has not come to the new group", group->label, rank);
    if (status != TD_E_TIMEOUT || strncmp(wait, text, strlen(text)) == 0) {
        return td_fail(status, "%s", wait); /* the message has the cause already */
    }
    (void)td_watched_store_tell(store, status, text);
    return td_fail(status, "%s: %s", text, wait);
}

/* Collective: fails unless all ranks have found the same engine for the same ranks. Each rank
 * writes its wish, and reads those of all ranks. group->engine_type NULL: this rank has found none,
 * and td_last_error() says why. */
static td_status group_agree(const td_group *group, td_store *store, double deadline)
{
    char key[32], text[TD_CAUSE_BYTES], first[600] = "";
    if (group->engine_type == NULL) {
        return TD_E_UNSUPPORTED;
    }
    snprintf(text, sizeof text, "%s%s%s", group->engine_type->name,
             group->label[0] != '\0' ? " in the " : "", group->label);
    snprintf(key, sizeof key, "wish/%d", group->rank);
    TD_TRY(td_store_set_text(store, key, text));
    td_status status = TD_OK;
    for (int r = 0; r < group->size && status == TD_OK; r++) {
        char *wish;
        snprintf(key, sizeof key, "wish/%d", r);
        status = td_store_get_text(store, key, td_seconds_until(deadline), &wish);
        if (status != TD_OK) {
            return fail_missing(group, store, status, r);
        }
        if (r == 0) {
            snprintf(first, sizeof first, "%s", wish);
        }
        if (strcmp(wish, first) != 0) {
            snprintf(text, sizeof text,
                     "rank 0 wants %s and rank %d wants %s: all ranks must ask for the same "
                     "backend and the same ranks",
                     first, r, wish);
            status = td_fail(TD_E_UNSUPPORTED, "%s", text);
            (void)td_watched_store_tell(store, status, text);
        }
        free(wish);
    }
    return status;
}

/* Tells the other ranks, which wait for this one, why there will be no group, unless they know. */
static td_status tell_failure(const td_group *group, td_store *store, td_status status)
{
    char text[TD_CAUSE_BYTES], cause[TD_CAUSE_BYTES + 32];
    snprintf(text, sizeof text, "%s", td_last_error());
    snprintf(cause, sizeof cause, "rank %d: %s", group->rank, text);
    bool first = td_watched_store_tell(store, status, cause);
    return td_fail(status, "%s", first ? cause : text);
}

/* ---- one group ---- */

/* ranks: the members' ranks in the world; NULL: all ranks. */
static td_status start_engine(td_group *group, const int *ranks)
{
    dist_state *d = dist_now();
    double deadline = td_clock() + group->timeout;
    td_store *store;
    if (group->size == 1) {
        return group->engine_type != NULL ? TD_OK : TD_E_UNSUPPORTED; /* as td_engine_find says */
    }
    if (td_thread_rank_now() != NULL) {
        td_engine_init place = { .rank = group->rank, .size = group->size, .index = group->index };
        return group->engine_type->init(&group->engine, &place);
    }
    TD_TRY(td_watched_store_open(group->store, &d->met, ranks, group->size, &store));
    td_status status = group_agree(group, store, deadline);
    if (status == TD_OK) {
        td_engine_init init = { .backend = group->engine_type->name,
                                .rank = group->rank,
                                .size = group->size,
                                .store = store,
                                .address = d->met.address[0] ? d->met.address : NULL,
                                .timeout = td_seconds_until(deadline),
                                .index = group->index };
        init.connect = d->connect > 0 ? fmin(d->connect, init.timeout) : init.timeout;
        status = group->engine_type->init(&group->engine, &init);
    }
    status = status == TD_OK ? TD_OK : tell_failure(group, store, status);
    td_store_close(store);
    return status;
}

void td_group_end(td_group *group)
{
    if (group == NULL) {
        return;
    }
    td_queue_stop(group);
    td_watchdog_stop(group);
    td_device_end(group);
    free(group->captured);
    td_group_forget_memory(group);
    if (group->engine != NULL) {
        group->engine_type->destroy(group->engine);
    }
    td_queue_free(group); /* the engine may have had a collective of the queue until now */
    td_store_close(group->store);
    free(group);
}

/* The backend that was asked for, or else shared memory where all ranks of the group are on one
 * host, also if the world is on several. nccl works on GPUs' memory only: for CPU memory the group
 * takes the default engine. */
static const td_engine_type *find_engine(const int *ranks, int size)
{
    dist_state *d = dist_now();
    bool nccl = strcmp(d->backend, "nccl") == 0;
    if (td_thread_rank_now() != NULL) {
        return td_thread_rank_now()->engine;
    }
    if (nccl && !td_device_can_use_nccl(d->met.local_rank)) {
        return NULL;
    }
    return td_engine_find(d->backend[0] != '\0' && !nccl                    ? d->backend
                          : td_rendezvous_on_one_host(&d->met, ranks, size) ? "shm"
                                                                            : "gloo");
}

/* Makes a group of `size` ranks, of which this process is number `rank`. ranks: the members' ranks
 * in the world; NULL: all ranks. */
static td_status make_group(int rank, int size, const int *ranks, const char *label, td_group **out)
{
    dist_state *d = dist_now();
    char prefix[32];
    td_group *group = calloc(1, sizeof *group);
    TD_CHECK(group != NULL, TD_E_NOMEM, "out of memory for a process group");
    group->rank = rank;
    group->size = size;
    group->index = d->group_count;
    group->timeout = d->group_count > 0 ? d->groups[0]->timeout : d->timeout;
    snprintf(group->label, sizeof group->label, "%s", label);
    snprintf(group->device_wish, sizeof group->device_wish, "%s",
             strcmp(d->backend, "nccl") == 0 ? "nccl" : "");
    snprintf(prefix, sizeof prefix, "pg%d/", group->index);
    td_queue_init(&group->queue);
    td_status status = td_thread_rank_now() != NULL
                           ? TD_OK
                           : td_prefix_store_open(d->met.store, prefix, &group->store);
    if (status == TD_OK) {
        group->engine_type = find_engine(ranks, size);
        status = start_engine(group, ranks);
    }
    if (status != TD_OK) {
        td_group_end(group);
        return status;
    }
    *out = group;
    return TD_OK;
}

/* ---- the world ---- */

static void choose_backend(const td_dist_options *options)
{
    const char *text = options->backend != NULL ? options->backend : getenv("TANDEM_BACKEND");
    snprintf(dist_now()->backend, sizeof dist_now()->backend, "%s", text != NULL ? text : "");
}

/* A rank that is a thread knows its place. */
static td_status meet_in_process(td_thread_rank *thread)
{
    thread->state = calloc(1, sizeof *thread->state);
    TD_CHECK(thread->state != NULL, TD_E_NOMEM, "td_dist_init: no memory");
    thread->state->met = (td_rendezvous_result){ .rank = thread->rank,
                                                 .world_size = thread->size,
                                                 .local_rank = thread->rank,
                                                 .local_world_size = thread->size,
                                                 .one_host = true };
    return TD_OK;
}

static td_status meet(const td_dist_options *options)
{
    if (td_thread_rank_now() != NULL) {
        return meet_in_process(td_thread_rank_now());
    }
    TD_CHECK(td_spawn_way_find() == NULL, TD_E_ARG,
             "td_dist_init: ranks are simulated (TANDEM_SIM), and this program "
             "does not start them by td_spawn");
    return td_rendezvous(options, &dist_now()->met);
}

/* Ranks that are threads share what there is one of in a process. */
static void share_process(int ranks, int rank)
{
    if (td_thread_rank_now() == NULL) {
        td_share_cpus(ranks);
        td_set_local_rank(rank);
    }
}

static void part(void)
{
    td_thread_rank *thread = td_thread_rank_now();
    if (thread == NULL) {
        td_rendezvous_end(&dist_now()->met);
    } else {
        free(thread->state);
        thread->state = NULL;
    }
}

td_status td_dist_init_at(td_dist_options given, td_site at)
{
    static const double TIMEOUT = 300;
    const td_dist_options *options = &given;
    TD_REQUIRE(!dist_now()->initialized, at,
               "td_dist_init: it has been called before; td_dist_destroy comes first");
    TD_TRY(meet(options));
    dist_state *d = dist_now();
    d->timeout = options->timeout > 0 ? options->timeout : TIMEOUT;
    d->connect = options->gathering != NULL ? options->gathering->connect_timeout : 0;
    d->group_count = 0;
    choose_backend(options);
    td_status status = make_group(d->met.rank, d->met.world_size, NULL, "", &d->groups[0]);
    if (status != TD_OK) {
        char text[TD_CAUSE_BYTES];
        snprintf(text, sizeof text, "%s", td_last_error());
        part();
        return td_fail(status, "%s", text);
    }
    d->group_count = 1;
    d->initialized = true;
    share_process(td_dist_local_world_size(), td_dist_local_rank());
    return TD_OK;
}

void td_dist_destroy(void)
{
    dist_state *d = dist_now();
    if (!d->initialized) {
        return;
    }
    while (d->group_count > 0) {
        td_group_end(d->groups[--d->group_count]);
        d->groups[d->group_count] = NULL;
    }
    d->initialized = false;
    share_process(1, 0);
    part();
}

bool td_dist_is_initialized(void)
{
    return dist_now()->initialized;
}

td_group *td_dist_world(void)
{
    TD_REQUIRE(
        dist_now()->initialized, TD_NOWHERE,
        "there is no process group: call td_dist_init first; td_ddp and all collectives need it");
    return dist_now()->groups[0];
}

td_group *td_group_or_world(td_group *group)
{
    return group != NULL ? group : td_dist_world();
}

int td_dist_rank(void)
{
    return dist_now()->initialized ? dist_now()->met.rank : 0;
}

int td_dist_world_size(void)
{
    return dist_now()->initialized ? dist_now()->met.world_size : 1;
}

int td_dist_local_rank(void)
{
    return dist_now()->initialized ? dist_now()->met.local_rank : 0;
}

int td_dist_local_world_size(void)
{
    return dist_now()->initialized ? dist_now()->met.local_world_size : 1;
}

/* ---- groups of some ranks ---- */

int td_group_rank(const td_group *group)
{
    return group->rank;
}

int td_group_size(const td_group *group)
{
    return group->size;
}

const char *td_group_backend(const td_group *group)
{
    group = group != NULL ? group : td_dist_world();
    return group->device_wish[0] != '\0' ? group->device_wish : group->engine_type->name;
}

double td_groups_cpu_seconds(td_group *const *groups, int count)
{
    double threads = 0.0, engines = 0.0; /* an engine's threads are those of all groups */
    for (int k = 0; k < count; k++) {
        td_group *group = groups[k];
        clockid_t clock;
        struct timespec t = { 0 };
        if (group != NULL && group->queue.started &&
            pthread_getcpuclockid(group->queue.thread, &clock) == 0) {
            clock_gettime(clock, &t);
        }
        threads += (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
        if (group != NULL && group->engine != NULL && group->engine_type->cpu_seconds != NULL) {
            engines = group->engine_type->cpu_seconds(group->engine);
        }
    }
    return threads + engines;
}

uint64_t td_group_moved(const td_group *group)
{
    bool counts = group->engine != NULL && group->engine_type->moved != NULL;
    return counts ? group->engine_type->moved(group->engine) : 0;
}

void td_group_abort(td_group *group, const char *reason)
{
    group = td_group_or_world(group);
    char text[TD_CAUSE_BYTES];
    snprintf(text, sizeof text, "rank %d has aborted the group: %s", group->rank, reason);
    td_group_break(group, TD_E_INTERRUPTED, text);
}

/* This rank's index in the list; negative: it is not a member. */
static int check_ranks(const int *ranks, int count)
{
    const td_group *world = td_dist_world();
    int place = -1;
    TD_REQUIRE(count > 0, TD_NOWHERE, "td_group_new: a group needs at least one rank");
    for (int i = 0; i < count; i++) {
        TD_REQUIRE(ranks[i] >= 0 && ranks[i] < world->size, TD_NOWHERE,
                   "td_group_new: rank %d does not exist in a world of %d", ranks[i], world->size);
        TD_REQUIRE(i == 0 || ranks[i] > ranks[i - 1], TD_NOWHERE,
                   "td_group_new: ranks must be ascending, and %d comes after %d", ranks[i],
                   ranks[i - 1]);
        place = ranks[i] == world->rank ? i : place;
    }
    return place;
}

/* What messages call a group of some ranks. */
static td_status name_group(const int *ranks, int count, char *label, size_t size)
{
    char list[200];
    int world = td_dist_world_size();
    bool *member = calloc((size_t)world, sizeof *member);
    TD_CHECK(member != NULL, TD_E_NOMEM, "out of memory for a process group");
    for (int i = 0; i < count; i++) {
        member[ranks[i]] = true;
    }
    td_ranks_text(member, world, true, list, sizeof list);
    free(member);
    snprintf(label, size, "group of ranks %s: ", list);
    return TD_OK;
}

td_status td_group_new(const int *ranks, int count, td_group **group)
{
    dist_state *d = dist_now();
    int place = check_ranks(ranks, count);
    TD_REQUIRE(d->group_count < MAX_GROUPS, TD_NOWHERE,
               "td_group_new: %d groups are the most; make them once, not in every step",
               MAX_GROUPS);
    *group = NULL;
    td_status status = TD_OK;
    if (place >= 0) {
        char label[sizeof(*group)->label];
        status = name_group(ranks, count, label, sizeof label);
        status = status == TD_OK ? make_group(place, count, ranks, label, group) : status;
    }
    d->groups[d->group_count++] = *group; /* counted on all ranks, whatever happened here */
    return status;
}

void td_group_free(td_group *group)
{
    if (group == NULL) {
        return;
    }
    TD_REQUIRE(group != dist_now()->groups[0], TD_NOWHERE,
               "td_group_free: this is the world; td_dist_destroy ends it");
    dist_now()->groups[group->index] = NULL;
    td_group_end(group);
}
