/* Windows as bytes, for ranks that follow others.
 *
 * The bytes: for each parameter the first of its elements that is in the window, and how many are;
 * then these elements of the values, and of each optimizer's state; then numbers. */
#include "nn/shared/shared.h"

#include "tensor/storage.h"

#include <string.h>

/* ---- state for other windows ---- */

int td_params_hide_state(td_params *params)
{
    int hidden = params->extra_count;
    params->extra_count = 0;
    return hidden;
}

td_status td_params_show_state(td_params *params, int hidden)
{
    params->extra_count = hidden;
    for (int k = 0; k < hidden; k++) {
        td_tensor *state = params->extra[k].state, old = *state;
        if (params->extra[k].window) {
            td_tensor *fresh = td_params_new_window(params, state->dtype);
            TD_TRY(fresh != NULL ? TD_OK : TD_E_NOMEM);
            state->storage = fresh->storage;
            state->shape[0] = fresh->shape[0];
            fresh->storage = old.storage;
            td_params_drop_state(params, fresh);
        }
    }
    return TD_OK;
}

/* ---- bytes ---- */

td_status td_params_check_export(const td_params *params)
{
    for (int k = 0; k < params->extra_count; k++) {
        const td_params_extra *extra = &params->extra[k];
        TD_CHECK(!extra->flat || (extra->window && extra->state->dtype != TD_U8), TD_E_UNSUPPORTED,
                 "%s is not kept in windows of single numbers, as SGD's and Adam's is",
                 td_label(extra->state));
    }
    return TD_OK;
}

/* For the longest window: its gaps count, too. */
int64_t td_params_export_bytes(const td_params *params)
{
    const td_params_peers *peers = td_params_peers_of(params);
    int64_t window = td_params_length(params) / (peers != NULL ? peers->count : 1);
    int64_t each = (int64_t)td_dtype_size(params->flat->dtype);
    int64_t others = 2 * params->count * (int64_t)sizeof(int64_t);
    for (int k = 0; k < params->extra_count; k++) {
        const td_tensor *state = params->extra[k].state;
        each += params->extra[k].window ? (int64_t)td_dtype_size(state->dtype) : 0;
        others += params->extra[k].window ? 0 : (int64_t)td_tensor_bytes(state);
    }
    return window * each + others;
}

static void move(void *here, char *there, int64_t bytes, bool in)
{
    memcpy(in ? here : there, in ? there : here, (size_t)bytes);
}

/* Moves what the bytes and this rank both have of values or state. has: the elements that the bytes
 * have. Returns the end of the tensor's bytes. */
static char *move_elements(const td_params *params, td_tensor *t, const int64_t *has, char *bytes,
                           bool in)
{
    const td_params_peers *peers = td_params_peers_of(params);
    bool values = t == params->flat, all = values && (peers == NULL || !peers->own_values);
    int64_t size = (int64_t)td_dtype_size(t->dtype);
    for (int i = 0; i < params->count; i++, has += 2) {
        td_window here = td_params_here(params, i);
        int64_t first = here.begin - params->items[i].begin, end = first + here.count;
        int64_t zero = here.place + (values ? here.to_values : 0) - first; /* element 0's place */
        int64_t from = all || has[0] > first ? has[0] : first;
        int64_t to = all || has[0] + has[1] < end ? has[0] + has[1] : end;
        if (from < to) {
            move((char *)td_ptr(t) + (zero + from) * size, bytes + (from - has[0]) * size,
                 (to - from) * size, in);
        }
        bytes += has[1] * size;
    }
    return bytes;
}

static void move_all(td_params *params, int64_t *has, bool in)
{
    char *bytes = move_elements(params, params->flat, has, (char *)(has + 2 * params->count), in);
    for (int k = 0; k < params->extra_count; k++) {
        td_tensor *state = params->extra[k].state;
        if (params->extra[k].window) {
            bytes = move_elements(params, state, has, bytes, in);
        } else {
            move(td_ptr(state), bytes, (int64_t)td_tensor_bytes(state), in);
            bytes += td_tensor_bytes(state);
        }
    }
}

void td_params_export(td_params *params, void *bytes)
{
    int64_t *has = bytes;
    for (int i = 0; i < params->count; i++) {
        td_window here = td_params_here(params, i);
        has[2 * i] = here.begin - params->items[i].begin;
        has[2 * i + 1] = here.count;
    }
    move_all(params, has, false);
}

void td_params_import(td_params *params, const void *bytes)
{
    td_begin_write(params->flat, "td_params_import", TD_HERE);
    move_all(params, (int64_t *)(uintptr_t)bytes, true);
}
