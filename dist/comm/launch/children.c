/* Starts, watches and ends child processes, which do not outlive this process. */
#include "dist/comm/launch/children.h"

#include "tensor/clock.h"
#include "dist/comm/process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/prctl.h>
#endif

static const double LINGER = 3; /* seconds to wait for the end of a child that others have named */

static size_t children_bytes(int capacity)
{
    return sizeof(td_children) + (size_t)capacity * sizeof(td_child);
}

/* In the child. Only async-signal-safe calls: the parent may have threads. */
static void begin_child(td_children *all, const td_signal_watch *watch, pid_t parent)
{
    (void)mprotect(all, children_bytes(all->capacity), PROT_READ);
    setpgid(0, 0);
#ifdef __linux__
    prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
    if (getppid() != parent) { /* the parent ended before the call above */
        _exit(128 + SIGKILL);
    }
    int nothing = open("/dev/null", O_RDONLY);
    if (nothing >= 0) {
        dup2(nothing, STDIN_FILENO);
        if (nothing != STDIN_FILENO) {
            close(nothing);
        }
    }
    sigaction(SIGCHLD, &watch->child_before, NULL);
    sigaction(SIGPIPE, &watch->pipe_before, NULL);
    pthread_sigmask(SIG_SETMASK, &watch->before, NULL);
}

static void *children_share(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return memory != MAP_FAILED ? memory : NULL;
}

td_children *td_children_new(int capacity)
{
    td_children *all = children_share(children_bytes(capacity));
    td_error_note *notes = children_share((size_t)capacity * sizeof(td_error_note));
    if (all != NULL) {
        all->capacity = capacity;
        all->notes = notes;
    }
    if (notes == NULL) {
        td_children_free(all);
        return NULL;
    }
    return all;
}

void td_children_free(td_children *all)
{
    if (all != NULL && all->notes != NULL) {
        munmap(all->notes, (size_t)all->capacity * sizeof(td_error_note));
    }
    if (all != NULL) {
        munmap(all, children_bytes(all->capacity));
    }
}

void td_children_clear(td_children *all)
{
    all->count = 0;
    all->stopping = all->killed = false;
    all->passed = 0;
}

pid_t td_children_fork(td_children *all, int place, td_signal_watch *watch)
{
    watch->children = all;
    all->notes[place] = (td_error_note){ 0 }; /* before the child reports */
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid == 0) {
        begin_child(all, watch, parent);
    } else if (pid > 0) {
        setpgid(pid, pid); /* in parent and child: the first call counts */
        all->list[place] = (td_child){ .pid = pid };
        all->list[place].running = true;
        all->count += place == all->count;
    }
    return pid;
}

