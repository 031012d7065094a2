/* What a job might leave behind: a temporary folder, processes that workers have started, and, if
 * the launcher is killed, all of that. */
#include "dist/comm/launch/launcher.h"
#include "dist/comm/process.h"
#include "tensor/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/prctl.h>
#endif

/* Seconds; SIGKILL takes time if a disk hangs. Much less than TD_LOST: meanwhile this launcher
 * sends no beat. */
static const double PATIENCE = 2;

/* ---- the folder ---- */

td_status td_launch_folder_make(char path[TD_LAUNCH_PATH_BYTES])
{
    const char *root = getenv("TMPDIR");
    snprintf(path, TD_LAUNCH_PATH_BYTES, "%s/tdrun-XXXXXX",
             root != NULL && root[0] != '\0' ? root : "/tmp");
    return mkdtemp(path) != NULL
               ? TD_OK
               : td_fail(TD_E_IO, "cannot make a folder like %s: %s", path, strerror(errno));
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *place)
{
    (void)info, (void)type, (void)place;
    return remove(path);
}

bool td_launch_folder_remove(const char *path)
{
    return nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS) == 0;
}

/* ---- orphans ---- */

void td_orphans_adopt(void)
{
#ifdef PR_SET_CHILD_SUBREAPER
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
#endif
}

static bool is_own(pid_t pid, const td_children *own, const td_guard *guard)
{
    bool found = pid == guard->pid;
    for (int i = 0; i < own->count && !found; i++) {
        found = own->list[i].running && own->list[i].pid == pid;
    }
    return found;
}

/* Kills and reaps the orphans of the moment; their children are orphans then. Processes that ran
 * before the guard did are no worker's, but helpers of the script that became this process by exec.
 * Returns how many orphans there were. */
static int kill_all(const td_children *own, const td_guard *guard)
{
    int count = 0;
    uint64_t start;
    glob_t all;
    if (glob("/proc/[1-9]*", GLOB_NOSORT, NULL, &all) != 0) {
        return 0;
    }
    for (size_t i = 0; i < all.gl_pathc; i++) {
        pid_t pid = (pid_t)atol(all.gl_pathv[i] + strlen("/proc/"));
        if (td_process_parent(pid, &start) == getpid() && start > guard->start_time &&
            !is_own(pid, own, guard)) {
            kill(pid, SIGKILL);
            (void)waitpid(pid, NULL, WNOHANG);
            count++;
        }
    }
    globfree(&all);
    return count;
}

static void guard_reap(const td_children *own, const td_guard *guard)
{
    siginfo_t info = { 0 };
    while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0 &&
           !is_own(info.si_pid, own, guard)) {
        while (waitpid(info.si_pid, NULL, 0) < 0 && errno == EINTR) {
        }
        info.si_pid = 0;
    }
}

void td_orphans_look(const td_children *own, const td_guard *guard, bool end)
{
    double deadline = td_clock() + PATIENCE;
    guard_reap(own, guard);
    while (end && kill_all(own, guard) > 0 && td_clock() < deadline) {
        td_sleep(0.001);
    }
}

/* ---- the guard ---- */

enum { TRIES = 200 };

_Noreturn static void guard_main(int pipe, const td_children *workers, const char *folder)
{
    char byte;
    ssize_t got;
    setsid(); /* signals to the launcher's group do not reach the guard; others are blocked */
    int nothing = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3 && nothing >= 0; fd++) {
        dup2(nothing, fd);
    }
    while ((got = read(pipe, &byte, 1)) < 0 && errno == EINTR) {
    }
    bool ended = got > 0; /* otherwise the launcher died */
    for (int i = 0; i < workers->count; i++) {
        if (workers->list[i].running) {
            kill(-workers->list[i].pid, SIGKILL);
        }
    }
    /* Workers that die may still write into it. */
    for (int i = 0; !ended && folder[0] != '\0' && !td_launch_folder_remove(folder) && i < TRIES;
         i++) {
        td_sleep(0.01);
    }
    _exit(0);
}

td_status td_guard_start(td_guard *guard, const td_children *workers, const char *folder)
{
    int ends[2];
    TD_CHECK(pipe2(ends, O_CLOEXEC) == 0, TD_E_IO, "no pipe: %s", strerror(errno));
    pid_t pid = fork();
    if (pid == 0) {
        close(ends[1]);
        guard_main(ends[0], workers, folder);
    }
    close(ends[0]);
    if (pid < 0) {
        close(ends[1]);
        return td_fail(TD_E_NOMEM, "cannot start a process: %s", strerror(errno));
    }
    *guard = (td_guard){ .pid = pid, .pipe = ends[1] };
    (void)td_process_state(pid, &guard->start_time);
    return TD_OK;
}

void td_guard_end(td_guard *guard)
{
    (void)!write(guard->pipe, "", 1);
    close(guard->pipe);
    while (waitpid(guard->pid, NULL, 0) < 0 && errno == EINTR) {
    }
}
