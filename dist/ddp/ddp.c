/* DistributedDataParallel: construction, forward, settings. */
#include "autograd/tape.h"
#include "dist/ddp/ddp.h"
#include "dist/comm/collectives.h"

#include "dist/ddp/extra.h"
#include "dist/comm/mesh.h"
#include "nn/internal.h"
#include "nn/params.h"
#include "nn/shared/shared.h"
#include "nn/module.h"
#include "tensor/extend.h"
#include "tensor/storage.h"

#include <stdlib.h>
#include <string.h>

/* ---- forward ---- */

static void begin_forward(td_ddp_state *s, bool training)
{
    td_ddp_tell(s, TD_DDP_FORWARD, NULL);
    td_ddp_note(s, td_units_follow_layout(s));
    bool wanted = training && s->no_sync_depth == 0 && !s->options.no_broadcast_buffers;
    if (wanted && s->buffers.bytes != NULL) {
        td_ddp_tell(s, TD_DDP_BUFFERS, NULL);
        if (s->failure.status == TD_OK) {
            td_ddp_note(s, td_ddp_broadcast_buffers(s));
        }
    }
    td_ddp_report(s);
}

static td_tensor *run_ddp(const td_around_rest *rest, td_tensor *x, void *user)
{
    td_ddp_state *s = user;
    if (!td_grad_enabled()) {
        return td_run_rest(rest, x);
    }
    begin_forward(s, rest->m->training);
    td_ddp_tell(s, TD_DDP_MODEL, NULL);
    td_tensor *y = td_run_rest(rest, x);
    td_ddp_tell(s, TD_DDP_MODEL_DONE, NULL);
    return y;
}

bool td_is_ddp(const td_module *m)
{
    return m != NULL && td_surrounded_by(m, run_ddp) != NULL;
}

td_ddp_state *td_ddp_state_of(const td_module *net)
{
    TD_REQUIRE(td_is_ddp(net), TD_HERE, "%s is no DistributedDataParallel: td_ddp comes first",
               net == NULL ? "NULL" : net->type->name);
    return td_surrounded_by(net, run_ddp);
}

/* ---- beginning and end ---- */

/* Also frees a state that was made only in part. */
static void end_ddp(void *user)
{
    td_ddp_state *s = user;
    while (s->parts != NULL) {
        td_ddp_remove_part(s, s->parts);
    }
    td_units_free(s);
    td_reducer_free(s);
    td_ddp_free_buffers(s);
    free(s);
}

static td_status read_options(td_ddp_state *s, const td_ddp_options *options)
{
    s->options = *options;
    td_ddp_options *o = &s->options;
    s->group = o->group != NULL  ? o->group
               : o->mesh != NULL ? td_mesh_group(o->mesh, "rep+dp")
                                 : td_dist_world();
    if (s->group == NULL) {
        return TD_E_NETWORK; /* with the message of td_mesh_group */
    }
    s->groups[0] = s->group;
    s->reducer.divisor = td_group_size(s->group);
    if (o->bucket_cap_mb <= 0.0) {
        o->bucket_cap_mb = s->model->device.type != TD_DEVICE_CPU ? 25.0 : 5.0;
    }
    if (o->codec == NULL && o->comm_hook != NULL) {
        o->codec = td_codec_find(o->comm_hook);
        TD_TRY(o->codec != NULL ? TD_OK : TD_E_ARG);
    }
    if (o->codec != NULL) {
        s->reducer.own_codec = *o->codec;
        s->reducer.codec = &s->reducer.own_codec;
    }
    return TD_OK;
}

static td_status ddp_lay_out(td_ddp_state *s)
{
    td_reducer *r = &s->reducer;
    const td_strategy *strategy = s->options.strategy;
    TD_TRY(td_reducer_make(s));
    TD_TRY(td_units_first_order(s));
    TD_TRY(td_ddp_broadcast_all(s));
    TD_TRY(strategy != NULL ? strategy->type->open(strategy, s)
                            : td_ddp_move_memory(s, false, td_numel(td_params_flat(s->params))));
    if (r->codec != NULL) {
        TD_TRY(r->codec->open(s->group, s->params, &s->options, &r->codec_state));
    }
    s->options.codec = r->codec;
    s->options.strategy = NULL; /* both may be gone when td_ddp returns */
    TD_TRY(td_units_make(s));
    td_reducer_arm(s);
    return TD_OK;
}

