/* A page that shows training runs (apps/report, --report): what is read from a run's folder, what
 * is computed from it, and the writing of the page. */
#pragma once

#include "tandem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a run, as its files tell it (read.c, trace.c) ---- */

/* No step, and no time in microseconds, is larger: doubles tell all whole numbers to here apart. */
#define REPORT_LARGEST 0x1p53

/* metrics.csv: a table of numbers; NaN: an empty cell; infinite: beyond a float, too. */
typedef struct report_table {
    char **names;  /* of the columns; the first is "step" */
    int columns;   /* 0: there is no file */
    double *cells; /* [rows][columns] */
    int64_t rows;
} report_table;

/* settings.json: keys and values in the file's order. */
typedef struct report_settings {
    char **keys, **values;
    int count;
} report_settings;

typedef enum report_kind {
    REPORT_FORWARD, /* these three: kernels */
    REPORT_BACKWARD,
    REPORT_OPTIMIZER,
    REPORT_WAIT, /* waiting for data, or for other ranks */
    REPORT_MESSAGE,
    REPORT_PART, /* of a step, with its kernels: "step", "forward" */
    REPORT_OTHER,
    REPORT_MEMORY, /* bytes of step memory in use from here on */
    REPORT_KINDS,  /* while reading: the name of a lane */
} report_kind;
extern const char *const report_kind_names[REPORT_KINDS];

typedef struct report_event {
    double begin, end; /* microseconds since the trace's first event */
    int64_t bytes;     /* of a message, or of memory */
    int rank, lane;    /* the trace's pid and tid */
    int name;
    report_kind kind;
} report_event;

/* What one thread of a rank did, or its messages, or its memory. */
typedef struct report_lane {
    int rank; /* the rank's place among those of the trace */
    const char *name;
    const report_event *first, *end;
} report_lane;

/* Where the time of a step goes. Each moment belongs to the first of these that is true then. */
typedef enum report_share {
    REPORT_COMPUTE, /* a kernel runs */
    REPORT_EXPOSED, /* a message is under way */
    REPORT_WAITING, /* the rank waits */
    REPORT_REST,    /* none of these: the host's work between kernels */
    REPORT_DATA,    /* waiting before the step, for data */
    REPORT_SHARES,
} report_share;
extern const char *const report_share_names[REPORT_SHARES];

/* Of one rank; microseconds. */
typedef struct report_step {
    double begin, end, share[REPORT_SHARES];
    double messages; /* with a message under way, kernels or not */
} report_step;

typedef struct report_trace {
    report_event *events; /* by rank, then lane, then begin; count 0: there is no file */
    int64_t count;
    char **names;
    int name_count, lane_count, ranks;
    report_lane *lanes;
    bool cut; /* the file ends in the middle: its program was killed, or still runs */
    double end;
    report_step *steps; /* [ranks][step_count] */
    int step_count;     /* that all ranks have taken */
} report_trace;

typedef struct report_run {
    const char *path;
    report_table metrics;
    report_settings settings;
    report_trace trace;
} report_run;

/* Reads a folder with metrics.csv, settings.json and trace.json, or at least the first or the last
 * of them; or a single file. TD_E_IO: it cannot be read; TD_E_FORMAT: it is none of these; the
 * message has the line. On failure, too, the caller frees the run. */
td_status report_read(const char *path, report_run *run);
td_status report_read_trace(const char *path, report_trace *trace); /* a part of report_read */
void report_run_free(report_run *run);

/* The first of several columns, separated by spaces, that has numbers; -1: none has. */
int report_column(const report_table *table, const char *names);

/* ---- what is computed (steps.c) ---- */

td_status report_measure(report_trace *trace); /* finds and divides the steps: a part of reading */
/* The first step that counts: memory grows in step 0. */
int report_first_step(const report_trace *trace);
report_step report_mean_step(const report_trace *trace); /* of all ranks and steps that count */
/* The first rank's step whose duration is nearest to the (geometric) mean; -1: no steps. */
int report_typical_step(const report_trace *trace);

/* What one name has taken on the first rank, in all steps that count. */
typedef struct report_row {
    int name;
    report_kind kind;
    int64_t calls, bytes;
    double time; /* microseconds */
} report_row;
/* The kernels, added up over their modules, and the messages; what takes longest comes first. */
td_status report_rows(const report_trace *trace, report_row **rows, int *count);
/* The bytes of the kernel's name in "conv2d layer1.0.conv1 (Conv2d)". */
int report_kernel_length(const char *name);

/* ---- what is written (page.c, figures.c, pack.c) ---- */

/* Text from files, as HTML and as a string of JSON inside of HTML. */
void report_html(FILE *out, const char *before, const char *text, const char *after);
void report_json(FILE *out, const char *text);

/* A figure of the runs' curves; columns as report_column takes them. false: no run has them. */
bool report_curves(FILE *out, const char *title, const char *columns, const char *test_columns,
                   double scale, const report_run *runs, int count);
/* One step of all ranks (-1: the whole trace): parts, kernels, messages with their bytes, memory.
 */
void report_timeline(FILE *out, const report_trace *trace, int step);
void report_stack(FILE *out, const report_trace *trace); /* the shares of each step */

/* A trace for the page's script. */
void report_pack(FILE *out, const report_trace *trace);

td_status report_page(FILE *out, const report_run *runs, int count);
/* Reads the runs and writes their page. TD_E_IO, TD_E_FORMAT, TD_E_NOMEM. */
td_status report_write(const char *path, char *const *runs, int count);
