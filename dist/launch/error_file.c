#include "dist/launch/error_file.h"
#include "tensor/extend.h"

#include "tensor/clock.h"
#include "tensor/error.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_int pipe_fd = -1;
static atomic_bool reported;

void td_error_report_to(int fd)
{
    atomic_store(&pipe_fd, fd);
    atomic_store(&reported, false);
}

void td_error_report(const char *message)
{
    const char *path = getenv("TANDEM_ERROR_FILE");
    int fd = atomic_load(&pipe_fd);
    bool by_path = fd < 0;
    if ((by_path && path == NULL) || atomic_exchange(&reported, true)) {
        return;
    }
    if (by_path) {
        /* A FIFO that nobody reads would not open. */
        fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0644);
    }
    /* A message that cannot be told is lost; the failure itself is not. */
    if (by_path && fd >= 0) {
        (void)!write(fd, message, strlen(message));
    } else if (fd >= 0) {
        dprintf(fd, "%.9f %s", td_clock(), message);
    }
    if (by_path && fd >= 0) {
        close(fd);
    }
}

static void on_fatal(const char *message, void *user)
{
    (void)user;
    td_error_report(message);
    fprintf(stderr, "%s\n", message);
}

/* td_spawn's parent tells what it was handed; and its atexit functions are not its children's. */
static void on_die(const char *message)
{
    td_error_report(message);
    if (atomic_load(&pipe_fd) >= 0) {
        fflush(NULL);
        _exit(1);
    }
}

void td_error_report_fatal(void)
{
    td_die_hook = on_die;
    td_set_fatal_handler(on_fatal, NULL);
}
