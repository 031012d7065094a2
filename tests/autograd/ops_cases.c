/* The table of operations' cases, and inputs for them. */
#include "tests/autograd/ops_cases.h"

#include "autograd/fused.h"
#include "autograd/ops/elements.h"
#include "autograd/ops/shapes.h"
#include "autograd/tape.h"
#include "tensor/extend.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* td_batch_norm_fused_at, in one line: X, W, B, MEAN, VAR, whether training, what is fused. */
#define fused_batch_norm(X, W, B, MEAN, VAR, TRAINING, ...)                                        \
    td_batch_norm_fused_at((td_batch_norm_options){ .x = (X),                                      \
                                                    .weight = (W),                                 \
                                                    .bias = (B),                                   \
                                                    .running_mean = (MEAN),                        \
                                                    .running_var = (VAR),                          \
                                                    .training = (TRAINING) },                      \
                           (td_batch_norm_fusion){ __VA_ARGS__ }, TD_HERE)

#define TD_OP(op, inputs, ...)                                                                     \
    static td_tensor *case_##op(td_tensor *const *in, void *user)                                  \
    {                                                                                              \
        (void)user;                                                                                \
        return __VA_ARGS__;                                                                        \
    }
#define TD_CASE(op, name, inputs, ...)                                                             \
    static td_tensor *case_##op##__##name(td_tensor *const *in, void *user)                        \
    {                                                                                              \
        (void)user;                                                                                \
        return __VA_ARGS__;                                                                        \
    }
#include "tests/autograd/ops_cases.def"
#undef TD_OP
#undef TD_CASE

#define TD_OP(op, inputs, ...) { #op, #op, inputs, case_##op },
#define TD_CASE(op, name, inputs, ...) { #op, #op "/" #name, inputs, case_##op##__##name },
const ops_case ops_cases[] = {
#include "tests/autograd/ops_cases.def"
};
#undef TD_OP
#undef TD_CASE
const int ops_case_count = (int)(sizeof ops_cases / sizeof ops_cases[0]);

double test_uniform(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 41) * 0x1p-22 - 1.0;
}

/* ---- the little language of inputs ---- */

typedef struct input_spec {
    td_shape shape;
    td_layout layout;
    bool positive, distinct, constant;
    int64_t below; /* > 0: indices */
} input_spec;

static _Noreturn void bad_spec(const ops_case *c, const char *at)
{
    fprintf(stderr, "ops_cases.def: %s: cannot read the inputs \"%s\" at \"%s\"\n", c->name,
            c->inputs, at);
    exit(1);
}

static const char *parse_shape(const ops_case *c, const char *at, td_shape *shape)
{
    shape->ndim = 0;
    if (*at == 's') {
        return at + 1;
    }
    for (;;) {
        char *end;
        long size = strtol(at, &end, 10);
        if (end == at || shape->ndim == TD_MAX_DIMS) {
            bad_spec(c, at);
        }
        shape->dim[shape->ndim++] = size;
        at = end;
        if (*at != 'x') {
            return at;
        }
        at++;
    }
}

static bool is_word(const char *at, const char *end, const char *word)
{
    return (size_t)(end - at) == strlen(word) && strncmp(at, word, (size_t)(end - at)) == 0;
}

static const char *parse_word(const ops_case *c, const char *at, input_spec *spec)
{
    const char *end = at;
    while (*end != '\0' && *end != ',' && !isspace((unsigned char)*end)) {
        end++;
    }
    if (is_word(at, end, "+")) {
        spec->positive = true;
    } else if (is_word(at, end, "d")) {
        spec->distinct = true;
    } else if (is_word(at, end, "c")) {
        spec->constant = true;
    } else if (is_word(at, end, "image")) {
        spec->layout = TD_IMAGE;
    } else if (is_word(at, end, "filter")) {
        spec->layout = TD_FILTER;
    } else if (strncmp(at, "i<", 2) == 0 && atol(at + 2) > 0) {
        spec->below = atol(at + 2);
    } else {
        bad_spec(c, at);
    }
    return end;
}

static const char *parse_input(const ops_case *c, const char *at, input_spec *spec)
{
    *spec = (input_spec){ .layout = TD_ROW_MAJOR };
    at = parse_shape(c, at + strspn(at, " "), &spec->shape);
    while (*(at += strspn(at, " ")) != '\0' && *at != ',') {
        at = parse_word(c, at, spec);
    }
    return at;
}

/* ---- values ---- */

/* A value for each place in a random order, none near 0. */
static void fill_distinct(double *values, int64_t n, uint64_t *state)
{
    for (int64_t i = 0; i < n; i++) {
        values[i] = ((double)i + 0.25 - (double)n / 2) * 0.0625;
    }
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = (int64_t)((test_uniform(state) + 1.0) / 2.0 * (double)(i + 1));
        double swapped = values[i];
        values[i] = values[j];
        values[j] = swapped;
    }
}

