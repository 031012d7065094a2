#include "dist/launch/children.h"

#include "tensor/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/prctl.h>
#endif

static const double KILL_PATIENCE = 5; /* seconds; SIGKILL takes time if a disk hangs */

static const int passed_on[] = { SIGTERM, SIGINT, SIGHUP, SIGQUIT };

void td_keep_standard_streams(void)
{
    int fd;
    while ((fd = open("/dev/null", O_RDWR)) >= 0 && fd <= STDERR_FILENO) {
    }
    if (fd >= 0) {
        close(fd);
    }
}

void td_signal_watch_begin(td_signal_watch *watch)
{
    td_keep_standard_streams();
    struct sigaction ignored = { .sa_handler = SIG_IGN };
    sigemptyset(&ignored.sa_mask);
    sigaction(SIGPIPE, &ignored, &watch->pipe_before);
    /* With an ignored SIGCHLD there would be nothing for waitpid. */
    struct sigaction standard = { .sa_handler = SIG_DFL }, action;
    sigemptyset(&standard.sa_mask);
    sigaction(SIGCHLD, &standard, &watch->child_before);
    sigemptyset(&watch->watched);
    sigaddset(&watch->watched, SIGCHLD);
    for (size_t i = 0; i < sizeof(passed_on) / sizeof(passed_on[0]); i++) {
        if (sigaction(passed_on[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN) {
            sigaddset(&watch->watched, passed_on[i]);
        }
    }
    pthread_sigmask(SIG_BLOCK, &watch->watched, &watch->before);
}

int td_signal_watch_wait(const td_signal_watch *watch, double timeout)
{
    struct timespec t = { .tv_sec = (time_t)timeout };
    t.tv_nsec = (long)((timeout - (double)t.tv_sec) * 1e9);
    int signal = sigtimedwait(&watch->watched, NULL, &t);
    return signal < 0 || signal == SIGCHLD ? 0 : signal;
}

void td_signal_watch_end(td_signal_watch *watch)
{
    struct timespec now = { 0 };
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    while (sigtimedwait(&child, NULL, &now) == SIGCHLD) {
    }
    sigaction(SIGCHLD, &watch->child_before, NULL);
    sigaction(SIGPIPE, &watch->pipe_before, NULL);
    pthread_sigmask(SIG_SETMASK, &watch->before, NULL);
}

/* In the child. Only async-signal-safe calls: the parent may have threads. */
static void begin_child(const td_signal_watch *watch, pid_t parent)
{
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

pid_t td_child_fork(const td_signal_watch *watch)
{
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid == 0) {
        begin_child(watch, parent);
    } else if (pid > 0) {
        setpgid(pid, pid); /* in parent and child: the first call counts */
    }
    return pid;
}

int td_children_reap(td_child *children, int count)
{
    int ended = 0;
    for (int i = 0; i < count; i++) {
        td_child *c = &children[i];
        siginfo_t info = { 0 };
        if (!c->running || waitid(P_PID, (id_t)c->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
            info.si_pid == 0) {
            continue;
        }
        /* While the child is a zombie, no other process can get its id or its group's. */
        kill(-c->pid, SIGKILL);
        while (waitpid(c->pid, &c->status, 0) < 0 && errno == EINTR) {
        }
        c->running = false;
        c->ended = td_clock();
        ended++;
    }
    return ended;
}

int td_children_running(const td_child *children, int count)
{
    int running = 0;
    for (int i = 0; i < count; i++) {
        running += children[i].running;
    }
    return running;
}

void td_children_signal(const td_child *children, int count, int signal)
{
    for (int i = 0; i < count; i++) {
        if (children[i].running) {
            kill(-children[i].pid, signal);
            kill(-children[i].pid, SIGCONT);
        }
    }
}

void td_children_stop(td_child *children, int count, int signal, double grace,
                      const td_signal_watch *watch)
{
    double deadline = td_clock() + grace;
    bool killed = false;
    td_children_signal(children, count, signal);
    for (;;) {
        td_children_reap(children, count);
        if (td_children_running(children, count) == 0) {
            return;
        }
        double left = deadline - td_clock();
        if (left <= 0 && killed) {
            return;
        }
        int impatient = left > 0 ? td_signal_watch_wait(watch, left < 0.1 ? left : 0.1) : 0;
        if (!killed && (left <= 0 || impatient != 0)) {
            td_children_signal(children, count, SIGKILL);
            deadline = td_clock() + KILL_PATIENCE;
            killed = true;
        }
    }
}

const char *td_signal_name(int signal)
{
    static const struct {
        int number;
        const char *name;
    } names[] = {
        { SIGHUP, "SIGHUP" },   { SIGINT, "SIGINT" },   { SIGQUIT, "SIGQUIT" },
        { SIGILL, "SIGILL" },   { SIGTRAP, "SIGTRAP" }, { SIGABRT, "SIGABRT" },
        { SIGBUS, "SIGBUS" },   { SIGFPE, "SIGFPE" },   { SIGKILL, "SIGKILL" },
        { SIGUSR1, "SIGUSR1" }, { SIGSEGV, "SIGSEGV" }, { SIGUSR2, "SIGUSR2" },
        { SIGPIPE, "SIGPIPE" }, { SIGALRM, "SIGALRM" }, { SIGTERM, "SIGTERM" },
        { SIGXCPU, "SIGXCPU" }, { SIGXFSZ, "SIGXFSZ" }, { SIGSYS, "SIGSYS" },
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (names[i].number == signal) {
            return names[i].name;
        }
    }
    return "a signal";
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

/* SIGABRT counts as a reported error, not as a signal. */
static bool was_struck(int status)
{
    return WIFSIGNALED(status) && WTERMSIG(status) != SIGABRT;
}

int td_children_first_failure(const td_child *children, int count)
{
    int first = -1;
    for (int i = 0; i < count; i++) {
        const td_child *c = &children[i];
        if (c->running || !td_child_failed(c->status)) {
            continue;
        }
        if (first < 0 || (was_struck(c->status) && !was_struck(children[first].status))) {
            first = i;
        }
    }
    return first;
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

int td_children_named(const td_child *children, int count, int self, const char *message)
{
    char host[128] = "";
    gethostname(host, sizeof(host) - 1);
    for (int i = 0; i < count; i++) {
        if (i != self && td_message_names(message, host, children[i].pid, host)) {
            return i;
        }
    }
    return -1;
}
