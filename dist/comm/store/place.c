/* This process's rank and the place of the store, from a URL and launchers' environment variables.
 */
#include "dist/comm/rendezvous.h"
#include "dist/comm/thread_rank.h"

#include "dist/comm/launch/hostlist.h"
#include "tensor/system/text.h"

#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { FIRST_JOB_PORT = 10000, JOB_PORTS = 20000 }; /* below the ephemeral ports */
enum { MAX_WORLD = 65536 };

/* An environment variable; empty counts as not set. */
static const char *env(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

static bool parse_int(const char *text, int *value)
{
    char *end;
    errno = 0;
    long number = strtol(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || number < INT_MIN || number > INT_MAX) {
        return false;
    }
    *value = (int)number;
    return true;
}

/* Does not change *value if the variable is not set. */
static td_status env_int(const char *name, int *value)
{
    const char *text = env(name);
    TD_CHECK(text == NULL || parse_int(text, value), TD_E_ARG,
             "%s is '%s', which is no whole number", name, text);
    return TD_OK;
}

static td_status check_plan(const td_rendezvous_plan *plan)
{
    TD_CHECK(plan->world_size >= 1 && plan->world_size <= MAX_WORLD, TD_E_ARG,
             "%s: the world size is %d; it is the number of processes, and the most is "
             "%d",
             plan->source, plan->world_size, MAX_WORLD);
    TD_CHECK(plan->rank >= 0 && plan->rank < plan->world_size, TD_E_ARG,
             "%s: rank %d does not exist in a world of %d; ranks go from 0 to %d", plan->source,
             plan->rank, plan->world_size, plan->world_size - 1);
    if (plan->way == TD_MEET_OVER_TCP && (plan->port < 1 || plan->port > 65535)) {
        return td_fail(TD_E_ARG, "%s: port %d; ports go from 1 to 65535", plan->source, plan->port);
    }
    return TD_OK;
}

static td_status set_host(td_rendezvous_plan *plan, const char *host, size_t length)
{
    TD_CHECK(length != 0 && length < sizeof(plan->host), TD_E_ARG,
             "%s: the host's name has %zu characters", plan->source, length);
    memcpy(plan->host, host, length);
    plan->host[length] = '\0';
    return TD_OK;
}

/* ---- URLs ---- */

/* "rank=1&world_size=4" */
static td_status read_query(const char *query, td_rendezvous_plan *plan)
{
    char copy[128], *rest, *item;
    TD_CHECK((size_t)snprintf(copy, sizeof(copy), "%s", query) < sizeof(copy), TD_E_ARG,
             "%s: what follows '?' is too long", plan->source);
    for (item = strtok_r(copy, "&", &rest); item != NULL; item = strtok_r(NULL, "&", &rest)) {
        char *value = strchr(item, '=');
        int *target = NULL;
        if (value != NULL) {
            *value++ = '\0';
            target = strcmp(item, "rank") == 0         ? &plan->rank
                     : strcmp(item, "world_size") == 0 ? &plan->world_size
                                                       : NULL;
        }
        TD_CHECK(target != NULL && parse_int(value, target), TD_E_ARG,
                 "%s: cannot read '%s'; ?rank=R&world_size=N is known", plan->source, item);
    }
    return TD_OK;
}

/* rank and world_size, from the query or from the options, but not from both. */
static td_status read_ranks(const char *query, const td_dist_options *options,
                            td_rendezvous_plan *plan)
{
    plan->rank = -1;
    plan->world_size = 0;
    if (query != NULL) {
        TD_TRY(read_query(query, plan));
    }
    bool given = plan->rank >= 0 || plan->world_size != 0;
    TD_CHECK(!given || options->world_size == 0, TD_E_ARG,
             "rank and world size are given twice: in the URL and in the options");
    if (!given) {
        plan->rank = options->rank;
        plan->world_size = options->world_size;
    }
    TD_CHECK(plan->world_size != 0 && plan->rank >= 0, TD_E_ARG,
             "%s wants a rank and a world size: in the options, or in the URL as "
             "?rank=R&world_size=N",
             plan->source);
    return TD_OK;
}

/* "host:port", "[::1]:port" */
static td_status read_place(const char *place, size_t length, td_rendezvous_plan *plan)
{
    char text[300];
    TD_CHECK(length < sizeof(text), TD_E_ARG, "tcp://: the host's name is too long");
    memcpy(text, place, length);
    text[length] = '\0';
    char *colon = strrchr(text, ':');
    TD_CHECK(colon != NULL && strchr(colon, ']') == NULL && parse_int(colon + 1, &plan->port),
             TD_E_ARG, "tcp://%s has no port; write tcp://HOST:PORT", text);
    bool bracketed = text[0] == '[' && colon > text + 1 && colon[-1] == ']';
    return bracketed ? set_host(plan, text + 1, (size_t)(colon - text) - 2)
                     : set_host(plan, text, (size_t)(colon - text));
}

static td_status plan_tcp(const char *rest, const td_dist_options *options,
                          td_rendezvous_plan *plan)
{
    size_t length = strcspn(rest, "?/");
    const char *query = strchr(rest, '?');
    plan->source = "tcp://";
    plan->way = TD_MEET_OVER_TCP;
    TD_TRY(read_place(rest, length, plan));
    TD_TRY(read_ranks(query != NULL ? query + 1 : NULL, options, plan));
    plan->hosts_server = plan->rank == 0;
    return check_plan(plan);
}

static td_status plan_file(const char *rest, const td_dist_options *options,
                           td_rendezvous_plan *plan)
{
    size_t length = strcspn(rest, "?");
    plan->source = "file://";
    plan->way = TD_MEET_IN_FILE;
    TD_CHECK(rest[0] == '/' && length < sizeof(plan->path), TD_E_ARG,
             "file://%.200s: the path must be absolute: file:///shared/folder/name", rest);
    memcpy(plan->path, rest, length);
    plan->path[length] = '\0';
    TD_TRY(read_ranks(rest[length] == '?' ? rest + length + 1 : NULL, options, plan));
    return check_plan(plan);
}

/* ---- environments ---- */

/* The variables in which a launcher tells a process its place. */
typedef struct launcher {
    const char *source, *rank, *world_size, *local_rank, *local_world_size;
} launcher;

static const launcher ENV = { "env://", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE" };
static const launcher SLURM = { "Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", NULL };
static const launcher OPEN_MPI = { "mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                   "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE" };
/* MPICH and its relatives. */
static const launcher MPICH = { "mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID",
                                "MPI_LOCALNRANKS" };

static td_status read_launcher(const launcher *l, td_rendezvous_plan *plan)
{
    plan->source = l->source;
    plan->way = TD_MEET_OVER_TCP;
    TD_TRY(env_int(l->rank, &plan->rank));
    TD_TRY(env_int(l->world_size, &plan->world_size));
    TD_TRY(env_int(l->local_rank, &plan->local_rank));
    return l->local_world_size != NULL ? env_int(l->local_world_size, &plan->local_world_size)
                                       : TD_OK;
}

/* The store's host and its port, if MASTER_PORT is not set; then checks the plan. */
static td_status read_master(td_rendezvous_plan *plan, const char *host, int port)
{
    plan->port = port;
    plan->hosts_server = plan->rank == 0 && !plan->served_by_agent;
    TD_TRY(env_int("MASTER_PORT", &plan->port));
    TD_TRY(set_host(plan, host, strlen(host)));
    return check_plan(plan);
}

static td_status plan_env(td_rendezvous_plan *plan)
{
    static const char *const names[] = { "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT" };
    char missing[64] = "";
    for (int i = 0; i < 4; i++) {
        if (env(names[i]) == NULL) {
            td_append(missing, sizeof(missing), "%s%s", missing[0] != '\0' ? ", " : "", names[i]);
        }
    }
    TD_CHECK(missing[0] == '\0', TD_E_ARG,
             "env:// needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the "
             "environment; not set: %s (tdrun sets them; srun and mpirun "
             "set variables of their own)",
             missing);
    const char *agent = env("TANDEM_AGENT_STORE");
    plan->served_by_agent = agent != NULL && strcmp(agent, "1") == 0;
    TD_TRY(read_launcher(&ENV, plan));
    return read_master(plan, env("MASTER_ADDR"), 0);
}

static bool resolves(const char *host)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *found;
    if (getaddrinfo(host, NULL, &hints, &found) != 0) {
        return false;
    }
    freeaddrinfo(found);
    return true;
}

/* The step's first node. If its name does not resolve: the address from which srun was started,
 * which in a batch job is the same node. */
static td_status slurm_master(td_rendezvous_plan *plan, int port)
{
    const char *nodes = env("SLURM_STEP_NODELIST"), *launch = env("SLURM_LAUNCH_NODE_IPADDR");
    const char *master = env("MASTER_ADDR");
    if (master != NULL) {
        return read_master(plan, master, port);
    }
    nodes = nodes != NULL ? nodes : env("SLURM_JOB_NODELIST");
    TD_CHECK(nodes != NULL, TD_E_ARG,
             "Slurm: SLURM_JOB_NODELIST is not set; start the job with srun, or "
             "set MASTER_ADDR");
    char first[TD_HOST_BYTES];
    TD_TRY(td_hostlist_first(nodes, first));
    return read_master(plan, resolves(first) || launch == NULL ? first : launch, port);
}

static td_status plan_slurm(td_rendezvous_plan *plan)
{
    int job = 0, step = 0, node = -1;
    const char *per_node = env("SLURM_STEP_TASKS_PER_NODE");
    TD_TRY(read_launcher(&SLURM, plan));
    TD_TRY(env_int("SLURM_STEP_NUM_TASKS", &plan->world_size)); /* a step of a larger job */
    TD_TRY(env_int("SLURM_NODEID", &node));
    TD_TRY(env_int("SLURM_JOB_ID", &job));
    TD_CHECK(plan->world_size != 0, TD_E_ARG,
             "Slurm: SLURM_NTASKS is not set; start the job with srun");
    if (env("SLURM_STEP_ID") != NULL && !parse_int(env("SLURM_STEP_ID"), &step)) {
        step = 0; /* a word, for the batch step */
    }
    if (per_node != NULL && node >= 0) {
        plan->local_world_size = td_hostlist_count_at(per_node, node);
    }
    snprintf(plan->run_id, sizeof(plan->run_id), "slurm-%d.%d", job, step);
    return slurm_master(plan,
                        FIRST_JOB_PORT + (int)(((unsigned)job * 7u + (unsigned)step) % JOB_PORTS));
}

/* All ranks of a job find the same port. */
static int port_of(const char *job)
{
    return FIRST_JOB_PORT + (int)(td_hash_text(TD_HASH_BEGIN, job != NULL ? job : "") % JOB_PORTS);
}

static td_status plan_mpi(td_rendezvous_plan *plan)
{
    bool ompi = env(OPEN_MPI.rank) != NULL;
    const char *master = env("MASTER_ADDR");
    TD_TRY(read_launcher(ompi ? &OPEN_MPI : &MPICH, plan));
    if (master == NULL && plan->local_world_size == plan->world_size) {
        master = "127.0.0.1";
    }
    TD_CHECK(master != NULL, TD_E_ARG,
             "mpirun: the ranks are on several hosts and MASTER_ADDR is not set; name rank "
             "0's host: mpirun -x MASTER_ADDR=HOST ... (MPICH: -genv MASTER_ADDR HOST)");
    return read_master(plan, master, port_of(env(ompi ? "PMIX_NAMESPACE" : "PMI_JOBID")));
}

static bool in_slurm(void)
{
    return env("SLURM_JOB_ID") != NULL && env(SLURM.rank) != NULL;
}

static bool in_mpirun(void)
{
    return env(OPEN_MPI.rank) != NULL || env(MPICH.rank) != NULL;
}

/* A batch script has SLURM_PROCID, too, but no step. A program that it starts without srun is a
 * world of one. */
bool td_dist_is_launched(void)
{
    return td_thread_rank_now() != NULL || env("RANK") != NULL ||
           (in_slurm() && env("SLURM_STEP_NODELIST") != NULL) || in_mpirun();
}

static td_status plan_environment(td_rendezvous_plan *plan)
{
    if (env("RANK") != NULL) {
        return plan_env(plan);
    }
    return in_slurm() ? plan_slurm(plan) : in_mpirun() ? plan_mpi(plan) : plan_env(plan);
}

static td_status plan_place(const td_dist_options *options, td_rendezvous_plan *plan)
{
    const char *url = options->init_method;
    if (options->store != NULL) {
        plan->source = "a store of the program's own";
        plan->way = TD_MEET_AT_STORE;
        plan->rank = options->rank;
        plan->world_size = options->world_size;
        return check_plan(plan);
    }
    if (url == NULL) {
        return plan_environment(plan);
    }
    if (strcmp(url, "env://") == 0) {
        return plan_env(plan);
    }
    if (strncmp(url, "tcp://", 6) == 0) {
        return plan_tcp(url + 6, options, plan);
    }
    if (strncmp(url, "file://", 7) == 0) {
        return plan_file(url + 7, options, plan);
    }
    return td_fail(TD_E_ARG,
                   "init_method '%s' is not known; there are env://, tcp://HOST:PORT and "
                   "file:///PATH",
                   url);
}

/* The job's token. Under TANDEM_REQUIRE_TOKEN a store over TCP is not used without. */
static td_status plan_token(td_rendezvous_plan *plan)
{
    const char *spawned = env("TANDEM_SPAWN_TOKEN"), *required = env("TANDEM_REQUIRE_TOKEN");
    if (plan->way != TD_MEET_OVER_TCP) {
        return TD_OK;
    }
    TD_TRY(td_token_of_environment(&plan->token));
    if (!plan->token.set && plan->one_spawn && spawned != NULL) {
        TD_TRY(td_token_parse(spawned, "TANDEM_SPAWN_TOKEN", &plan->token));
    }
    TD_CHECK(plan->token.set || required == NULL || strcmp(required, "0") == 0, TD_E_ARG,
             "%s: this process has no token, and TANDEM_REQUIRE_TOKEN is set; give all "
             "processes one TANDEM_TOKEN or TANDEM_TOKEN_FILE",
             plan->source);
    return TD_OK;
}

/* The run's id, which distinguishes runs that use the same store. td_spawn gives its processes an
 * id, so that they recognise the file of an earlier run. */
static td_status plan_run_id(td_rendezvous_plan *plan)
{
    const char *run_id = env("TANDEM_RUN_ID");
    if (run_id == NULL && plan->way == TD_MEET_IN_FILE && plan->one_spawn) {
        run_id = env("TANDEM_SPAWN_ID");
    }
    TD_CHECK(run_id == NULL || (size_t)snprintf(plan->run_id, sizeof(plan->run_id), "%s", run_id) <
                                   sizeof(plan->run_id),
             TD_E_ARG, "TANDEM_RUN_ID has %zu characters; %zu are allowed", strlen(run_id),
             sizeof(plan->run_id) - 1);
    return TD_OK;
}

td_status td_rendezvous_plan_make(const td_dist_options *options, td_rendezvous_plan *plan)
{
    *plan = (td_rendezvous_plan){ .local_rank = -1, .local_world_size = -1 };
    TD_TRY(env_int("TANDEM_ATTEMPT", &plan->attempt));
    TD_TRY(plan_place(options, plan));
    /* td_spawn's id and token count only if all ranks come from one td_spawn: another host's
     * td_spawn has others. */
    int spawned = 0;
    TD_TRY(env_int("TANDEM_SPAWN_SIZE", &spawned));
    plan->one_spawn = spawned == plan->world_size;
    TD_TRY(plan_token(plan));
    return plan_run_id(plan);
}
