/* How many bytes a kernel reads and writes, from its name and its arguments: each operand once, as
 * if the caches kept what neighbours share. Numbers per channel, label or loss are not counted. */
#include "tests/count/count.h"

#include "tensor/cuda/launch_norm.h"
#include "tensor/cuda/launch_reduce.h"
#include "tensor/cuda/launch_rows.h"
#include "tensor/cuda/launch_transformer.h"
#include "tensor/dtype.h"
#include "tensor/kernels/kernel_types.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As libstdc++ has it (cxxabi.h is C++). */
char *__cxa_demangle(const char *symbol, char *buffer, size_t *size, int *status);

typedef struct launch {
    const char *name; /* "convert<float, __nv_bfloat16, 4>" */
    void **arguments;
    int64_t scalars; /* set by kernels that may move single elements */
} launch;

/* ---- what a name tells ---- */

/* The size of the type that template argument i is; the arguments before it have no spaces. */
static int type_size(const launch *l, int i)
{
    static const struct {
        const char *type;
        int size;
    } types[] = { { "unsigned char", 1 }, { "unsigned short", 2 }, { "__nv_bfloat16", 2 },
                  { "__half", 2 },        { "unsigned int", 4 },   { "float", 4 },
                  { "unsigned long", 8 }, { "double", 8 } };
    const char *at = strchr(l->name, '<');
    for (; at != NULL && i > 0; i--) {
        at = strchr(at + 1, ' ');
    }
    for (size_t t = 0; at != NULL && t < sizeof types / sizeof *types; t++) {
        if (strncmp(at + 1, types[t].type, strlen(types[t].type)) == 0) {
            return types[t].size;
        }
    }
    fprintf(stderr, "tests/count: no size for a type of %s\n", l->name);
    abort();
}

/* The last template argument: how many elements a thread takes at a time. */
static int lanes_of(const launch *l)
{
    return atoi(strrchr(l->name, ' ') + 1);
}

/* ---- walks ---- */

/* Elements of an operand, of which those with stride 0 are one. */
static int64_t walked(const td_cuda_walk *walk, int operand, int lanes)
{
    int64_t count = walk->stride[operand][walk->ndim - 1] != 0 ? lanes : 1;
    for (int d = 0; d < walk->ndim; d++) {
        count *= walk->stride[operand][d] != 0 ? walk->shape[d] : 1;
    }
    return count;
}

/* fill(y, value, walk, tail) */
static double fill(launch *l)
{
    const td_cuda_walk *walk = l->arguments[2];
    int lanes = lanes_of(l);
    l->scalars = lanes == 1 ? walk->count : 0;
    return (double)(walked(walk, 0, lanes) * type_size(l, 0));
}

/* move(y, x, walk, tail), of one type; convert, of two */
static double copied(launch *l, int x_type)
{
    const td_cuda_walk *walk = l->arguments[2];
    int lanes = lanes_of(l);
    l->scalars = lanes == 1 ? walk->count : 0;
    return (double)(walked(walk, 0, lanes) * type_size(l, 0) +
                    walked(walk, 1, lanes) * type_size(l, x_type));
}
static double move(launch *l)
{
    return copied(l, 0);
}
static double convert(launch *l)
{
    return copied(l, 1);
}

/* elements(f, walk, tail, y, inputs) */
static double elements(launch *l)
{
    static const struct {
        const char *function;
        int inputs;
        size_t reads_y; /* where f says whether y is read, in f32 */
    } functions[] = { { "unary_value<float>", 1, 12 },
                      { "unary_slope<float>", 3, 12 },
                      { "binary_value<float>", 2, 4 },
                      { "binary_gradient<float>", 3, 4 },
                      { "scaled_sum<float>", 1, 4 } };
    const td_cuda_walk *walk = l->arguments[1];
    const void *const *inputs = l->arguments[4], *y = *(void **)l->arguments[3];
    int lanes = lanes_of(l), size = type_size(l, 0);
    l->scalars = lanes == 1 ? walk->count : 0;
    for (size_t f = 0; f < sizeof functions / sizeof *functions; f++) {
        if (strstr(l->name, functions[f].function) == NULL) {
            continue;
        }
        bool read = ((const bool *)l->arguments[0])[functions[f].reads_y];
        int64_t count = walked(walk, 0, lanes) * (1 + read);
        for (int k = 0; k < functions[f].inputs; k++) {
            bool again = read && inputs[k] == y; /* the same memory, twice */
            for (int before = 0; before < k; before++) {
                again = again || inputs[k] == inputs[before];
            }
            count += again ? 0 : walked(walk, k + 1, lanes);
        }
        return (double)(count * size);
    }
    return -1;
}

/* ---- matrices of pixels and channels ---- */

