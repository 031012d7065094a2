/* The emulated runtime: streams and events.
 *
 * Streams are as lazy as they may be: what is put on one stays there until somebody waits for it.
 * So a wait that is missing shows, always and not once in a while: the host finds old values, or a
 * copy finds a buffer that has been used again. That does not show what runs too early: with
 * TANDEM_EMULATE_ORDER=SEED streams run by chance too, as far as their waits let them. */
#include "tests/emulate/cudart.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct work {
    work *next;
    void (*run)(void *arguments);
    bool waits; /* for another process */
    alignas(16) char arguments[];
};

struct emulated_stream {
    int device;
    uint64_t put, done; /* counts */
    work *first, **last;
    bool running;
    pthread_t runner; /* if it is */
    uint64_t waiting; /* the latest work that waits for another process; 0: none */
    double waiting_since;
    emulated_graph *recording; /* NULL: what is put on it is to be done */
};

struct emulated_event {
    emulated_stream *stream; /* NULL: never recorded */
    uint64_t at;             /* done when the stream has done so many */
    double time;             /* seconds, when it came by */
    emulated_place place;    /* instead, if it was recorded in a graph */
};

namespace
{

pthread_mutex_t lock;
pthread_once_t once = PTHREAD_ONCE_INIT;
int lock_depth; /* how often its thread has taken it */
bool has_helper;
emulated_stream *streams[256]; /* the first are the devices' default streams */
int stream_count;

void initialise()
{
    pthread_mutexattr_t recursive;
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lock, &recursive);
}

emulated_stream *new_stream(int device)
{
    if (stream_count == (int)(sizeof streams / sizeof *streams)) {
        return NULL;
    }
    emulated_stream *s = (emulated_stream *)calloc(1, sizeof *s);
    if (s != NULL) {
        s->device = device;
        s->last = &s->first;
        streams[stream_count++] = s;
    }
    return s;
}

emulated_stream *stream_of(cudaStream_t stream)
{
    if (stream != NULL) {
        return stream;
    }
    while (stream_count < TD_EMULATE_DEVICES) {
        new_stream(stream_count);
    }
    return streams[td_emulate_device()];
}

double clock_now()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void nap(double seconds)
{
    struct timespec t = { 0, (long)(1e9 * seconds) };
    nanosleep(&t, NULL);
}

/* Begins, or ends, under the lock; calls nest: what crashes on a stream ends the program. A test's
 * own handler would jump away while the stream runs, and who waits for it then waits for ever. */
void watch_crashes(bool begin)
{
    static const int numbers[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL };
    static struct sigaction before[4];
    static int depth;
    if (begin ? depth++ > 0 : --depth > 0) {
        return;
    }
    struct sigaction now = {};
    now.sa_handler = td_emulate_crashed;
    for (int i = 0; i < 4; i++) {
        sigaction(numbers[i], begin ? &now : &before[i], begin ? &before[i] : NULL);
    }
}

/* Runs what is on a stream until it has done `until` of all that was ever put there. */
void drain(emulated_stream *s, uint64_t until)
{
    if (s->done >= until) {
        return;
    }
    if (s->running && pthread_equal(s->runner, pthread_self())) {
        fprintf(stderr, "emulated GPU: streams that wait for each other\n");
        abort();
    }
    while (s->running && s->done < until) { /* by another thread, which waits for another process */
        int depth = td_emulate_let_go();
        nap(50e-6);
        td_emulate_take_again(depth);
    }
    if (s->done >= until) {
        return;
    }
    s->running = true;
    s->runner = pthread_self();
    td_emulate_open_memory();
    watch_crashes(true);
    while (s->done < until) {
        work *w = s->first;
        s->first = w->next;
        if (s->first == NULL) {
            s->last = &s->first;
        }
        w->run(w->arguments);
        s->done++;
        free(w);
    }
    watch_crashes(false);
    td_emulate_close_memory();
    s->running = false;
}

/* What the event stands for is decided when the wait is asked for, not when the stream comes to
 * it. */
void wait_for(void *arguments)
{
    const emulated_event *event = (const emulated_event *)arguments;
    drain(event->stream, event->at);
}

