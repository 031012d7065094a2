/* Child processes that must not outlive this process, for td_spawn and the launcher. On Linux they
 * die with their parent in all cases; elsewhere they outlive the parent's SIGKILL. */
#ifndef TD_DIST_CHILDREN_H
#define TD_DIST_CHILDREN_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

typedef struct td_child {
    pid_t pid;
    bool running;
    int status;   /* from waitpid, after its end */
    double ended; /* when this process noticed its end; seconds on td_clock() */
} td_child;

/* Opens descriptors 0 to 2 on /dev/null if they are closed. Otherwise the first file or socket
 * would become a stream that messages are written to. */
void td_keep_standard_streams(void);

/* Waits for signals instead of handling them: between begin and end the calling thread blocks TERM,
 * INT, HUP, QUIT and CHLD. Ignored signals stay ignored (nohup). This process ignores SIGPIPE, and
 * descriptors 0 to 2 are opened if they were closed. */
typedef struct td_signal_watch {
    sigset_t watched, before;
    struct sigaction child_before, pipe_before;
} td_signal_watch;

void td_signal_watch_begin(td_signal_watch *watch);
/* The next signal; 0: a child has ended, or the time-out is over. */
int td_signal_watch_wait(const td_signal_watch *watch, double timeout);
void td_signal_watch_end(td_signal_watch *watch);

/* fork(). The child leads its own process group, dies with this thread, has the signals from before
 * the watch, and reads from /dev/null. 0 in the child, -1 with errno. */
pid_t td_child_fork(const td_signal_watch *watch);

/* Reaps ended children and kills the rest of their process groups. Returns how many have ended. */
int td_children_reap(td_child *children, int count);
int td_children_running(const td_child *children, int count);
/* Sends a signal to the groups of all running children, and wakes stopped ones, so that they can
 * end. */
void td_children_signal(const td_child *children, int count, int signal);
/* Sends a signal to all children, waits at most grace seconds for their ends, then kills. A signal
 * to this process ends the wait. */
void td_children_stop(td_child *children, int count, int signal, double grace,
                      const td_signal_watch *watch);

/* "exit code 3", "signal 11 (SIGSEGV)" */
void td_child_end_text(int status, char *text, size_t size);
const char *td_signal_name(int signal); /* "SIGSEGV"; "a signal": unknown */
bool td_child_failed(int status);
int td_child_exit_code(int status); /* as in a shell: 128 + signal */
/* The likely cause among failed children that were just reaped: a child that a signal has ended,
 * before a child that has reported an error, because survivors report errors. -1: none has failed.
 */
int td_children_first_failure(const td_child *children, int count);
/* Whether a survivor's message names a process: "rank 1 (pid 123) has died" for a process on the
 * teller's host, or "rank 1 (pid 123 on host) ...". */
bool td_message_names(const char *message, const char *teller, long pid, const char *host);
/* The child that a message names, except `self`; -1: none. */
int td_children_named(const td_child *children, int count, int self, const char *message);

#endif
