/* What the tests of sharding do on each rank: a small model under td_ddp with a way of sharding,
 * one of several optimizers, and steps with what else a step may do. */
#pragma once

#include "nn/extra/ema.h"
#include "nn/extra/scaler.h"
#include "tests/dist/ddp_job.h"

typedef enum optim_rule { SGD, MOMENTUM, ADAM, ADAMW_GROUPS, RULES, ADAM_8 } optim_rule;

enum { EACH = 4 }; /* samples of a rank */

/* The last way of sharding: parameters that are gathered, where they could be woven. */
enum { SHARD_GATHERED = TD_SHARD_PARAMETERS + 1, SHARD_WAYS };

typedef struct shard_case {
    job_kind kind;
    td_dtype dtype;
    optim_rule rule;
    bool clips, accumulates, averages, scales;
    double norm;        /* clipping's; 0: 2 */
    bool again;         /* a second reduction of the same gradients */
    bool recomputes;    /* the model's children */
    bool defers, blank; /* td_defer_init; without drawing */
    td_ddp_options options;
    td_zero_options zero; /* stage and gathers: see shard_open */
} shard_case;

typedef struct shard_run {
    ddp_job job;
    td_ema *ema;
    td_scaler *scaler;
} shard_run;

bool shard_is_woven(int way); /* values are shared in place */
/* For td_zero_options.unit: each layer is a unit. */
bool shard_unit_is_linear(const td_module *m, const char *path, void *user);

td_optim *shard_optim(optim_rule rule, td_params *params);
/* way: td_shard or SHARD_GATHERED; rank says which samples. */
void shard_open(shard_run *r, const shard_case *c, int way, int rank);
/* One process that has the samples of `ranks` ranks. A backward that accumulates is one `again`. */
void shard_open_alone(shard_run *r, const shard_case *c, int ranks);
void shard_close(shard_run *r);
void shard_backward(shard_run *r);
void shard_step(shard_run *r, const shard_case *c);
/* Of the model's values, and the averages. */
uint64_t shard_hash(shard_run *r);
/* Two runs of the same bits, which stay the same in some steps. Closes both. */
void shard_require_same(shard_run *a, const shard_case *ca, shard_run *b, const shard_case *cb,
                        int steps);
/* Values near those without sharding after some steps, from a way of sharding on; f64. */
void shard_require_near(const shard_case *c, int first_way, int rank, int steps);

/* A model whose layers run twice, or not in every step, or the other way round. The weight of the
 * last layer is used by the module around all, too, so that weight belongs to no layer. */
typedef struct shard_routed {
    td_module *twice, *sometimes, *last;
    td_tensor *tied;
    bool skips, turns;
} shard_routed;
/* With SGD and momentum. Each layer is a unit. */
shard_routed *shard_open_routed(shard_run *r, td_ddp_options options, int way, int rank);
/* For td_ddp_on_error: copies the message to `user`, char [1024]. */
void shard_note_message(td_status status, const char *message, void *user);

/* `blocks` blocks, each of two matrices, [4 width,width] and [width,4 width]. */
td_module *shard_wide_net(int64_t width, int blocks);
/* What the system says of this process: a line of /proc/self/status or smaps_rollup, in bytes. */
double shard_process_bytes(const char *file, const char *name);
