/* CSV from memory: rows of numbers, one column of which is the label. */
#include "data/class_names.h"
#include "data/dataset.h"
#include "data/parse.h"
#include "tensor/system/list.h"
#include "tensor/system/number.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { LONGEST = 255, MOST_WORDS = 10000, MOST_CLASSES = 1000000, MOST_COLUMNS = 1 << 20 };

/* ---- lines and fields ---- */

typedef struct line {
    const char *at, *end;
} line;

typedef struct cursor {
    const td_csv_rules *rules;
    const char *at, *end; /* what is left of the text */
    const char *name;
    long long number; /* of the line last taken, from 1 */
    char separator;
} cursor;

typedef struct field {
    char text[LONGEST + 1]; /* without quotes and surrounding blanks */
    bool good;              /* it has no byte 0, is not too long, and its quotes are closed */
} field;

/* The next line that has more than blanks, without its end (\n, \r\n, or \r alone); false when
 * there is none left. */
static bool next_line(cursor *c, line *l)
{
    bool blank = true;
    while (c->at < c->end && blank) {
        l->at = c->at;
        for (; c->at < c->end && *c->at != '\n' && *c->at != '\r'; c->at++) {
            blank = blank && (*c->at == ' ' || *c->at == '\t');
        }
        l->end = c->at;
        bool both = c->end - c->at >= 2 && memcmp(c->at, "\r\n", 2) == 0;
        c->at += both ? 2 : c->at < c->end;
        c->number++;
    }
    return !blank;
}

static bool is_blank(const cursor *c, char byte)
{
    return (byte == ' ' || byte == '\t') && byte != c->separator;
}

/* Takes a field and the separator behind it off the line; at a line's end l->at is beyond it. In
 * quotes a separator is a byte like others, and two quotes are one. */
static void take_field(const cursor *c, line *l, field *f)
{
    size_t length = 0, kept = 0; /* kept: without trailing blanks */
    bool quoted = false;
    f->good = true;
    for (; l->at < l->end && (quoted || *l->at != c->separator); l->at++) {
        char byte = *l->at;
        if (byte == '"' && (quoted || length == 0)) {
            bool twice = quoted && l->at + 1 < l->end && l->at[1] == '"';
            if (!twice) {
                quoted = !quoted;
                continue;
            }
            l->at++;
        } else if (!quoted && length == 0 && is_blank(c, byte)) {
            continue;
        }
        f->good = f->good && byte != '\0' && length < LONGEST;
        if (length < LONGEST) {
            f->text[length++] = byte;
            kept = quoted || !is_blank(c, byte) ? length : kept;
        }
    }
    f->text[kept] = '\0';
    f->good = f->good && !quoted;
    l->at++;
}

/* The number of a line's columns; of more than MOST_COLUMNS: one more. */
static int count_columns(const cursor *c, line l)
{
    field f;
    int columns = 0;
    for (; l.at <= l.end && columns <= MOST_COLUMNS; columns++) {
        take_field(c, &l, &f);
    }
    return columns;
}

/* Whether C reads the whole field as a number: also "nan", "1e999" and "0x1p3". */
static bool is_numeric(const field *f, double *value)
{
    char *end;
    *value = td_strtod(f->text, &end);
    return f->good && end != f->text && *end == '\0';
}

/* The number of a field, which must be decimal, and one that f32 holds, as samples are f32. */
static bool to_number(const field *f, double *value)
{
    return is_numeric(f, value) && isfinite((float)*value) && strpbrk(f->text, "xX") == NULL;
}

static td_status bad_number(const cursor *c, int column, const field *f)
{
    bool digits = strpbrk(f->text, "0123456789") != NULL &&
                  f->text[strspn(f->text, "+-.0123456789eE")] == '\0';
    const char *why = !f->good           ? " (a byte 0, an open quote, or more than 255 bytes)"
                      : *f->text == '\0' ? " (it is empty: leave the row out, or fill it in)"
                      : digits           ? " that f32 holds (up to 3.4e38)"
                                         : "";
    return td_fail(TD_E_FORMAT, "%s:%lld: column %d: '%.40s' is not a finite number%s", c->name,
                   c->number, column + 1, f->text, why);
}

/* ---- the first lines ---- */

/* Whether a field may name a column. "nan", "?", "1_000" and an empty field are faults of a sample,
 * which must not vanish as a header. */
static bool may_be_name(const field *f)
{
    static const char *const missing[] = { "nan", "na", "n/a", "null", "inf", "infinity" };
    bool name = isalpha((unsigned char)*f->text) || *f->text == '_' || (signed char)*f->text < 0;
    for (size_t i = 0; i < sizeof missing / sizeof *missing; i++) {
        name = name && strcasecmp(f->text, missing[i]) != 0;
    }
    return name;
}

/* Whether a first line names the columns: one of its fields is a word where the second line has a
 * number; an only line names them if it has words alone. */
