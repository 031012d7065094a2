/* A second, flat copy of a model's values that follows them. */
#include "nn/extra/average.h"

#include "nn/module.h"
#include "nn/params.h"
#include "tensor/hooks.h"
#include "tensor/kernels/kernels.h"
#include "tensor/storage.h"

#include <stdlib.h>

/* A buffer under two names is followed once. */
static bool is_known(const td_average *a, const td_tensor *buffer)
{
    for (int i = 0; i < a->buffer_count; i++) {
        if (a->buffers[i].value == buffer) {
            return true;
        }
    }
    return false;
}

static bool copy_buffers(td_average *a, const td_module *model)
{
    td_state_list state = td_module_state(model);
    a->buffers = state.count >= 0 ? calloc((size_t)state.count + 1, sizeof *a->buffers) : NULL;
    bool made = a->buffers != NULL;
    for (int i = 0; made && i < state.count; i++) {
        td_named_tensor *item = &state.items[i];
        if (!item->buffer || is_known(a, item->tensor)) {
            continue;
        }
        td_tensor *copy = td_clone(item->tensor);
        made = copy != NULL;
        if (made) {
            a->buffers[a->buffer_count++] =
                (td_average_buffer){ (char *)(uintptr_t)item->name, item->tensor, copy };
            item->name = NULL; /* now ours */
        }
    }
    td_state_list_free(&state);
    return made;
}

bool td_average_begin(td_average *a, td_module *model)
{
    *a = (td_average){ .params = td_parameters(model) };
    a->flat = a->params != NULL ? td_params_new_flat(a->params) : NULL;
    if (a->flat == NULL || !copy_buffers(a, model)) {
        return false;
    }
    td_copy_(a->flat, td_params_flat(a->params));
    a->slices = calloc((size_t)a->buffer_count + 1, sizeof *a->slices);
    return a->slices != NULL;
}

void td_average_end(td_average *a)
{
    for (int i = 0; i < a->buffer_count; i++) {
        free(a->buffers[i].name);
        td_free(a->buffers[i].copy);
    }
    free(a->buffers);
    free(a->slices);
    if (a->params != NULL) {
        td_params_drop_state(a->params, a->flat);
    }
}

int td_average_fill(const td_average *a, td_optim_slice *slices, double decay)
{
    for (int i = 0; i < 1 + a->buffer_count; i++) {
        slices[i] = (td_optim_slice){
            .count = td_numel(i == 0 ? a->flat : a->buffers[i - 1].copy),
            .lr = -(1.0 - decay),
            .weight_decay = -1.0,
        };
    }
    return 1 + a->buffer_count;
}

static void follow(td_tensor *copy, td_tensor *value, const td_optim_slice *slice, bool back,
                   const char *function)
{
    const td_kernels *kernels = td_kernels_for(copy);
    bool is_float = td_is_float(copy->dtype);
    if (back && !is_float) {
        return;
    }
    int64_t count = td_numel(copy);
    td_tensor to = td_params_part(copy, 0, count), from = td_params_part(value, 0, count);
    td_begin_write(copy, function, TD_HERE);
    if (is_float) {
        kernels->sgd(&to, &from, NULL, slice, 1);
    } else {
        kernels->copy(&to, &from);
    }
    if (back) {
        td_copy_(value, copy);
    }
}

void td_average_update(td_average *a, void (*fill)(void *user, void *slices), void *user, bool back,
                       const char *function)
{
    size_t bytes = (size_t)(1 + a->buffer_count) * sizeof *a->slices;
    const td_optim_slice *slices = td_step_numbers(a->slices, bytes, fill, user);
    td_context_push(function);
    if (back) {
        td_params_meet(a->params);
    }
    follow(a->flat, td_params_flat(a->params), &slices[0], back, function);
    if (back) {
        td_params_meet(a->params);
    }
    for (int i = 0; i < a->buffer_count; i++) {
        follow(a->buffers[i].copy, a->buffers[i].value, &slices[1 + i], back, function);
    }
    td_context_pop();
}
