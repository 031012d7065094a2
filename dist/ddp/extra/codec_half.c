/* Sends gradients as bf16 or fp16: half the bytes. The codec's state is a tensor: the flat
 * gradients as they travel. */
#include "dist/ddp/extra/parts.h"

static td_status half_open(td_group *group, td_params *params, const td_ddp_options *options,
                           void **state)
{
    const td_tensor *flat = td_params_flat(params);
    td_dtype dtype = options->codec == &td_codec_fp16 ? TD_F16 : TD_BF16;
    *state = td_ddp_new_memory(group, td_device_of(flat), td_numel(flat), dtype);
    return *state != NULL ? TD_OK : TD_E_NOMEM;
}

static void half_close(void *state)
{
    td_free(state);
}

static td_status half_attach(void *state, const td_bucket *b, void **part)
{
    *part = td_ddp_slice(state, b->begin, b->count);
    return *part != NULL ? TD_OK : TD_E_NOMEM;
}

static void half_detach(void *state, void *part)
{
    (void)state;
    td_free(part);
}

/* Scales before the cast, so that the ranks' sum stays within f16's range. */
static td_status half_encode(void *state, void *part, const td_bucket *b, int round, double scale,
                             td_wire *wire)
{
    (void)state;
    if (round == 0) {
        td_mul_scalar_(b->grad, scale);
        td_copy_(part, b->grad);
        *wire = (td_wire){ part, true };
    }
    return TD_OK;
}

static td_status half_decode(void *state, void *part, const td_bucket *b)
{
    (void)state;
    td_copy_(b->grad, part);
    return TD_OK;
}

#define HALF(NAME)                                                                                 \
    {                                                                                              \
        .name = NAME, .open = half_open, .close = half_close, .attach = half_attach,               \
        .detach = half_detach, .encode = half_encode, .decode = half_decode                        \
    }

const td_bucket_codec td_codec_bf16 = HALF("bf16"), td_codec_fp16 = HALF("fp16");
