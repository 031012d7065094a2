/* Looks at processes of this host, and at this one's limits and stderr. */
#include "dist/comm/process.h"

#include "tensor/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

td_status td_files_for(int processes, int each)
{
    enum { OWN = 16 };
    struct rlimit files;
    rlim_t needed = OWN + (rlim_t)each * (rlim_t)processes;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= needed) {
        return TD_OK;
    }
    rlim_t allowed = files.rlim_max;
    files.rlim_cur = needed;
    TD_CHECK(needed <= allowed && setrlimit(RLIMIT_NOFILE, &files) == 0, TD_E_IO,
             "%llu open files are needed for %d process%s and %llu are allowed (ulimit -n)",
             (unsigned long long)needed, processes, processes == 1 ? "" : "es",
             (unsigned long long)allowed);
    return TD_OK;
}

double td_seconds_until(double deadline)
{
    return fmax(deadline - td_clock(), 1e-3);
}

void td_close_fd(int fd)
{
    if (fd >= 0) {
        close(fd);
    }
}

bool td_stderr_is_read(double seconds)
{
    struct pollfd console = { .fd = STDERR_FILENO, .events = POLLOUT };
    return poll(&console, 1, (int)(seconds * 1e3)) > 0;
}

/* What /proc says, read without malloc, which may have no memory. Otherwise an errno: ESRCH or
 * ENOENT: no such process; others tell nothing of the process: too many open files, say. */
static int read_process(pid_t pid, char *state, pid_t *parent, uint64_t *start_time)
{
    char path[64], line[1024];
    /* Its first thread's file says the same; of the process's own, qemu-user tells another start.
     */
    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", (int)pid, (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return errno;
    }
    ssize_t length = read(fd, line, sizeof line - 1);
    int error = errno;
    close(fd);
    if (length < 0) {
        return error;
    }
    line[length] = '\0';
    /* The second field is the program's name in brackets, which may hold anything. */
    const char *end = strrchr(line, ')');
    int from = 0;
    unsigned long long start = 0;
    if (end == NULL || sscanf(end + 1,
                              " %c %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                              "%*s %*s %llu",
                              state, &from, &start) != 3) {
        return ESRCH;
    }
    *parent = from;
    *start_time = start;
    return 0;
}

char td_process_state(pid_t pid, uint64_t *start_time)
{
    char state = 0;
    pid_t parent = 0;
    int error = read_process(pid, &state, &parent, start_time);
    if (error != 0) {
        return error == ESRCH || error == ENOENT ? 0 : TD_PROCESS_UNKNOWN;
    }
    return state == 'Z' || state == 'X' || state == 'x' ? 0 : state;
}

pid_t td_process_parent(pid_t pid, uint64_t *start_time)
{
    char state = 0;
    pid_t parent = 0;
    return read_process(pid, &state, &parent, start_time) == 0 ? parent : 0;
}

void td_process_note(pid_t pid, char *text, size_t size)
{
    uint64_t start;
    char state = td_process_state(pid, &start);
    if (state == 'T' || state == 't') {
        snprintf(text, size, "its process, pid %d, is stopped", (int)pid);
    }
}
