/* Runs code that must end in td_fatal, and compares the message. */
#include "tests/help/expect_fatal.h"

#include "tensor/error.h"
#include "tensor/extend.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static jmp_buf jump;
static char message[8192];

static void catch_fatal(const char *text, void *user)
{
    (void)user;
    snprintf(message, sizeof message, "%s", text);
    longjmp(jump, 1);
}

const char *fatal_message(void)
{
    return message;
}

jmp_buf *expect_fatal_begin(void)
{
    message[0] = '\0';
    td_set_fatal_handler(catch_fatal, NULL);
    return &jump;
}

void expect_fatal_missing(const char *statement, const char *file, int line)
{
    td_set_fatal_handler(NULL, NULL);
    fail_msg("%s:%d: %s: no fatal error", file, line, statement);
}

void expect_fatal_end(const char *part, const char *statement, const char *file, int line)
{
    td_set_fatal_handler(NULL, NULL);
    if (strstr(message, part) == NULL) {
        fail_msg("%s:%d: %s: the message lacks \"%s\":\n%s", file, line, statement, part, message);
    }
}
