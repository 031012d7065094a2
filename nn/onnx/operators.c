/* How each operation is written: a line of the table for each. What the library has fused is
 * written as its parts. The definitions are ONNX's (github.com/onnx/onnx, Operators.md). */
#include "nn/onnx/graph.h"

#include "autograd/ops/params.h"
#include "tensor/extend.h"

#include <math.h>
#include <string.h>

enum { BOOLEAN = 9 }; /* ONNX's dtype, which is u8 here */

/* ---- the call ---- */

static const td_onnx_value *value_in(const td_onnx_graph *g, int i)
{
    return td_onnx_value_of(g, g->call->inputs[i]);
}

static const char *in(td_onnx_graph *g, int i)
{
    return td_onnx_name_of(g, g->call->inputs[i]);
}

/* Input i, or elements of one value in its place. */
static const char *in_or(td_onnx_graph *g, int i, td_shape shape, double value)
{
    const char *name = in(g, i);
    return name != NULL ? name : td_onnx_filled(g, value_in(g, 0)->tensor.dtype, shape, value);
}

static const td_onnx_value *result(const td_onnx_graph *g)
{
    return td_onnx_value_of(g, g->call->out);
}

/* A number of x's dtype. */
static const char *number(td_onnx_graph *g, double value)
{
    return td_onnx_filled(g, value_in(g, 0)->tensor.dtype, TD_SCALAR, value);
}

/* Elements of `from` in the result's shape. At most one size -1. out: as td_onnx_put's. */
static const char *reshape_to_result(td_onnx_graph *g, const char *from, const char *out)
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
    return td_onnx_put(g, "Reshape", out, TD_IN(from, to), NULL);
}

/* ---- elements ---- */

static void plain(td_onnx_graph *g, const char *type)
{
    td_onnx_put(g, type, g->out, TD_IN(in(g, 0), in(g, 1), in(g, 2), in(g, 3)), NULL);
}

static double parameter(const td_onnx_graph *g)
{
    return ((const td_unary_params *)g->call->params)->p;
}

static void with_number(td_onnx_graph *g, const char *type)
{
    td_onnx_put(g, type, g->out, TD_IN(in(g, 0), number(g, parameter(g))), NULL);
}

static void with_alpha(td_onnx_graph *g, const char *type)
{
    td_onnx_put(g, type, g->out, TD_IN(in(g, 0)), TD_WITH(td_onnx_real("alpha", parameter(g))));
}

static void hard_sigmoid(td_onnx_graph *g, const char *type)
{
    td_onnx_put(g, type, g->out, TD_IN(in(g, 0)),
                TD_WITH(td_onnx_real("alpha", 1.0 / 6.0), td_onnx_real("beta", 0.5)));
}

static void clip(td_onnx_graph *g, const char *type)
{
    const td_unary_params *p = g->call->params;
    bool six = p->op == TD_UNARY_relu6;
    const char *low = number(g, six ? 0.0 : p->p), *high = number(g, six ? 6.0 : p->q);
    td_onnx_put(g, type, g->out, TD_IN(in(g, 0), low, high), NULL);
}

static void gelu(td_onnx_graph *g, const char *type)
{
    bool tanh = ((const td_unary_params *)g->call->params)->op == TD_UNARY_gelu_tanh;
    td_onnx_put(g, type, g->out, TD_IN(in(g, 0)),
                TD_WITH(td_onnx_text("approximate", tanh ? "tanh" : "none")));
}

static void silu(td_onnx_graph *g, const char *type)
{
    const char *gate = td_onnx_put(g, "Sigmoid", NULL, TD_IN(in(g, 0)), NULL);
    td_onnx_put(g, type, g->out, TD_IN(in(g, 0), gate), NULL);
}

static void rsqrt(td_onnx_graph *g, const char *type)
{
    td_onnx_put(g, type, g->out, TD_IN(td_onnx_put(g, "Sqrt", NULL, TD_IN(in(g, 0)), NULL)), NULL);
}

