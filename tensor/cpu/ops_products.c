/* Matrix products and convolutions: from tensors to the plain pointers of gemm.h and conv.h. The
 * kernels there take f32 and f64, and some processors' bf16; other 16-bit tensors are converted
 * before and after. */
#include "tensor/cpu/conv.h"
#include "tensor/cpu/cpu_device.h"
#include "tensor/cpu/gemm_few.h"
#include "tensor/cpu/ops.h"

/* ---- matrix products ---- */

/* A tensor's batch dimensions alone. */
static td_tensor batch_of(const td_tensor *t)
{
    td_tensor batch = *t;
    batch.ndim = t->ndim - 2;
    return batch;
}

/* The rows of all batches may be one matrix, if they share their right side: a Linear layer. */
static void join_batch(td_gemm_desc *g)
{
    if (g->batch.count > 1 && g->batch.b == 0 && g->batch.a == g->m * g->a_row &&
        g->batch.c == g->m * g->c_row) {
        g->m *= g->batch.count;
        g->batch.count = 1;
    }
}

static const char *forward(const void *base, int64_t elements, td_dtype dtype)
{
    return (const char *)base + elements * (int64_t)td_dtype_size(dtype);
}

static void run_gemm(td_device device, const td_gemm_desc *g)
{
    size_t bytes = td_gemm_workspace(g);
    void *workspace = bytes ? td_scratch(device, bytes) : NULL;
    td_gemm(td_cpu_pool(device), g, workspace);
    td_scratch_free(device, workspace);
}

/* The product of each batch, whose dtypes g has. */
static void multiply_batches(td_gemm_desc g, td_tensor *c, const td_tensor *a, const td_tensor *b,
                             const void *bias, bool accumulate)
{
    int row = c->ndim - 2, column = c->ndim - 1;
    g.m = c->shape[row];
    g.n = c->shape[column];
    g.k = a->shape[column];
    g.a_row = a->stride[row];
    g.a_col = a->stride[column];
    g.b_row = b->stride[row];
    g.b_col = b->stride[column];
    g.c_row = c->stride[row];
    g.bias = bias;
    g.accumulate = accumulate;
    td_walk walk;
    td_tensor batches[3] = { batch_of(c), batch_of(a), batch_of(b) };
    td_walk_init(&walk, 3, (const td_tensor *[]){ &batches[0], &batches[1], &batches[2] });
    td_cursor at;
    for (int64_t n = td_cursor_start(&at, &walk, 0, walk.count); n; n = td_cursor_next(&at)) {
        td_gemm_desc part = g;
        part.c = td_ptr(c);
        part.c = (char *)part.c + at.offset[0] * (int64_t)td_dtype_size(c->dtype);
        part.a = forward(td_ptr(a), at.offset[1], a->dtype);
        part.b = forward(td_ptr(b), at.offset[2], b->dtype);
        part.batch.count = n;
        part.batch.c = walk.stride[0][0];
        part.batch.a = walk.stride[1][0];
        part.batch.b = walk.stride[2][0];
        join_batch(&part);
        run_gemm(td_device_of(c), &part);
    }
}

/* ---- dtypes ---- */

enum { ROUND_PIECE = 4096 };

/* What a product is computed in by the general kernels. */
static td_dtype general_dtype(const td_tensor *t)
{
    return t->dtype == TD_F64 ? TD_F64 : TD_F32;
}

/* An f32 factor beside a bf16 one counts as bf16 for the general kernels too, as it does for those
 * that multiply bf16. */
static bool is_rounded(const td_tensor *t, const td_tensor *other)
{
    return t->dtype == TD_F32 && other->dtype == TD_BF16;
}

typedef struct round_job {
    float *values;
    int64_t count;
} round_job;

static void products_round_task(void *ctx, int64_t task)
{
    const round_job *job = ctx;
    int64_t end = td_min64(job->count, (task + 1) * ROUND_PIECE);
    for (int64_t i = task * ROUND_PIECE; i < end; i++) {
        job->values[i] = td_bf16_to_f32(td_f32_to_bf16(job->values[i]));
    }
}

/* To read a factor in a layout as the general kernels take it. */
static const void *stage_factor(td_staged *staged, const td_tensor *t, const td_tensor *other,
                                td_layout layout)
{
    if (!is_rounded(t, other)) {
        return td_stage_in_as(staged, t, layout, general_dtype(t));
    }
    float *values = td_stage_copy(staged, t, layout, TD_F32);
    round_job job = { values, td_numel(t) };
    td_pool_run(td_cpu_pool(td_device_of(t)), td_divide_up(job.count, ROUND_PIECE),
                products_round_task, &job);
    return values;
}

