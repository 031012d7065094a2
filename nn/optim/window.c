/* Windows: which part of each parameter this rank's optimizer changes, where ranks share its state.
 */
#include "nn/params.h"
#include "nn/module.h"
#include "tensor/extend.h"
#include "tensor/kernels/packed.h"
#include "tensor/storage.h"

#include <stdlib.h>

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
    const td_params_peers *peers = td_params_peers_of(params);
    for (int r = 0; peers != NULL && r < peers->count; r++) {
        if (meet(params, i, r).count == td_params_get(params, i)->count) {
            return r;
        }
    }
    return peers != NULL ? -1 : 0;
}

/* ---- state, whole and in windows ---- */

/* The blocks of packed state that hold elements [place, place + count). */
static td_tensor packed_part(const td_tensor *window, int64_t place, int64_t count)
{
    int64_t each = window->dtype == TD_U8 ? TD_PACK_BYTES : TD_PACK;
    int64_t blocks = (count + TD_PACK - 1) / TD_PACK;
    return td_params_part(window, place / TD_PACK * each, blocks * each);
}

/* Copies elements of state to f32 memory, or (put) back. */
static td_status copy_packed(const td_tensor *window, int64_t place, td_tensor *t, bool put)
{
    int64_t blocks = (td_numel(t) + TD_PACK - 1) / TD_PACK;
    int bytes = td_packed_bytes(window->dtype);
    uint8_t *packed = malloc((size_t)(blocks * bytes));
    float *values = calloc((size_t)blocks, TD_PACK * sizeof *values);
    if (packed == NULL || values == NULL) {
        free(packed);
        free(values);
        return td_fail(TD_E_NOMEM, "no memory to copy an optimizer's state");
    }
    uint32_t nearest[TD_PACK];
    for (int i = 0; i < TD_PACK; i++) {
        nearest[i] = 0x7fffu;
    }
    td_tensor part = packed_part(window, place, td_numel(t));
    td_read(put ? t : &part, put ? (void *)values : packed, put ? TD_F32 : window->dtype);
    for (int64_t i = 0; i < blocks; i++) {
        if (put) {
            td_packed_put(window->dtype, packed + i * bytes, values + i * TD_PACK, nearest, 0);
        } else {
            td_packed_get(window->dtype, values + i * TD_PACK, packed + i * bytes);
        }
    }
    td_write(put ? &part : t, put ? (void *)packed : values, put ? window->dtype : TD_F32);
    free(packed);
    free(values);
    return TD_OK;
}

static td_status copy_state(td_tensor *window, int64_t place, td_tensor *t, bool put)
{
    if (window->dtype != t->dtype) {
        return copy_packed(window, place, t, put);
    }
    td_tensor part = td_params_part(window, place, td_numel(t));
    td_copy_(put ? &part : t, put ? t : &part);
    return TD_OK;
}

td_status td_params_collect(const td_params *params, td_tensor *window, int i, td_tensor *whole)
{
    const td_params_peers *peers = td_params_peers_of(params);
    td_status copied = TD_OK;
    for (int r = 0; r < peers->count; r++) {
        td_window w = meet(params, i, r);
        td_tensor to = td_params_part(whole, w.begin - td_params_get(params, i)->begin, w.count);
        if (w.count > 0 && r == peers->rank) {
            copied = copy_state(window, w.place, &to, false);
        }
        if (w.count > 0) {
            TD_TRY(peers->broadcast(&to, r, peers->user));
        }
    }
    return copied;
}

td_status td_params_take(const td_params *params, td_tensor *window, int i, td_tensor *part)
{
    return copy_state(window, td_params_here(params, i).place, part, false);
}

td_status td_params_keep(const td_params *params, td_tensor *window, int i, td_tensor *part)
{
    return copy_state(window, td_params_here(params, i).place, part, true);
}
