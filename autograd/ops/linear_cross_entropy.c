/* The last layer of a language model and its loss in one: cross_entropy(x w^T, labels), with the
 * logits in chunks of the vocabulary. The forward keeps three numbers a row; the backward computes
 * each chunk again, and writes each part of dw once. Devices without the kernels, and observers,
 * get the two operations. */
#include "autograd/ops/op.h"

/* A chunk has at least so many words, and otherwise at most so many logits. Whole steps: then a
 * row's loss has the same bits in any chunks. */
enum { CHUNK_WORDS = 4096, CHUNK_LOGITS = 1 << 22, CHUNK_STEP = 1024 };

typedef struct chunk_params {
    td_entropy_params entropy;
    td_math math;
    int64_t chunk;
} chunk_params;

/* Words [first, first + n) of w, or of its gradient: [n,d]. */
static td_tensor words_of(const td_tensor *w, int64_t first, int64_t n)
{
    td_tensor view = *w;
    view.offset += first * w->stride[0];
    view.shape[0] = n;
    return view;
}

static int64_t words_from(const td_tensor *w, int64_t first, int64_t chunk)
{
    return w->shape[0] - first < chunk ? w->shape[0] - first : chunk;
}

/* logits [N,n] = x w^T of the words from `first` on, over the memory of `room`. */
static td_tensor chunk_logits(const td_tensor *room, const td_tensor *x, const td_tensor *w,
                              int64_t first, const chunk_params *p)
{
    int64_t n = words_from(w, first, p->chunk);
    td_tensor words = words_of(w, first, n), turned = td_op_swapped(&words, 0, 1);
    td_tensor logits = td_op_with_shape(room, TD_SHAPE(x->shape[0], n), (int64_t[]){ n, 1 });
    td_kernels_of(td_device_of(x))->matmul(&logits, x, &turned, NULL, false, p->math);
    return logits;
}

static void chunks_backward(td_node *node, const td_tensor *dloss)
{
    const chunk_params *p = td_params_of(node);
    const td_tensor *x = td_saved(node, 0), *w = td_saved(node, 1), *kept = td_saved(node, 5);
    const td_kernels *kernels = td_kernels_of(td_device_of(x));
    td_site at = td_node_site(node);
    bool half = td_is_half(x->dtype);
    td_op_gradient dx = td_op_grad_begin(node, 0, x, !half);
    td_grad_slot dw = td_input_grad(node, 1);
    td_tensor *sum = dx.grad; /* over chunks: not rounded between them */
    if (half && sum != NULL) {
        sum = td_step_new(td_shape_of(x), TD_F32, TD_ROW_MAJOR, td_device_of(x), at);
    }
    td_shape shape = TD_SHAPE(x->shape[0], words_from(w, 0, p->chunk));
    td_tensor *room =
        NULL; /* where one chunk has all logits, their gradient is written over them */
    if (kept == NULL) {
        room = td_step_new(shape, x->dtype, TD_ROW_MAJOR, td_device_of(x), at);
    }
    for (int64_t first = 0; first < w->shape[0]; first += p->chunk) {
        td_tensor g = kept != NULL ? *kept : chunk_logits(room, x, w, first, p);
        kernels->entropy_chunk_grad(&g, dloss, td_saved(node, 4), td_saved(node, 3),
                                    td_saved(node, 2), first, &p->entropy);
        td_tensor words = words_of(w, first, g.shape[1]), turned = td_op_swapped(&g, 0, 1);
        if (sum != NULL) {
            kernels->matmul(sum, &g, &words, NULL, dx.accumulate || first > 0, p->math);
        }
        if (dw.grad != NULL) {
            td_tensor to = words_of(dw.grad, first, g.shape[1]);
            kernels->matmul(&to, &turned, x, NULL, dw.accumulate, p->math);
        }
    }
    if (sum != dx.grad) {
        kernels->copy(dx.grad, sum);
    }
    td_op_grad_end(node, 0, &dx);
}

