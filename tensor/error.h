/* Errors, of two kinds.
 *
 * A programming mistake (shapes that do not fit, a tensor used after its step) ends in td_fatal():
 * the message goes to a replaceable handler, which by default prints it and aborts.
 *
 * A failure of the world (file, memory, driver, network) is returned as a negative td_status, and
 * td_last_error() tells what happened, where, and what to do. Functions that return a pointer
 * return NULL instead. */
#ifndef TD_TENSOR_ERROR_H
#define TD_TENSOR_ERROR_H

#include "tensor/extern_c.h"

#include <stdarg.h>

TD_BEGIN_C

typedef enum td_status {
    TD_OK = 0,
#define TD_ERROR(name, code, meaning) TD_E_##name = (code),
#include "tensor/errors.def"
#undef TD_ERROR
} td_status;

/* A place in a source file. Functions that end in _at take the caller's place as their last
 * argument; the macro without _at supplies it: you write td_add(a, b), the compiler sees
 * td_add_at(a, b, TD_HERE). */
typedef struct td_site {
    const char *file;
    int line;
} td_site;
#ifdef __cplusplus
#define TD_HERE (td_site{ __FILE__, __LINE__ })
#else
#define TD_HERE ((td_site){ __FILE__, __LINE__ })
#endif

#define TD_NOWHERE ((td_site){ NULL, 0 }) /* not known: the message has no place in front */

/* What a status means, in a few words ("out of memory"). Never NULL. */
const char *td_status_text(td_status status);

/* The message of the last failure on this thread, "" if there was none. Valid until the next one.
 */
const char *td_last_error(void);

/* The same for messages that end in it: never empty. */
const char *td_last_reason(void);

/* Writes the message of a failure on this thread and returns status, so that a function can end in
 * `return td_fail(TD_E_IO, "...")`. */
td_status td_fail(td_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));

/* Puts "context: " in front of the last message and returns status. */
td_status td_fail_context(td_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));

/* Both give back the very status they are given. Said where they are called, compilers and
 * analyzers can see that a function which fails does not go on with what it has not set. */
#define td_fail(status, ...) TD_FAIL_WITH_(td_fail, status, __VA_ARGS__)
#define td_fail_context(status, ...) TD_FAIL_WITH_(td_fail_context, status, __VA_ARGS__)
#define TD_FAIL_WITH_(function, status, ...)                                                       \
    __extension__({                                                                                \
        td_status td_fail_status_ = (status);                                                      \
        (function)(td_fail_status_, __VA_ARGS__);                                                  \
        td_fail_status_;                                                                           \
    })

/* For programs that end when something fails: prints "PROGRAM: " and td_last_error() to stderr, and
 * exits with 1. A rank that td_spawn has started hands the message to the process that called
 * td_spawn, whose td_last_error() then names the rank. */
TD_NORETURN void td_die(void);

/* For dist: called by td_die before anything is printed; need not return. NULL: not called. */
extern void (*td_die_hook)(const char *message);

/* Reports a programming mistake and does not return. The message gets the place in front, and the
 * names of the modules that are running behind. */
TD_NORETURN void td_fatal(td_site at, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));

/* Called with the whole message. It may leave by longjmp or exit; if it returns, abort() follows.
 * NULL sets the default, which prints to stderr. Process-wide. */
typedef void (*td_fatal_handler)(const char *message, void *user);
void td_set_fatal_handler(td_fatal_handler handler, void *user);

/* Checks a condition that only a programming mistake can break; never compiled out. */
#define TD_REQUIRE(condition, at, ...)                                                             \
    do {                                                                                           \
        if (__builtin_expect(!(condition), 0)) {                                                   \
            td_fatal((at), __VA_ARGS__);                                                           \
        }                                                                                          \
    } while (0)

/* Returns from the calling function when expression is a failure. */
#define TD_TRY(expression)                                                                         \
    do {                                                                                           \
        td_status td_try_status_ = (expression);                                                   \
        if (td_try_status_ != TD_OK) {                                                             \
            return td_try_status_;                                                                 \
        }                                                                                          \
    } while (0)

TD_END_C

#endif