/* c (x - c/2) with c = x between -delta and delta */
static void huber(td_onnx_graph *g, const char *type)
{
    double delta = parameter(g);
    const char *bounds[] = { number(g, -delta), number(g, delta) };
    const char *c = td_onnx_put(g, "Clip", NULL, TD_IN(in(g, 0), bounds[0], bounds[1]), NULL);
    const char *half = td_onnx_put(g, "Mul", NULL, TD_IN(c, number(g, 0.5)), NULL);
    const char *rest = td_onnx_put(g, "Sub", NULL, TD_IN(in(g, 0), half), NULL);
    td_onnx_put(g, type, g->out, TD_IN(c, rest), NULL);
}

static void compare(td_onnx_graph *g, const char *type)
{
    bool unequal = strcmp(type, "Not") == 0;
    const char *y = td_onnx_put(g, unequal ? "Equal" : type, NULL, TD_IN(in(g, 0), in(g, 1)), NULL);
    y = unequal ? td_onnx_put(g, "Not", NULL, TD_IN(y), NULL) : y;
    td_onnx_put(g, "Cast", g->out, TD_IN(y), TD_WITH(td_onnx_integer("to", td_onnx_dtype(TD_U8))));
}

static void where(td_onnx_graph *g, const char *type)
{
    const char *condition =
        td_onnx_put(g, "Cast", NULL, TD_IN(td_onnx_name_of(g, g->call->saved[0])),
                    TD_WITH(td_onnx_integer("to", BOOLEAN)));
    td_onnx_put(g, type, g->out, TD_IN(condition, in(g, 0), in(g, 1)), NULL);
}

static void cast(td_onnx_graph *g, const char *type)
{
    int dtype = td_onnx_dtype(result(g)->tensor.dtype);
    td_onnx_put(g, type, g->out, TD_IN(in(g, 0)), TD_WITH(td_onnx_integer("to", dtype)));
}

/* ---- reductions, and along one dimension ---- */

static int dimension(const td_onnx_graph *g)
{
    return *(const int *)g->call->params;
}

static void reduce(td_onnx_graph *g, const char *type)
{
    const td_reduce_params *p = g->call->params;
    int64_t axes[TD_MAX_DIMS];
    int count = 0;
    for (int d = 0; d < p->kept.ndim; d++) {
        if (p->kept.dim[d] == 1) {
            axes[count++] = d;
        }
    }
    bool keeps = result(g)->tensor.ndim == p->kept.ndim;
    const char *y = td_onnx_put(g, type, keeps ? g->out : NULL,
                                TD_IN(in(g, 0), td_onnx_integers(g, axes, count)),
                                TD_WITH(td_onnx_integer("keepdims", 1)));
    if (!keeps) {
        reshape_to_result(g, y, g->out);
    }
}

static bool keeps_dimension(const td_onnx_graph *g)
{
    return result(g)->tensor.ndim == value_in(g, 0)->tensor.ndim;
}

static void reduce_one(td_onnx_graph *g, const char *type)
{
    const char *axis = td_onnx_integers(g, &(int64_t){ dimension(g) }, 1);
    td_onnx_put(g, type, g->out, TD_IN(in(g, 0), axis),
                TD_WITH(td_onnx_integer("keepdims", keeps_dimension(g))));
}

static void argmax(td_onnx_graph *g, const char *type)
{
    td_onnx_put(g, type, g->out, TD_IN(in(g, 0)),
                TD_WITH(td_onnx_integer("axis", dimension(g)),
                        td_onnx_integer("keepdims", keeps_dimension(g))));
}

static void cumsum(td_onnx_graph *g, const char *type)
{
    const char *axis = td_onnx_integers(g, &(int64_t){ dimension(g) }, 1);
    td_onnx_put(g, type, g->out, TD_IN(in(g, 0), axis), NULL);
}

static void along_axis(td_onnx_graph *g, const char *type)
{
    td_onnx_put(g, type, g->out, TD_IN(in(g, 0)), TD_WITH(td_onnx_integer("axis", dimension(g))));
}

