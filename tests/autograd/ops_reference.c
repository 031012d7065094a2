/* Slow operations in double precision: elements, products, reductions. */
#include "tests/autograd/ops_reference.h"

#include "tests/autograd/ops_cases.h"
#include "tensor/extend.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

/* ---- arrays ---- */

/* What is to be freed at the end, each behind a link. */
typedef struct block {
    struct block *next;
    double values[];
} block;
static block *blocks;

static double *new_array(int64_t n)
{
    block *b = calloc(1, sizeof *b + ((size_t)n + 1) * sizeof *b->values);
    assert_non_null(b);
    b->next = blocks;
    blocks = b;
    return b->values;
}

enum { MAX_INPUTS = 1024 };
static td_tensor *inputs[MAX_INPUTS];
static int input_count;
static uint64_t random_state;

td_tensor *ref_input(td_shape shape, td_dtype dtype, td_layout layout, double from, double to)
{
    assert_true(input_count < MAX_INPUTS);
    td_tensor *t = td_new_layout(shape, dtype, layout, TD_CPU);
    assert_non_null(t);
    inputs[input_count++] = t;
    ref values = ref_new(shape, false);
    for (int64_t i = 0; i < values.n; i++) {
        double u = from + (to - from) * (test_uniform(&random_state) + 1.0) / 2.0;
        values.v[i] = td_is_float(dtype) ? (float)u : floor(u);
    }
    td_write(t, values.v, TD_F64);
    return t;
}

ref ref_new(td_shape shape, bool with_terms)
{
    ref r = { .shape = shape, .n = td_shape_numel(shape) };
    r.v = new_array(r.n);
    r.terms = with_terms ? new_array(r.n) : NULL;
    return r;
}

ref ref_read(const td_tensor *t)
{
    ref r = ref_new(td_shape_of(t), false);
    td_read(t, r.v, TD_F64);
    return r;
}

void ref_end(void)
{
    while (blocks != NULL) {
        block *next = blocks->next;
        free(blocks);
        blocks = next;
    }
    while (input_count > 0) {
        td_free(inputs[--input_count]);
    }
    random_state = 0;
}

void ref_index(td_shape shape, int64_t place, int64_t *index)
{
    for (int d = shape.ndim - 1; d >= 0; d--) {
        index[d] = place % shape.dim[d];
        place /= shape.dim[d];
    }
}

int64_t ref_place(td_shape shape, const int64_t *index)
{
    int64_t place = 0;
    for (int d = 0; d < shape.ndim; d++) {
        place = place * shape.dim[d] + index[d];
    }
    return place;
}

/* ---- comparing ---- */

static double *read_like(const td_tensor *y, ref r, const char *what)
{
    if (!td_shape_equal(td_shape_of(y), r.shape)) {
        fail_msg("%s: the result is %s, the reference %s", what, td_describe(y),
                 td_describe_shape(r.shape));
    }
    return ref_read(y).v;
}

static bool both_special(double a, double b)
{
    return (isnan(a) && isnan(b)) || (isinf(b) && a == b);
}

void ref_expect(const td_tensor *y, ref r, const char *what)
{
    const double *v = read_like(y, r, what);
    double bound = y->dtype == TD_F32 ? 1e-6 : 1e-12;
    double error = 0.0, size = 0.0;
    for (int64_t i = 0; i < r.n; i++) {
        if (both_special(v[i], r.v[i])) {
            continue;
        }
        double e = fabs(v[i] - r.v[i]);
        if (r.terms != NULL && !(e <= bound * r.terms[i])) {
            fail_msg("%s %s: element %lld is %.9g, the reference %.17g; |err| is %.2e of the "
                     "absolute terms, more than %.0e",
                     what, td_describe(y), (long long)i, v[i], r.v[i], e / r.terms[i], bound);
        }
        error += e * e;
        size += r.v[i] * r.v[i];
    }
    if (r.terms == NULL && !(sqrt(error) <= bound * sqrt(size))) {
        fail_msg("%s %s: relative L2 error %.2e, more than %.0e", what, td_describe(y),
                 sqrt(error / size), bound);
    }
}

void ref_expect_exact(const td_tensor *y, ref r, const char *what)
{
    const double *v = read_like(y, r, what);
    for (int64_t i = 0; i < r.n; i++) {
        if (v[i] != r.v[i] && !both_special(v[i], r.v[i])) {
            fail_msg("%s %s: element %lld is %.9g, the reference %.17g", what, td_describe(y),
                     (long long)i, v[i], r.v[i]);
        }
    }
}

/* ---- elements ---- */

ref ref_unary(ref x, double (*f)(double x, double p), double p)
{
    ref y = ref_new(x.shape, false);
    for (int64_t i = 0; i < x.n; i++) {
        y.v[i] = f(x.v[i], p);
    }
    return y;
}

/* The element of x that a broadcast to a larger shape puts at index. */
static double broadcast_at(ref x, td_shape wide, const int64_t *index)
{
    int64_t own[TD_MAX_DIMS];
    int missing = wide.ndim - x.shape.ndim;
    for (int d = 0; d < x.shape.ndim; d++) {
        own[d] = x.shape.dim[d] == 1 ? 0 : index[missing + d];
    }
    return x.v[ref_place(x.shape, own)];
}

