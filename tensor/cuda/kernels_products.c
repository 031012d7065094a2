/* Convolutions and matrix products: from tensors of any strides and float dtypes to products.h. */
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/products.h"

#include <string.h>

/* ---- operands and results ---- */

/* What two factors are multiplied in: 16 bits if one of them has no more, unless they are of two
 * kinds. */
static td_dtype factor_dtype(td_dtype a, td_dtype b)
{
    if (a == TD_F64) {
        return TD_F64;
    }
    if (td_is_half(a) && td_is_half(b) && a != b) {
        return TD_F32;
    }
    return td_is_half(a) ? a : b;
}

/* cuDNN's plans expect every tensor at a multiple of 16 bytes; so does cuBLASLt a bias. */
static bool is_aligned(const td_tensor *t)
{
    return (uintptr_t)td_ptr(t) % 16 == 0;
}

/* To read t dense, aligned and of a dtype. */
static void *operand(td_staged *staged, const td_tensor *t, td_layout layout, td_dtype dtype)
{
    void *half = t != NULL && td_is_layout(t, layout) ? td_cuda_half_of(t, dtype) : NULL;
    if (half != NULL && (uintptr_t)half % 16 == 0) {
        *staged = (td_staged){ .scratch = NULL };
        return half;
    }
    if (t != NULL && !is_aligned(t)) {
        return td_stage_copy(staged, t, layout, dtype);
    }
    const void *memory = td_stage_in_as(staged, t, layout, dtype);
    return (void *)(uintptr_t)memory; /* products.h writes to what the pass makes only */
}

/* Where a library writes: t itself, or scratch memory that is converted or added afterwards. */
typedef struct result {
    td_tensor *t, made;
    td_storage storage;
    td_layout layout;
    void *scratch; /* NULL: t itself */
    bool accumulate;
} result;

/* *accumulate stays true where the library adds to t itself. */
static void *begin_result(result *r, td_tensor *t, td_layout layout, td_dtype dtype,
                          bool *accumulate)
{
    *r = (result){ .t = t, .layout = layout, .accumulate = *accumulate };
    if (t->dtype == dtype && td_is_layout(t, layout) && is_aligned(t)) {
        return td_ptr(t);
    }
    *accumulate = false;
    td_device device = td_device_of(t);
    r->scratch = td_scratch(device, (size_t)td_numel(t) * td_dtype_size(dtype));
    td_wrap(&r->made, &r->storage, r->scratch, td_shape_of(t), dtype, layout, device);
    return r->scratch;
}

static void end_result(result *r)
{
    if (r->scratch == NULL) {
        return;
    }
    td_device device = td_device_of(r->t);
    const td_kernels *kernels = td_cuda_kernels();
    if (!r->accumulate) {
        kernels->copy(r->t, &r->made);
    } else {
        td_staged same;
        td_stage_in_as(&same, &r->made, r->layout, r->t->dtype);
        kernels->axpy(r->t, 1.0, same.tensor);
        td_stage_end(&same);
    }
    td_scratch_free(device, r->scratch);
}

/* y += bias along a dimension, where the library does not add it itself. */
static void add_bias(td_tensor *y, const td_tensor *bias, int dim)
{
    td_staged staged;
    td_stage_in_as(&staged, bias, TD_ROW_MAJOR, y->dtype);
    td_tensor wide = *staged.tensor;
    wide.ndim = y->ndim;
    for (int i = 0; i < y->ndim; i++) {
        wide.shape[i] = y->shape[i];
        wide.stride[i] = i == dim ? 1 : 0;
    }
    td_cuda_kernels()->binary(TD_BINARY_add, y, y, &wide);
    td_stage_end(&staged);
}

/* Whether there is nothing to multiply; y is then a sum of nothing (+ bias). */
static bool cuda_products_is_empty(td_tensor *y, const td_tensor *a, const td_tensor *b,
                                   const td_tensor *bias, int bias_dim, bool accumulate)
{
    if (td_numel(y) > 0 && td_numel(a) > 0 && td_numel(b) > 0) {
        return false;
    }
    if (td_numel(y) > 0 && !accumulate) {
        td_cuda_fill(y, 0.0);
    }
    if (td_numel(y) > 0 && bias != NULL) {
        add_bias(y, bias, bias_dim);
    }
    return true;
}

