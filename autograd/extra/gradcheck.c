/* Gradients against central differences, in double precision. */

#include "autograd/tape.h"
#include "tensor/system/number.h"
#include "tensor/storage.h"
#include "autograd/gradcheck.h"
#include "autograd/hooks.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>

enum { MAX_REPORTED = 5 };

typedef struct check {
    td_grad_check_fn fn;
    void *user;
    td_tensor *const *inputs;
    int count;
    double eps, tolerance;
    double *weights; /* of the result's elements */
    double *values;  /* the result's elements */
    int64_t numel;   /* of the result */
    char *report;
    size_t report_size, report_length;
    int differences;
} check;

static bool is_checked(const td_tensor *t)
{
    return t != NULL && t->dtype == TD_F64 && td_is_leaf(t);
}

/* ---- the function, as one number ---- */

/* Fixed weights that are neither small nor alike: +-[0.5, 1.5). */
static double weight(int64_t i)
{
    uint32_t words[4];
    td_philox((td_philox_key){ .seed = 0x7472616461, .stream = 1 }, 0, (uint64_t)i, words);
    double size = 0.5 + (double)words[0] * 0x1p-32;
    return words[1] & 1 ? size : -size;
}

static td_status make_room(check *c, const td_tensor *y)
{
    if (c->weights != NULL) {
        TD_CHECK(td_numel(y) == c->numel, TD_E_ARG,
                 "td_gradcheck: the function's result has %lld elements at "
                 "one time and %lld at another",
                 (long long)c->numel, (long long)td_numel(y));
        return TD_OK;
    }
    c->numel = td_numel(y);
    c->weights = malloc(((size_t)c->numel + 1) * sizeof *c->weights);
    c->values = malloc(((size_t)c->numel + 1) * sizeof *c->values);
    TD_CHECK(c->weights != NULL && c->values != NULL, TD_E_NOMEM,
             "td_gradcheck: no memory for %lld values", (long long)c->numel);
    for (int64_t i = 0; i < c->numel; i++) {
        c->weights[i] = weight(i);
    }
    return TD_OK;
}

/* sum(fn(inputs) * weights), in a step of its own; NULL: only the gradients are wanted. */
static td_status evaluate(check *c, double *value)
{
    td_step_begin();
    if (value != NULL) {
        td_no_grad_begin();
    }
    td_tensor *y = c->fn(c->inputs, c->user);
    td_status status = y != NULL ? make_room(c, y) : td_fail_context(TD_E_ARG, "td_gradcheck");
    if (status == TD_OK && value != NULL) {
        td_read(y, c->values, TD_F64);
        *value = 0.0;
        for (int64_t i = 0; i < c->numel; i++) {
            *value += c->values[i] * c->weights[i];
        }
    } else if (status == TD_OK && td_needs_grad(y)) {
        td_tensor *dy = td_step_new_like(y, TD_HERE);
        td_write(dy, c->weights, TD_F64);
        td_backward(y, .gradient = dy);
    }
    if (value != NULL) {
        td_no_grad_end();
    }
    td_step_end();
    return status;
}

/* ---- comparing ---- */

__attribute__((format(printf, 2, 3))) static void report(check *c, const char *format, ...)
{
    if (c->report == NULL || c->report_length >= c->report_size) {
        return;
    }
    va_list args;
    va_start(args, format);
    int n =
        td_vsnprintf(c->report + c->report_length, c->report_size - c->report_length, format, args);
    va_end(args);
    c->report_length += n > 0 ? (size_t)n : 0;
}

static void gradcheck_compare(check *c, int input, const int64_t *index, double analytic,
                              double numeric)
{
    /* Not >: a NaN on either side is a difference. */
    if (fabs(analytic - numeric) <= c->tolerance * (1.0 + fabs(numeric))) {
        return;
    }
    if (c->differences++ < MAX_REPORTED) {
        td_shape place = td_shape_of(c->inputs[input]);
        for (int d = 0; d < place.ndim; d++) {
            place.dim[d] = index[d];
        }
        report(c, "input %d %s at %s: backward %.9g, central difference %.9g\n", input,
               td_label(c->inputs[input]), td_describe_shape(place), analytic, numeric);
    }
}

static bool next_index(const td_tensor *t, int64_t *index)
{
    for (int d = t->ndim - 1; d >= 0; d--) {
        if (++index[d] < t->shape[d]) {
            return true;
        }
        index[d] = 0;
    }
    return false;
}

static td_status check_input(check *c, int input)
{
    td_tensor *t = c->inputs[input];
    const td_tensor *gradient = td_grad(t); /* NULL: the result does not depend on t */
    int64_t index[TD_MAX_DIMS] = { 0 };
    bool more = td_numel(t) > 0;
    while (more) {
        double x = td_get(t, index), above, below;
        td_set(t, index, x + c->eps);
        td_status status = evaluate(c, &above);
        td_set(t, index, x - c->eps);
        status = status == TD_OK ? evaluate(c, &below) : status;
        td_set(t, index, x);
        TD_TRY(status);
        double width = (x + c->eps) - (x - c->eps); /* as rounded */
        gradcheck_compare(c, input, index, gradient != NULL ? td_get(gradient, index) : 0.0,
                          (above - below) / width);
        more = next_index(t, index);
    }
    return TD_OK;
}

static td_status run(check *c)
{
    int checked = 0;
    for (int i = 0; i < c->count; i++) {
        if (is_checked(c->inputs[i])) {
            td_zero_grad_of(c->inputs[i]);
            checked++;
        }
    }
    TD_CHECK(checked != 0, TD_E_ARG, "td_gradcheck: none of the %d inputs is an f64 leaf",
             c->count);
    TD_TRY(evaluate(c, NULL));
    for (int i = 0; i < c->count; i++) {
        if (is_checked(c->inputs[i])) {
            TD_TRY(check_input(c, i));
        }
    }
    for (int i = 0; i < c->count; i++) {
        if (is_checked(c->inputs[i])) {
            td_zero_grad_of(c->inputs[i]);
        }
    }
    return c->differences == 0
               ? TD_OK
               : td_fail(TD_E_MISMATCH, "td_gradcheck: %d elements differ", c->differences);
}

td_status td_gradcheck(td_grad_check_fn fn, void *user, td_tensor *const *inputs, int count,
                       const td_gradcheck_options *options)
{
    TD_REQUIRE(!td_in_step(), TD_NOWHERE,
               "td_gradcheck inside a step: it makes steps of its own; call it after td_step_end");
    td_gradcheck_options o = options != NULL ? *options : (td_gradcheck_options){ .eps = 0.0 };
    check c = {
        .fn = fn,
        .user = user,
        .inputs = inputs,
        .count = count,
        .eps = o.eps > 0.0 ? o.eps : 1e-6,
        .tolerance = o.tolerance > 0.0 ? o.tolerance : 1e-6,
        .report = o.report,
        .report_size = o.report_size,
    };
    if (c.report != NULL && c.report_size > 0) {
        c.report[0] = '\0';
    }
    td_status status = run(&c);
    free(c.weights);
    free(c.values);
    return status;
}
