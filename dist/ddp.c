/* DistributedDataParallel: construction, forward, settings. */
#include "dist/ddp.h"
#include "dist/collectives.h"

#include "nn/internal.h"
#include "nn/params.h"
#include "nn/module.h"
#include "tensor/extend.h"
#include "tensor/storage.h"

#include <stdlib.h>

/* ---- parts ---- */

void td_ddp_add_part(td_ddp_state *s, td_ddp_part *part)
{
    td_ddp_part **link = &s->parts;
    while (*link != NULL) {
        link = &(*link)->next;
    }
    *link = part;
}

void td_ddp_remove_part(td_ddp_state *s, td_ddp_part *part)
{
    td_ddp_part **link = &s->parts;
    while (*link != part) {
        link = &(*link)->next;
    }
    *link = part->next;
    part->free(part);
}

td_ddp_part *td_ddp_find_part(const td_ddp_state *s, td_status (*on)(td_ddp_part *, td_ddp_state *,
                                                                     td_ddp_event, td_ddp_unit *))
{
    td_ddp_part *p = s->parts;
    while (p != NULL && p->on != on) {
        p = p->next;
    }
    return p;
}

void td_ddp_tell(td_ddp_state *s, td_ddp_event event, td_ddp_unit *unit)
{
    for (td_ddp_part *p = s->parts; p != NULL; p = p->next) {
        td_ddp_note(s, p->on(p, s, event, unit));
    }
}

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

static td_tensor *run_model(td_module *model, td_tensor *a, td_tensor *b, td_site at)
{
    return b != NULL ? td_forward2_at(model, a, b, at) : td_forward_at(model, a, at);
}

/* b: NULL for a model of one input. */
static td_tensor *ddp_forward2(td_module *self, td_tensor *a, td_tensor *b, td_site at)
{
    td_ddp_state *s = self->state;
    if (!td_grad_enabled()) {
        return run_model(s->model, a, b, at);
    }
    begin_forward(s, self->training);
    td_ddp_tell(s, TD_DDP_MODEL, NULL);
    td_tensor *y = run_model(s->model, a, b, at);
    td_ddp_tell(s, TD_DDP_MODEL_DONE, NULL);
    return y;
}

static td_tensor *ddp_forward(td_module *self, td_tensor *x, td_site at)
{
    return ddp_forward2(self, x, NULL, at);
}

/* ---- beginning and end ---- */

static void ddp_free(td_module *self)
{
    td_ddp_state *s = self->state;
    while (s->parts != NULL) {
        td_ddp_remove_part(s, s->parts);
    }
    td_units_free(s);
    td_reducer_free(s);
    td_ddp_free_buffers(s);
}

static void ddp_describe(const td_module *self, char *text, size_t size)
{
    const td_ddp_state *s = self->state;
    snprintf(text, size, "rank %d of %d, %s", td_group_rank(s->group), td_group_size(s->group),
             td_group_backend(s->group));
}

static const td_module_type ddp_type = {
    .name = "DistributedDataParallel",
    .forward = ddp_forward,
    .forward2 = ddp_forward2,
    .free = ddp_free,
    .describe = ddp_describe,
    .transparent = true,
};

bool td_is_ddp(const td_module *m)
{
    return m != NULL && m->type == &ddp_type;
}

td_ddp_state *td_ddp_state_of(const td_module *ddp)
{
    TD_REQUIRE(td_is_ddp(ddp), TD_HERE, "the module is %s, not a DistributedDataParallel (td_ddp)",
               ddp == NULL ? "NULL" : ddp->type->name);
    return ddp->state;
}

static td_status read_options(td_ddp_state *s, const td_ddp_options *options)
{
    s->options = *options;
    td_ddp_options *o = &s->options;
    s->group = o->group != NULL ? o->group : td_dist_world();
    s->reducer.divisor = td_group_size(s->group);
    o->powersgd_rank = o->powersgd_rank > 0 ? o->powersgd_rank : 1;
    o->powersgd_start = o->powersgd_start > 0 ? o->powersgd_start : 1000;
    if (o->bucket_cap_mb <= 0.0) {
        o->bucket_cap_mb = s->model->device.type != TD_DEVICE_CPU ? 25.0 : 5.0;
    }
    s->reducer.codec = o->comm_hook != NULL ? td_codec_find(o->comm_hook) : NULL;
    return o->comm_hook == NULL || s->reducer.codec != NULL ? TD_OK : TD_E_ARG;
}

/* Memory that the group reduces without copies: registered on CPUs, a GPU's own on GPUs. */
td_tensor *td_ddp_new_memory(td_group *group, td_device device, int64_t count, td_dtype dtype)
{
    return device.type == TD_DEVICE_CPU ? td_group_memory(group, count, dtype)
                                        : td_zeros(TD_SHAPE(count), dtype, device);
}

