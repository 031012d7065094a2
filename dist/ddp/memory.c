/* Memory that the ranks reduce in place. */
#include "dist/ddp/ddp.h"

#include "dist/comm/collectives.h"
#include "nn/shared/shared.h"
#include "tensor/extend.h"

td_tensor *td_ddp_new_memory(td_group *group, td_device device, int64_t count, td_dtype dtype)
{
    return device.type == TD_DEVICE_CPU ? td_group_memory(group, count, dtype)
                                        : td_zeros(TD_SHAPE(count), dtype, device);
}

td_tensor *td_ddp_slice(const td_tensor *flat, int64_t begin, int64_t count)
{
    return td_slice_of_storage(flat, flat->offset + begin, TD_SHAPE(count), (int64_t[]){ 1 });
}

td_status td_ddp_move_memory(td_ddp_state *s, bool with_values, int64_t length)
{
    const td_tensor *flat = td_params_flat(s->params);
    td_device device = td_device_of(flat);
    td_tensor *grads = td_ddp_new_memory(s->group, device, length, flat->dtype);
    td_tensor *values = NULL;
    if (with_values && grads != NULL) {
        values = td_ddp_new_memory(s->group, device, length, flat->dtype);
    }
    td_status status = grads != NULL && (values != NULL || !with_values)
                           ? td_params_set_memory(s->params, values, grads)
                           : TD_E_NOMEM;
    if (status != TD_OK) {
        td_free(grads);
        td_free(values);
    }
    return status;
}
