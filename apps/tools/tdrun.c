/* tdrun: starts a program as many processes, on one node or several, and looks after them.
 *
 *   tdrun --nproc-per-node 4 ./train --epochs 5
 *   tdrun --nnodes 2 --node-rank 0 --master-addr node0 --nproc-per-node 8 ./train     (on node0)
 *   tdrun --nnodes 1:4 --rdzv-endpoint node0:29500 --max-restarts 3 ./train           (on each)
 *
 * Each process finds its place in the environment: RANK, LOCAL_RANK, WORLD_SIZE, ...
 * (dist/launch/workers.c); td_dist_init() reads it. */
#include "apps/tools/common/cli.h"
#include "dist/launch/launcher.h"
#include "dist/mesh.h"

#include <argp.h>
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEFAULT_PORT = 29500 };

enum key {
    KEY_NNODES = 256,
    KEY_NPROC,
    KEY_MESH,
    KEY_NODE_RANK,
    KEY_MASTER_ADDR,
    KEY_MASTER_PORT,
    KEY_STANDALONE,
    KEY_ENDPOINT,
    KEY_RUN_ID,
    KEY_MAX_RESTARTS,
    KEY_MONITOR_INTERVAL,
    KEY_LOG_DIR,
    KEY_REDIRECTS,
    KEY_TEE,
    KEY_FILTER,
    KEY_JOIN_TIMEOUT,
    KEY_GRACE,
    KEY_TOKEN_FILE,
    KEY_REQUIRE_TOKEN,
};

static const struct argp_option table[] = {
    { 0, 0, 0, 0, "Who takes part:", 1 },
    { "nnodes", KEY_NNODES, "N|MIN:MAX", 0, "Nodes; a range: nodes may come and go (default 1)",
      1 },
    { "nproc-per-node", KEY_NPROC, "N|auto|cpu|gpu", 0,
      "Processes on this node; auto: one per GPU, or per CPU where there is none (default 1)", 1 },
    { "mesh", KEY_MESH, "DIM=N,...", 0,
      "The processes' dimensions pp, rep, dp, tp, as in rep=2,dp=4; *: what is left. Sets "
      "--nproc-per-node, or must fit it; programs read it as TANDEM_MESH",
      1 },
    { "node-rank", KEY_NODE_RANK, "N", 0, "This node's rank; node 0 hosts the store", 1 },
    { "master-addr", KEY_MASTER_ADDR, "HOST", 0, "Node 0's address (default 127.0.0.1)", 1 },
    { "master-port", KEY_MASTER_PORT, "PORT", 0,
      "The store's port there (default 29500; a free one on a single node)", 1 },
    { "standalone", KEY_STANDALONE, 0, 0, "One node, a free port", 1 },
    { "rdzv-endpoint", KEY_ENDPOINT, "HOST[:PORT]", 0,
      "In place of the two above: where the nodes meet; the launcher on that host hosts the store",
      1 },
    { "rdzv-id", KEY_RUN_ID, "NAME", 0, "The run's name, also of its log folder (default: made up)",
      1 },
    { "join-timeout", KEY_JOIN_TIMEOUT, "S", 0,
      "Seconds that nodes wait for each other (default 300)", 1 },
    { "token-file", KEY_TOKEN_FILE, "FILE", 0,
      "The job's secret for all nodes; made if there is none (a single node needs no file)", 1 },
    { "require-token", KEY_REQUIRE_TOKEN, 0, 0, "Fail if the nodes share no secret", 1 },
    { 0, 0, 0, 0, "When something fails:", 2 },
    { "max-restarts", KEY_MAX_RESTARTS, "N", 0,
      "Times that all workers are started again (default 0)", 2 },
    { "monitor-interval", KEY_MONITOR_INTERVAL, "S", 0, "Seconds between looks (default 0.1)", 2 },
    { "grace", KEY_GRACE, "S", 0,
      "Seconds that workers have to end before they are killed (default 30)", 2 },
    { 0, 0, 0, 0,
      "Output (WHAT: 0 nothing, 1 stdout, 2 stderr, 3 both; or LOCAL_RANK:WHAT,...):", 3 },
    { "log-dir", KEY_LOG_DIR, "DIR", 0,
      "Files DIR/RUN/attempt_N/RANK/{stdout,stderr,error}; alone it means --redirects 3 --tee 0:3",
      3 },
    { "redirects", KEY_REDIRECTS, "WHAT", 0, "Streams that go to files only", 3 },
    { "tee", KEY_TEE, "WHAT", 0, "Streams that go to files and, with [rank], to the console", 3 },
    { "local-ranks-filter", KEY_FILTER, "R,R", 0, "Only these local ranks show on the console", 3 },
    { 0, 'h', 0, OPTION_HIDDEN, 0, 0 },
    /* torchrun's spellings */
    { "nproc_per_node", KEY_NPROC, "N", OPTION_HIDDEN, 0, 0 },
    { "node_rank", KEY_NODE_RANK, "N", OPTION_HIDDEN, 0, 0 },
    { "master_addr", KEY_MASTER_ADDR, "HOST", OPTION_HIDDEN, 0, 0 },
    { "master_port", KEY_MASTER_PORT, "PORT", OPTION_HIDDEN, 0, 0 },
    { "rdzv_endpoint", KEY_ENDPOINT, "HOST[:PORT]", OPTION_HIDDEN, 0, 0 },
    { "rdzv_id", KEY_RUN_ID, "NAME", OPTION_HIDDEN, 0, 0 },
    { "max_restarts", KEY_MAX_RESTARTS, "N", OPTION_HIDDEN, 0, 0 },
    { "monitor_interval", KEY_MONITOR_INTERVAL, "S", OPTION_HIDDEN, 0, 0 },
    { "log_dir", KEY_LOG_DIR, "DIR", OPTION_HIDDEN, 0, 0 },
    { "local_ranks_filter", KEY_FILTER, "R,R", OPTION_HIDDEN, 0, 0 },
    { 0 },
};

