/* Processes that must not outlive this one: shared by td_spawn and the launcher. Linux keeps the
 * last promise, that children die with their parent however it dies; elsewhere they outlive a
 * SIGKILL. */
#ifndef TD_DIST_CHILDREN_H
#define TD_DIST_CHILDREN_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

typedef struct td_child {
    pid_t pid;
    bool running;
    int status;   /* as of waitpid, once it does not run */
    double ended; /* when this process saw its end; seconds on td_clock() */
} td_child;

/* Signals are waited for, not handled: between begin and end the calling thread has TERM, INT, HUP,
 * QUIT and CHLD blocked (those that were ignored stay ignored: nohup). */
typedef struct td_signal_watch {
    sigset_t watched, before;
    struct sigaction child_before;
} td_signal_watch;

void td_signal_watch_begin(td_signal_watch *watch);
/* The next signal: 0 when a child ended or the time is over. */
int td_signal_watch_wait(const td_signal_watch *watch, double timeout);
void td_signal_watch_end(td_signal_watch *watch);

/* fork(), where the child leads a process group of its own, dies with this thread, has the signals
 * as they were before the watch, and reads from /dev/null. 0 in the child, -1 with errno. */
pid_t td_child_fork(const td_signal_watch *watch);

/* Notes which have ended, and ends what these left behind in their groups. How many that were. */
int td_children_reap(td_child *children, int count);
int td_children_running(const td_child *children, int count);
/* To the groups of those that run; also wakes stopped ones, so that they can end. */
void td_children_signal(const td_child *children, int count, int signal);
/* Asks all to end with a signal, waits for up to grace seconds, then kills. A signal to this
 * process meanwhile ends the patience. */
void td_children_stop(td_child *children, int count, int signal, double grace,
                      const td_signal_watch *watch);

/* "exit code 3", "signal 11 (SIGSEGV)" */
void td_child_end_text(int status, char *text, size_t size);
const char *td_signal_name(int signal); /* "SIGSEGV"; "a signal" for the rare ones */
bool td_child_failed(int status);
int td_child_exit_code(int status); /* as shells count it: 128 + signal */
/* Of children that failed and were just reaped, the likely cause: one that a signal ended before
 * one that complained, since survivors complain. -1: none failed. */
int td_children_first_failure(const td_child *children, int count);
/* Whether a message tells of a process, as those of survivors do: "rank 1 (pid 123) has died",
 * which is on the teller's own host, or "rank 1 (pid 123 on host) ...". */
bool td_message_names(const char *message, const char *teller, long pid, const char *host);
/* The child, but `self`, that a message names, or -1. */
int td_children_named(const td_child *children, int count, int self, const char *message);

#endif
