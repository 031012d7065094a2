/* tdrun: starts a program as many processes, on one node or several, and looks after them.
 *
 *   tdrun --nproc-per-node 4 ./train --epochs 5
 *   tdrun --nnodes 2 --node-rank 0 --master-addr node0 --nproc-per-node 8 ./train     (on node0)
 *   tdrun --nnodes 1:4 --rdzv-endpoint node0:29500 --max-restarts 3 ./train           (on each)
 *   tdrun --elastic 1:8 ./train                         a worker that is killed is replaced
 *   tdrun --world 64 --on 2 ./train                     64 ranks' weights, computed by 2 processes
 *   tdrun --world 256 --sim --link 25GB/s,5us ./train   what 256 ranks would take, simulated
 *
 * Each process finds its place in the environment: RANK, LOCAL_RANK, WORLD_SIZE, ...
 * (dist/comm/launch/workers.c); td_dist_init() reads it. */
#include "apps/tools/common/cli.h"
#include "apps/tools/tdrun/worlds.h"
#include "dist/comm/launch/launcher.h"
#include "dist/comm/mesh.h"
#include "tensor/extend.h"

#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_PORT = 29500 };

typedef struct arguments {
    td_launch_options launch;
    const char *nodes, *nproc; /* nproc NULL: not given */
    const char *endpoint, *redirects, *tee, *filter, *token_file;
    int64_t node_rank, master_port; /* -1: not given */
    int64_t max_restarts;
    worlds worlds;
    const char *elastic;
    bool standalone, require_token;
    char endpoint_host[256];
    const char *backend, *conf, *signals; /* torchrun's */
} arguments;

/* ---- values ---- */

static int read_number(const char *name, const char *text, int low, int high)
{
    char why[200];
    int64_t value = 0;
    CLI_CHECK(cli_read_int(text, low, high, &value, why, sizeof why), "--%s: %s", name, why);
    return (int)value;
}

static void read_nodes(const char *text, td_launch_options *o)
{
    const char *colon = strchr(text, ':');
    char low[16];
    snprintf(low, sizeof(low), "%.*s", (int)strcspn(text, ":"), text);
    o->min_nodes = read_number("nnodes", low, 1, TD_LAUNCH_MAX_NODES);
    o->max_nodes =
        colon != NULL ? read_number("nnodes", colon + 1, 1, TD_LAUNCH_MAX_NODES) : o->min_nodes;
    CLI_CHECK(o->max_nodes >= o->min_nodes, "--nnodes: '%s': the range goes down", text);
}

/* Whether an entry of CUDA_VISIBLE_DEVICES names a GPU: by its index or its UUID. */
static bool names_gpu(const char *entry, int count)
{
    char *end;
    long index = strtol(entry, &end, 10);
    return end != entry ? index >= 0 && index < count
                        : strncmp(entry, "GPU-", 4) == 0 || strncmp(entry, "MIG-", 4) == 0;
}

/* NVIDIA GPUs that the driver shows, or those that CUDA_VISIBLE_DEVICES leaves. As in CUDA, entries
 * count up to the first that names no GPU: "-1" leaves none. */
static int count_gpus(void)
{
    glob_t gpus;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int count = 0, listed = 0;
    if (glob("/proc/driver/nvidia/gpus/*", 0, NULL, &gpus) == 0) {
        count = (int)gpus.gl_pathc;
        globfree(&gpus);
    }
    for (const char *at = visible; at != NULL && listed < count && names_gpu(at, count); listed++) {
        at = strchr(at, ',');
        at = at != NULL ? at + 1 : NULL;
    }
    return visible != NULL ? listed : count;
}

static int read_workers(const char *text)
{
    int gpus = count_gpus();
    if (strcmp(text, "cpu") == 0) {
        return td_count_cpus();
    }
    if (strcmp(text, "auto") == 0) {
        return gpus > 0 ? gpus : td_count_cpus();
    }
    if (strcmp(text, "gpu") == 0) {
        CLI_CHECK(gpus > 0, "--nproc-per-node gpu: no NVIDIA GPU is seen here");
        return gpus;
    }
    return read_number("nproc-per-node", text, 1, TD_LAUNCH_MAX_WORKERS);
}