static void fill_values(const input_spec *spec, double *values, int64_t n, uint64_t *state)
{
    if (spec->distinct) {
        fill_distinct(values, n, state);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        double u = test_uniform(state);
        values[i] = spec->below > 0  ? floor((u + 1.0) / 2.0 * (double)spec->below)
                    : spec->positive ? (float)(1.25 + 0.75 * u)
                                     : (float)(1.5 * u);
    }
}

static td_tensor *make_input(const input_spec *spec, td_dtype dtype, td_device device,
                             uint64_t *state)
{
    int64_t n = td_shape_numel(spec->shape);
    double *values = malloc(((size_t)n + 1) * sizeof *values);
    td_dtype kind = spec->below > 0 ? TD_I64 : dtype;
    td_tensor *t = td_new_layout(spec->shape, kind, spec->layout, device);
    if (values == NULL || t == NULL) {
        fprintf(stderr, "no memory for a test's input\n");
        exit(1);
    }
    fill_values(spec, values, n, state);
    td_write(t, values, TD_F64);
    free(values);
    if (kind == dtype && !spec->constant) {
        td_requires_grad(t, true);
    }
    return t;
}

int ops_case_inputs(const ops_case *c, td_dtype dtype, td_tensor *inputs[OPS_MAX_INPUTS])
{
    return ops_case_inputs_on(c, dtype, TD_CPU, inputs);
}

int ops_case_inputs_on(const ops_case *c, td_dtype dtype, td_device device,
                       td_tensor *inputs[OPS_MAX_INPUTS])
{
    uint64_t state = 20240611;
    int count = 0;
    for (const char *at = c->inputs;; at++) {
        if (count == OPS_MAX_INPUTS) {
            bad_spec(c, at);
        }
        input_spec spec;
        at = parse_input(c, at, &spec);
        inputs[count++] = make_input(&spec, dtype, device, &state);
        if (*at == '\0') {
            return count;
        }
    }
}

void ops_case_free(td_tensor *const *inputs, int count)
{
    for (int i = 0; i < count; i++) {
        td_free(inputs[i]);
    }
}

/* ---- running a case ---- */

static void keep_values(const ops_case *c, ops_outcome *o, int i, const td_tensor *t)
{
    double *values = t != NULL ? malloc(((size_t)td_numel(t) + 1) * sizeof *values) : NULL;
    if (values == NULL) {
        fprintf(stderr, "%s: no memory, or no gradient of input %d\n", c->name, i - 1);
        exit(1);
    }
    td_read(t, values, TD_F64);
    o->dtype[i] = t->dtype;
    o->count[i] = td_numel(t);
    o->values[i] = values;
}

static td_tensor *new_gradient(const td_tensor *y, bool in_eighths)
{
    int64_t n = td_numel(y);
    td_tensor *dy = td_new(td_shape_of(y), y->dtype, td_device_of(y));
    double *values = malloc(((size_t)n + 1) * sizeof *values);
    if (dy == NULL || values == NULL) {
        fprintf(stderr, "no memory for a test's gradient\n");
        exit(1);
    }
    uint64_t random = 7;
    for (int64_t i = 0; i < n; i++) {
        double u = test_uniform(&random);
        values[i] = in_eighths ? (double)(int)(u * 8.0) / 8.0 : u;
    }
    td_write(dy, values, TD_F64);
    free(values);
    return dy;
}

ops_outcome ops_case_outcome(const ops_case *c, td_tensor *const *inputs, int count,
                             bool in_eighths)
{
    td_step_begin();
    td_tensor *y = c->fn(inputs, NULL);
    ops_outcome o = { .device = td_device_of(y) };
    keep_values(c, &o, 0, y);
    td_tensor *dy = new_gradient(y, in_eighths);
    td_backward(y, .gradient = dy);
    for (int i = 0; i < count; i++) {
        if (td_is_leaf(inputs[i])) {
            keep_values(c, &o, 1 + i, td_grad(inputs[i]));
        }
    }
    td_step_end();
    td_free(dy);
    return o;
}

void ops_outcome_free(ops_outcome *o)
{
    for (int i = 0; i <= OPS_MAX_INPUTS; i++) {
        free(o->values[i]);
    }
}

double relative_l2(const double *a, const double *b, int64_t n)
{
    double error = 0.0, size = 0.0;
    for (int64_t i = 0; i < n; i++) {
        error += (a[i] - b[i]) * (a[i] - b[i]);
        size += b[i] * b[i];
    }
    return size > 0.0 ? sqrt(error / size) : sqrt(error);
}