typedef struct arguments {
    td_launch_options launch;
    const char *nproc; /* NULL: not given */
    const char *endpoint, *master_addr, *redirects, *tee, *filter, *token_file;
    int master_port; /* -1: not given */
    bool standalone, require_token;
    char endpoint_host[256];
} arguments;

/* ---- values ---- */

static long read_number(struct argp_state *state, const char *name, const char *text, long low,
                        long high)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || value < low || value > high) {
        argp_error(state, "--%s: '%s' is not a whole number from %ld to %ld", name, text, low,
                   high);
    }
    return value;
}

static double read_seconds(struct argp_state *state, const char *name, const char *text)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !(value > 0 && value <= 1e6)) {
        argp_error(state, "--%s: '%s' is not a number of seconds above 0", name, text);
    }
    return value;
}

static void read_nodes(struct argp_state *state, const char *text, td_launch_options *o)
{
    const char *colon = strchr(text, ':');
    char low[16];
    snprintf(low, sizeof(low), "%.*s", (int)strcspn(text, ":"), text);
    o->min_nodes = (int)read_number(state, "nnodes", low, 1, 4096);
    o->max_nodes =
        colon != NULL ? (int)read_number(state, "nnodes", colon + 1, 1, 4096) : o->min_nodes;
    if (o->max_nodes < o->min_nodes) {
        argp_error(state, "--nnodes: '%s': the range goes down", text);
    }
}

static int count_cpus(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set)
                                                        : (int)sysconf(_SC_NPROCESSORS_ONLN);
}