/* The same for a matrix, whose strides do not matter. */
static const td_tensor *stage_matrix(td_staged *staged, const td_tensor *t, const td_tensor *other)
{
    staged->scratch = NULL;
    if (t->dtype == general_dtype(t) && !is_rounded(t, other)) {
        return t;
    }
    stage_factor(staged, t, other, TD_ROW_MAJOR);
    return staged->tensor;
}

/* A matrix that is dense along its rows or its columns, as the bf16 kernels want it. (A single row
 * may become many: join_batch.) */
static const td_tensor *stage_dense(td_staged *staged, const td_tensor *t)
{
    staged->scratch = NULL;
    int row = t->ndim - 2, column = t->ndim - 1;
    if (t->stride[column] == 1 || t->shape[column] == 1 || t->stride[row] == 1) {
        return t;
    }
    td_stage_in(staged, t, TD_ROW_MAJOR);
    return staged->tensor;
}

/* What is multiplied in which way: by the bf16 kernels, if there are any for these dtypes. */
static td_gemm_desc dtypes_of(const td_tensor *c, const td_tensor *a, const td_tensor *b,
                              td_math math)
{
    bool split = a->dtype == TD_F32 && b->dtype == TD_F32;
    bool known = (c->dtype == TD_F32 || c->dtype == TD_BF16) &&
                 (a->dtype == TD_BF16 || a->dtype == TD_F32) &&
                 (b->dtype == TD_BF16 || b->dtype == TD_F32);
    if (!known || !td_gemm_kernels_for(TD_BF16) ||
        (split && (c->dtype != TD_F32 || math.precision != TD_PRECISION_BF16X3))) {
        return (td_gemm_desc){ .dtype = general_dtype(c) };
    }
    return (td_gemm_desc){
        .dtype = c->dtype, .bf16 = true, .split = split, .a_dtype = a->dtype, .b_dtype = b->dtype
    };
}

void td_cpu_matmul(td_tensor *c, const td_tensor *a, const td_tensor *b, const td_tensor *bias,
                   bool accumulate, td_math math)
{
    td_gemm_desc g = dtypes_of(c, a, b, math);
    td_staged sc, sa, sb, shift; /* large: not cleared */
    td_tensor *to = c;
    sc.scratch = NULL;
    if (c->dtype != g.dtype || (c->shape[c->ndim - 1] > 1 && c->stride[c->ndim - 1] != 1)) {
        td_stage_out_as(&sc, c, TD_ROW_MAJOR, g.dtype, accumulate);
        to = sc.tensor;
    }
    const td_tensor *left, *right;
    if (g.bf16) {
        left = stage_dense(&sa, a);
        right = stage_dense(&sb, b);
    } else {
        left = stage_matrix(&sa, a, b);
        right = stage_matrix(&sb, b, a);
    }
    const void *add = td_stage_in_as(&shift, bias, TD_ROW_MAJOR, g.bf16 ? TD_F32 : g.dtype);
    multiply_batches(g, to, left, right, add, accumulate);
    td_stage_end(&shift, &sb, &sa, &sc);
}

void td_cpu_matmul_few(td_tensor *c, const td_tensor *a, const td_tensor *b, const td_tensor *bias)
{
    td_gemm_desc g = { .dtype = TD_F32,
                       .m = c->shape[0],
                       .n = c->shape[1],
                       .k = a->shape[1],
                       .a = td_ptr(a),
                       .a_row = a->stride[0],
                       .a_col = a->stride[1],
                       .b = td_ptr(b),
                       .b_row = b->stride[0],
                       .b_col = b->stride[1],
                       .c = td_ptr(c),
                       .c_row = c->stride[0],
                       .bias = bias != NULL ? td_ptr(bias) : NULL,
                       .batch.count = 1,
                       .b_dtype = b->dtype };
    td_gemm_few(td_cpu_pool(td_device_of(c)), &g);
}

/* ---- convolutions ---- */

/* As bf16 kernels multiply it, if this processor has them for this case and these dtypes. */
static bool is_bf16(const td_conv2d_desc *d, td_dtype x, td_dtype w, td_dtype y, td_math math)
{
    bool split = x == TD_F32 && w == TD_F32 && y == TD_F32 && math.precision == TD_PRECISION_BF16X3;
    bool mixed = x == TD_BF16 && y == TD_BF16 && (w == TD_F32 || w == TD_BF16);
    return (split || mixed) && td_conv2d_takes_bf16(d);
}

