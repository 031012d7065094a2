#include "nn/extra/followed.h"

#include "tensor/kernels.h"
#include "tensor/storage.h"
#include "nn/module.h"

#include <stdlib.h>

/* A buffer under two names is followed once. */
static bool is_known(const td_followed_list *list, const td_tensor *buffer)
{
    for (int i = 0; i < list->count; i++) {
        if (list->items[i].value == buffer) {
            return true;
        }
    }
    return false;
}

td_status td_followed_buffers(td_module *model, td_followed_list *list)
{
    *list = (td_followed_list){ .count = 0 };
    td_state_list state = td_module_state(model);
    if (state.count < 0) {
        return TD_E_NOMEM;
    }
    list->items = calloc((size_t)state.count + 1, sizeof *list->items);
    bool made = list->items != NULL;
    for (int i = 0; made && i < state.count; i++) {
        td_named_tensor *item = &state.items[i];
        if (!item->buffer || is_known(list, item->tensor)) {
            continue;
        }
        td_tensor *copy = td_clone(item->tensor);
        made = copy != NULL;
        if (made) {
            list->items[list->count++] =
                (td_followed){ (char *)(uintptr_t)item->name, item->tensor, copy };
            item->name = NULL; /* now ours */
        }
    }
    td_state_list_free(&state);
    return made ? TD_OK : TD_E_NOMEM;
}

void td_followed_free(td_followed_list *list)
{
    for (int i = 0; i < list->count; i++) {
        free(list->items[i].name);
        td_free(list->items[i].copy);
    }
    free(list->items);
    *list = (td_followed_list){ .count = 0 };
}

td_tensor td_followed_part(const td_tensor *t, int64_t begin, int64_t count)
{
    td_tensor part = *t;
    part.ndim = 1;
    part.shape[0] = count;
    part.stride[0] = 1;
    part.offset += begin;
    return part;
}

td_optim_slice td_follow_slice(const td_tensor *average, double decay)
{
    return (td_optim_slice){
        .count = td_numel(average),
        .lr = -(1.0 - decay),
        .weight_decay = -1.0,
    };
}

void td_follow(td_tensor *average, const td_tensor *value, const td_optim_slice *slice,
               const char *what)
{
    const td_kernels *kernels = td_kernels_of(td_device_of(average));
    int64_t count = td_numel(average);
    td_tensor to = td_followed_part(average, 0, count), from = td_followed_part(value, 0, count);
    td_begin_write(average, what, TD_HERE);
    if (td_is_float(average->dtype)) {
        kernels->sgd(&to, &from, NULL, slice, 1);
    } else {
        kernels->copy(&to, &from);
    }
}
