/* Memory of a group's engine, as tensors. */
#include "dist/comm/group.h"
#include "dist/comm/collectives.h"

#include "tensor/storage.h"
#include "tensor/extend.h"
#include "tensor/system/list.h"

#include <stdlib.h>

/* Takes the memory back when the tensor and all its views are freed. */
struct td_group_lender {
    td_lender lender; /* first */
    td_group *group;  /* NULL: the group and its memory have ended */
    td_group_lender *next;
};

static void give_back(td_lender *base, void *data)
{
    td_group_lender *lender = (td_group_lender *)(void *)base;
    td_group *group = lender->group;
    if (group != NULL) {
        td_engine_acquire(group);
        group->engine_type->memory_free(group->engine, data);
        *TD_LINK_TO(&group->lenders, lender) = lender->next;
        td_engine_release(group);
    }
    free(lender);
}

void td_group_forget_memory(td_group *group)
{
    while (group->lenders != NULL) {
        td_group_lender *lender = group->lenders;
        group->lenders = lender->next;
        lender->group = NULL;
    }
}

td_tensor *td_group_memory(td_group *group, int64_t count, td_dtype dtype)
{
    group = td_group_or_world(group);
    TD_REQUIRE(count >= 0, TD_NOWHERE, "td_group_memory: %lld elements are wanted",
               (long long)count);
    if (group->engine == NULL || group->engine_type->memory == NULL) {
        return td_zeros(TD_SHAPE(count), dtype, TD_CPU);
    }
    size_t bytes;
    TD_CHECK_NULL(td_shape_bytes(TD_SHAPE(count), dtype, &bytes) && bytes <= INT64_MAX / 2,
                  TD_E_NOMEM, "td_group_memory: %lld elements of %s are more than any machine has",
                  (long long)count, td_dtype_name(dtype));
    void *data = NULL;
    td_collective c = {
        .kind = TD_COLLECTIVE_MEMORY, .dtype = TD_U8, .out = &data, .count = (int64_t)bytes
    };
    if (td_submit(group, &c, 0, NULL) != TD_OK) {
        return NULL;
    }
    td_group_lender *lender = calloc(1, sizeof *lender);
    TD_CHECK_NULL(lender != NULL, TD_E_NOMEM, "out of memory for a tensor of the group");
    lender->lender.give_back = give_back;
    lender->group = group;
    td_engine_acquire(group);
    lender->next = group->lenders;
    group->lenders = lender;
    td_engine_release(group);
    td_tensor *t = td_new_away(TD_SHAPE(count), dtype, TD_ROW_MAJOR, TD_CPU, &lender->lender);
    if (t == NULL) {
        give_back(&lender->lender, data);
        return NULL;
    }
    td_set_address(t, data);
    return t;
}

bool td_group_can_weave(td_group *group)
{
    group = td_group_or_world(group);
    return group->engine == NULL || group->engine_type->weave != NULL;
}

void *td_group_weave(td_group *group, const td_tensor *memory, const int64_t *cuts, int pieces)
{
    group = td_group_or_world(group);
    void *woven = NULL;
    if (group->engine == NULL) {
        return td_ptr(memory);
    }
    TD_CHECK_NULL(group->engine_type->weave != NULL, TD_E_UNSUPPORTED,
                  "td_group_weave: the backend %s has no shared memory", group->engine_type->name);
    td_engine_acquire(group);
    td_status status = group->engine_type->weave(group->engine, td_ptr(memory), cuts, pieces,
                                                 td_dtype_size(memory->dtype), &woven);
    td_engine_release(group);
    return status == TD_OK ? woven : NULL;
}