/* Whether the stream may do its next work although nobody waits for it. */
bool may_run(const emulated_stream *s)
{
    const work *w = s->first;
    if (w == NULL || s->running || w->waits) {
        return false;
    }
    const emulated_event *event = (const emulated_event *)w->arguments;
    return w->run != wait_for || event->stream->done >= event->at;
}

void run_by_chance()
{
    if (!td_emulate_chance(2)) {
        return;
    }
    emulated_stream *s = streams[td_emulate_random() % (unsigned)stream_count];
    for (unsigned n = td_emulate_random() % 16; n > 0 && may_run(s); n--) {
        drain(s, s->done + 1);
    }
}

/* What waits for other processes is done in the end, although nobody here asks for it. */
void *help(void *)
{
    const double LATE = 20e-3;
    for (;;) {
        nap(5e-3);
        locked guard;
        for (int i = 0; i < stream_count; i++) {
            emulated_stream *s = streams[i];
            if (s->done < s->waiting && !s->running && clock_now() - s->waiting_since > LATE) {
                drain(s, s->waiting);
            }
        }
    }
    return NULL;
}

bool start_helper()
{
    pthread_t helper;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    bool started = pthread_create(&helper, NULL, help, NULL) == 0 && pthread_detach(helper) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return started;
}

void enqueue(cudaStream_t stream, void (*run)(void *arguments), const void *arguments, size_t bytes,
             bool waits)
{
    locked guard;
    emulated_stream *s = stream_of(stream);
    if (s->recording != NULL) {
        td_emulate_graph_add(s->recording, s, run, arguments, bytes, waits);
        return;
    }
    work *w = (work *)malloc(sizeof *w + bytes);
    if (w == NULL) {
        td_emulate_error(cudaErrorMemoryAllocation);
        return;
    }
    w->next = NULL;
    w->run = run;
    w->waits = waits;
    if (bytes > 0) {
        memcpy(w->arguments, arguments, bytes);
    }
    *s->last = w;
    s->last = &w->next;
    s->put++;
    if (waits) {
        s->waiting = s->put;
        s->waiting_since = clock_now();
        has_helper = has_helper || start_helper();
    }
    run_by_chance();
}

} // namespace

/* ---- for the other files ---- */

void td_emulate_lock(void)
{
    pthread_once(&once, initialise);
    pthread_mutex_lock(&lock);
    lock_depth++;
}

void td_emulate_unlock(void)
{
    lock_depth--;
    pthread_mutex_unlock(&lock);
}

bool td_emulate_trylock(void)
{
    pthread_once(&once, initialise);
    if (pthread_mutex_trylock(&lock) != 0) {
        return false; /* nor is lock_depth touched: it is the owner's */
    }
    lock_depth++;
    return true;
}

int td_emulate_let_go(void)
{
    int depth = lock_depth;
    for (int i = 0; i < depth; i++) {
        td_emulate_unlock();
    }
    return depth;
}

void td_emulate_take_again(int depth)
{
    for (int i = 0; i < depth; i++) {
        td_emulate_lock();
    }
}

unsigned td_emulate_random(void)
{
    static unsigned state;
    state = state * 1664525u + 1013904223u;
    return state >> 8;
}

bool td_emulate_chance(unsigned one_in)
{
    static const char *seed = getenv("TANDEM_EMULATE_ORDER");
    static bool seeded;
    if (seed == NULL) {
        return false;
    }
    for (unsigned n = seeded ? 0 : (unsigned)atoi(seed); n > 0; n--) {
        (void)td_emulate_random();
    }
    seeded = true;
    return td_emulate_random() % one_in == 0;
}

emulated_graph **td_emulate_recording_of(cudaStream_t stream)
{
    return &stream_of(stream)->recording;
}

void td_emulate_drain_all(void)
{
    for (int i = 0; i < stream_count; i++) {
        drain(streams[i], streams[i]->put);
    }
}

