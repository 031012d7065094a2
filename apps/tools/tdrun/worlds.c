/* tdrun's ranks that are not processes. */
#include "apps/tools/tdrun/worlds.h"

#include "dist/leaves/leaves.h"
#include "tensor/extend.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int worlds_options(worlds *w, const char **processes, cli_option *options)
{
    const cli_option table[] = {
        cli_int("world", &w->world, 0, TD_LEAVES_MOST,
                "Ranks that are not processes: virtual ones (--on), or simulated ones (--sim)",
                .first = true),
        cli_text("on", "P", processes,
                 "P processes compute the weights of --world N ranks, by PROGRAM --leaves N",
                 .first = true),
        cli_flag("sim", &w->sim,
                 "--world N ranks are threads of one process, and clocks say what a cluster would "
                 "take; PROGRAM starts its ranks by td_spawn",
                 .first = true),
        cli_text("link", "25GB/s,5us", &w->link, "With --sim: a link of the network"),
        cli_text("kernels", "FILE", &w->kernels,
                 "With --sim: what kernels cost, from a run with --profile-kernels FILE"),
        cli_int("cores", &w->cores, 0, TD_LEAVES_MOST,
                "With --sim: cores that the ranks share; 0: one each"),
        cli_text("kill", "RANK@3200us", &w->kill, "With --sim: a rank dies at this time"),
    };
    memcpy(options, table, sizeof table);
    return (int)(sizeof table / sizeof table[0]);
}

static void set_variable(const char *name, const char *value)
{
    CLI_CHECK(value == NULL || setenv(name, value, 1) == 0, "%s: %s", name, strerror(errno));
}

/* The program's ranks will be threads of this process (dist/comm/engines/sim/). */
_Noreturn static void simulate(const worlds *w, char **argv)
{
    char world[32], cores[32];
    snprintf(world, sizeof world, "%d", (int)w->world);
    snprintf(cores, sizeof cores, "%d", (int)w->cores);
    set_variable("TANDEM_SIM", world);
    set_variable("TANDEM_SIM_LINK", w->link);
    set_variable("TANDEM_SIM_KERNELS", w->kernels);
    set_variable("TANDEM_SIM_CORES", w->cores > 0 ? cores : NULL);
    set_variable("TANDEM_SIM_KILL", w->kill);
    execvp(argv[0], argv);
    fprintf(stderr, "tdrun: cannot start %s: %s\n", argv[0], strerror(errno));
    exit(EXIT_FAILURE);
}

/* A rank of td_ddp is a leaf, so the program gets as many. */
static char **add_leaves(const worlds *w, char **argv)
{
    int count = 0;
    while (argv[count] != NULL) {
        count++;
    }
    char **longer = calloc((size_t)count + 2, sizeof *longer);
    TD_REQUIRE(longer != NULL && asprintf(&longer[count], "--leaves=%d", (int)w->world) >= 0,
               TD_HERE, "no memory for %d arguments", count);
    memcpy(longer, argv, (size_t)count * sizeof *argv);
    return longer;
}

void worlds_settle(const worlds *w, bool has_processes, char ***argv)
{
    bool more = w->link != NULL || w->kernels != NULL || w->kill != NULL || w->cores > 0;
    CLI_CHECK(!more || w->sim, "--link, --kernels, --kill and --cores go with --sim");
    CLI_CHECK(!w->sim || (w->world > 0 && !has_processes),
              "--sim: give --world N, and no number of processes");
    if (w->sim) {
        simulate(w, *argv);
    }
    CLI_CHECK(w->world == 0 || has_processes,
              "--world %d: on how many processes? Add --on N, or --sim", (int)w->world);
    *argv = w->world > 0 ? add_leaves(w, *argv) : *argv;
}
