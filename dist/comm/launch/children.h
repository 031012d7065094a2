/* Child processes that must not outlive this process, for td_spawn and the launcher. On Linux they
 * die with their parent in all cases; elsewhere they outlive the parent's SIGKILL. */
#pragma once

#include "dist/comm/launch/error_file.h"

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

/* In memory that this process shares with the launcher's guard. Children may read it, but write
 * only their notes: a child that writes where it should not must not change whom this process
 * kills. */
typedef struct td_children {
    int count, capacity;
    bool stopping, killed; /* asked to end; after the grace period */
    int passed;            /* the last signal of td_children_pass, or 0 */
    double kill_at;
    td_error_note *notes; /* [count]: why each failed, if it is known */
    td_child list[];      /* [count] */
} td_children;

/* Opens descriptors 0 to 2 on /dev/null if they are closed. Otherwise the first file or socket
 * would become a stream that messages are written to. */
void td_keep_standard_streams(void);

/* Waits for signals instead of handling them: between begin and end the calling thread blocks TERM,
 * INT, HUP, QUIT, USR1, USR2, XCPU, TSTP and CHLD. Ignored signals stay ignored (nohup). This
 * process ignores SIGPIPE, and descriptors 0 to 2 are opened if they were closed. */
typedef struct td_signal_watch {
    const struct td_children *children; /* those that stop with this process; NULL: none yet */
    sigset_t watched, before;
    struct sigaction child_before, pipe_before;
} td_signal_watch;

void td_signal_watch_begin(td_signal_watch *watch);
/* The next signal; 0: a child has ended, or the time-out is over, or this process and its children
 * were stopped (Ctrl-Z) and continued. */
int td_signal_watch_wait(const td_signal_watch *watch, double timeout);
/* Whether a signal has come that td_signal_watch_wait has not returned yet. */
bool td_signal_watch_has(const td_signal_watch *watch);
void td_signal_watch_end(td_signal_watch *watch);

td_children *td_children_new(int capacity); /* NULL: no memory */
void td_children_free(td_children *all);    /* NULL is fine */
/* Forgets the children, none of which may run. */
void td_children_clear(td_children *all);

/* fork(), with the child at a place of the list: behind the list's end, or in place of a child that
 * has ended. The child leads its own process group, dies with this thread, has the signals from
 * before the watch, and reads from /dev/null. 0 in the child, -1 with errno: the list is as before.
 */
pid_t td_children_fork(td_children *all, int place, td_signal_watch *watch);
/* In a child: sets an environment variable. Other threads of the parent do not matter: malloc works
 * in the child of a fork, and they do not change the environment. */
void td_child_setenv(const char *name, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Reaps ended children and kills the rest of their process groups; kills all if the grace period is
 * over. Returns how many still run. */
int td_children_look(td_children *all);
int td_children_running(const td_children *all);
/* Sends a signal to the groups of all running children; all NULL: there are none. */
void td_children_signal(const td_children *all, int signal);
/* Asks the children to end by a signal, and wakes stopped ones. td_children_look sends SIGKILL
 * after `grace` seconds. A second call does nothing. */
void td_children_stop(td_children *all, int signal, double grace);
/* Passes on a signal that this process was sent, also to children that are being stopped. A warning
 * (USR1, USR2, XCPU) sets no limit: batch systems send it minutes before the end. INT, TERM or QUIT
 * a second time ends the grace period. (HUP comes twice when a terminal is closed: from the shell
 * and from the system.) */
void td_children_pass(td_children *all, int signal, double grace);

/* The child whose failure caused those of the others, or -1: none has failed, or the cause cannot
 * be told yet. A child that a signal has ended comes before a child that has reported an error,
 * because survivors report errors; then the earliest report counts; then what a message names. Such
 * a child may still end, as a large process does slowly: it has 3 seconds. */
int td_children_cause(const td_children *all);

/* A child that had ended well when td_children_cause's failed, or that its message names: perhaps
 * it has left work to the others that they cannot do without it. -1: none. */
int td_children_early(const td_children *all, int cause);
#define TD_ENDED_EARLY                                                                             \
    "rank %d had ended before (exit code 0) while the others still worked: has it made fewer "     \
    "steps?"

/* "exit code 3", "signal 11 (SIGSEGV)" */
void td_child_end_text(int status, char *text, size_t size);
const char *td_signal_name(int signal); /* "SIGSEGV"; "a signal": unknown */
bool td_child_failed(int status);
bool td_child_struck(int status);   /* ended by a signal; SIGABRT counts as a reported error */
int td_child_exit_code(int status); /* as in a shell: 128 + signal */
/* Whether a survivor's message names a process: "rank 1 (pid 123) has died" for a process on the
 * teller's host, or "rank 1 (pid 123 on host) ...". */
bool td_message_names(const char *message, const char *teller, long pid, const char *host);