td_tensor *td_ddp_slice(const td_tensor *flat, int64_t begin, int64_t count)
{
    return td_slice_of_storage(flat, flat->offset + begin, TD_SHAPE(count), (int64_t[]){ 1 });
}

/* Moves the gradients into memory that the group reduces without copies. */
static td_status move_gradients(td_ddp_state *s)
{
    const td_tensor *flat = td_params_flat(s->params);
    td_tensor *grads = td_ddp_new_memory(s->group, td_device_of(flat), td_numel(flat), flat->dtype);
    td_status status = grads != NULL ? td_params_set_grad_memory(s->params, grads) : TD_E_NOMEM;
    if (status != TD_OK) {
        td_free(grads);
    }
    return status;
}

static td_status lay_out(td_ddp_state *s)
{
    td_reducer *r = &s->reducer;
    TD_TRY(td_reducer_make(s));
    TD_TRY(td_units_first_order(s));
    TD_TRY(move_gradients(s));
    if (r->codec != NULL) {
        TD_TRY(r->codec->open(s->group, s->params, &s->options, &r->codec_state));
    }
    TD_TRY(td_units_make(s));
    td_reducer_arm(s);
    return TD_OK;
}

/* Gives each rank's Dropout layers another random stream, so that ranks with equal seeds drop
 * different elements. */
static void set_replica(td_module *m, const char *path, void *user)
{
    (void)path;
    td_dropout_set_replica(m, (uint64_t) * (const int *)user);
}

static td_status prepare(td_module *ddp)
{
    td_ddp_state *s = ddp->state;
    s->params = td_parameters(ddp);
    if (s->params == NULL) {
        return TD_E_NOMEM;
    }
    s->count = td_params_count(s->params);
    TD_TRY(td_ddp_open_parts(s));
    if (s->count == 0) {
        return td_fail(TD_E_ARG, "td_ddp: the model has no parameter that takes gradients");
    }
    TD_TRY(td_ddp_list_buffers(s));
    TD_TRY(lay_out(s));
    TD_TRY(td_ddp_broadcast_all(s));
    int rank = td_group_rank(s->group);
    td_module_each(s->model, set_replica, &rank);
    return td_reducer_watch(s);
}

td_module *td_ddp_at(td_ddp_options options, td_site at)
{
    TD_REQUIRE(options.group != NULL || td_dist_is_initialized(), at,
               "td_ddp: there is no process group: td_dist_init comes first");
    td_module *model = options.model;
    td_module *m = td_module_new(&ddp_type, sizeof(td_ddp_state));
    if (m == NULL || model == NULL) {
        td_module_free(m);
        td_module_free(model);
        return NULL;
    }
    td_ddp_state *s = m->state;
    s->model = td_module_add(m, "module", model);
    if (td_module_finish(m) == NULL) {
        return NULL;
    }
    td_status status = read_options(s, &options);
    if (status == TD_OK) {
        status = prepare(m);
    }
    if (status != TD_OK) {
        td_module_free(m);
        return NULL;
    }
    return m;
}

/* ---- settings ---- */

void td_ddp_on_error(td_module *ddp, void (*fn)(td_status status, const char *message, void *user),
                     void *user)
{
    td_ddp_state *s = td_ddp_state_of(ddp);
    s->failure.on_error = fn;
    s->failure.user = user;
}

void td_ddp_no_sync_begin(td_module *ddp)
{
    td_ddp_state_of(ddp)->no_sync_depth++;
}

void td_ddp_no_sync_end(td_module *ddp)
{
    td_ddp_state *s = td_ddp_state_of(ddp);
    TD_REQUIRE(s->no_sync_depth > 0, TD_HERE, "td_ddp_no_sync_end without td_ddp_no_sync_begin");
    s->no_sync_depth--;
}

/* ---- what a codec keeps, for checkpoints ---- */

static td_status list_state(td_module *ddp, bool save, const td_named_tensor **tensors, int *count)
{
    const td_reducer *r = &td_ddp_state_of(ddp)->reducer;
    *tensors = NULL;
    *count = 0;
    return r->codec != NULL && r->codec->list != NULL
               ? r->codec->list(r->codec_state, save, tensors, count)
               : TD_OK;
}

td_status td_ddp_state_to_save(td_module *ddp, const td_named_tensor **tensors, int *count)
{
    return list_state(ddp, true, tensors, count);
}

td_status td_ddp_state_to_load(td_module *ddp, const td_named_tensor **tensors, int *count)
{
    return list_state(ddp, false, tensors, count);
}
