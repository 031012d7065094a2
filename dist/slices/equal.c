/* Parameters that are not cut must be equal on all ranks of the slices. */
#include "dist/slices/internal.h"

#include "dist/comm/collectives.h"
#include "nn/io/fingerprint.h"
#include "nn/module.h"
#include "tensor/extend.h"
#include "tensor/storage.h"
#include "tensor/system/text.h"

#include <string.h>

/* Of a tensor's bits, or of how a deferred one will be drawn. 0 for what is cut, or on another
 * stage of a pipeline. */
static td_status equal_hash(const td_slicing *slicing, const td_tensor *t, int64_t *hash)
{
    const td_draw *draw = td_draw_of(t);
    uint64_t number = 0;
    if (draw != NULL) {
        td_generator g = draw->generator;
        double from[] = { draw->low, draw->high, td_random_f64(&g) };
        number = td_hash_bytes(TD_HASH_BEGIN, (const char *)from, sizeof from);
    } else if (td_cut_of(slicing, t) == NULL && !t->storage->released) {
        TD_TRY(td_fingerprint_tensor(0, t, &number));
    }
    memcpy(hash, &number, sizeof number);
    return TD_OK;
}

/* all: the hashes of each rank's tensors. The same verdict on all ranks. */
static td_status equal_verdict(const td_slices *s, const td_state_list *list, const td_tensor *all)
{
    const int64_t *hashes = (const int64_t *)td_ptr(all);
    for (int64_t i = 0; i < (int64_t)s->slicing.ranks * list->count; i++) {
        TD_CHECK(hashes[i] == hashes[i % list->count], TD_E_MISMATCH,
                 "'%s' differs between the ranks of the slices: rank %d of them has "
                 "other bits than rank 0 (were all ranks seeded alike?)",
                 list->items[i % list->count].name, (int)(i / list->count));
    }
    return TD_OK;
}

td_status td_slices_compare(td_slices *s)
{
    td_state_list list = td_module_state(s->model);
    td_tensor *mine = td_new(TD_SHAPE(list.count), TD_I64, TD_CPU);
    td_tensor *all = td_new(TD_SHAPE(s->slicing.ranks, list.count), TD_I64, TD_CPU);
    td_status status = list.count >= 0 && mine != NULL && all != NULL ? TD_OK : TD_E_NOMEM;
    for (int i = 0; i < list.count && status == TD_OK; i++) {
        int64_t *hashes = (int64_t *)td_ptr(mine);
        status = equal_hash(&s->slicing, list.items[i].tensor, &hashes[i]);
    }
    status = s->slicing.agree(status, s);
    if (status == TD_OK && s->slicing.ranks > 1) {
        status = td_all_gather(s->group, all, mine, NULL);
        status = status == TD_OK ? equal_verdict(s, &list, all) : status;
    }
    td_free(mine);
    td_free(all);
    td_state_list_free(&list);
    return status;
}
