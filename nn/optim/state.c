/* An optimizer's state of one parameter as numbers: this rank's window of it, packed or not. */
#include "nn/params.h"
#include "tensor/kernels/packed.h"

#include <stdlib.h>

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

td_status td_params_take(const td_params *params, td_tensor *window, int i, td_tensor *part)
{
    return copy_state(window, td_params_here(params, i).place, part, false);
}

td_status td_params_keep(const td_params *params, td_tensor *window, int i, td_tensor *part)
{
    return copy_state(window, td_params_here(params, i).place, part, true);
}
