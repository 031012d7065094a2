/* What a rank has of each parameter: all of it, or the window that nn/shared/ says. Without
 * nn/shared/ every rank has all. */
#include "nn/params.h"
#include "tensor/storage.h"

td_tensor td_params_part(const td_tensor *t, int64_t begin, int64_t count)
{
    td_tensor part = *t;
    part.ndim = 1;
    part.shape[0] = count;
    part.stride[0] = 1;
    part.offset += begin;
    return part;
}

const td_params_peers *td_params_ranks_of(const td_params *params)
{
    return params->peers.count > 0 ? &params->peers : NULL;
}

const td_params_peers *td_params_peers_of(const td_params *params)
{
    return params->peers.gather != NULL ? &params->peers : NULL;
}

void td_params_meet(const td_params *params)
{
    if (params->peers.meet != NULL) {
        params->peers.meet(params->peers.user);
    }
}

int64_t td_params_length(const td_params *params)
{
    const td_params_peers *peers = td_params_peers_of(params);
    int64_t held = td_numel(params->flat);
    return peers != NULL && peers->own_values ? held * peers->count : held;
}

td_window td_params_here(const td_params *params, int i)
{
    const td_params_peers *peers = td_params_peers_of(params);
    const td_param *p = &params->items[i];
    return peers != NULL ? peers->sharing->window(params, i, peers->rank)
                         : (td_window){ .begin = p->begin, .count = p->count, .place = p->begin };
}

td_tensor *td_params_grad_here(const td_params *params, int i, td_tensor *part)
{
    const td_params_peers *peers = td_params_peers_of(params);
    td_tensor *grad = td_grad(params->items[i].tensor);
    if (grad == NULL || peers == NULL || !peers->own_grads) {
        return grad;
    }
    td_window here = td_params_here(params, i);
    *part = td_params_part(params->flat_grad, here.place, here.count);
    return here.count > 0 ? part : NULL;
}

bool td_params_sums(const td_params *params)
{
    const td_params_peers *peers = td_params_peers_of(params);
    return params->staging != NULL || (peers != NULL && peers->own_grads);
}

void td_params_sum(const td_params *params, double *numbers, int count)
{
    const td_staging *stages = params->staging;
    const td_params_peers *peers = td_params_peers_of(params);
    if (peers != NULL && peers->own_grads) {
        peers->sum(numbers, count, peers->user);
    }
    TD_REQUIRE(stages == NULL || stages->sum(numbers, count, stages->user) == TD_OK, TD_NOWHERE,
               "a sum over a pipeline's stages: %s", td_last_error());
}

int td_params_owner(const td_params *params, int i)
{
    const td_params_peers *peers = td_params_peers_of(params);
    return peers != NULL ? peers->sharing->owner(params, i) : 0;
}

td_status td_params_collect(const td_params *params, td_tensor *window, int i, td_tensor *whole)
{
    return td_params_peers_of(params)->sharing->collect(params, window, i, whole);
}

void td_params_read(const td_params *params, const td_tensor *from, int i, const td_tensor *part)
{
    const td_params_peers *peers = td_params_peers_of(params);
    const td_param *p = &params->items[i];
    if (peers != NULL) {
        peers->sharing->read(from, p->tensor, td_params_here(params, i).begin - p->begin, part);
        return;
    }
    td_tensor whole;
    td_init_header(&whole, part->storage, part->offset, td_shape_of(p->tensor), p->tensor->stride,
                   part->dtype);
    td_copy_(&whole, from);
}
