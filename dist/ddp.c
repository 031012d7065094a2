/* DistributedDataParallel: the wrapper around a model. */
#include "dist/ddp.h"
#include "dist/collectives.h"

#include "nn/internal.h"
#include "nn/params.h"
#include "nn/module.h"
#include "tensor/storage.h"
#include "tensor/backend.h"
#include "autograd/hooks.h"
#include "tensor/extend.h"

#include <stdlib.h>
#include <string.h>

/* ---- what one rank has, for everybody ---- */

/* Copies all buffers into the bytes that are broadcast, or back. */
static void copy_buffers(td_ddp_state *s, bool in)
{
    td_device device = td_device_of(s->buffers);
    char *bytes = td_ptr(s->buffers);
    for (int i = 0; i < s->buffer_count; i++) {
        td_tensor *t = s->buffer_list[i];
        size_t size = (size_t)td_numel(t) * td_dtype_size(t->dtype);
        if (!in) {
            td_begin_write(t, "DDP", TD_HERE);
        }
        td_memory_move(device, in ? bytes : td_ptr(t), in ? td_ptr(t) : bytes, size);
        bytes += size;
    }
}

td_status td_ddp_broadcast_buffers(td_ddp_state *s, int root)
{
    if (s->buffers == NULL) {
        return TD_OK;
    }
    if (s->rank == root) {
        copy_buffers(s, true);
    }
    TD_TRY(td_broadcast(s->group, s->buffers, root, NULL));
    if (s->rank != root) {
        copy_buffers(s, false);
    }
    return TD_OK;
}

td_status td_ddp_broadcast_all(td_ddp_state *s, int root)
{
    TD_TRY(td_broadcast(s->group, td_params_flat(s->params), root, NULL));
    return td_ddp_broadcast_buffers(s, root);
}

/* ---- forward ---- */