/* NVIDIA GPUs that the driver shows, or those that CUDA_VISIBLE_DEVICES leaves. */
static int count_gpus(void)
{
    int count = 0;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    DIR *folder = opendir("/proc/driver/nvidia/gpus");
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        count += entry->d_name[0] != '.';
    }
    if (folder != NULL) {
        closedir(folder);
    }
    if (visible != NULL && count > 0) {
        int listed = visible[0] != '\0';
        for (; *visible != '\0'; visible++) {
            listed += *visible == ',';
        }
        count = listed < count ? listed : count;
    }
    return count;
}

static int read_workers(struct argp_state *state, const char *text)
{
    int gpus = count_gpus();
    if (strcmp(text, "cpu") == 0) {
        return count_cpus();
    }
    if (strcmp(text, "auto") == 0) {
        return gpus > 0 ? gpus : count_cpus();
    }
    if (strcmp(text, "gpu") == 0) {
        if (gpus == 0) {
            argp_error(state, "--nproc-per-node gpu: no NVIDIA GPU is seen here");
        }
        return gpus;
    }
    return (int)read_number(state, "nproc-per-node", text, 1, TD_LAUNCH_MAX_WORKERS);
}

/* "3", or "0:3,1:1". */
static void read_streams(struct argp_state *state, const char *name, const char *text, int workers,
                         unsigned char *streams)
{
    if (strchr(text, ':') == NULL) {
        memset(streams, (int)read_number(state, name, text, 0, 3), (size_t)workers);
        return;
    }
    char *copy = strdup(text), *rest = NULL;
    for (char *item = copy != NULL ? strtok_r(copy, ",", &rest) : NULL; item != NULL;
         item = strtok_r(NULL, ",", &rest)) {
        char *colon = strchr(item, ':');
        if (colon == NULL) {
            argp_error(state, "--%s: '%s' is not LOCAL_RANK:WHAT", name, item);
        } else {
            *colon = '\0';
            long local = read_number(state, name, item, 0, workers - 1);
            streams[local] = (unsigned char)read_number(state, name, colon + 1, 0, 3);
        }
    }
    free(copy);
}

static void read_filter(struct argp_state *state, const char *text, td_launch_options *o)
{
    char *copy = strdup(text), *rest = NULL;
    memset(o->quiet, true, sizeof(o->quiet));
    for (char *item = copy != NULL ? strtok_r(copy, ",", &rest) : NULL; item != NULL;
         item = strtok_r(NULL, ",", &rest)) {
        o->quiet[read_number(state, "local-ranks-filter", item, 0, o->workers - 1)] = false;
    }
    free(copy);
}

/* ---- what belongs together ---- */

static void settle_output(struct argp_state *state, arguments *a)
{
    td_launch_options *o = &a->launch;
    if (o->log_dir != NULL && a->redirects == NULL && a->tee == NULL) {
        a->redirects = "3";
        a->tee = "0:3";
    }
    if (a->redirects != NULL) {
        read_streams(state, "redirects", a->redirects, o->workers, o->redirects);
    }
    if (a->tee != NULL) {
        read_streams(state, "tee", a->tee, o->workers, o->tee);
    }
    if (a->filter != NULL) {
        read_filter(state, a->filter, o);
    }
}

/* "host", "host:port", "[::1]:port" */
static void read_endpoint(struct argp_state *state, arguments *a)
{
    const char *text = a->endpoint, *colon = strrchr(text, ':');
    bool bracketed = text[0] == '[';
    if (bracketed && (colon == NULL || colon[-1] != ']')) {
        colon = NULL;
    }
    size_t length = colon != NULL ? (size_t)(colon - text) : strlen(text);
    a->launch.port = colon != NULL ? (int)read_number(state, "rdzv-endpoint", colon + 1, 1, 65535)
                                   : DEFAULT_PORT;
    text += bracketed;
    length -= bracketed ? 2 : 0;
    if (length == 0 || length >= sizeof(a->endpoint_host)) {
        argp_error(state, "--rdzv-endpoint: '%s' is not HOST:PORT", a->endpoint);
    }
    snprintf(a->endpoint_host, sizeof(a->endpoint_host), "%.*s", (int)length, text);
    a->launch.host = a->endpoint_host;
    a->launch.may_host = a->launch.node_rank < 0;
    a->launch.hosts = a->launch.node_rank == 0;
}