static td_status ddp_prepare(td_ddp_state *s)
{
    s->params = td_params_trained(s->model);
    s->count = s->params != NULL ? td_params_count(s->params) : 0;
    TD_TRY(td_ddp_open_parts(s)); /* fails on all ranks if one has no parameters laid out */
    TD_CHECK(!s->params->deferred || s->divided >= TD_DIVIDES_VALUES, TD_E_ARG,
             "td_ddp: the model was made after td_defer_init(true), which is for a "
             "strategy that divides values (td_zero(3)): otherwise every rank has all");
    TD_CHECK(s->count != 0, TD_E_ARG, "td_ddp: the model has no parameter that takes gradients");
    TD_TRY(td_ddp_list_buffers(s));
    TD_TRY(ddp_lay_out(s));
    for (td_module *m = s->model; m != NULL; m = td_module_next(s->model, m)) {
        td_dropout_set_replica(m, (uint64_t)td_group_rank(s->group)); /* ranks drop others */
    }
    return td_reducer_watch(s);
}

static td_status surround(td_module *model, const td_ddp_options *options, td_divided divided)
{
    td_ddp_state *s = calloc(1, sizeof *s);
    TD_CHECK(s != NULL, TD_E_NOMEM, "td_ddp: no memory");
    s->model = model;
    s->divided = divided;
    td_status status = read_options(s, options);
    status = status == TD_OK ? ddp_prepare(s) : status;
    if (status == TD_OK) {
        status = td_module_surround(
            model, &(td_around){ .run = run_ddp, .free = end_ddp, .user = s, .wrapper = "td_ddp" });
    }
    if (status != TD_OK) {
        end_ddp(s);
    }
    return status;
}

td_status td_ddp_join(td_ddp_options options, td_site at)
{
    const td_module *model = options.model;
    TD_REQUIRE(options.codec == NULL || options.comm_hook == NULL, at,
               "td_ddp: .comm_hook (%s) and .codec (%s): give one of them", options.comm_hook,
               options.codec->name);
    options.comm_hook = options.codec != NULL ? options.codec->name : options.comm_hook;
    TD_REQUIRE(model == NULL || model->name[0] == '\0', at,
               "td_ddp: '%s' is a part of a larger model; td_ddp takes the whole model",
               model->name);
    TD_REQUIRE(options.group == NULL || options.mesh == NULL, at,
               "td_ddp: .group and .mesh: give one of them");
    TD_REQUIRE(options.group != NULL || td_dist_is_initialized(), at,
               "td_ddp: there is no process group: td_dist_init comes first");
    TD_REQUIRE(model == NULL || !td_is_ddp(model), at,
               "td_ddp: the model went through td_ddp already");
    const td_params *params = model != NULL ? td_params_laid_out(model) : NULL;
    const char *frozen = params != NULL ? td_params_frozen(params) : NULL;
    TD_REQUIRE(frozen == NULL, at,
               "td_ddp: '%s' is frozen, and td_parameters has listed it: call td_ddp before "
               "td_parameters, and freeze before both",
               frozen);
    const td_strategy *strategy = options.strategy;
    td_divided divided =
        strategy != NULL ? strategy->type->check(strategy, &options, at) : TD_DIVIDES_NOTHING;
    return model != NULL ? surround(options.model, &options, divided) : TD_E_NOMEM;
}

td_module *td_ddp_at(td_ddp_options options, td_site at)
{
    if (td_ddp_join(options, at) == TD_OK) {
        return options.model;
    }
    if (options.model != NULL) {
        td_module_free(options.model);
    }
    return NULL;
}

td_status td_ddp_leave(td_module *model)
{
    td_params *params = td_params_trained(model);
    if (td_is_ddp(model)) {
        td_module_unsurround(model, run_ddp, td_ddp_state_of(model));
    }
    if (td_params_peers_of(params) != NULL) {
        return td_params_unspread(params);
    }
    const td_tensor *flat = td_params_flat(params);
    td_tensor *own = td_zeros(td_shape_of(flat), flat->dtype, td_device_of(flat));
    td_status status = own != NULL ? td_params_set_memory(params, NULL, own) : TD_E_NOMEM;
    if (status != TD_OK) {
        td_free(own);
    }
    return status;
}

/* ---- settings ---- */

void td_ddp_on_error(td_module *net, void (*fn)(td_status status, const char *message, void *user),
                     void *user)
{
    td_ddp_state *s = td_ddp_state_of(net);
    s->failure.on_error = fn;
    s->failure.user = user;
}

void td_ddp_no_sync_begin(td_module *net)
{
    td_ddp_state_of(net)->no_sync_depth++;
}

void td_ddp_no_sync_end(td_module *net)
{
    td_ddp_state *s = td_ddp_state_of(net);
    TD_REQUIRE(s->no_sync_depth > 0, TD_HERE, "td_ddp_no_sync_end without td_ddp_no_sync_begin");
    s->no_sync_depth--;
}