/* The indices of as many largest, or smallest, as there are. */
static void argsort(td_onnx_graph *g, const char *type)
{
    const td_argsort_params *p = g->call->params;
    const char *size = td_onnx_integers(g, &value_in(g, 0)->tensor.shape[p->dim], 1);
    td_onnx_put_many(
        g, type, TD_IN(td_onnx_temporary(g), g->out), TD_IN(in(g, 0), size),
        TD_WITH(td_onnx_integer("axis", p->dim), td_onnx_integer("largest", p->descending)));
}

/* ---- products ---- */

static void linear(td_onnx_graph *g, const char *type)
{
    const char *x = in(g, 0), *w = in(g, 1), *b = in(g, 2);
    if (value_in(g, 0)->tensor.ndim == 2) {
        td_onnx_put(g, type, g->out, TD_IN(x, w, b), TD_WITH(td_onnx_integer("transB", 1)));
        return;
    }
    w = td_onnx_put(g, "Transpose", NULL, TD_IN(w),
                    TD_WITH(td_onnx_list("perm", ((int64_t[]){ 1, 0 }), 2)));
    const char *y = td_onnx_put(g, "MatMul", b == NULL ? g->out : NULL, TD_IN(x, w), NULL);
    if (b != NULL) {
        td_onnx_put(g, "Add", g->out, TD_IN(y, b), NULL);
    }
}

static void conv(td_onnx_graph *g, const char *type)
{
    const td_conv2d_params *p = g->call->params;
    int64_t strides[2], pads[4], dilations[2], more[2] = { 0 };
    bool transposed = strcmp(type, "ConvTranspose") == 0;
    const td_tensor *x = &value_in(g, 0)->tensor, *w = &value_in(g, 1)->tensor;
    for (int d = 0; d < 2; d++) {
        strides[d] = p->stride[d];
        dilations[d] = p->dilation[d];
        pads[d] = pads[2 + d] = p->pad[d];
        int64_t least = (x->shape[2 + d] - 1) * strides[d] - 2 * pads[d] +
                        dilations[d] * (w->shape[2 + d] - 1) + 1;
        more[d] = transposed ? result(g)->tensor.shape[2 + d] - least : 0;
    }
    td_proto extra = transposed ? td_onnx_list("output_padding", more, 2) : (td_proto){ 0 };
    td_onnx_put(g, type, g->out, TD_IN(in(g, 0), in(g, 1), in(g, 2)),
                TD_WITH(td_onnx_list("strides", strides, 2), td_onnx_list("pads", pads, 4),
                        td_onnx_list("dilations", dilations, 2),
                        td_onnx_integer("group", p->groups), extra));
}

/* ---- shapes ---- */

static void permute(td_onnx_graph *g, const char *type)
{
    const int *order = g->call->params;
    int64_t perm[TD_MAX_DIMS];
    int count = result(g)->tensor.ndim;
    for (int d = 0; d < count; d++) {
        perm[d] = order[d];
    }
    td_onnx_put(g, type, g->out, TD_IN(in(g, 0)), TD_WITH(td_onnx_list("perm", perm, count)));
}

static void reshape(td_onnx_graph *g, const char *type)
{
    (void)type;
    reshape_to_result(g, in(g, 0), g->out);
}

static void put_slice(td_onnx_graph *g, int64_t dim, int64_t start, int64_t end, int64_t step)
{
    const char *numbers[4] = { td_onnx_integers(g, &start, 1), td_onnx_integers(g, &end, 1),
                               td_onnx_integers(g, &dim, 1), td_onnx_integers(g, &step, 1) };
    td_onnx_put(g, "Slice", g->out, TD_IN(in(g, 0), numbers[0], numbers[1], numbers[2], numbers[3]),
                NULL);
}

static void slice(td_onnx_graph *g, const char *type)
{
    (void)type;
    const td_slice_params *p = g->call->params;
    int64_t end = p->start + (p->count > 0 ? (p->count - 1) * p->step + 1 : 0);
    bool rest = end + p->step > value_in(g, 0)->tensor.shape[p->dim]; /* up to the last element */
    put_slice(g, p->dim, p->start, rest && p->count > 0 ? INT64_MAX : end, p->step);
}

