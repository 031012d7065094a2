/* Values of a configuration: from text, to text, and the keys' names. */
#include "apps/tools/train_net/settings.h"

#include "apps/tools/common/cli.h"
#include "tensor/text.h"
#include "tensor/system/temporary.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

/* ---- keys ---- */

int config_find(const char *name)
{
    for (int i = 0; i < config_key_count; i++) {
        if (strcmp(config_keys[i].name, name) == 0) {
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

bool config_has_node(const char *node)
{
    size_t length = strlen(node);
    for (int i = 0; i < config_key_count; i++) {
        const char *name = config_keys[i].name;
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

td_status config_unknown(const char *where, const char *name)
{
    const char *names[CONFIG_MOST_KEYS];
    for (int i = 0; i < config_key_count; i++) {
        names[i] = config_keys[i].name;
    }
    shown word = show(name);
    return td_fail(TD_E_FORMAT, "%s: unknown key '%s'; the nearest is %s", where, word.text,
                   td_nearest_name(word.text, names, config_key_count));
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

static bool read_text(const config_key *key, const char *text, char *value, reason why)
{
    if (text[0] == '\0' && !key->optional) {
        return cli_no(why, sizeof(reason), "the value is empty");
    }
    if (strlen(text) >= CONFIG_TEXT_BYTES) {
        return cli_no(why, sizeof(reason), "the value has %zu bytes; at most %d are kept",
                      strlen(text), CONFIG_TEXT_BYTES - 1);
    }
    if (!td_is_plain_text(text)) {
        return cli_no(why, sizeof(reason), "'%s' is not a line of text in UTF-8", show(text).text);
    }
    if (key->choices != NULL &&
        !cli_is_choice(key->choices, show(text).text, why, sizeof(reason))) {
        return false;
    }
    snprintf(value, CONFIG_TEXT_BYTES, "%s", text);
    return true;
}

/* "[30, 60]", "30,60", "[]". */
static bool read_list(const config_key *key, const char *text, config_reals *list, reason why)
{
    char copy[CONFIG_TEXT_BYTES], *rest = copy;
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
        if (list->count == CONFIG_MOST_REALS) {
            return cli_no(why, sizeof(reason), "there is room for %d numbers", CONFIG_MOST_REALS);
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

static bool read_none(const config_key *key, void *value, reason why)
{
    if (key->kind == CONFIG_INT && key->optional) {
        *(int64_t *)value = CONFIG_NONE;
    } else if (key->optional) {
        *(char *)value = '\0';
    }
    return key->optional ||
           cli_no(why, sizeof(reason), "None does not fit; give a value, or leave it out");
}

static bool read_value(const config_key *key, const char *text, void *value, reason why)
{
    switch (key->kind) {
    case CONFIG_BOOL:
        return read_flag(text, value, why);
    case CONFIG_INT:
        return cli_read_int(show(text).text, key->low, key->high, value, why, sizeof(reason));
    case CONFIG_REAL:
        return cli_read_real(show(text).text, key->low, key->high, value, why, sizeof(reason));
    case CONFIG_TEXT:
        return read_text(key, text, value, why);
    case CONFIG_REALS:
        return read_list(key, text, value, why);
    }
    return false;
}

td_status config_set_scalar(const config_key *key, settings *values, const char *where,
                            const char *text, bool quoted)
{
    static const char *const nothing[] = { "None", "null", "Null", "NULL", "~", NULL };
    void *value = (char *)values + key->offset;
    reason why;
    bool good = false;
    if (quoted && key->kind != CONFIG_TEXT) {
        snprintf(why, sizeof why, "\"%s\" is a text; write it without quotes", show(text).text);
    } else if (!quoted && is_one_of(text, nothing)) {
        good = read_none(key, value, why);
    } else {
        good = read_value(key, text, value, why);
    }
    return good ? TD_OK : td_fail(TD_E_FORMAT, "%s: %s: %s", where, key->name, why);
}

td_status config_set(settings *values, const char *where, const char *key, const char *value)
{
    int i = config_find(key);
    if (i < 0 && config_has_node(key)) {
        return td_fail(TD_E_FORMAT, "%s: %s is a node; name one of its keys: %s.KEY", where, key,
                       key);
    }
    return i < 0 ? config_unknown(where, key)
                 : config_set_scalar(&config_keys[i], values, where, value, false);
}

td_status config_override(settings *values, char *const *words, int count)
{
    static const char where[] = "command line";
    for (int i = 0; i + 1 < count; i += 2) {
        TD_TRY(config_set(values, where, words[i], words[i + 1]));
    }
    if (count % 2 != 0) {
        const char *last = words[count - 1];
        return config_find(last) < 0
                   ? config_unknown(where, last)
                   : td_fail(TD_E_FORMAT, "%s: %s has no value: give pairs KEY VALUE", where, last);
    }
    return TD_OK;
}

void config_defaults(settings *values)
{
    for (int i = 0; i < config_key_count; i++) {
        const config_key *key = &config_keys[i];
        td_status status = config_set_scalar(key, values, "default", key->standard, false);
        TD_REQUIRE(status == TD_OK, TD_HERE, "the table is wrong: %s", td_last_error());
    }
}

/* ---- to text ---- */

static void put_list(const config_reals *list, char *text, size_t size)
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

void config_get(const config_key *key, const settings *values, char *text, size_t size)
{
    const void *at = (const char *)values + key->offset;
    switch (key->kind) {
    case CONFIG_BOOL:
        snprintf(text, size, "%s", *(const bool *)at ? "True" : "False");
        break;
    case CONFIG_INT:
        if (key->optional && *(const int64_t *)at == CONFIG_NONE) {
            snprintf(text, size, "None");
        } else {
            snprintf(text, size, "%lld", (long long)*(const int64_t *)at);
        }
        break;
    case CONFIG_REAL:
        cli_write_real(*(const double *)at, text, size);
        break;
    case CONFIG_TEXT:
        snprintf(text, size, "%s", *(const char *)at != '\0' ? (const char *)at : "None");
        break;
    case CONFIG_REALS:
        put_list(at, text, size);
        break;
    }
}

/* A text as YAML: as it is where that is plain to read, otherwise in double quotes. */
static void write_text(const char *text, FILE *out)
{
    static const char harmless[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                   "0123456789_./-+";
    if (text[0] == '\0') {
        fputs("None", out);
    } else if ((isalpha((unsigned char)text[0]) || text[0] == '.' || text[0] == '/') &&
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

static void write_value(const config_key *key, const settings *values, FILE *out)
{
    char text[CONFIG_TEXT_BYTES];
    if (key->kind == CONFIG_TEXT) {
        write_text((const char *)values + key->offset, out);
    } else {
        config_get(key, values, text, sizeof text);
        fputs(text, out);
    }
}

static void write_all(const settings *values, bool with_help, FILE *out)
{
    const char *node = "";
    size_t length = 0;
    for (int i = 0; i < config_key_count; i++) {
        const config_key *key = &config_keys[i];
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
        write_value(key, values, out);
        fputc('\n', out);
    }
}

void config_describe(const settings *values, FILE *out)
{
    write_all(values, true, out);
}

td_status config_write(const settings *values, const char *path)
{
    char *beside;
    FILE *out = td_temporary_file(path, &beside);
    if (out == NULL) {
        return td_temporary_failed(path, 0, "creating a file beside it");
    }
    write_all(values, false, out);
    return td_temporary_end(out, beside, path, 0, true);
}
