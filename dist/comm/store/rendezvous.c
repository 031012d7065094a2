/* Rendezvous: all ranks meet at a store. Its keys:
 *
 *   world           the first rank's world size, and its rank
 *   joined/<rank>   host and pid of a rank that has come
 *   gone/<rank>     set when a rank that had come has gone, if the store notices
 *   arrived         number of ranks that have come
 *   outcome         the result, the same for all ranks: "ok" and each rank's host, or "<code>
 *                   message". The last rank, or the first rank that sees a failure, writes it once.
 */
#include "dist/comm/rendezvous.h"

#include "tensor/clock.h"
#include "tensor/extend.h"
#include "tensor/system/temporary.h"
#include "tensor/system/text.h"
#include "dist/comm/launch/error_file.h"
#include "dist/comm/process.h"
#include "dist/comm/store/tcp.h"
#include "dist/comm/watchdog.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HOST_BYTES = 288, NAMED_WORLD = 4096 /* ranks: larger worlds' missing ranks are counted */ };

static const double DEFAULT_TIMEOUT = 300;
static const double TELL_AFTER = 3; /* seconds of waiting for other ranks */
static const double LAST_WORDS = 2; /* seconds that a rank which fails waits for a reader */
/* Seconds for other ranks: to read a failure; to leave. For an answer after the time-out. */
static const double LINGER = 1, LEAVE = 3, ANSWER = 2;

static int inits; /* successful inits of this process; the same number on all ranks */

typedef struct meeting {
    const td_rendezvous_plan *plan;
    const td_gathering *gathering; /* NULL: none */
    td_store *store;               /* under the prefix of this init */
    double deadline, timeout;
    bool served_by_rank_0; /* not by a launcher, and not a file */
    char host[HOST_BYTES]; /* this host's identity */
} meeting;

/* Identifies a host by its name and td_host_number(): ranks of one host must also see each other's
 * processes (shm needs that) and share the network, so two network namespaces count as two hosts.
 * So do two nodes of tdrun on one machine. */
static void identify_host(char identity[HOST_BYTES])
{
    char name[128] = "", network[32];
    gethostname(name, sizeof(name) - 1);
    ssize_t length = readlink("/proc/self/ns/net", network, sizeof(network) - 1);
    network[length > 0 ? length : 0] = '\0';
    const char *node = getenv("GROUP_RANK");
    snprintf(identity, HOST_BYTES, "%s %08" PRIx32 " %s %.16s", name, td_host_number(), network,
             node != NULL ? node : "");
}

/* For an answer of the store: the time that is left, but at least ANSWER, so that a failure at the
 * time-out can still find its cause. */
static double patience(const meeting *m)
{
    return fmax(td_seconds_until(m->deadline), fmin(m->timeout, ANSWER));
}

static void joined_key(char key[32], int rank)
{
    snprintf(key, 32, "joined/%d", rank);
}

/* ---- the outcome ---- */

/* Writes the outcome unless there is one already. *outcome: the one that counts. */
static td_status settle(meeting *m, const char *proposal, char **outcome)
{
    return td_store_compare_set(m->store, "outcome", "", proposal, outcome);
}

/* Makes the last error the outcome for all ranks. */
static td_status settle_failure(meeting *m, td_status status, char **outcome)
{
    char text[2100];
    snprintf(text, sizeof(text), "%d %s", (int)status, td_last_error());
    return settle(m, text, outcome);
}

/* Names the ranks that have come, and those that have not: "2 joined (0-1), missing: 2". One
 * request for each rank, but only one in all for a large world: "2 joined". */
