/* Windows: which part of each parameter this rank's optimizer changes, where ranks share its state.
 */
#include "nn/params.h"
#include "nn/module.h"
#include "tensor/extend.h"
#include "tensor/storage.h"

/* Where rank r's window meets a parameter. */
static td_window meet(const td_params *params, int i, int r)
{
    const td_params_peers *peers = td_params_peers_of(params);
    const td_param *p = td_params_get(params, i);
    int64_t length = td_numel(td_params_flat(params)) / peers->count;
    int64_t first = r * length, end = p->begin + p->count;
    int64_t begin = p->begin > first ? p->begin : first;
    int64_t last = end < first + length ? end : first + length;
    return (td_window){ begin, last > begin ? last - begin : 0, begin - first };
}

td_window td_params_here(const td_params *params, int i)
{
    const td_params_peers *peers = td_params_peers_of(params);
    const td_param *p = td_params_get(params, i);
    return peers != NULL ? meet(params, i, peers->rank)
                         : (td_window){ p->begin, p->count, p->begin };
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
