/* Reads what a training run has left in its folder: metrics and settings. */
#include "apps/tools/report/report.h"

#include "tensor/system/files.h"
#include "tensor/system/list.h"
#include "tensor/system/number.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <float.h>
#include <sys/stat.h>

enum { MOST_COLUMNS = 64, MOST_SETTINGS_BYTES = 1 << 20, PATH_BYTES = 4096 };

/* ---- metrics.csv ---- */

static td_status read_names(const char *path, char *line, report_table *t)
{
    for (char *cell; (cell = strsep(&line, ",")) != NULL; t->columns++) {
        TD_CHECK(t->columns < MOST_COLUMNS && (t->columns > 0 || strcmp(cell, "step") == 0),
                 TD_E_FORMAT,
                 "%s: the first line is not 'step,...' with up to %d columns: this is no "
                 "metrics.csv of a training run",
                 path, MOST_COLUMNS);
        TD_CHECK(td_add_text(&t->names, t->columns, cell), TD_E_NOMEM, "no memory for %s", path);
    }
    return TD_OK;
}

static td_status read_row(const char *path, char *line, report_table *t)
{
    TD_CHECK(td_grow(&t->cells, t->rows, sizeof *t->cells * (size_t)t->columns), TD_E_NOMEM,
             "no memory for %s", path);
    int columns = 0;
    for (char *cell; (cell = strsep(&line, ",")) != NULL; columns++) {
        char *end = cell;
        double value = *cell != '\0' ? td_strtod(cell, &end) : NAN;
        TD_CHECK(columns != 0 || (fabs(value) <= REPORT_LARGEST && *end == '\0'), TD_E_FORMAT,
                 "%s:%lld: '%.40s' is no number of a step", path, (long long)t->rows + 2, cell);
        TD_CHECK(columns != t->columns && *end == '\0', TD_E_FORMAT,
                 "%s:%lld: '%.40s' is no number of one of %d columns", path, (long long)t->rows + 2,
                 cell, t->columns);
        /* What is logged are floats: beyond them is infinite, and not drawn. */
        t->cells[t->rows * t->columns + columns] = fabs(value) > FLT_MAX ? INFINITY : value;
    }
    t->rows++;
    TD_CHECK(columns == t->columns, TD_E_FORMAT, "%s:%lld: %d values, and there are %d columns",
             path, (long long)t->rows + 1, columns, t->columns);
    return TD_OK;
}

/* A last line without its end is skipped: the run is writing it, or was killed. */
static td_status read_metrics(const char *path, report_table *t)
{
    FILE *file;
    char *line = NULL;
    size_t room = 0;
    TD_TRY(td_open_to_read(path, &file));
    td_status status = TD_OK;
    for (ssize_t length; status == TD_OK && (length = getline(&line, &room, file)) > 0 &&
                         line[length - 1] == '\n';) {
        line[strcspn(line, "\r\n")] = '\0';
        status = t->columns == 0 ? read_names(path, line, t) : read_row(path, line, t);
    }
    free(line);
    fclose(file);
    return status == TD_OK && t->rows == 0
               ? td_fail(TD_E_FORMAT, "%s has no rows: nothing was logged yet", path)
               : status;
}

int report_column(const report_table *t, const char *names)
{
    for (size_t length; *names != '\0'; names += length + (names[length] == ' ')) {
        length = strcspn(names, " ");
        for (int i = 0; i < t->columns; i++) {
            bool same = strlen(t->names[i]) == length && memcmp(t->names[i], names, length) == 0;
            for (int64_t row = 0; same && row < t->rows; row++) {
                if (isfinite(t->cells[row * t->columns + i])) {
                    return i;
                }
            }
        }
    }
    return -1;
}

/* ---- settings.json ---- */

/* Objects inside are lists of settings, too: cJSON limits how deep they nest. */
static td_status add_settings(const char *path, const cJSON *object, report_settings *s)
{
    const cJSON *item = NULL;
    cJSON_ArrayForEach(item, object)
    {
        if (cJSON_IsObject(item)) {
            TD_TRY(add_settings(path, item, s));
            continue;
        }
        char *text =
            cJSON_IsString(item) ? strdup(item->valuestring) : cJSON_PrintUnformatted(item);
        if (text == NULL || !td_grow(&s->values, s->count, sizeof *s->values) ||
            !td_add_text(&s->keys, s->count, item->string != NULL ? item->string : "")) {
            free(text);
            return td_fail(TD_E_NOMEM, "no memory for %s", path);
        }
        s->values[s->count++] = text;
    }
    return TD_OK;
}

static td_status read_run_settings(const char *path, report_settings *s)
{
    char *text = NULL;
    size_t size = 0;
    TD_TRY(td_read_file(path, "settings", MOST_SETTINGS_BYTES, &text, &size));
    cJSON *json = cJSON_ParseWithLength(text, size);
    td_status status = cJSON_IsObject(json)
                           ? add_settings(path, json, s)
                           : td_fail(TD_E_FORMAT, "%s: no settings of a run in it", path);
    cJSON_Delete(json);
    free(text);
    return status;
}

/* ---- a run ---- */

/* A file of the run's folder, if it is there. */
static bool in_folder(const report_run *run, const char *name, char file[PATH_BYTES])
{
    struct stat info;
    return snprintf(file, PATH_BYTES, "%s/%s", run->path, name) < PATH_BYTES &&
           stat(file, &info) == 0;
}

td_status report_read(const char *path, report_run *run)
{
    struct stat info;
    char file[PATH_BYTES];
    const char *ending = strrchr(path, '.');
    *run = (report_run){ .path = path };
    TD_CHECK(stat(path, &info) == 0, TD_E_IO, "%s cannot be read: %s", path, strerror(errno));
    if (!S_ISDIR(info.st_mode)) {
        return ending != NULL && strcmp(ending, ".csv") == 0 ? read_metrics(path, &run->metrics)
                                                             : report_read_trace(path, &run->trace);
    }
    TD_TRY(in_folder(run, "metrics.csv", file) ? read_metrics(file, &run->metrics) : TD_OK);
    TD_TRY(in_folder(run, "settings.json", file) ? read_run_settings(file, &run->settings) : TD_OK);
    TD_TRY(in_folder(run, "trace.json", file) ? report_read_trace(file, &run->trace) : TD_OK);
    TD_CHECK(run->metrics.columns > 0 || run->trace.count > 0, TD_E_FORMAT,
             "%s has neither metrics.csv nor trace.json: a training program writes "
             "them with --log-dir DIR --trace DIR/trace.json",
             path);
    return TD_OK;
}

void report_run_free(report_run *run)
{
    td_free_texts(run->metrics.names, run->metrics.columns);
    td_free_texts(run->settings.keys, run->settings.count);
    td_free_texts(run->settings.values, run->settings.count);
    td_free_texts(run->trace.names, run->trace.name_count);
    free(run->metrics.cells);
    free(run->trace.events);
    free(run->trace.lanes);
    free(run->trace.steps);
    *run = (report_run){ .path = NULL };
}
