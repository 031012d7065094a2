/* One node's workers: environment, logs, start, and what became of them. */
#include "tensor/clock.h"
#include "dist/launch/launcher.h"
#include "tensor/folders.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OWN_VARIABLES = 17, TAIL_BYTES = 900, TAIL_LINES = 8 };

static const double LINGER = 3; /* seconds to wait for the end of a process that a survivor named */

struct td_workers {
    const td_launch_options *options;
    const char *master_host;
    int master_port;
    char base[TD_LAUNCH_PATH_BYTES]; /* log folder */
    bool temporary;                  /* the log folder */
    bool captured;                   /* a worker's output went to a file */
    td_guard guard;
    td_output *output; /* NULL until a stream is shown with a prefix */
    td_child children[TD_LAUNCH_MAX_WORKERS];
    int count;
    td_round round;
    char not_started[1500]; /* why the last worker could not be started, or "" */
    bool failed;            /* the first failure of the round has been reported */
    bool stopping, killed;
    double kill_at;
};

/* ---- folders ---- */

static void worker_folder(const td_workers *w, int local, char path[PATH_MAX])
{
    snprintf(path, PATH_MAX, "%s/%s/attempt_%d/%d", w->base, w->round.run_id, w->round.number,
             w->round.first_rank + local);
}

td_status td_workers_open(const td_launch_options *options, td_workers **workers)
{
    td_workers *w = calloc(1, sizeof(td_workers));
    if (w == NULL) {
        return td_fail(TD_E_NOMEM, "no memory for the workers");
    }
    w->options = options;
    w->temporary = options->log_dir == NULL;
    td_status status = TD_OK;
    if (w->temporary) {
        status = td_launch_folder_make(w->base);
    } else if ((size_t)snprintf(w->base, sizeof(w->base), "%s", options->log_dir) >=
               sizeof(w->base)) {
        status = td_fail(TD_E_ARG, "--log-dir is too long");
    } else {
        status = td_make_folders(w->base);
    }
    status = status == TD_OK ? td_guard_start(&w->guard, w->temporary ? w->base : "") : status;
    td_orphans_adopt();
    if (status != TD_OK) {
        if (w->temporary) {
            (void)td_launch_folder_remove(w->base);
        }
        free(w);
        return status;
    }
    *workers = w;
    return TD_OK;
}

void td_workers_meet_at(td_workers *w, const char *host, int port)
{
    w->master_host = host;
    w->master_port = port;
}

void td_workers_close(td_workers *w, bool keep_logs)
{
    td_output_stop(w->output);
    td_guard_end(&w->guard);
    if (w->temporary && !(keep_logs && w->captured)) {
        (void)td_launch_folder_remove(w->base);
    }
    free(w);
}

/* ---- the environment ---- */

typedef struct environment {
    char own[OWN_VARIABLES][PATH_MAX + 64];
    int count;
    char **all;
} environment;

__attribute__((format(printf, 2, 3))) static void set(environment *e, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(e->own[e->count++], sizeof(e->own[0]), format, args);
    va_end(args);
}

static bool is_own(const environment *e, const char *variable)
{
    size_t length = strcspn(variable, "=") + 1;
    for (int i = 0; i < e->count; i++) {
        if (strncmp(e->own[i], variable, length) == 0) {
            return true;
        }
    }
    return false;
}

static int threads_per_worker(int workers)
{
    cpu_set_t set_of_cpus;
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    if (sched_getaffinity(0, sizeof(set_of_cpus), &set_of_cpus) == 0) {
        cpus = CPU_COUNT(&set_of_cpus);
    }
    return cpus > workers ? (int)(cpus / workers) : 1;
}