static td_shape broadcast_shape(td_shape a, td_shape b)
{
    td_shape out = { .ndim = a.ndim > b.ndim ? a.ndim : b.ndim };
    for (int d = 0; d < out.ndim; d++) {
        int in_a = d - out.ndim + a.ndim, in_b = d - out.ndim + b.ndim;
        int64_t size = in_a >= 0 ? a.dim[in_a] : 1;
        out.dim[d] = size == 1 && in_b >= 0 ? b.dim[in_b] : size;
    }
    return out;
}

ref ref_binary(ref_binary_op op, ref a, ref b)
{
    ref y = ref_new(broadcast_shape(a.shape, b.shape), true);
    for (int64_t i = 0; i < y.n; i++) {
        int64_t index[TD_MAX_DIMS];
        ref_index(y.shape, i, index);
        double u = broadcast_at(a, y.shape, index), v = broadcast_at(b, y.shape, index);
        y.v[i] = op == REF_ADD ? u + v : op == REF_SUB ? u - v : op == REF_MUL ? u * v : u / v;
        y.terms[i] = op == REF_ADD || op == REF_SUB ? fabs(u) + fabs(v) : fabs(y.v[i]);
    }
    return y;
}

/* ---- reductions ---- */

static td_shape reduced_shape(td_shape shape, int dim, bool keep)
{
    if (dim < 0) {
        return TD_SCALAR;
    }
    td_shape out = { .ndim = 0 };
    for (int d = 0; d < shape.ndim; d++) {
        if (d != dim) {
            out.dim[out.ndim++] = shape.dim[d];
        } else if (keep) {
            out.dim[out.ndim++] = 1;
        }
    }
    return out;
}

ref ref_reduce(ref_reduce_op op, ref x, int dim, bool keep)
{
    ref y = ref_new(reduced_shape(x.shape, dim, keep), op == REF_SUM || op == REF_MEAN);
    td_shape kept = reduced_shape(x.shape, dim, true);
    double *best = new_array(y.n);
    int64_t count = dim < 0 ? x.n : x.shape.dim[dim];
    for (int64_t i = 0; i < x.n; i++) {
        int64_t index[TD_MAX_DIMS];
        ref_index(x.shape, i, index);
        int64_t along = dim < 0 ? i : index[dim];
        if (dim >= 0) {
            index[dim] = 0;
        }
        int64_t to = dim < 0 ? 0 : ref_place(kept, index);
        if (op == REF_SUM || op == REF_MEAN) {
            double scale = op == REF_MEAN ? 1.0 / (double)count : 1.0;
            y.v[to] += x.v[i] * scale;
            y.terms[to] += fabs(x.v[i]) * scale;
        } else if (along == 0 || x.v[i] > best[to]) {
            best[to] = x.v[i];
            y.v[to] = op == REF_MAX ? x.v[i] : (double)along;
        }
    }
    return y;
}

/* ---- shapes ---- */

ref ref_reshape(ref x, td_shape shape)
{
    ref y = ref_new(shape, false);
    assert_int_equal(y.n, x.n);
    memcpy(y.v, x.v, (size_t)x.n * sizeof *x.v);
    return y;
}

ref ref_permute(ref x, const int *order)
{
    td_shape shape = { .ndim = x.shape.ndim };
    for (int d = 0; d < shape.ndim; d++) {
        shape.dim[d] = x.shape.dim[order[d]];
    }
    ref y = ref_new(shape, false);
    for (int64_t i = 0; i < y.n; i++) {
        int64_t to[TD_MAX_DIMS], from[TD_MAX_DIMS];
        ref_index(shape, i, to);
        for (int d = 0; d < shape.ndim; d++) {
            from[order[d]] = to[d];
        }
        y.v[i] = x.v[ref_place(x.shape, from)];
    }
    return y;
}

ref ref_slice(ref x, int dim, int64_t start, int64_t count, int64_t step)
{
    td_shape shape = x.shape;
    shape.dim[dim] = count;
    ref y = ref_new(shape, false);
    for (int64_t i = 0; i < y.n; i++) {
        int64_t index[TD_MAX_DIMS];
        ref_index(shape, i, index);
        index[dim] = start + index[dim] * step;
        y.v[i] = x.v[ref_place(x.shape, index)];
    }
    return y;
}

ref ref_expand(ref x, td_shape shape)
{
    ref y = ref_new(shape, false);
    for (int64_t i = 0; i < y.n; i++) {
        int64_t index[TD_MAX_DIMS];
        ref_index(shape, i, index);
        y.v[i] = broadcast_at(x, shape, index);
    }
    return y;
}

ref ref_cat(ref a, ref b, int dim)
{
    td_shape shape = a.shape;
    shape.dim[dim] += b.shape.dim[dim];
    ref y = ref_new(shape, false);
    for (int64_t i = 0; i < y.n; i++) {
        int64_t index[TD_MAX_DIMS] = { 0 };
        ref_index(shape, i, index);
        bool first = index[dim] < a.shape.dim[dim];
        index[dim] -= first ? 0 : a.shape.dim[dim];
        y.v[i] = first ? a.v[ref_place(a.shape, index)] : b.v[ref_place(b.shape, index)];
    }
    return y;
}
