/* What the tests of sharding do on each rank: a small model under td_ddp with a way of sharding,
 * one of several optimizers, and steps with what else a step may do. */
#ifndef TD_TESTS_SHARD_RUN_H
#define TD_TESTS_SHARD_RUN_H

#include "nn/extra/ema.h"
#include "nn/extra/scaler.h"
#include "tests/ddp_job.h"

typedef enum optim_rule { SGD, MOMENTUM, ADAM, ADAMW_GROUPS, RULES, ADAM_8, ADAFACTOR } optim_rule;

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
} shard_case;

typedef struct shard_run {
    ddp_job job;
    td_ema *ema;
    td_scaler *scaler;
} shard_run;

bool shard_is_woven(int way); /* values are shared in place */
/* For td_ddp_options.unit: each layer is a unit. */
bool shard_unit_is_linear(const td_module *m, const char *path, void *user);

td_optim *shard_optim(optim_rule rule, td_params *params);
/* way: td_shard or SHARD_GATHERED; rank says which samples. */
void shard_open(shard_run *r, const shard_case *c, int way, int rank);
void shard_close(shard_run *r);
void shard_backward(shard_run *r);
void shard_step(shard_run *r, const shard_case *c);
/* Of the model's values, and the averages. */
uint64_t shard_hash(shard_run *r);

#endif
