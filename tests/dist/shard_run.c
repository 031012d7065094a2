/* Steps of a sharded model, for its tests. */
#include "tests/dist/shard_run.h"

#include "nn/extra/compact.h"
#include "nn/internal.h"
#include "tests/help/dist_procs.h"
#include "tensor/extend.h"

#include <stdio.h>
#include <stdlib.h>
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
    case ADAM_8:
        return td_adam_compact(params, .lr = 0.01, .weight_decay = 0.1, .decoupled = true);
    default: {
        td_optim *o = td_adamw(params, .lr = 0.01, .weight_decay = 0.1);
        td_optim_group(o, is_vector, NULL, 0.5, 0.0);
        return o;
    }
    }
}

static void set_way(td_ddp_options *options, td_zero_options *zero, int way)
{
    zero->strategy.type = &td_zero_type;
    zero->gathers = way == SHARD_GATHERED;
    zero->stage = zero->gathers ? TD_SHARD_PARAMETERS : (td_shard)way;
    options->strategy = &zero->strategy;
}

void shard_open(shard_run *r, const shard_case *c, int way, int rank)
{
    td_ddp_options options = c->options;
    td_zero_options zero = c->zero;
    set_way(&options, &zero, way);
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

void shard_open_alone(shard_run *r, const shard_case *c, int ranks)
{
    *r = (shard_run){ .ema = NULL };
    job_open(&r->job, c->kind, c->dtype, NULL, 0, ranks * EACH);
    td_optim_free(r->job.optim);
    r->job.optim = shard_optim(c->rule, td_parameters(r->job.net));
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

void shard_require_same(shard_run *a, const shard_case *ca, shard_run *b, const shard_case *cb,
                        int steps)
{
    REQUIRE(shard_hash(a) == shard_hash(b));
    for (int i = 0; i < steps; i++) {
        shard_step(a, ca);
        shard_step(b, cb);
    }
    REQUIRE(shard_hash(a) == shard_hash(b));
    shard_close(a);
    shard_close(b);
}

void shard_require_near(const shard_case *c, int first_way, int rank, int steps)
{
    for (int way = first_way; way < SHARD_WAYS; way++) {
        shard_run whole, sharded;
        shard_open(&whole, c, TD_SHARD_NONE, rank);
        shard_open(&sharded, c, way, rank);
        for (int i = 0; i < steps; i++) {
            shard_step(&whole, c);
            shard_step(&sharded, c);
        }
        REQUIRE(job_all_same(shard_hash(&sharded)));
        REQUIRE_OK(td_unshard(sharded.job.net));
        REQUIRE(job_distance(sharded.job.net, whole.job.net, true) < 1e-12);
        shard_close(&whole);
        shard_close(&sharded);
    }
}

/* ---- models ---- */

static td_tensor *routed_forward(td_module *self, td_tensor *x, td_site at)
{
    const shard_routed *r = self->state;
    x = r->turns ? td_forward_at(r->last, x, at) : x;
    x = td_gelu(td_forward_at(r->twice, x, at));
    x = r->skips ? x : td_forward_at(r->sometimes, x, at);
    x = td_gelu(td_forward_at(r->twice, x, at));
    return td_forward_at(r->last, td_linear(x, r->tied, NULL), at);
}

static const td_module_type routed_type = { .name = "Routed", .forward = routed_forward };

static td_module *new_routed(void)
{
    td_manual_seed(5);
    td_module *m = td_module_new(&routed_type, sizeof(shard_routed));
    shard_routed *r = m->state;
    r->twice = td_module_add(m, "twice", td_nn_linear(13, 13));
    r->sometimes = td_module_add(m, "sometimes", td_nn_linear(13, 13));
    r->last = td_module_add(m, "last", td_nn_linear(13, 13));
    r->tied = td_module_parameter(m, "tied", r->last->tensors[0].tensor);
    return td_module_finish(m);
}

shard_routed *shard_open_routed(shard_run *r, td_ddp_options options, int way, int rank)
{
    *r = (shard_run){ .ema = NULL };
    td_zero_options zero = { .unit = shard_unit_is_linear };
    set_way(&options, &zero, way);
    options.model = new_routed();
    r->job.net = td_ddp_at(options, TD_HERE);
    REQUIRE(r->job.net != NULL);
    r->job.optim = shard_optim(MOMENTUM, td_parameters(r->job.net));
    job_data(&r->job, JOB_MLP, TD_F32, rank * EACH, (rank + 1) * EACH);
    return r->job.net->state;
}

void shard_note_message(td_status status, const char *message, void *user)
{
    (void)status;
    snprintf(user, 1024, "%s", message);
}

td_module *shard_wide_net(int64_t width, int blocks)
{
    td_module *list[16];
    REQUIRE(blocks <= 16);
    for (int i = 0; i < blocks; i++) {
        list[i] = td_nn_sequential(td_nn_linear(width, 4 * width), td_nn_gelu(),
                                   td_nn_linear(4 * width, width));
    }
    return td_nn_sequential_list(list, blocks);
}

double shard_process_bytes(const char *file, const char *name)
{
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/self/%s", file);
    FILE *in = fopen(path, "r");
    double kib = -1.0;
    REQUIRE(in != NULL);
    while (kib < 0.0 && fgets(line, sizeof line, in) != NULL) {
        kib = strncmp(line, name, strlen(name)) == 0 ? strtod(line + strlen(name), NULL) : -1.0;
    }
    fclose(in);
    REQUIRE(kib >= 0.0);
    return 1024.0 * kib;
}
