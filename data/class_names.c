/* Lists of classes' names. */
#include "data/class_names.h"
#include "data/dataset.h"
#include "tensor/system/list.h"
#include "tensor/system/text.h"

#include <stdlib.h>
#include <string.h>

void td_class_names_free(td_class_names *list)
{
    td_free_texts(list->name, list->count);
    *list = (td_class_names){ .count = 0 };
}

static td_status check_name(const char *where, const char *name)
{
    TD_CHECK(name[strspn(name, " ")] != '\0', TD_E_FORMAT, "%s: a blank name: each class needs one",
             where);
    TD_CHECK(strlen(name) <= TD_CLASS_NAME, TD_E_FORMAT,
             "%s: a class's name of %zu bytes; at most %d are taken", where, strlen(name),
             TD_CLASS_NAME);
    TD_CHECK(td_is_plain_text(name), TD_E_FORMAT,
             "%s: '%.200s' cannot be a class's name: names are text in UTF-8 without "
             "control characters; rename it, or convert the file to UTF-8",
             where, name);
    return TD_OK;
}

/* ---- reading ---- */

td_status td_class_names_add(td_class_names *list, const char *where, const char *name)
{
    TD_TRY(check_name(where, name));
    TD_CHECK(td_add_text(&list->name, list->count, name), TD_E_NOMEM,
             "%s: no memory for the classes' names", where);
    list->count++;
    return TD_OK;
}

static td_status check_names_differ(const char *where, const td_class_names *list)
{
    size_t bytes = (size_t)list->count * sizeof *list->name;
    char **sorted = malloc(bytes + 1);
    TD_CHECK(sorted != NULL, TD_E_NOMEM, "%s: no memory for the classes' names", where);
    for (int i = 0; i < list->count; i++) {
        sorted[i] = list->name[i];
    }
    qsort(sorted, (size_t)list->count, sizeof *sorted, td_compare_texts);
    td_status status = TD_OK;
    for (int i = 1; i < list->count && status == TD_OK; i++) {
        if (strcmp(sorted[i - 1], sorted[i]) == 0) {
            status = td_fail(TD_E_FORMAT, "%s: '%s' is the name of two classes", where, sorted[i]);
        }
    }
    free(sorted);
    return status;
}

/* In place: cuts off what editors leave around a name, and returns where the name begins. */
static char *trim_name(char *line)
{
    line += strspn(line, " \t");
    size_t length = strlen(line);
    while (length > 0 && strchr(" \t", line[length - 1]) != NULL) {
        length--;
    }
    line[length] = '\0';
    return line;
}

/* Reads and cuts up a copy of the text. */
static td_status read_lines(const char *where, char *text, bool by_hand, td_class_names *list)
{
    const char *ends = by_hand ? "\r\n" : "\n";
    int blank = 0; /* lines before this one that are */
    for (int number = 1; *text != '\0'; number++) {
        char *line = text, end, place[300];
        text += strcspn(text, ends);
        end = *text;
        *text = '\0';
        text += end != '\0';
        text += end == '\r' && *text == '\n';
        line = by_hand ? trim_name(line) : line;
        snprintf(place, sizeof place, "%.280s:%d", where, number);
        if (*line == '\0') {
            blank++;
            continue;
        }
        TD_CHECK(blank <= 0, TD_E_FORMAT,
                 "%s: the line before is blank: each line is the name of a class; remove "
                 "blank lines, or name that class",
                 place);
        TD_TRY(td_class_names_add(list, place, line));
    }
    return check_names_differ(where, list);
}

td_status td_class_names_parse(const char *where, const char *text, size_t size, bool by_hand,
                               td_class_names *list)
{
    static const char mark[] = "\xef\xbb\xbf";
    *list = (td_class_names){ .count = 0 };
    TD_CHECK(memchr(text, '\0', size) == NULL, TD_E_FORMAT,
             "%s: a byte 0 is in this list of names: save the file as text in UTF-8", where);
    size_t skipped = by_hand && size >= 3 && memcmp(text, mark, 3) == 0 ? 3 : 0;
    char *copy = strndup(text + skipped, size - skipped);
    td_status status = copy != NULL
                           ? read_lines(where, copy, by_hand, list)
                           : td_fail(TD_E_NOMEM, "%s: no memory for the classes' names", where);
    free(copy);
    if (status != TD_OK) {
        td_class_names_free(list);
    }
    return status;
}

td_status td_class_names_copy(const char *const *names, int count, td_class_names *list)
{
    for (int i = 0; i < count; i++) {
        TD_CHECK(td_add_text(&list->name, list->count, names[i]), TD_E_NOMEM,
                 "no memory for the names of %d classes", count);
        list->count++;
    }
    return TD_OK;
}

/* ---- finding, showing ---- */

int td_class_names_find(const char *const *names, int count, const char *name, int first)
{
    for (int i = 0; i < count; i++) {
        int at = (i + first) % count;
        if (strcmp(names[at], name) == 0) {
            return at;
        }
    }
    return -1;
}

const char *td_class_names_show(const char *const *names, int count, char text[TD_CLASS_LIST])
{
    enum { LAST = 8 }; /* room for ", ..." */
    int used = snprintf(text, TD_CLASS_LIST, "%d class%s", count, count == 1 ? "" : "es");
    for (int i = 0; i < count; i++) {
        int left = TD_CLASS_LIST - used;
        const char *before = i == 0 ? ": " : ", ";
        int length = snprintf(text + used, (size_t)left, "%s'%s'", before, names[i]);
        if (length >= left - LAST) {
            snprintf(text + used, (size_t)left, "%s...", before);
            break;
        }
        used += length;
    }
    return text;
}
