/* Writes why this process failed to where its parent reads it. */
#include "dist/comm/launch/error_file.h"
#include "tensor/extend.h"

#include "tensor/clock.h"
#include "tensor/error.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Atomic(td_error_note *) note;
static atomic_bool reported;

void td_error_report_to(td_error_note *shared)
{
    atomic_store(&note, shared);
    atomic_store(&reported, false);
}

void td_error_report(const char *message)
{
    const char *path = getenv("TANDEM_ERROR_FILE");
    td_error_note *shared = atomic_load(&note);
    if ((shared == NULL && path == NULL) || atomic_exchange(&reported, true)) {
        return;
    }
    if (shared != NULL) {
        snprintf(shared->message, sizeof(shared->message), "%s", message);
        atomic_store(&shared->when, td_clock());
        return;
    }
    /* A FIFO that nobody reads would not open. A message that cannot be told is lost; the failure
     * itself is not. */
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0644);
    if (fd >= 0) {
        (void)!write(fd, message, strlen(message));
        close(fd);
    }
}

static void on_fatal(const char *message, void *user)
{
    (void)user;
    td_error_report(message);
    (void)td_say_last("", message);
}

/* A child of td_spawn prints nothing, because its parent reports the message, and does not run the
 * parent's atexit functions. */
static void on_die(const char *message)
{
    td_error_report(message);
    if (atomic_load(&note) != NULL) {
        fflush(NULL);
        _exit(1);
    }
}

void td_error_report_fatal(void)
{
    td_die_hook = on_die;
    td_set_fatal_handler(on_fatal, NULL);
}