static double matrix(const td_cuda_matrix *m, int times)
{
    return (double)(m->rows * m->channels * (int64_t)td_dtype_size(m->dtype) * times);
}

/* What the chunks leave for the last block: two doubles a channel, written and read. */
static double partial(const td_cuda_matrix *m)
{
    return (double)(m->chunks * m->channels * 16 * 2);
}

/* channel_sums(m, sums, x, moments) */
static double channel_sums(launch *l)
{
    return matrix(l->arguments[0], 1) + partial(l->arguments[0]);
}

/* norm_prepare(m, norm, constants) */
static double norm_prepare(launch *l)
{
    (void)l;
    return 0;
}

/* normalize(m, norm, y, x, add, relu) */
static double normalize(launch *l)
{
    return matrix(l->arguments[0], *(void **)l->arguments[4] != NULL ? 3 : 2);
}

/* bytes of `planes` large and small images */
static double pooled(const td_cuda_pool *p, int large, int small, bool index)
{
    int64_t size = (int64_t)td_dtype_size(p->dtype), pixels = p->n * p->c;
    return (double)(pixels * (p->h * p->w * size * large +
                              p->oh * p->ow * (size * small + (index ? 1 : 0))));
}

/* normalize_pool(m, y, index, x, constants, pool) */
static double normalize_pool(launch *l)
{
    return pooled(l->arguments[5], 1, 1, *(void **)l->arguments[2] != NULL);
}

/* norm_grad_sums(m, grad) */
static double norm_grad_sums(launch *l)
{
    const td_cuda_norm_grad *grad = l->arguments[1];
    return matrix(l->arguments[0], 2 + (grad->mask == TD_CUDA_MASK_Y) + grad->early_dadd) +
           partial(l->arguments[0]);
}

/* norm_grad_apply(m, grad) */
static double norm_grad_apply(launch *l)
{
    const td_cuda_norm_grad *grad = l->arguments[1];
    bool reads_x = grad->mask == TD_CUDA_MASK_X || (grad->dx != NULL && grad->training);
    return matrix(l->arguments[0], 1 + reads_x + (grad->mask == TD_CUDA_MASK_Y) +
                                       (grad->dx != NULL) + (grad->dadd != NULL) +
                                       grad->accumulate_dx + grad->accumulate_dadd);
}

/* ---- pools, sums, optimizers ---- */

/* max_pool(pool, y, index, x) */
static double max_pool(launch *l)
{
    return pooled(l->arguments[0], 1, 1, *(void **)l->arguments[2] != NULL);
}

/* avg_pool(pool, y, x) */
static double avg_pool(launch *l)
{
    return pooled(l->arguments[0], 1, 1, false);
}

/* pool_grad(pool, dx, dy, index, accumulate) */
static double pool_grad(launch *l)
{
    return pooled(l->arguments[0], 1 + *(bool *)l->arguments[4], 1,
                  *(void **)l->arguments[3] != NULL);
}

/* reduce(job): with what its segments leave, and the last block reads */
static double reduce(launch *l)
{
    const td_cuda_reduce_job *job = l->arguments[0];
    int64_t parts = job->segments > 1 ? 16 * job->segments * job->kept.count : 0;
    return (double)(walked(&job->kept, 1, 1) * walked(&job->reduced, 0, 1) *
                        (int64_t)td_dtype_size(job->x_dtype) +
                    parts);
}

/* optimize(n, { param, grad, state..., half }, ...) */
static double optimize(launch *l)
{
    int64_t n = *(int64_t *)l->arguments[0], passes = 3;
    void *const *flat = l->arguments[1];
    for (int k = 0; k < TD_UPDATE_STATES; k++) {
        passes += flat[2 + k] != NULL ? 2 : 0;
    }
    int64_t half = flat[2 + TD_UPDATE_STATES] != NULL ? 2 : 0;
    return (double)(n * (passes * type_size(l, 0) + half));
}

/* ---- what language models are made of ---- */

/* Rows of f32, of which y and dy may have 16 bits: layer_norm(rows, d, place, y, ...) */
static int64_t result_size(const launch *l)
{
    return strstr(l->name, "__nv_bfloat16") != NULL ? 2 : 4;
}
static double layer_norm(launch *l)
{
    int64_t n = *(int64_t *)l->arguments[0] * *(int64_t *)l->arguments[1];
    return (double)(n * (4 + result_size(l)));
}

/* layer_norm_grad(rows, d, place, grad): dx reads dy and x, and so do dweight and dbias. */
static double layer_norm_grad(launch *l)
{
    const td_cuda_layer_grad *grad = l->arguments[3];
    int64_t n = *(int64_t *)l->arguments[0] * *(int64_t *)l->arguments[1],
            each = 4 + result_size(l);
    int64_t all = grad->sum_blocks > 0 ? grad->m.rows * grad->m.channels : 0;
    return (double)(n * (each + 4 + 4 * grad->accumulate_dx) + all * each) +
           (all > 0 ? partial(&grad->m) : 0);
}

