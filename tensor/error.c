/* Errors: fatal ones for mistakes of the program, status codes for failures of the world. */
#include "tensor/error.h"

#include "tensor/extend.h"
#include "tensor/system/number.h"
#include "tensor/system/text.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LAST_ERROR_BYTES = 2048, FATAL_BYTES = 6144, CONTEXT_DEPTH = 32 };
enum { LONGEST_EXIT = 10 }; /* seconds */

static _Thread_local char last_error[LAST_ERROR_BYTES];
static _Thread_local td_status last_status;

/* Names of what runs on this thread, outermost first; depth counts those not kept, too. */
static _Thread_local struct {
    const char *name[CONTEXT_DEPTH];
    int depth;
} context;

static struct {
    pthread_mutex_t lock;
    td_fatal_handler call;
    void *user;
} fatal_handler = { .lock = PTHREAD_MUTEX_INITIALIZER };

static _Thread_local struct {
    td_fatal_handler call;
    void *user;
} thread_handler;

const char *td_status_text(td_status status)
{
    switch (status) {
    case TD_OK:
        return "success";
#define TD_ERROR(name, code, meaning)                                                              \
    case TD_E_##name:                                                                              \
        return meaning;
#include "tensor/errors.def"
#undef TD_ERROR
    }
    return "unknown status";
}

const char *td_last_error(void)
{
    return last_error;
}

const char *td_last_reason(void)
{
    return last_error[0] != '\0' ? last_error : "no message: it was passed NULL";
}

/* A growing message in a buffer of fixed size; what does not fit is cut off. */
typedef struct message {
    char text[FATAL_BYTES];
    size_t length;
} message;

static void message_begin(message *m)
{
    m->text[0] = '\0';
    m->length = 0;
}

__attribute__((format(printf, 2, 0))) static void
message_append_list(message *m, const char *format, va_list args)
{
    int length = td_vsnprintf(m->text + m->length, sizeof m->text - m->length, format, args);
    if (length > 0) {
        size_t end = m->length + (size_t)length;
        m->length = end < sizeof m->text ? end : sizeof m->text - 1;
    }
}

__attribute__((format(printf, 2, 3))) static void message_append(message *m, const char *format,
                                                                 ...)
{
    va_list args;
    va_start(args, format);
    message_append_list(m, format, args);
    va_end(args);
}

static void set_last_error(const message *m)
{
    size_t length = m->length < LAST_ERROR_BYTES ? m->length : LAST_ERROR_BYTES - 1;
    memcpy(last_error, m->text, length);
    last_error[length] = '\0';
    td_clean_text(last_error); /* names of files and classes are in it */
}

td_status(td_fail)(td_status status, const char *format, ...)
{
    message m;
    message_begin(&m);
    va_list args;
    va_start(args, format);
    message_append_list(&m, format, args);
    va_end(args);
    set_last_error(&m);
    last_status = status;
    return status;
}

td_status(td_fail_context)(td_status status, const char *format, ...)
{
    message m;
    message_begin(&m);
    va_list args;
    va_start(args, format);
    message_append_list(&m, format, args);
    va_end(args);
    message_append(&m, ": %s", last_error);
    set_last_error(&m);
    return status;
}

void (*td_die_hook)(const char *message);

static _Atomic int last_words = -1; /* milliseconds */

void td_set_last_words(double seconds)
{
    last_words = (int)(seconds * 1e3);
}

bool td_say_last(const char *before, const char *text)
{
    struct pollfd err = { .fd = STDERR_FILENO, .events = POLLOUT };
    struct pollfd out = { .fd = STDOUT_FILENO, .events = POLLOUT };
    int wait = last_words;
    bool read = wait < 0 || (poll(&err, 1, wait) > 0 && poll(&out, 1, wait) > 0);
    if (read) {
        fflush(stdout); /* what the program has printed comes first */
        fprintf(stderr, "%s%s\n", before, text);
    }
    return read;
}

/* exit, which two threads must not call at once (ranks of a simulated job): who comes second waits
 * for the end. */
_Noreturn static void exit_of_one(void)
{
    static atomic_flag begun = ATOMIC_FLAG_INIT;
    static _Thread_local bool here;
    if (!atomic_flag_test_and_set(&begun)) {
        here = true;
        exit(1);
    }
    if (!here) {
        sleep(LONGEST_EXIT);
    }
    _exit(1);
}

_Noreturn void td_die(void)
{
    const char *text = last_error[0] != '\0' ? last_error : "td_die, but no call has failed";
    if (td_die_hook != NULL) {
        td_die_hook(text);
    }
    char before[64];
    snprintf(before, sizeof before, "%s: ", program_invocation_short_name);
    if (td_say_last(before, text)) {
        exit_of_one();
    }
    _exit(1); /* exit would wait for a reader of stdout */
}

int td_finish(void)
{
    bool now = fflush(stdout) != 0;
    if (now || ferror(stdout)) {
        td_fail(TD_E_IO, "cannot write to stdout: %s",
                now ? strerror(errno) : "an earlier part of the output is lost");
        td_die();
    }
    return 0;
}

void td_context_push(const char *name)
{
    if (context.depth < CONTEXT_DEPTH) {
        context.name[context.depth] = name;
    }
    context.depth++;
}

void td_context_pop(void)
{
    if (context.depth > 0) {
        context.depth--;
    }
}

void td_context_clear(void)
{
    context.depth = 0;
}

const char *td_context_top(void)
{
    int kept = context.depth < CONTEXT_DEPTH ? context.depth : CONTEXT_DEPTH;
    return kept > 0 ? context.name[kept - 1] : NULL;
}

const char *td_context_at(int outwards)
{
    int at = context.depth - 1 - outwards;
    return at >= 0 && at < CONTEXT_DEPTH ? context.name[at] : NULL;
}

void td_set_fatal_handler(td_fatal_handler handler, void *user)
{
    pthread_mutex_lock(&fatal_handler.lock);
    fatal_handler.call = handler;
    fatal_handler.user = user;
    pthread_mutex_unlock(&fatal_handler.lock);
}

void td_set_thread_fatal_handler(td_fatal_handler handler, void *user)
{
    thread_handler.call = handler;
    thread_handler.user = user;
}

/* "  in layer1.0.conv1 (Conv2d)", a line for each module, innermost first. */
static void message_append_context(message *m)
{
    int kept = context.depth < CONTEXT_DEPTH ? context.depth : CONTEXT_DEPTH;
    for (int i = kept - 1; i >= 0; i--) {
        message_append(m, "\n  in %s", context.name[i]);
    }
}

_Noreturn void td_fatal(td_site at, const char *format, ...)
{
    message m;
    message_begin(&m);
    message_append(&m, "tandem: ");
    if (at.file != NULL) {
        message_append(&m, "%s:%d: ", at.file, at.line);
    }
    va_list args;
    va_start(args, format);
    message_append_list(&m, format, args);
    va_end(args);
    td_clean_text(m.text);
    message_append_context(&m);

    if (thread_handler.call != NULL) {
        thread_handler.call(m.text, thread_handler.user);
        abort();
    }
    pthread_mutex_lock(&fatal_handler.lock);
    td_fatal_handler call = fatal_handler.call;
    void *user = fatal_handler.user;
    pthread_mutex_unlock(&fatal_handler.lock);
    if (call != NULL) {
        call(m.text, user);
    } else if (td_say_last("", m.text) && last_status == TD_E_NOMEM &&
               strstr(m.text, last_error) != NULL) {
        exit_of_one(); /* no mistake of the program, so no core: the machine has no more memory */
    }
    abort();
}