static void set_variables(const td_workers *w, int local, environment *e)
{
    char folder[PATH_MAX];
    worker_folder(w, local, folder);
    const td_round *r = &w->round;
    set(e, "TANDEM_ERROR_FILE=%s/error", folder); /* the first: exec_worker wants it */
    set(e, "RANK=%d", r->first_rank + local);
    set(e, "LOCAL_RANK=%d", local);
    set(e, "GROUP_RANK=%d", r->node);
    set(e, "WORLD_SIZE=%d", r->world_size);
    set(e, "LOCAL_WORLD_SIZE=%d", w->options->workers);
    set(e, "GROUP_WORLD_SIZE=%d", r->nodes);
    set(e, "MASTER_ADDR=%s", w->master_host);
    set(e, "MASTER_PORT=%d", w->master_port);
    set(e, "TANDEM_AGENT_STORE=1");
    if (w->options->token.set) {
        char token[TD_TOKEN_TEXT];
        td_token_text(&w->options->token, token);
        set(e, "TANDEM_TOKEN=%s", token);
    }
    if (w->options->mesh != NULL) {
        set(e, "TANDEM_MESH=%s", w->options->mesh);
    }
    set(e, "TANDEM_RUN_ID=%s", r->run_id);
    set(e, "TANDEM_ATTEMPT=%d", r->number);
    set(e, "TANDEM_RESTART_COUNT=%d", r->restarts);
    set(e, "TANDEM_MAX_RESTARTS=%d", w->options->max_restarts);
    if (getenv("OMP_NUM_THREADS") == NULL) {
        set(e, "OMP_NUM_THREADS=%d", threads_per_worker(w->options->workers));
    }
}

/* The worker's environment: our variables, and this process's others. */
static td_status make_environment(const td_workers *w, int local, environment **result)
{
    size_t inherited = 0, count = 0;
    while (environ[inherited] != NULL) {
        inherited++;
    }
    environment *e = calloc(1, sizeof(environment));
    char **all = calloc(inherited + OWN_VARIABLES + 1, sizeof(char *));
    if (e == NULL || all == NULL) {
        free(e);
        free(all);
        return td_fail(TD_E_NOMEM, "no memory for a worker's environment");
    }
    set_variables(w, local, e);
    for (size_t i = 0; i < inherited; i++) {
        if (!is_own(e, environ[i])) {
            all[count++] = environ[i];
        }
    }
    for (int i = 0; i < e->count; i++) {
        all[count++] = e->own[i];
    }
    e->all = all;
    *result = e;
    return TD_OK;
}

static void free_environment(environment *e)
{
    free(e->all);
    free(e);
}

/* ---- output ---- */

/* Opens the target of a stream. *fd -1: this process's own stream. */
static td_status open_stream(td_workers *w, int local, int which, int *fd)
{
    const td_launch_options *o = w->options;
    bool tee = (o->tee[local] & which) != 0, quiet = o->quiet[local];
    bool captured = tee || quiet || (o->redirects[local] & which) != 0;
    char path[PATH_MAX + 16], folder[PATH_MAX];
    *fd = -1;
    if (!captured) {
        return TD_OK;
    }
    w->captured = true;
    worker_folder(w, local, folder);
    snprintf(path, sizeof(path), "%s/%s", folder, which == TD_LAUNCH_STDOUT ? "stdout" : "stderr");
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
    if (file < 0) {
        return td_fail(TD_E_IO, "cannot write %s: %s", path, strerror(errno));
    }
    if (!tee || quiet) {
        *fd = file;
        return TD_OK;
    }
    td_status status = w->output == NULL ? td_output_start(&w->output) : TD_OK;
    if (status == TD_OK) {
        *fd = td_output_add(w->output, w->round.first_rank + local, file,
                            which == TD_LAUNCH_STDOUT ? STDOUT_FILENO : STDERR_FILENO);
        status = *fd < 0 ? (td_status)*fd : TD_OK;
    }
    if (status != TD_OK) {
        close(file);
    }
    return status;
}

/* ---- starting ---- */

