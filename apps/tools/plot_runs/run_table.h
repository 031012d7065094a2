/* The metrics.csv of a run (metrics.h), read back: columns of numbers. */
#ifndef APPS_TOOLS_RUN_TABLE_H
#define APPS_TOOLS_RUN_TABLE_H

#include "tandem.h"

typedef struct run_table {
    char **names;  /* of the columns; the first is "step" */
    double *cells; /* [rows][columns]; NaN where a cell is empty */
    int64_t rows;
    int columns;
    int64_t capacity; /* rows that there is room for */
} run_table;

/* Reads DIR/metrics.csv, or a CSV itself. A last line without its end is one that is being written,
 * and left out. TD_E_NOTFOUND, TD_E_FORMAT: no such file, no column "step", no rows, a row with
 * other columns than the first, a cell that is no number; the message has file and line. */
td_status run_table_read(const char *path, run_table *table);
void run_table_free(run_table *table);

/* -1: there is no such column, or it is empty in all rows. */
int run_table_find(const run_table *table, const char *name);

static inline double run_table_get(const run_table *table, int64_t row, int column)
{
    return table->cells[row * table->columns + column];
}

#endif
