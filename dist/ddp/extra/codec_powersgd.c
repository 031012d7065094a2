/* PowerSGD (Vogels, Karimireddy, Jaggi 2019): a gradient matrix M [n,m] travels as two factors of
 * rank r. With the error e of the last step, and Q [m,r] of the last step as a start:
 *
 *     M = gradient + e      P = M Q, averaged, its columns made orthonormal
 *     Q = M^T P, averaged   gradient = P Q^T      e = M - gradient
 *
 * Only if it saves bytes: (n+m) r 2 < n m. All other gradients of a bucket travel uncompressed, in
 * the same message as P. In a checkpoint:
 *
 *     extra.powersgd.steps                  i64 [1]
 *     extra.powersgd.factor.<path>          Q, the same on all ranks
 *     extra.powersgd.error.1/4.<path>       as the parameter, of rank 1 of 4
 */
#include "dist/comm/collectives.h"
#include "dist/ddp/extra/parts.h"
#include "nn/shared/shared.h"
#include "tensor/extend.h"
#include "tensor/hooks.h"
#include "tensor/kernels/kernels.h"
#include "tensor/part.h"

#include <math.h>
#include <stdlib.h>

#define STATE "extra.powersgd."
#define FACTOR STATE "factor."
#define ERROR STATE "error."

/* A parameter as a matrix. */
typedef struct matrix {
    td_tensor *q;    /* [m,r]; NULL: the parameter travels uncompressed */
    td_tensor *view; /* of its error, for the last list */
    int64_t n, m, r; /* n: the first dimension, m: all others */
    bool by_columns; /* in memory, element (i,j) is at i + j n; otherwise at i m + j */
} matrix;

typedef struct powersgd {
    td_params *params;
    int count; /* parameters */
    int64_t start;
    matrix *matrices; /* by parameter */
    td_tensor *error; /* the part of the gradients that was not sent yet, flat */
    td_tensor *steps; /* i64 [1], on the CPU */
} powersgd;

/* What travels of a bucket, 1-d; NULL: before the first compressed step. */
typedef struct message {
    td_tensor *p; /* each matrix's P [n,r], or the uncompressed gradient */
    td_tensor *q; /* each matrix's Q [m,r] */
} message;

static td_device powersgd_device_of(const powersgd *s)
{
    return td_device_of(td_params_flat(s->params));
}

/* ---- the matrices of a bucket ---- */

/* One after the other: a parameter, and its offsets (elements) in the message. */
typedef struct walk {
    int next;
    const td_param *param;
    matrix *x;
    int64_t p_at, q_at, p_end, q_end;
} walk;

static bool powersgd_step(const powersgd *s, const td_bucket *b, walk *w)
{
    if (w->next == b->param_count) {
        return false;
    }
    int i = b->params[w->next++];
    w->param = td_params_get(s->params, i);
    w->x = &s->matrices[i];
    w->p_at = w->p_end;
    w->q_at = w->q_end;
    w->p_end += w->x->q != NULL ? w->x->n * w->x->r : w->param->count;
    w->q_end += w->x->m * w->x->r;
    return true;
}

