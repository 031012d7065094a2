/* Reads the command line of a small program from a table of options. */
#include "apps/library/command_line.h"
#include "tensor/system/number.h"
#include "tensor/system/text.h"
#include "tensor/version.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* What getopt_long could not read: ':' an option without its value, '?' what no option is. */
static _Noreturn void refuse_word(char *const *argv, int problem, const td_option *options,
                                  int count, const char *usage)
{
    const char *names[MOST_OPTIONS + 1] = { "help" };
    int used = 1;
    char *word = argv[optind - 1], *next = argv[optind];
    for (int i = 0; i < count; i++) {
        if (!stands_alone(&options[i])) {
            names[used++] = options[i].name;
        } else if (problem == '?' && isdigit(optopt) && options[i].text == NULL) {
            take(&options[i], next != NULL && next[1] == optopt ? next : word, usage); /* -5 */
        }
    }
    if (problem == ':') {
        td_refuse_options(usage, "%s: the value is missing", word);
    }
    if (strncmp(word, "--", 2) == 0) {
        const char *alike = td_alike_name(word + 2, names, used);
        td_refuse_options(usage, "unrecognized option '%s'%s%s", word,
                          alike != NULL ? "; the nearest is --" : "", alike != NULL ? alike : "");
    }
    td_refuse_options(usage, "-%c is no option", optopt);
}

void td_read_options(int argc, char **argv, const char *usage, const td_option *options)
{
    struct option names[MOST_OPTIONS + 3] = { { "help", no_argument, NULL, 'h' },
                                              { "version", no_argument, NULL, 'v' } };
    int count = 0;
    for (int used = 2; options[count].name != NULL; count++) {
        TD_REQUIRE(count < MOST_OPTIONS, TD_HERE, "more than %d options", MOST_OPTIONS);
        if (!stands_alone(&options[count])) {
            names[used++] =
                (struct option){ options[count].name, required_argument, NULL, FIRST_KEY + count };
        }
    }
    opterr = 0;
    for (int key; (key = getopt_long(argc, argv, ":h", names, NULL)) != -1;) {
        if (key == 'h') {
            print_usage(stdout, usage);
            exit(td_finish());
        }
        if (key == 'v') {
            puts("tandem " TANDEM_VERSION);
            exit(td_finish());
        }
        if (key < FIRST_KEY) {
            refuse_word(argv, key, options, count, usage);
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
