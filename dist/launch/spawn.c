/* td_spawn: the processes of one host, started from one program. */
#include "dist/launch/children.h"
#include "tensor/clock.h"
#include "dist/dist.h"
#include "dist/launch/error_file.h"
#include "dist/store/net.h"
#include "dist/token.h"
#include "tensor/extend.h"
#include "tensor/folders.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_PROCESSES = 4096, MESSAGE_BYTES = 1500 };

#if defined(__SANITIZE_THREAD__)
#define OWN_THREADS 2 /* the thread sanitizer has one of its own */
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define OWN_THREADS 2
#endif
#endif
#ifndef OWN_THREADS
#define OWN_THREADS 1
#endif

static const double DEFAULT_STOP_TIMEOUT = 30, LOOK_EVERY = 0.5, LINGER = 2, LAST_THREADS = 0.2;

typedef struct spawning {
    int (*fn)(int, void *);
    void *arg;
    const char *log_dir;
    td_child *children;
    int *errors; /* the reading ends of the children's error pipes */
    int count, started;
    int port;       /* where the ranks meet */
    td_token token; /* of their store */
    int stopped_by; /* a signal, or 0 */
    td_signal_watch watch;
} spawning;

static int count_threads(void)
{
    DIR *tasks = opendir("/proc/self/task");
    int threads = 0;
    for (struct dirent *entry; tasks != NULL && (entry = readdir(tasks)) != NULL;) {
        threads += entry->d_name[0] != '.';
    }
    if (tasks != NULL) {
        closedir(tasks);
    }
    return threads;
}

/* Fails if this process has threads. Such a process must not fork and continue in the child: a lock
 * that another thread holds stays locked there, and a thread pool has no workers. A thread that was
 * joined a moment ago may still be listed. */
static td_status check_no_threads(void)
{
    double begin = td_clock();
    int threads = count_threads();
    while (threads > OWN_THREADS && td_clock() - begin < LAST_THREADS) {
        td_sleep(0.001);
        threads = count_threads();
    }
    if (threads > OWN_THREADS) {
        return td_fail(TD_E_ARG,
                       "td_spawn: this process has %d threads already, and a fork would break them "
                       "in the children; call td_spawn before the first step, loader or init",
                       threads);
    }
    return TD_OK;
}

static td_status make_log_folders(const spawning *s)
{
    if (s->log_dir == NULL) {
        return TD_OK;
    }
    for (int rank = 0; rank < s->count; rank++) {
        char path[PATH_MAX];
        snprintf(path, sizeof(path), "%s/%d", s->log_dir, rank);
        td_status status = td_make_folders(path);
        if (status != TD_OK) {
            return td_fail_context(status, "td_spawn");
        }
    }
    return TD_OK;
}

/* ---- in the child ---- */

static void redirect(const spawning *s, int rank, const char *name, int fd)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%d/%s", s->log_dir, rank, name);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0) {
        fprintf(stderr, "td_spawn: rank %d: cannot write %s: %s\n", rank, path, strerror(errno));
        _exit(1);
    }
    dup2(file, fd);
    close(file);
}

static void set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof(text), "%d", value);
    setenv(name, text, 1);
}

/* Where td_dist_init() meets the others, unless the program gives it another place; whatever
 * started the parent is not the child's launcher. The id tells two runs that meet in one file apart
 * (dist/store/place.c). */
static void set_environment(const spawning *s, int rank, const char *run_id)
{
    if (s->token.set) {
        char token[TD_TOKEN_TEXT];
        td_token_text(&s->token, token);
        setenv("TANDEM_SPAWN_TOKEN", token, 1);
    }
    setenv("TANDEM_SPAWN_ID", run_id, 1);
    set_number("TANDEM_SPAWN_SIZE", s->count);
    unsetenv("TANDEM_AGENT_STORE");
    setenv("MASTER_ADDR", td_loopback_address(), 1);
    set_number("MASTER_PORT", s->port);
    set_number("RANK", rank);
    set_number("LOCAL_RANK", rank);
    set_number("WORLD_SIZE", s->count);
    set_number("LOCAL_WORLD_SIZE", s->count);
}

_Noreturn static void child_main(const spawning *s, int rank, int error_pipe, const char *run_id)
{
    char before[MESSAGE_BYTES];
    for (int i = 0; i < rank; i++) {
        close(s->errors[i]);
    }
    set_environment(s, rank, run_id);
    if (s->log_dir != NULL) {
        redirect(s, rank, "stdout", STDOUT_FILENO);
        redirect(s, rank, "stderr", STDERR_FILENO);
    }
    td_error_report_to(error_pipe);
    td_error_report_fatal();
    snprintf(before, sizeof(before), "%s", td_last_error());
    int code = s->fn(rank, s->arg);
    if (code != 0 && strncmp(before, td_last_error(), sizeof(before) - 1) != 0) {
        td_error_report(td_last_error());
    }
    code = code == 0 ? td_finish() : code;
    fflush(NULL);
    /* Without the parent's atexit functions. */
    _exit(code & 0xff ? code & 0xff : code != 0);
}

/* ---- in the parent ---- */

static td_status start_child(spawning *s, int rank, const char *run_id)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return td_fail(TD_E_IO, "td_spawn: rank %d: no pipe: %s", rank, strerror(errno));
    }
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    pid_t pid = td_child_fork(&s->watch);
    if (pid == 0) {
        close(ends[0]);
        child_main(s, rank, ends[1], run_id);
    }
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        return td_fail(TD_E_NOMEM, "td_spawn: cannot start rank %d of %d: %s", rank, s->count,
                       strerror(errno));
    }
    s->children[rank] = (td_child){ .pid = pid, .running = true };
    s->errors[rank] = ends[0];
    s->started++;
    return TD_OK;
}

