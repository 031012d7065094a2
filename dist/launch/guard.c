#include "dist/launch/launcher.h"
#include "tensor/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

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
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return td_fail(TD_E_IO, "no pipe: %s", strerror(errno));
    }
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
    return TD_OK;
}

void td_guard_end(td_guard *guard)
{
    (void)!write(guard->pipe, "", 1);
    close(guard->pipe);
    while (waitpid(guard->pid, NULL, 0) < 0 && errno == EINTR) {
    }
}
