/* Errors. There are two kinds:
 *
 *   mistakes   A mistake of the program (shapes that do not fit, a tensor used after its step) is a
 *              fatal error: a handler prints the message, with the file and line of the call, and
 *              ends the program.
 *   failures   If a file, memory, a driver or the network fails, the function returns a negative
 *              td_status, or NULL if it returns a pointer. td_last_error() then says what failed,
 *              where, and what to do. */
#pragma once

#include "tensor/extern_c.h"

#include <stdarg.h>

TD_BEGIN_C

typedef enum td_status {
    TD_OK = 0,
#define TD_ERROR(name, code, meaning) TD_E_##name = (code),
#include "tensor/errors.def"
#undef TD_ERROR
} td_status;

/* A line of a source file. Functions whose name ends in _at take the line of the call as their last
 * argument, for messages. You call the macro without _at, which adds that argument: td_add(a, b) is
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

#define TD_NOWHERE ((td_site){ NULL, 0 }) /* unknown: the message names no line */

/* The message of the last failure on this thread; "" if there was none. The library owns the text,
 * which is valid until the next failure on this thread. */
const char *td_last_error(void);

/* Sets this thread's td_last_error() and returns status, so that a function of yours can end with
 * `return td_fail(TD_E_IO, "cannot read %s", path)`. */
td_status td_fail(td_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));

/* A macro, so that the compiler sees the status at the call and gives no false warnings about
 * variables that stay unset after a failure. */
#define td_fail(status, ...) TD_FAIL_WITH_(td_fail, status, __VA_ARGS__)
#define TD_FAIL_WITH_(function, status, ...)                                                       \
    __extension__({                                                                                \
        td_status td_fail_status_ = (status);                                                      \
        (function)(td_fail_status_, __VA_ARGS__);                                                  \
        td_fail_status_;                                                                           \
    })

/* For programs that end when something fails: prints the program's name and td_last_error() to
 * stderr, and exits with 1. In a rank that td_spawn started, the message goes to the process that
 * called td_spawn, and td_last_error() there names the rank. */
TD_NORETURN void td_die(void);

/* For the end of a program: flushes stdout and returns 0, the exit code. If the output cannot be
 * written, for example because the disk is full, td_finish ends the program by td_die. */
int td_finish(void);

/* Reports a mistake of the program and does not return. The message begins with the file and line,
 * and ends with the names of the modules that are running. Without a handler td_fatal ends by
 * abort(), or by exit(1) if the message holds the td_last_error() of a TD_E_NOMEM: short memory is
 * no mistake of the program, and needs no core file. */
TD_NORETURN void td_fatal(td_site at, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));

/* A fatal error unless condition is true. Never compiled out. */
#define TD_REQUIRE(condition, at, ...)                                                             \
    do {                                                                                           \
        if (__builtin_expect(!(condition), 0)) {                                                   \
            td_fatal((at), __VA_ARGS__);                                                           \
        }                                                                                          \
    } while (0)

/* Returns the status of expression from the calling function, unless it is TD_OK. */
#define TD_TRY(expression)                                                                         \
    do {                                                                                           \
        td_status td_try_status_ = (expression);                                                   \
        if (td_try_status_ != TD_OK) {                                                             \
            return td_try_status_;                                                                 \
        }                                                                                          \
    } while (0)

/* Fails from the calling function unless condition is true: returns the status, or NULL. */
#define TD_CHECK(condition, status, ...)                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            return td_fail(status, __VA_ARGS__);                                                   \
        }                                                                                          \
    } while (0)
#define TD_CHECK_NULL(condition, status, ...)                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            td_fail(status, __VA_ARGS__);                                                          \
            return NULL;                                                                           \
        }                                                                                          \
    } while (0)

TD_END_C