static bool looks_like_header(const cursor *c, line first)
{
    cursor ahead = *c;
    line second;
    bool only = !next_line(&ahead, &second), found = only;
    while (first.at <= first.end && (only || second.at <= second.end)) {
        field f;
        double ignored;
        take_field(c, &first, &f);
        bool name = may_be_name(&f);
        if (only) {
            found = found && name;
        } else {
            take_field(c, &second, &f);
            found = found || (name && to_number(&f, &ignored));
        }
    }
    return found;
}

static td_status find_label(const cursor *c, line header, td_csv_table *t)
{
    const td_csv_options *o = &c->rules->options;
    if (o->label == NULL) {
        t->label = (o->label_column > 0 ? o->label_column : t->columns) - 1;
        return t->label < t->columns
                   ? TD_OK
                   : td_fail(TD_E_ARG, "%s:1: the label is to be column %d, and there are %d",
                             c->name, o->label_column, t->columns);
    }
    char names[512];
    size_t used = 0;
    for (int column = 0; header.at <= header.end; column++) {
        field f;
        take_field(c, &header, &f);
        if (f.good && strcmp(f.text, o->label) == 0) {
            t->label = column;
            return TD_OK;
        }
        int more =
            snprintf(names + used, sizeof names - used, "%s%.60s", column > 0 ? ", " : "", f.text);
        used = used + (size_t)more < sizeof names ? used + (size_t)more : used;
        names[used] = '\0';
    }
    return td_fail(TD_E_NOTFOUND, "%s:1: there is no column '%s'; the columns are: %s", c->name,
                   o->label, names);
}

static td_status check_columns(const cursor *c, line l, int expected)
{
    int columns = count_columns(c, l);
    return columns == expected
               ? TD_OK
               : td_fail(TD_E_FORMAT, "%s:%lld: %d columns, expected %d, separated by '%c'",
                         c->name, c->number, columns, expected, c->separator);
}

/* Takes the header line, if there is one, and finds out about the columns. */
static td_status begin(cursor *c, td_csv_table *t)
{
    const td_csv_options *o = &c->rules->options;
    const char *start = c->at;
    line first;
    TD_CHECK(next_line(c, &first), TD_E_FORMAT,
             "%s:1: the file is empty; expected lines of numbers", c->name);
    t->columns = c->rules->columns > 0 ? c->rules->columns : count_columns(c, first);
    TD_TRY(check_columns(c, first, t->columns));
    TD_CHECK(t->columns >= 2, TD_E_FORMAT,
             "%s:1: one column; expected at least one feature and a label, separated by "
             "'%c' (another separator is an option)",
             c->name, c->separator);
    TD_CHECK(t->columns <= MOST_COLUMNS, TD_E_FORMAT, "%s:1: more than %d columns", c->name,
             MOST_COLUMNS);
    t->features = t->columns - 1;
    t->header = o->header == TD_CSV_HEADER || o->label != NULL ||
                (o->header == TD_CSV_AUTO && looks_like_header(c, first));
    TD_TRY(find_label(c, first, t));
    if (!t->header) {
        c->at = start;
        c->number = 0;
    }
    return TD_OK;
}

/* ---- labels ---- */

/* Adds a class word. */
static td_status add_word(const cursor *c, td_csv_table *t, const char *word)
{
    TD_CHECK(t->classes != MOST_WORDS, TD_E_FORMAT,
             "%s:%lld: column %d has more than %d different words: is it the label?", c->name,
             c->number, t->label + 1, MOST_WORDS);
    char place[300];
    snprintf(place, sizeof place, "%.200s:%lld: column %d", c->name, c->number, t->label + 1);
    td_class_names words = { t->names, t->classes };
    td_status status = td_class_names_add(&words, place, word);
    t->names = words.name;
    t->classes = words.count;
    return status;
}

/* The number of a class word in the order of appearance; a new one is added unless the classes are
 * another dataset's. */
static td_status take_word(const cursor *c, td_csv_table *t, const field *f, double *label)
{
    int known = 0;
    TD_CHECK(f->good && f->text[0] != '\0', TD_E_FORMAT,
             "%s:%lld: column %d: '%.40s' is no class word", c->name, c->number, t->label + 1,
             f->text);
    while (known < t->classes && strcmp(t->names[known], f->text) != 0) {
        known++;
    }
    *label = known;
    if (known < t->classes) {
        return TD_OK;
    }
    char list[TD_CLASS_LIST];
    return c->rules->options.classes_of == NULL
               ? add_word(c, t, f->text)
               : td_fail(TD_E_FORMAT,
                         "%s:%lld: column %d: '%.40s' is none of the other dataset's %s", c->name,
                         c->number, t->label + 1, f->text,
                         td_class_names_show((const char *const *)t->names, t->classes, list));
}

