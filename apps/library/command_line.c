/* Reads the command line of a small program from a table of options. */
#include "apps/library/command_line.h"
#include "tensor/system/number.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_OPTIONS = 32, FIRST_KEY = 256 /* beyond every character */, WRONG_USAGE = 64 };

static void print_usage(FILE *out, const char *usage)
{
    fprintf(out, "usage: %s %s\n", program_invocation_short_name, usage);
}

_Noreturn void td_refuse_options(const char *usage, const char *format, ...)
{
    char why[1024];
    va_list values;
    va_start(values, format);
    td_vsnprintf(why, sizeof why, format, values);
    va_end(values);
    fflush(stdout); /* the message comes behind what the program has printed before */
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, why);
    print_usage(stderr, usage);
    exit(WRONG_USAGE);
}

static bool stands_alone(const td_option *option)
{
    return isupper((unsigned char)option->name[0]);
}

static void take(const td_option *option, char *text, const char *usage)
{
    const char *dashes = stands_alone(option) ? "" : "--";
    if (option->text != NULL) {
        *option->text = text;
        return;
    }
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    int most = option->most != 0 ? option->most : INT_MAX;
    if (end == text || *end != '\0') {
        td_refuse_options(usage, "%s%s: '%s' is not a whole number", dashes, option->name, text);
    }
    if (errno != 0 || value < option->least || value > most) {
        td_refuse_options(usage, "%s%s: %s is out of range; it goes from %d to %d", dashes,
                          option->name, text, option->least, most);
    }
    *option->number = (int)value;
}

void td_read_options(int argc, char **argv, const char *usage, const td_option *options)
{
    struct option names[MOST_OPTIONS + 2] = { { "help", no_argument, NULL, 'h' } };
    int count = 0;
    for (int used = 1; options[count].name != NULL; count++) {
        TD_REQUIRE(count < MOST_OPTIONS, TD_HERE, "more than %d options", MOST_OPTIONS);
        if (!stands_alone(&options[count])) {
            names[used++] =
                (struct option){ options[count].name, required_argument, NULL, FIRST_KEY + count };
        }
    }
    for (int key; (key = getopt_long(argc, argv, "h", names, NULL)) != -1;) {
        if (key == 'h') {
            print_usage(stdout, usage);
            exit(td_finish());
        }
        if (key < FIRST_KEY) { /* getopt_long has said what is wrong */
            print_usage(stderr, usage);
            exit(WRONG_USAGE);
        }
        take(&options[key - FIRST_KEY], optarg, usage);
    }
    for (int i = 0; i < count && optind < argc; i++) {
        if (stands_alone(&options[i])) {
            take(&options[i], argv[optind++], usage);
        }
    }
    if (optind < argc) {
        td_refuse_options(usage, "'%s' is one value too many", argv[optind]);
    }
}
