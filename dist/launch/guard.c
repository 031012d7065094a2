#include "dist/launch/launcher.h"
#include "tensor/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_GROUPS = 2 * TD_LAUNCH_MAX_WORKERS, ENDED = 0, TRIES = 200 };

/* Messages are numbers: a group that began, or, negative, one that ended; or ENDED, from a launcher
 * that ends by itself. */
static void note(int32_t *groups, int *count, int32_t message)
{
    if (message > 0 && *count < MAX_GROUPS) {
        groups[(*count)++] = message;
        return;
    }
    for (int i = 0; i < *count; i++) {
        if (groups[i] == -message) {
            groups[i] = groups[--*count];
            return;
        }
    }
}

_Noreturn static void guard_main(int pipe, const char *folder)
{
    int32_t groups[MAX_GROUPS], message;
    int count = 0;
    bool ended = false;
    ssize_t got;
    setsid(); /* signals to the launcher's group do not reach the guard */
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    signal(SIGQUIT, SIG_IGN);
    int nothing = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3 && nothing >= 0; fd++) {
        dup2(nothing, fd);
    }
    while ((got = read(pipe, &message, sizeof(message))) == sizeof(message) ||
           (got < 0 && errno == EINTR)) {
        ended = ended || (got > 0 && message == ENDED);
        if (got > 0 && message != ENDED) {
            note(groups, &count, message);
        }
    }
    for (int i = 0; i < count; i++) {
        kill(-groups[i], SIGKILL);
    }
    /* Workers that die may still write into it. */
    for (int i = 0; !ended && folder[0] != '\0' && !td_launch_folder_remove(folder) && i < TRIES;
         i++) {
        td_sleep(0.01);
    }
    _exit(0);
}

td_status td_guard_start(td_guard *guard, const char *folder)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return td_fail(TD_E_IO, "no pipe: %s", strerror(errno));
    }
    pid_t pid = fork();
    if (pid == 0) {
        close(ends[1]);
        guard_main(ends[0], folder);
    }
    close(ends[0]);
    if (pid < 0) {
        close(ends[1]);
        return td_fail(TD_E_NOMEM, "cannot start a process: %s", strerror(errno));
    }
    *guard = (td_guard){ .pid = pid, .pipe = ends[1] };
    return TD_OK;
}

static void tell(const td_guard *guard, int32_t message)
{
    /* If the guard is gone, the workers still have their parent-death signal. */
    (void)!write(guard->pipe, &message, sizeof(message));
}

void td_guard_add(const td_guard *guard, pid_t group)
{
    tell(guard, (int32_t)group);
}

void td_guard_remove(const td_guard *guard, pid_t group)
{
    tell(guard, -(int32_t)group);
}

void td_guard_end(td_guard *guard)
{
    int status;
    tell(guard, ENDED);
    close(guard->pipe);
    while (waitpid(guard->pid, &status, 0) < 0 && errno == EINTR) {
    }
}
