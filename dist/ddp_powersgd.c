/* PowerSGD (Vogels, Karimireddy, Jaggi 2019): a gradient matrix M [n,m] travels as two factors of
 * rank r. With the error e of the last step, and Q [m,r] of the last step as a start:
 *
 *     M = gradient + e      P = M Q, averaged, its columns made orthonormal
 *     Q = M^T P, averaged   gradient = P Q^T      e = M - gradient
 *
 * Only where it saves bytes: (n+m) r 2 < n m. All else of a bucket travels as it is, beside P. */
#include "dist/ddp.h"
#include "nn/params.h"
#include "tensor/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct matrix {
    int param;
    int64_t n, m;       /* n: the first dimension, m: all others */
    bool by_columns;    /* in memory, element (i,j) is at i + j n; otherwise at i m + j */
    int64_t p_at, q_at; /* elements, in the memory of all P and of all Q */
} matrix;

struct td_powersgd {
    matrix *matrices;
    int count;
    int *plain, plain_count; /* parameters that travel as they are */
    int64_t plain_at;        /* behind all P */
    td_tensor *p, *q;        /* 1-d */
};

static td_device device_of(const td_ddp_state *s)
{
    return td_device_of(td_params_flat(s->params));
}

void td_powersgd_free(td_ddp_bucket *b)
{
    struct td_powersgd *c = b->powersgd;
    if (c != NULL) {
        free(c->matrices);
        free(c->plain);
        td_free(c->p);
        td_free(c->q);
        free(c);
        b->powersgd = NULL;
    }
}

/* ---- which are compressed ---- */

static int64_t rank_of(const td_ddp_state *s, const matrix *x)
{
    return td_powersgd_rank(s, x->n, x->m);
}

/* false: travels as it is. */
static bool see_as_matrix(const td_ddp_state *s, int param, matrix *x)
{
    const td_tensor *t = td_params_get(s->params, param)->tensor;
    *x = (matrix){ .param = param };
    if (!td_powersgd_compresses(s, param, &x->n, &x->m)) {
        return false;
    }
    x->by_columns = t->stride[0] == 1;
    return true;
}

static void sort_params(td_ddp_state *s, const td_ddp_bucket *b, int64_t *p_size, int64_t *q_size)
{
    struct td_powersgd *c = b->powersgd;
    const int *order = td_params_order(s->params);
    *p_size = *q_size = 0;
    for (int k = b->first; k < b->first + b->params; k++) {
        matrix x;
        if (!see_as_matrix(s, order[k], &x)) {
            c->plain[c->plain_count++] = order[k];
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

static td_status setup(td_ddp_state *s, td_ddp_bucket *b)
{
    struct td_powersgd *c = b->powersgd = calloc(1, sizeof *c);
    if (c != NULL) {
        c->matrices = calloc((size_t)b->params, sizeof *c->matrices);
        c->plain = calloc((size_t)b->params, sizeof *c->plain);
    }
    if (c == NULL || c->matrices == NULL || c->plain == NULL) {
        return td_fail(TD_E_NOMEM, "td_ddp: no memory for PowerSGD");
    }
    int64_t p_size, q_size;
    sort_params(s, b, &p_size, &q_size);
    td_dtype dtype = td_params_flat(s->params)->dtype;
    c->p = td_zeros(TD_SHAPE(p_size), dtype, device_of(s));
    c->q = td_zeros(TD_SHAPE(q_size), dtype, device_of(s));
    if (c->p == NULL || c->q == NULL) {
        return TD_E_NOMEM;
    }
    td_generator g; /* the same start on all ranks */
    td_generator_seed(&g, (uint64_t)b->first);
    td_normal_(c->q, 0.0, 1.0, &g);
    for (int i = 0; i < c->count; i++) { /* or where they were, if buckets have changed since */
        const matrix *x = &c->matrices[i];
        td_tensor q = part(c->q, x->q_at, x->m, rank_of(s, x), false);
        td_powersgd_recall(s, x->param, &q);
    }
    return TD_OK;
}

td_status td_powersgd_remember_factors(td_ddp_state *s, td_ddp_bucket *b)
{
    const struct td_powersgd *c = b->powersgd;
    for (int i = 0; c != NULL && i < c->count; i++) {
        const matrix *x = &c->matrices[i];
        td_tensor q = part(c->q, x->q_at, x->m, rank_of(s, x), false);
        td_powersgd_keep(s, x->param, &q);
    }
    return c != NULL ? TD_OK : TD_E_NOTFOUND;
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

/* One of the flat tensors, seen as the matrix. */
static td_tensor matrix_in(const td_ddp_state *s, const td_tensor *flat, const matrix *x)
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

/* Takes the earlier columns' parts out of column k; returns what length is left. */
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

/* A column of nothing would stay nothing for ever (P and Q come from each other): it becomes any
 * direction, the same on all ranks. */
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

/* On the host, wherever P lies: it is thin. */
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

static void copy_plain(td_ddp_state *s, td_ddp_bucket *b, bool out)
{
    struct td_powersgd *c = b->powersgd;
    int64_t at = c->plain_at;
    for (int i = 0; i < c->plain_count; i++) {
        const td_param *param = td_params_get(s->params, c->plain[i]);
        td_tensor grad = td_ddp_stretch(td_params_flat_grad(s->params), param->begin, param->count);
        td_tensor wire = td_ddp_stretch(c->p, at, param->count);
        td_copy_(out ? &wire : &grad, out ? &grad : &wire);
        at += param->count;
    }
}

td_status td_powersgd_launch(td_ddp_state *s, td_ddp_bucket *b)
{
    if (b->powersgd == NULL) {
        TD_TRY(setup(s, b));
    }
    struct td_powersgd *c = b->powersgd;
    const td_kernels *kernels = td_kernels_of(device_of(s));
    for (int i = 0; i < c->count; i++) {
        const matrix *x = &c->matrices[i];
        td_tensor error = matrix_in(s, s->error, x);
        td_tensor grad = matrix_in(s, td_params_flat_grad(s->params), x);
        kernels->axpy(&error, 1.0, &grad); /* M from here on */
        td_tensor p = part(c->p, x->p_at, x->n, rank_of(s, x), false);
        td_tensor q = part(c->q, x->q_at, x->m, rank_of(s, x), false);
        kernels->matmul(&p, &error, &q, NULL, false, (td_math){ 0 });
    }
    copy_plain(s, b, true);
    return td_ddp_average(s, c->p, &b->work);
}

td_status td_powersgd_second(td_ddp_state *s, td_ddp_bucket *b)
{
    struct td_powersgd *c = b->powersgd;
    for (int i = 0; i < c->count; i++) {
        const matrix *x = &c->matrices[i];
        td_tensor error = turned(matrix_in(s, s->error, x));
        td_tensor p = part(c->p, x->p_at, x->n, rank_of(s, x), false);
        td_tensor q = part(c->q, x->q_at, x->m, rank_of(s, x), false);
        orthonormal(&p);
        td_kernels_of(device_of(s))->matmul(&q, &error, &p, NULL, false, (td_math){ 0 });
    }
    return td_ddp_average(s, c->q, &b->work);
}

td_status td_powersgd_unpack(td_ddp_state *s, td_ddp_bucket *b)
{
    struct td_powersgd *c = b->powersgd;
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
    copy_plain(s, b, false);
    return TD_OK;
}