/* ---- convolutions ---- */

static td_cuda_conv cuda_products_describe(td_cuda_conv_pass pass, const td_tensor *x,
                                           const td_tensor *w, const td_tensor *y,
                                           const td_conv2d_params *p)
{
    const td_tensor *images = pass == TD_CUDA_CONV_BACKWARD_DATA ? y : x;
    const td_tensor *other = pass == TD_CUDA_CONV_BACKWARD_WEIGHTS ? y : w;
    td_cuda_conv c = {
        .pass = pass,
        .dtype = factor_dtype(images->dtype, other->dtype),
        .n = x->shape[0],
        .ic = x->shape[1],
        .ih = x->shape[2],
        .iw = x->shape[3],
        .oc = y->shape[1],
        .oh = y->shape[2],
        .ow = y->shape[3],
        .kh = (int)w->shape[2],
        .kw = (int)w->shape[3],
        .groups = p->groups,
    };
    c.tf32 = c.dtype == TD_F32 && p->math.precision == TD_PRECISION_TF32;
    for (int i = 0; i < 2; i++) {
        c.stride[i] = p->stride[i];
        c.pad[i] = p->pad[i];
        c.dilation[i] = p->dilation[i];
    }
    return c;
}

void td_cuda_conv2d(td_tensor *y, const td_tensor *x, const td_tensor *w, const td_tensor *bias,
                    const td_conv2d_params *params)
{
    if (!cuda_products_is_empty(y, x, w, bias, 1, false)) {
        td_cuda_conv conv = cuda_products_describe(TD_CUDA_CONV_FORWARD, x, w, y, params);
        td_device device = td_device_of(y);
        td_staged sx, sw, sb;
        result sy;
        void *from = operand(&sx, x, TD_IMAGE, conv.dtype);
        void *filter = operand(&sw, w, TD_FILTER, conv.dtype);
        void *shift = operand(&sb, bias, TD_ROW_MAJOR, conv.dtype);
        void *to = begin_result(&sy, y, TD_IMAGE, conv.dtype, &conv.accumulate);
        conv.bias = bias != NULL;
        bool apart = !td_cuda_vendor_conv(device, &conv, from, filter, to, shift);
        if (apart) {
            conv.bias = false;
            (void)td_cuda_vendor_conv(device, &conv, from, filter, to, NULL);
        }
        end_result(&sy);
        td_stage_end(&sb, &sw, &sx);
        if (apart) {
            add_bias(y, bias, 1);
        }
    }
}

/* out: dx or dw; other: the operand next to dy. 16-bit images give 16-bit gradients of filters,
 * which are converted. */
static void conv_gradient(td_cuda_conv conv, td_tensor *out, const td_tensor *dy,
                          const td_tensor *other, bool accumulate)
{
    bool for_input = conv.pass == TD_CUDA_CONV_BACKWARD_DATA;
    td_staged sdy, sother;
    result r;
    void *from = operand(&sdy, dy, TD_IMAGE, conv.dtype);
    void *by = operand(&sother, other, for_input ? TD_FILTER : TD_IMAGE, conv.dtype);
    conv.accumulate = accumulate;
    void *to =
        begin_result(&r, out, for_input ? TD_IMAGE : TD_FILTER, conv.dtype, &conv.accumulate);
    (void)td_cuda_vendor_conv(td_device_of(out), &conv, for_input ? to : by, for_input ? by : to,
                              from, NULL);
    end_result(&r);
    td_stage_end(&sother, &sdy);
}

void td_cuda_conv2d_grad_input(td_tensor *dx, const td_tensor *dy, const td_tensor *w,
                               const td_conv2d_params *params, bool accumulate)
{
    if (!cuda_products_is_empty(dx, dy, w, NULL, 0, accumulate)) {
        conv_gradient(cuda_products_describe(TD_CUDA_CONV_BACKWARD_DATA, dx, w, dy, params), dx, dy,
                      w, accumulate);
    }
}

