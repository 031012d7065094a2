/* What operators.def, the table of operations, needs to write a call. */
#include "nn/onnx/graph.h"

#include "autograd/ops/params.h"
#include "tensor/extend.h"

#include <string.h>

enum { BOOLEAN = 9 }; /* ONNX's dtype, which is u8 here */

/* ---- the call ---- */

static const td_onnx_value *value_in(const td_onnx_graph *g, int i)
{
    return td_onnx_value_of(g, g->call->inputs[i]);
}

static const td_onnx_value *result(const td_onnx_graph *g)
{
    return td_onnx_value_of(g, g->call->out);
}

static int dimension(const td_onnx_graph *g)
{
    return *(const int *)g->call->params;
}

static bool keeps_dimension(const td_onnx_graph *g)
{
    return result(g)->tensor.ndim == value_in(g, 0)->tensor.ndim;
}

/* The words of operators.def. */
#define IN(i) td_onnx_name_of(g, g->call->inputs[i])
#define A IN(0)
#define B IN(1)
#define C IN(2)
#define SAVED td_onnx_name_of(g, g->call->saved[0])
#define PARAMS(type) ((const type *)g->call->params)
#define P PARAMS(td_unary_params)->p
#define Q PARAMS(td_unary_params)->q
#define NODE(type, ...) td_onnx_put(g, #type, NULL, TD_IN(__VA_ARGS__), NULL)
#define NODE_WITH(type, inputs, ...) td_onnx_put(g, #type, NULL, TD_IN inputs, TD_WITH(__VA_ARGS__))
#define INTEGERS(...) td_onnx_integers(g, (int64_t[]){ __VA_ARGS__ }, COUNT_OF(__VA_ARGS__))
#define COUNT_OF(...) (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t))
#define NUMBER(value) td_onnx_filled(g, value_in(g, 0)->tensor.dtype, TD_SCALAR, value)
#define INTEGER(name, value) td_onnx_integer(#name, value)
#define REAL(name, value) td_onnx_real(#name, value)
#define TEXT(name, value) td_onnx_text(#name, value)
#define LIST(name, values, count) td_onnx_list(#name, values, count)
#define AXIS INTEGER(axis, dimension(g))
#define KEEPS INTEGER(keepdims, keeps_dimension(g))
#define TO_U8 INTEGER(to, td_onnx_dtype(TD_U8))

/* Input i, or elements of one value in its place. */
static const char *in_or(td_onnx_graph *g, int i, td_shape shape, double value)
{
    const char *name = IN(i);
    return name != NULL ? name : td_onnx_filled(g, value_in(g, 0)->tensor.dtype, shape, value);
}

/* Elements of `from` in the result's shape. At most one size -1. out: as td_onnx_put's. */
static void reshape_to_result(td_onnx_graph *g, const char *from, const char *out)
{
    const td_onnx_value *y = result(g);
    td_shape shape = td_shape_of(&y->tensor);
    int following = 0;
    for (int d = 0; d < shape.ndim; d++) {
        following += y->follows[d];
        shape.dim[d] = y->follows[d] ? -1 : shape.dim[d];
    }
    const char *to =
        following > 1 ? td_onnx_shape_name(g, y) : td_onnx_integers(g, shape.dim, shape.ndim);
    td_onnx_put(g, "Reshape", out, TD_IN(from, to), NULL);
}

/* ---- elements ---- */

/* c (x - c/2) with c = x between -delta and delta */
static void huber(td_onnx_graph *g)
{
    const char *c = NODE(Clip, A, NUMBER(-P), NUMBER(P));
    td_onnx_put(g, "Mul", g->out, TD_IN(c, NODE(Sub, A, NODE(Mul, c, NUMBER(0.5)))), NULL);
}

/* ---- reductions, and along one dimension ---- */

static void reduce(td_onnx_graph *g, const char *type)
{
    td_shape kept = PARAMS(td_reduce_params)->kept;
    int64_t axes[TD_MAX_DIMS];
    int count = 0;
    for (int d = 0; d < kept.ndim; d++) {
        if (kept.dim[d] == 1) {
            axes[count++] = d;
        }
    }
    bool keeps = result(g)->tensor.ndim == kept.ndim;
    const char *y =
        td_onnx_put(g, type, keeps ? g->out : NULL, TD_IN(A, td_onnx_integers(g, axes, count)),
                    TD_WITH(INTEGER(keepdims, 1)));
    if (!keeps) {
        reshape_to_result(g, y, g->out);
    }
}

/* The indices of as many largest, or smallest, as there are. */
static void argsort(td_onnx_graph *g)
{
    const td_argsort_params *p = g->call->params;
    const char *size = INTEGERS(value_in(g, 0)->tensor.shape[p->dim]);
    td_onnx_put_many(g, "TopK", TD_IN(td_onnx_temporary(g), g->out), TD_IN(A, size),
                     TD_WITH(INTEGER(axis, p->dim), INTEGER(largest, p->descending)));
}

/* ---- products ---- */

