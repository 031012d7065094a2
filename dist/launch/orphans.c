/* What workers have started and left behind, in whatever process group or session. */
#include "tensor/clock.h"
#include "dist/launch/launcher.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

static bool is_child(pid_t pid)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    size_t length = file != NULL ? fread(text, 1, sizeof text - 1, file) : 0;
    text[length] = '\0';
    if (file != NULL) {
        fclose(file);
    }
    int parent = 0;
    const char *name_end = strrchr(text, ')'); /* the name may hold anything */
    return name_end != NULL && sscanf(name_end + 1, " %*c %d", &parent) == 1 && parent == getpid();
}

/* Kills the orphans of the moment; their children are orphans then. Returns how many there were. */
static int kill_all(bool (*is_own)(pid_t pid, const void *user), const void *user)
{
    int count = 0;
    DIR *all = opendir("/proc");
    for (struct dirent *entry; all != NULL && (entry = readdir(all)) != NULL;) {
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        if (pid > 0 && !is_own(pid, user) && is_child(pid)) {
            kill(pid, SIGKILL);
            count++;
        }
    }
    if (all != NULL) {
        closedir(all);
    }
    return count;
}

static void reap(bool (*is_own)(pid_t pid, const void *user), const void *user)
{
    siginfo_t info = { 0 };
    while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0 &&
           !is_own(info.si_pid, user)) {
        while (waitpid(info.si_pid, NULL, 0) < 0 && errno == EINTR) {
        }
        info.si_pid = 0;
    }
}

void td_orphans_look(bool (*is_own)(pid_t pid, const void *user), const void *user, bool end)
{
    double deadline = td_clock() + PATIENCE;
    reap(is_own, user);
    while (end && kill_all(is_own, user) > 0 && td_clock() < deadline) {
        td_sleep(0.001);
        reap(is_own, user);
    }
}
