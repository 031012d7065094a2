/* Counts the floating-point operations and bytes of a kernel's call. */
#include "tensor/observe/cost.h"

double td_cost_bytes(const td_tensor *t)
{
    if (t == NULL) {
        return 0.0;
    }
    double count = 1.0;
    for (int d = 0; d < t->ndim; d++) {
        bool expanded = t->stride[d] == 0 && t->shape[d] > 0;
        count *= expanded ? 1.0 : (double)t->shape[d];
    }
    return count * (double)td_dtype_size(t->dtype);
}

td_cost td_cost_of(const td_tensor *t, double per_element, double bytes)
{
    return (td_cost){ per_element * (double)td_numel(t), bytes, (td_dtype)t->dtype };
}

/* What a result costs beyond being written: reading it, and one addition for each element. */
static td_cost plus_accumulation(td_cost cost, const td_tensor *written, bool accumulate)
{
    if (accumulate && written != NULL) {
        cost.flops += (double)td_numel(written);
        cost.bytes += td_cost_bytes(written);
    }
    return cost;
}

td_cost td_cost_matmul(const td_tensor *c, const td_tensor *a, const td_tensor *b,
                       const td_tensor *bias, bool accumulate)
{
    double k = (double)a->shape[a->ndim - 1];
    double bytes = td_cost_bytes(a) + td_cost_bytes(b) + td_cost_bytes(c) + td_cost_bytes(bias);
    td_cost cost = td_cost_of(c, 2.0 * k + (bias != NULL ? 1.0 : 0.0), bytes);
    return plus_accumulation(cost, c, accumulate);
}

/* The taps, over all output places of one dimension, that fall inside the picture. */
static double valid_taps(int64_t in, int64_t out, int64_t kernel, int stride, int pad, int dilation)
{
    int64_t taps = 0;
    for (int64_t o = 0; o < out; o++) {
        for (int64_t k = 0; k < kernel; k++) {
            int64_t at = o * stride - pad + k * dilation;
            taps += at >= 0 && at < in;
        }
    }
    return (double)taps;
}

td_cost td_cost_conv2d(const td_tensor *y, const td_tensor *x, const td_tensor *w,
                       const td_conv2d_params *p, const td_tensor *written, bool accumulate)
{
    double taps = 1.0;
    for (int d = 0; d < 2; d++) {
        taps *= valid_taps(x->shape[2 + d], y->shape[2 + d], w->shape[2 + d], p->stride[d],
                           p->pad[d], p->dilation[d]);
    }
    double multiply_adds = taps * (double)x->shape[0] * (double)w->shape[0] * (double)w->shape[1];
    td_cost cost = { 2.0 * multiply_adds, td_cost_bytes(x) + td_cost_bytes(y) + td_cost_bytes(w),
                     (td_dtype)x->dtype };
    return plus_accumulation(cost, written, accumulate);
}

td_cost td_cost_clip(td_tensor *const *x, int count)
{
    td_cost cost = { .dtype = count > 0 ? x[0]->dtype : TD_F32 };
    for (int i = 0; i < count; i++) {
        td_cost one = td_cost_of(x[i], 3, 3.0 * td_cost_bytes(x[i]));
        cost.flops += one.flops;
        cost.bytes += one.bytes;
    }
    return cost;
}

/* Mean and sum of squares about it: three operations an element (a difference, a product with its
 * sum); normalising: two (a product and its sum). */
td_cost td_cost_batch_norm(const td_batch_norm_args *a)
{
    double per_element =
        (a->training ? 4.0 : 0.0) + 2.0 + (a->add != NULL) + (a->activation != TD_NORM_LINEAR);
    double bytes = td_cost_bytes(a->x) + td_cost_bytes(a->add) + td_cost_bytes(a->y);
    return td_cost_of(a->x, per_element, bytes);
}

/* Two sums over g and g (x - mean): four operations; dx = a g + b (x - mean) + c: five; the
 * activation's slope: one. */
td_cost td_cost_batch_norm_grad(const td_batch_norm_grad_args *a)
{
    double per_element = 4.0 + (a->dx != NULL ? 5.0 : 0.0) + (a->activation != TD_NORM_LINEAR);
    double bytes = td_cost_bytes(a->dy) + td_cost_bytes(a->x) + td_cost_bytes(a->dx) +
                   td_cost_bytes(a->dadd) +
                   (a->activation == TD_NORM_RELU && a->affine == NULL && a->max_pool == NULL
                        ? td_cost_bytes(a->y)
                        : 0.0);
    td_cost cost = td_cost_of(a->x, per_element, bytes);
    cost = plus_accumulation(cost, a->dx, a->accumulate_dx);
    return plus_accumulation(cost, a->dadd, a->accumulate_dadd);
}

td_cost td_cost_pool2d(const td_tensor *y, const td_tensor *x, const td_tensor *index,
                       const td_pool2d_params *params, const td_tensor *written, bool accumulate)
{
    double window = (double)params->kernel[0] * (double)params->kernel[1];
    double bytes = td_cost_bytes(x) + td_cost_bytes(y) + td_cost_bytes(index);
    return plus_accumulation(td_cost_of(y, window, bytes), written, accumulate);
}

td_cost td_cost_optim(const td_tensor *param, const td_optim_slice *slices, int count, int states,
                      double per_element)
{
    double elements = 0.0;
    for (int i = 0; i < count; i++) {
        elements += slices[i].skip ? 0.0 : (double)slices[i].count;
    }
    double size = (double)td_dtype_size(param->dtype);
    return (td_cost){ elements * per_element, elements * (3.0 + 2.0 * states) * size,
                      (td_dtype)param->dtype };
}

/* Pairs of a query and a key that it reads, times the operations of each. */
static td_cost attention_cost(const td_attention_args *a, double per_pair, double bytes)
{
    double queries = (double)a->q->shape[1], keys = (double)a->k->shape[1];
    double hidden = a->causal ? queries * (queries - 1.0) / 2.0 : 0.0;
    double heads = (double)a->q->shape[0] * (double)a->q->shape[2];
    return (td_cost){ heads * (queries * keys - hidden) * per_pair, bytes, (td_dtype)a->q->dtype };
}

td_cost td_cost_attention(const td_attention_args *a)
{
    double bytes = td_cost_bytes(a->q) + td_cost_bytes(a->k) + td_cost_bytes(a->v);
    return attention_cost(a, 4.0 * (double)a->q->shape[3] + 2.0,
                          bytes + td_cost_bytes(a->y) + td_cost_bytes(a->lse));
}

td_cost td_cost_attention_grad(const td_attention_grad_args *a)
{
    double read = td_cost_attention(&a->forward).bytes + td_cost_bytes(a->dy);
    const td_tensor *written[3] = { a->dq, a->dk, a->dv };
    for (int i = 0; i < 3; i++) {
        read += td_cost_bytes(written[i]) * (a->accumulate[i] ? 2.0 : 1.0);
    }
    return attention_cost(&a->forward, 10.0 * (double)a->forward.q->shape[3] + 4.0, read);
}
