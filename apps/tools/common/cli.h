/* Command lines: a table of options, read by the C library's argp. Every app gets --help with the
 * defaults, ranges that are checked, and messages that say what was wrong with which option. Names
 * may be typed with - or _. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CLI_MAX_OPTIONS = 128, CLI_TEXT_BYTES = 1024, CLI_MOST_REALS = 16 };

typedef struct cli_reals {
    double value[CLI_MOST_REALS];
    int count;
} cli_reals;

typedef enum cli_kind {
    CLI_FLAG,  /* bool; takes no value */
    CLI_INT,   /* int64_t, low <= value <= high */
    CLI_REAL,  /* double, low <= value <= high */
    CLI_TEXT,  /* const char *; one of `choices`, if there are any */
    CLI_REALS, /* cli_reals: of keys alone (train_net/settings.h) */
} cli_kind;

/* What a resumed run does with an option that was set in the run before
 * (train_args_resume). */
typedef enum cli_resume {
    CLI_FORGET,  /* each run has its own: paths, threads */
    CLI_RESTORE, /* taken from the checkpoint unless it is given: epochs, lr */
    CLI_FIXED,   /* the same, and giving another value is an error: seed, batch size */
} cli_resume;

typedef struct cli_option {
    const char *name;     /* "epochs" */
    const char *argument; /* what --help calls the value; NULL: "N", "X", or nothing, by the kind */
    const char *help;     /* one sentence; "(default ...)" is added */
    cli_kind kind;
    void *value; /* where it goes; holds the default */
    double low, high;
    const char *choices;            /* "cifar|imagenet" or NULL */
    bool (*fits)(const char *text); /* NULL, or decides where choices only describes the forms */
    cli_resume resume;
    bool first;            /* --help lists it among the first */
    bool hidden;           /* --help does not list it */
    char letter;           /* -r for --redirects; 0: none */
    const char *unwritten; /* NULL, or the default, which checkpoints leave out: those of programs
                            * without this option are the same then, byte for byte */
    bool given;            /* set by cli_parse_rest */
    /* Of keys alone: the default as text; whether it may be None. */
    const char *standard;
    bool optional;
} cli_option;

/* Options by their kind, for tables. The help comes last, and more fields may follow:
 *
 *     cli_int("epochs", &epochs, 1, 1e6, "Passes over the data", .resume = CLI_RESTORE)
 */
#define cli_flag(NAME, VALUE, ...)                                                                 \
    {                                                                                              \
        .name = (NAME), .kind = CLI_FLAG, .value = (bool *){ VALUE }, .help = __VA_ARGS__          \
    }
#define cli_int(NAME, VALUE, LOW, HIGH, ...)                                                       \
    {                                                                                              \
        .name = (NAME), .kind = CLI_INT, .value = (int64_t *){ VALUE }, .low = (LOW),              \
        .high = (HIGH), .help = __VA_ARGS__                                                        \
    }
#define cli_real(NAME, VALUE, LOW, HIGH, ...)                                                      \
    {                                                                                              \
        .name = (NAME), .kind = CLI_REAL, .value = (double *){ VALUE }, .low = (LOW),              \
        .high = (HIGH), .help = __VA_ARGS__                                                        \
    }
#define cli_text(NAME, ARGUMENT, VALUE, ...)                                                       \
    {                                                                                              \
        .name = (NAME), .argument = (ARGUMENT), .kind = CLI_TEXT,                                  \
        .value = (const char **){ VALUE }, .help = __VA_ARGS__                                     \
    }

/* What stands on the command line other than options: files. */
typedef struct cli_rest {
    const char *name;   /* "MODEL IMAGE...", for --help and messages */
    const char *wanted; /* "one model and one image": the least, in words */
    int least;          /* the same as a number */
    bool is_command;    /* a program and its arguments: options end at its name */
    char **values;      /* set: part of argv */
    int count;
} cli_rest;

/* Reads the command line into the options' values. rest NULL: every value belongs to an option.
 * Prints what is wrong and leaves the program with code 64 (EX_USAGE) where something is; --help
 * and --version leave with 0. A program's first call: opens standard streams that are closed, and
 * sees to it that the exit code is 1 if what was printed could not be written, as on a full disk.
 */
void cli_parse_rest(int argc, char **argv, const char *description, cli_option *options, int count,
                    cli_rest *rest);

/* Prints the last error to stderr (a spawned process: leaves it to its parent) and returns the exit
 * code of a failure: 1. */
int app_failed(const char *program);

/* For values that do not go together: prints what is wrong, and leaves the program with code 64. */
_Noreturn void cli_refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same unless the condition holds: CLI_CHECK(count <= 2, "give two runs"). */
#define CLI_CHECK(condition, ...)                                                                  \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            cli_refuse(__VA_ARGS__);                                                               \
        }                                                                                          \
    } while (0)

/* Sets an option from text. false: it does not fit; `why` says why. */
bool cli_set(const cli_option *option, const char *text, char *why, size_t size);

/* Says in `why` what is wrong with a text, and returns false. */
bool cli_no(char *why, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Numbers from text, which they must fill. false: none, or out of range; `why` says which. */
bool cli_read_int(const char *text, double low, double high, int64_t *value, char *why,
                  size_t size);
bool cli_read_real(const char *text, double low, double high, double *value, char *why,
                   size_t size);

/* Whether the text is one of "cos|steps". false: `why` names the nearest. */
bool cli_is_choice(const char *choices, const char *text, char *why, size_t size);

/* The fewest digits that give the same double back. */
void cli_write_real(double value, char *text, size_t size);

/* An option's value as text that cli_set reads back to the same value. */
void cli_get(const cli_option *option, char *text, size_t size);