/* In the child. Only async-signal-safe calls: the parent has threads. */
_Noreturn static void exec_worker(const td_workers *w, const environment *e, int out, int err)
{
    if (out >= 0) {
        dup2(out, STDOUT_FILENO);
    }
    if (err >= 0) {
        dup2(err, STDERR_FILENO);
    }
    const char *error_file = strchr(e->own[0], '=') + 1;
    environ = e->all;
    execvp(w->options->argv[0], w->options->argv);
    int file = open(error_file, O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK, 0644);
    const char *parts[] = { "cannot start ", w->options->argv[0], ": ",
                            errno == ENOENT   ? "no such program"
                            : errno == EACCES ? "not allowed to run it"
                                              : "not a program" };
    for (int i = 0; i < 4 && file >= 0; i++) {
        (void)!write(file, parts[i], strlen(parts[i]));
    }
    _exit(127);
}

static td_status start_worker(td_workers *w, int local, const td_signal_watch *watch)
{
    char folder[PATH_MAX];
    environment *e = NULL;
    int out = -1, err = -1;
    worker_folder(w, local, folder);
    TD_TRY(td_make_folders(folder));
    TD_TRY(make_environment(w, local, &e));
    td_status status = open_stream(w, local, TD_LAUNCH_STDOUT, &out);
    status = status == TD_OK ? open_stream(w, local, TD_LAUNCH_STDERR, &err) : status;
    if (status == TD_OK) {
        pid_t pid = td_child_fork(watch);
        if (pid == 0) {
            exec_worker(w, e, out, err);
        }
        if (pid < 0) {
            status = td_fail(TD_E_NOMEM, "cannot start local rank %d: %s", local, strerror(errno));
        } else {
            td_guard_add(&w->guard, pid);
            w->children[local] = (td_child){ .pid = pid, .running = true };
        }
    }
    if (out >= 0) {
        close(out);
    }
    if (err >= 0) {
        close(err);
    }
    free_environment(e);
    return status;
}

void td_workers_start(td_workers *w, const td_round *round, const td_signal_watch *watch)
{
    w->round = *round;
    w->count = 0;
    w->failed = w->stopping = w->killed = false;
    w->not_started[0] = '\0';
    for (int local = 0; local < w->options->workers && w->not_started[0] == '\0'; local++) {
        if (start_worker(w, local, watch) != TD_OK) {
            snprintf(w->not_started, sizeof(w->not_started), "%s", td_last_error());
            w->children[local] = (td_child){ .pid = getpid(),
                                             .status = 1 << 8 /* exit code 1 */,
                                             .ended = td_clock() };
        }
        w->count = local + 1;
    }
}

/* ---- looking after them ---- */

/* The last lines of a file. */
static void read_tail(const char *path, char *text, size_t size)
{
    struct stat info;
    text[0] = '\0';
    int file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* it may be a FIFO */
    if (file < 0) {
        return;
    }
    if (fstat(file, &info) == 0) {
        off_t want = (off_t)size - 1 < TAIL_BYTES ? (off_t)size - 1 : TAIL_BYTES;
        off_t from = info.st_size > want ? info.st_size - want : 0;
        ssize_t got = pread(file, text, (size_t)want, from);
        text[got > 0 ? got : 0] = '\0';
    }
    close(file);
    int lines = 0;
    for (char *at = text + strlen(text); at > text; at--) {
        if (at[-1] == '\n' && at[0] != '\0' && ++lines == TAIL_LINES) {
            memmove(text, at, strlen(at) + 1);
            return;
        }
    }
}

static void read_whole(const char *path, char *text, size_t size)
{
    int file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* it may be a FIFO */
    ssize_t got = file >= 0 ? read(file, text, size - 1) : 0;
    text[got > 0 ? got : 0] = '\0';
    if (file >= 0) {
        close(file);
    }
}