static td_tensor *in_chunks(td_tensor *x, td_tensor *w, td_tensor *labels, const chunk_params *p,
                            td_site at)
{
    td_device device = td_device_of(x);
    const td_kernels *kernels = td_kernels_of(device);
    td_dtype dtype = x->dtype == TD_F64 ? TD_F64 : TD_F32;
    td_tensor *loss = td_step_new(TD_SCALAR, dtype, TD_ROW_MAJOR, device, at);
    td_tensor *total = td_step_new(TD_SCALAR, TD_F64, TD_ROW_MAJOR, device, at);
    td_tensor *stats = td_step_new(TD_SHAPE(x->shape[0], 3), TD_F64, TD_ROW_MAJOR, device, at);
    td_shape shape = TD_SHAPE(x->shape[0], words_from(w, 0, p->chunk));
    td_tensor *room = td_step_new(shape, x->dtype, TD_ROW_MAJOR, device, at);
    for (int64_t first = 0; first < w->shape[0]; first += p->chunk) {
        td_tensor logits = chunk_logits(room, x, w, first, p);
        kernels->entropy_chunk(stats, &logits, labels, first);
    }
    kernels->entropy_end(loss, total, stats, labels, &p->entropy);
    return TD_RECORD(at, .op = "linear_cross_entropy", .backward = chunks_backward, .out = loss,
                     .inputs = { x, w },
                     .saved = { x, w, labels, stats, total, p->chunk >= w->shape[0] ? room : NULL },
                     .params = p, .params_size = sizeof *p);
}

static void check_weight(const td_tensor *x, const td_tensor *w, td_site at)
{
    td_check_float(w, "linear_cross_entropy", "the weight", at);
    td_check_mixed(x, w, "linear_cross_entropy", at);
    TD_REQUIRE(w->ndim == 2 && w->shape[0] > 0 && w->shape[1] == x->shape[1], at,
               "linear_cross_entropy: weight%s must be [words,%lld] for x%s", TD_SHAPE_TEXT(w),
               (long long)x->shape[1], TD_SHAPE_TEXT(x));
}

td_tensor *td_linear_cross_entropy_at(td_linear_cross_entropy_options o, td_site at)
{
    const char *op = "linear_cross_entropy";
    td_tensor *x = td_op_input(o.x, op, "x", TD_RULE_OF(linear), at);
    td_check_tensor(o.labels, op, "labels", at);
    TD_REQUIRE(x->ndim >= 2 && o.labels->ndim == x->ndim - 1 && o.labels->dtype == TD_I64 &&
                   td_numel(o.labels) * x->shape[x->ndim - 1] == td_numel(x),
               at, "linear_cross_entropy: x %s and labels %s: they must be [...,d] and [...], i64",
               td_describe(x), td_describe(o.labels));
    x = td_reshape_at(x, TD_SHAPE(td_numel(o.labels), x->shape[x->ndim - 1]), at);
    td_tensor *labels = td_reshape_at(o.labels, TD_SHAPE(-1), at);
    bool kernel = td_kernels_of(td_device_of(x))->entropy_chunk != NULL;
    if (!kernel || td_operations_observed() || o.reduction == TD_LOSS_NONE) {
        td_cross_entropy_options loss = { .logits = td_linear_at(x, o.w, NULL, at),
                                          .labels = labels,
                                          .ignore_index = o.ignore_index,
                                          .reduction = o.reduction };
        return td_cross_entropy_at(loss, at);
    }
    check_weight(x, o.w, at);
    chunk_params p = { .entropy = { .ignore = td_op_ignored(o.ignore_index),
                                    .sum = o.reduction == TD_LOSS_SUM },
                       .math = td_math_now() };
    td_op_check_labels(labels, o.w->shape[0], p.entropy.ignore, op, at);
    int64_t room = CHUNK_LOGITS / (x->shape[0] + 1) / CHUNK_STEP * CHUNK_STEP;
    p.chunk = o.chunk > 0 ? o.chunk : room > CHUNK_WORDS ? room : CHUNK_WORDS;
    return in_chunks(td_op_row_major(x, at), o.w, labels, &p, at);
}