void td_cuda_conv2d_grad_weight(td_tensor *dw, const td_tensor *dy, const td_tensor *x,
                                const td_conv2d_params *params, bool accumulate)
{
    if (!cuda_products_is_empty(dw, dy, x, NULL, 0, accumulate)) {
        conv_gradient(cuda_products_describe(TD_CUDA_CONV_BACKWARD_WEIGHTS, x, dw, dy, params), dw,
                      dy, x, accumulate);
    }
}

/* ---- matrix products ---- */

/* A matrix as cuBLASLt takes it: one of its two strides is 1, the other at least as large as a row.
 * (A dimension of size 1 has no stride that matters.) */
typedef struct matrix {
    bool transposed;
    int64_t ld;
} matrix;

static bool as_matrix(const td_tensor *t, matrix *m)
{
    int row = t->ndim - 2, column = t->ndim - 1;
    int64_t rows = t->shape[row], columns = t->shape[column];
    int64_t by_row = rows > 1 ? t->stride[row] : columns;
    int64_t by_column = columns > 1 ? t->stride[column] : 1;
    if (by_column == 1 && by_row >= columns) {
        *m = (matrix){ .ld = by_row };
        return true;
    }
    by_row = rows > 1 ? t->stride[row] : 1;
    by_column = columns > 1 ? t->stride[column] : rows;
    *m = (matrix){ .transposed = true, .ld = by_column };
    return by_row == 1 && by_column >= rows;
}

/* A factor of a dtype that as_matrix takes: t itself or a copy. */
static const td_tensor *factor(td_staged *staged, const td_tensor *t, td_dtype dtype, matrix *m)
{
    *staged = (td_staged){ .scratch = NULL };
    bool fits = as_matrix(t, m);
    if (t->dtype == dtype && fits) {
        return t;
    }
    void *half = fits ? td_cuda_half_of(t, dtype) : NULL;
    if (half != NULL) {
        td_wrap(&staged->copy, &staged->storage, half, td_shape_of(t), dtype, TD_ROW_MAJOR,
                td_device_of(t));
        memcpy(staged->copy.stride, t->stride, sizeof t->stride);
        return staged->tensor = &staged->copy;
    }
    if (t->dtype == dtype) {
        td_stage_copy(staged, t, TD_ROW_MAJOR, dtype);
    } else {
        td_stage_in_as(staged, t, TD_ROW_MAJOR, dtype);
    }
    (void)as_matrix(staged->tensor, m);
    return staged->tensor;
}

/* The places of one batch in a, b and c (and what is added, with c's strides); and the
 * innermost batch dimension, whose batches are one call. */
enum { OPERANDS = 4 };
typedef struct batches {
    const td_tensor *t[OPERANDS]; /* c, a, b, add: c itself where nothing else is added */
    int dims;                     /* of batches, without the innermost */
    int64_t index[TD_MAX_DIMS];
    int64_t offset[OPERANDS];
} batches;

static bool next_batch(batches *at)
{
    for (int d = at->dims - 1; d >= 0; d--) {
        at->index[d]++;
        bool more = at->index[d] < at->t[0]->shape[d];
        for (int i = 0; i < OPERANDS; i++) {
            at->offset[i] += more ? at->t[i]->stride[d] : -(at->index[d] - 1) * at->t[i]->stride[d];
        }
        if (more) {
            return true;
        }
        at->index[d] = 0;
    }
    return false;
}

/* Of operand i. */
static void *first_element(const batches *at, int i)
{
    const td_tensor *t = at->t[i];
    return (char *)td_ptr(t) + at->offset[i] * (int64_t)td_dtype_size(t->dtype);
}

/* Whether the matrices of all calls lie at multiples of 16 bytes: one choice of cuBLASLt's must do
 * for all of them. */
static bool all_aligned(const batches *at)
{
    for (int i = 0; i < OPERANDS; i++) {
        const td_tensor *t = at->t[i];
        if (!is_aligned(t)) {
            return false;
        }
        for (int d = 0; d < at->dims; d++) {
            int64_t bytes = t->stride[d] * (int64_t)td_dtype_size(t->dtype);
            if (t->shape[d] > 1 && bytes % 16 != 0) {
                return false;
            }
        }
    }
    return true;
}