/* Where the nodes meet, and whether this one is the host. */
static void settle_place(struct argp_state *state, arguments *a)
{
    td_launch_options *o = &a->launch;
    if (a->standalone && (o->max_nodes > 1 || a->endpoint != NULL)) {
        argp_error(state, "--standalone is for one node, without --rdzv-endpoint");
    }
    if (o->node_rank >= o->max_nodes) {
        argp_error(state, "--node-rank %d: with --nnodes %d ranks go from 0 to %d", o->node_rank,
                   o->max_nodes, o->max_nodes - 1);
    }
    if (a->endpoint != NULL) {
        if (a->master_addr != NULL || a->master_port >= 0) {
            argp_error(state, "--rdzv-endpoint is in place of --master-addr and --master-port");
        }
        read_endpoint(state, a);
        return;
    }
    if (o->max_nodes == 1) {
        o->hosts = true;
        o->host = "127.0.0.1";
        o->port = a->master_port >= 0 ? a->master_port : 0;
        return;
    }
    if (a->master_addr == NULL || o->node_rank < 0) {
        argp_error(state, "several nodes need --master-addr and --node-rank, or --rdzv-endpoint");
    }
    o->hosts = o->node_rank == 0;
    o->host = a->master_addr;
    o->port = a->master_port > 0 ? a->master_port : DEFAULT_PORT;
}

/* The job's secret: given to this process, in a file, or made up for a single node. */
static void settle_token(struct argp_state *state, arguments *a)
{
    td_token *token = &a->launch.token;
    const char *required = getenv("TANDEM_REQUIRE_TOKEN");
    td_status status = a->token_file != NULL ? td_token_file(a->token_file, token)
                                             : td_token_of_environment(token);
    if (status == TD_OK && !token->set && a->launch.max_nodes == 1) {
        status = td_token_make(token);
    }
    if (status != TD_OK) {
        argp_failure(state, 1, 0, "%s", td_last_error());
    }
    bool wanted =
        a->require_token || (required != NULL && required[0] != '\0' && strcmp(required, "0") != 0);
    if (wanted && !token->set) {
        argp_error(state, "no token: give all nodes the same --token-file");
    }
}

/* How many processes a mesh of `all` wants on each node. */
static int workers_of_mesh(struct argp_state *state, const td_launch_options *o, int all)
{
    if (o->min_nodes != o->max_nodes) {
        argp_error(state, "--mesh %s: where nodes come and go, one size must be *", o->mesh);
    }
    if (all % o->max_nodes != 0 || all / o->max_nodes > TD_LAUNCH_MAX_WORKERS) {
        argp_error(state,
                   "--mesh %s: %d processes are not equally many, at most %d, on each of %d nodes",
                   o->mesh, all, TD_LAUNCH_MAX_WORKERS, o->max_nodes);
    }
    return all / o->max_nodes;
}

/* Other nodes may have other numbers of processes, so the sum is checked where all have come
 * (dist/launch/coordinator.c). */
static void settle_workers(struct argp_state *state, arguments *a)
{
    td_launch_options *o = &a->launch;
    int size[TD_MESH_DIMS] = { 0 };
    td_status status = o->mesh != NULL ? td_mesh_read(o->mesh, 0, size) : TD_OK;
    int all = size[0] * size[1] * size[2] * size[3]; /* 0: it does not say */
    o->workers = a->nproc != NULL             ? read_workers(state, a->nproc)
                 : status == TD_OK && all > 0 ? workers_of_mesh(state, o, all)
                                              : 1;
    if (status == TD_OK && o->mesh != NULL && o->max_nodes == 1) {
        status = td_mesh_read(o->mesh, o->workers, size);
    }
    if (status != TD_OK) {
        argp_error(state, "--mesh: %s", td_last_error());
    }
}