static void flip(td_onnx_graph *g, const char *type)
{
    (void)type;
    put_slice(g, dimension(g), -1, INT64_MIN, -1);
}

static void expand(td_onnx_graph *g, const char *type)
{
    td_onnx_put(g, type, g->out, TD_IN(in(g, 0), td_onnx_shape_name(g, result(g))), NULL);
}

static void cat(td_onnx_graph *g, const char *type)
{
    const td_cat_params *p = g->call->params;
    const char **names = td_step_bytes(((size_t)p->count + 1) * sizeof *names);
    for (int i = 0; i < p->count; i++) {
        names[i] = in(g, i);
    }
    td_onnx_put(g, type, g->out, names, TD_WITH(td_onnx_integer("axis", p->dim)));
}

static void pad(td_onnx_graph *g, const char *type)
{
    const td_pad_params *p = g->call->params;
    const td_tensor *x = &value_in(g, 0)->tensor, *y = &result(g)->tensor;
    int64_t pads[2 * TD_MAX_DIMS];
    for (int d = 0; d < x->ndim; d++) {
        pads[d] = p->before[d];
        pads[x->ndim + d] = y->shape[d] - x->shape[d] - p->before[d];
    }
    const char *sizes = td_onnx_integers(g, pads, 2 * x->ndim);
    td_onnx_put(g, type, g->out, TD_IN(in(g, 0), sizes, number(g, p->value)), NULL);
}

static void triangle(td_onnx_graph *g, const char *type)
{
    const td_triangle_params *p = g->call->params;
    const char *diagonal = td_onnx_integers(g, &p->diagonal, 1);
    td_onnx_put(g, type, g->out, TD_IN(in(g, 0), diagonal),
                TD_WITH(td_onnx_integer("upper", p->upper)));
}

static void gather(td_onnx_graph *g, const char *type)
{
    td_onnx_put(g, type, g->out, TD_IN(in(g, 0), td_onnx_name_of(g, g->call->saved[0])),
                TD_WITH(td_onnx_integer("axis", dimension(g))));
}

static void embedding(td_onnx_graph *g, const char *type)
{
    td_onnx_put(g, type, g->out, TD_IN(in(g, 0), td_onnx_name_of(g, g->call->saved[0])), NULL);
}

static void scatter_add(td_onnx_graph *g, const char *type)
{
    td_onnx_put(g, type, g->out, TD_IN(in(g, 0), td_onnx_name_of(g, g->call->saved[0]), in(g, 1)),
                TD_WITH(td_onnx_integer("axis", dimension(g)), td_onnx_text("reduction", "add")));
}

/* ---- normalisation and pooling ---- */

static void put_pool(td_onnx_graph *g, const char *type, const char *x, const td_pool2d_params *p)
{
    bool average = strcmp(type, "AveragePool") == 0;
    int64_t kernel[2], strides[2], pads[4];
    for (int d = 0; d < 2; d++) {
        kernel[d] = p->kernel[d];
        strides[d] = p->stride[d];
        pads[d] = pads[2 + d] = p->pad[d];
    }
    td_proto extra =
        average ? td_onnx_integer("count_include_pad", p->count_include_pad) : (td_proto){ 0 };
    td_onnx_put(g, type, g->out, TD_IN(x),
                TD_WITH(td_onnx_list("kernel_shape", kernel, 2),
                        td_onnx_list("strides", strides, 2), td_onnx_list("pads", pads, 4),
                        td_onnx_integer("ceil_mode", p->ceil_mode), extra));
}

static void pool(td_onnx_graph *g, const char *type)
{
    put_pool(g, type, in(g, 0), g->call->params);
}

