/* Signals of a process that looks after children: it waits for them, and stops with its children.
 */
#include "dist/comm/launch/children.h"
#include "dist/comm/process.h"

#include <fcntl.h>
#include <unistd.h>

/* What a terminal and batch systems send, to end a job or to warn it of its end. */
static const int passed_on[] = { SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGXCPU };

void td_keep_standard_streams(void)
{
    int fd;
    while ((fd = open("/dev/null", O_RDWR)) >= 0 && fd <= STDERR_FILENO) {
    }
    td_close_fd(fd);
}

void td_signal_watch_begin(td_signal_watch *watch)
{
    td_keep_standard_streams();
    watch->children = NULL;
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
    if (sigaction(SIGTSTP, NULL, &action) == 0 && action.sa_handler == SIG_DFL) {
        sigaddset(&watch->watched, SIGTSTP);
    }
    pthread_sigmask(SIG_BLOCK, &watch->watched, &watch->before);
}

/* Stops the children, then this process as Ctrl-Z does, until it is continued; then continues the
 * children. The system leaves out the stop where nobody could continue this process. */
static void stop_together(const td_signal_watch *watch)
{
    sigset_t stop;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTSTP);
    td_children_signal(watch->children, SIGSTOP);
    raise(SIGTSTP);
    pthread_sigmask(SIG_UNBLOCK, &stop, NULL);
    pthread_sigmask(SIG_BLOCK, &stop, NULL);
    td_children_signal(watch->children, SIGCONT);
}

int td_signal_watch_wait(const td_signal_watch *watch, double timeout)
{
    struct timespec t = { .tv_sec = (time_t)timeout };
    t.tv_nsec = (long)((timeout - (double)t.tv_sec) * 1e9);
    int signal = sigtimedwait(&watch->watched, NULL, &t);
    if (signal == SIGTSTP) {
        stop_together(watch);
    }
    return signal < 0 || signal == SIGCHLD || signal == SIGTSTP ? 0 : signal;
}

bool td_signal_watch_has(const td_signal_watch *watch)
{
    sigset_t come;
    bool has = false;
    sigpending(&come);
    for (size_t i = 0; i < sizeof(passed_on) / sizeof(passed_on[0]); i++) {
        has |= sigismember(&come, passed_on[i]) == 1 &&
               sigismember(&watch->watched, passed_on[i]) == 1;
    }
    return has;
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
