/* Computes where the time of steps goes, from a trace's events. */
#include "apps/tools/report/report.h"

const char *const report_share_names[REPORT_SHARES] = { "compute", "exposed communication",
                                                        "waiting", "between kernels",
                                                        "waiting for data" };

/* ---- steps ---- */

/* The steps of a rank into `steps` (NULL: none), at most `most`; returns how many there are. */
static int find_steps(const report_trace *t, int rank, report_step *steps, int most)
{
    int count = 0;
    for (int i = 0; i < t->lane_count; i++) {
        for (const report_event *e = t->lanes[i].first; e < t->lanes[i].end; e++) {
            if (t->lanes[i].rank == rank && e->kind == REPORT_PART && count < most &&
                strcmp(t->names[e->name], "step") == 0) {
                if (steps != NULL) {
                    steps[count] = (report_step){ .begin = e->begin, .end = e->end };
                }
                count++;
            }
        }
    }
    return count;
}

/* A moment at which an event begins (by 1) or ends (by -1). */
typedef struct edge {
    double at;
    report_share share;
    int by;
} edge;

static int compare_edges(const void *a, const void *b)
{
    const edge *x = a, *y = b;
    return (x->at > y->at) - (x->at < y->at);
}

static int64_t edges_of(const report_trace *t, int rank, edge *edges)
{
    int64_t count = 0;
    for (int i = 0; i < t->lane_count; i++) {
        for (const report_event *e = t->lanes[i].first; e < t->lanes[i].end; e++) {
            if (t->lanes[i].rank == rank && e->kind <= REPORT_MESSAGE) {
                report_share share = e->kind <= REPORT_OPTIMIZER ? REPORT_COMPUTE
                                     : e->kind == REPORT_MESSAGE ? REPORT_EXPOSED
                                                                 : REPORT_WAITING;
                edges[count++] = (edge){ e->begin, share, 1 };
                edges[count++] = (edge){ e->end, share, -1 };
            }
        }
    }
    qsort(edges, (size_t)count, sizeof *edges, compare_edges);
    return count;
}

/* Goes from edge to edge: what is between two belongs to one share of the step, or is the wait
 * before it. */
static void divide_steps(report_step *step, int steps, const edge *edges, int64_t count)
{
    int open[REPORT_SHARES] = { 0 };
    const report_step *end = step + steps;
    double at = 0;
    for (int64_t i = 0; i <= count; i++) {
        double to = i < count ? edges[i].at : INFINITY;
        report_share now = REPORT_COMPUTE;
        while (now < REPORT_REST && open[now] == 0) {
            now++;
        }
        for (; step < end; step++) {
            double from = fmax(at, step->begin), until = fmin(to, step->end);
            if (open[REPORT_WAITING] > 0) {
                step->share[REPORT_DATA] += fmax(fmin(to, step->begin) - at, 0);
            }
            step->share[now] += fmax(until - from, 0);
            step->messages += open[REPORT_EXPOSED] > 0 ? fmax(until - from, 0) : 0;
            if (to < step->end) {
                break;
            }
            at = fmax(at, step->end);
        }
        at = fmax(at, to);
        if (i < count) {
            open[edges[i].share] += edges[i].by;
        }
    }
}

td_status report_measure(report_trace *t)
{
    t->step_count = find_steps(t, 0, NULL, 1 << 24);
    for (int rank = 1; rank < t->ranks; rank++) {
        t->step_count = find_steps(t, rank, NULL, t->step_count);
    }
    edge *edges = malloc(2 * (size_t)t->count * sizeof *edges);
    t->steps = calloc((size_t)t->ranks * (size_t)(t->step_count + 1), sizeof *t->steps);
    bool room = edges != NULL && t->steps != NULL;
    for (int rank = 0; room && rank < t->ranks; rank++) {
        report_step *steps = &t->steps[rank * t->step_count];
        find_steps(t, rank, steps, t->step_count);
        divide_steps(steps, t->step_count, edges, edges_of(t, rank, edges));
    }
    free(edges);
    return room ? TD_OK : td_fail(TD_E_NOMEM, "no memory for the steps of a trace");
}

