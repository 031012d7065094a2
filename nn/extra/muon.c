/* Muon (Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks"): a filter's
 * update is its momentum's direction with all singular values brought near 1. For each filter as a
 * matrix, O x (I KH KW), and for each chosen matrix:
 *     b = mu b + g;  u = g + mu b (nesterov) or b;  x = u / (|u| + 1e-7)
 *     x = (c0 + c1 (x x^T) + c2 (x x^T)^2) x, some times    (Newton-Schulz)
 *     p = p sqrt(O) / |p| (renormalise);  p -= lr (weight_decay p + scale x)
 * Other parameters get Nesterov SGD in the same pass. */
#include "nn/extra/muon.h"
#include "nn/optim/optim_internal.h"
#include "nn/module.h"
#include "tensor/hooks.h"
#include "tensor/storage.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Chosen to raise small singular values quickly; it does not converge to 1 but near it. */
static const double coefficients[3] = { 3.4445, -4.7750, 2.0315 };

/* td_optim.own. */
typedef struct muon {
    td_muon_options options;
    bool *chosen;                  /* of each parameter: whether it is one of these */
    td_tensor *update;             /* flat: the filters' orthogonal updates */
    td_optim_slice *update_slices; /* and where they are: one a filter */
    td_tensor *x, *next;           /* room for the largest filter as a matrix, rows <= columns */
    td_tensor *gram[2];            /* rows x rows */
    td_tensor *norm;               /* a scalar */
} muon;

static void muon_fill(const td_optim *optim, int i, td_optim_slice *slice)
{
    const muon *m = optim->own;
    slice->first = optim->steps[i] == 0;
    slice->nesterov = true;
    slice->momentum = td_optim_settings(optim, i)->momentum;
    if (m->chosen[i]) {
        /* The pass keeps the momentum; the parameter itself moves afterwards. */
        slice->momentum = m->options.momentum;
        slice->lr = slice->weight_decay = 0.0;
    }
}

/* A view of part of a flat tensor, or of working memory: headers on the stack, no allocation. */
static td_tensor part_of(const td_tensor *flat, const td_param *p)
{
    td_tensor view;
    td_init_header(&view, flat->storage, flat->offset + p->begin, td_shape_of(p->tensor),
                   p->tensor->stride, flat->dtype);
    return view;
}

static td_tensor matrix_in(const td_tensor *work, int64_t rows, int64_t columns)
{
    td_tensor view;
    td_init_header(&view, work->storage, work->offset, TD_SHAPE(rows, columns),
                   (int64_t[]){ columns, 1 }, work->dtype);
    return view;
}

/* The working matrix seen with the shape of a filter, element for element in the filter's memory
 * order: as a matrix its columns are then permuted, which Newton-Schulz does not mind. O is its
 * rows, or, if there are more outputs than columns, its columns. */
static td_tensor filter_in(const td_tensor *matrix, const td_tensor *filter, bool turned)
{
    td_tensor view = *matrix;
    int64_t step = turned ? matrix->stride[0] : 1;
    view.ndim = filter->ndim;
    for (int d = 1; d < view.ndim; d++) {
        view.shape[d] = filter->shape[d];
        view.stride[d] = step;
        for (int e = 1; e < view.ndim; e++) { /* dimensions that run faster than d */
            bool faster = filter->stride[e] < filter->stride[d] ||
                          (filter->stride[e] == filter->stride[d] && e > d);
            view.stride[d] *= e != d && faster ? filter->shape[e] : 1;
        }
    }
    view.shape[0] = filter->shape[0];
    view.stride[0] = turned ? 1 : matrix->stride[0];
    return view;
}

/* The same scalar for every element of a tensor. */
static td_tensor spread(const td_tensor *scalar, const td_tensor *like)
{
    td_tensor view = *scalar;
    view.ndim = like->ndim;
    for (int d = 0; d < like->ndim; d++) {
        view.shape[d] = like->shape[d];
        view.stride[d] = 0;
    }
    return view;
}

/* x = factor x / (|x| + eps); squares: room for x. Nothing of it passes through the host. */
static void muon_normalise(const td_kernels *k, td_tensor *x, td_tensor *squares, td_tensor *norm,
                           double factor, double eps)
{
    td_tensor one = *norm;
    one.ndim = x->ndim;
    for (int d = 0; d < x->ndim; d++) {
        one.shape[d] = one.stride[d] = 1;
    }
    k->binary(TD_BINARY_mul, squares, x, x);
    k->reduce(TD_REDUCE_SUM, &one, squares, false);
    k->unary(TD_UNARY_sqrt, norm, norm, 0.0, 0.0);
    k->unary(TD_UNARY_add_scalar, norm, norm, eps, 0.0);
    k->unary(TD_UNARY_mul_scalar, norm, norm, 1.0 / factor, 0.0);
    td_tensor by = spread(norm, x);
    k->copy(squares, x);
    k->binary(TD_BINARY_div, x, squares, &by);
}

