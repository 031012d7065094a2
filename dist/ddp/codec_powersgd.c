/* PowerSGD (Vogels, Karimireddy, Jaggi 2019): a gradient matrix M [n,m] travels as two factors of
 * rank r. With the error e of the last step, and Q [m,r] of the last step as a start:
 *
 *     M = gradient + e      P = M Q, averaged, its columns made orthonormal
 *     Q = M^T P, averaged   gradient = P Q^T      e = M - gradient
 *
 * Only if it saves bytes: (n+m) r 2 < n m. All other gradients of a bucket travel uncompressed, in
 * the same message as P. */
#include "dist/ddp.h"
#include "dist/ddp/powersgd.h"
#include "nn/params.h"
#include "nn/module.h"
#include "tensor/hooks.h"
#include "tensor/kernels.h"
#include "tensor/extend.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct matrix {
    int param;
    int64_t n, m;       /* n: the first dimension, m: all others */
    bool by_columns;    /* in memory, element (i,j) is at i + j n; otherwise at i m + j */
    int64_t p_at, q_at; /* offsets (elements) in the bucket's P and Q */
} matrix;

typedef struct td_powersgd_part td_powersgd_part;
struct td_powersgd_part {
    td_powersgd_part *next; /* the state's list */
    matrix *matrices;
    int count;
    int *plain, plain_count; /* parameters that travel uncompressed */
    int64_t plain_at;        /* their offset in p, after all matrices' P */
    td_tensor *p, *q;        /* 1-d; NULL: before the first compressed step */
};

static td_device device_of(const td_powersgd *s)
{
    return td_device_of(td_params_flat(s->params));
}

static void reset(td_powersgd_part *c)
{
    free(c->matrices);
    free(c->plain);
    td_free(c->p);
    td_free(c->q);
    *c = (td_powersgd_part){ .next = c->next };
}

void td_powersgd_forget_parts(td_powersgd *s)
{
    for (td_powersgd_part *c = s->parts; c != NULL; c = c->next) {
        reset(c);
    }
}

/* ---- which are compressed ---- */

static int64_t rank_of(const td_powersgd *s, const matrix *x)
{
    return td_powersgd_rank(s, x->n, x->m);
}

/* false: the parameter travels uncompressed. */
static bool see_as_matrix(const td_powersgd *s, int param, matrix *x)
{
    const td_tensor *t = td_params_get(s->params, param)->tensor;
    *x = (matrix){ .param = param };
    if (!td_powersgd_compresses(s, param, &x->n, &x->m)) {
        return false;
    }
    x->by_columns = t->stride[0] == 1;
    return true;
}

static void sort_params(td_powersgd *s, td_powersgd_part *c, const td_bucket *b, int64_t *p_size,
                        int64_t *q_size)
{
    *p_size = *q_size = 0;
    for (int k = 0; k < b->param_count; k++) {
        matrix x;
        if (!see_as_matrix(s, b->params[k], &x)) {
            c->plain[c->plain_count++] = b->params[k];
            continue;
        }
        x.p_at = *p_size;
        x.q_at = *q_size;
        *p_size += x.n * rank_of(s, &x);
        *q_size += x.m * rank_of(s, &x);
        c->matrices[c->count++] = x;
    }
    c->plain_at = *p_size;
    for (int i = 0; i < c->plain_count; i++) {
        *p_size += td_params_get(s->params, c->plain[i])->count;
    }
}

/* ---- views by value ---- */

static td_tensor part(const td_tensor *flat, int64_t at, int64_t rows, int64_t columns,
                      bool by_columns)
{
    td_tensor view = *flat;
    view.offset += at;
    view.ndim = 2;
    view.shape[0] = rows;
    view.shape[1] = columns;
    view.stride[0] = by_columns ? 1 : columns;
    view.stride[1] = by_columns ? rows : 1;
    return view;
}

/* The bucket's offset in memory, the same on all ranks. */
static int place_of(const td_powersgd *s, const td_bucket *b)
{
    return (int)(b->params - td_params_order(s->params));
}

