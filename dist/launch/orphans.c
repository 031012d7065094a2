/* What workers have started and left behind, in whatever process group or session. */
#include "tensor/clock.h"
#include "dist/launch/launcher.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/prctl.h>
#endif

static const double PATIENCE = 5; /* seconds; SIGKILL takes time if a disk hangs */

void td_orphans_adopt(void)
{
#ifdef PR_SET_CHILD_SUBREAPER
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
#endif
}

static bool is_own(pid_t pid, const td_children *own, pid_t guard)
{
    bool found = pid == guard;
    for (int i = 0; i < own->count && !found; i++) {
        found = own->list[i].running && own->list[i].pid == pid;
    }
    return found;
}

/* Kills the orphans of the moment; their children are orphans then. Returns how many there were. */
static int kill_all(const td_children *own, pid_t guard)
{
    int count = 0;
    siginfo_t info;
    DIR *all = opendir("/proc");
    for (struct dirent *entry; all != NULL && (entry = readdir(all)) != NULL;) {
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        /* waitid fails for a process that is no child of this one. */
        if (pid > 0 && !is_own(pid, own, guard) &&
            waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0) {
            kill(pid, SIGKILL);
            count++;
        }
    }
    if (all != NULL) {
        closedir(all);
    }
    return count;
}

static void reap(const td_children *own, pid_t guard)
{
    siginfo_t info = { 0 };
    while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0 &&
           !is_own(info.si_pid, own, guard)) {
        while (waitpid(info.si_pid, NULL, 0) < 0 && errno == EINTR) {
        }
        info.si_pid = 0;
    }
}

void td_orphans_look(const td_children *own, pid_t guard, bool end)
{
    double deadline = td_clock() + PATIENCE;
    reap(own, guard);
    while (end && kill_all(own, guard) > 0 && td_clock() < deadline) {
        td_sleep(0.001);
        reap(own, guard);
    }
}