static void linear(td_onnx_graph *g)
{
    const char *b = C;
    if (value_in(g, 0)->tensor.ndim == 2) {
        td_onnx_put(g, "Gemm", g->out, TD_IN(A, B, b), TD_WITH(INTEGER(transB, 1)));
        return;
    }
    const char *w = NODE_WITH(Transpose, (B), LIST(perm, ((int64_t[]){ 1, 0 }), 2));
    const char *y = td_onnx_put(g, "MatMul", b == NULL ? g->out : NULL, TD_IN(A, w), NULL);
    if (b != NULL) {
        td_onnx_put(g, "Add", g->out, TD_IN(y, b), NULL);
    }
}

/* Numbers for height and width as ONNX wants them; of padding also those behind. */
static td_proto sides(const char *name, const int hw[2], int count)
{
    return td_onnx_list(name, (int64_t[]){ hw[0], hw[1], hw[0], hw[1] }, count);
}

static void conv(td_onnx_graph *g, const char *type)
{
    const td_conv2d_params *p = g->call->params;
    bool transposed = strcmp(type, "ConvTranspose") == 0;
    const td_tensor *x = &value_in(g, 0)->tensor, *w = &value_in(g, 1)->tensor;
    int more[2];
    for (int d = 0; d < 2; d++) {
        int64_t least = (x->shape[2 + d] - 1) * p->stride[d] - 2 * (int64_t)p->pad[d] +
                        p->dilation[d] * (w->shape[2 + d] - 1) + 1;
        more[d] = (int)(result(g)->tensor.shape[2 + d] - least);
    }
    td_proto extra = transposed ? sides("output_padding", more, 2) : (td_proto){ 0 };
    td_onnx_put(g, type, g->out, TD_IN(A, B, C),
                TD_WITH(sides("strides", p->stride, 2), sides("pads", p->pad, 4),
                        sides("dilations", p->dilation, 2), INTEGER(group, p->groups), extra));
}

/* ---- shapes ---- */

static td_proto order(const td_onnx_graph *g)
{
    int64_t perm[TD_MAX_DIMS];
    int count = result(g)->tensor.ndim;
    for (int d = 0; d < count; d++) {
        perm[d] = PARAMS(int)[d];
    }
    return LIST(perm, perm, count);
}

static void slice(td_onnx_graph *g)
{
    const td_slice_params *p = g->call->params;
    int64_t end = p->start + (p->count > 0 ? (p->count - 1) * p->step + 1 : 0);
    bool rest = end + p->step > value_in(g, 0)->tensor.shape[p->dim]; /* up to the last element */
    end = rest && p->count > 0 ? INT64_MAX : end;
    td_onnx_put(g, "Slice", g->out,
                TD_IN(A, INTEGERS(p->start), INTEGERS(end), INTEGERS(p->dim), INTEGERS(p->step)),
                NULL);
}

static void cat(td_onnx_graph *g)
{
    const td_cat_params *p = g->call->params;
    const char **names = td_step_bytes(((size_t)p->count + 1) * sizeof *names);
    for (int i = 0; i < p->count; i++) {
        names[i] = IN(i);
    }
    td_onnx_put(g, "Concat", g->out, names, TD_WITH(INTEGER(axis, p->dim)));
}

static void pad(td_onnx_graph *g)
{
    const td_pad_params *p = g->call->params;
    const td_tensor *x = &value_in(g, 0)->tensor, *y = &result(g)->tensor;
    int64_t pads[2 * TD_MAX_DIMS];
    for (int d = 0; d < x->ndim; d++) {
        pads[d] = p->before[d];
        pads[x->ndim + d] = y->shape[d] - x->shape[d] - p->before[d];
    }
    const char *sizes = td_onnx_integers(g, pads, 2 * x->ndim);
    td_onnx_put(g, "Pad", g->out, TD_IN(A, sizes, NUMBER(p->value)), NULL);
}

/* ---- normalisation, pooling, losses ---- */

/* Whether a last window reaches beyond the padding. ONNX counts a window that begins there as one,
 * too, PyTorch and tandem do not: where no other does, the file has no ceil_mode. */
static bool pool_reaches_beyond(const td_onnx_graph *g, const td_pool2d_params *p)
{
    const td_tensor *x = &value_in(g, 0)->tensor, *y = &result(g)->tensor;
    bool beyond = false;
    for (int d = 0; d < 2; d++) {
        int64_t room = x->shape[2 + d] + 2 * (int64_t)p->pad[d];
        beyond |= (y->shape[2 + d] - 1) * p->stride[d] + p->kernel[d] > room;
    }
    return beyond;
}

static void pool(td_onnx_graph *g, const char *type, const char *x, const td_pool2d_params *p,
                 const char *out)
{
    bool average = strcmp(type, "AveragePool") == 0;
    td_proto extra = average ? INTEGER(count_include_pad, p->count_include_pad) : (td_proto){ 0 };
    td_onnx_put(g, type, out, TD_IN(x),
                TD_WITH(sides("kernel_shape", p->kernel, 2), sides("strides", p->stride, 2),
                        sides("pads", p->pad, 4), INTEGER(ceil_mode, pool_reaches_beyond(g, p)),
                        extra));
}