/* The rows of all batches are one matrix if they share their right side: a Linear layer. */
static void join_rows(td_cuda_product *p)
{
    if (p->batch > 1 && p->b_batch == 0 && !p->a_t && p->a_batch == p->m * p->a_ld &&
        p->c_batch == p->m * p->c_ld) {
        p->m *= p->batch;
        p->batch = 1;
    }
}

/* false: cuBLASLt cannot add the bias, and nothing is done. */
static bool cuda_products_multiply(td_tensor *c, const td_tensor *add, const td_tensor *a,
                                   const td_tensor *b, const void *bias, td_cuda_product p)
{
    int inner = c->ndim - 3;
    p.batch = 1;
    if (inner >= 0) {
        p.batch = c->shape[inner];
        p.c_batch = c->stride[inner];
        p.a_batch = a->stride[inner];
        p.b_batch = b->stride[inner];
    }
    join_rows(&p);
    batches at = { .t = { c, a, b, add != NULL ? add : c }, .dims = inner > 0 ? inner : 0 };
    p.aligned = all_aligned(&at);
    p.adds = add != NULL;
    bool done;
    do { /* the first says it for all: they are of one shape */
        done = td_cuda_vendor_matmul(td_device_of(c), &p, first_element(&at, 0),
                                     p.adds ? first_element(&at, 3) : NULL, first_element(&at, 1),
                                     first_element(&at, 2), bias);
    } while (done && next_batch(&at));
    return done;
}

static bool is_row_major(const td_tensor *c, matrix *m)
{
    return as_matrix(c, m) && !m->transposed;
}

/* add: NULL, c, or dense as c is. Nothing is empty. */
static void multiply_and_add(td_tensor *c, const td_tensor *add, const td_tensor *a,
                             const td_tensor *b, const td_tensor *bias, td_math math)
{
    td_dtype dtype = factor_dtype(a->dtype, b->dtype);
    td_dtype c_dtype = c->dtype == dtype || dtype == TD_F64 ? dtype : TD_F32;
    td_staged sc = { .scratch = NULL }, sa, sb, shift;
    matrix ma, mb, mc;
    td_tensor *to = c;
    if (c->dtype != c_dtype || !is_row_major(c, &mc)) {
        td_stage_out_as(&sc, c, TD_ROW_MAJOR, c_dtype, add == c);
        to = sc.tensor;
        add = add == c ? to : add;
        (void)as_matrix(to, &mc);
    }
    const td_tensor *left = factor(&sa, a, dtype, &ma), *right = factor(&sb, b, dtype, &mb);
    const void *shift_at = operand(&shift, bias, TD_ROW_MAJOR, c_dtype);
    td_cuda_product product = {
        .m = c->shape[c->ndim - 2],
        .n = c->shape[c->ndim - 1],
        .k = a->shape[a->ndim - 1],
        .a_ld = ma.ld,
        .b_ld = mb.ld,
        .c_ld = mc.ld,
        .a_t = ma.transposed,
        .b_t = mb.transposed,
        .ab_dtype = dtype,
        .c_dtype = c_dtype,
        .tf32 = dtype == TD_F32 && math.precision == TD_PRECISION_TF32,
    };
    if (!cuda_products_multiply(to, add, left, right, shift_at, product)) {
        (void)cuda_products_multiply(to, add, left, right, NULL, product);
        add_bias(to, bias, to->ndim - 1);
    }
    td_stage_end(&shift, &sb, &sa, &sc);
}

void td_cuda_matmul(td_tensor *c, const td_tensor *a, const td_tensor *b, const td_tensor *bias,
                    bool accumulate, td_math math)
{
    if (!cuda_products_is_empty(c, a, b, bias, c->ndim - 1, accumulate)) {
        multiply_and_add(c, accumulate ? c : NULL, a, b, bias, math);
    }
}

void td_cuda_matmul_add(td_tensor *c, const td_tensor *add, const td_tensor *a, const td_tensor *b,
                        const td_tensor *bias, td_math math)
{
    multiply_and_add(c, add, a, b, bias, math);
}
