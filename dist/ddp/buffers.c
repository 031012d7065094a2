/* Broadcasts of a model's buffers and parameters: all ranks get the values of one rank. */
#include "dist/ddp/ddp.h"

#include "dist/comm/collectives.h"
#include "nn/internal.h"
#include "nn/params.h"
#include "tensor/backend.h"
#include "tensor/extend.h"
#include "tensor/storage.h"

#include <stdlib.h>

td_status td_ddp_list_buffers(td_ddp_state *s)
{
    td_ddp_buffers *b = &s->buffers;
    td_state_list list = td_module_state(s->model);
    if (list.count < 0) {
        return TD_E_NOMEM;
    }
    b->list = calloc((size_t)list.count + 1, sizeof(td_tensor *));
    size_t bytes = 0;
    for (int i = 0; b->list != NULL && i < list.count; i++) {
        td_tensor *t = list.items[i].tensor;
        if (list.items[i].buffer) {
            TD_REQUIRE(td_is_dense(t), TD_HERE, "td_ddp: the buffer '%s' has gaps in memory",
                       list.items[i].name);
            b->list[b->count++] = t;
            bytes += td_tensor_bytes(t);
        }
    }
    td_state_list_free(&list);
    TD_CHECK(b->list != NULL, TD_E_NOMEM, "td_ddp: no memory for a list of buffers");
    if (bytes > 0) {
        td_device device = td_device_of(b->list[0]);
        b->bytes = td_ddp_new_memory(s->group, device, (int64_t)bytes, TD_U8);
    }
    return bytes == 0 || b->bytes != NULL ? TD_OK : TD_E_NOMEM;
}

void td_ddp_free_buffers(td_ddp_state *s)
{
    td_free(s->buffers.bytes);
    free(s->buffers.list);
}

void td_ddp_copy_buffers(td_ddp_state *s, bool in)
{
    td_ddp_buffers *b = &s->buffers;
    if (b->bytes == NULL) {
        return;
    }
    td_device device = td_device_of(b->bytes);
    char *bytes = td_ptr(b->bytes);
    for (int i = 0; i < b->count; i++) {
        td_tensor *t = b->list[i];
        if (!in) {
            td_begin_write(t, "DDP", TD_HERE);
        }
        td_memory_move(device, in ? bytes : td_ptr(t), in ? td_ptr(t) : bytes, td_tensor_bytes(t));
        bytes += td_tensor_bytes(t);
    }
}

td_status td_ddp_broadcast_buffers(td_ddp_state *s)
{
    if (s->buffers.bytes == NULL) {
        return TD_OK;
    }
    bool mine = td_group_rank(s->group) == s->root;
    if (mine) {
        td_ddp_copy_buffers(s, true);
    }
    TD_TRY(td_broadcast(s->group, s->buffers.bytes, s->root, NULL));
    if (!mine) {
        td_ddp_copy_buffers(s, false);
    }
    return TD_OK;
}

/* Parameters without flat memory, one by one: values, or how they are drawn. */
static td_status broadcast_deferred(td_ddp_state *s)
{
    td_status status = TD_OK;
    for (int i = 0; i < s->count && status == TD_OK; i++) {
        td_tensor *t = td_params_get(s->params, i)->tensor, *bytes = NULL;
        td_draw *draw = td_draw_of(t);
        if (draw != NULL) {
            t = bytes = td_borrow(draw, TD_SHAPE(sizeof *draw), TD_U8, TD_CPU);
        }
        status = t != NULL ? td_broadcast(s->group, t, s->root, NULL) : TD_E_NOMEM;
        td_free(bytes);
    }
    return status;
}

td_status td_ddp_broadcast_all(td_ddp_state *s)
{
    TD_TRY(s->params->deferred ? broadcast_deferred(s)
                               : td_broadcast(s->group, td_params_flat(s->params), s->root, NULL));
    return td_ddp_broadcast_buffers(s);
}
