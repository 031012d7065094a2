/* Timelines in the format of Chrome's about:tracing and Perfetto: a JSON object with a list of
 * events, one a line. Each rank is a process of the timeline, and its threads are lanes. One more
 * lane shows the communication thread.
 *
 * Each rank writes its own file while it runs. At the end rank 0 joins the lines of all files. A
 * rank that was killed leaves a file without its last line, which does not matter. */
#include "dist/trace.h"

#include "dist/comm/collectives.h"
#include "tensor/clock.h"
#include "tensor/extend.h"
#include "tensor/hooks.h"
#include "tensor/observe/watch.h"
#include "tensor/system/folders.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEPTH = 64, THREADS = 256 };
enum { GPU_LANE = THREADS, COMMUNICATION_LANE = GPU_LANE + TD_MAX_DEVICES, LANES };

#define HEAD "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
#define TAIL "]}\n"

static struct {
    pthread_mutex_t lock;
    FILE *file;
    char *path, *own_path; /* the joined file; this rank's file (the same in a world of one) */
    int rank, world;
    int64_t epoch;     /* nanoseconds from CLOCK_MONOTONIC to the time of day */
    bool empty;        /* no event yet */
    size_t memory;     /* bytes of step memory at the last counter */
    bool named[LANES]; /* lanes whose name has been written */
} trace = { .lock = PTHREAD_MUTEX_INITIALIZER };

static atomic_bool on;

/* A thread's open spans, outermost first. */
static _Thread_local struct {
    const char *name;
    double begin;
} spans[DEPTH];
static _Thread_local int span_depth;

/* ---- writing ---- */

/* Microseconds with three digits, of nanoseconds: a double would be too coarse for the time of day,
 * and its point depends on the locale. */
#define MICROSECONDS "%lld.%03lld"
#define AS_MICROSECONDS(ns) (long long)(ns) / 1000, (long long)(ns) % 1000

static int64_t nanoseconds(double seconds)
{
    return (int64_t)(seconds * 1e9 + 0.5);
}

static void write_text(const char *text)
{
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < ' ' || c == '"' || c == '\\') {
            fprintf(trace.file, "\\u%04x", c);
        } else {
            putc_unlocked(c, trace.file);
        }
    }
}

/* Begins a line. With the lock. */
static void begin_event(const char *phase, int lane)
{
    fprintf(trace.file, "%s{\"ph\":\"%s\",\"pid\":%d,\"tid\":%d", trace.empty ? "" : ",", phase,
            trace.rank, lane);
    trace.empty = false;
}

static void write_name(const char *what, int lane, const char *name)
{
    begin_event("M", lane);
    fprintf(trace.file, ",\"name\":\"%s\",\"args\":{\"name\":\"", what);
    write_text(name);
    fputs("\"}}\n", trace.file);
}

/* A category says what a span is: the pass of a kernel ("forward", "backward", "optimizer"), a
 * "part" of a step, a "message", or a "span" outside of kernels. apps/report colours by it. */
static void write_span(int lane, const char *lane_name, const char *category, const char *name,
                       double begin, double end, int64_t bytes)
{
    pthread_mutex_lock(&trace.lock);
    if (trace.file == NULL) {
        pthread_mutex_unlock(&trace.lock);
        return;
    }
    if (!trace.named[lane]) {
        trace.named[lane] = true;
        write_name("thread_name", lane, lane_name);
    }
    begin_event("X", lane);
    fprintf(trace.file, ",\"cat\":\"%s\",\"ts\":" MICROSECONDS ",\"dur\":" MICROSECONDS, category,
            AS_MICROSECONDS(nanoseconds(begin) + trace.epoch),
            AS_MICROSECONDS(end > begin ? nanoseconds(end - begin) : 0));
    if (bytes > 0) {
        fprintf(trace.file, ",\"args\":{\"bytes\":%lld}", (long long)bytes);
    }
    fputs(",\"name\":\"", trace.file);
    write_text(name);
    fputs("\"}\n", trace.file);
    pthread_mutex_unlock(&trace.lock);
}

/* ---- spans ---- */

/* Threads are numbered in the order of their first events. */
static int lane_of_thread(void)
{
    static atomic_int threads;
    static _Thread_local int lane = -1;
    if (lane < 0) {
        lane = atomic_fetch_add(&threads, 1) % THREADS;
    }
    return lane;
}

bool td_trace_on(void)
{
    return atomic_load_explicit(&on, memory_order_relaxed);
}