static td_status setup(td_powersgd *s, td_powersgd_part *c, const td_bucket *b)
{
    c->matrices = calloc((size_t)b->param_count, sizeof *c->matrices);
    c->plain = calloc((size_t)b->param_count, sizeof *c->plain);
    if (c->matrices == NULL || c->plain == NULL) {
        return td_fail(TD_E_NOMEM, "td_ddp: no memory for PowerSGD");
    }
    int64_t p_size, q_size;
    sort_params(s, c, b, &p_size, &q_size);
    td_dtype dtype = td_params_flat(s->params)->dtype;
    c->p = td_zeros(TD_SHAPE(p_size), dtype, device_of(s));
    c->q = td_zeros(TD_SHAPE(q_size), dtype, device_of(s));
    if (c->p == NULL || c->q == NULL) {
        return TD_E_NOMEM;
    }
    td_generator g; /* the same random Q on all ranks */
    td_generator_seed(&g, (uint64_t)place_of(s, b));
    td_normal_(c->q, 0.0, 1.0, &g);
    for (int i = 0; i < c->count; i++) { /* kept factors, if the buckets have changed */
        const matrix *x = &c->matrices[i];
        td_tensor q = part(c->q, x->q_at, x->m, rank_of(s, x), false);
        td_powersgd_recall(s, x->param, &q);
    }
    return TD_OK;
}

void td_powersgd_remember_factors(td_powersgd *s, int *parts, int *sent)
{
    *parts = *sent = 0;
    for (const td_powersgd_part *c = s->parts; c != NULL; c = c->next, ++*parts) {
        for (int i = 0; i < c->count; i++) {
            const matrix *x = &c->matrices[i];
            td_tensor q = part(c->q, x->q_at, x->m, rank_of(s, x), false);
            td_powersgd_keep(s, x->param, &q);
        }
        *sent += c->q != NULL;
    }
}

static td_tensor turned(td_tensor view)
{
    int64_t shape = view.shape[0], stride = view.stride[0];
    view.shape[0] = view.shape[1];
    view.stride[0] = view.stride[1];
    view.shape[1] = shape;
    view.stride[1] = stride;
    return view;
}

/* A view of a flat tensor as the matrix. */
static td_tensor matrix_in(const td_powersgd *s, const td_tensor *flat, const matrix *x)
{
    int64_t begin = td_params_get(s->params, x->param)->begin;
    return part(flat, begin, x->n, x->m, x->by_columns);
}

/* ---- orthonormal columns, by Gram and Schmidt ---- */

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

/* Subtracts the earlier columns' components from column k; returns the remaining length. */
static double make_orthogonal(double *columns, int64_t n, int64_t k)
{
    double *column = columns + k * n;
    for (int64_t j = 0; j < k; j++) {
        double share = dot(columns + j * n, column, n);
        for (int64_t i = 0; i < n; i++) {
            column[i] -= share * columns[j * n + i];
        }
    }
    return sqrt(dot(column, column, n));
}

/* A zero column would stay zero forever, because P and Q are computed from each other. So it
 * becomes a random direction, the same on all ranks. */
static void make_orthonormal(double *columns, int64_t n, int64_t r)
{
    for (int64_t k = 0; k < r; k++) {
        double *column = columns + k * n, before = sqrt(dot(column, column, n));
        double length = make_orthogonal(columns, n, k);
        if (!(length > 1e-10 * before)) {
            td_generator g;
            td_generator_seed(&g, (uint64_t)k);
            for (int64_t i = 0; i < n; i++) {
                column[i] = td_random_normal(&g);
            }
            length = make_orthogonal(columns, n, k);
        }
        for (int64_t i = 0; i < n; i++) {
            column[i] /= length;
        }
    }
}

/* Always on the host, because P has few columns. */
static void orthonormal(td_tensor *p)
{
    int64_t n = p->shape[0], r = p->shape[1];
    double *columns = td_scratch(TD_CPU, (size_t)(n * r) * sizeof *columns);
    td_tensor columns_of_p = turned(*p);
    td_read(&columns_of_p, columns, TD_F64);
    make_orthonormal(columns, n, r);
    td_write(&columns_of_p, columns, TD_F64);
    td_scratch_free(TD_CPU, columns);
}

/* ---- the two exchanges ---- */

static void copy_plain(td_powersgd *s, const td_powersgd_part *c, bool out)
{
    int64_t at = c->plain_at;
    for (int i = 0; i < c->plain_count; i++) {
        const td_param *param = td_params_get(s->params, c->plain[i]);
        td_tensor grad = td_ddp_stretch(td_params_flat_grad(s->params), param->begin, param->count);
        td_tensor wire = td_ddp_stretch(c->p, at, param->count);
        td_copy_(out ? &wire : &grad, out ? &grad : &wire);
        at += param->count;
    }
}