/* "0:3,1:1": values of some local ranks. If not valued, "0,1": these local ranks get 0. */
static void read_locals(const char *name, const char *text, int workers, bool valued,
                        unsigned char *values)
{
    char *copy = strdup(text), *rest = NULL;
    for (char *item = copy != NULL ? strtok_r(copy, ",", &rest) : NULL; item != NULL;
         item = strtok_r(NULL, ",", &rest)) {
        char *value = valued ? strchr(item, ':') : NULL;
        CLI_CHECK(!valued || value != NULL, "--%s: '%s' is not LOCAL_RANK:WHAT", name, item);
        if (valued) {
            *value++ = '\0';
        }
        int local = read_number(name, item, 0, workers - 1);
        values[local] = valued ? (unsigned char)read_number(name, value, 0, 3) : 0;
    }
    free(copy);
}

/* "3", or "0:3,1:1". */
static void read_streams(const char *name, const char *text, int workers, unsigned char *streams)
{
    if (text != NULL && strchr(text, ':') == NULL) {
        memset(streams, read_number(name, text, 0, 3), (size_t)workers);
    } else if (text != NULL) {
        read_locals(name, text, workers, true, streams);
    }
}

/* ---- what belongs together ---- */

static void settle_output(arguments *a)
{
    td_launch_options *o = &a->launch;
    if (o->log_dir != NULL && a->redirects == NULL && a->tee == NULL) {
        a->redirects = "3";
        a->tee = "0:3";
    }
    read_streams("redirects", a->redirects, o->workers, o->redirects);
    read_streams("tee", a->tee, o->workers, o->tee);
    if (a->filter != NULL) {
        memset(o->quiet, 1, sizeof(o->quiet));
        read_locals("local-ranks-filter", a->filter, o->workers, false, o->quiet);
    }
}

/* "host", "host:port", "[::1]:port" */
static void read_endpoint(arguments *a)
{
    const char *text = a->endpoint, *colon = strrchr(text, ':');
    bool bracketed = text[0] == '[';
    if (bracketed && (colon == NULL || colon[-1] != ']')) {
        colon = NULL;
    }
    size_t length = colon != NULL ? (size_t)(colon - text) : strlen(text);
    a->launch.port =
        colon != NULL ? read_number("rdzv-endpoint", colon + 1, 0, 65535) : DEFAULT_PORT;
    CLI_CHECK(a->launch.port > 0 || a->launch.max_nodes <= 1,
              "--rdzv-endpoint: '%s': several nodes need a port that all know, not 0", text);
    text += bracketed;
    length -= bracketed ? 2 : 0;
    CLI_CHECK(length > 0 && length < sizeof(a->endpoint_host),
              "--rdzv-endpoint: '%s' is not HOST:PORT", a->endpoint);
    snprintf(a->endpoint_host, sizeof(a->endpoint_host), "%.*s", (int)length, text);
    a->launch.host = a->endpoint_host;
    a->launch.hosts = a->launch.node_rank == 0 || a->launch.port == 0;
    a->launch.may_host = a->launch.node_rank < 0 && !a->launch.hosts;
}

/* Where the nodes meet, and whether this one is the host. */
static void settle_place(arguments *a)
{
    td_launch_options *o = &a->launch;
    CLI_CHECK(!a->standalone || o->max_nodes <= 1, "--standalone is for one node");
    a->endpoint = a->standalone ? NULL : a->endpoint; /* as torchrun does */
    CLI_CHECK(o->node_rank < o->max_nodes, "--node-rank %d: with --nnodes %d ranks go from 0 to %d",
              o->node_rank, o->max_nodes, o->max_nodes - 1);
    if (a->endpoint != NULL) {
        CLI_CHECK(a->launch.host == NULL && a->master_port < 0,
                  "--rdzv-endpoint is in place of --master-addr and --master-port");
        read_endpoint(a);
        return;
    }
    if (o->max_nodes == 1) {
        o->hosts = true;
        o->host = "127.0.0.1";
        o->port = a->master_port >= 0 ? (int)a->master_port : 0;
        return;
    }
    CLI_CHECK(o->host != NULL && o->node_rank >= 0,
              "several nodes need --master-addr and --node-rank, or --rdzv-endpoint");
    o->hosts = o->node_rank == 0;
    o->port = a->master_port > 0 ? (int)a->master_port : DEFAULT_PORT;
}

/* The job's secret: given to this process, in a file, or made up for a single node. */
static void settle_token(arguments *a)
{
    td_token *token = &a->launch.token;
    const char *required = getenv("TANDEM_REQUIRE_TOKEN");
    td_status status = a->token_file != NULL ? td_token_file(a->token_file, token)
                                             : td_token_of_environment(token);
    if (status == TD_OK && !token->set && a->launch.max_nodes == 1) {
        status = td_token_make(token);
    }
    if (status != TD_OK) {
        fprintf(stderr, "tdrun: %s\n", td_last_error());
        exit(EXIT_FAILURE);
    }
    bool wanted =
        a->require_token || (required != NULL && required[0] != '\0' && strcmp(required, "0") != 0);
    CLI_CHECK(!wanted || token->set, "no token: give all nodes the same --token-file");
}