/* narrow(m, sums, y, x, to, accumulate) */
static double narrow(launch *l)
{
    const td_cuda_matrix *m = l->arguments[0];
    const td_cuda_channel *to = l->arguments[4];
    return matrix(m, 1) + (double)(m->rows * m->channels * 4) + (to->at != NULL ? partial(m) : 0);
}

/* So many tensors of queries, and of keys, of an attention; statistics of rows are not counted. */
static double heads(const launch *l, int64_t queries, int64_t keys)
{
    const td_cuda_attention_job *a = l->arguments[0];
    int64_t all = queries * a->heads * a->queries + keys * a->kv_heads * a->keys;
    return (double)(a->batch * a->width * all * type_size(l, 0));
}
/* attention(job): q, y; k, v */
static double attention(launch *l)
{
    return heads(l, 2, 2);
}
/* attention_grad_q(job, grads): q, y, dy, dq; k, v */
static double attention_grad_q(launch *l)
{
    const td_cuda_attention_grads *g = l->arguments[1];
    return heads(l, 4 + g->accumulate[0], 2);
}
/* attention_grad_kv(job, grads): q, dy; k, v, dk, dv */
static double attention_grad_kv(launch *l)
{
    const td_cuda_attention_grads *g = l->arguments[1];
    return heads(l, 2, 4 + g->accumulate[1] + g->accumulate[2]);
}

/* entropy_chunk(rows, words, chunk, logits, ...) */
static double entropy_chunk(launch *l)
{
    int64_t n = *(int64_t *)l->arguments[0] * *(int64_t *)l->arguments[1];
    return (double)(n * type_size(l, 0));
}
static double entropy_chunk_grad(launch *l)
{
    return 2 * entropy_chunk(l);
}

/* embedding(y, table, index, count, rows, d) */
static double embedding(launch *l)
{
    int64_t n = *(int64_t *)l->arguments[3] * *(int64_t *)l->arguments[5];
    return (double)(2 * n * type_size(l, 0));
}
/* embedding_grad(table, partial, dy, sorted, count, rows, d): what it adds up is read once; of the
 * table's rows the test's tokens have one. */
static double embedding_grad(launch *l)
{
    int64_t n = *(int64_t *)l->arguments[4] * *(int64_t *)l->arguments[6];
    return (double)(n * type_size(l, 0));
}

/* A few numbers for each image of a batch. */
static double few(launch *l)
{
    (void)l;
    return 0;
}

/* ---- the table ---- */

static const struct {
    const char *kernel;
    double (*bytes)(launch *l); /* negative: not known */
} kernels[] = {
    { "fill", fill },
    { "move", move },
    { "convert", convert },
    { "elements", elements },
    { "channel_sums", channel_sums },
    { "norm_prepare", norm_prepare },
    { "normalize", normalize },
    { "normalize_pool", normalize_pool },
    { "norm_grad_sums", norm_grad_sums },
    { "norm_grad_apply", norm_grad_apply },
    { "max_pool", max_pool },
    { "avg_pool", avg_pool },
    { "pool_grad", pool_grad },
    { "reduce", reduce },
    { "optimize", optimize },
    { "find_outside", few },
    { "keep_outside", few },
    { "cross_entropy", few },
    { "join_losses", few },
    { "cross_entropy_grad", few },
    { "layer_norm", layer_norm },
    { "layer_norm_grad", layer_norm_grad },
    { "narrow", narrow },
    { "attention", attention },
    { "attention_grad_q", attention_grad_q },
    { "attention_grad_kv", attention_grad_kv },
    { "entropy_chunk", entropy_chunk },
    { "entropy_end", few },
    { "entropy_chunk_grad", entropy_chunk_grad },
    { "embedding", embedding },
    { "embedding_grad", embedding_grad },
    { "sort_indices", few },
    { "join_pieces", few },
};

void count_kernel(const char *symbol, void **arguments)
{
    int status;
    char *text = __cxa_demangle(symbol, NULL, NULL, &status);
    const char *full = text != NULL ? text : symbol;
    char name[128]; /* without "void " and the arguments' types */
    full += strncmp(full, "void ", 5) == 0 ? 5 : 0;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(full, "("), full);
    free(text);
    launch l = { .name = name, .arguments = arguments };
    size_t length = strcspn(name, "<");
    double bytes = -1;
    for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++) {
        if (strlen(kernels[k].kernel) == length && strncmp(name, kernels[k].kernel, length) == 0) {
            bytes = kernels[k].bytes(&l);
        }
    }
    count_launch(name, bytes, l.scalars);
}