/* [+ add] [relu] [max_pool] behind it, as the library fuses them. */
static void batch_norm(td_onnx_graph *g, const char *type)
{
    const td_batch_norm_params *p = g->call->params;
    td_shape channels = TD_SHAPE(value_in(g, 0)->tensor.shape[1]);
    if (p->training) {
        g->status = td_fail(TD_E_UNSUPPORTED,
                            "%s takes the batch's statistics: in a file it must be in evaluation "
                            "mode",
                            td_onnx_where(g->call));
        return;
    }
    const char *add = in(g, 3), *weight = in_or(g, 1, channels, 1.0);
    const char *bias = in_or(g, 2, channels, 0.0);
    const char *statistics[] = { td_onnx_name_of(g, g->call->reads[0]),
                                 td_onnx_name_of(g, g->call->reads[1]) };
    bool more = add != NULL || p->relu;
    const char *y = td_onnx_put(g, type, more ? NULL : g->out,
                                TD_IN(in(g, 0), weight, bias, statistics[0], statistics[1]),
                                TD_WITH(td_onnx_real("epsilon", p->eps)));
    if (add != NULL) {
        y = td_onnx_put(g, "Add", p->relu ? NULL : g->out, TD_IN(y, add), NULL);
    }
    if (p->relu) {
        y = td_onnx_put(g, "Relu", p->pools ? NULL : g->out, TD_IN(y), NULL);
    }
    if (p->pools) {
        put_pool(g, "MaxPool", y, &p->max_pool);
    }
}

static void layer_norm(td_onnx_graph *g, const char *type)
{
    const td_tensor *x = &value_in(g, 0)->tensor;
    const td_layer_norm_params *p = g->call->params;
    const char *weight = in_or(g, 1, TD_SHAPE(x->shape[x->ndim - 1]), 1.0);
    td_onnx_put(g, type, g->out, TD_IN(in(g, 0), weight, in(g, 2)),
                TD_WITH(td_onnx_integer("axis", -1), td_onnx_real("epsilon", p->eps)));
}

/* Groups are the channels of an instance normalisation; x's channels have numbers of their own. */
static void group_norm(td_onnx_graph *g, const char *type)
{
    const td_tensor *x = &value_in(g, 0)->tensor;
    const td_layer_norm_params *p = g->call->params;
    td_shape groups = TD_SHAPE(p->groups), channels = TD_SHAPE(x->shape[1]);
    const char *rows = td_onnx_integers(g, (int64_t[]){ 0, p->groups, -1 }, 3);
    const char *across = td_onnx_integers(g, (int64_t[]){ -1, 1, 1 }, 3);
    const char *weight = in_or(g, 1, channels, 1.0), *bias = in_or(g, 2, channels, 0.0);
    const char *one = td_onnx_filled(g, x->dtype, groups, 1.0);
    const char *zero = td_onnx_filled(g, x->dtype, groups, 0.0);
    const char *y = td_onnx_put(g, "Reshape", NULL, TD_IN(in(g, 0), rows), NULL);
    y = td_onnx_put(g, type, NULL, TD_IN(y, one, zero), TD_WITH(td_onnx_real("epsilon", p->eps)));
    y = reshape_to_result(g, y, NULL);
    weight = td_onnx_put(g, "Reshape", NULL, TD_IN(weight, across), NULL);
    bias = td_onnx_put(g, "Reshape", NULL, TD_IN(bias, across), NULL);
    y = td_onnx_put(g, "Mul", NULL, TD_IN(y, weight), NULL);
    td_onnx_put(g, "Add", g->out, TD_IN(y, bias), NULL);
}

/* ---- the table ---- */

