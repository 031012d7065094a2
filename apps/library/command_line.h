/* The command line of a small program: a table of options "--NAME VALUE" and positional arguments.
 * Part of the library, so that a lesson of apps/ is complete with <tandem.h>. */
#pragma once

#include "tensor/error.h"
#include "tensor/extern_c.h"

TD_BEGIN_C

/* One option. Its variable holds the default. */
typedef struct td_option {
    const char *name; /* "epochs": given as --epochs VALUE. A name in capitals, "TOTAL_EPOCHS", is a
                         positional argument; these come in the table's order */
    int *number;      /* the variable of a whole number, from `least` to `most` */
    const char **text; /* or of a text, which stays in argv */
    int least, most;   /* most 0: INT_MAX */
} td_option;

/* Reads a command line into the variables of a table, which ends with an option whose name is NULL;
 * at most 32 options. usage is what follows the program's name: "[--epochs N] [FILE]".
 *
 * --help and -h print the usage and end the program with 0. An unknown option, a value that is no
 * number or out of range, or one too many, ends it by td_refuse_options. */
void td_read_options(int argc, char **argv, const char *usage, const td_option *options);

/* For values that do not go together: prints the program's name with the message, and the usage, to
 * stderr, and ends the program with code 64 (EX_USAGE). */
TD_NORETURN void td_refuse_options(const char *usage, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

TD_END_C