void td_trace_begin(const char *name)
{
    if (span_depth < DEPTH) {
        spans[span_depth].name = td_trace_on() ? name : NULL;
        spans[span_depth].begin = td_trace_on() ? td_clock() : 0.0;
    }
    span_depth++;
}

void td_trace_end(void)
{
    TD_REQUIRE(span_depth > 0, TD_HERE, "td_trace_end without a td_trace_begin on this thread");
    span_depth--;
    if (!td_trace_on() || span_depth >= DEPTH || spans[span_depth].name == NULL) {
        return;
    }
    td_trace_span(spans[span_depth].name, spans[span_depth].begin, td_clock());
}

static void write_on_thread(const char *category, const char *name, double begin, double end)
{
    if (!td_trace_on()) {
        return;
    }
    int lane = lane_of_thread();
    char thread[32];
    snprintf(thread, sizeof thread, lane == 0 ? "compute" : "thread %d", lane);
    write_span(lane, thread, category, name, begin, end, 0);
}

void td_trace_span(const char *name, double begin, double end)
{
    write_on_thread("part", name, begin, end);
}

void td_trace_communication(const char *name, double begin, double end, int64_t bytes)
{
    if (td_trace_on()) {
        write_span(COMMUNICATION_LANE, "communication", "message", name, begin, end, bytes);
    }
}

/* The step memory that this thread has in use after a kernel, where that has changed. */
static void trace_memory(double at)
{
    size_t bytes = td_step_memory(TD_CPU).in_use;
    pthread_mutex_lock(&trace.lock);
    if (trace.file != NULL && bytes != trace.memory) {
        trace.memory = bytes;
        begin_event("C", 0);
        fprintf(trace.file,
                ",\"ts\":" MICROSECONDS ",\"name\":\"memory\",\"args\":{\"step\":%zu}}\n",
                AS_MICROSECONDS(nanoseconds(at) + trace.epoch), bytes);
    }
    pthread_mutex_unlock(&trace.lock);
}

/* Kernels, with their modules, and waiting: "conv2d layer1.0.conv1 (Conv2d)". A GPU's work has its
 * own lane, because it runs later than the calls. */
static void trace_call(const td_watched_call *call, void *user)
{
    (void)user;
    char name[160];
    const char *module = call->module != NULL ? call->module : "";
    const char *category = call->span                         ? "span"
                           : call->backward                   ? "backward"
                           : strcmp(module, "optimizer") == 0 ? "optimizer"
                                                              : "forward";
    snprintf(name, sizeof name, "%s%s%s", call->kernel, *module != '\0' ? " " : "", module);
    if (call->device.type != TD_DEVICE_CPU) {
        write_span(GPU_LANE + call->device.index, td_device_name(call->device), category, name,
                   call->begin, call->end, 0);
        return;
    }
    write_on_thread(category, name, call->begin, call->end);
    if (!call->span && lane_of_thread() == 0) {
        trace_memory(call->end);
    }
}

static td_watcher watcher = { .called = trace_call };

static void trace_part(const char *name, double begin, double end, int64_t sent, void *user)
{
    (void)user;
    if (sent > 0) {
        td_trace_communication(name, begin, end, sent);
    } else {
        td_trace_span(name, begin, end);
    }
}

static td_step_observer observer = { .part = trace_part };

/* ---- files ---- */

/* "a/trace.json" and 3: "a/trace.rank3.json". NULL when memory is short. */
static char *path_of_rank(const char *path, int rank)
{
    const char *name = strrchr(path, '/');
    const char *ending = strrchr(name != NULL ? name : path, '.');
    size_t stem = ending != NULL ? (size_t)(ending - path) : strlen(path);
    size_t size = strlen(path) + 32;
    char *result = malloc(size);
    if (result != NULL) {
        snprintf(result, size, "%.*s.rank%d%s", (int)stem, path, rank,
                 ending != NULL ? ending : "");
    }
    return result;
}

static void forget_paths(void)
{
    free(trace.path);
    free(trace.own_path);
    trace.path = trace.own_path = NULL;
}

/* Opens a file to write. A FIFO without a reader does not open, instead of waiting for one.
 */
static td_status open_to_write(const char *path, FILE **file)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0666);
    if (fd >= 0) {
        fcntl(fd, F_SETFL, 0);
    }
    *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    return *file != NULL
               ? TD_OK
               : td_fail(TD_E_IO, "the trace '%s' cannot be written: %s", path, strerror(errno));
}