void td_child_setenv(const char *name, const char *format, ...)
{
    char text[PATH_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    setenv(name, text, 1);
}

/* Whether a child has ended, where the system has no waitid (a filter of system calls): waitpid
 * gives the child's id back at once. */
static bool reap_without_waitid(td_children *all, int i)
{
    td_child *c = &all->list[i];
    uint64_t start;
    pid_t got = waitpid(c->pid, &c->status, WNOHANG);
    if (got < 0 && (errno == ECHILD || td_process_state(c->pid, &start) == 0)) {
        c->status = 1 << 8; /* exit code 1 */
        snprintf(all->notes[i].message, TD_ERROR_BYTES,
                 "its exit code is unknown: another part of the launcher's process, or its "
                 "parent, has waited for it");
        return true;
    }
    if (got > 0) {
        kill(-c->pid, SIGKILL);
    }
    return got > 0;
}

static void children_reap(td_children *all, int i)
{
    td_child *c = &all->list[i];
    siginfo_t info = { 0 };
    if (!c->running) {
        return;
    }
    if (waitid(P_PID, (id_t)c->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0) {
        if (!reap_without_waitid(all, i)) {
            return;
        }
    } else if (info.si_pid == 0) {
        return;
    } else {
        /* While the child is a zombie, no other process can get its id or its group's. */
        kill(-c->pid, SIGKILL);
        while (waitpid(c->pid, &c->status, 0) < 0 && errno == EINTR) {
        }
    }
    c->running = false;
    c->ended = td_clock();
}

void td_children_signal(const td_children *all, int signal)
{
    for (int i = 0; all != NULL && i < all->count; i++) {
        if (all->list[i].running) {
            kill(-all->list[i].pid, signal);
        }
    }
}

/* Stopped children, too, notice a signal that is to end them. */
static void signal_and_wake(const td_children *all, int signal)
{
    td_children_signal(all, signal);
    td_children_signal(all, SIGCONT);
}

int td_children_running(const td_children *all)
{
    int running = 0;
    for (int i = 0; i < all->count; i++) {
        running += all->list[i].running;
    }
    return running;
}

int td_children_look(td_children *all)
{
    for (int i = 0; i < all->count; i++) {
        children_reap(all, i);
    }
    if (all->stopping && !all->killed && td_clock() > all->kill_at) {
        signal_and_wake(all, SIGKILL);
        all->killed = true;
    }
    return td_children_running(all);
}

void td_children_stop(td_children *all, int signal, double grace)
{
    if (!all->stopping) {
        all->stopping = true;
        all->kill_at = td_clock() + grace;
        signal_and_wake(all, signal);
    }
}

void td_children_pass(td_children *all, int signal, double grace)
{
    bool warns = signal == SIGUSR1 || signal == SIGUSR2 || signal == SIGXCPU;
    if (signal == all->passed && !warns && signal != SIGHUP) {
        all->kill_at = td_clock();
        return;
    }
    double kill_at = warns ? INFINITY : td_clock() + grace;
    all->kill_at = all->stopping ? fmin(all->kill_at, kill_at) : kill_at;
    all->stopping = true;
    all->passed = signal;
    signal_and_wake(all, signal);
}

void td_child_end_text(int status, char *text, size_t size)
{
    if (WIFSIGNALED(status)) {
        snprintf(text, size, "signal %d (%s)", WTERMSIG(status), td_signal_name(WTERMSIG(status)));
    } else {
        snprintf(text, size, "exit code %d", WEXITSTATUS(status));
    }
}

bool td_child_failed(int status)
{
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

int td_child_exit_code(int status)
{
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

bool td_child_struck(int status)
{
    return WIFSIGNALED(status) && WTERMSIG(status) != SIGABRT;
}

/* The likely cause among those that have ended; -1: none has failed. */
static int first_failure(const td_children *all)
{
    int first = -1;
    for (int i = 0; i < all->count; i++) {
        const td_child *c = &all->list[i];
        if (!c->running && td_child_failed(c->status) &&
            (first < 0 ||
             (td_child_struck(c->status) && !td_child_struck(all->list[first].status)))) {
            first = i;
        }
    }
    return first;
}

/* The first to report, if this one has reported: it may have failed because of that one. */
static int earliest_report(const td_children *all, int one)
{
    double first = all->notes[one].when;
    for (int i = 0; i < all->count && first > 0; i++) {
        double when = all->notes[i].when;
        if (when > 0 && when < first) {
            first = when;
            one = i;
        }
    }
    return one;
}

bool td_message_names(const char *message, const char *teller, long pid, const char *host)
{
    static const char BEFORE[] = "(pid ", BETWEEN[] = " on ";
    for (const char *at = message; (at = strstr(at, BEFORE)) != NULL; at++) {
        char *end;
        if (strtol(at + strlen(BEFORE), &end, 10) != pid) {
            continue;
        }
        const char *where = teller;
        size_t length = strlen(teller);
        if (strncmp(end, BETWEEN, strlen(BETWEEN)) == 0) {
            where = end + strlen(BETWEEN);
            length = strcspn(where, ")");
        }
        if (strlen(host) == length && strncmp(where, host, length) == 0) {
            return true;
        }
    }
    return false;
}

/* The child that a message names, except the one that tells it; -1: none. */
static int named_by(const td_children *all, int teller)
{
    char host[128] = "";
    gethostname(host, sizeof(host) - 1);
    for (int i = 0; i < all->count; i++) {
        if (i != teller &&
            td_message_names(all->notes[teller].message, host, all->list[i].pid, host)) {
            return i;
        }
    }
    return -1;
}

int td_children_cause(const td_children *all)
{
    int cause = first_failure(all);
    if (cause < 0) {
        return -1;
    }
    bool waits = td_clock() < all->list[cause].ended + LINGER;
    cause = earliest_report(all, cause);
    if (all->list[cause].running && waits) {
        return -1;
    }
    for (int hops = 0; hops < all->count; hops++) {
        int named = named_by(all, cause);
        if (named >= 0 && all->list[named].running && waits) {
            return -1;
        }
        if (named < 0 || all->list[named].running || !td_child_failed(all->list[named].status)) {
            break;
        }
        cause = named;
    }
    return cause;
}

int td_children_early(const td_children *all, int cause)
{
    int named = named_by(all, cause);
    for (int i = 0; i < all->count; i++) {
        const td_child *c = &all->list[i];
        if (!c->running && c->status == 0 && (i == named || c->ended <= all->list[cause].ended)) {
            return i;
        }
    }
    return -1;
}
