/* Copies workers' lines to files and, with "[rank]" before them, to the console; prints the
 * launcher's own lines. */
#include "tensor/clock.h"
#include "dist/comm/launch/launcher.h"
#include "dist/comm/process.h"
#include "tensor/system/thread.h"
#include "tensor/system/number.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const double LOOK_EVERY = 0.1; /* seconds between looks whether a signal has come */
static const double PATIENCE = 2;     /* seconds for a line; TD_LOST is more */
static const double UNREAD = 0.3;     /* the same after a signal */
static const double ABANDON = 1;      /* seconds for what is left to be written at the end */

struct td_output {
    pthread_mutex_t lock;
    pthread_cond_t fewer;
    int count; /* of streams; each has a thread */
};

typedef struct stream {
    td_output *output;
    int pipe, file, console;
    /* A line begins with its prefix. Longer lines are shown in pieces: what is written at once to a
     * pipe stays whole up to PIPE_BUF. */
    char line[PIPE_BUF];
    size_t prefix, length;
} stream;

static void write_all(int fd, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t written = write(fd, bytes, size);
        if (written < 0 && errno != EINTR) {
            return; /* a full disk or a closed console must not end the training */
        }
        bytes += written > 0 ? written : 0;
        size -= written > 0 ? (size_t)written : 0;
    }
}

bool td_launch_say(const td_signal_watch *watch, bool stopped, const char *format, ...)
{
    char text[4096] = "tdrun: ";
    size_t prefix = strlen(text), room = sizeof(text) - prefix - 1;
    double deadline = td_clock() + PATIENCE;
    va_list args;
    va_start(args, format);
    td_vsnprintf(text + prefix, room, format, args);
    va_end(args);
    strcat(text, "\n");
    while (!td_stderr_is_read(LOOK_EVERY)) {
        stopped = stopped || td_signal_watch_has(watch);
        deadline = stopped ? fmin(deadline, td_clock() + UNREAD) : deadline;
        if (td_clock() > deadline) {
            return false;
        }
    }
    write_all(STDERR_FILENO, text, strlen(text));
    return true;
}

static void show_line(stream *s)
{
    s->line[s->length] = '\n';
    write_all(s->console, s->line, s->length + 1); /* one write: lines stay whole */
    s->length = s->prefix;
}

static void output_take(stream *s, const char *bytes, size_t size)
{
    write_all(s->file, bytes, size);
    for (size_t i = 0; i < size; i++) {
        if (bytes[i] == '\n' || s->length == sizeof(s->line) - 1) {
            show_line(s);
        }
        if (bytes[i] != '\n') {
            s->line[s->length++] = bytes[i];
        }
    }
}

static void count_streams(td_output *o, int more)
{
    pthread_mutex_lock(&o->lock);
    o->count += more;
    pthread_cond_broadcast(&o->fewer);
    pthread_mutex_unlock(&o->lock);
}

static void *stream_main(void *argument)
{
    stream *s = argument;
    td_output *o = s->output;
    char bytes[16384];
    ssize_t got;
    while ((got = read(s->pipe, bytes, sizeof(bytes))) > 0 || (got < 0 && errno == EINTR)) {
        output_take(s, bytes, got > 0 ? (size_t)got : 0);
    }
    if (s->length > s->prefix) {
        show_line(s);
    }
    close(s->pipe);
    close(s->file);
    free(s);
    count_streams(o, -1);
    return NULL;
}

td_status td_output_start(td_output **output)
{
    *output = calloc(1, sizeof(td_output));
    TD_CHECK(*output != NULL, TD_E_NOMEM, "no memory for the workers' output");
    pthread_mutex_init(&(*output)->lock, NULL);
    td_condition_init(&(*output)->fewer);
    return TD_OK;
}

int td_output_add(td_output *o, int rank, int file, int console)
{
    int ends[2];
    pthread_t thread;
    stream *s = calloc(1, sizeof(stream));
    if (s == NULL || pipe2(ends, O_CLOEXEC) != 0) {
        free(s);
        return td_fail(TD_E_IO, "rank %d: no pipe for its output: %s", rank, strerror(errno));
    }
    *s = (stream){ .output = o, .pipe = ends[0], .file = file, .console = console };
    s->prefix = s->length = (size_t)snprintf(s->line, sizeof(s->line), "[%d] ", rank);
    count_streams(o, 1);
    int error = td_thread_start(&thread, stream_main, s);
    if (error != 0) {
        count_streams(o, -1);
        close(ends[0]);
        close(ends[1]);
        free(s);
        return td_fail(TD_E_NOMEM, "rank %d: no thread for its output: %s", rank, strerror(error));
    }
    pthread_detach(thread);
    return ends[1];
}

bool td_output_flush(td_output *o, double timeout)
{
    double deadline = td_clock() + timeout;
    pthread_mutex_lock(&o->lock);
    while (o->count > 0 && td_condition_await(&o->fewer, &o->lock, deadline)) {
    }
    bool ended = o->count == 0;
    pthread_mutex_unlock(&o->lock);
    return ended;
}

void td_output_stop(td_output *o)
{
    /* A thread may write to a console that nobody reads (Ctrl-S): then it keeps the output. */
    if (o != NULL && td_output_flush(o, ABANDON)) {
        pthread_mutex_destroy(&o->lock);
        pthread_cond_destroy(&o->fewer);
        free(o);
    }
}
