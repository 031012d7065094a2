/* The wine CSV, from memory. */
#include "data/parse.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = TD_WINE_FEATURES + 1, LONGEST_NUMBER = 63 };

typedef struct cursor {
    const char *at, *end; /* what is left of the text */
    const char *name;
    long long line; /* number of the line last taken, from 1 */
} cursor;

/* One line without its end (\n or \r\n); false when there is none left. */
static bool next_line(cursor *c, const char **line, size_t *length)
{
    if (c->at == c->end) {
        return false;
    }
    const char *newline = memchr(c->at, '\n', (size_t)(c->end - c->at));
    const char *stop = newline != NULL ? newline : c->end;
    *line = c->at;
    *length = (size_t)(stop - c->at);
    if (*length > 0 && stop[-1] == '\r') {
        --*length;
    }
    c->at = newline != NULL ? newline + 1 : c->end;
    c->line++;
    return true;
}

static int count_columns(const char *line, size_t length)
{
    int columns = 1;
    for (size_t i = 0; i < length; i++) {
        columns += line[i] == ',';
    }
    return columns;
}

static td_status check_columns(const cursor *c, const char *line, size_t length)
{
    int columns = count_columns(line, length);
    if (columns == COLUMNS) {
        return TD_OK;
    }
    return td_fail(TD_E_FORMAT,
                   "%s:%lld: %d columns, expected %d (%d features, then the target), separated by "
                   "commas",
                   c->name, c->line, columns, COLUMNS, TD_WINE_FEATURES);
}

/* The number of one field, which must fill it but for blanks. */
static bool parse_number(const char *field, size_t length, double *value)
{
    char text[LONGEST_NUMBER + 1];
    if (length > LONGEST_NUMBER || memchr(field, '\0', length) != NULL) {
        return false;
    }
    memcpy(text, field, length);
    text[length] = '\0';
    char *end;
    *value = strtod(text, &end);
    if (end == text || !isfinite(*value)) {
        return false;
    }
    return end[strspn(end, " \t")] == '\0';
}

static td_status parse_row(const cursor *c, const char *line, size_t length, double *features,
                           int64_t *label)
{
    TD_TRY(check_columns(c, line, length));
    const char *line_end = line + length;
    for (int column = 0; column < COLUMNS; column++) {
        const char *comma = memchr(line, ',', (size_t)(line_end - line));
        const char *stop = comma != NULL ? comma : line_end;
        double value;
        if (!parse_number(line, (size_t)(stop - line), &value)) {
            return td_fail(TD_E_FORMAT, "%s:%lld: column %d: '%.*s' is not a finite number",
                           c->name, c->line, column + 1, (int)(stop - line < 40 ? stop - line : 40),
                           line);
        }
        if (column < TD_WINE_FEATURES) {
            features[column] = value;
        } else if (!(value >= 0 && value < TD_WINE_CLASSES) || value != floor(value)) {
            return td_fail(TD_E_FORMAT, "%s:%lld: the target is %g; it must be 0, 1 or 2", c->name,
                           c->line, value);
        } else {
            *label = (int64_t)value;
        }
        line = comma != NULL ? comma + 1 : line_end;
    }
    return TD_OK;
}

static td_status parse_lines(cursor *c, td_wine_table *table)
{
    const char *line;
    size_t length;
    if (!next_line(c, &line, &length)) {
        return td_fail(TD_E_FORMAT, "%s:1: the file is empty; expected a header line and rows",
                       c->name);
    }
    TD_TRY(check_columns(c, line, length));
    double ignored;
    if (parse_number(line, (size_t)((const char *)memchr(line, ',', length) - line), &ignored)) {
        return td_fail(TD_E_FORMAT,
                       "%s:1: expected a header line (alcohol,...,target), not numbers", c->name);
    }
    while (next_line(c, &line, &length)) {
        if (length == 0 && c->at == c->end) {
            break; /* an empty last line */
        }
        TD_TRY(
            parse_row(c, line, length, table->features[table->rows], &table->labels[table->rows]));
        table->rows++;
    }
    if (table->rows == 0) {
        return td_fail(TD_E_FORMAT, "%s:%lld: a header line, and no rows", c->name, c->line);
    }
    return TD_OK;
}

td_status td_wine_parse(const char *text, size_t size, const char *name, td_wine_table *table)
{
    cursor c = { .at = text, .end = text + size, .name = name };
    if (size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
        c.at += 3; /* the byte order mark that some spreadsheets write */
    }
    size_t lines = 1;
    for (size_t i = 0; i < size; i++) {
        lines += text[i] == '\n';
    }
    *table = (td_wine_table){
        .features = calloc(lines, sizeof *table->features),
        .labels = calloc(lines, sizeof *table->labels),
    };
    td_status status = table->features != NULL && table->labels != NULL
                           ? parse_lines(&c, table)
                           : td_fail(TD_E_NOMEM, "%s: no memory for %zu rows", name, lines);
    if (status != TD_OK) {
        td_wine_table_free(table);
    }
    return status;
}

void td_wine_table_free(td_wine_table *table)
{
    free(table->features);
    free(table->labels);
    *table = (td_wine_table){ 0 };
}