/* "1:8": at most 8 workers, and the run goes on with 1. */
static void settle_elastic(arguments *a)
{
    const td_launch_options *o = &a->launch;
    char low[16];
    unsetenv("TANDEM_ELASTIC");
    if (a->elastic == NULL) {
        return;
    }
    const char *colon = strchr(a->elastic, ':'), *high = colon != NULL ? colon + 1 : a->elastic;
    snprintf(low, sizeof low, "%.*s", (int)strcspn(a->elastic, ":"), a->elastic);
    int least = read_number("elastic", low, 1, TD_LAUNCH_MAX_WORKERS);
    CLI_CHECK(read_number("elastic", high, 1, TD_LAUNCH_MAX_WORKERS) >= least,
              "--elastic: '%s': the range goes down", a->elastic);
    CLI_CHECK(o->max_nodes <= 1 && o->mesh == NULL && a->worlds.world <= 0 && a->nproc == NULL,
              "--elastic says how many processes there are on one node: it goes with no "
              "--nnodes, --nproc-per-node, --mesh and --world");
    setenv("TANDEM_ELASTIC", low, 1); /* for the workers, and td_workers_struck */
    a->nproc = high;
}

/* How many processes a mesh of `all` wants on each node. */
static int workers_of_mesh(const td_launch_options *o, int all)
{
    CLI_CHECK(o->min_nodes == o->max_nodes,
              "--mesh %s: where nodes come and go, one size must be *", o->mesh);
    CLI_CHECK(all % o->max_nodes == 0 && all / o->max_nodes <= TD_LAUNCH_MAX_WORKERS,
              "--mesh %s: %d processes are not equally many, at most %d, on each of %d nodes",
              o->mesh, all, TD_LAUNCH_MAX_WORKERS, o->max_nodes);
    return all / o->max_nodes;
}

/* Other nodes may have other numbers of processes, so the sum is checked where all have come
 * (dist/comm/launch/coordinator.c). */
static void settle_workers(arguments *a)
{
    td_launch_options *o = &a->launch;
    int size[TD_MESH_DIMS] = { 0 };
    td_status status = o->mesh != NULL ? td_mesh_read(o->mesh, 0, size) : TD_OK;
    int all = size[0] * size[1] * size[2] * size[3]; /* 0: it does not say */
    o->workers = a->nproc != NULL             ? read_workers(a->nproc)
                 : status == TD_OK && all > 0 ? workers_of_mesh(o, all)
                                              : 1;
    status = status == TD_OK && o->mesh != NULL && o->max_nodes == 1
                 ? td_mesh_read(o->mesh, o->workers, size)
                 : status;
    CLI_CHECK(status == TD_OK, "--mesh: %s", td_last_error());
}

/* ---- what torchrun takes ---- */

/* Options of torchrun that mean nothing here, and what to do instead; NULL: it is always so here.
 */
static const struct foreign {
    const char *name;
    char letter;
    cli_kind kind;
    const char *instead;
} foreign[] = {
    { "module", 'm', CLI_FLAG, "give the program itself: python3 -m MODULE" },
    { "run-path", 0, CLI_FLAG, "give the program itself: python3 FILE" },
    { "start-method", 0, CLI_TEXT, "leave it out: each worker is a program of its own" },
    { "role", 0, CLI_TEXT, "leave it out; --rdzv-id names the run" },
    { "local-addr", 0, CLI_TEXT,
      "leave it out: a node has the address from which it calls node 0" },
    { "logs-specs", 0, CLI_TEXT, "use --log-dir, --redirects and --tee" },
    { "event-log-handler", 0, CLI_TEXT, "leave it out: what happens is said on stderr" },
    { "numa-binding", 0, CLI_TEXT, "leave it out; programs bind their threads with --pin" },
    { "duplicate-stdout-filters", 0, CLI_TEXT, "use --tee or --local-ranks-filter" },
    { "duplicate-stderr-filters", 0, CLI_TEXT, "use --tee or --local-ranks-filter" },
    { "virtual-local-rank", 0, CLI_FLAG, "leave it out: programs take the GPU of LOCAL_RANK" },
    { "shutdown-timeout", 0, CLI_TEXT, "use --grace" },
    { "no-python", 0, CLI_FLAG, NULL },
    { "use-env", 0, CLI_FLAG, NULL },
};
enum { FOREIGN = sizeof foreign / sizeof foreign[0] };