/* The worker's error message, or the end of its output. */
static void read_message(const td_workers *w, int local, td_worker_failure *failure)
{
    char folder[PATH_MAX], path[PATH_MAX + 16];
    worker_folder(w, local, folder);
    snprintf(path, sizeof(path), "%s/error", folder);
    read_whole(path, failure->message, sizeof(failure->message));
    snprintf(path, sizeof(path), "%s/stderr", folder);
    failure->log[0] = '\0';
    if (access(path, F_OK) == 0) {
        snprintf(failure->log, sizeof(failure->log), "%.*s", (int)sizeof(failure->log) - 1, folder);
        if (failure->message[0] == '\0') {
            read_tail(path, failure->message, sizeof(failure->message));
        }
    }
}

static void describe_failure(const td_workers *w, int local, td_worker_failure *failure)
{
    const td_child *c = &w->children[local];
    *failure = (td_worker_failure){
        .when = c->ended,
        .rank = w->round.first_rank + local,
        .local_rank = local,
        .node = w->round.node,
        .pid = c->pid,
        .status = c->status,
    };
    gethostname(failure->host, sizeof(failure->host) - 1);
    if (w->not_started[0] != '\0' && local == w->count - 1) {
        snprintf(failure->message, sizeof(failure->message), "%s", w->not_started);
    } else {
        read_message(w, local, failure);
    }
}

static bool is_own_child(pid_t pid, const void *workers)
{
    const td_workers *w = workers;
    bool own = pid == w->guard.pid;
    for (int i = 0; i < w->count && !own; i++) {
        own = w->children[i].running && w->children[i].pid == pid;
    }
    return own;
}

/* Reaps ended workers and tells the guard. */
static void reap(td_workers *w)
{
    bool ran[TD_LAUNCH_MAX_WORKERS] = { false };
    for (int i = 0; i < w->count; i++) {
        ran[i] = w->children[i].running;
    }
    td_children_reap(w->children, w->count);
    for (int i = 0; i < w->count; i++) {
        if (ran[i] && !w->children[i].running) {
            td_guard_remove(&w->guard, w->children[i].pid);
        }
    }
}

/* Finds the failure that caused the others. If the message of a failed worker names another worker,
 * that one is the cause. false: the named worker has not ended yet, because a large process that is
 * killed ends slowly and survivors may be faster. */
static bool find_cause(const td_workers *w, int first, td_worker_failure *failure)
{
    describe_failure(w, first, failure);
    for (int hops = 0; hops < w->count; hops++) {
        int named = td_children_named(w->children, w->count, first, failure->message);
        const td_child *c = &w->children[named < 0 ? first : named];
        if (c->running) {
            return td_clock() > w->children[first].ended + LINGER;
        }
        if (named < 0 || !td_child_failed(c->status)) {
            break;
        }
        first = named;
        describe_failure(w, first, failure);
    }
    return true;
}

bool td_workers_look(td_workers *w, td_worker_failure *failure)
{
    bool was_running = td_workers_running(w) > 0;
    reap(w);
    if (w->stopping && !w->killed && td_clock() > w->kill_at) {
        td_children_signal(w->children, w->count, SIGKILL);
        w->killed = true;
    }
    bool over = was_running && td_workers_running(w) == 0;
    td_orphans_look(is_own_child, w, over);
    if (over && w->output != NULL) {
        (void)td_output_flush(w->output, 1);
    }
    /* A worker that ends after it was asked to has not failed. */
    int first = w->failed || w->stopping ? -1 : td_children_first_failure(w->children, w->count);
    if (first < 0 || !find_cause(w, first, failure)) {
        return false;
    }
    w->failed = true;
    return true;
}

int td_workers_running(const td_workers *w)
{
    return td_children_running(w->children, w->count);
}

void td_workers_stop(td_workers *w, int signal, double grace)
{
    if (!w->stopping) {
        w->stopping = true;
        w->kill_at = td_clock() + grace;
        td_children_signal(w->children, w->count, signal);
    }
}

void td_workers_hurry(td_workers *w)
{
    if (w->stopping) {
        w->kill_at = td_clock();
    }
}
