/* td_spawn: the processes of one host, started from one program. */
#include "dist/comm/launch/children.h"
#include "tensor/clock.h"
#include "dist/comm/engine.h"
#include "dist/comm/launch/error_file.h"
#include "dist/comm/store/net.h"
#include "dist/comm/token.h"
#include "tensor/extend.h"
#include "tensor/system/number.h"
#include "tensor/system/folders.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_PROCESSES = 4096 };

static const double DEFAULT_STOP_TIMEOUT = 30, LOOK_EVERY = 0.1, LAST_THREADS = 0.2;
static const double KILL_PATIENCE = 5; /* seconds; SIGKILL takes time if a disk hangs */

typedef struct spawning {
    int (*fn)(int, void *);
    void *arg;
    const char *log_dir;
    td_children *children;
    int count;
    int port;       /* where the ranks meet */
    int reserved;   /* the socket that keeps the port for them */
    td_token token; /* of their store */
    int stopped_by; /* a signal, or 0 */
    td_signal_watch watch;
} spawning;

/* The folder of threads has a link for each; 0: unknown. */
static int count_threads(void)
{
    struct stat tasks;
    return stat("/proc/self/task", &tasks) == 0 ? (int)tasks.st_nlink - 2 : 0;
}

/* Fails if this process has threads. Such a process must not fork and continue in the child: a lock
 * that another thread holds stays locked there, and a thread pool has no workers. A thread that was
 * joined a moment ago may still be listed. */