static td_status describe_joined(meeting *m, char *text, size_t size)
{
    int count = m->plan->world_size;
    int64_t come = 0;
    if (count > NAMED_WORLD) {
        TD_TRY(td_store_add(m->store, "arrived", 0, &come));
        snprintf(text, size, "%lld joined", (long long)come);
        return TD_OK;
    }
    bool present[NAMED_WORLD];
    for (int rank = 0; rank < count; rank++) {
        char key[32];
        joined_key(key, rank);
        TD_TRY(td_store_check(m->store, key, &present[rank]));
        come += present[rank];
    }
    char here[400], missing[400];
    td_ranks_text(present, count, true, here, sizeof(here));
    td_ranks_text(present, count, false, missing, sizeof(missing));
    snprintf(text, size, "%lld joined (%s), missing: %s", (long long)come, here, missing);
    return TD_OK;
}

/* A user who starts the ranks by hand, or in several jobs, sees that this one waits, and for whom.
 * A launcher starts all of its ranks; so does td_spawn, unless it is one of several. */
static td_status rendezvous_tell_missing(meeting *m, int64_t arrived)
{
    char joined[900];
    const td_rendezvous_plan *plan = m->plan;
    if (arrived > 1 || plan->served_by_agent || plan->one_spawn) {
        return TD_OK;
    }
    TD_TRY(describe_joined(m, joined, sizeof joined));
    if (plan->way == TD_MEET_OVER_TCP) {
        td_notice("waiting for ranks at %s:%d: %s", plan->host, plan->port, joined);
    } else {
        td_notice("waiting for ranks: %s", joined);
    }
    return TD_OK;
}

/* After the time-out: fails with the ranks that have not come. */
static td_status settle_missing(meeting *m, char **outcome)
{
    char joined[900];
    m->store->timeout = patience(m);
    TD_TRY(describe_joined(m, joined, sizeof(joined)));
    td_status status =
        td_fail(TD_E_TIMEOUT,
                "waited %.3g s for %d ranks: %s; look at what the missing ranks printed, and check "
                "that they were started with the same master address and port",
                m->timeout, m->plan->world_size, joined);
    return settle_failure(m, status, outcome);
}

/* The last rank to come writes all ranks' hosts, one a line. */
static td_status settle_success(meeting *m, char **outcome)
{
    size_t length = 2, capacity = 3 + (size_t)m->plan->world_size * HOST_BYTES;
    char *text = malloc(capacity);
    TD_CHECK(text != NULL, TD_E_NOMEM, "no memory for %d ranks", m->plan->world_size);
    memcpy(text, "ok", 3);
    for (int rank = 0; rank < m->plan->world_size; rank++) {
        char key[32], *host;
        joined_key(key, rank);
        td_status status = td_store_get_text(m->store, key, td_seconds_until(m->deadline), &host);
        if (status != TD_OK) {
            free(text);
            return status == TD_E_TIMEOUT ? settle_missing(m, outcome) : status;
        }
        size_t width = strcspn(host, "|"); /* another program may have set the key */
        width = width < HOST_BYTES - 1 ? width : HOST_BYTES - 1;
        length += (size_t)snprintf(text + length, capacity - length, "\n%.*s", (int)width, host);
        free(host);
    }
    td_status status = settle(m, text, outcome);
    free(text);
    return status;
}

/* ---- joining ---- */

static td_status check_world(meeting *m)
{
    const td_rendezvous_plan *plan = m->plan;
    char mine[64], *first;
    int world_size = 0, rank = 0;
    snprintf(mine, sizeof(mine), "%d %d", plan->world_size, plan->rank);
    TD_TRY(td_store_compare_set(m->store, "world", "", mine, &first));
    sscanf(first, "%d %d", &world_size, &rank);
    free(first);
    TD_CHECK(world_size == plan->world_size, TD_E_MISMATCH,
             "wrong world size: rank %d was started with %d and rank %d with %d; start all "
             "ranks with the same",
             rank, world_size, plan->rank, plan->world_size);
    return TD_OK;
}