/* One round; the result is in next. */
static void newton_schulz(const td_kernels *k, const muon *w, const td_tensor *x, td_tensor *next)
{
    td_math math = td_math_now();
    int64_t rows = x->shape[0];
    td_tensor gram = matrix_in(w->gram[0], rows, rows), square = matrix_in(w->gram[1], rows, rows);
    td_tensor turned = *x;
    turned.shape[0] = x->shape[1];
    turned.shape[1] = rows;
    turned.stride[0] = x->stride[1];
    turned.stride[1] = x->stride[0];
    k->matmul(&gram, x, &turned, NULL, false, math);
    k->matmul(&square, &gram, &gram, NULL, false, math);
    k->unary(TD_UNARY_mul_scalar, &square, &square, coefficients[2], 0.0);
    k->axpy(&square, coefficients[1], &gram);
    k->matmul(next, &square, x, NULL, false, math);
    k->axpy(next, coefficients[0], x);
}

/* Writes the update of one filter to `update`, and renormalises the filter. */
static void muon_filter(const muon *w, const td_kernels *k, td_tensor *param, const td_tensor *grad,
                        const td_tensor *momentum, td_tensor *update)
{
    int64_t outputs = param->shape[0], inputs = td_numel(param) / outputs;
    bool turned = outputs > inputs;
    int64_t rows = turned ? inputs : outputs, columns = turned ? outputs : inputs;
    td_tensor x = matrix_in(w->x, rows, columns), next = matrix_in(w->next, rows, columns);
    td_tensor as_filter = filter_in(&x, param, turned);
    k->copy(update, momentum);
    if (!w->options.no_nesterov) {
        k->unary(TD_UNARY_mul_scalar, update, update, w->options.momentum, 0.0);
        k->axpy(update, 1.0, grad);
    }
    k->copy(&as_filter, update);
    muon_normalise(k, &x, &next, w->norm, 1.0, 1e-7);
    for (int round = 0; round < w->options.rounds; round++) {
        newton_schulz(k, w, &x, &next);
        td_tensor old = x;
        x = next;
        next = old;
    }
    as_filter = filter_in(&x, param, turned);
    k->copy(update, &as_filter);
    if (!w->options.no_renormalise) {
        td_tensor squares = *param;
        squares.storage = w->x->storage;
        squares.offset = w->x->offset;
        muon_normalise(k, param, &squares, w->norm, sqrt((double)outputs), 1e-30);
    }
}

static bool is_trained_filter(const td_optim *o, int i)
{
    const muon *w = o->own;
    const td_param *p = td_params_get(o->params, i);
    return w->chosen[i] && td_grad(p->tensor) != NULL && p->count > 0;
}

/* How far a matrix goes beside the learning rate. */
static double scale_of(const muon *w, const td_tensor *param)
{
    double rows = (double)param->shape[0], columns = (double)td_numel(param) / rows;
    switch (w->options.scale) {
    case TD_MUON_BY_SHAPE:
        return sqrt(fmax(1.0, rows / columns));
    case TD_MUON_AS_ADAMW:
        return 0.2 * sqrt(fmax(rows, columns));
    case TD_MUON_UNSCALED:
        break;
    }
    return 1.0;
}

/* Where the updates are, and how far they go. Returns how many there are. */
static int fill_updates(td_optim *o)
{
    const muon *w = o->own;
    const int *order = o->params->order;
    int count = 0;
    for (int n = 0; n < td_params_count(o->params); n++) {
        const td_param *p = td_params_get(o->params, order[n]);
        if (is_trained_filter(o, order[n])) {
            double scale = scale_of(w, p->tensor);
            w->update_slices[count++] = (td_optim_slice){
                .begin = p->begin,
                .count = p->count,
                .lr = o->lr * td_optim_settings(o, order[n])->lr_scale * scale,
                .weight_decay = w->options.filter_weight_decay / scale, /* not scaled */
                .decoupled = true,
            };
        }
    }
    return count;
}

/* For a captured step, now and before each replay. */
static void copy_updates(void *user, void *numbers)
{
    td_optim *o = user;
    const muon *w = o->own;
    int count = fill_updates(o);
    if (numbers != w->update_slices) {
        memcpy(numbers, w->update_slices, (size_t)count * sizeof *w->update_slices);
    }
}

static void muon_run(td_optim *o, const td_kernels *k, td_tensor *flat, const td_tensor *flat_grad,
                     int slices)
{
    const muon *w = o->own;
    if (td_params_training_of(o->params)->scaling != NULL) {
        td_not_recordable("Muon with a loss scaler: the host skips steps");
    }
    k->sgd(flat, flat_grad, o->state[0], o->table, slices);
    const int *order = o->params->order;
    for (int n = 0; n < td_params_count(o->params); n++) {
        const td_param *p = td_params_get(o->params, order[n]);
        if (!is_trained_filter(o, order[n])) {
            continue;
        }
        td_tensor grad = part_of(flat_grad, p), momentum = part_of(o->state[0], p);
        td_tensor update = part_of(w->update, p), param = part_of(flat, p);
        muon_filter(w, k, &param, &grad, &momentum, &update);
    }
    int count = fill_updates(o);
    if (count > 0) {
        size_t bytes = (size_t)count * sizeof *w->update_slices;
        const td_optim_slice *table = td_step_numbers(w->update_slices, bytes, copy_updates, o);
        k->sgd(flat, w->update, NULL, table, count);
    }
    /* Written more than once: a device's copy of what the first pass left is out of date. */
    td_begin_write(flat, "td_optim_step", TD_HERE);
}

