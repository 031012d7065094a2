/* VOCAB: a table of words that is cut along the words. As an embedding, a rank looks up its own
 * words, and the ranks' rows are added: one of them is not zero. As a head, a rank has the logits
 * of its words; for the loss the ranks exchange three numbers a row (the largest logit, the sum of
 * exponentials, the label's logit) instead of logits. */
#include "dist/slices/internal.h"

#include "autograd/ops/op.h"
#include "dist/comm/collectives.h"
#include "tensor/hooks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOP, SUM, OWN, NUMBERS }; /* of a row of logits */
enum { IGNORED_LABEL = -100 };   /* PyTorch's ignore_index */

/* All elements of an i64 tensor, in memory of the caller's. */
static int64_t *read_words(const td_tensor *t, td_site at)
{
    td_not_recordable("slices of a vocabulary: the host reads the tokens");
    int64_t *words = malloc((size_t)(td_numel(t) + 1) * sizeof *words);
    TD_REQUIRE(words != NULL, at, "no memory to read %s", td_describe(t));
    td_read(t, words, TD_I64);
    return words;
}

/* ---- the embedding ---- */

/* The sum of all ranks' y, whose gradient is every y's. */
static td_tensor *sum_of_ranks(const td_slices *s, td_tensor *y, td_site at)
{
    if (s->slicing.ranks == 1) {
        return y;
    }
    td_tensor *sum = td_step_new(td_shape_of(y), y->dtype, TD_ROW_MAJOR, td_device_of(y), at);
    td_kernels_of(td_device_of(y))->copy(sum, y);
    td_slices_sum(s, sum, at);
    return TD_RECORD(at, .op = "sum_of_ranks", .backward = td_slices_pass_on, .out = sum,
                     .inputs = { y });
}

static td_tensor *embed(const td_around_rest *rest, td_tensor *index, const td_sliced *m)
{
    const td_tensor *table = m->weight;
    int64_t here = table->shape[0], all = here * m->slices->slicing.ranks;
    int64_t first = here * m->slices->slicing.rank, n = td_numel(index);
    int64_t *words = read_words(index, rest->at);
    td_shape shape = td_shape_of(index);
    td_tensor *mine = td_step_new(shape, TD_I64, TD_ROW_MAJOR, td_device_of(index), rest->at);
    shape.dim[shape.ndim++] = 1;
    td_tensor *has = td_step_new(shape, table->dtype, TD_ROW_MAJOR, td_device_of(table), rest->at);
    double *ones = calloc((size_t)n + 1, sizeof *ones);
    TD_REQUIRE(ones != NULL, rest->at, "no memory for an embedding of %lld words", (long long)n);
    for (int64_t i = 0; i < n; i++) {
        TD_REQUIRE(words[i] >= 0 && words[i] < all, rest->at,
                   "embedding: index %lld in a table of %lld words", (long long)words[i],
                   (long long)all);
        ones[i] = words[i] >= first && words[i] < first + here;
        words[i] = ones[i] > 0.0 ? words[i] - first : 0;
    }
    td_write(mine, words, TD_I64);
    td_write(has, ones, TD_F64);
    free(words);
    free(ones);
    td_tensor *y = td_mul_at(td_run_rest(rest, mine), has, rest->at);
    return sum_of_ranks(m->slices, y, rest->at);
}

/* ---- the head's loss ---- */

static td_tensor *own_labels(td_tensor *labels, int64_t ignored, void *user, td_site at)
{
    const td_sliced *m = user;
    const td_slices *s = m->slices;
    int64_t n = td_numel(labels), size = m->weight->shape[0] / s->here;
    int64_t *whole = read_words(labels, at), elsewhere = -TD_WORD_IGNORED;
    int64_t *own = malloc((size_t)(n * s->here + 1) * sizeof *own);
    TD_REQUIRE(own != NULL, at, "no memory for %lld labels", (long long)n);
    for (int64_t k = 0; k < n * s->here; k++) {
        int64_t label = whole[k % n];
        int64_t first = (s->slicing.rank * s->here + k / n) * size;
        bool here = label >= first && label < first + size;
        own[k] = label == ignored ? TD_WORD_IGNORED : here ? label - first : elsewhere;
    }
    td_tensor *t =
        td_step_new(TD_SHAPE(s->here, n), TD_I64, TD_ROW_MAJOR, td_device_of(labels), at);
    td_write(t, own, TD_I64);
    free(whole);
    free(own);
    return t;
}

/* Adds a slice's numbers of a row to those of the slices before it. */
static void add_row(double *sum, const double *slice)
{
    double top = slice[TOP] > sum[TOP] || isnan(slice[TOP]) ? slice[TOP] : sum[TOP];
    sum[SUM] = sum[SUM] * exp(sum[TOP] - top) + slice[SUM] * exp(slice[TOP] - top);
    sum[OWN] = isnan(sum[OWN]) ? slice[OWN] : sum[OWN];
    sum[TOP] = top;
}

