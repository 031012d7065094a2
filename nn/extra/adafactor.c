/* Adafactor (Shazeer, Stern 2018), in PyTorch's form. Of a matrix's average of squares it keeps the
 * sums over rows and over columns alone, R and C, of which it makes v_ij = R_i C_j / mean(R).
 *
 * At step t, for one parameter:  p *= 1 - lr wd;  w = t^-0.8;
 *     R += w (mean of g^2 over a row - R),  C += w (mean over a column - C)     (matrices)
 *     v += w (g^2 - v)                                                          (vectors)
 *     u = g / sqrt(v);  u /= max(1, rms(u) / d);
 *     p -= min(lr, 1 / sqrt(t)) max(1e-3, rms(p)) u
 *
 * Ranks that share the optimizer have a part of a matrix each. Each adds up its own part, in f64;
 * the sums are added over all ranks; and every rank has all of R, C, v, which are small. */
#include "nn/extra/compact.h"
#include "nn/extra/inspect.h"
#include "nn/module.h"
#include "nn/optim/optim_internal.h"
#include "nn/params.h"
#include "tensor/extend.h"
#include "tensor/storage.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 256 }; /* elements of a run, at most */

/* td_optim.own. */
typedef struct adafactor {
    double clip;
    int64_t *begin; /* of each parameter's numbers in the state; and where the last end */
    double *sums;   /* of a step, of the same form */
    double *sizes;  /* of each parameter: the sum of squares of its values, and of its update */
} adafactor;

/* ---- a parameter as a matrix: O x (its other sizes), whatever its memory order is ---- */

static bool is_matrix(const td_tensor *t)
{
    return t->ndim >= 2;
}

static int64_t rows_of(const td_tensor *t)
{
    return is_matrix(t) ? t->shape[0] : td_numel(t);
}

static int64_t columns_of(const td_tensor *t)
{
    return is_matrix(t) && t->shape[0] > 0 ? td_numel(t) / t->shape[0] : 0;
}

/* Elements that lie side by side: their places in flat memory, and row and column of the first;
 * from one to the next either the row or the column grows. A vector has rows alone. */
typedef struct run {
    int64_t value, grad, count, row, column, to_row, to_column;
} run;

typedef struct walk {
    const td_tensor *form;
    td_window here;
    int64_t at; /* the next run's first element, of the window's */
    int64_t first;
    int inner; /* the dimension of stride 1 */
} walk;

static walk begin_walk(const td_params *params, int i)
{
    const td_param *p = td_params_get(params, i);
    walk w = { .form = p->tensor, .here = td_params_here(params, i) };
    w.first = w.here.begin - p->begin;
    for (int d = 0; d < w.form->ndim; d++) {
        w.inner = w.form->stride[d] == 1 && w.form->shape[d] > 1 ? d : w.inner;
    }
    return w;
}

/* The number of a column: row-major over all dimensions but the first. */
static int64_t column_step(const td_tensor *t, int dim)
{
    int64_t step = 1;
    for (int d = dim + 1; d < t->ndim; d++) {
        step *= t->shape[d];
    }
    return dim == 0 ? 0 : step;
}

static bool next_run(walk *w, run *r)
{
    const td_tensor *t = w->form;
    int64_t element = w->first + w->at, left = w->here.count - w->at, row = element, column = 0;
    if (left == 0) {
        return false;
    }
    int64_t length = t->ndim > 0 ? t->shape[w->inner] : 1, in = 0;
    for (int d = 0; d < t->ndim && t->ndim > 1; d++) {
        int64_t index = t->shape[d] > 1 ? element / t->stride[d] % t->shape[d] : 0;
        row = d == 0 ? index : row;
        column += index * column_step(t, d);
        in = d == w->inner ? index : in;
    }
    in = t->ndim == 1 ? element : in;
    *r = (run){ .value = w->here.place + w->here.to_values + w->at,
                .grad = w->here.place + w->here.to_grads + w->at,
                .count = length - in < PIECE ? length - in : PIECE,
                .row = row,
                .column = column,
                .to_row = w->inner == 0,
                .to_column = column_step(t, w->inner) };
    r->count = left < r->count ? left : r->count;
    w->at += r->count;
    return true;
}

/* ---- elements of f32 or f64 ---- */

/* n elements, `step` apart (0: one, n times), as doubles. */
static void load(const td_tensor *t, int64_t at, int64_t step, int64_t n, double *to)
{
    const float *single = (const float *)td_ptr(t) + (t->dtype == TD_F32 ? at : 0);
    const double *full = (const double *)td_ptr(t) + (t->dtype == TD_F32 ? 0 : at);
    for (int64_t k = 0; t->dtype == TD_F32 && k < n; k++) {
        to[k] = single[k * step];
    }
    for (int64_t k = 0; t->dtype != TD_F32 && k < n; k++) {
        to[k] = full[k * step];
    }
}