/* ---- sums ---- */

int report_first_step(const report_trace *t)
{
    return t->step_count > 2;
}

report_step report_mean_step(const report_trace *t)
{
    report_step mean = { .begin = 0 };
    int first = report_first_step(t);
    double count = (double)t->ranks * (t->step_count - first);
    for (int i = 0; i < t->ranks * t->step_count; i++) {
        if (i % t->step_count >= first) {
            mean.end += (t->steps[i].end - t->steps[i].begin) / count;
            mean.messages += t->steps[i].messages / count;
            for (int share = 0; share < REPORT_SHARES; share++) {
                mean.share[share] += t->steps[i].share[share] / count;
            }
        }
    }
    return mean;
}

int report_typical_step(const report_trace *t)
{
    int typical = -1, first = report_first_step(t);
    double sum = 0, nearest = INFINITY;
    for (int step = first; step < t->step_count; step++) {
        sum += log(t->steps[step].end - t->steps[step].begin + 1e-3);
    }
    for (int step = first; step < t->step_count; step++) {
        double length = log(t->steps[step].end - t->steps[step].begin + 1e-3);
        double away = fabs(length - sum / (t->step_count - first));
        typical = away < nearest ? step : typical;
        nearest = fmin(nearest, away);
    }
    return typical;
}

/* ---- tables ---- */

int report_kernel_length(const char *name)
{
    return (int)strcspn(name, " ");
}

static int compare_rows(const void *a, const void *b)
{
    const report_row *x = a, *y = b;
    return x->time != y->time ? (x->time < y->time) - (x->time > y->time) : x->name - y->name;
}

/* For each name the first one of the same kernel; messages are no kernels. NULL: no memory. */
static int *kernels_of(const report_trace *t)
{
    int *kernels = malloc((size_t)t->name_count * sizeof *kernels);
    for (int i = 0; kernels != NULL && i < t->name_count; i++) {
        int length = report_kernel_length(t->names[i]);
        kernels[i] = 0;
        while (report_kernel_length(t->names[kernels[i]]) != length ||
               strncmp(t->names[kernels[i]], t->names[i], (size_t)length) != 0) {
            kernels[i]++;
        }
    }
    return kernels;
}

/* Whether the first rank's event counts: it begins in a step, and not in the first one. `step` has
 * the latest step that began before the events so far. A trace without steps counts as one. */
static bool row_counts(const report_trace *t, const report_event *e, int *step)
{
    while (*step + 1 < t->step_count && e->begin >= t->steps[*step + 1].begin) {
        ++*step;
    }
    const report_step *s = &t->steps[*step];
    return e->kind <= REPORT_MESSAGE &&
           (t->step_count == 0 ||
            (*step >= report_first_step(t) && e->begin >= s->begin && e->begin < s->end));
}

td_status report_rows(const report_trace *t, report_row **rows, int *count)
{
    int all = t->name_count * REPORT_KINDS, *kernels = kernels_of(t);
    *rows = calloc((size_t)all, sizeof **rows);
    if (*rows == NULL || kernels == NULL) {
        free(kernels);
        return td_fail(TD_E_NOMEM, "no memory for a table of kernels");
    }
    for (const report_lane *l = t->lanes; l < t->lanes + t->lane_count && l->rank == 0; l++) {
        int step = 0;
        for (const report_event *e = l->first; e < l->end; e++) {
            if (row_counts(t, e, &step)) {
                int name = e->kind < REPORT_MESSAGE ? kernels[e->name] : e->name;
                report_row *row = &(*rows)[name * REPORT_KINDS + (int)e->kind];
                *row = (report_row){ name, e->kind, row->calls + 1, row->bytes + e->bytes,
                                     row->time + e->end - e->begin };
            }
        }
    }
    *count = 0;
    for (int i = 0; i < all; i++) {
        (*rows)[*count] = (*rows)[i];
        *count += (*rows)[i].calls > 0;
    }
    qsort(*rows, (size_t)*count, sizeof **rows, compare_rows);
    free(kernels);
    return TD_OK;
}