static td_status take_number(const cursor *c, td_csv_table *t, const field *f, double *label)
{
    if (!to_number(f, label)) {
        return bad_number(c, t->label, f);
    }
    bool limited = c->rules->classes > 0;
    int most = limited ? c->rules->classes : MOST_CLASSES;
    if (!c->rules->options.regression &&
        (!(*label >= 0 && *label < most) || *label != floor(*label))) {
        return td_fail(TD_E_FORMAT,
                       "%s:%lld: column %d: the target is %g; classes are numbered 0, 1, ...%s%.0d",
                       c->name, c->number, t->label + 1, *label, limited ? " up to " : "",
                       limited ? most - 1 : 0);
    }
    t->classes =
        !c->rules->options.regression && *label >= t->classes ? (int)*label + 1 : t->classes;
    return TD_OK;
}

/* Numbers the class words by their order in the alphabet instead of that of appearance. */
static td_status sort_words(const cursor *c, td_csv_table *t)
{
    size_t bytes = (size_t)t->classes * sizeof *t->names;
    char **sorted = malloc(bytes);
    TD_CHECK(sorted != NULL, TD_E_NOMEM, "%s: no memory for the class names", c->name);
    memcpy(sorted, t->names, bytes);
    qsort(sorted, (size_t)t->classes, sizeof *sorted, td_compare_texts);
    for (int64_t i = 0; i < t->rows; i++) {
        char *const *word = &t->names[(int)t->labels[i]];
        char **found = bsearch(word, sorted, (size_t)t->classes, sizeof *sorted, td_compare_texts);
        t->labels[i] = (double)(found - sorted);
    }
    free(t->names);
    t->names = sorted;
    return TD_OK;
}

/* ---- rows ---- */

static td_status take_row(const cursor *c, line l, td_csv_table *t)
{
    TD_TRY(check_columns(c, l, t->columns));
    double *value = t->values + t->rows * t->features;
    field f, label = { .good = false };
    for (int column = 0; column < t->columns; column++) {
        take_field(c, &l, column == t->label ? &label : &f);
        if (column != t->label && !to_number(&f, value++)) {
            return bad_number(c, column, &f);
        }
    }
    double ignored;
    bool may_be_words = c->rules->classes == 0 && !c->rules->options.regression;
    bool words =
        t->names != NULL || (t->rows == 0 && may_be_words && !is_numeric(&label, &ignored));
    TD_TRY(words ? take_word(c, t, &label, &t->labels[t->rows])
                 : take_number(c, t, &label, &t->labels[t->rows]));
    t->rows++;
    return TD_OK;
}

static td_status make_room(const cursor *c, td_csv_table *t)
{
    size_t lines = 1;
    for (const char *at = c->at; at < c->end; at++) {
        lines += *at == '\n' || *at == '\r';
    }
    t->values = calloc(lines, (size_t)t->features * sizeof *t->values);
    t->labels = calloc(lines, sizeof *t->labels);
    TD_CHECK(t->values != NULL && t->labels != NULL, TD_E_NOMEM,
             "%s: no memory for %zu rows of %d numbers", c->name, lines, t->features);
    return TD_OK;
}

static td_status parse_lines(cursor *c, td_csv_table *t)
{
    const td_dataset *other = c->rules->options.classes_of;
    TD_TRY(begin(c, t));
    TD_TRY(make_room(c, t));
    for (int i = 0; other != NULL && other->class_names != NULL && i < other->classes; i++) {
        TD_TRY(add_word(c, t, other->class_names[i]));
    }
    line l;
    while (next_line(c, &l)) {
        TD_TRY(take_row(c, l, t));
    }
    TD_CHECK(t->rows != 0, TD_E_FORMAT, "%s:%lld: a header line, and no rows", c->name, c->number);
    if (other != NULL && t->names == NULL) {
        t->classes = other->classes;
    }
    return t->names != NULL && other == NULL ? sort_words(c, t) : TD_OK;
}

td_status td_csv_parse(const td_csv_rules *rules, const char *text, size_t size, const char *name,
                       td_csv_table *table)
{
    td_csv_rules r = *rules;
    const td_dataset *other = r.options.classes_of;
    if (other != NULL && other->class_names == NULL) {
        r.classes = other->classes;
    }
    cursor c = { .rules = &r, .at = text, .end = text + size, .name = name };
    c.separator = r.options.separator != '\0' ? r.options.separator : ',';
    if (size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
        c.at += 3; /* the byte order mark that some spreadsheets write */
    }
    *table = (td_csv_table){ 0 };
    td_status status = parse_lines(&c, table);
    if (status != TD_OK) {
        td_csv_table_free(table);
    }
    return status;
}

void td_csv_table_free(td_csv_table *table)
{
    td_free_texts(table->names, table->classes);
    free(table->values);
    free(table->labels);
    *table = (td_csv_table){ 0 };
}