static td_status check_no_threads(void)
{
    double begin = td_clock();
    int own = dlsym(RTLD_DEFAULT, "__tsan_init") != NULL ? 2 : 1; /* the sanitizer has one, too */
    int threads = count_threads();
    while (threads > own && td_clock() - begin < LAST_THREADS) {
        td_sleep(0.001);
        threads = count_threads();
    }
    TD_CHECK(threads <= own, TD_E_ARG,
             "td_spawn: this process has %d threads already, and a fork would break them "
             "in the children; call td_spawn before the first step, loader or init",
             threads);
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

/* Where td_dist_init() meets the others, unless the program gives it another place; whatever
 * started the parent is not the child's launcher. The id tells two runs that meet in one file apart
 * (dist/comm/store/place.c). */
static void spawn_set_environment(const spawning *s, int rank, const char *run_id)
{
    if (s->token.set) {
        char token[TD_TOKEN_TEXT];
        td_token_text(&s->token, token);
        td_child_setenv("TANDEM_SPAWN_TOKEN", "%s", token);
    }
    td_child_setenv("TANDEM_SPAWN_ID", "%s", run_id);
    td_child_setenv("TANDEM_SPAWN_SIZE", "%d", s->count);
    unsetenv("TANDEM_AGENT_STORE");
    td_child_setenv("MASTER_ADDR", "%s", td_loopback_address());
    td_child_setenv("MASTER_PORT", "%d", s->port);
    td_child_setenv("RANK", "%d", rank);
    td_child_setenv("LOCAL_RANK", "%d", rank);
    td_child_setenv("WORLD_SIZE", "%d", s->count);
    td_child_setenv("LOCAL_WORLD_SIZE", "%d", s->count);
}

_Noreturn static void child_main(const spawning *s, int rank, const char *run_id)
{
    char before[TD_ERROR_BYTES];
    close(s->reserved);
    spawn_set_environment(s, rank, run_id);
    if (s->log_dir != NULL) {
        redirect(s, rank, "stdout", STDOUT_FILENO);
        redirect(s, rank, "stderr", STDERR_FILENO);
    }
    td_error_report_to(&s->children->notes[rank]);
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

static td_status start_all(spawning *s)
{
    char run_id[64];
    td_snprintf(run_id, sizeof(run_id), "spawn-%ld-%.6f", (long)getpid(), td_clock());
    fflush(NULL); /* otherwise the children would print the buffered output again */
    for (int rank = 0; rank < s->count; rank++) {
        pid_t pid = td_children_fork(s->children, rank, &s->watch);
        if (pid == 0) {
            child_main(s, rank, run_id);
        }
        TD_CHECK(pid >= 0, TD_E_NOMEM, "td_spawn: cannot start rank %d of %d: %s", rank, s->count,
                 strerror(errno));
    }
    return TD_OK;
}

static td_status fail_child(const spawning *s, int rank)
{
    char end[64] = "an error";
    const td_child *child = &s->children->list[rank];
    const td_error_note *note = &s->children->notes[rank];
    const char *message = note->when > 0 ? note->message : "";
    if (!child->running) {
        td_child_end_text(child->status, end, sizeof(end));
    }
    td_status status = td_fail(TD_E_PEER, "rank %d (pid %ld) ended with %s%s%s", rank,
                               (long)child->pid, end, message[0] != '\0' ? ": " : "", message);
    int early = td_children_early(s->children, rank);
    return early >= 0 ? td_fail_context(status, TD_ENDED_EARLY, early) : status;
}

/* Waits until all children have ended. A failure or a signal stops the others; a second signal
 * kills them. */
static td_status spawn_wait_for_all(spawning *s, td_status status, double stop_timeout)
{
    td_children *all = s->children;
    while (td_children_look(all) > 0 &&
           !(all->killed && td_clock() > all->kill_at + KILL_PATIENCE)) {
        int cause = status == TD_OK ? td_children_cause(all) : -1;
        if (cause >= 0) {
            status = fail_child(s, cause);
            td_children_stop(all, SIGTERM, stop_timeout);
        }
        int signal = td_signal_watch_wait(&s->watch, LOOK_EVERY);
        if (signal != 0) {
            td_children_pass(all, signal, stop_timeout);
        }
        if (signal != 0 && status == TD_OK) {
            s->stopped_by = signal;
            status = td_fail(TD_E_INTERRUPTED, "td_spawn: stopped by %s", td_signal_name(signal));
        }
    }
    int cause = status == TD_OK ? td_children_cause(all) : -1;
    return cause >= 0 ? fail_child(s, cause) : status;
}

td_status td_spawn_at(td_spawn_options options, td_site at)
{
    TD_REQUIRE(options.fn != NULL, at, "td_spawn: the function is NULL");
    td_spawn_way way = td_spawn_way_find();
    if (way != NULL) {
        return way(&options);
    }
    int nprocs = options.nprocs, nothing;
    int *stopped_by = options.stopped_by != NULL ? options.stopped_by : &nothing;
    *stopped_by = 0;
    TD_CHECK(nprocs >= 1 && nprocs <= MAX_PROCESSES, TD_E_ARG,
             "td_spawn: %d processes; 1 to %d are possible", nprocs, MAX_PROCESSES);
    TD_TRY(check_no_threads());
    spawning s = {
        .fn = options.fn, .arg = options.arg, .log_dir = options.log_dir, .count = nprocs
    };
    TD_TRY(make_log_folders(&s));
    TD_TRY(td_token_make(&s.token));
    s.reserved = td_port_reserve(&s.port);
    if (s.reserved < 0) {
        return td_fail_context(s.reserved, "td_spawn: no port where the ranks can meet");
    }
    double stop_timeout = options.stop_timeout > 0 ? options.stop_timeout : DEFAULT_STOP_TIMEOUT;
    s.children = td_children_new(nprocs);
    if (s.children == NULL) {
        close(s.reserved);
        return td_fail(TD_E_NOMEM, "td_spawn: no memory for %d processes", nprocs);
    }
    td_signal_watch_begin(&s.watch);
    td_status status = start_all(&s);
    if (status != TD_OK) {
        td_children_stop(s.children, SIGKILL, 0);
    }
    status = spawn_wait_for_all(&s, status, stop_timeout);
    td_signal_watch_end(&s.watch);
    *stopped_by = s.stopped_by;
    close(s.reserved);
    td_children_free(s.children);
    return status;
}
