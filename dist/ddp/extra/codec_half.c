/* Sends gradients as bf16 or fp16: half the bytes. */
#include "dist/ddp/codec.h"

#include "dist/ddp/ddp.h"
#include "nn/module.h"

#include <stdlib.h>

typedef struct half {
    td_tensor *wire; /* the flat gradients as they travel */
} half;

static td_status open_as(td_group *group, td_params *params, td_dtype dtype, void **state)
{
    const td_tensor *flat = td_params_flat(params);
    half *h = calloc(1, sizeof *h);
    if (h == NULL) {
        return td_fail(TD_E_NOMEM, "td_ddp: no memory for gradients of 16 bits");
    }
    *state = h;
    h->wire = td_ddp_new_memory(group, td_device_of(flat), td_numel(flat), dtype);
    return h->wire != NULL ? TD_OK : TD_E_NOMEM;
}

static td_status open_bf16(td_group *group, td_params *params, const td_ddp_options *options,
                           void **state)
{
    (void)options;
    return open_as(group, params, TD_BF16, state);
}

static td_status open_fp16(td_group *group, td_params *params, const td_ddp_options *options,
                           void **state)
{
    (void)options;
    return open_as(group, params, TD_F16, state);
}

static void close_half(void *state)
{
    half *h = state;
    td_free(h->wire);
    free(h);
}

static td_status half_attach(void *state, const td_bucket *b, void **part)
{
    *part = td_ddp_slice(((half *)state)->wire, b->begin, b->count);
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
        .name = #NAME, .open = open_##NAME, .close = close_half, .attach = half_attach,            \
        .detach = half_detach, .encode = half_encode, .decode = half_decode                        \
    }

const td_bucket_codec td_codec_bf16 = HALF(bf16), td_codec_fp16 = HALF(fp16);
