/* Another order of the parameters in their flat memory. The leaves keep their headers. */
#include "nn/module.h"
#include "nn/params.h"
#include "tensor/storage.h"

#include <stdlib.h>
#include <string.h>

static void require_permutation(const td_params *p, const int *order)
{
    for (int k = 0; k < p->count; k++) {
        bool valid = order[k] >= 0 && order[k] < p->count;
        for (int j = 0; j < k; j++) {
            valid = valid && order[j] != order[k];
        }
        TD_REQUIRE(valid, TD_HERE,
                   "td_params_reorder: order[%d] = %d; every number from 0 to %d must appear once",
                   k, order[k], p->count - 1);
    }
}

/* Rearranges one flat tensor; the gaps between slices stay zero. Packed state has other numbers of
 * elements (`each`) in a cache line of parameters. */
static void rearrange(const td_params *p, td_tensor *flat, const td_tensor *room,
                      const int64_t *begin)
{
    int64_t line = TD_PARAMS_LINE / (int64_t)td_dtype_size(p->flat->dtype);
    int64_t all = td_numel(p->flat) / line, each = all > 0 ? td_numel(flat) / all : 0;
    td_tensor old;
    td_init_header(&old, room->storage, 0, td_shape_of(flat), flat->stride, flat->dtype);
    td_copy_(&old, flat);
    td_fill_(flat, 0.0);
    for (int i = 0; i < p->count; i++) {
        int64_t lines = (p->items[i].count + line - 1) / line;
        td_tensor to = td_params_part(flat, begin[i] / line * each, lines * each);
        td_tensor from = td_params_part(&old, p->items[i].begin / line * each, lines * each);
        td_copy_(&to, &from);
    }
}

static void move_to(td_params *params, const int64_t *begin, const td_tensor *room)
{
    rearrange(params, params->flat, room, begin);
    rearrange(params, params->flat_grad, room, begin);
    for (int i = 0; i < params->extra_count; i++) {
        if (params->extra[i].flat) {
            rearrange(params, params->extra[i].state, room, begin);
        }
    }
    for (int i = 0; i < params->count; i++) {
        int64_t distance = begin[i] - params->items[i].begin;
        params->items[i].tensor->offset += distance;
        params->grads[i]->offset += distance;
    }
}

td_status td_params_reorder(td_params *params, const int *order)
{
    require_permutation(params, order);
    TD_REQUIRE(td_params_peers_of(params) == NULL, TD_HERE,
               "td_params_reorder: ranks share the state of these parameters, each a window of the "
               "memory: the order stays");
    int64_t *begin = calloc((size_t)params->count + 1, sizeof *begin);
    bool moves = !params->deferred;
    td_tensor *room = moves ? td_clone(params->flat) : NULL; /* for any: none has more bytes */
    if (begin == NULL || (moves && room == NULL)) {
        free(begin);
        td_free(room);
        return td_fail(TD_E_NOMEM, "no memory to reorder %d parameters", params->count);
    }
    td_params_place(params, params->flat->dtype, order, begin);
    if (moves) {
        move_to(params, begin, room);
    }
    for (int i = 0; i < params->count; i++) {
        params->items[i].begin = begin[i];
    }
    memcpy(params->order, order, (size_t)params->count * sizeof *order);
    params->reorders++;
    td_free(room);
    free(begin);
    return TD_OK;
}
