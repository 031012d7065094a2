/* What kernels and collectives cost on the clock. */
#include "dist/comm/engines/sim/internal.h"

#include "tensor/observe/profile.h"
#include "tensor/system/number.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NAME = 48, LINE = 256 };

/* A kernel's lines of the file, "conv2d/back CALLS SECONDS LEAST": the calls of the run that was
 * measured, their seconds, and the seconds that they would take at the limits. */
struct td_sim_cost {
    char name[NAME];
    double of[3];
};
typedef struct td_sim_cost cost_row;
enum { CALLS, SECONDS, LEAST };

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

td_status td_sim_write_kernels(const char *path)
{
    td_profile_totals t = td_profile_result();
    FILE *file = fopen(path, "w");
    TD_CHECK(file != NULL, TD_E_IO, "cannot write %s: %s", path, strerror(errno));
    double rest = t.steps > 0 ? fmax(0.0, t.step_seconds - t.kernels) / (double)t.steps : 0.0;
    td_fprintf(file, "limits %.9g %.9g %.9g\nrest %.9g 0 0\n", t.flops_f32, t.flops_f64,
               t.bytes_per_second, rest);
    for (int i = 0; i < t.rows; i++) {
        td_profile_row row = td_profile_get(i);
        if (!row.span) {
            td_fprintf(file, "%s/%s %lld %.9g %.9g\n", row.kernel, row.backward ? "back" : "fwd",
                       (long long)row.calls, row.seconds, row.least);
        }
    }
    bool bad = ferror(file) != 0;
    bad = fclose(file) != 0 || bad;
    return bad ? td_fail(TD_E_IO, "cannot write %s", path) : TD_OK;
}

/* Adds to what the file says of a kernel, in other modules; the rows stay sorted. */
static void add_cost(td_sim_costs *costs, const char *name, const double of[3])
{
    if (find_cost(costs, name) == NULL) {
        cost_row *rows = realloc(costs->rows, ((size_t)costs->count + 1) * sizeof *rows);
        TD_REQUIRE(rows != NULL, TD_HERE, "sim: no memory for the costs of kernels");
        rows[costs->count] = (cost_row){ .of = { 0 } };
        strcpy(rows[costs->count].name, name);
        costs->rows = rows;
        qsort(rows, (size_t)++costs->count, sizeof *rows, costs_by_name);
    }
    cost_row *row = find_cost(costs, name);
    for (int i = 0; i < 3; i++) {
        row->of[i] += of[i];
    }
    costs->seconds += of[SECONDS];
    costs->least += of[LEAST];
}

/* A line is a kernel's; or "limits": operations a second in f32 and f64, and bytes; or "rest":
 * seconds of a step outside of kernels. */
static bool read_cost(td_sim_costs *costs, char *line)
{
    char *at = strchr(line, ' '), *end;
    double of[3];
    if (at == NULL || at - line >= NAME) {
        return false;
    }
    *at++ = '\0';
    for (int i = 0; i < 3; i++, at = end) {
        of[i] = td_strtod(at, &end);
        if (end == at || !(of[i] >= 0.0) || !isfinite(of[i])) {
            return false;
        }
    }
    bool limits = strcmp(line, "limits") == 0, rest = strcmp(line, "rest") == 0;
    if (limits) {
        costs->f32 = of[0], costs->f64 = of[1], costs->memory = of[2];
    } else if (rest) {
        costs->rest = of[0];
    } else {
        add_cost(costs, line, of);
    }
    return (limits || rest || of[CALLS] >= 1.0) && strcmp(at, "\n") == 0;
}

static bool read_costs(FILE *file, td_sim_costs *costs)
{
    char line[LINE];
    *costs = (td_sim_costs){ .rest = -1.0 };
    while (fgets(line, LINE, file) != NULL) {
        if (!read_cost(costs, line)) {
            return false;
        }
    }
    return costs->f32 > 0.0 && costs->f64 > 0.0 && costs->memory > 0.0 && costs->rest >= 0.0 &&
           costs->least > 0.0;
}

td_status td_sim_costs_open(const char *path, td_sim_costs *costs)
{
    /* A server's core, about: what is assumed without a file. */
    *costs = (td_sim_costs){ .f32 = 100e9, .f64 = 50e9, .memory = 10e9, .seconds = 1, .least = 1 };
    FILE *file = path != NULL ? fopen(path, "r") : NULL;
    if (file == NULL) {
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
    snprintf(name, NAME, "%s/%s", call->kernel, call->backward ? "back" : "fwd");
    const cost_row *r = find_cost(costs, name);
    *assumed = r == NULL;
    return r == NULL            ? CALL + costs->seconds / costs->least * least
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