/* Puts them into the table of options. */
static void add_foreign(cli_option *options)
{
    static const char *text;
    static bool flag;
    for (int i = 0; i < FOREIGN; i++) {
        bool is_flag = foreign[i].kind == CLI_FLAG;
        options[i] = (cli_option){ .name = foreign[i].name,
                                   .letter = foreign[i].letter,
                                   .kind = foreign[i].kind,
                                   .argument = is_flag ? NULL : "X",
                                   .value = is_flag ? (void *)&flag : (void *)&text,
                                   .help = "",
                                   .hidden = true };
    }
}

static void refuse_foreign(const cli_option *options)
{
    for (int i = 0; i < FOREIGN; i++) {
        CLI_CHECK(!options[i].given || foreign[i].instead == NULL,
                  "--%s is torchrun's and means nothing here: %s", foreign[i].name,
                  foreign[i].instead);
    }
}

/* "join_timeout=60,timeout=60" */
static void read_conf(arguments *a)
{
    char *copy = a->conf != NULL ? strdup(a->conf) : NULL, *rest = NULL, why[200];
    for (char *item = copy != NULL ? strtok_r(copy, ",", &rest) : NULL; item != NULL;
         item = strtok_r(NULL, ",", &rest)) {
        char *value = strchr(item, '=');
        CLI_CHECK(value != NULL, "--rdzv-conf: '%s' is not KEY=VALUE", item);
        *value++ = '\0';
        CLI_CHECK(strcmp(item, "join_timeout") == 0 || strcmp(item, "timeout") == 0,
                  "--rdzv-conf: '%s' means nothing here: leave it out (join_timeout=SECONDS "
                  "is --join-timeout)",
                  item);
        CLI_CHECK(cli_read_real(value, 1e-3, 1e6, &a->launch.join_timeout, why, sizeof why),
                  "--rdzv-conf: %s: %s", item, why);
    }
    free(copy);
}

/* "SIGTERM,SIGUSR1": all that may stand here are passed on anyway. */
static void check_signals(const char *text)
{
    static const char passed[] = "SIGTERM|SIGINT|SIGHUP|SIGQUIT|SIGUSR1|SIGUSR2|SIGXCPU";
    char *copy = text != NULL ? strdup(text) : NULL, *rest = NULL, why[200];
    for (char *item = copy != NULL ? strtok_r(copy, ",", &rest) : NULL; item != NULL;
         item = strtok_r(NULL, ",", &rest)) {
        CLI_CHECK(cli_is_choice(passed, item, why, sizeof why),
                  "--signals-to-handle: %s; those are passed on, without this option", why);
    }
    free(copy);
}

static void settle(arguments *a)
{
    td_launch_options *o = &a->launch;
    worlds_settle(&a->worlds, a->nproc != NULL || a->elastic != NULL || o->mesh != NULL, &o->argv);
    CLI_CHECK(o->run_id[0] == '\0' || td_run_id_is_valid(o->run_id),
              "--rdzv-id: '%s' is no good name for a folder", o->run_id);
    o->node_rank = (int)a->node_rank;
    o->max_restarts = (int)a->max_restarts;
    o->monitor_interval = fmin(o->monitor_interval, 1);
    const char *backend = a->backend != NULL ? a->backend : "c10d";
    CLI_CHECK(strcmp(backend, "c10d") == 0 || strcmp(backend, "static") == 0,
              "--rdzv-backend: there is no '%s' here, only c10d: leave it out", backend);
    read_conf(a);
    check_signals(a->signals);
    read_nodes(a->nodes, o);
    settle_elastic(a);
    settle_workers(a);
    settle_place(a);
    settle_token(a);
    settle_output(a);
}

/* ---- options ---- */