static void settle(struct argp_state *state, arguments *a)
{
    settle_workers(state, a);
    settle_place(state, a);
    settle_token(state, a);
    settle_output(state, a);
}

static error_t on_number_key(int key, const char *text, struct argp_state *state, arguments *a)
{
    td_launch_options *o = &a->launch;
    switch (key) {
    case KEY_NODE_RANK:
        o->node_rank = (int)read_number(state, "node-rank", text, 0, 4095);
        return 0;
    case KEY_MASTER_PORT:
        a->master_port = (int)read_number(state, "master-port", text, 0, 65535);
        return 0;
    case KEY_MAX_RESTARTS:
        o->max_restarts = (int)read_number(state, "max-restarts", text, 0, 1000000);
        return 0;
    case KEY_MONITOR_INTERVAL:
        o->monitor_interval = fmin(read_seconds(state, "monitor-interval", text), 1);
        return 0;
    case KEY_JOIN_TIMEOUT:
        o->join_timeout = read_seconds(state, "join-timeout", text);
        return 0;
    case KEY_GRACE:
        o->grace = read_seconds(state, "grace", text);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t on_key(int key, char *text, struct argp_state *state)
{
    arguments *a = state->input;
    switch (key) {
    case 'h':
        argp_state_help(state, stdout, ARGP_HELP_STD_HELP); /* ends the program */
        return 0;
    case KEY_NNODES:
        read_nodes(state, text, &a->launch);
        return 0;
    case KEY_NPROC:
        a->nproc = text;
        return 0;
    case KEY_MESH:
        a->launch.mesh = text;
        return 0;
    case KEY_MASTER_ADDR:
        a->master_addr = text;
        return 0;
    case KEY_STANDALONE:
        a->standalone = true;
        return 0;
    case KEY_ENDPOINT:
        a->endpoint = text;
        return 0;
    case KEY_RUN_ID:
        if (!td_run_id_is_valid(text)) {
            argp_error(state, "--rdzv-id: '%s' is no good name for a folder", text);
        }
        a->launch.run_id = text;
        return 0;
    case KEY_TOKEN_FILE:
        a->token_file = text;
        return 0;
    case KEY_REQUIRE_TOKEN:
        a->require_token = true;
        return 0;
    case KEY_LOG_DIR:
        a->launch.log_dir = text;
        return 0;
    case KEY_REDIRECTS:
        a->redirects = text;
        return 0;
    case KEY_TEE:
        a->tee = text;
        return 0;
    case KEY_FILTER:
        a->filter = text;
        return 0;
    case ARGP_KEY_ARG: /* the program; all that follows is its own */
        a->launch.argv = &state->argv[state->next - 1];
        state->next = state->argc;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "which program? tdrun [OPTION...] PROGRAM [ARGUMENT...]");
        return EINVAL;
    case ARGP_KEY_END:
        settle(state, a);
        return 0;
    default:
        return on_number_key(key, text, state, a);
    }
}

int main(int argc, char **argv)
{
    static arguments a = {
        .launch = { .min_nodes = 1,
                    .max_nodes = 1,
                    .node_rank = -1,
                    .run_id = "",
                    .monitor_interval = 0.1,
                    .join_timeout = 300,
                    .grace = 30 },
        .master_port = -1,
    };
    static const struct argp argp = {
        .options = table,
        .parser = on_key,
        .args_doc = "PROGRAM [ARGUMENT...]",
        .doc = "Starts PROGRAM as many processes, on one node or several, and looks after them. "
               "Options have torchrun's names, with - or _ (--nproc-per-node, --nproc_per_node).",
    };
    cli_begin();
    argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &a);
    return td_launch(&a.launch);
}