extern "C" {

bool td_emulate_is_recorded(cudaStream_t stream)
{
    locked guard;
    return *td_emulate_recording_of(stream) != NULL;
}

void td_emulate_enqueue(cudaStream_t stream, void (*run)(void *arguments), const void *arguments,
                        size_t bytes)
{
    enqueue(stream, run, arguments, bytes, false);
}

void td_emulate_run_others(cudaStream_t held)
{
    locked guard;
    for (int i = 0; i < stream_count; i++) {
        while (streams[i] != held && may_run(streams[i])) {
            drain(streams[i], streams[i]->done + 1);
            i = 0; /* others may have waited for it */
        }
    }
}

void td_emulate_enqueue_waiting(cudaStream_t stream, void (*run)(void *arguments),
                                const void *arguments, size_t bytes)
{
    enqueue(stream, run, arguments, bytes, true);
}

/* ---- streams ---- */

cudaError_t cudaDeviceSynchronize(void)
{
    locked guard;
    if (td_emulate_spoils(NULL)) {
        return cudaErrorStreamCaptureUnsupported;
    }
    for (int i = 0; i < stream_count; i++) { /* also a recording of another thread is spoilt */
        if (streams[i]->device == td_emulate_device() && td_emulate_spoils(streams[i])) {
            return cudaErrorStreamCaptureUnsupported;
        }
    }
    for (int i = 0; i < stream_count; i++) {
        if (streams[i]->device == td_emulate_device()) {
            drain(streams[i], streams[i]->put);
        }
    }
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    (void)flags;
    locked guard;
    (void)stream_of(NULL); /* the default streams come first */
    *stream = new_stream(td_emulate_device());
    return give(*stream != NULL ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    (void)priority;
    return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    return cudaStreamSynchronize(stream); /* its record stays: events may name it */
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    locked guard;
    emulated_stream *s = stream_of(stream);
    if (td_emulate_spoils(s)) {
        return cudaErrorStreamCaptureUnsupported;
    }
    drain(s, s->put);
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    locked guard;
    emulated_stream *s = stream_of(stream);
    if (td_emulate_spoils(s)) {
        return cudaErrorStreamCaptureUnsupported;
    }
    return s->done == s->put ? cudaSuccess : cudaErrorNotReady;
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    (void)flags;
    *event = (emulated_event *)calloc(1, sizeof **event);
    return give(*event != NULL ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, 0);
}

static void come_by(void *arguments)
{
    (*(emulated_event **)arguments)->time = clock_now();
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    locked guard;
    if (event->stream != NULL) { /* its stream still writes the time */
        drain(event->stream, event->at);
    }
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    locked guard;
    emulated_stream *s = stream_of(stream);
    if (s->recording != NULL) {
        event->place = td_emulate_place_of(s->recording, s);
        return cudaSuccess;
    }
    event->place.recording = 0;
    event->stream = s;
    event->at = s->put + 1;
    td_emulate_enqueue(stream, come_by, &event, sizeof event);
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    locked guard;
    if (event->place.recording != 0) {
        return give(td_emulate_spoil_place(&event->place));
    }
    if (event->stream != NULL) {
        drain(event->stream, event->at);
    }
    return cudaSuccess;
}

/* It never waits: where another thread lets a stream run, perhaps one that waits for another
 * process, nothing is known to be over. */
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    if (!td_emulate_trylock()) {
        return cudaErrorNotReady;
    }
    cudaError_t error = event->place.recording != 0 ? give(td_emulate_spoil_place(&event->place))
                        : td_emulate_spoils(NULL)   ? give(cudaErrorStreamCaptureUnsupported)
                        : event->stream == NULL || event->stream->done >= event->at
                            ? cudaSuccess
                            : cudaErrorNotReady;
    td_emulate_unlock();
    return error;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin, cudaEvent_t end)
{
    if (cudaEventQuery(begin) != cudaSuccess || cudaEventQuery(end) != cudaSuccess) {
        return give(cudaErrorNotReady);
    }
    *milliseconds = (float)(1e3 * (end->time - begin->time));
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    (void)flags;
    locked guard;
    if (event->place.recording != 0) {
        return give(td_emulate_wait_for_place(stream_of(stream), &event->place));
    }
    if (event->stream != NULL && td_emulate_spoils(stream_of(stream))) {
        return give(cudaErrorStreamCaptureIsolation);
    }
    if (event->stream != NULL) {
        td_emulate_enqueue(stream, wait_for, event, sizeof *event);
    }
    return cudaSuccess;
}

} // extern "C"
