/* The last layer of a language model and its loss in one: cross_entropy(x w^T, labels), with the
 * logits in chunks of the vocabulary. The forward keeps three numbers a row; the backward computes
 * each chunk again, and writes each part of dw once. A GPU's chunk is the whole vocabulary where
 * its logits fit, which are then kept. Observers get the two operations. */
#include "autograd/ops/op.h"

#include <string.h>

/* A chunk has at least so many words, and otherwise at most so many logits. Whole steps: then a
 * row's loss has the same bits in any chunks. */
enum { CHUNK_WORDS = 4096, CHUNK_LOGITS = 1 << 22, CHUNK_STEP = 1024 };
static const int64_t GPU_LOGITS = (int64_t)1 << 31; /* 4 GB in 16 bits */

typedef struct chunk_params {
    td_entropy_params entropy;
    td_math math;
    int64_t chunk;
    td_word_slices slices; /* count 1: w has all words */
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

/* Slice i of the words of w, and row i of [slices,...]. */
static td_tensor slice_of_words(const td_tensor *w, int i, const chunk_params *p)
{
    int64_t n = w->shape[0] / p->slices.count;
    return words_of(w, i * n, n);
}

static td_tensor row_of(const td_tensor *all, int i)
{
    td_tensor row = *all;
    row.offset += i * all->stride[0];
    row.ndim--;
    memmove(row.shape, row.shape + 1, (size_t)row.ndim * sizeof *row.shape);
    memmove(row.stride, row.stride + 1, (size_t)row.ndim * sizeof *row.stride);
    return row;
}

/* Memory for the logits of a chunk. Its rows begin at multiples of 128 bytes (of 16-bit numbers),
 * since products on tensor cores want aligned rows. */
static td_tensor *chunk_room(const td_tensor *x, const td_tensor *w, int64_t chunk, td_site at)
{
    enum { UNIT = 64 };
    int64_t n = (words_from(w, 0, chunk) + UNIT - 1) / UNIT * UNIT;
    return td_step_new(TD_SHAPE(x->shape[0], n), x->dtype, TD_ROW_MAJOR, td_device_of(x), at);
}

/* The logits [N,n] of the words from `first` on, in the room. */
static td_tensor logits_in(const td_tensor *room, const td_tensor *w, int64_t first, int64_t chunk)
{
    td_tensor logits = *room;
    logits.shape[1] = words_from(w, first, chunk);
    return logits;
}

/* The same, = x w^T */
static td_tensor chunk_logits(const td_tensor *room, const td_tensor *x, const td_tensor *w,
                              int64_t first, const chunk_params *p)
{
    td_tensor logits = logits_in(room, w, first, p->chunk);
    td_tensor words = words_of(w, first, logits.shape[1]), turned = td_op_swapped(&words, 0, 1);
    td_kernels_for(x)->matmul(&logits, x, &turned, NULL, false, p->math);
    return logits;
}

/* A backward in work. */
typedef struct chunk_grads {
    td_node *node;
    const td_tensor *dloss;
    const chunk_params *p;
    td_tensor *room; /* for a chunk's logits; NULL: the forward's are kept */
    td_grad_slot dw;
} chunk_grads;

/* Slice i: its words' part of dw, and dx of its words. */
static void slice_grads(const chunk_grads *c, int i, td_tensor *dx, bool accumulate)
{
    const chunk_params *p = c->p;
    const td_tensor *x = td_saved(c->node, 0), *all = td_saved(c->node, 1);
    const td_tensor *kept = td_saved(c->node, 5);
    const td_kernels *kernels = td_kernels_for(x);
    td_tensor w = slice_of_words(all, i, p), labels = row_of(td_saved(c->node, 2), i);
    for (int64_t first = 0; first < w.shape[0]; first += p->chunk) {
        td_tensor g = kept != NULL ? logits_in(kept, &w, first, p->chunk)
                                   : chunk_logits(c->room, x, &w, first, p);
        kernels->entropy_chunk_grad(&g, c->dloss, td_saved(c->node, 4), td_saved(c->node, 3),
                                    &labels, first, &p->entropy);
        td_tensor words = words_of(&w, first, g.shape[1]), turned = td_op_swapped(&g, 0, 1);
        if (dx != NULL) {
            kernels->matmul(dx, &g, &words, NULL, accumulate || first > 0, p->math);
        }
        if (c->dw.grad != NULL) {
            td_tensor of_slice = slice_of_words(c->dw.grad, i, p);
            td_tensor to = words_of(&of_slice, first, g.shape[1]);
            kernels->matmul(&to, &turned, x, NULL, c->dw.accumulate, p->math);
        }
    }
}

/* Slices [begin, end): dx is added in the tree of the ranks. */
static void slices_grads(const chunk_grads *c, int begin, int end, td_tensor *dx, bool accumulate)
{
    if (end - begin == 1) {
        slice_grads(c, begin, dx, accumulate);
        return;
    }
    int64_t scope = td_scope_begin();
    td_tensor *right = dx != NULL ? td_step_new_like(dx, td_node_site(c->node)) : NULL;
    slices_grads(c, begin, (begin + end) / 2, dx, accumulate);
    slices_grads(c, (begin + end) / 2, end, right, false);
    if (dx != NULL) {
        td_kernels_for(dx)->axpy(dx, 1.0, right);
    }
    td_scope_end(scope, NULL);
}

static void chunks_backward(td_node *node, const td_tensor *dloss)
{
    const chunk_params *p = td_params_of(node);
    const td_tensor *x = td_saved(node, 0), *w = td_saved(node, 1);
    td_site at = td_node_site(node);
    bool half = td_is_half(x->dtype), sliced = p->slices.sum != NULL;
    td_op_gradient dx = td_op_grad_begin(node, 0, x, !half && !sliced);
    chunk_grads c = { .node = node, .dloss = dloss, .p = p, .dw = td_input_grad(node, 1) };
    td_tensor *sum = dx.grad; /* over chunks: not rounded between them */
    if (half && sum != NULL) {
        sum = td_op_new(td_shape_of(x), TD_F32, x, at);
    }
    if (td_saved(node, 5) == NULL) { /* otherwise the kept logits become their gradient */
        td_tensor words = slice_of_words(w, 0, p);
        c.room = chunk_room(x, &words, p->chunk, at);
    }
    slices_grads(&c, 0, p->slices.count, sum, dx.accumulate);
    if (sliced && sum != NULL) {
        p->slices.sum(sum, p->slices.user, at);
    }
    if (sum != dx.grad) {
        td_kernels_for(x)->copy(dx.grad, sum);
    }
    td_op_grad_end(node, 0, &dx);
}

/* own: the labels in each slice's numbers, [slices,N]. */
static td_tensor *in_chunks(td_tensor *x, td_tensor *w, td_tensor *labels, td_tensor *own,
                            const chunk_params *p, td_site at)
{
    td_device device = td_device_of(x);
    const td_kernels *kernels = td_kernels_of(device);
    td_dtype dtype = x->dtype == TD_F64 ? TD_F64 : TD_F32;
    int64_t rows = x->shape[0];
    td_tensor *loss = td_step_new(TD_SCALAR, dtype, TD_ROW_MAJOR, device, at);
    td_tensor *total = td_step_new(TD_SCALAR, TD_F64, TD_ROW_MAJOR, device, at);
    td_tensor *stats = td_step_new(TD_SHAPE(rows, 3), TD_F64, TD_ROW_MAJOR, device, at);
    td_tensor *each = p->slices.join == NULL ? td_reshape_at(stats, TD_SHAPE(1, rows, 3), at)
                                             : td_step_new(TD_SHAPE(p->slices.count, rows, 3),
                                                           TD_F64, TD_ROW_MAJOR, device, at);
    td_tensor words = slice_of_words(w, 0, p);
    td_tensor *room = chunk_room(x, &words, p->chunk, at);
    for (int i = 0; i < p->slices.count; i++) {
        td_tensor here = row_of(each, i), of = row_of(own, i);
        words = slice_of_words(w, i, p);
        for (int64_t first = 0; first < words.shape[0]; first += p->chunk) {
            td_tensor logits = chunk_logits(room, x, &words, first, p);
            kernels->entropy_chunk(&here, &logits, &of, first);
        }
    }
    chunk_params kept = *p;
    if (p->slices.join != NULL) {
        p->slices.join(stats, each, p->slices.user, at);
        kept.entropy.ignore = TD_WORD_IGNORED;
    }
    kernels->entropy_end(loss, total, stats, labels, &p->entropy);
    bool whole = p->slices.count == 1 && p->chunk >= w->shape[0];
    return TD_RECORD(at, .op = "linear_cross_entropy", .backward = chunks_backward, .out = loss,
                     .inputs = { x, w }, .saved = { x, w, own, stats, total, whole ? room : NULL },
                     TD_PARAMS(&kept));
}

static void check_weight(const td_tensor *x, const td_tensor *w, td_site at)
{
    td_check_float(w, "linear_cross_entropy", "the weight", at);
    td_check_mixed(x, w, "linear_cross_entropy", at);
    TD_REQUIRE(w->ndim == 2 && w->shape[0] > 0 && w->shape[1] == x->shape[1], at,
               "linear_cross_entropy: weight%s must be [words,%lld] for x%s", TD_SHAPE_TEXT(w),
               (long long)x->shape[1], TD_SHAPE_TEXT(x));
}

td_tensor *td_op_sliced_cross_entropy(td_linear_cross_entropy_options o,
                                      const td_word_slices *slices, td_site at)
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
    bool kernel = td_op_chunks_entropy(td_device_of(x)) || slices->join != NULL;
    if (!kernel || o.reduction == TD_LOSS_NONE) {
        td_cross_entropy_options loss = { .logits = td_linear_at(x, o.w, NULL, at),
                                          .labels = labels,
                                          .ignore_index = o.ignore_index,
                                          .reduction = o.reduction };
        return td_cross_entropy_at(loss, at);
    }
    check_weight(x, o.w, at);
    chunk_params p = { .entropy = { .ignore = td_op_ignored(o.ignore_index),
                                    .sum = o.reduction == TD_LOSS_SUM },
                       .math = td_math_now(),
                       .slices = *slices };
    td_op_check_labels(labels, slices->words > 0 ? slices->words : o.w->shape[0], p.entropy.ignore,
                       op, at);
    int64_t most = td_device_of(x).type == TD_DEVICE_CPU ? CHUNK_LOGITS : GPU_LOGITS;
    int64_t room = most / (x->shape[0] + 1) / CHUNK_STEP * CHUNK_STEP;
    p.chunk = o.chunk > 0 ? o.chunk : room > CHUNK_WORDS ? room : CHUNK_WORDS;
    td_tensor *own = slices->labels != NULL
                         ? slices->labels(labels, p.entropy.ignore, slices->user, at)
                         : td_reshape_at(labels, TD_SHAPE(1, -1), at);
    return in_chunks(td_op_row_major(x, at), o.w, labels, own, &p, at);
}

td_tensor *td_linear_cross_entropy_at(td_linear_cross_entropy_options o, td_site at)
{
    return td_op_sliced_cross_entropy(o, &(td_word_slices){ .count = 1 }, at);
}

bool td_op_chunks_entropy(td_device device)
{
    return td_kernels_of(device)->entropy_chunk != NULL && !td_operations_observed();
}
