/* Command lines: reads, checks and describes a table of options, by the C library's argp. */
#include "apps/tools/common/cli.h"
#include "apps/tools/common/signals.h"

#include "dist/comm/launch/children.h"
#include "tandem.h"
#include "tensor/system/number.h"
#include "tensor/system/text.h"

#include <argp.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

enum { FIRST_GROUP = 1, OTHERS };
enum { FIRST_KEY = 256 }; /* beyond every character: long options only; but -h is help */

/* The C library looks for this name. */
__attribute__((visibility("default"))) const char *argp_program_version = "tandem " TANDEM_VERSION;

/* Without the other functions of atexit: exit has begun. */
static void check_stdout(void)
{
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "%s: cannot write to stdout: %s\n", program_invocation_short_name,
                strerror(errno));
        _exit(stop_requested() ? stop_exit_code() : EXIT_FAILURE);
    }
}

bool cli_no(char *why, size_t size, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    td_vsnprintf(why, size, format, arguments);
    va_end(arguments);
    return false;
}

bool cli_read_int(const char *text, double low, double high, int64_t *value, char *why, size_t size)
{
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || isspace((unsigned char)text[0])) {
        return cli_no(why, size, "'%s' is not a whole number", text);
    }
    if (errno == ERANGE || (double)number < low || (double)number > high) {
        return cli_no(why, size, "%s is out of range; it goes from %.0f to %.0f", text, low, high);
    }
    *value = number;
    return true;
}

bool cli_read_real(const char *text, double low, double high, double *value, char *why, size_t size)
{
    char *end;
    double number = td_strtod(text, &end);
    if (end == text || *end != '\0' || isspace((unsigned char)text[0]) || !isfinite(number) ||
        strpbrk(text, "xX") != NULL) {
        return cli_no(why, size, "'%s' is not a number", text);
    }
    if (number < low || number > high) {
        return cli_no(why, size, "%s is out of range; it goes from %.15g to %.15g", text, low,
                      high);
    }
    *value = number;
    return true;
}

/* 0.1, not 0.10000000000000001; and 300, not 3e+02. */
void cli_write_real(double value, char *text, size_t size)
{
    bool plain = fabs(value) >= 1 && fabs(value) < 1e9;
    for (int digits = 1; digits <= 17; digits++) {
        td_snprintf(text, size, "%.*g", digits, value);
        if (td_strtod(text, NULL) == value && !(plain && strchr(text, 'e') != NULL)) {
            break;
        }
    }
}

