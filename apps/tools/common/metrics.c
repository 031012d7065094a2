#include "apps/tools/common/metrics.h"

#include "apps/tools/common/events.h"
#include "apps/tools/common/files.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct metrics {
    char path[4096]; /* of the CSV */
    FILE *csv;
    events *events;
    const char *const *names;
    int count;
};

static td_status cannot_write(const metrics *m)
{
    return td_fail(TD_E_IO, "cannot write %s: %s", m->path, strerror(errno));
}

/* Copies the rows up to `step` of the CSV that the run before has left. */
static void keep_rows(const metrics *m, const char *old_path, int64_t step)
{
    FILE *old = fopen(old_path, "r");
    char *line = NULL;
    size_t size = 0;
    if (old == NULL) {
        return; /* the run before kept no metrics */
    }
    bool header = true;
    while (getline(&line, &size, old) > 0) {
        if (!header && strtoll(line, NULL, 10) <= step) {
            fputs(line, m->csv);
        }
        header = false;
    }
    free(line);
    fclose(old);
}

static td_status open_csv(metrics *m, int64_t first_step)
{
    char old[4096 + 8];
    snprintf(old, sizeof(old), "%s.old", m->path);
    if (rename(m->path, old) != 0 && errno != ENOENT) {
        return td_fail(TD_E_IO, "cannot move %s to %s: %s", m->path, old, strerror(errno));
    }
    m->csv = fopen(m->path, "w");
    if (m->csv == NULL) {
        return cannot_write(m);
    }
    fputs("step", m->csv);
    for (int i = 0; i < m->count; i++) {
        fprintf(m->csv, ",%s", m->names[i]);
    }
    fputc('\n', m->csv);
    if (first_step > 0) {
        keep_rows(m, old, first_step);
    }
    return fflush(m->csv) == 0 ? TD_OK : cannot_write(m);
}

td_status metrics_open(const char *dir, const char *const *names, int count, int64_t first_step,
                       metrics **out)
{
    TD_TRY(make_folders(dir));
    metrics *m = calloc(1, sizeof(*m));
    if (m == NULL) {
        return td_fail(TD_E_NOMEM, "no memory for the metrics");
    }
    m->names = names;
    m->count = count;
    snprintf(m->path, sizeof(m->path), "%s/metrics.csv", dir);
    td_status status = open_csv(m, first_step);
    if (status == TD_OK) {
        status = events_open(dir, &m->events);
    }
    if (status != TD_OK) {
        metrics_close(m);
        return status;
    }
    *out = m;
    return TD_OK;
}

td_status metrics_write(metrics *m, int64_t step, const double *values)
{
    fprintf(m->csv, "%" PRId64, step);
    for (int i = 0; i < m->count; i++) {
        if (isnan(values[i])) {
            fputc(',', m->csv);
        } else {
            fprintf(m->csv, ",%.9g", values[i]);
        }
    }
    fputc('\n', m->csv);
    if (fflush(m->csv) != 0) {
        return cannot_write(m);
    }
    return events_scalars(m->events, step, m->names, values, m->count);
}

void metrics_close(metrics *m)
{
    if (m == NULL) {
        return;
    }
    if (m->csv != NULL) {
        fclose(m->csv);
    }
    events_close(m->events);
    free(m);
}