static const struct {
    const char *op;
    void (*write)(td_onnx_graph *graph, const char *type);
    const char *type; /* ONNX's */
} operators[] = {
    { "neg", plain, "Neg" },
    { "exp", plain, "Exp" },
    { "log", plain, "Log" },
    { "sqrt", plain, "Sqrt" },
    { "relu", plain, "Relu" },
    { "sigmoid", plain, "Sigmoid" },
    { "tanh", plain, "Tanh" },
    { "abs", plain, "Abs" },
    { "sign", plain, "Sign" },
    { "floor", plain, "Floor" },
    { "ceil", plain, "Ceil" },
    { "round", plain, "Round" },
    { "reciprocal", plain, "Reciprocal" },
    { "sin", plain, "Sin" },
    { "cos", plain, "Cos" },
    { "erf", plain, "Erf" },
    { "selu", plain, "Selu" },
    { "softplus", plain, "Softplus" },
    { "softsign", plain, "Softsign" },
    { "hardswish", plain, "HardSwish" },
    { "mish", plain, "Mish" },
    { "add", plain, "Add" },
    { "sub", plain, "Sub" },
    { "mul", plain, "Mul" },
    { "div", plain, "Div" },
    { "maximum", plain, "Max" },
    { "minimum", plain, "Min" },
    { "pow_tensor", plain, "Pow" },
    { "prelu", plain, "PRelu" },
    { "add_scalar", with_number, "Add" },
    { "mul_scalar", with_number, "Mul" },
    { "pow", with_number, "Pow" },
    { "leaky_relu", with_alpha, "LeakyRelu" },
    { "elu", with_alpha, "Elu" },
    { "hardsigmoid", hard_sigmoid, "HardSigmoid" },
    { "clamp", clip, "Clip" },
    { "hardtanh", clip, "Clip" },
    { "relu6", clip, "Clip" },
    { "gelu", gelu, "Gelu" },
    { "gelu_tanh", gelu, "Gelu" },
    { "silu", silu, "Mul" },
    { "rsqrt", rsqrt, "Reciprocal" },
    { "huber", huber, "Mul" },
    { "eq", compare, "Equal" },
    { "ne", compare, "Not" },
    { "lt", compare, "Less" },
    { "le", compare, "LessOrEqual" },
    { "gt", compare, "Greater" },
    { "ge", compare, "GreaterOrEqual" },
    { "where", where, "Where" },
    { "cast", cast, "Cast" },
    { "sum", reduce, "ReduceSum" },
    { "sum_dim", reduce, "ReduceSum" },
    { "sum_dims", reduce, "ReduceSum" },
    { "mean", reduce, "ReduceMean" },
    { "mean_dim", reduce, "ReduceMean" },
    { "mean_dims", reduce, "ReduceMean" },
    { "norm", reduce, "ReduceL2" },
    { "max", reduce_one, "ReduceMax" },
    { "max_dim", reduce_one, "ReduceMax" },
    { "prod_dim", reduce_one, "ReduceProd" },
    { "argmax", argmax, "ArgMax" },
    { "cumsum", cumsum, "CumSum" },
    { "softmax", along_axis, "Softmax" },
    { "log_softmax", along_axis, "LogSoftmax" },
    { "argsort", argsort, "TopK" },
    { "matmul", plain, "MatMul" },
    { "linear", linear, "Gemm" },
    { "conv2d", conv, "Conv" },
    { "conv_transpose2d", conv, "ConvTranspose" },
    { "transpose", permute, "Transpose" },
    { "permute", permute, "Transpose" },
    { "reshape", reshape, "Reshape" },
    { "flatten", reshape, "Reshape" },
    { "slice", slice, "Slice" },
    { "flip", flip, "Slice" },
    { "expand", expand, "Expand" },
    { "cat", cat, "Concat" },
    { "contiguous", plain, "Identity" },
    { "pad", pad, "Pad" },
    { "tril", triangle, "Trilu" },
    { "triu", triangle, "Trilu" },
    { "gather_dim", gather, "GatherElements" },
    { "index_select", gather, "Gather" },
    { "scatter_add", scatter_add, "ScatterElements" },
    { "embedding", embedding, "Gather" },
    { "batch_norm", batch_norm, "BatchNormalization" },
    { "layer_norm", layer_norm, "LayerNormalization" },
    { "group_norm", group_norm, "InstanceNormalization" },
    { "max_pool2d", pool, "MaxPool" },
    { "avg_pool2d", pool, "AveragePool" },
    { "global_avg_pool2d", plain, "GlobalAveragePool" },
};

bool td_onnx_write_call(td_onnx_graph *graph)
{
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
        if (strcmp(operators[i].op, graph->call->op) == 0) {
            operators[i].write(graph, operators[i].type);
            return true;
        }
    }
    return false;
}
