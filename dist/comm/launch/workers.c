/* One node's workers: environment, logs, start, and what became of them. */
#include "tensor/clock.h"
#include "dist/comm/process.h"
#include "dist/comm/launch/launcher.h"
#include "tensor/extend.h"
#include "tensor/system/folders.h"
#include "tensor/system/text.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TAIL_BYTES = 900, TAIL_LINES = 8 };

struct td_workers {
    const td_launch_options *options;
    const char *master_host;
    int master_port;
    char base[TD_LAUNCH_PATH_BYTES]; /* log folder */
    bool temporary;                  /* the log folder */
    bool captured;                   /* a worker's output went to a file */
    td_guard guard;
    td_output *output; /* NULL until a stream is shown with a prefix */
    td_children *children;
    td_round round;
    bool failed;       /* the first failure of the round has been reported */
    int world, deaths; /* of an elastic run: its latest world, and deaths since */
};

/* ---- folders ---- */

/* A worker's folder ("") or a file in it. */
static void worker_path(const td_workers *w, int local, const char *name, char path[PATH_MAX])
{
    snprintf(path, PATH_MAX, "%s/%s/attempt_%d/%d%s%s", w->base, w->round.run_id, w->round.number,
             w->round.first_rank + local, name[0] != '\0' ? "/" : "", name);
}

static td_status workers_prepare(td_workers *w)
{
    const char *log_dir = w->options->log_dir;
    w->children = td_children_new(w->options->workers);
    TD_CHECK(w->children != NULL, TD_E_NOMEM, "no memory for the workers");
    w->temporary = log_dir == NULL;
    if (w->temporary) {
        TD_TRY(td_launch_folder_make(w->base));
    } else if ((size_t)snprintf(w->base, sizeof(w->base), "%s", log_dir) >= sizeof(w->base)) {
        return td_fail(TD_E_ARG, "--log-dir is too long");
    } else {
        TD_TRY(td_make_folders(w->base));
    }
    td_status status = td_guard_start(&w->guard, w->children, w->temporary ? w->base : "");
    if (status != TD_OK && w->temporary) {
        (void)td_launch_folder_remove(w->base);
    }
    return status;
}

static void free_workers(td_workers *w)
{
    td_children_free(w->children);
    free(w);
}

td_status td_workers_open(const td_launch_options *options, td_workers **workers)
{
    td_workers *w = calloc(1, sizeof(td_workers));
    TD_CHECK(w != NULL, TD_E_NOMEM, "no memory for the workers");
    w->options = options;
    td_status status = workers_prepare(w);
    if (status != TD_OK) {
        free_workers(w);
        return status;
    }
    td_orphans_adopt();
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
    free_workers(w);
}

/* ---- the environment ---- */

/* In the child. */
static void workers_set_environment(const td_workers *w, int local)
{
    char error_file[PATH_MAX];
    worker_path(w, local, "error", error_file);
    const td_round *r = &w->round;
    td_child_setenv("TANDEM_ERROR_FILE", "%s", error_file);
    td_child_setenv("RANK", "%d", r->first_rank + local);
    td_child_setenv("LOCAL_RANK", "%d", local);
    td_child_setenv("GROUP_RANK", "%d", r->node);
    td_child_setenv("WORLD_SIZE", "%d", r->world_size);
    td_child_setenv("LOCAL_WORLD_SIZE", "%d", w->options->workers);
    td_child_setenv("GROUP_WORLD_SIZE", "%d", r->nodes);
    td_child_setenv("MASTER_ADDR", "%s", w->master_host);
    td_child_setenv("MASTER_PORT", "%d", w->master_port);
    td_child_setenv("TANDEM_AGENT_STORE", "1");
    if (w->options->token.set) {
        char token[TD_TOKEN_TEXT];
        td_token_text(&w->options->token, token);
        td_child_setenv("TANDEM_TOKEN", "%s", token);
    }
    if (w->options->mesh != NULL) {
        td_child_setenv("TANDEM_MESH", "%s", w->options->mesh);
    }
    td_child_setenv("TANDEM_RUN_ID", "%s", r->run_id);
    td_child_setenv("TANDEM_ATTEMPT", "%d", r->number);
    td_child_setenv("TANDEM_RESTART_COUNT", "%d", r->restarts);
    td_child_setenv("TANDEM_MAX_RESTARTS", "%d", w->options->max_restarts);
    if (getenv("OMP_NUM_THREADS") == NULL) {
        int each = td_count_cpus() / w->options->workers;
        td_child_setenv("OMP_NUM_THREADS", "%d", each > 1 ? each : 1);
    }
}

