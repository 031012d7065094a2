/* Steps of a sharded model, for its tests. */
#include "tests/shard_run.h"

#include "nn/extra/compact.h"
#include "nn/internal.h"
#include "tests/dist_procs.h"
#include "tensor/extend.h"

#include <string.h>

static bool is_vector(const td_param *param, void *user)
{
    (void)user;
    return param->tensor->ndim == 1;
}

bool shard_is_woven(int way)
{
    return way == TD_SHARD_PARAMETERS && !procs_are_over("gloo");
}

bool shard_unit_is_linear(const td_module *m, const char *path, void *user)
{
    (void)user;
    return *path != '\0' && strcmp(m->type->name, "Linear") == 0;
}

td_optim *shard_optim(optim_rule rule, td_params *params)
{
    switch (rule) {
    case SGD:
        return td_sgd(params, .lr = 0.05);
    case MOMENTUM:
        return td_sgd(params, .lr = 0.05, .momentum = 0.9, .nesterov = true);
    case ADAM:
        return td_adam(params, .lr = 0.01);
    case ADAFACTOR:
        return td_adafactor(params, .lr = 0.05, .weight_decay = 0.1);
    case ADAM_8:
        return td_adam_compact(params, .lr = 0.01, .weight_decay = 0.1, .decoupled = true);
    default: {
        td_optim *o = td_adamw(params, .lr = 0.01, .weight_decay = 0.1);
        td_optim_group(o, is_vector, NULL, 0.5, 0.0);
        return o;
    }
    }
}

void shard_open(shard_run *r, const shard_case *c, int way, int rank)
{
    td_ddp_options options = c->options;
    options.gathers = way == SHARD_GATHERED;
    options.shard = options.gathers ? TD_SHARD_PARAMETERS : (td_shard)way;
    options.bucket_cap_mb = 0.001;
    *r = (shard_run){ .ema = NULL };
    td_defer_init(c->defers);
    td_init_blank(c->blank);
    job_open(&r->job, c->kind, c->dtype, &options, rank * EACH, (rank + 1) * EACH);
    td_defer_init(false);
    td_init_blank(false);
    for (int i = 0; c->recomputes && i < r->job.net->child_count; i++) {
        td_recompute(r->job.net->children[i], true);
    }
    td_optim_free(r->job.optim);
    r->job.optim = shard_optim(c->rule, td_parameters(r->job.net));
    REQUIRE(r->job.optim != NULL);
    if (c->averages) {
        r->ema = td_ema_new(r->job.net, .decay = 0.9);
        REQUIRE(r->ema != NULL);
    }
    if (c->scales) { /* which overflows at first, so that steps are skipped */
        r->scaler = td_scaler_new(.scale = 0x1p120, .backoff = 0x1p-60);
    }
}

void shard_close(shard_run *r)
{
    td_ema_free(r->ema);
    td_scaler_free(r->scaler);
    job_close(&r->job);
}

void shard_backward(shard_run *r)
{
    td_step_begin();
    td_tensor *loss = td_cross_entropy(td_forward(r->job.net, r->job.x), r->job.y);
    td_backward(td_scaler_loss(r->scaler, loss));
    td_step_end();
}

void shard_step(shard_run *r, const shard_case *c)
{
    td_params *params = td_parameters(r->job.net);
    td_zero_grad(r->job.optim);
    if (c->accumulates) {
        td_ddp_no_sync_begin(r->job.net);
        shard_backward(r);
        td_ddp_no_sync_end(r->job.net);
    }
    shard_backward(r);
    if (c->again) {
        shard_backward(r);
    }
    if (td_scaler_unscale(r->scaler, params)) {
        if (c->clips) {
            td_clip_grad_norm(params, 0.3, .norm_type = c->norm);
            td_clip_grad_value(params, 0.1);
        }
        td_optim_step(r->job.optim);
    }
    if (r->ema != NULL) {
        td_ema_update(r->ema);
    }
}

static uint64_t hash_of_values(shard_run *r)
{
    REQUIRE_OK(td_unshard(r->job.net));
    uint64_t hash = job_hash(r->job.net);
    td_reshard(r->job.net);
    return hash;
}

uint64_t shard_hash(shard_run *r)
{
    uint64_t hash = hash_of_values(r);
    if (r->ema != NULL) {
        td_ema_swap(r->ema);
        hash = hash * 31 + hash_of_values(r);
        td_ema_swap(r->ema);
    }
    return hash;
}
