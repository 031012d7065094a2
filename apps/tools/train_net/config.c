/* Values of a configuration: from text, to text, and the keys' names. */
#include "apps/tools/train_net/settings.h"

#include "tensor/system/text.h"
#include "tensor/system/temporary.h"

#include <ctype.h>

/* ---- keys ---- */

static bool is_key(const cli_option *option)
{
    return isupper((unsigned char)option->name[0]);
}

int config_find(const train_args *keys, const char *name)
{
    for (int i = 0; i < keys->option_count; i++) {
        if (is_key(&keys->options[i]) && strcmp(keys->options[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

/* The length of "TRAIN" in "TRAIN.BATCH_SIZE"; 0: it stands in no node. */
static size_t node_length(const char *name)
{
    const char *dot = strchr(name, '.');
    return dot != NULL ? (size_t)(dot - name) : 0;
}

bool config_has_node(const train_args *keys, const char *node)
{
    size_t length = strlen(node);
    for (int i = 0; i < keys->option_count; i++) {
        const char *name = keys->options[i].name;
        if (length > 0 && node_length(name) == length && strncmp(name, node, length) == 0) {
            return true;
        }
    }
    return false;
}

/* Text of others for a message: short, and without what a terminal would obey. */
typedef struct shown {
    char text[80];
} shown;

static shown show(const char *text)
{
    shown s;
    int most = (int)sizeof s.text - 4;
    snprintf(s.text, sizeof s.text, "%.*s%s", most, text, strlen(text) > (size_t)most ? "..." : "");
    td_clean_text(s.text);
    return s;
}

td_status config_unknown(const train_args *keys, const char *where, const char *name)
{
    const char *names[CLI_MAX_OPTIONS];
    int count = 0;
    for (int i = 0; i < keys->option_count; i++) {
        if (is_key(&keys->options[i])) {
            names[count++] = keys->options[i].name;
        }
    }
    shown word = show(name);
    return td_fail(TD_E_FORMAT, "%s: unknown key '%s'; the nearest is %s", where, word.text,
                   td_nearest_name(word.text, names, count));
}

/* ---- from text ---- */

/* What is wrong with a text: "'many' is not a whole number". */
typedef char reason[256];

static bool is_one_of(const char *text, const char *const *words)
{
    for (; *words != NULL; words++) {
        if (strcmp(text, *words) == 0) {
            return true;
        }
    }
    return false;
}

static bool read_flag(const char *text, bool *value, reason why)
{
    static const char *const yes[] = { "True", "true", "TRUE", NULL };
    static const char *const no[] = { "False", "false", "FALSE", NULL };
    *value = is_one_of(text, yes);
    return *value || is_one_of(text, no) ||
           cli_no(why, sizeof(reason), "'%s' is not True or False", show(text).text);
}

static bool read_text(const cli_option *key, const char *text, char *room, reason why)
{
    if (text[0] == '\0' && !key->optional) {
        return cli_no(why, sizeof(reason), "the value is empty");
    }
    if (strlen(text) >= CLI_TEXT_BYTES) {
        return cli_no(why, sizeof(reason), "the value has %zu bytes; at most %d are kept",
                      strlen(text), CLI_TEXT_BYTES - 1);
    }
    if (!td_is_plain_text(text)) {
        return cli_no(why, sizeof(reason), "'%s' is not a line of text in UTF-8", show(text).text);
    }
    if (key->choices != NULL &&
        !cli_is_choice(key->choices, show(text).text, why, sizeof(reason))) {
        return false;
    }
    snprintf(room, CLI_TEXT_BYTES, "%s", text);
    *(const char **)key->value = room;
    return true;
}

/* "[30, 60]", "30,60", "[]". */
static bool config_read_list(const cli_option *key, const char *text, cli_reals *list, reason why)
{
    char copy[CLI_TEXT_BYTES], *rest = copy;
    size_t length = strlen(text);
    bool brackets = length >= 2 && text[0] == '[' && text[length - 1] == ']';
    if (length >= sizeof copy || (!brackets && length == 0)) {
        return cli_no(why, sizeof(reason), "'%s' is not a list of numbers", show(text).text);
    }
    snprintf(copy, sizeof copy, "%.*s", (int)(brackets ? length - 2 : length),
             brackets ? text + 1 : text);
    list->count = 0;
    if (copy[strspn(copy, " ")] == '\0') {
        return true;
    }
    for (char *word; (word = strsep(&rest, ",")) != NULL; list->count++) {
        if (list->count == CLI_MOST_REALS) {
            return cli_no(why, sizeof(reason), "there is room for %d numbers", CLI_MOST_REALS);
        }
        word += strspn(word, " ");
        word[strcspn(word, " ")] = '\0';
        if (!cli_read_real(show(word).text, key->low, key->high, &list->value[list->count], why,
                           sizeof(reason))) {
            return false;
        }
    }
    return true;
}

static bool read_none(const cli_option *key, reason why)
{
    if (key->optional && key->kind == CLI_INT) {
        *(int64_t *)key->value = CONFIG_NONE;
    } else if (key->optional) {
        *(const char **)key->value = NULL;
    }
    return key->optional ||
           cli_no(why, sizeof(reason), "None does not fit; give a value, or leave it out");
}

/* room: for a text. */
static bool config_read_value(const cli_option *key, const char *text, char *room, reason why)
{
    return key->kind == CLI_FLAG    ? read_flag(text, key->value, why)
           : key->kind == CLI_TEXT  ? read_text(key, text, room, why)
           : key->kind == CLI_REALS ? config_read_list(key, text, key->value, why)
                                    : cli_set(key, show(text).text, why, sizeof(reason));
}

td_status config_set_scalar(train_args *keys, int i, const char *where, const char *text,
                            bool quoted)
{
    static const char *const nothing[] = { "None", "null", "Null", "NULL", "~", NULL };
    cli_option *key = &keys->options[i];
    reason why;
    bool good = false, none = !quoted && is_one_of(text, nothing);
    if (quoted && key->kind != CLI_TEXT) {
        snprintf(why, sizeof why, "\"%s\" is a text; write it without quotes", show(text).text);
    } else {
        good = none ? read_none(key, why) : config_read_value(key, text, keys->texts[i], why);
    }
    key->given = good ? !none : key->given;
    return good ? TD_OK : td_fail(TD_E_FORMAT, "%s: %s: %s", where, key->name, why);
}

td_status config_set(train_args *keys, const char *where, const char *key, const char *value)
{
    int i = config_find(keys, key);
    TD_CHECK(i >= 0 || !config_has_node(keys, key), TD_E_FORMAT,
             "%s: %s is a node; name one of its keys: %s.KEY", where, key, key);
    return i < 0 ? config_unknown(keys, where, key)
                 : config_set_scalar(keys, i, where, value, false);
}

td_status config_override(train_args *keys, char *const *words, int count)
{
    static const char where[] = "command line";
    for (int i = 0; i + 1 < count; i += 2) {
        TD_TRY(config_set(keys, where, words[i], words[i + 1]));
    }
    if (count % 2 != 0) {
        const char *last = words[count - 1];
        return config_find(keys, last) < 0
                   ? config_unknown(keys, where, last)
                   : td_fail(TD_E_FORMAT, "%s: %s has no value: give pairs KEY VALUE", where, last);
    }
    return TD_OK;
}

/* ---- to text ---- */

static void put_list(const cli_reals *list, char *text, size_t size)
{
    char number[32];
    size_t used = (size_t)snprintf(text, size, "[");
    for (int i = 0; i < list->count && used < size; i++) {
        cli_write_real(list->value[i], number, sizeof number);
        used += (size_t)snprintf(text + used, size - used, "%s%s", i > 0 ? ", " : "", number);
    }
    if (used < size) {
        snprintf(text + used, size - used, "]");
    }
}

void config_get(const cli_option *key, char *text, size_t size)
{
    if (key->optional && !key->given) {
        snprintf(text, size, "None");
    } else if (key->kind == CLI_FLAG) {
        snprintf(text, size, "%s", *(const bool *)key->value ? "True" : "False");
    } else if (key->kind == CLI_REALS) {
        put_list(key->value, text, size);
    } else {
        cli_get(key, text, size);
    }
}

/* A text as YAML: as it is where that is plain to read, otherwise in double quotes. */
static void write_text(const char *text, FILE *out)
{
    static const char harmless[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                   "0123456789_./-+";
    if ((isalpha((unsigned char)text[0]) || text[0] == '.' || text[0] == '/') &&
        text[strspn(text, harmless)] == '\0' && strcmp(text, "None") != 0 &&
        strcasecmp(text, "null") != 0) {
        fputs(text, out);
    } else {
        fputc('"', out);
        for (; *text != '\0'; text++) {
            unsigned char c = (unsigned char)*text;
            if (c == '"' || c == '\\') {
                fputc('\\', out);
            }
            fputc(c, out);
        }
        fputc('"', out);
    }
}

static void write_all(const train_args *keys, bool with_help, FILE *out)
{
    char text[CLI_TEXT_BYTES];
    const char *node = "";
    size_t length = 0;
    for (int i = 0; i < keys->option_count; i++) {
        const cli_option *key = &keys->options[i];
        if (!is_key(key)) {
            continue;
        }
        size_t own = node_length(key->name);
        if (own > 0 && (own != length || strncmp(node, key->name, own) != 0)) {
            fprintf(out, "%.*s:\n", (int)own, key->name);
        }
        node = key->name;
        length = own;
        const char *indent = own > 0 ? "  " : "";
        if (with_help) {
            fprintf(out, "%s# %s%s%s%s\n", indent, key->help, key->choices != NULL ? " (" : "",
                    key->choices != NULL ? key->choices : "", key->choices != NULL ? ")" : "");
        }
        fprintf(out, "%s%s: ", indent, key->name + (own > 0 ? own + 1 : 0));
        config_get(key, text, sizeof text);
        bool is_text = key->kind == CLI_TEXT && (key->given || !key->optional);
        is_text ? write_text(text, out) : (void)fputs(text, out);
        fputc('\n', out);
    }
}

void config_describe(const train_args *keys, FILE *out)
{
    write_all(keys, true, out);
}

td_status config_write(const train_args *keys, const char *path)
{
    char *beside;
    FILE *out;
    TD_TRY(td_temporary_begin(path, 0, &out, &beside));
    write_all(keys, false, out);
    return td_temporary_end(out, beside, path, 0, TD_OK);
}
