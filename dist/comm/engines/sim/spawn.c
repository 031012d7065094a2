/* td_spawn, if the environment asks for simulated ranks: reads it, and prints what a cluster would
 * have taken. */
#include "dist/comm/engines/sim/internal.h"

#include "tensor/system/number.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Reads numbers with their units behind them: of "25GB/s,5us" 25 and 5. */
static bool read_numbers(const char *text, const char *const units[2], double numbers[2])
{
    for (int i = 0; i < 2 && units[i] != NULL; i++) {
        char *end;
        size_t length = strlen(units[i]);
        numbers[i] = td_strtod(text, &end);
        if (end == text || !isfinite(numbers[i]) || strncmp(end, units[i], length) != 0) {
            return false;
        }
        text = end + length;
    }
    return *text == '\0';
}

static bool is_count(double number, int least, int most)
{
    return number >= least && number <= most && number == floor(number);
}

td_status td_sim_read(td_sim_options *options)
{
    enum { RANKS, LINK, CORES, KILL, VARIABLES, MOST = 65536 };
    static const struct {
        const char *name, *form, *units[2];
    } variables[VARIABLES] = {
        { "TANDEM_SIM", "a number of ranks, as in 256", { "" } },
        { "TANDEM_SIM_LINK", "a link, as in 25GB/s,5us", { "GB/s,", "us" } },
        { "TANDEM_SIM_CORES", "a number of cores", { "" } },
        { "TANDEM_SIM_KILL", "one of the ranks and a time, as in 3@3200us", { "@", "us" } },
    };
    double v[VARIABLES][2] = { [LINK] = { 25.0, 5.0 }, [KILL] = { -1.0, 0.0 } };
    for (int i = 0; i < VARIABLES; i++) {
        const char *text = getenv(variables[i].name);
        bool read = text == NULL || read_numbers(text, variables[i].units, v[i]);
        bool fits = i == LINK   ? v[i][0] > 0.0 && v[i][1] > 0.0
                    : i == KILL ? is_count(v[i][0], 0, (int)v[RANKS][0] - 1) && v[i][1] > 0.0
                                : is_count(v[i][0], 1, MOST);
        TD_CHECK(read && (fits || text == NULL), TD_E_ARG, "%s: '%s' is not %s", variables[i].name,
                 text, variables[i].form);
    }
    *options = (td_sim_options){ .ranks = (int)v[RANKS][0],
                                 .bandwidth = 1e9 * v[LINK][0],
                                 .latency = 1e-6 * v[LINK][1],
                                 .cores = (int)v[CORES][0],
                                 .killed = (int)v[KILL][0],
                                 .killed_at = 1e-6 * v[KILL][1],
                                 .kernels = getenv("TANDEM_SIM_KERNELS") };
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