/* All ranks add all slices, in their order. */
static void join_stats(td_tensor *stats, const td_tensor *mine, void *user, td_site at)
{
    const td_slices *s = ((const td_sliced *)user)->slices;
    const td_tensor *all = mine;
    if (s->slicing.ranks > 1) {
        td_tensor *room = td_step_new(TD_SHAPE(s->slicing.ranks, td_numel(mine)), TD_F64,
                                      TD_ROW_MAJOR, td_device_of(mine), at);
        td_slices_require(s, td_all_gather(s->group, room, mine, NULL), at);
        all = room;
    }
    int64_t n = td_numel(stats);
    double *sum = (double *)td_ptr(stats);
    memcpy(sum, td_ptr(all), (size_t)n * sizeof *sum);
    for (int k = 1; k < s->slicing.slices; k++) {
        const double *slice = (const double *)td_ptr(all) + k * n;
        for (int64_t i = 0; i < n; i += NUMBERS) {
            add_row(sum + i, slice + i);
        }
    }
}

static void sum_dx(td_tensor *dx, void *user, td_site at)
{
    td_slices_sum(((const td_sliced *)user)->slices, dx, at);
}

/* ---- the head's logits ---- */

/* dy of this rank's columns. */
static void take_columns(td_node *node, const td_tensor *dy)
{
    const td_slices *s = *(const td_slices *const *)td_params_of(node);
    td_shape shape = td_shape_of(dy);
    int64_t n = shape.dim[shape.ndim - 1] /= s->slicing.ranks;
    int64_t first = dy->offset + s->slicing.rank * n * dy->stride[dy->ndim - 1];
    td_input_grad_is(node, 0, td_step_view(dy, first, shape, dy->stride, td_node_site(node)));
}

static td_tensor *all_columns(const td_slices *s, td_tensor *y, td_site at)
{
    if (s->slicing.ranks == 1) {
        return y;
    }
    int64_t n = y->shape[y->ndim - 1], rows = td_numel(y) / n;
    td_shape shape = td_shape_of(y);
    shape.dim[shape.ndim - 1] *= s->slicing.ranks;
    td_tensor *whole = td_step_new(shape, y->dtype, TD_ROW_MAJOR, td_device_of(y), at);
    td_tensor *all = td_step_new(TD_SHAPE(s->slicing.ranks, rows, n), y->dtype, TD_ROW_MAJOR,
                                 td_device_of(y), at);
    td_slices_require(s, td_all_gather(s->group, all, y, NULL), at);
    td_tensor matrix = td_op_matrix(whole, at);
    for (int r = 0; r < s->slicing.ranks; r++) {
        td_tensor to = td_cut_view(&matrix, 1, (td_run){ r * n, n });
        td_tensor from = td_op_with_shape(all, TD_SHAPE(rows, n), all->stride + 1);
        from.offset += r * all->stride[0];
        td_kernels_of(td_device_of(y))->copy(&to, &from);
    }
    return TD_RECORD(at, .op = "all_columns", .backward = take_columns, .out = whole,
                     .inputs = { y }, .params = &s, .params_size = sizeof s);
}

td_tensor *td_slices_vocabulary(const td_around_rest *rest, td_tensor *x, void *user)
{
    const td_sliced *m = user;
    td_site at = rest->at;
    if (rest->m->type->takes_indices) {
        return embed(rest, x, m);
    }
    td_tensor *labels = rest->second;
    int64_t words = m->weight->shape[0] * m->slices->slicing.ranks;
    bool host = td_device_of(x).type == TD_DEVICE_CPU; /* which join_stats computes on */
    if (labels != NULL && host && td_op_chunks_entropy(td_device_of(x))) {
        td_linear_cross_entropy_options o = {
            .x = x, .w = m->weight, .labels = labels, .ignore_index = IGNORED_LABEL
        };
        td_word_slices slices = { m->slices->here, words,  own_labels,
                                  join_stats,      sum_dx, (void *)(uintptr_t)m };
        return td_op_sliced_cross_entropy(o, &slices, at);
    }
    td_tensor *logits = all_columns(m->slices, td_slices_column(rest, x, user), at);
    if (labels == NULL) {
        return logits;
    }
    td_cross_entropy_options o = { .logits = td_reshape_at(logits, TD_SHAPE(-1, words), at),
                                   .labels = td_reshape_at(labels, TD_SHAPE(-1), at),
                                   .ignore_index = IGNORED_LABEL };
    return td_cross_entropy_at(o, at);
}
