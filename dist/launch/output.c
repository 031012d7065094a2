/* Copies workers' lines to files and, with "[rank]" before them, to the console. */
#include "tensor/clock.h"
#include "dist/launch/launcher.h"
#include "dist/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MAX_STREAMS = 2 * TD_LAUNCH_MAX_WORKERS,
    LINE_BYTES = 4096, /* longer lines are shown in pieces */
    ABANDON = 1,       /* seconds for what is left to be written at the end */
};

typedef struct stream {
    int pipe, file, console, rank;
    char line[LINE_BYTES];
    size_t length;
} stream;

struct td_output {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t fewer;
    int wake_up[2];
    bool stopping;
    stream *streams[MAX_STREAMS]; /* added under the lock; removed by the thread, under the lock */
    int count;
};

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

static void show_line(stream *s)
{
    char shown[LINE_BYTES + 32];
    int prefix = snprintf(shown, sizeof(shown), "[%d] ", s->rank);
    memcpy(shown + prefix, s->line, s->length);
    shown[(size_t)prefix + s->length] = '\n';
    write_all(s->console, shown, (size_t)prefix + s->length + 1); /* one write: lines stay whole */
    s->length = 0;
}

static void take(stream *s, const char *bytes, size_t size)
{
    write_all(s->file, bytes, size);
    for (size_t i = 0; i < size; i++) {
        if (bytes[i] == '\n' || s->length == LINE_BYTES) {
            show_line(s);
        }
        if (bytes[i] != '\n') {
            s->line[s->length++] = bytes[i];
        }
    }
}

static void end_stream(td_output *o, int index)
{
    stream *s = o->streams[index];
    if (s->length > 0) {
        show_line(s);
    }
    close(s->pipe);
    close(s->file);
    free(s);
    pthread_mutex_lock(&o->lock);
    o->streams[index] = o->streams[--o->count];
    pthread_cond_broadcast(&o->fewer);
    pthread_mutex_unlock(&o->lock);
}

/* false: the stream has ended. */
static bool read_stream(stream *s)
{
    char bytes[16384];
    ssize_t got = read(s->pipe, bytes, sizeof(bytes));
    if (got > 0) {
        take(s, bytes, (size_t)got);
    }
    return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

static void *output_main(void *argument)
{
    td_output *o = argument;
    static struct pollfd polled[MAX_STREAMS + 1];
    for (;;) {
        pthread_mutex_lock(&o->lock);
        int count = o->count;
        bool stopping = o->stopping;
        for (int i = 0; i < count; i++) {
            polled[i] = (struct pollfd){ .fd = o->streams[i]->pipe, .events = POLLIN };
        }
        pthread_mutex_unlock(&o->lock);
        if (stopping) {
            return NULL;
        }
        polled[count] = (struct pollfd){ .fd = o->wake_up[0], .events = POLLIN };
        if (poll(polled, (nfds_t)count + 1, -1) < 0) {
            continue;
        }
        char byte;
        if (polled[count].revents != 0) {
            (void)!read(o->wake_up[0], &byte, 1);
        }
        for (int i = count - 1; i >= 0; i--) {
            if (polled[i].revents != 0 && !read_stream(o->streams[i])) {
                end_stream(o, i);
            }
        }
    }
}

static void wake(td_output *o)
{
    while (write(o->wake_up[1], "x", 1) < 0 && errno == EINTR) {
    }
}

td_status td_output_start(td_output **output)
{
    td_output *o = calloc(1, sizeof(td_output));
    if (o == NULL || pipe2(o->wake_up, O_CLOEXEC) != 0) {
        free(o);
        return td_fail(TD_E_NOMEM, "no memory or pipe for the workers' output");
    }
    pthread_mutex_init(&o->lock, NULL);
    td_condition_init(&o->fewer);
    int error = td_thread_start(&o->thread, output_main, o);
    if (error != 0) {
        close(o->wake_up[0]);
        close(o->wake_up[1]);
        free(o);
        return td_fail(TD_E_NOMEM, "no thread for the workers' output: %s", strerror(error));
    }
    *output = o;
    return TD_OK;
}

int td_output_add(td_output *o, int rank, int file, int console)
{
    int ends[2];
    stream *s = calloc(1, sizeof(stream));
    if (s == NULL || pipe2(ends, O_CLOEXEC) != 0) {
        free(s);
        return td_fail(TD_E_IO, "rank %d: no pipe for its output: %s", rank, strerror(errno));
    }
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    *s = (stream){ .pipe = ends[0], .file = file, .console = console, .rank = rank };
    pthread_mutex_lock(&o->lock);
    bool fits = o->count < MAX_STREAMS;
    if (fits) {
        o->streams[o->count++] = s;
    }
    pthread_mutex_unlock(&o->lock);
    if (!fits) {
        close(ends[0]);
        close(ends[1]);
        free(s);
        return td_fail(TD_E_ARG, "more than %d streams of output", MAX_STREAMS);
    }
    wake(o);
    return ends[1];
}

void td_output_flush(td_output *o, double timeout)
{
    double deadline = td_clock() + timeout;
    pthread_mutex_lock(&o->lock);
    while (o->count > 0 && td_condition_await(&o->fewer, &o->lock, deadline)) {
    }
    pthread_mutex_unlock(&o->lock);
}

void td_output_stop(td_output *o)
{
    if (o == NULL) {
        return;
    }
    pthread_mutex_lock(&o->lock);
    o->stopping = true;
    pthread_mutex_unlock(&o->lock);
    wake(o);
    struct timespec patience;
    clock_gettime(CLOCK_REALTIME, &patience);
    patience.tv_sec += ABANDON;
    if (pthread_timedjoin_np(o->thread, NULL, &patience) != 0) {
        pthread_detach(o->thread); /* it writes to a console that nobody reads (Ctrl-S) */
        return;
    }
    while (o->count > 0) {
        end_stream(o, o->count - 1);
    }
    close(o->wake_up[0]);
    close(o->wake_up[1]);
    pthread_mutex_destroy(&o->lock);
    pthread_cond_destroy(&o->fewer);
    free(o);
}
