#include "apps/tools/plot_runs/run_table.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct reading {
    run_table *table;
    const char *path;
    int64_t line;
} reading;

static td_status no_memory(const reading *r)
{
    return td_fail(TD_E_NOMEM, "%s: no memory for line %" PRId64, r->path, r->line);
}

static int count_fields(const char *line)
{
    int count = 1;
    for (; *line != '\0'; line++) {
        count += *line == ',';
    }
    return count;
}

static td_status take_names(reading *r, char *line)
{
    run_table *t = r->table;
    int columns = count_fields(line);
    t->names = calloc((size_t)columns, sizeof(char *));
    if (t->names == NULL) {
        return no_memory(r);
    }
    for (char *name; (name = strsep(&line, ",")) != NULL; t->columns++) {
        t->names[t->columns] = strdup(name);
        if (t->names[t->columns] == NULL) {
            return no_memory(r);
        }
    }
    if (strcmp(t->names[0], "step") != 0) {
        return td_fail(TD_E_FORMAT,
                       "%s: the first column is '%.40s', not 'step': this is no metrics.csv of a "
                       "training run",
                       r->path, t->names[0]);
    }
    return TD_OK;
}

static td_status make_room(reading *r)
{
    run_table *t = r->table;
    if (t->rows < t->capacity) {
        return TD_OK;
    }
    int64_t capacity = t->capacity > 0 ? 2 * t->capacity : 256;
    double *cells = realloc(t->cells, (size_t)(capacity * t->columns) * sizeof *cells);
    if (cells == NULL) {
        return no_memory(r);
    }
    t->cells = cells;
    t->capacity = capacity;
    return TD_OK;
}

static td_status take_row(reading *r, char *line)
{
    run_table *t = r->table;
    int columns = count_fields(line);
    if (columns != t->columns) {
        return td_fail(TD_E_FORMAT, "%s:%" PRId64 ": %d values, and there are %d columns", r->path,
                       r->line, columns, t->columns);
    }
    TD_TRY(make_room(r));
    double *row = t->cells + t->rows * t->columns;
    for (int i = 0; i < columns; i++) {
        const char *cell = strsep(&line, ",");
        char *end;
        row[i] = *cell == '\0' ? NAN : strtod(cell, &end);
        bool finite = isfinite(row[i]); /* a loss that is not leaves a gap in its curve */
        if ((*cell != '\0' && *end != '\0') || (i == 0 && !finite)) {
            return td_fail(TD_E_FORMAT, "%s:%" PRId64 ": '%.40s' in column '%s' is no number",
                           r->path, r->line, cell, t->names[i]);
        }
        row[i] = finite ? row[i] : NAN;
    }
    t->rows++;
    return TD_OK;
}

static td_status read_lines(reading *r, FILE *in)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    td_status status = TD_OK;
    while (status == TD_OK && (length = getline(&line, &room, in)) > 0) {
        r->line++;
        if (line[length - 1] != '\n') {
            break; /* being written */
        }
        line[strcspn(line, "\r\n")] = '\0';
        status =
            strlen(line) + 2 < (size_t)length
                ? td_fail(TD_E_FORMAT, "%s:%" PRId64 ": bytes that are no text", r->path, r->line)
            : r->line == 1 ? take_names(r, line)
                           : take_row(r, line);
    }
    if (status == TD_OK && ferror(in)) {
        status = td_fail(TD_E_IO, "%s: cannot be read: %s", r->path, strerror(errno));
    }
    free(line);
    return status;
}

static td_status read_file(const char *path, run_table *table)
{
    FILE *in = fopen(path, "r");
    if (in == NULL) {
        return td_fail(errno == ENOENT ? TD_E_NOTFOUND : TD_E_IO,
                       "%s: cannot be opened: %s; runs write it with --log-dir", path,
                       strerror(errno));
    }
    reading r = { .table = table, .path = path };
    td_status status = read_lines(&r, in);
    fclose(in);
    TD_TRY(status);
    return table->rows > 0 ? TD_OK
                           : td_fail(TD_E_FORMAT, "%s: no rows: nothing was logged yet", path);
}

td_status run_table_read(const char *path, run_table *table)
{
    char file[4096];
    struct stat info;
    bool folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    *table = (run_table){ .rows = 0 };
    if (snprintf(file, sizeof file, "%s%s", path, folder ? "/metrics.csv" : "") >=
        (int)sizeof file) {
        return td_fail(TD_E_IO, "%s: the path is too long", path);
    }
    td_status status = read_file(file, table);
    if (status != TD_OK) {
        run_table_free(table);
    }
    return status;
}

void run_table_free(run_table *table)
{
    for (int i = 0; i < table->columns; i++) {
        free(table->names[i]);
    }
    free(table->names);
    free(table->cells);
    *table = (run_table){ .rows = 0 };
}

int run_table_find(const run_table *table, const char *name)
{
    for (int i = 0; i < table->columns; i++) {
        if (strcmp(table->names[i], name) != 0) {
            continue;
        }
        for (int64_t row = 0; row < table->rows; row++) {
            if (!isnan(run_table_get(table, row, i))) {
                return i;
            }
        }
    }
    return -1;
}