static void store(td_tensor *t, int64_t at, int64_t n, const double *from)
{
    for (int64_t k = 0; t->dtype == TD_F32 && k < n; k++) {
        ((float *)td_ptr(t) + at)[k] = (float)from[k];
    }
    for (int64_t k = 0; t->dtype != TD_F32 && k < n; k++) {
        ((double *)td_ptr(t) + at)[k] = from[k];
    }
}

static double epsilon(const td_optim *o)
{
    return td_params_flat(o->params)->dtype == TD_F32 ? FLT_EPSILON : DBL_EPSILON;
}

/* ---- a step ---- */

static bool is_trained(const td_optim *o, int i)
{
    const td_param *p = td_params_get(o->params, i);
    return td_grad(p->tensor) != NULL && p->count > 0;
}

/* This rank's part of the sums of g^2 over rows and columns, and of the values' squares. */
static void add_up(const td_optim *o, int i, const td_tensor *flat, const td_tensor *grad)
{
    const adafactor *a = o->own;
    const td_tensor *form = td_params_get(o->params, i)->tensor;
    double *rows = a->sums + a->begin[i], *columns = rows + rows_of(form), g[PIECE], p[PIECE];
    walk w = begin_walk(o->params, i);
    for (run r; next_run(&w, &r);) {
        load(grad, r.grad, 1, r.count, g);
        load(flat, r.value, 1, r.count, p);
        for (int64_t k = 0; k < r.count; k++) {
            rows[r.row + k * r.to_row] += g[k] * g[k];
            a->sizes[i] += p[k] * p[k];
        }
        for (int64_t k = 0; is_matrix(form) && k < r.count; k++) {
            columns[r.column + k * r.to_column] += g[k] * g[k];
        }
    }
}

/* The averages go towards the means: sums / n. Returns the sum of the new averages. */
static double average(td_tensor *state, int64_t at, int64_t count, const double *sums, int64_t n,
                      double weight)
{
    double total = 0.0, value;
    for (int64_t k = 0; k < count; k++) {
        load(state, at + k, 1, 1, &value);
        value += weight * (sums[k] / (double)n - value);
        store(state, at + k, 1, &value);
        load(state, at + k, 1, 1, &value); /* rounded */
        total += value;
    }
    return total;
}

/* Rows, columns or elements get their new averages. Returns 1 / mean(R); of a vector 0. */
static double update_state(td_optim *o, int i)
{
    const adafactor *a = o->own;
    const td_tensor *form = td_params_get(o->params, i)->tensor;
    int64_t rows = rows_of(form), columns = columns_of(form), at = a->begin[i];
    double weight = pow((double)o->steps[i], -0.8);
    double sum =
        average(o->state[0], at, rows, a->sums + at, is_matrix(form) ? columns : 1, weight);
    average(o->state[0], at + rows, columns, a->sums + at + rows, rows, weight);
    return is_matrix(form) ? 1.0 / fmax(sum / (double)rows, epsilon(o)) : 0.0;
}

/* u = g / sqrt(v) of a run. */
static void direction(const td_optim *o, int i, const run *r, double over_mean, double *u)
{
    int64_t begin = ((const adafactor *)o->own)->begin[i];
    double v[PIECE], column[PIECE], least = epsilon(o) * epsilon(o);
    load(o->state[0], begin + r->row, r->to_row, r->count, v);
    if (over_mean > 0.0) {
        int64_t rows = rows_of(td_params_get(o->params, i)->tensor);
        load(o->state[0], begin + rows + r->column, r->to_column, r->count, column);
        for (int64_t k = 0; k < r->count; k++) {
            v[k] *= column[k] * over_mean;
        }
    }
    for (int64_t k = 0; k < r->count; k++) {
        u[k] /= sqrt(v[k] > least ? v[k] : least);
    }
}

/* The sum of this rank's squares of the update; with a scale it also goes there. */
static double go(const td_optim *o, int i, td_tensor *flat, const td_tensor *grad, double over_mean,
                 double scale)
{
    const td_optim_group_settings *group = td_optim_settings(o, i);
    double shrink = 1.0 - o->lr * group->lr_scale * group->weight_decay, squares = 0.0;
    double u[PIECE], p[PIECE];
    walk w = begin_walk(o->params, i);
    for (run r; next_run(&w, &r);) {
        load(grad, r.grad, 1, r.count, u);
        direction(o, i, &r, over_mean, u);
        for (int64_t k = 0; k < r.count; k++) {
            squares += u[k] * u[k];
        }
        if (scale > 0.0) {
            load(flat, r.value, 1, r.count, p);
            for (int64_t k = 0; k < r.count; k++) {
                p[k] = p[k] * shrink - scale * u[k];
            }
            store(flat, r.value, r.count, p);
        }
    }
    return squares;
}

/* Adds the ranks' numbers, if each has a part of a parameter. */
static void share(const td_params *params, double *numbers, int64_t count)
{
    const td_params_peers *peers = td_params_peers_of(params);
    if (peers != NULL) {
        peers->sum(numbers, (int)count, peers->user);
    }
}

