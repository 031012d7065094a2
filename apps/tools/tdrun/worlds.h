/* tdrun's ranks that are not processes: virtual ranks (docs/leaves.md) and simulated ones
 * (docs/simulation.md). */
#pragma once

#include "apps/tools/common/cli.h"

typedef struct worlds {
    int64_t world; /* ranks; 0: the processes are the ranks */
    bool sim;
    const char *link, *kernels, *kill; /* NULL: not given */
    int64_t cores;
} worlds;

/* Writes options; returns their number. processes: the option --nproc-per-node, of which --on is
 * another name. */
int worlds_options(worlds *w, const char **processes, cli_option *options);

/* Gives the program (*argv) what it needs. If ranks are simulated, the program takes the place of
 * this process. */
void worlds_settle(const worlds *w, bool has_processes, char ***argv);