/* [+ add] [relu or gelu] [max_pool] behind it, as the library fuses them. */
static void batch_norm(td_onnx_graph *g)
{
    const td_batch_norm_params *p = g->call->params;
    td_shape channels = TD_SHAPE(value_in(g, 0)->tensor.shape[1]);
    if (p->training) {
        td_onnx_refuse(g, "takes the batch's statistics: in a file it must be in evaluation mode");
        return;
    }
    const char *add = IN(3), *weight = in_or(g, 1, channels, 1.0),
               *bias = in_or(g, 2, channels, 0.0);
    const char *statistics[] = { td_onnx_name_of(g, g->call->reads[0]),
                                 td_onnx_name_of(g, g->call->reads[1]) };
    const char *y = td_onnx_put(
        g, "BatchNormalization", add != NULL || p->activation != TD_NORM_LINEAR ? NULL : g->out,
        TD_IN(A, weight, bias, statistics[0], statistics[1]), TD_WITH(REAL(epsilon, p->eps)));
    if (add != NULL) {
        y = td_onnx_put(g, "Add", p->activation != TD_NORM_LINEAR ? NULL : g->out, TD_IN(y, add),
                        NULL);
    }
    if (p->activation != TD_NORM_LINEAR) {
        y = td_onnx_put(g, p->activation == TD_NORM_RELU ? "Relu" : "Gelu",
                        p->pools ? NULL : g->out, TD_IN(y), NULL);
    }
    if (p->pools) {
        pool(g, "MaxPool", y, &p->max_pool, g->out);
    }
}

static void layer_norm(td_onnx_graph *g)
{
    const td_tensor *x = &value_in(g, 0)->tensor;
    const char *weight = in_or(g, 1, TD_SHAPE(x->shape[x->ndim - 1]), 1.0);
    td_onnx_put(g, "LayerNormalization", g->out, TD_IN(A, weight, C),
                TD_WITH(REAL(epsilon, PARAMS(td_layer_norm_params)->eps)));
}

/* Groups are the channels of an instance normalisation; x's channels have numbers of their own. */
static void group_norm(td_onnx_graph *g)
{
    const td_tensor *x = &value_in(g, 0)->tensor;
    const td_layer_norm_params *p = g->call->params;
    td_shape groups = TD_SHAPE(p->groups), channels = TD_SHAPE(x->shape[1]);
    const char *one = td_onnx_filled(g, x->dtype, groups, 1.0);
    const char *zero = td_onnx_filled(g, x->dtype, groups, 0.0);
    const char *rows = NODE(Reshape, A, INTEGERS(0, p->groups, -1));
    rows = NODE_WITH(InstanceNormalization, (rows, one, zero), REAL(epsilon, p->eps));
    const char *y = td_onnx_temporary(g);
    reshape_to_result(g, rows, y);
    y = NODE(Mul, y, NODE(Reshape, in_or(g, 1, channels, 1.0), INTEGERS(-1, 1, 1)));
    const char *bias = NODE(Reshape, in_or(g, 2, channels, 0.0), INTEGERS(-1, 1, 1));
    td_onnx_put(g, "Add", g->out, TD_IN(y, bias), NULL);
}

static void loss_of_labels(td_onnx_graph *g, const char *type)
{
    const td_entropy_params *p = g->call->params;
    const char *labels = td_onnx_name_of(g, g->call->saved[1]);
    const char *weight = td_onnx_name_of(g, g->call->saved[2]);
    bool none = result(g)->tensor.ndim == 1;
    td_proto ignore =
        p->ignore != TD_IGNORES_NONE ? INTEGER(ignore_index, p->ignore) : (td_proto){ 0 };
    if (p->smoothing != 0.0) {
        td_onnx_refuse(g, "has no form in ONNX with label smoothing, which is for training");
        return;
    }
    td_onnx_put(g, type, g->out, TD_IN(A, labels, weight),
                TD_WITH(TEXT(reduction, none     ? "none"
                                        : p->sum ? "sum"
                                                 : "mean"),
                        ignore));
}

bool td_onnx_write_call(td_onnx_graph *g)
{
#define TD_ONNX_BY(operation, nodes)                                                               \
    if (strcmp(g->call->op, #operation) == 0) {                                                    \
        nodes;                                                                                     \
        return true;                                                                               \
    }
#define TD_ONNX(operation, type, inputs)                                                           \
    TD_ONNX_BY(operation, td_onnx_put(g, #type, g->out, TD_IN inputs, NULL))
#define TD_ONNX_WITH(operation, type, inputs, ...)                                                 \
    TD_ONNX_BY(operation, td_onnx_put(g, #type, g->out, TD_IN inputs, TD_WITH(__VA_ARGS__)))
#include "nn/onnx/operators.def"
    return false;
}
