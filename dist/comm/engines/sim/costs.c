/* What kernels and collectives cost on the clock. */
#include "dist/comm/engines/sim/internal.h"

#include "tensor/observe/profile.h"
#include "tensor/system/number.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NAME = 48, LINE = 256 };

/* A line of the file. "limits": operations a second in f32 and f64, and bytes. "rest": seconds of a
 * step outside of kernels. "conv2d/back": a kernel's calls of the run that was measured, their
 * seconds, and the seconds that they would take at the limits. */
struct td_sim_cost {
    char name[NAME];
    double of[3];
};
typedef struct td_sim_cost cost_row;
enum { CALLS, SECONDS, LEAST };

static void name_cost(const char *kernel, bool backward, char name[NAME])
{
    snprintf(name, NAME, "%s/%s", kernel, backward ? "back" : "fwd");
}

static int costs_by_name(const void *a, const void *b)
{
    return strcmp(((const cost_row *)a)->name, ((const cost_row *)b)->name);
}

static cost_row *find_cost(const td_sim_costs *costs, const char *name)
{
    return costs->count > 0 ? bsearch(name, costs->rows, (size_t)costs->count, sizeof *costs->rows,
                                      costs_by_name)
                            : NULL; /* a row begins with its name */
}

/* ---- the file ---- */

/* The row of a name, new if need be; the rows stay sorted. */
static cost_row *cost_of(td_sim_costs *costs, const char *name)
{
    if (find_cost(costs, name) == NULL) {
        cost_row *rows = realloc(costs->rows, ((size_t)costs->count + 1) * sizeof *rows);
        TD_REQUIRE(rows != NULL, TD_HERE, "sim: no memory for the costs of kernels");
        rows[costs->count] = (cost_row){ .of = { 0 } };
        snprintf(rows[costs->count].name, NAME, "%s", name);
        costs->rows = rows;
        qsort(rows, (size_t)++costs->count, sizeof *rows, costs_by_name);
    }
    return find_cost(costs, name);
}

td_status td_sim_write_kernels(const char *path)
{
    td_profile_totals t = td_profile_result();
    td_sim_costs sums = { .count = 0 };
    FILE *file = fopen(path, "w");
    TD_CHECK(file != NULL, TD_E_IO, "cannot write %s: %s", path, strerror(errno));
    for (int i = 0; i < t.rows; i++) {
        char name[NAME];
        td_profile_row row = td_profile_get(i);
        name_cost(row.kernel, row.backward, name);
        cost_row *sum = row.span ? NULL : cost_of(&sums, name);
        if (sum != NULL) { /* of all modules */
            sum->of[CALLS] += (double)row.calls;
            sum->of[SECONDS] += row.seconds;
            sum->of[LEAST] += row.least;
        }
    }
    double rest = t.steps > 0 ? fmax(0.0, t.step_seconds - t.kernels) / (double)t.steps : 0.0;
    td_fprintf(file, "limits %.9g %.9g %.9g\nrest %.9g 0 0\n", t.flops_f32, t.flops_f64,
               t.bytes_per_second, rest);
    for (int i = 0; i < sums.count; i++) {
        const cost_row *r = &sums.rows[i];
        td_fprintf(file, "%s %.9g %.9g %.9g\n", r->name, r->of[0], r->of[1], r->of[2]);
    }
    free(sums.rows);
    bool bad = ferror(file) != 0;
    bad = fclose(file) != 0 || bad;
    return bad ? td_fail(TD_E_IO, "cannot write %s", path) : TD_OK;
}

static bool read_row(td_sim_costs *costs, char *line)
{
    char *at = strchr(line, ' '), *end;
    if (at == NULL || at - line >= NAME) {
        return false;
    }
    *at++ = '\0';
    cost_row *row = cost_of(costs, line);
    for (int i = 0; i < 3; i++, at = end) {
        row->of[i] = td_strtod(at, &end);
        if (end == at || !(row->of[i] >= 0.0) || !isfinite(row->of[i])) {
            return false;
        }
    }
    return strcmp(at, "\n") == 0;
}

static bool read_costs(FILE *file, td_sim_costs *costs)
{
    char line[LINE];
    while (fgets(line, LINE, file) != NULL) {
        if (!read_row(costs, line)) {
            return false;
        }
    }
    const cost_row *limits = find_cost(costs, "limits"), *rest = find_cost(costs, "rest");
    double seconds = 0.0, least = 0.0;
    for (int i = 0; i < costs->count; i++) {
        const cost_row *r = &costs->rows[i];
        bool kernel = r != limits && r != rest;
        if (kernel && r->of[CALLS] < 1.0) {
            return false;
        }
        seconds += kernel ? r->of[SECONDS] : 0.0;
        least += kernel ? r->of[LEAST] : 0.0;
    }
    if (limits == NULL || rest == NULL || least <= 0.0) {
        return false;
    }
    costs->f32 = limits->of[0], costs->f64 = limits->of[1], costs->memory = limits->of[2];
    costs->rest = rest->of[0];
    costs->slower = seconds / least;
    return costs->f32 > 0.0 && costs->f64 > 0.0 && costs->memory > 0.0;
}

td_status td_sim_costs_open(const char *path, td_sim_costs *costs)
{
    /* A server's core, about: what is assumed without a file. */
    *costs = (td_sim_costs){ .f32 = 100e9, .f64 = 50e9, .memory = 10e9, .slower = 1.0 };
    FILE *file = path != NULL ? fopen(path, "r") : NULL;
    if (path == NULL || file == NULL) {
        return path == NULL ? TD_OK : td_fail(TD_E_IO, "%s: %s", path, strerror(errno));
    }
    bool good = read_costs(file, costs);
    fclose(file);
    if (!good) {
        free(costs->rows);
        return td_fail(TD_E_FORMAT,
                       "%s has no costs of kernels; a run with --profile-kernels FILE writes them",
                       path);
    }
    return TD_OK;
}

/* ---- costs ---- */

double td_sim_kernel_cost(const td_sim_costs *costs, const td_watched_call *call, bool *assumed)
{
    static const double CALL = 1e-6; /* seconds */
    char name[NAME];
    double operations = call->cost.flops / (call->cost.dtype == TD_F64 ? costs->f64 : costs->f32);
    double least = fmax(operations, call->cost.bytes / costs->memory);
    name_cost(call->kernel, call->backward, name);
    const cost_row *r = find_cost(costs, name);
    *assumed = r == NULL;
    return r == NULL            ? CALL + costs->slower * least
           : r->of[LEAST] > 0.0 ? r->of[SECONDS] / r->of[LEAST] * least
                                : r->of[SECONDS] / r->of[CALLS];
}

/* All-reduce: halves are exchanged and added, log2(size) times, and gathered likewise. What one
 * rank has for all, or all for one, goes through a tree, in pieces behind each other. */
double td_sim_collective_cost(const td_sim_options *o, const td_collective *c, int size,
                              double *bytes)
{
    const td_kind *kind = td_kind_of(c->kind);
    double data = (double)c->count * (double)td_dtype_size(c->dtype), steps = ceil(log2(size));
    bool twice = c->kind == TD_COLLECTIVE_ALL_REDUCE;
    bool pieces = kind->gives_all || kind->takes_all;
    *bytes = c->kind == TD_COLLECTIVE_BARRIER ? 0.0
             : twice                          ? 2.0 * data * (size - 1) / size
             : pieces                         ? data * (size - 1)
                                              : data;
    return (twice ? 2.0 : 1.0) * steps * o->latency + *bytes / o->bandwidth;
}
