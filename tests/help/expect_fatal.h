/* For tests: code that must end in td_fatal. */
#pragma once

#include <setjmp.h>

/* The whole message of the last fatal error that was caught. */
const char *fatal_message(void);

/* Fails the test unless the statement ends in td_fatal with a message that contains part. The jump
 * out of the statement ends no step: td_step_abandon does. Local variables that the statement
 * changes have no value afterwards. */
#define expect_fatal(part, statement)                                                              \
    do {                                                                                           \
        if (setjmp(*expect_fatal_begin()) == 0) {                                                  \
            statement;                                                                             \
            expect_fatal_missing(#statement, __FILE__, __LINE__);                                  \
        }                                                                                          \
        expect_fatal_end(part, #statement, __FILE__, __LINE__);                                    \
    } while (0)

jmp_buf *expect_fatal_begin(void);
void expect_fatal_missing(const char *statement, const char *file, int line);
void expect_fatal_end(const char *part, const char *statement, const char *file, int line);