static td_status join(meeting *m)
{
    char key[32], who[HOST_BYTES + 64], *before;
    joined_key(key, m->plan->rank);
    snprintf(who, sizeof(who), "%s|%.*s, pid %ld", m->host, (int)strcspn(m->host, " "), m->host,
             (long)getpid());
    TD_TRY(td_store_compare_set(m->store, key, "", who, &before));
    td_status status = TD_OK;
    if (strcmp(before, who) != 0) {
        const char *other = strchr(before, '|');
        status = td_fail(TD_E_MISMATCH,
                         "rank %d has come twice: from %s, and from %s; give each process its own "
                         "rank, and each job its own port",
                         m->plan->rank, other != NULL ? other + 1 : before, strchr(who, '|') + 1);
    }
    free(before);
    return status;
}

/* Joins and waits for the outcome. */
static td_status rendezvous_meet(meeting *m, char **outcome)
{
    td_status status = check_world(m);
    status = status == TD_OK ? join(m) : status;
    if (status == TD_E_MISMATCH) {
        return settle_failure(m, status, outcome);
    }
    TD_TRY(status);
    char will[32];
    snprintf(will, sizeof(will), "gone/%d", m->plan->rank);
    status = td_store_will(m->store, will);
    TD_TRY(status == TD_E_UNSUPPORTED ? TD_OK : status);
    int64_t arrived;
    TD_TRY(td_store_add(m->store, "arrived", 1, &arrived));
    if (arrived == m->plan->world_size) {
        return settle_success(m, outcome);
    }
    td_store_request get = { .op = TD_STORE_GET,
                             .key = "outcome",
                             .timeout = fmin(TELL_AFTER, td_seconds_until(m->deadline)),
                             .look = m->gathering != NULL ? m->gathering->look : NULL,
                             .user = m->gathering != NULL ? m->gathering->user : NULL };
    size_t size;
    status = td_store_call(m->store, &get, outcome, &size);
    if (status == TD_E_TIMEOUT && td_clock() < m->deadline) {
        TD_TRY(rendezvous_tell_missing(m, arrived));
        get.timeout = td_seconds_until(m->deadline);
        status = td_store_call(m->store, &get, outcome, &size);
    }
    return status == TD_E_TIMEOUT ? settle_missing(m, outcome) : status;
}

/* ---- reading the outcome ---- */

/* Reads the ranks' hosts in "ok\nhost\nhost...", and counts those of this host. */
static td_status read_hosts(const meeting *m, const char *outcome, td_rendezvous_result *r)
{
    int rank = 0, here = 0, below = 0;
    uint64_t mine = td_hash_text(TD_HASH_BEGIN, m->host);
    r->hosts = calloc((size_t)r->world_size, sizeof *r->hosts);
    TD_CHECK(r->hosts != NULL, TD_E_NOMEM, "no memory for %d ranks", r->world_size);
    const char *line = strchr(outcome, '\n');
    for (; line != NULL && rank < r->world_size; line = strchr(line + 1, '\n'), rank++) {
        r->hosts[rank] = td_hash_bytes(TD_HASH_BEGIN, line + 1, strcspn(line + 1, "\n"));
        bool same = r->hosts[rank] == mine;
        here += same;
        below += same && rank < r->rank;
    }
    const td_rendezvous_plan *plan = m->plan;
    r->local_rank = plan->local_rank >= 0 ? plan->local_rank : below;
    r->local_world_size = plan->local_world_size > 0 ? plan->local_world_size : here;
    r->one_host = here == r->world_size && r->local_world_size == r->world_size;
    return TD_OK;
}

bool td_rendezvous_on_one_host(const td_rendezvous_result *result, const int *ranks, int count)
{
    for (int i = 1; ranks != NULL && i < count; i++) {
        if (result->hosts[ranks[i]] != result->hosts[ranks[0]]) {
            return false;
        }
    }
    return ranks != NULL || result->one_host;
}