static void begin_forward(td_ddp_state *s, bool training)
{
    td_ddp_note(s, td_ddp_follow_layout(s));
    bool wanted = training && s->no_sync_depth == 0 && !s->options.no_broadcast_buffers;
    if (wanted && s->buffers != NULL) {
        td_ddp_note(s, td_ddp_announce(s, TD_DDP_BUFFERS));
        if (s->status == TD_OK) {
            td_ddp_note(s, td_ddp_broadcast_buffers(s, s->join.root));
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
    td_ddp_begin_buffers(s);
    begin_forward(s, self->training);
    td_ddp_begin_forward(s);
    td_tensor *y = run_model(s->model, a, b, at);
    td_ddp_end_forward(s);
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
    if (s->end_hook > 0) {
        td_remove_backward_end_hook(s->end_hook); /* the ready hooks were freed with the leaves */
    }
    td_ddp_free_buckets(s);
    td_ddp_free_meter(s);
    if (s->codec_state != NULL) {
        s->codec->close(s->codec_state);
    }
    td_free(s->kept);
    td_free(s->buffers);
    td_free(s->numbers);
    td_free(s->usage);
    free(s->watches);
    free(s->bucket_of);
    free(s->buffer_list);
    free(s->ready);
    free(s->used);
    free(s->never_used);
    free(s->ready_order);
}

static void ddp_describe(const td_module *self, char *text, size_t size)
{
    const td_ddp_state *s = self->state;
    snprintf(text, size, "rank %d of %d, %s", s->rank, s->world, td_group_backend(s->group));
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
    s->rank = td_group_rank(s->group);
    s->world = td_group_size(s->group);
    o->powersgd_rank = o->powersgd_rank > 0 ? o->powersgd_rank : 1;
    o->powersgd_start = o->powersgd_start > 0 ? o->powersgd_start : 1000;
    static const td_bucket_codec *const codecs[] = { &td_codec_bf16, &td_codec_fp16,
                                                     &td_codec_powersgd };
    for (size_t i = 0; o->comm_hook != NULL && i < sizeof codecs / sizeof *codecs; i++) {
        s->codec = strcmp(o->comm_hook, codecs[i]->name) == 0 ? codecs[i] : s->codec;
    }
    return o->comm_hook == NULL || s->codec != NULL
               ? TD_OK
               : td_fail(TD_E_ARG,
                         "td_ddp: there is no communication hook '%s'; there are bf16, fp16 and "
                         "powersgd",
                         o->comm_hook);
}

/* Memory that the group reduces without copies: registered on CPUs, a GPU's own on GPUs. */
td_tensor *td_ddp_new_memory(td_group *group, td_device device, int64_t count, td_dtype dtype)
{
    return device.type == TD_DEVICE_CPU ? td_group_memory(group, count, dtype)
                                        : td_zeros(TD_SHAPE(count), dtype, device);
}

static td_status list_buffers(td_ddp_state *s)
{
    td_state_list list = td_module_state(s->model);
    if (list.count < 0) {
        return TD_E_NOMEM;
    }
    s->buffer_list = calloc((size_t)list.count + 1, sizeof(td_tensor *));
    size_t bytes = 0;
    for (int i = 0; s->buffer_list != NULL && i < list.count; i++) {
        td_tensor *t = list.items[i].tensor;
        if (list.items[i].buffer) {
            TD_REQUIRE(td_is_dense(t), TD_HERE, "td_ddp: the buffer '%s' has gaps in memory",
                       list.items[i].name);
            s->buffer_list[s->buffer_count++] = t;
            bytes += (size_t)td_numel(t) * td_dtype_size(t->dtype);
        }
    }
    td_state_list_free(&list);
    if (bytes > 0) {
        s->buffers =
            td_ddp_new_memory(s->group, td_device_of(s->buffer_list[0]), (int64_t)bytes, TD_U8);
    }
    return s->buffer_list != NULL && (bytes == 0 || s->buffers != NULL) ? TD_OK : TD_E_NOMEM;
}

static td_status make_tables(td_ddp_state *s)
{
    size_t room = (size_t)s->count + 1;
    s->watches = calloc(room, sizeof *s->watches);
    s->bucket_of = calloc(room, sizeof *s->bucket_of);
    s->ready = calloc(room, sizeof *s->ready);
    s->used = calloc(room, sizeof *s->used);
    s->never_used = calloc(room, sizeof *s->never_used);
    s->ready_order = calloc(room, sizeof *s->ready_order);
    s->numbers = td_zeros(TD_SHAPE(s->world + 1), TD_I32, TD_CPU);
    s->usage = td_zeros(TD_SHAPE(s->count), TD_U8, TD_CPU);
    bool made = s->watches != NULL && s->bucket_of != NULL && s->ready != NULL && s->used != NULL &&
                s->never_used != NULL && s->ready_order != NULL && s->numbers != NULL &&
                s->usage != NULL;
    return made ? TD_OK : td_fail(TD_E_NOMEM, "td_ddp: no memory for %d parameters", s->count);
}

td_tensor *td_ddp_part(const td_tensor *flat, int64_t begin, int64_t count)
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
    TD_TRY(td_ddp_first_order(s));
    td_tensor *flat = td_params_flat(s->params);
    TD_TRY(move_gradients(s));
    if (s->options.find_unused_parameters || s->options.static_graph) {
        s->kept = td_zeros(td_shape_of(flat), flat->dtype, td_device_of(flat));
        TD_TRY(s->kept != NULL ? TD_OK : TD_E_NOMEM);
    }
    if (s->codec != NULL) {
        TD_TRY(s->codec->open(s->group, s->params, &s->options, &s->codec_state));
    }
    TD_TRY(td_ddp_make_buckets(s));
    td_ddp_arm(s);
    return TD_OK;
}

/* Gives each rank's Dropout layers another random stream, so that ranks with equal seeds drop
 * different elements. */
static void set_replica(td_module *m, const char *path, void *user)
{
    (void)path;
    td_dropout_set_replica(m, (uint64_t)((const td_ddp_state *)user)->rank);
}

static td_status prepare(td_module *ddp)
{
    td_ddp_state *s = ddp->state;
    bool on_gpu = s->model->device.type != TD_DEVICE_CPU;
    if (s->options.bucket_cap_mb <= 0.0) {
        s->options.bucket_cap_mb = on_gpu ? 25.0 : 5.0;
    }
    TD_TRY(td_ddp_check_same(s->group, s->model, &s->options));
    s->params = td_parameters(ddp);
    if (s->params == NULL) {
        return TD_E_NOMEM;
    }
    s->count = td_params_count(s->params);
    if (s->count == 0) {
        return td_fail(TD_E_ARG, "td_ddp: the model has no parameter that takes gradients");
    }
    TD_TRY(make_tables(s));
    TD_TRY(list_buffers(s));
    TD_TRY(lay_out(s));
    TD_TRY(td_ddp_broadcast_all(s, 0));
    td_module_each(s->model, set_replica, s);
    return td_ddp_watch_gradients(s) ? TD_OK : TD_E_NOMEM;
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

td_module *td_ddp_model(td_module *ddp)
{
    return td_ddp_state_of(ddp)->model;
}

/* ---- settings ---- */

void td_ddp_on_error(td_module *ddp, void (*fn)(td_status status, const char *message, void *user),
                     void *user)
{
    td_ddp_state *s = td_ddp_state_of(ddp);
    s->on_error = fn;
    s->error_user = user;
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
    td_ddp_state *s = td_ddp_state_of(ddp);
    *tensors = NULL;
    *count = 0;
    return s->codec != NULL && s->codec->list != NULL
               ? s->codec->list(s->codec_state, save, tensors, count)
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
