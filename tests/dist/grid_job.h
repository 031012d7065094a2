/* For tests of slices, stages and data parallelism together: a small GPT on a mesh. */
#pragma once

#include "dist/comm/mesh.h"
#include "dist/dist.h"
#include "dist/slices/slices.h"
#include "nn/optim/optim.h"

typedef struct grid {
    const char *mesh;
    int slices; /* 0: one for each rank along tp */
    td_dtype dtype;
    bool tied;
    const char *sequence; /* the path of the SEQUENCE modules; NULL: none */
    int shard;            /* td_zero; 0: td_ddp alone */
    const char *schedule; /* NULL: no pipeline */
} grid;

/* How a GPT of four heads is cut. */
enum { GRID_RULES = 6 };
extern const td_tp_rule grid_rules[GRID_RULES];

/* The model, not cut, with the weights of a seed; cut; and its optimizer. */
td_module *grid_model(const grid *g);
td_module *grid_cut(const grid *g, td_mesh *mesh, td_module *net);
td_optim *grid_adam(td_module *net);
int grid_ranks(const char *mesh);

/* Layout i of all: {1, 2, 4} replicas x tp {1, 2} x pp {1, 2} x what replicas divide: nothing, the
 * optimizer's state, all. mesh: room for its text. */
enum { LAYOUTS = 3 * 2 * 2 * 3 };
grid grid_layout(int i, char mesh[64]);

/* What a step tells, the same on all ranks. */
typedef struct told {
    double loss, norm, largest;
} told;
told grid_step(const grid *g, td_mesh *mesh, td_module *net, td_optim *optim, int step);

/* What the model writes, the same on all ranks that hold it; nothing if rules spread rows, which is
 * refused. */
enum { WRITTEN = 10 };
typedef struct written {
    int64_t tokens[WRITTEN];
    int count;
} written;
written grid_write(const grid *g, td_module *net);

/* On g's ranks (mesh NULL: one process): loads temp_path(from), or trains a step; saves
 * temp_path(to). */
void grid_pass(grid g, const char *from, const char *to);
void grid_same_files(const char *a, const char *b);