void cli_refuse(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "%s: ", program_invocation_short_name);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\nTry `%s --help' for more information.\n", program_invocation_short_name);
    exit(EX_USAGE);
}

bool cli_is_choice(const char *choices, const char *text, char *why, size_t size)
{
    char copy[256], *rest = copy;
    const char *words[16];
    int count = 0;
    snprintf(copy, sizeof copy, "%s", choices);
    for (char *word; count < 16 && (word = strsep(&rest, "|")) != NULL; count++) {
        words[count] = word;
        if (strcmp(word, text) == 0) {
            return true;
        }
    }
    const char *alike = td_alike_name(text, words, count);
    return cli_no(why, size, "'%.80s' is not one of %s%s%s", text, choices,
                  alike != NULL ? "; the nearest is " : "", alike != NULL ? alike : "");
}

static bool set_text(const cli_option *option, const char *text, char *why, size_t size)
{
    if (text[0] == '\0') {
        return cli_no(why, size, "the value is empty");
    }
    if (option->resume != CLI_FORGET && strlen(text) >= CLI_TEXT_BYTES) {
        return cli_no(why, size, "the value has %zu bytes, and a checkpoint keeps at most %d",
                      strlen(text), CLI_TEXT_BYTES - 1);
    }
    if (option->fits != NULL && !option->fits(text)) {
        return cli_no(why, size, "'%s' is not one of %s", text, option->choices);
    }
    if (option->fits == NULL && option->choices != NULL &&
        !cli_is_choice(option->choices, text, why, size)) {
        return false;
    }
    *(const char **)option->value = text;
    return true;
}

bool cli_set(const cli_option *option, const char *text, char *why, size_t size)
{
    switch (option->kind) {
    case CLI_FLAG:
        *(bool *)option->value = text == NULL || strcmp(text, "yes") == 0;
        return true;
    case CLI_INT:
        return cli_read_int(text, option->low, option->high, option->value, why, size);
    case CLI_REAL:
        return cli_read_real(text, option->low, option->high, option->value, why, size);
    case CLI_TEXT:
        return set_text(option, text, why, size);
    case CLI_REALS:
        break;
    }
    return false;
}

void cli_get(const cli_option *option, char *text, size_t size)
{
    switch (option->kind) {
    case CLI_FLAG:
        snprintf(text, size, "%s", *(bool *)option->value ? "yes" : "no");
        break;
    case CLI_INT:
        snprintf(text, size, "%lld", (long long)*(int64_t *)option->value);
        break;
    case CLI_REAL:
        cli_write_real(*(double *)option->value, text, size);
        break;
    case CLI_TEXT: {
        const char *value = *(const char **)option->value;
        snprintf(text, size, "%s", value != NULL ? value : "");
        break;
    }
    case CLI_REALS:
        break;
    }
}

typedef struct parse_state {
    cli_option *options;
    int count;
    cli_rest *rest; /* NULL: every value belongs to an option */
} parse_state;

static int key_of(const parse_state *parse, int i)
{
    return parse->options[i].letter != 0 ? parse->options[i].letter : FIRST_KEY + i;
}

static error_t on_key(int key, char *text, struct argp_state *state)
{
    parse_state *parse = state->input;
    if (key == 'h') {
        argp_state_help(state, stdout, ARGP_HELP_STD_HELP); /* ends the program */
    }
    if (key == ARGP_KEY_ARGS && parse->rest != NULL) { /* all that are left */
        parse->rest->values = state->argv + state->next;
        parse->rest->count = state->argc - state->next;
        return 0;
    }
    if (key == ARGP_KEY_ARG && parse->rest != NULL) {
        return ARGP_ERR_UNKNOWN; /* argp then asks with ARGP_KEY_ARGS */
    }
    if (key == ARGP_KEY_END && parse->rest != NULL && parse->rest->count < parse->rest->least) {
        argp_error(state, "give at least %s: %s", parse->rest->wanted, parse->rest->name);
    }
    if (key == ARGP_KEY_ARG) {
        argp_error(state, "'%s': every value belongs to an option (--name value)", text);
        return EINVAL;
    }
    int i = 0;
    while (i < parse->count && key_of(parse, i) != key) {
        i++;
    }
    if (i == parse->count) {
        return ARGP_ERR_UNKNOWN;
    }
    cli_option *option = &parse->options[i];
    char why[512];
    if (!cli_set(option, text, why, sizeof why)) {
        argp_error(state, "--%s: %s", option->name, why);
    }
    option->given = true;
    return 0;
}

/* "Epochs to train (default 5)" */
static void help_text(const cli_option *option, char *text, size_t size)
{
    char value[256];
    cli_get(option, value, sizeof(value));
    if (option->kind == CLI_FLAG || value[0] == '\0') {
        snprintf(text, size, "%s", option->help);
    } else {
        snprintf(text, size, "%s (default %s)", option->help, value);
    }
}

/* The option of a word "--name" or "--name=value", as getopt takes it: '_' for '-', and cut short;
 * count if there is none. */
static int option_of_word(const parse_state *parse, const char *word)
{
    size_t length = strcspn(word, "=");
    for (int i = 0; i < parse->count; i++) {
        const char *name = parse->options[i].name;
        size_t same = 0;
        while (same < length &&
               (word[same] == name[same] || (word[same] == '_' && name[same] == '-'))) {
            same++;
        }
        if (same == length) {
            return i;
        }
    }
    return parse->count;
}

/* argp names an option that is unknown; this says which one may be meant. */
static void refuse_unknown(const parse_state *parse, int argc, char **argv)
{
    const char *names[CLI_MAX_OPTIONS];
    int count = 0;
    for (; count < parse->count; count++) {
        names[count] = parse->options[count].name;
    }
    bool is_command = parse->rest != NULL && parse->rest->is_command; /* with options of its own */
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const char *word = argv[i] + 2;
        int length = (int)strcspn(argv[i], "=") - 2;
        if (strncmp(argv[i], "--", 2) != 0) {
            if (is_command) {
                return;
            }
            continue;
        }
        int option = option_of_word(parse, word);
        if (option < count) {
            i += parse->options[option].kind != CLI_FLAG && word[length] == '\0';
        } else if (strncmp("help", word, strlen(word)) != 0 &&
                   strncmp("usage", word, strlen(word)) != 0 &&
                   strncmp("version", word, strlen(word)) != 0) {
            const char *alike = td_alike_name(word, names, count);
            cli_refuse("unrecognized option '--%.*s'%s%s", length, word,
                       alike != NULL ? "; the nearest is --" : "", alike != NULL ? alike : "");
        }
    }
}

void cli_parse_rest(int argc, char **argv, const char *description, cli_option *options, int count,
                    cli_rest *rest)
{
    td_keep_standard_streams();
    atexit(check_stdout);
    struct argp_option table[2 * CLI_MAX_OPTIONS + 4] = { 0 }, *next = table;
    static const char *const usual[] = { [CLI_INT] = "N", [CLI_REAL] = "X", [CLI_TEXT] = NULL };
    static char help[CLI_MAX_OPTIONS][512], aliases[CLI_MAX_OPTIONS][64];
    TD_REQUIRE(count <= CLI_MAX_OPTIONS, TD_HERE, "%d options; CLI_MAX_OPTIONS is %d", count,
               CLI_MAX_OPTIONS);
    parse_state parse = { options, count, rest };
    bool any_first = false;
    for (int i = 0; i < count; i++) {
        help_text(&options[i], help[i], sizeof(help[i]));
        any_first |= options[i].first;
        *next++ = (struct argp_option){
            .name = options[i].name,
            .key = key_of(&parse, i),
            .arg = options[i].argument != NULL ? options[i].argument : usual[options[i].kind],
            .doc = help[i],
            .flags = options[i].hidden ? OPTION_HIDDEN : 0,
            .group = options[i].first ? FIRST_GROUP : OTHERS,
        };
        snprintf(aliases[i], sizeof aliases[i], "%s", options[i].name);
        for (char *dash = aliases[i]; (dash = strchr(dash, '-')) != NULL;) {
            *dash = '_';
        }
        if (strcmp(aliases[i], options[i].name) != 0) {
            *next++ =
                (struct argp_option){ .name = aliases[i], .flags = OPTION_ALIAS | OPTION_HIDDEN };
        }
    }
    if (any_first) { /* argp sorts a group by names, and these come on top */
        *next++ = (struct argp_option){ .doc = "What most runs need:", .group = FIRST_GROUP };
        *next++ = (struct argp_option){ .doc = "All else:", .group = OTHERS };
    }
    *next = (struct argp_option){ .key = 'h', .flags = OPTION_HIDDEN, .group = -1 };
    struct argp argp = { .options = table,
                         .parser = on_key,
                         .args_doc = rest != NULL ? rest->name : NULL,
                         .doc = description };
    refuse_unknown(&parse, argc, argv);
    argp_parse(&argp, argc, argv, rest != NULL && rest->is_command ? ARGP_IN_ORDER : 0, NULL,
               &parse);
}

int app_failed(const char *program)
{
    /* In a process of td_spawn the message goes to the one that started it, which prints the cause.
     */
    if (getenv("TANDEM_SPAWN_ID") == NULL) {
        fflush(stdout); /* what came before it stands before it, in one file, too */
        fprintf(stderr, "%s: %s\n", program, td_last_error());
    }
    td_error_report(td_last_error()); /* for the launcher's report, if there is one */
    return EXIT_FAILURE;
}