/* Opens the files of all ranks, or none. */
static td_status open_file(const char *path)
{
    trace.rank = td_dist_rank();
    trace.world = td_dist_world_size();
    trace.path = td_absolute_path(path);
    trace.own_path = trace.path == NULL ? NULL
                     : trace.world > 1  ? path_of_rank(trace.path, trace.rank)
                                        : strdup(trace.path);
    td_status status = trace.path == NULL || trace.own_path == NULL
                           ? td_fail(TD_E_NOMEM, "no memory for a trace")
                           : open_to_write(trace.own_path, &trace.file);
    if (trace.world > 1) {
        status = td_group_agree(td_dist_world(), status);
    }
    if (status != TD_OK && trace.file != NULL) {
        fclose(trace.file);
        trace.file = NULL;
        unlink(trace.own_path);
    }
    if (status != TD_OK) {
        forget_paths();
    }
    return status;
}

td_status td_trace_open(const char *path)
{
    if (path == NULL) {
        return TD_OK;
    }
    TD_REQUIRE(!td_trace_on(), TD_HERE, "td_trace_open: '%s' is open already; close it first",
               trace.path);
    TD_TRY(open_file(path));
    struct timespec day;
    clock_gettime(CLOCK_REALTIME, &day);
    trace.epoch = (int64_t)day.tv_sec * 1000000000 + day.tv_nsec - nanoseconds(td_clock());
    trace.empty = true;
    memset(trace.named, 0, sizeof trace.named);
    trace.memory = 0;
    fputs(HEAD, trace.file);
    char name[32];
    snprintf(name, sizeof name, "rank %d", trace.rank);
    write_name("process_name", 0, name);
    atomic_store(&on, true);
    td_watch(&watcher);
    td_observe_steps(&observer);
    return TD_OK;
}

/* Adds a rank's file to the joined one; false: there is no such file. */
static bool append_part(FILE *whole, const char *path, bool *empty)
{
    FILE *part = fopen(path, "r");
    if (part == NULL) {
        return false;
    }
    char *line = NULL;
    size_t room = 0;
    for (ssize_t length; (length = getline(&line, &room, part)) > 0;) {
        const char *event = *line == ',' ? line + 1 : line;
        bool whole_line = line[length - 1] == '\n';
        if (whole_line && strncmp(event, "{\"ph\"", 5) == 0) {
            fprintf(whole, "%s%s", *empty ? "" : ",", event);
            *empty = false;
        }
    }
    free(line);
    fclose(part);
    return true;
}

static td_status join_parts(bool last)
{
    FILE *whole;
    TD_TRY(open_to_write(trace.path, &whole));
    fputs(HEAD, whole);
    bool empty = true;
    for (int rank = 0; rank < trace.world; rank++) {
        char *path = path_of_rank(trace.path, rank);
        /* A file on another host's disk is not seen here; it can be opened by itself. */
        if (path != NULL && append_part(whole, path, &empty) && last) {
            unlink(path);
        }
        free(path);
    }
    fputs(TAIL, whole);
    bool wrong = ferror(whole) != 0;
    wrong = fclose(whole) != 0 || wrong;
    TD_CHECK(!wrong, TD_E_IO, "the trace '%s' could not be written: %s", trace.path,
             strerror(errno));
    return TD_OK;
}

td_status td_trace_so_far(void)
{
    /* Not td_trace_on(), which is relaxed: another thread has opened the trace. */
    return atomic_load(&on) && trace.world > 1 ? join_parts(false) : TD_OK;
}

td_status td_trace_close(void)
{
    if (!td_trace_on()) {
        return TD_OK;
    }
    td_ignore_steps(&observer);
    td_unwatch(&watcher);
    atomic_store(&on, false);
    pthread_mutex_lock(&trace.lock);
    fputs(TAIL, trace.file);
    bool bad = ferror(trace.file) != 0;
    bad |= fclose(trace.file) != 0;
    trace.file = NULL;
    pthread_mutex_unlock(&trace.lock);
    td_status status = bad ? td_fail(TD_E_IO, "the trace '%s' could not be written: %s",
                                     trace.own_path, strerror(errno))
                           : TD_OK;
    if (trace.world > 1) {
        /* All ranks have written their files then; one that could not comes, too, or the others
         * would wait for it. */
        td_status met = td_dist_is_initialized() ? td_barrier(NULL) : TD_OK;
        status = status == TD_OK ? met : status;
        if (status == TD_OK && trace.rank == 0) {
            status = join_parts(true);
        }
    }
    forget_paths();
    return status;
}