static void adafactor_run(td_optim *o, const td_kernels *kernels, td_tensor *flat,
                          const td_tensor *flat_grad, int slices)
{
    (void)kernels;
    (void)slices;
    adafactor *a = o->own;
    int count = td_params_count(o->params);
    double *updates = a->sizes + count, *over_mean = updates + count;
    memset(a->sums, 0, (size_t)a->begin[count] * sizeof *a->sums);
    memset(a->sizes, 0, 2 * (size_t)count * sizeof *a->sizes);
    for (int i = 0; i < count; i++) {
        if (is_trained(o, i)) {
            add_up(o, i, flat, flat_grad);
        }
    }
    share(o->params, a->sums, a->begin[count]);
    share(o->params, a->sizes, count);
    for (int i = 0; i < count; i++) {
        if (is_trained(o, i)) {
            over_mean[i] = update_state(o, i);
            updates[i] = go(o, i, flat, flat_grad, over_mean[i], 0.0);
        }
    }
    share(o->params, updates, count);
    for (int i = 0; i < count; i++) {
        if (is_trained(o, i)) {
            double n = (double)td_params_get(o->params, i)->count;
            double lr = o->lr * td_optim_settings(o, i)->lr_scale;
            double rate = fmin(lr, 1.0 / sqrt((double)o->steps[i]));
            double alpha = rate * fmax(1e-3, sqrt(a->sizes[i] / n));
            go(o, i, flat, flat_grad, over_mean[i],
               alpha / fmax(1.0, sqrt(updates[i] / n) / a->clip));
        }
    }
}

/* ---- making one, files ---- */

static bool adafactor_state(td_optim *o, int i, int k, td_tensor **view)
{
    const adafactor *a = o->own;
    const td_tensor *form = td_params_get(o->params, i)->tensor;
    int64_t rows = rows_of(form), at = a->begin[i];
    enum { ROW, COLUMN, VECTOR };
    if (is_matrix(form) == (k == VECTOR)) {
        return false;
    }
    td_shape shape = TD_SHAPE(rows);
    if (k == COLUMN) {
        shape = td_shape_of(form);
        shape.ndim--;
        memmove(shape.dim, shape.dim + 1, (size_t)shape.ndim * sizeof *shape.dim);
    } else if (k == VECTOR) {
        shape = td_shape_of(form);
    }
    int64_t stride[TD_MAX_DIMS], step = 1;
    for (int d = shape.ndim - 1; d >= 0; d--) {
        stride[d] = step;
        step *= shape.dim[d];
    }
    *view = td_slice_of_storage(o->state[0], o->state[0]->offset + at + (k == COLUMN ? rows : 0),
                                shape, stride);
    return true;
}

static void no_constants(const td_optim *optim, int i, td_optim_slice *slice)
{
    (void)optim, (void)i, (void)slice;
}

static void adafactor_free(td_optim *o)
{
    adafactor *a = o->own;
    free(a->begin);
    free(a->sums);
    free(a->sizes);
}

static const td_optim_kind adafactor_kind = {
    .name = "adafactor",
    .states = { "row_var", "col_var", "variance" },
    .fill = no_constants,
    .run = adafactor_run,
    .free = adafactor_free,
    .own_state = adafactor_state,
    .together = true,
};

td_optim *td_adafactor_at(td_adafactor_options options, td_site at)
{
    options.lr = td_or_usual(options.lr, 1e-2);
    td_require_lr(options.lr, "td_adafactor", at);
    TD_REQUIRE(options.clip >= 0.0 && options.weight_decay >= 0.0, at,
               "td_adafactor: clip %g and weight decay %g must not be negative", options.clip,
               options.weight_decay);
    td_params *params = options.params;
    TD_REQUIRE(params == NULL || td_device_of(td_params_flat(params)).type == TD_DEVICE_CPU, at,
               "td_adafactor works on CPUs, and the parameters are on %s: use td_adam_compact",
               td_device_name(td_device_of(td_params_flat(params))));
    adafactor own = { .clip = td_or_usual(options.clip, 1.0) };
    td_optim_group_settings group = { .weight_decay = options.weight_decay };
    td_optim *o =
        td_optim_new(&adafactor_kind, params, options.lr, &group, 0, &own, sizeof own, at);
    if (o == NULL) {
        return NULL;
    }
    int count = td_params_count(params);
    adafactor *a = o->own;
    a->begin = calloc((size_t)count + 1, sizeof *a->begin);
    for (int i = 0; a->begin != NULL && i < count; i++) {
        const td_tensor *t = td_params_get(params, i)->tensor;
        a->begin[i + 1] = a->begin[i] + rows_of(t) + columns_of(t);
    }
    if (a->begin != NULL) {
        a->sums = calloc((size_t)a->begin[count] + 1, sizeof *a->sums);
        a->sizes = calloc((size_t)count * 3 + 1, sizeof *a->sizes);
        o->state[0] = td_params_new_numbers(params, a->begin[count], td_params_flat(params)->dtype);
    }
    if (a->sums == NULL || a->sizes == NULL || o->state[0] == NULL) {
        td_optim_free(o);
        td_fail(TD_E_NOMEM, "no memory for the state of adafactor");
        return NULL;
    }
    return o;
}