static td_status read_outcome(const meeting *m, const char *outcome, td_rendezvous_result *r)
{
    int code = 0, length = 0;
    if (strncmp(outcome, "ok", 2) == 0) {
        return read_hosts(m, outcome, r);
    }
    sscanf(outcome, "%d %n", &code, &length);
    return td_fail(code < 0 ? (td_status)code : TD_E_MISMATCH, "rank %d: %s", r->rank,
                   outcome + length);
}

/* ---- the store ---- */

static td_status open_base(const td_dist_options *options, const meeting *m,
                           td_rendezvous_result *r)
{
    const td_rendezvous_plan *plan = m->plan;
    r->base_is_ours = plan->way != TD_MEET_AT_STORE;
    switch (plan->way) {
    case TD_MEET_AT_STORE:
        r->base = options->store;
        return TD_OK;
    case TD_MEET_IN_FILE:
        return td_file_store_open(plan->path, plan->run_id, m->timeout, &r->base);
    case TD_MEET_OVER_TCP:
        break;
    }
    if (plan->hosts_server && r->server == NULL) {
        TD_TRY(td_files_for(plan->world_size, TD_SERVED_FILES));
        TD_TRY(td_tcp_server_open(plan->host, plan->port, &plan->token, &r->server));
    }
    return td_tcp_store_connect(plan->host, plan->port, td_seconds_until(m->deadline), &plan->token,
                                &r->base);
}

static void close_store(td_rendezvous_result *r)
{
    td_store_close(r->store);
    if (r->base_is_ours) {
        td_store_close(r->base);
    }
    r->store = r->base = NULL;
}

/* Opens the store, with a prefix for this run, attempt and init. Until all ranks have met, a call
 * has the time that is left. */
static td_status open_store(const td_dist_options *options, const meeting *m,
                            td_rendezvous_result *r)
{
    const td_rendezvous_plan *plan = m->plan;
    char prefix[400];
    TD_TRY(open_base(options, m, r));
    r->base->timeout = plan->way == TD_MEET_AT_STORE ? r->base->timeout : m->timeout;
    if (m->gathering != NULL) {
        snprintf(prefix, sizeof(prefix), "%s", m->gathering->name);
    } else {
        snprintf(prefix, sizeof(prefix), "%s%s%d/init%d", plan->run_id,
                 plan->run_id[0] != '\0' ? "/" : "", plan->attempt, inits);
    }
    TD_TRY(td_prefix_store_open(r->base, prefix, &r->store));
    r->store->timeout = patience(m);
    return TD_OK;
}

/* A server in rank 0 serves one init and ends last. So a rank that begins the next init may still
 * find the old server. *ready: whether the server is this init's. */
static td_status check_serving(const meeting *m, td_rendezvous_result *r, bool *ready)
{
    if (r->server != NULL) {
        TD_TRY(td_store_set_text(r->store, "serving", "1"));
    }
    *ready = true;
    return m->served_by_rank_0 ? td_store_check(r->store, "serving", ready) : TD_OK;
}

/* Meets at the store. Tries again if the server was that of an earlier init, or has ended
 * meanwhile. Rank 0, which has the server, does not try again: a busy port stays busy. */
static td_status meet_at_store(const td_dist_options *options, meeting *m, td_rendezvous_result *r,
                               char **outcome)
{
    for (;;) {
        bool ready = false;
        td_status status = open_store(options, m, r);
        status = status == TD_OK ? check_serving(m, r, &ready) : status;
        if (status == TD_OK && ready) {
            m->store = r->store;
            status = rendezvous_meet(m, outcome);
        } else if (status == TD_OK && td_clock() > m->deadline) {
            return td_fail(
                TD_E_TIMEOUT,
                "the store at %s:%d is another run's, or an earlier init's; rank 0 of this "
                "one has not come in %.3g s",
                m->plan->host, m->plan->port, m->timeout);
        }
        bool lost = status == TD_E_NETWORK && m->served_by_rank_0 && !m->plan->hosts_server &&
                    td_clock() < m->deadline;
        if (!lost && (ready || status != TD_OK)) {
            return status;
        }
        close_store(r);
        td_sleep(0.02);
    }
}

