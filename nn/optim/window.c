/* Windows: which part of each parameter this rank's optimizer changes, where ranks share its state.
 */
#include "nn/params.h"
#include "nn/module.h"
#include "tensor/extend.h"
#include "tensor/storage.h"

int64_t td_params_length(const td_params *params)
{
    const td_params_peers *peers = td_params_peers_of(params);
    int64_t held = td_numel(td_params_flat(params));
    return peers != NULL && peers->own_values ? held * peers->count : held;
}

/* The stretch in which an element lies. */
static void find_stretch(const td_params *params, int64_t element, int64_t *from, int64_t *to)
{
    const td_params_peers *peers = td_params_peers_of(params);
    int k = 0;
    *from = 0;
    *to = td_params_length(params);
    for (; k < peers->stretches && element >= peers->cuts[k]; k++) {
        *from = peers->cuts[k];
        *to = peers->cuts[k + 1];
    }
}

/* Where rank r's window meets a parameter. */
static td_window meet(const td_params *params, int i, int r)
{
    const td_params_peers *peers = td_params_peers_of(params);
    const td_param *p = td_params_get(params, i);
    int64_t from, to;
    find_stretch(params, p->begin, &from, &to);
    int64_t length = (to - from) / peers->count;
    int64_t first = from + r * length, end = p->begin + p->count;
    int64_t begin = p->begin > first ? p->begin : first;
    int64_t last = end < first + length ? end : first + length;
    /* Each stretch before this one has given the window 1 / count of its length. */
    int64_t place = from / peers->count + begin - first;
    return (td_window){ .begin = begin,
                        .count = last > begin ? last - begin : 0,
                        .place = place,
                        .to_values = peers->own_values ? 0 : begin - place,
                        .to_grads = peers->own_grads ? 0 : begin - place };
}

td_window td_params_here(const td_params *params, int i)
{
    const td_params_peers *peers = td_params_peers_of(params);
    const td_param *p = td_params_get(params, i);
    return peers != NULL ? meet(params, i, peers->rank)
                         : (td_window){ .begin = p->begin, .count = p->count, .place = p->begin };
}

td_tensor *td_params_grad_here(const td_params *params, int i, td_tensor *part)
{
    const td_params_peers *peers = td_params_peers_of(params);
    td_tensor *grad = td_grad(td_params_get(params, i)->tensor);
    if (grad == NULL || peers == NULL || !peers->own_grads) {
        return grad;
    }
    td_window here = td_params_here(params, i);
    *part = td_params_part(td_params_flat_grad(params), here.place, here.count);
    return here.count > 0 ? part : NULL;
}

void td_params_sum(const td_params *params, double *numbers, int count)
{
    const td_params_peers *peers = td_params_peers_of(params);
    if (peers != NULL && peers->own_grads) {
        peers->sum(numbers, count, peers->user);
    }
}

int td_params_owner(const td_params *params, int i)
{
    for (int r = 0; r < td_params_peers_of(params)->count; r++) {
        if (meet(params, i, r).count == td_params_get(params, i)->count) {
            return r;
        }
    }
    return -1;
}

td_status td_params_collect(const td_params *params, const td_tensor *window, int i,
                            td_tensor *whole)
{
    const td_params_peers *peers = td_params_peers_of(params);
    for (int r = 0; r < peers->count; r++) {
        td_window w = meet(params, i, r);
        td_tensor to = td_params_part(whole, w.begin - td_params_get(params, i)->begin, w.count);
        td_tensor from = td_params_part(window, w.place, w.count);
        if (w.count > 0 && r == peers->rank) {
            td_copy_(&to, &from);
        }
        if (w.count > 0) {
            TD_TRY(peers->broadcast(&to, r, peers->user));
        }
    }
    return TD_OK;
}

void td_params_keep(const td_params *params, td_tensor *window, int i, const td_tensor *whole)
{
    td_window w = td_params_here(params, i);
    if (w.count > 0) {
        td_tensor to = td_params_part(window, w.place, w.count);
        td_tensor from = td_params_part(whole, w.begin - td_params_get(params, i)->begin, w.count);
        td_copy_(&to, &from);
    }
}
