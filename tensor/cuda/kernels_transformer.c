/* Cross-entropy in chunks of the vocabulary, attention, rotary positions. */
#include "tensor/cuda/cuda.h"
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/launch_transformer.h"
#include "tensor/kernels/staged.h"
#include "tensor/extend.h"

static td_cuda_chunk chunk_of(const td_tensor *stats, const td_tensor *logits, int64_t first,
                              const int64_t *labels)
{
    return (td_cuda_chunk){ .dtype = logits->dtype,
                            .rows = logits->shape[0],
                            .words = logits->shape[1],
                            .pitch = logits->stride[0],
                            .first = first,
                            .labels = labels,
                            .stats = td_ptr(stats) };
}

void td_cuda_entropy_chunk(td_tensor *stats, const td_tensor *logits, const td_tensor *labels,
                           int64_t first)
{
    td_staged label;
    td_cuda_chunk c = chunk_of(stats, logits, first, td_stage_in(&label, labels, TD_ROW_MAJOR));
    if (c.rows > 0) {
        td_cuda_launch_entropy_chunk(&c, td_ptr(logits), td_cuda_stream(logits));
        td_cuda_launched("entropy_chunk");
    }
    td_stage_end(&label);
}

void td_cuda_entropy_end(td_tensor *loss, td_tensor *total, td_tensor *stats,
                         const td_tensor *labels, const td_entropy_params *params)
{
    td_staged label;
    td_cuda_chunk c = chunk_of(stats, stats, 0, td_stage_in(&label, labels, TD_ROW_MAJOR));
    c.dtype = loss->dtype;
    td_cuda_launch_entropy_end(&c, td_ptr(loss), td_ptr(total), *params, td_cuda_stream(loss));
    td_cuda_launched("entropy_end");
    td_stage_end(&label);
}

void td_cuda_entropy_chunk_grad(td_tensor *logits, const td_tensor *dloss, const td_tensor *total,
                                const td_tensor *stats, const td_tensor *labels, int64_t first,
                                const td_entropy_params *params)
{
    td_staged label;
    td_cuda_chunk c = chunk_of(stats, logits, first, td_stage_in(&label, labels, TD_ROW_MAJOR));
    if (c.rows > 0) {
        td_cuda_launch_entropy_chunk_grad(&c, td_ptr(logits), td_ptr(dloss), td_ptr(total), *params,
                                          td_cuda_stream(logits));
        td_cuda_launched("entropy_chunk_grad");
    }
    td_stage_end(&label);
}

/* ---- attention ---- */

/* The elements of a head side by side: t itself, or a copy. */
static td_cuda_heads heads_in(td_staged *staged, const td_tensor *t)
{
    *staged = (td_staged){ .scratch = NULL };
    if (t->stride[3] != 1) {
        (void)td_stage_in(staged, t, TD_ROW_MAJOR);
        t = staged->tensor;
    }
    return (td_cuda_heads){ td_ptr(t), t->stride[0], t->stride[1], t->stride[2] };
}

static td_cuda_heads heads_out(td_staged *staged, td_tensor *t, bool keep)
{
    *staged = (td_staged){ .scratch = NULL };
    if (t->stride[3] != 1) {
        (void)td_stage_out(staged, t, TD_ROW_MAJOR, keep);
        t = staged->tensor;
    }
    return (td_cuda_heads){ td_ptr(t), t->stride[0], t->stride[1], t->stride[2] };
}

/* staged: of q, k, v. */
static td_cuda_attention_job attention_of(const td_attention_args *args, td_staged staged[3])
{
    const td_tensor *q = args->q, *k = args->k;
    return (td_cuda_attention_job){ .batch = q->shape[0],
                                    .queries = q->shape[1],
                                    .keys = k->shape[1],
                                    .heads = q->shape[2],
                                    .kv_heads = k->shape[2],
                                    .width = q->shape[3],
                                    .q = heads_in(&staged[0], q),
                                    .k = heads_in(&staged[1], k),
                                    .v = heads_in(&staged[2], args->v),
                                    .lse = td_ptr(args->lse),
                                    .causal = args->causal,
                                    .scale = args->scale };
}

void td_cuda_attention(const td_attention_args *args)
{
    td_staged in[3], out;
    td_cuda_attention_job a = attention_of(args, in);
    a.y = heads_out(&out, args->y, false);
    td_cuda_launch_attention(args->q->dtype, &a, td_cuda_stream(args->q));
    td_cuda_launched("attention");
    td_stage_end(&out, &in[2], &in[1], &in[0]);
}

void td_cuda_attention_grad(const td_attention_grad_args *args)
{
    td_device device = td_device_of(args->dy);
    td_staged in[3], y, dy, out[3];
    td_cuda_attention_job a = attention_of(&args->forward, in);
    a.y = heads_in(&y, args->forward.y);
    td_cuda_attention_grads g = { .dy = heads_in(&dy, args->dy),
                                  .dq = heads_out(&out[0], args->dq, args->accumulate[0]),
                                  .dk = heads_out(&out[1], args->dk, args->accumulate[1]),
                                  .dv = heads_out(&out[2], args->dv, args->accumulate[2]),
                                  .both = td_scratch(device, td_tensor_bytes(args->forward.lse)) };
    for (int i = 0; i < 3; i++) {
        g.accumulate[i] = args->accumulate[i];
    }
    td_cuda_launch_attention_grad(args->dy->dtype, &a, &g, td_cuda_stream(args->dy));
    td_cuda_launched("attention_grad");
    td_scratch_free(device, g.both);
    td_stage_end(&out[2], &out[1], &out[0], &dy, &y, &in[2], &in[1], &in[0]);
}

void td_cuda_rope(td_tensor *y, const td_tensor *x, const td_rope_params *params, bool accumulate)
{
    if (td_numel(y) == 0) {
        return;
    }
    td_staged sx, sy;
    td_cuda_rope_job r = { .batch = x->shape[0],
                           .tokens = x->shape[1],
                           .heads = x->shape[2],
                           .width = x->shape[3],
                           .x = heads_in(&sx, x),
                           .y = heads_out(&sy, y, accumulate),
                           .params = *params,
                           .accumulate = accumulate };
    td_cuda_launch_rope(y->dtype, &r, td_cuda_stream(y));
    td_cuda_launched("rope");
    td_stage_end(&sy, &sx);
}