static td_status send_p(td_powersgd *s, td_powersgd_part *c, const td_bucket *b)
{
    if (c->p == NULL) {
        TD_TRY(setup(s, c, b));
    }
    const td_kernels *kernels = td_kernels_of(device_of(s));
    for (int i = 0; i < c->count; i++) {
        const matrix *x = &c->matrices[i];
        td_tensor error = matrix_in(s, s->error, x);
        td_tensor grad = matrix_in(s, td_params_flat_grad(s->params), x);
        kernels->axpy(&error, 1.0, &grad); /* error is M from here on */
        td_tensor p = part(c->p, x->p_at, x->n, rank_of(s, x), false);
        td_tensor q = part(c->q, x->q_at, x->m, rank_of(s, x), false);
        kernels->matmul(&p, &error, &q, NULL, false, (td_math){ 0 });
    }
    copy_plain(s, c, true);
    return TD_OK;
}

static void send_q(td_powersgd *s, const td_powersgd_part *c)
{
    for (int i = 0; i < c->count; i++) {
        const matrix *x = &c->matrices[i];
        td_tensor error = turned(matrix_in(s, s->error, x));
        td_tensor p = part(c->p, x->p_at, x->n, rank_of(s, x), false);
        td_tensor q = part(c->q, x->q_at, x->m, rank_of(s, x), false);
        orthonormal(&p);
        td_kernels_of(device_of(s))->matmul(&q, &error, &p, NULL, false, (td_math){ 0 });
    }
}

static td_status encode(void *state, void *of_bucket, const td_bucket *b, int round, double scale,
                        td_wire *wire)
{
    (void)scale;
    td_powersgd *s = state;
    td_powersgd_part *c = of_bucket;
    td_not_recordable("PowerSGD counts its steps on the host");
    if (!td_powersgd_active(s)) {
        *wire = (td_wire){ round == 0 ? b->grad : NULL, false };
    } else if (round == 0) {
        TD_TRY(send_p(s, c, b));
        *wire = (td_wire){ c->p, false };
    } else if (round == 1) {
        send_q(s, c);
        *wire = (td_wire){ c->q, false };
    }
    return TD_OK;
}

static td_status decode(void *state, void *of_bucket, const td_bucket *b)
{
    (void)b;
    td_powersgd *s = state;
    const td_powersgd_part *c = of_bucket;
    if (!td_powersgd_active(s)) {
        return TD_OK;
    }
    const td_kernels *kernels = td_kernels_of(device_of(s));
    for (int i = 0; i < c->count; i++) {
        const matrix *x = &c->matrices[i];
        td_tensor grad = matrix_in(s, td_params_flat_grad(s->params), x);
        td_tensor error = matrix_in(s, s->error, x);
        td_tensor p = part(c->p, x->p_at, x->n, rank_of(s, x), false);
        td_tensor q = part(c->q, x->q_at, x->m, rank_of(s, x), false);
        if (x->by_columns) { /* kernels write rows: the transposed product */
            td_tensor rows = turned(grad), p_turned = turned(p);
            kernels->matmul(&rows, &q, &p_turned, NULL, false, (td_math){ 0 });
        } else {
            td_tensor q_turned = turned(q);
            kernels->matmul(&grad, &p, &q_turned, NULL, false, (td_math){ 0 });
        }
        kernels->axpy(&error, -1.0, &grad);
    }
    copy_plain(s, c, false);
    return TD_OK;
}

/* ---- buckets ---- */

static td_status attach(void *state, const td_bucket *b, void **of_bucket)
{
    (void)b;
    td_powersgd *s = state;
    td_powersgd_part *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return td_fail(TD_E_NOMEM, "td_ddp: no memory for PowerSGD");
    }
    c->next = s->parts;
    s->parts = *of_bucket = c;
    s->remembered = false;
    return TD_OK;
}

static void detach(void *state, void *of_bucket)
{
    td_powersgd *s = state;
    td_powersgd_part **link = &s->parts, *c = of_bucket;
    if (!s->remembered) {
        td_powersgd_remember(s);
    }
    while (*link != c) {
        link = &(*link)->next;
    }
    *link = c->next;
    reset(c);
    free(c);
}

const td_bucket_codec td_codec_powersgd = {
    .name = "powersgd",
    .open = td_powersgd_open,
    .close = td_powersgd_close,
    .attach = attach,
    .detach = detach,
    .encode = encode,
    .decode = decode,
    .stepped = td_powersgd_stepped,
    .list = td_powersgd_list,
    .own = td_powersgd_own,
};