/* Views by value. */
static td_tensor view_of(const td_tensor *flat, int64_t at, int64_t rows, int64_t columns,
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

static td_tensor turned(td_tensor view)
{
    int64_t shape = view.shape[0], stride = view.stride[0];
    view.shape[0] = view.shape[1];
    view.stride[0] = view.stride[1];
    view.shape[1] = shape;
    view.stride[1] = stride;
    return view;
}

static td_tensor p_of(const message *c, const walk *w)
{
    return view_of(c->p, w->p_at, w->x->n, w->x->r, false);
}

static td_tensor q_of(const message *c, const walk *w)
{
    return view_of(c->q, w->q_at, w->x->m, w->x->r, false);
}

/* The matrix in a flat tensor. */
static td_tensor matrix_in(const td_tensor *flat, const walk *w)
{
    return view_of(flat, w->param->begin, w->x->n, w->x->m, w->x->by_columns);
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

static void copy_plain(const powersgd *s, const message *c, const walk *w, bool out)
{
    int64_t count = w->param->count;
    td_tensor grad = td_ddp_stretch(td_params_flat_grad(s->params), w->param->begin, count);
    td_tensor wire = td_ddp_stretch(c->p, w->p_at, count);
    td_copy_(out ? &wire : &grad, out ? &grad : &wire);
}

static td_status send_p(powersgd *s, message *c, const td_bucket *b)
{
    if (c->q == NULL) {
        walk w = { 0 };
        while (powersgd_step(s, b, &w)) {
        }
        td_dtype dtype = td_params_flat(s->params)->dtype;
        c->p = td_zeros(TD_SHAPE(w.p_end), dtype, powersgd_device_of(s));
        c->q = td_zeros(TD_SHAPE(w.q_end), dtype, powersgd_device_of(s));
        TD_TRY(c->p != NULL && c->q != NULL ? TD_OK : TD_E_NOMEM);
    }
    const td_kernels *kernels = td_kernels_of(powersgd_device_of(s));
    for (walk w = { 0 }; powersgd_step(s, b, &w);) {
        if (w.x->q == NULL) {
            copy_plain(s, c, &w, true);
            continue;
        }
        td_tensor error = matrix_in(s->error, &w), p = p_of(c, &w);
        td_tensor grad = matrix_in(td_params_flat_grad(s->params), &w);
        kernels->axpy(&error, 1.0, &grad); /* error is M from here on */
        kernels->matmul(&p, &error, w.x->q, NULL, false, (td_math){ 0 });
    }
    return TD_OK;
}

static void send_q(const powersgd *s, const message *c, const td_bucket *b)
{
    for (walk w = { 0 }; powersgd_step(s, b, &w);) {
        if (w.x->q != NULL) {
            td_tensor error = turned(matrix_in(s->error, &w)), p = p_of(c, &w), q = q_of(c, &w);
            orthonormal(&p);
            td_kernels_of(powersgd_device_of(s))
                ->matmul(&q, &error, &p, NULL, false, (td_math){ 0 });
        }
    }
}

static bool is_active(const powersgd *s) /* plain all-reduces come first */
{
    return *(const int64_t *)td_data(s->steps) >= s->start;
}

static td_status powersgd_encode(void *state, void *of_bucket, const td_bucket *b, int round,
                                 double scale, td_wire *wire)
{
    (void)scale;
    powersgd *s = state;
    message *c = of_bucket;
    td_not_recordable("PowerSGD counts its steps on the host");
    if (!is_active(s)) {
        *wire = (td_wire){ round == 0 ? b->grad : NULL, false };
    } else if (round == 0) {
        TD_TRY(send_p(s, c, b));
        *wire = (td_wire){ c->p, false };
    } else if (round == 1) {
        send_q(s, c, b);
        *wire = (td_wire){ c->q, false };
    }
    return TD_OK;
}

static td_status powersgd_decode(void *state, void *of_bucket, const td_bucket *b)
{
    powersgd *s = state;
    const message *c = of_bucket;
    if (!is_active(s)) {
        return TD_OK;
    }
    const td_kernels *kernels = td_kernels_of(powersgd_device_of(s));
    for (walk w = { 0 }; powersgd_step(s, b, &w);) {
        if (w.x->q == NULL) {
            copy_plain(s, c, &w, false);
            continue;
        }
        td_tensor grad = matrix_in(td_params_flat_grad(s->params), &w);
        td_tensor error = matrix_in(s->error, &w), p = p_of(c, &w), q = q_of(c, &w);
        if (w.x->by_columns) { /* kernels write rows: the transposed product */
            td_tensor rows = turned(grad), p_turned = turned(p);
            kernels->matmul(&rows, &q, &p_turned, NULL, false, (td_math){ 0 });
        } else {
            td_tensor q_turned = turned(q);
            kernels->matmul(&grad, &p, &q_turned, NULL, false, (td_math){ 0 });
        }
        kernels->axpy(&error, -1.0, &grad);
        td_copy_(w.x->q, &q);
    }
    return TD_OK;
}

static void stepped(void *state)
{
    ++*(int64_t *)td_data_rw(((powersgd *)state)->steps);
}

static td_status powersgd_attach(void *state, const td_bucket *b, void **of_bucket)
{
    (void)state, (void)b;
    *of_bucket = calloc(1, sizeof(message));
    return *of_bucket != NULL ? TD_OK : td_fail(TD_E_NOMEM, "td_ddp: no memory for PowerSGD");
}

static void powersgd_detach(void *state, void *of_bucket)
{
    (void)state;
    message *c = of_bucket;
    td_free(c->p);
    td_free(c->q);
    free(c);
}

/* ---- in checkpoints ---- */

static void powersgd_drop_views(powersgd *s)
{
    for (int i = 0; s->matrices != NULL && i < s->count; i++) {
        td_free(s->matrices[i].view);
        s->matrices[i].view = NULL;
    }
}

static bool powersgd_fits(const powersgd *s, td_part_list *list)
{
    bool all = list->has(list, STATE, "steps", s->steps);
    for (int i = 0; i < s->count; i++) {
        const td_tensor *q = s->matrices[i].q;
        all = all && (q == NULL || list->has(list, FACTOR, td_params_get(s->params, i)->name, q));
    }
    return all;
}

/* From a file of a run without PowerSGD, or with factors of another rank, it begins again. */
static void powersgd_list(void *state, td_part_list *list)
{
    powersgd *s = state;
    powersgd_drop_views(s);
    if (list->loading && !powersgd_fits(s, list)) {
        return;
    }
    list->tensor(list, STATE, "steps", s->steps);
    for (int i = 0; i < s->count; i++) {
        const char *path = td_params_get(s->params, i)->name;
        matrix *x = &s->matrices[i];
        if (x->q != NULL) {
            x->view = td_params_view(s->params, s->error, i);
            list->tensor(list, FACTOR, path, x->q);
            (void)list->own(list, ERROR, path, x->view);
        }
    }
}

/* ---- beginning and end ---- */

/* Whether a parameter travels as factors, of rank at most `rank`. */
static bool is_compressed(const td_tensor *t, int64_t rank, matrix *x)
{
    if (t->ndim < 2 || td_numel(t) == 0) {
        return false;
    }
    x->n = t->shape[0];
    x->m = td_numel(t) / x->n;
    x->r = rank < x->n ? rank : x->n;
    x->r = x->r < x->m ? x->r : x->m;
    x->by_columns = t->stride[0] == 1;
    bool dense = x->by_columns || t->stride[0] == x->m;
    return dense && (x->n + x->m) * x->r * 2 < x->n * x->m;
}

/* The first Q is random, and the same on all ranks. */
static td_status make_matrices(powersgd *s, int64_t rank)
{
    const td_tensor *flat = td_params_flat(s->params);
    s->matrices = calloc((size_t)s->count, sizeof *s->matrices);
    TD_CHECK(s->matrices != NULL, TD_E_NOMEM, "td_ddp: no memory for PowerSGD");
    for (int i = 0; i < s->count; i++) {
        matrix x = { 0 };
        if (is_compressed(td_params_get(s->params, i)->tensor, rank, &x)) {
            td_generator g;
            td_generator_seed(&g, (uint64_t)i);
            x.q = td_zeros(TD_SHAPE(x.m, x.r), flat->dtype, td_device_of(flat));
            TD_TRY(x.q != NULL ? TD_OK : TD_E_NOMEM);
            td_normal_(x.q, 0.0, 1.0, &g);
            s->matrices[i] = x;
        }
    }
    return TD_OK;
}

static td_status open_powersgd(td_group *group, td_params *params, const td_ddp_options *options,
                               void **state)
{
    td_powersgd_options o = { .rank = 0 };
    if (options->codec != &td_codec_powersgd) {
        o = *(const td_powersgd_options *)(const void *)options->codec; /* by td_powersgd */
    }
    powersgd *s = calloc(1, sizeof *s);
    TD_CHECK(s != NULL, TD_E_NOMEM, "td_ddp: no memory for PowerSGD");
    *state = s;
    (void)group;
    s->params = params;
    s->count = td_params_count(params);
    s->start = o.start > 0 ? o.start : 1000;
    s->error = td_params_new_flat(params);
    s->steps = td_zeros(TD_SHAPE(1), TD_I64, TD_CPU);
    TD_TRY(s->error != NULL && s->steps != NULL ? TD_OK : TD_E_NOMEM);
    return make_matrices(s, o.rank > 0 ? o.rank : 1);
}

static void close_powersgd(void *state)
{
    powersgd *s = state;
    if (s->error != NULL) {
        td_params_drop_state(s->params, s->error);
    }
    powersgd_drop_views(s);
    for (int i = 0; s->matrices != NULL && i < s->count; i++) {
        td_free(s->matrices[i].q);
    }
    td_free(s->steps);
    free(s->matrices);
    free(s);
}

static const td_tensor *own(void *state)
{
    return ((const powersgd *)state)->error;
}

const td_bucket_codec td_codec_powersgd = {
    .name = "powersgd",
    .open = open_powersgd,
    .close = close_powersgd,
    .attach = powersgd_attach,
    .detach = powersgd_detach,
    .encode = powersgd_encode,
    .decode = powersgd_decode,
    .stepped = stepped,
    .list = powersgd_list,
    .own = own,
};