static void tdrun_read_command_line(cli_option *options, int argc, char **argv, arguments *a)
{
    enum { FIRST = 9 }; /* that say who takes part */
    int count = 0;
    for (; options[count].name != NULL; count++) {
        options[count].first = count < FIRST;
    }
    cli_rest program = {
        .name = "PROGRAM [ARGUMENT...]", .wanted = "one program", .least = 1, .is_command = true
    };
    count += worlds_options(&a->worlds, &a->nproc, options + count);
    add_foreign(options + count);
    cli_parse_rest(
        argc, argv,
        "Starts PROGRAM as many processes, on one node or several, and looks after them. Options "
        "have torchrun's names, with - or _ (--nproc-per-node, --nproc_per_node). SIGTERM, SIGINT, "
        "SIGHUP and SIGQUIT are passed on to the processes, which have --grace seconds to end; the "
        "same one again (not SIGHUP) kills them. SIGUSR1, SIGUSR2 and SIGXCPU, a batch system's "
        "warnings, are passed on without a limit. The exit code is then 128 + the signal's number. "
        "Ctrl-Z stops the processes, too, and fg continues them.",
        options, count + FOREIGN, &program);
    refuse_foreign(options + count);
    a->launch.argv = program.values;
}

int main(int argc, char **argv)
{
    static arguments a = {
        .launch = { .run_id = "", .monitor_interval = 0.1, .join_timeout = 300, .grace = 30 },
        .nodes = "1",
        .node_rank = -1,
        .master_port = -1
    };
    td_launch_options *o = &a.launch;
    cli_option options[CLI_MAX_OPTIONS] = {
        cli_text("nnodes", "N|MIN:MAX", &a.nodes, "Nodes; a range: nodes may come and go"),
        cli_text("nproc-per-node", "N|auto|cpu|gpu", &a.nproc,
                 "Processes on this node (1); auto: one per GPU, or per CPU without one"),
        cli_text("mesh", "DIM=N,...", &o->mesh,
                 "The processes' dimensions pp, rep, dp, tp, as in rep=2,dp=4; *: what is left. "
                 "Sets --nproc-per-node, or must fit it; programs read it as TANDEM_MESH"),
        cli_text("elastic", "MIN:MAX", &a.elastic,
                 "MAX processes, of which those that a signal ends are replaced; MIN can go on"),
        cli_int("node-rank", &a.node_rank, -1, TD_LAUNCH_MAX_NODES - 1,
                "This node's rank; node 0 hosts the store; -1: in the order of arrival"),
        cli_text("master-addr", "HOST", &o->host, "Node 0's address"),
        cli_int("master-port", &a.master_port, -1, 65535,
                "The store's port there; -1: 29500, or a free one on a single node"),
        cli_flag("standalone", &a.standalone, "One node, a free port"),
        cli_text("rdzv-endpoint", "HOST[:PORT]", &a.endpoint,
                 "Where the nodes meet, in place of --master-addr and --master-port; the "
                 "launcher on that host hosts the store"),
        cli_text("rdzv-id", "NAME", &o->run_id,
                 "The run's name, also of its log folder; otherwise made up"),
        cli_real("join-timeout", &o->join_timeout, 1e-3, 1e6,
                 "Seconds that nodes wait for each other"),
        cli_text("token-file", "FILE", &a.token_file,
                 "The job's secret for all nodes; made if there is none (a single node needs "
                 "no file)"),
        cli_flag("require-token", &a.require_token, "Fail if the nodes share no secret"),
        cli_int("max-restarts", &a.max_restarts, 0, 1000000,
                "Times that all workers are started again when something fails"),
        cli_real("monitor-interval", &o->monitor_interval, 1e-3, 1e6, "Seconds between looks"),
        cli_real("grace", &o->grace, 1e-3, 1e6,
                 "Seconds that workers have to end before they are killed"),
        cli_text("log-dir", "DIR", &o->log_dir,
                 "Files DIR/RUN/attempt_N/RANK/{stdout,stderr,error}; alone it means "
                 "--redirects 3 --tee 0:3"),
        cli_text("redirects", "WHAT", &a.redirects,
                 "Streams that go to files only: 0 none, 1 stdout, 2 stderr, 3 both; or "
                 "LOCAL_RANK:WHAT,...",
                 .letter = 'r'),
        cli_text("tee", "WHAT", &a.tee, "Streams that go to files and, with [rank], to the console",
                 .letter = 't'),
        cli_text("local-ranks-filter", "R,R", &a.filter,
                 "Only these local ranks show on the console"),
        cli_text("rdzv-backend", "c10d", &a.backend, "The only one there is", .hidden = true),
        cli_text("rdzv-conf", "KEY=VALUE,...", &a.conf, "join_timeout", .hidden = true),
        cli_text("signals-to-handle", "NAME,...", &a.signals, "Always", .hidden = true),
    };
    tdrun_read_command_line(options, argc, argv, &a);
    settle(&a);
    return td_launch(o);
}
