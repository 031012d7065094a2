/* td_spawn, if the environment asks for simulated ranks: reads it, and prints what a cluster would
 * have taken. */
#include "dist/comm/engines/sim/internal.h"

#include "tensor/system/number.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A number that ends at `end` has its unit there; the text goes on behind the unit. */
static bool read_unit(const char **text, const char *end, const char *unit)
{
    size_t length = strlen(unit);
    bool good = end != *text && strncmp(end, unit, length) == 0;
    *text = end + (good ? length : 0);
    return good;
}

/* A number above 0. */
static bool read_number(const char **text, const char *unit, double *value)
{
    char *end;
    *value = td_strtod(*text, &end);
    return read_unit(text, end, unit) && *value > 0.0 && isfinite(*value);
}

static bool read_count(const char **text, const char *unit, int least, int *count)
{
    enum { MOST = 65536 };
    char *end;
    long value = strtol(*text, &end, 10);
    *count = (int)value;
    return read_unit(text, end, unit) && value >= least && value <= MOST;
}

static bool read_world(const char **text, td_sim_options *o)
{
    return read_count(text, "", 1, &o->ranks);
}

static bool read_cores(const char **text, td_sim_options *o)
{
    return read_count(text, "", 1, &o->cores);
}

static bool read_link(const char **text, td_sim_options *o)
{
    double gigabytes, microseconds;
    bool good = read_number(text, "GB/s,", &gigabytes) && read_number(text, "us", &microseconds);
    o->bandwidth = good ? 1e9 * gigabytes : 0.0;
    o->latency = good ? 1e-6 * microseconds : 0.0;
    return good;
}

static bool read_kill(const char **text, td_sim_options *o)
{
    double microseconds;
    bool good = read_count(text, "@", 0, &o->killed) && o->killed < o->ranks &&
                read_number(text, "us", &microseconds);
    o->killed_at = good ? 1e-6 * microseconds : 0.0;
    return good;
}

td_status td_sim_read(td_sim_options *options)
{
    static const struct {
        const char *name, *form;
        bool (*read)(const char **text, td_sim_options *o);
    } variables[] = {
        { "TANDEM_SIM", "a number of ranks, as in 256", read_world },
        { "TANDEM_SIM_LINK", "a link, as in 25GB/s,5us", read_link },
        { "TANDEM_SIM_CORES", "a number of cores", read_cores },
        { "TANDEM_SIM_KILL", "one of the ranks and a time, as in 3@3200us", read_kill },
    };
    *options = (td_sim_options){
        .latency = 5e-6, .bandwidth = 25e9, .killed = -1, .kernels = getenv("TANDEM_SIM_KERNELS")
    };
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        const char *given = getenv(variables[i].name), *text = given;
        if (given != NULL && (!variables[i].read(&text, options) || *text != '\0')) {
            return td_fail(TD_E_ARG, "%s: '%s' is not %s", variables[i].name, given,
                           variables[i].form);
        }
    }
    return TD_OK;
}

static void print_result(const td_sim_options *o, const td_sim_result *r)
{
    const td_sim_times *t = &r->step;
    td_fprintf(stdout, "sim: %d ranks; a link of %.3g GB/s and %.3g us; kernels: %s\n", o->ranks,
               1e-9 * o->bandwidth, 1e6 * o->latency,
               o->kernels != NULL ? o->kernels : "assumed, 100 GFLOP/s and 10 GB/s");
    if (r->assumed > 0.0 && o->kernels != NULL) {
        td_fprintf(stdout, "sim: for %.1f %% of their time the kernels are not in that file\n",
                   100.0 * r->assumed);
    }
    if (r->steps > 1) {
        td_fprintf(stdout,
                   "sim: a step takes %.6f ms: %.6f ms computing, and %.6f ms waiting for other "
                   "ranks (exposed), of %.6f ms of communication; a rank sends %.6f MB\n",
                   1e3 * t->clock, 1e3 * (t->clock - t->waited), 1e3 * t->waited, 1e3 * t->sending,
                   1e-6 * t->bytes);
    }
    td_fprintf(stdout, "sim: the whole run of %d steps takes %.6f s\n", r->steps, r->whole.clock);
    fflush(stdout);
}

td_status td_sim_spawn(const td_spawn_options *options)
{
    td_sim_options sim;
    td_sim_result result;
    if (options->stopped_by != NULL) {
        *options->stopped_by = 0;
    }
    TD_TRY(td_sim_read(&sim));
    TD_TRY(td_sim_run(&sim, options->fn, options->arg, &result));
    print_result(&sim, &result);
    return TD_OK;
}