static td_status start_all(spawning *s)
{
    char run_id[64];
    snprintf(run_id, sizeof(run_id), "spawn-%ld-%.6f", (long)getpid(), td_clock());
    fflush(NULL); /* otherwise the children would print the buffered output again */
    for (int rank = 0; rank < s->count; rank++) {
        TD_TRY(start_child(s, rank, run_id));
    }
    return TD_OK;
}

/* Reads a rank's error report and its time; false: there is none. */
static bool read_report(const spawning *s, int rank, double *when, char *message, size_t size)
{
    ssize_t got = read(s->errors[rank], message, size - 1);
    char *text;
    message[got > 0 ? got : 0] = '\0';
    *when = strtod(message, &text);
    if (text == message) {
        return false;
    }
    memmove(message, text + 1, strlen(text + 1) + 1);
    return true;
}

/* Waits for a rank's end, at most LINGER seconds. */
static void wait_for_end(spawning *s, int rank)
{
    for (double end = td_clock() + LINGER; s->children[rank].running && td_clock() < end;) {
        td_signal_watch_wait(&s->watch, LOOK_EVERY / 10);
        td_children_reap(s->children, s->count);
    }
}

/* The rank that caused the failure, and its message. A rank that ended with a report may have
 * failed because of another rank, which has reported earlier and has not ended yet. */
static int find_culprit(spawning *s, int failed, char *message, size_t size)
{
    char other[MESSAGE_BYTES];
    double first, when;
    int culprit = failed;
    if (!read_report(s, failed, &first, message, size)) {
        return failed;
    }
    for (int rank = 0; rank < s->count; rank++) {
        if (rank != failed && read_report(s, rank, &when, other, sizeof(other)) && when < first) {
            first = when;
            culprit = rank;
            snprintf(message, size, "%s", other);
        }
    }
    wait_for_end(s, culprit);
    /* A killed rank reports nothing, but the others' messages name it. A large process may end
     * later than they do. */
    int named = td_children_named(s->children, s->count, culprit, message);
    if (named >= 0) {
        wait_for_end(s, named);
        if (!s->children[named].running && td_child_failed(s->children[named].status)) {
            message[0] = '\0';
            (void)read_report(s, named, &when, message, size);
            return named;
        }
    }
    return culprit;
}

static td_status fail_child(spawning *s, int failed)
{
    char end[64] = "an error", message[MESSAGE_BYTES];
    int rank = find_culprit(s, failed, message, sizeof(message));
    const td_child *child = &s->children[rank];
    if (!child->running) {
        td_child_end_text(child->status, end, sizeof(end));
    }
    return td_fail(TD_E_PEER, "rank %d (pid %ld) ended with %s%s%s", rank, (long)child->pid, end,
                   message[0] != '\0' ? ": " : "", message);
}

/* Waits until all children have ended well, or one has failed. */
static td_status wait_for_all(spawning *s, double stop_timeout)
{
    td_status status = TD_OK;
    while (status == TD_OK && td_children_running(s->children, s->count) > 0) {
        int signal = td_signal_watch_wait(&s->watch, LOOK_EVERY);
        td_children_reap(s->children, s->count);
        int failed = td_children_first_failure(s->children, s->count);
        if (signal != 0) {
            s->stopped_by = signal;
            status = td_fail(TD_E_INTERRUPTED, "td_spawn: stopped by %s", td_signal_name(signal));
        } else if (failed >= 0) {
            status = fail_child(s, failed);
        }
    }
    if (td_children_running(s->children, s->count) > 0) {
        td_children_stop(s->children, s->count, s->stopped_by != 0 ? s->stopped_by : SIGTERM,
                         stop_timeout, &s->watch);
    }
    return status;
}

static void free_spawning(spawning *s)
{
    for (int i = 0; i < s->started; i++) {
        close(s->errors[i]);
    }
    free(s->children);
    free(s->errors);
}

td_status td_spawn_at(td_spawn_options options, td_site at)
{
    TD_REQUIRE(options.fn != NULL, at, "td_spawn: the function is NULL");
    int nprocs = options.nprocs, nothing;
    int *stopped_by = options.stopped_by != NULL ? options.stopped_by : &nothing;
    *stopped_by = 0;
    if (nprocs < 1 || nprocs > MAX_PROCESSES) {
        return td_fail(TD_E_ARG, "td_spawn: %d processes; 1 to %d are possible", nprocs,
                       MAX_PROCESSES);
    }
    TD_TRY(check_no_threads());
    spawning s = {
        .fn = options.fn, .arg = options.arg, .log_dir = options.log_dir, .count = nprocs
    };
    TD_TRY(make_log_folders(&s));
    TD_TRY(td_token_make(&s.token));
    s.port = td_free_port();
    if (s.port < 0) {
        return td_fail_context(s.port, "td_spawn: no port where the ranks can meet");
    }
    double stop_timeout = options.stop_timeout > 0 ? options.stop_timeout : DEFAULT_STOP_TIMEOUT;
    s.children = calloc((size_t)nprocs, sizeof(td_child));
    s.errors = calloc((size_t)nprocs, sizeof(int));
    if (s.children == NULL || s.errors == NULL) {
        free_spawning(&s);
        return td_fail(TD_E_NOMEM, "td_spawn: no memory for %d processes", nprocs);
    }
    td_signal_watch_begin(&s.watch);
    td_status status = start_all(&s);
    if (status == TD_OK) {
        status = wait_for_all(&s, stop_timeout);
    } else {
        td_children_stop(s.children, s.started, SIGKILL, 0, &s.watch);
    }
    td_signal_watch_end(&s.watch);
    *stopped_by = s.stopped_by;
    free_spawning(&s);
    return status;
}