/* ---- output ---- */

/* Opens the target of a stream. *fd -1: this process's own stream. */
static td_status open_stream(td_workers *w, int local, int which, int *fd)
{
    const td_launch_options *o = w->options;
    bool tee = (o->tee[local] & which) != 0, quiet = o->quiet[local] != 0;
    bool captured = tee || quiet || (o->redirects[local] & which) != 0;
    char path[PATH_MAX];
    *fd = -1;
    if (!captured) {
        return TD_OK;
    }
    w->captured = true;
    worker_path(w, local, which == TD_LAUNCH_STDOUT ? "stdout" : "stderr", path);
    int empty = local < w->children->count ? 0 : O_TRUNC; /* not if a worker is replaced */
    int file = open(path, O_WRONLY | O_CREAT | empty | O_APPEND | O_CLOEXEC, 0644);
    TD_CHECK(file >= 0, TD_E_IO, "cannot write %s: %s", path, strerror(errno));
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

/* Why a program cannot be started, after execvp. */
static const char *why_not_started(const char *name, int error)
{
    struct stat info;
    const char *dot = strrchr(name, '.');
    bool there = stat(name, &info) == 0, on_path = strchr(name, '/') == NULL;
    return there && S_ISDIR(info.st_mode) ? "a folder; name the program in it"
           : there && dot != NULL && strcmp(dot, ".py") == 0
               ? "not executable: give python3 in front of it, or chmod +x and ./NAME"
           : there && dot != NULL && strcmp(dot, ".c") == 0
               ? "C source: compile it, and name the program"
           : error == EACCES ? "not allowed to run it (chmod +x)"
           : error != ENOENT ? "not a program"
           : on_path         ? "no such program on PATH (in this folder: ./NAME)"
                             : "no such program";
}

_Noreturn static void exec_worker(const td_workers *w, int local, int out, int err)
{
    char why[PATH_MAX];
    (void)dup2(out, STDOUT_FILENO); /* changes nothing if it is -1 */
    (void)dup2(err, STDERR_FILENO);
    workers_set_environment(w, local);
    execvp(w->options->argv[0], w->options->argv);
    snprintf(why, sizeof(why), "cannot start %s: %s", w->options->argv[0],
             why_not_started(w->options->argv[0], errno));
    td_error_report_to(NULL); /* into the worker's file, whoever started this launcher */
    td_error_report(why);
    _exit(127);
}

static td_status start_worker(td_workers *w, int local, td_signal_watch *watch)
{
    char folder[PATH_MAX];
    int out = -1, err = -1;
    worker_path(w, local, "", folder);
    TD_TRY(td_make_folders(folder));
    td_status status = open_stream(w, local, TD_LAUNCH_STDOUT, &out);
    status = status == TD_OK ? open_stream(w, local, TD_LAUNCH_STDERR, &err) : status;
    if (status == TD_OK) {
        pid_t pid = td_children_fork(w->children, local, watch);
        if (pid == 0) {
            exec_worker(w, local, out, err);
        }
        if (pid < 0) {
            status = td_fail(TD_E_NOMEM, "cannot start local rank %d: %s", local, strerror(errno));
        }
    }
    td_close_fd(out);
    td_close_fd(err);
    return status;
}

void td_workers_start(td_workers *w, const td_round *round, td_signal_watch *watch)
{
    td_status status = TD_OK;
    w->round = *round;
    w->failed = false;
    w->world = w->deaths = 0;
    td_children_clear(w->children);
    for (int local = 0; local < w->options->workers && status == TD_OK; local++) {
        status = start_worker(w, local, watch);
    }
    if (status != TD_OK) {
        int last = w->children->count++;
        w->children->list[last] =
            (td_child){ .pid = getpid(), .status = 1 << 8 /* exit code 1 */, .ended = td_clock() };
        snprintf(w->children->notes[last].message, TD_ERROR_BYTES, "%s", td_last_error());
    }
}

/* Deaths without a new world. */
static int most_deaths(const td_workers *w)
{
    return 3 * w->options->workers + 10;
}

bool td_workers_struck(const td_workers *w)
{
    const td_children *all = w->children;
    bool elastic = getenv("TANDEM_ELASTIC") != NULL, struck = false;
    for (int i = 0; elastic && !w->failed && !all->stopping && i < all->count; i++) {
        struck = struck || (!all->list[i].running && td_child_struck(all->list[i].status));
    }
    return struck && w->deaths <= most_deaths(w);
}

void td_workers_replace(td_workers *w, int world, td_signal_watch *watch)
{
    td_children *all = w->children;
    w->deaths = world == w->world ? w->deaths : 0;
    w->world = world;
    for (int i = 0; i < all->count; i++) {
        if (!all->list[i].running && td_child_struck(all->list[i].status) &&
            ++w->deaths <= most_deaths(w)) {
            (void)start_worker(w, i, watch); /* if it fails, the next look tries again */
        }
    }
}

/* ---- looking after them ---- */

/* Reads a file's end, or its beginning. */
static void read_part(const char *path, bool end, char *text, size_t size)
{
    struct stat info;
    int file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* it may be a FIFO */
    bool regular = file >= 0 && fstat(file, &info) == 0 && S_ISREG(info.st_mode);
    off_t from =
        regular && end && info.st_size > (off_t)size - 1 ? info.st_size - (off_t)size + 1 : 0;
    ssize_t got = regular ? pread(file, text, size - 1, from) : 0;
    text[got > 0 ? got : 0] = '\0';
    td_close_fd(file);
}

/* Only the last lines. */
static void keep_tail(char *text)
{
    int lines = 0;
    for (char *at = text + strlen(text); at > text; at--) {
        if (at[-1] == '\n' && at[0] != '\0' && ++lines == TAIL_LINES) {
            memmove(text, at, strlen(at) + 1);
            return;
        }
    }
}

/* What a failed worker has told: its error message, or the end of its output. */
static void read_message(const td_workers *w, int local)
{
    char path[PATH_MAX], *message = w->children->notes[local].message;
    if (message[0] != '\0') {
        return;
    }
    worker_path(w, local, "error", path);
    read_part(path, false, message, TD_ERROR_BYTES);
    if (message[0] == '\0') {
        worker_path(w, local, "stderr", path);
        read_part(path, true, message, TAIL_BYTES);
        keep_tail(message);
    }
}

static void describe_failure(const td_workers *w, int local, td_worker_failure *failure)
{
    char path[PATH_MAX];
    const td_child *c = &w->children->list[local];
    *failure = (td_worker_failure){
        .when = c->ended,
        .rank = w->round.first_rank + local,
        .local_rank = local,
        .node = w->round.node,
        .pid = c->pid,
        .status = c->status,
    };
    gethostname(failure->host, sizeof(failure->host) - 1);
    int early = td_children_early(w->children, local);
    if (early >= 0) {
        td_append(failure->message, sizeof(failure->message), TD_ENDED_EARLY "\n",
                  w->round.first_rank + early);
    }
    td_append(failure->message, sizeof(failure->message), "%s", w->children->notes[local].message);
    worker_path(w, local, "stderr", path);
    if (access(path, F_OK) == 0) {
        worker_path(w, local, "", path);
        snprintf(failure->log, sizeof(failure->log), "%.*s", (int)sizeof(failure->log) - 1, path);
    }
}

bool td_workers_look(td_workers *w, td_worker_failure *failure)
{
    td_children *all = w->children;
    bool was_running = td_children_running(all) > 0, over = td_children_look(all) == 0;
    td_orphans_look(all, &w->guard, was_running && over);
    if (was_running && over && w->output != NULL) {
        (void)td_output_flush(w->output, 1);
    }
    /* Who ends after being asked to, or is replaced, has not failed. */
    if (w->failed || all->stopping || td_workers_struck(w)) {
        return false;
    }
    for (int i = 0; i < all->count; i++) {
        if (!all->list[i].running && td_child_failed(all->list[i].status)) {
            read_message(w, i);
        }
    }
    int cause = td_children_cause(all);
    if (cause < 0) {
        return false;
    }
    describe_failure(w, cause, failure);
    w->failed = true;
    return true;
}

td_children *td_workers_children(const td_workers *w)
{
    return w->children;
}