/* This host's address for other ranks: the loopback's if all are here, so that no engine listens to
 * other hosts. Ranks on rank 0's host may have connected over the loopback, so they ask the server
 * at which address other hosts have reached it. */
static td_status rendezvous_find_address(const td_rendezvous_plan *plan, td_rendezvous_result *r)
{
    bool over_tcp = plan->way != TD_MEET_IN_FILE && strcmp(r->base->kind->name, "tcp") == 0;
    if (!r->one_host && !over_tcp) {
        return TD_OK;
    }
    snprintf(r->address, sizeof(r->address), "%s",
             r->one_host ? td_loopback_address() : td_tcp_store_local_address(r->base));
    if (!r->one_host && td_address_is_loopback(r->address)) {
        char outside[TD_ADDRESS_BYTES];
        TD_TRY(td_tcp_store_server_address(r->base, outside));
        if (outside[0] != '\0') {
            memcpy(r->address, outside, sizeof(r->address));
        }
    }
    if (getenv("TANDEM_DIST_DEBUG") != NULL) {
        fprintf(stderr, "tandem: rank %d of %d (local %d of %d) met by %s; address %s\n", r->rank,
                r->world_size, r->local_rank, r->local_world_size, plan->source, r->address);
    }
    return TD_OK;
}

td_status td_rendezvous(const td_dist_options *options, td_rendezvous_result *result)
{
    static const td_dist_options defaults;
    td_rendezvous_plan plan;
    options = options != NULL ? options : &defaults;
    *result = (td_rendezvous_result){ 0 };
    td_set_last_words(LAST_WORDS);
    if (getenv("TANDEM_ERROR_FILE") != NULL) {
        td_error_report_fatal(); /* fatal errors go to the launcher, too */
    }
    TD_TRY(td_rendezvous_plan_make(options, &plan));
    meeting m = { .plan = &plan, .gathering = options->gathering };
    m.timeout = options->timeout > 0 ? options->timeout : DEFAULT_TIMEOUT;
    m.deadline = td_clock() + m.timeout;
    m.served_by_rank_0 = plan.way == TD_MEET_OVER_TCP && !plan.served_by_agent;
    identify_host(m.host);
    result->rank = plan.rank;
    result->world_size = plan.world_size;
    char *outcome = NULL;
    td_status status = meet_at_store(options, &m, result, &outcome);
    status = status == TD_OK ? read_outcome(&m, outcome, result) : status;
    status = status == TD_OK ? rendezvous_find_address(&plan, result) : status;
    free(outcome);
    if (status == TD_OK) {
        result->store->timeout = result->base->timeout;
        inits++;
        return TD_OK;
    }
    char message[2048];
    snprintf(message, sizeof(message), "%s", td_last_error());
    if (result->server != NULL || plan.way == TD_MEET_IN_FILE) {
        td_sleep(LINGER); /* a file that no rank uses would be started again */
    }
    td_rendezvous_end(result);
    return td_fail(status, "%s", message);
}

td_status td_rendezvous_who(const td_rendezvous_result *result, int rank, char **who)
{
    char key[32];
    joined_key(key, rank);
    TD_TRY(td_store_get_text(result->store, key, 0, who));
    const char *name = strchr(*who, '|');
    if (name != NULL) {
        memmove(*who, name + 1, strlen(name + 1) + 1);
    }
    return TD_OK;
}

void td_rendezvous_end(td_rendezvous_result *result)
{
    close_store(result);
    free(result->hosts);
    result->hosts = NULL;
    if (result->server != NULL) {
        (void)td_tcp_server_drain(result->server, LEAVE);
        td_tcp_server_stop(result->server);
        result->server = NULL;
    }
}