static td_conv2d_desc products_describe(const td_tensor *x, const td_tensor *w, const td_tensor *y,
                                        const td_conv2d_params *p)
{
    td_conv2d_desc d = {
        .dtype = general_dtype(x),
        .n = x->shape[0],
        .ic = x->shape[1],
        .ih = x->shape[2],
        .iw = x->shape[3],
        .oc = y->shape[1],
        .oh = y->shape[2],
        .ow = y->shape[3],
        .kh = (int)w->shape[2],
        .kw = (int)w->shape[3],
        .stride_h = p->stride[0],
        .stride_w = p->stride[1],
        .pad_h = p->pad[0],
        .pad_w = p->pad[1],
        .dil_h = p->dilation[0],
        .dil_w = p->dilation[1],
        .groups = p->groups,
        .winograd = p->math.winograd ? TD_WINOGRAD_BY_RULES : TD_WINOGRAD_NEVER,
        .weight_dtype = w->dtype,
    };
    if (is_bf16(&d, x->dtype, w->dtype, y->dtype, p->math)) {
        d.bf16 = true;
        d.dtype = x->dtype;
    }
    return d;
}

static const void *stage_operand(td_staged *staged, const td_conv2d_desc *d, const td_tensor *t,
                                 const td_tensor *other, td_layout layout)
{
    return d->bf16 ? td_stage_in(staged, t, layout) : stage_factor(staged, t, other, layout);
}

/* Of the bias, and of the gradient of the weights. */
static td_dtype products_sums_dtype(const td_conv2d_desc *d)
{
    return d->bf16 ? TD_F32 : d->dtype;
}

/* Runs a pass in a workspace of the device. */
static void run_conv(td_device device, const td_conv2d_call *call)
{
    size_t bytes = td_conv2d_workspace(call->desc, call->pass);
    void *workspace = bytes ? td_scratch(device, bytes) : NULL;
    td_conv2d_run(td_cpu_pool(device), call, workspace);
    td_scratch_free(device, workspace);
}

void td_cpu_conv2d(td_tensor *y, const td_tensor *x, const td_tensor *w, const td_tensor *bias,
                   const td_conv2d_params *params)
{
    td_conv2d_desc desc = products_describe(x, w, y, params);
    td_staged sy, sx, sw, sb;
    const void *from = stage_operand(&sx, &desc, x, w, TD_IMAGE);
    const void *filter = stage_operand(&sw, &desc, w, x, TD_FILTER);
    const void *shift = td_stage_in_as(&sb, bias, TD_ROW_MAJOR, products_sums_dtype(&desc));
    void *to = td_stage_out_as(&sy, y, TD_IMAGE, desc.dtype, false);
    run_conv(td_device_of(y), &(td_conv2d_call){ .desc = &desc,
                                                 .pass = TD_CONV2D_FORWARD,
                                                 .x = from,
                                                 .w = filter,
                                                 .y = to,
                                                 .bias = shift });
    td_stage_end(&sy, &sb, &sw, &sx);
}

void td_cpu_conv2d_grad_input(td_tensor *dx, const td_tensor *dy, const td_tensor *w,
                              const td_conv2d_params *params, bool accumulate)
{
    td_conv2d_desc desc = products_describe(dx, w, dy, params);
    td_staged sdx, sdy, sw;
    const void *from = stage_operand(&sdy, &desc, dy, w, TD_IMAGE);
    const void *filter = stage_operand(&sw, &desc, w, dy, TD_FILTER);
    void *to = td_stage_out_as(&sdx, dx, TD_IMAGE, desc.dtype, accumulate);
    run_conv(td_device_of(dx), &(td_conv2d_call){ .desc = &desc,
                                                  .pass = TD_CONV2D_BACKWARD_DATA,
                                                  .x = to,
                                                  .w = filter,
                                                  .y = from,
                                                  .accumulate = accumulate });
    td_stage_end(&sdx, &sw, &sdy);
}

void td_cpu_conv2d_grad_weight(td_tensor *dw, const td_tensor *dy, const td_tensor *x,
                               const td_conv2d_params *params, bool accumulate)
{
    td_conv2d_desc desc = products_describe(x, dw, dy, params);
    td_staged sdw, sdy, sx;
    const void *from = stage_operand(&sdy, &desc, dy, x, TD_IMAGE);
    const void *input = stage_operand(&sx, &desc, x, dy, TD_IMAGE);
    void *to = td_stage_out_as(&sdw, dw, TD_FILTER, products_sums_dtype(&desc), accumulate);
    run_conv(td_device_of(dw), &(td_conv2d_call){ .desc = &desc,
                                                  .pass = TD_CONV2D_BACKWARD_WEIGHTS,
                                                  .x = input,
                                                  .w = to,
                                                  .y = from,
                                                  .accumulate = accumulate });
    td_stage_end(&sdw, &sx, &sdy);
}
