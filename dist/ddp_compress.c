/* What travels for a bucket: the gradients themselves, or half as many bytes, or two thin factors
 * (ddp_powersgd.c). */
#include "dist/ddp.h"

#include "tensor/hooks.h"

#include <string.h>

static td_dtype wire_dtype(const td_ddp_state *s)
{
    return strcmp(s->options.comm_hook, "bf16") == 0 ? TD_BF16 : TD_F16;
}

td_status td_ddp_compress_bucket(td_ddp_state *s, td_ddp_bucket *b)
{
    if (s->compression != TD_DDP_HALF) {
        return TD_OK;
    }
    b->wire = td_slice_of_storage(s->wire, s->wire->offset + b->begin, TD_SHAPE(b->count),
                                  (int64_t[]){ 1 });
    return b->wire != NULL ? TD_OK : TD_E_NOMEM;
}

td_status td_ddp_compress_setup(td_ddp_state *s)
{
    if (s->compression != TD_DDP_HALF) {
        return TD_OK;
    }
    if (s->wire == NULL) {
        s->wire = td_ddp_new_memory(s, td_device_of(td_params_flat(s->params)),
                                    td_numel(td_params_flat_grad(s->params)), wire_dtype(s));
    }
    for (int i = 0; s->wire != NULL && i < s->bucket_count; i++) {
        TD_TRY(td_ddp_compress_bucket(s, &s->buckets[i]));
    }
    return s->wire != NULL ? TD_OK : TD_E_NOMEM;
}

td_status td_ddp_launch_bucket(td_ddp_state *s, td_ddp_bucket *b)
{
    switch (s->compression) {
    case TD_DDP_HALF:
        /* Scaled before the cast, so that a sum that f16 cannot hold does not come up. */
        td_mul_scalar_(b->grad, 1.0 / td_ddp_divisor(s));
        td_copy_(b->wire, b->grad);
        return td_all_reduce(s->group, b->wire, TD_SUM, &b->work);
    case TD_DDP_POWERSGD:
        td_not_recordable("PowerSGD counts its steps on the host");
        if (td_powersgd_active(s)) {
            return td_powersgd_launch(s, b);
        }
        break;
    case TD_DDP_PLAIN:
        break;
    }
    return td_ddp_average(s, b->grad, &b->work);
}

td_status td_ddp_unpack_bucket(td_ddp_state *s, td_ddp_bucket *b)
{
    if (s->compression == TD_DDP_HALF) {
        td_copy_(b->grad, b->wire);
    }
    if (s->compression == TD_DDP_POWERSGD && td_powersgd_active(s)) {
        return td_powersgd_unpack(s, b);
    }
    return TD_OK;
}
