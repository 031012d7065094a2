/* Windows: which part of each parameter this rank's optimizer changes, where ranks share its state.
 */
#include "nn/internal.h"
#include "nn/shared/shared.h"

void td_module_set_staging(td_module *model, const td_staging *staging)
{
    td_node_of(model)->staging = staging;
    if (td_node_of(model)->params != NULL) {
        td_node_of(model)->params->staging = staging;
    }
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

/* Rank r's window of a parameter. */
static td_window window_of(const td_params *params, int i, int r)
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

static int owner_of(const td_params *params, int i)
{
    const td_params_peers *peers = td_params_peers_of(params);
    for (int r = 0; r < peers->count; r++) {
        if (window_of(params, i, r).count == td_params_get(params, i)->count) {
            return r;
        }
    }
    return -1;
}

static td_status collect_state(const td_params *params, td_tensor *window, int i, td_tensor *whole)
{
    const td_params_peers *peers = td_params_peers_of(params);
    td_status copied = TD_OK;
    for (int r = 0; r < peers->count; r++) {
        td_window w = window_of(params, i, r);
        td_tensor to = td_params_part(whole, w.begin - td_params_get(params, i)->begin, w.count);
        if (w.count > 0 && r == peers->rank) {
            copied = td_params_take(params, window, i, &to);
        }
        if (w.count > 0) {
            TD_TRY(peers->broadcast(&to, r, peers->user));
        }
    }
    return copied;
}

void td_params_set_peers(td_params *params, const td_params_peers *peers)
{
    static const td_sharing sharing = { window_of, owner_of, collect_state, td_params_read_part };
    params->peers = peers != NULL ? *peers : (td_params_peers){ 0 };
    params->peers.sharing = &sharing;
    if (td_params_peers_of(params) == NULL) {
        return;
    }
    TD_REQUIRE(params->extra_count == 0, TD_HERE,
               "td_params_set_peers: there is state of %s already, made for other windows",
               td_describe(params->flat));
    for (int k = 0; k < peers->stretches || k == 0; k++) {
        int64_t length =
            peers->stretches > 0 ? peers->cuts[k + 1] - peers->cuts[k] : td_params_length(params);
        TD_REQUIRE(
            length % peers->count == 0, TD_HERE,
            "td_params_set_peers: a stretch of %lld elements is not cut into %d equal pieces",
            (long long)length, peers->count);
    }
}