static void muon_free(td_optim *o)
{
    muon *w = o->own;
    td_free(w->x);
    td_free(w->next);
    td_free(w->gram[0]);
    td_free(w->gram[1]);
    td_free(w->norm);
    free(w->update_slices);
    free(w->chosen);
    td_params_drop_state(o->params, w->update);
}

static const td_optim_kind muon_kind = {
    .name = "muon",
    .states = { "momentum_buffer" },
    .fill = muon_fill,
    .run = muon_run,
    .free = muon_free,
};

static bool is_chosen(const td_muon_options *o, const td_param *p, td_site at)
{
    bool chosen = o->belongs != NULL ? o->belongs(p, o->user) : p->tensor->ndim == 4;
    TD_REQUIRE(!chosen || p->tensor->ndim >= 2, at,
               "td_muon: %s %s was chosen, which is no matrix and no filter bank", p->name,
               td_describe(p->tensor));
    return chosen;
}

/* Which parameters these are; the caller frees the list. NULL: no memory. */
static bool *choose(const td_muon_options *o, td_site at)
{
    int count = o->params != NULL ? td_params_count(o->params) : 0;
    for (int i = 0; i < count; i++) { /* a mistake ends here, where there is nothing to free */
        (void)is_chosen(o, td_params_get(o->params, i), at);
    }
    bool *chosen = calloc((size_t)count + 1, sizeof *chosen);
    for (int i = 0; chosen != NULL && i < count; i++) {
        chosen[i] = is_chosen(o, td_params_get(o->params, i), at);
    }
    return chosen;
}

/* Working memory for the largest filter. */
static bool add_work(td_optim *o)
{
    const td_tensor *flat = td_params_flat(o->params);
    td_device device = td_device_of(flat);
    int64_t largest = 1, most_rows = 1;
    for (int i = 0; i < td_params_count(o->params); i++) {
        const td_param *p = td_params_get(o->params, i);
        if (((muon *)o->own)->chosen[i] && p->count > 0) {
            int64_t outputs = p->tensor->shape[0], inputs = p->count / outputs;
            int64_t rows = outputs < inputs ? outputs : inputs;
            largest = p->count > largest ? p->count : largest;
            most_rows = rows > most_rows ? rows : most_rows;
        }
    }
    muon *w = o->own;
    w->update = td_params_new_flat(o->params);
    w->update_slices = calloc((size_t)td_params_count(o->params) + 1, sizeof *w->update_slices);
    if (w->update == NULL || w->update_slices == NULL) {
        return false;
    }
    w->x = td_new(TD_SHAPE(largest), flat->dtype, device);
    w->next = td_new(TD_SHAPE(largest), flat->dtype, device);
    w->gram[0] = td_new(TD_SHAPE(most_rows * most_rows), flat->dtype, device);
    w->gram[1] = td_new(TD_SHAPE(most_rows * most_rows), flat->dtype, device);
    w->norm = td_new(TD_SCALAR, flat->dtype, device);
    return w->x != NULL && w->next != NULL && w->gram[0] != NULL && w->gram[1] != NULL &&
           w->norm != NULL;
}

td_optim *td_muon_at(td_muon_options options, td_site at)
{
    td_require_lr(options.lr, "td_muon", at);
    TD_REQUIRE(
        options.momentum >= 0.0 && options.sgd_momentum >= 0.0 && options.weight_decay >= 0.0 &&
            options.filter_weight_decay >= 0.0 && options.rounds >= 0,
        at,
        "td_muon: momenta %g and %g, weight decays %g and %g and %d rounds must not be negative",
        options.momentum, options.sgd_momentum, options.weight_decay, options.filter_weight_decay,
        options.rounds);
    TD_REQUIRE(options.params == NULL || td_params_peers_of(options.params) == NULL, at,
               "td_muon: td_ddp shards these parameters' optimizer, and Muon needs whole filters: "
               "use td_sgd, td_adam or td_adamw, or td_ddp without td_zero");
    TD_REQUIRE(options.params == NULL || options.params->slicing == NULL, at,
               "td_muon: td_tensor_parallel has cut these parameters, and Muon needs whole "
               "filters: use td_sgd, td_adam or td_adamw");
    muon own = { .options = options };
    own.options.rounds = options.rounds != 0 ? options.rounds : 5;
    own.chosen = choose(&options, at);
    td_optim_group_settings group = { .weight_decay = options.weight_decay,
                                      .momentum = options.sgd_momentum };
    td_optim *o =
        td_optim_new(&muon_kind, options.params, options.lr, &group, 1, &own, sizeof own, at);
    if (o == NULL) {
        free(own.chosen);
        return NULL;
    }
    if (own.chosen == NULL || !add_work(o)) {
        td_optim_free(o);
        td_fail(TD_E_NOMEM, "no memory for muon's working memory");
        return NULL;
    }
    return o;
}
