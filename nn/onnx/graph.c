/* Writes the nodes and initializers of an ONNX graph. */
#include "nn/onnx/graph.h"

#include "nn/onnx/onnx.h"
#include "tensor/system/number.h"
#include "tensor/storage.h"
#include "tensor/system/temporary.h"
#include "tensor/version.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* Numbers of fields (onnx.proto). */
enum { NODE_INPUT = 1, NODE_OUTPUT, NODE_NAME, NODE_TYPE, NODE_ATTRIBUTE };
enum { ATTRIBUTE_NAME = 1, ATTRIBUTE_FLOAT, ATTRIBUTE_INTEGER, ATTRIBUTE_TEXT };
enum { ATTRIBUTE_INTEGERS = 8, ATTRIBUTE_KIND = 20 };
enum { KIND_FLOAT = 1, KIND_INTEGER = 2, KIND_TEXT = 3, KIND_INTEGERS = 7 };
enum { TENSOR_SIZE = 1, TENSOR_DTYPE = 2, TENSOR_NAME = 8, TENSOR_DATA = 9 };
enum { GRAPH_NODE = 1, GRAPH_NAME = 2, GRAPH_INITIALIZER = 5, GRAPH_INPUT = 11, GRAPH_OUTPUT = 12 };
enum { VALUE_NAME = 1, VALUE_TYPE = 2, TYPE_TENSOR = 1, TYPE_DTYPE = 1, TYPE_SHAPE = 2 };
enum { SHAPE_SIZE = 1, SIZE_VALUE = 1, SIZE_NAME = 2 };
enum { MODEL_IR = 1, MODEL_PRODUCER = 2, MODEL_PRODUCER_VERSION = 3, MODEL_GRAPH = 7 };
enum { MODEL_OPSET = 8, OPSET_VERSION = 2, MODEL_METADATA = 14, PAIR_KEY = 1, PAIR_VALUE = 2 };

/* Text in the step's memory. */
static const char *text(const char *format, ...) __attribute__((format(printf, 1, 2)));
static const char *text(const char *format, ...)
{
    char whole[512];
    va_list args;
    va_start(args, format);
    int length = td_vsnprintf(whole, sizeof whole, format, args);
    va_end(args);
    size_t size = (size_t)(length < (int)sizeof whole ? length + 1 : (int)sizeof whole);
    char *copy = td_step_bytes(size);
    return memcpy(copy, whole, size);
}

const char *td_onnx_where(const td_onnx_call *c)
{
    return text("%s:%d: %s%s%s", c->at.file != NULL ? c->at.file : "?", c->at.line, c->op,
                c->module != NULL ? " in " : "", c->module != NULL ? c->module : "");
}

void td_onnx_refuse(td_onnx_graph *graph, const char *format, ...)
{
    char why[256];
    va_list args;
    va_start(args, format);
    td_vsnprintf(why, sizeof why, format, args);
    va_end(args);
    graph->status = td_fail(TD_E_UNSUPPORTED, "%s %s", td_onnx_where(graph->call), why);
}

int td_onnx_dtype(td_dtype dtype)
{
    static const int numbers[TD_DTYPE_COUNT] = {
        [TD_F32] = 1, [TD_F64] = 11, [TD_BF16] = 16, [TD_F16] = 10,
        [TD_I64] = 7, [TD_I32] = 6,  [TD_U8] = 2,
    };
    return numbers[dtype];
}

/* ---- nodes ---- */

static td_proto attribute(const char *name, int kind)
{
    td_proto m = { 0 };
    td_proto_text(&m, ATTRIBUTE_NAME, name);
    td_proto_integer(&m, ATTRIBUTE_KIND, kind);
    return m;
}

td_proto td_onnx_integer(const char *name, int64_t value)
{
    td_proto m = attribute(name, KIND_INTEGER);
    td_proto_integer(&m, ATTRIBUTE_INTEGER, value);
    return m;
}

td_proto td_onnx_real(const char *name, double value)
{
    td_proto m = attribute(name, KIND_FLOAT);
    td_proto_float(&m, ATTRIBUTE_FLOAT, value);
    return m;
}

td_proto td_onnx_text(const char *name, const char *value)
{
    td_proto m = attribute(name, KIND_TEXT);
    td_proto_text(&m, ATTRIBUTE_TEXT, value);
    return m;
}

td_proto td_onnx_list(const char *name, const int64_t *values, int count)
{
    td_proto m = attribute(name, KIND_INTEGERS);
    for (int i = 0; i < count; i++) {
        td_proto_integer(&m, ATTRIBUTE_INTEGERS, values[i]);
    }
    return m;
}

void td_onnx_put_many(td_onnx_graph *graph, const char *type, const char *const *outputs,
                      const char *const *inputs, const td_proto *attributes)
{
    td_proto m = { 0 };
    for (int i = 0; inputs[i] != NULL; i++) {
        td_proto_text(&m, NODE_INPUT, inputs[i]);
    }
    for (int i = 0; outputs[i] != NULL; i++) {
        td_proto_text(&m, NODE_OUTPUT, outputs[i]);
    }
    td_proto_text(&m, NODE_NAME, outputs[0]);
    td_proto_text(&m, NODE_TYPE, type);
    for (int i = 0; attributes != NULL && attributes[i].count > 0; i++) {
        td_proto_message(&m, NODE_ATTRIBUTE, &attributes[i]);
    }
    td_proto_message(&graph->nodes, GRAPH_NODE, &m);
}

const char *td_onnx_temporary(td_onnx_graph *graph)
{
    return text("%s_%d", graph->out, ++graph->temporary_count);
}

const char *td_onnx_put(td_onnx_graph *graph, const char *type, const char *out,
                        const char *const *inputs, const td_proto *attributes)
{
    out = out != NULL ? out : td_onnx_temporary(graph);
    td_onnx_put_many(graph, type, TD_IN(out), inputs, attributes);
    return out;
}

/* ---- initializers ---- */

/* A TensorProto up to its data. */
static td_proto tensor_head(const char *name, td_dtype dtype, td_shape shape)
{
    td_proto m = { 0 };
    for (int d = 0; d < shape.ndim; d++) {
        td_proto_integer(&m, TENSOR_SIZE, shape.dim[d]);
    }
    td_proto_integer(&m, TENSOR_DTYPE, td_onnx_dtype(dtype));
    td_proto_text(&m, TENSOR_NAME, name);
    td_proto_length(&m, TENSOR_DATA, (size_t)td_shape_numel(shape) * td_dtype_size(dtype));
    return m;
}

static const char *add_constant(td_onnx_graph *graph, td_dtype dtype, td_shape shape,
                                const void *data)
{
    const char *name = text("/constant_%d", ++graph->constant_count);
    td_proto m = tensor_head(name, dtype, shape);
    td_proto_bytes(&m, data, (size_t)td_shape_numel(shape) * td_dtype_size(dtype));
    td_proto_message(&graph->constants, GRAPH_INITIALIZER, &m);
    return name;
}

const char *td_onnx_integers(td_onnx_graph *graph, const int64_t *values, int count)
{
    return add_constant(graph, TD_I64, TD_SHAPE(count), values);
}

const char *td_onnx_filled(td_onnx_graph *graph, td_dtype dtype, td_shape shape, double value)
{
    td_tensor *t = td_step_new(shape, dtype, TD_ROW_MAJOR, TD_CPU, TD_HERE);
    td_fill_(t, value);
    return add_constant(graph, dtype, shape, td_data(t));
}

/* ---- what follows the batch ---- */

/* [1]: `times` times the input's first size. */
static const char *batch_times(td_onnx_graph *graph, int64_t times)
{
    const char *size = td_onnx_put(graph, "Shape", NULL, TD_IN("input"),
                                   TD_WITH(td_onnx_integer("start", 0), td_onnx_integer("end", 1)));
    return times == 1 ? size
                      : td_onnx_put(graph, "Mul", NULL,
                                    TD_IN(size, td_onnx_integers(graph, &times, 1)), NULL);
}

const char *td_onnx_shape_name(td_onnx_graph *graph, const td_onnx_value *value)
{
    const char *parts[TD_MAX_DIMS + 1] = { NULL };
    const td_tensor *t = &value->tensor;
    bool follows = false;
    for (int d = 0; d < t->ndim; d++) {
        follows = follows || value->follows[d];
    }
    if (!follows) {
        return td_onnx_integers(graph, t->shape, t->ndim);
    }
    for (int d = 0; d < t->ndim; d++) {
        if (value->follows[d] && t->shape[d] % graph->batch != 0) {
            td_onnx_refuse(
                graph,
                "makes %s: size %d is no multiple of the batch size: export without dynamic_batch",
                td_describe(t), d);
        }
        parts[d] = value->follows[d] ? batch_times(graph, t->shape[d] / graph->batch)
                                     : td_onnx_integers(graph, &t->shape[d], 1);
    }
    return td_onnx_put(graph, "Concat", NULL, parts, TD_WITH(td_onnx_integer("axis", 0)));
}

static bool same_elements(const td_tensor *a, const td_tensor *b)
{
    size_t bytes = td_tensor_bytes(a);
    char *left = td_step_bytes(bytes + 1), *right = td_step_bytes(bytes + 1);
    td_read(a, left, a->dtype);
    td_read(b, right, a->dtype);
    return memcmp(left, right, bytes) == 0;
}

/* A constant that has a size that follows the batch: its first part, repeated. */
static const char *repeated(td_onnx_graph *graph, const td_onnx_value *v)
{
    td_tensor one = v->tensor;
    for (int d = 0; d < one.ndim; d++) {
        one.shape[d] = v->follows[d] ? 1 : one.shape[d];
    }
    if (!same_elements(&v->tensor, td_expand_at(&one, td_shape_of(&v->tensor), TD_HERE))) {
        td_onnx_refuse(
            graph,
            "uses a constant %s that depends on the batch size: export without dynamic_batch",
            td_describe(&v->tensor));
    }
    void *data = td_step_bytes(td_tensor_bytes(&one));
    td_read(&one, data, one.dtype);
    const char *part = add_constant(graph, one.dtype, td_shape_of(&one), data);
    return td_onnx_put(graph, "Expand", NULL, TD_IN(part, td_onnx_shape_name(graph, v)), NULL);
}

/* ---- values ---- */

const td_onnx_value *td_onnx_value_of(const td_onnx_graph *graph, int number)
{
    return number >= 0 ? &graph->trace->values[number] : NULL;
}

const char *td_onnx_name_of(td_onnx_graph *graph, int number)
{
    if (number < 0) {
        return NULL;
    }
    td_onnx_value *v = &graph->trace->values[number];
    bool changed = v->kind == TD_ONNX_VALUE_CONSTANT && v->version != v->tensor.storage->version;
    if (v->kind == TD_ONNX_VALUE_UNSEEN || changed) {
        td_onnx_refuse(graph,
                       "reads %s, which was written in place, or is a view that no operation made: "
                       "compute it by operations",
                       td_describe(&v->tensor));
        return "";
    }
    for (int d = 0; d < v->tensor.ndim && v->kind == TD_ONNX_VALUE_CONSTANT; d++) {
        if (v->follows[d]) {
            return repeated(graph, v);
        }
    }
    bool stored = v->kind == TD_ONNX_VALUE_STATE || v->kind == TD_ONNX_VALUE_CONSTANT;
    if (stored && !v->listed) {
        v->listed = true;
        graph->initializers[graph->initializer_count++] = number;
        v->name = v->name != NULL ? v->name : text("/constant_%d", ++graph->constant_count);
    }
    return v->name;
}

/* ---- the whole ---- */

void td_onnx_graph_begin(td_onnx_graph *graph, td_onnx_trace *trace, int64_t batch)
{
    *graph = (td_onnx_graph){ .trace = trace, .batch = batch };
    graph->initializers = td_step_bytes((size_t)trace->value_count * sizeof *graph->initializers);
}

td_status td_onnx_graph_add(td_onnx_graph *graph, int i)
{
    graph->call = &graph->trace->calls[i];
    if (!graph->call->needed) {
        return TD_OK;
    }
    bool last = graph->call->out == graph->trace->output;
    graph->out = last ? "output" : text("/%s_%d", graph->call->op, i);
    graph->temporary_count = 0;
    if (!td_onnx_write_call(graph)) {
        td_onnx_refuse(graph, "has no form in ONNX, or none that tandem writes: compute it outside "
                              "of the model, or from the operations of docs/onnx.md");
    }
    graph->trace->values[graph->call->out].name = graph->out;
    return graph->status;
}

static bool same_message(const td_proto *a, const td_proto *b)
{
    return a->count == b->count && (a->count == 0 || memcmp(a->bytes, b->bytes, a->count) == 0);
}

bool td_onnx_graph_same(const td_onnx_graph *a, const td_onnx_graph *b, int from)
{
    bool same = same_message(&a->nodes, &b->nodes) && same_message(&a->constants, &b->constants) &&
                a->initializer_count == b->initializer_count;
    for (int i = from; same && i < a->initializer_count; i++) {
        const td_onnx_value *x = td_onnx_value_of(a, a->initializers[i]);
        same = x->kind != TD_ONNX_VALUE_CONSTANT ||
               same_elements(&x->tensor, &td_onnx_value_of(b, b->initializers[i])->tensor);
    }
    return same;
}

/* ---- the file ---- */

static void put_value_info(td_proto *graph, int field, const char *name, const td_onnx_value *v,
                           bool dynamic)
{
    td_proto m = { 0 }, type = { 0 }, tensor = { 0 }, shape = { 0 };
    for (int d = 0; d < v->tensor.ndim; d++) {
        td_proto size = { 0 };
        bool batch = dynamic && v->follows[d];
        if (batch) {
            td_proto_text(&size, SIZE_NAME, d == 0 ? "N" : text("N_%d", d));
        } else {
            td_proto_integer(&size, SIZE_VALUE, v->tensor.shape[d]);
        }
        td_proto_message(&shape, SHAPE_SIZE, &size);
    }
    td_proto_integer(&tensor, TYPE_DTYPE, td_onnx_dtype(v->tensor.dtype));
    td_proto_message(&tensor, TYPE_SHAPE, &shape);
    td_proto_message(&type, TYPE_TENSOR, &tensor);
    td_proto_text(&m, VALUE_NAME, name);
    td_proto_message(&m, VALUE_TYPE, &type);
    td_proto_message(graph, field, &m);
}

typedef struct content {
    const td_onnx_graph *graph;
    td_proto head;   /* all before the initializers that come from tensors */
    td_proto *names; /* what stands before the data of each */
} content;

static td_status write_content(FILE *file, const content *c)
{
    fwrite(c->head.bytes, 1, c->head.count, file);
    for (int i = 0; i < c->graph->initializer_count; i++) {
        const td_onnx_value *v = td_onnx_value_of(c->graph, c->graph->initializers[i]);
        void *data = malloc(td_tensor_bytes(&v->tensor) + 1);
        TD_CHECK(data != NULL, TD_E_NOMEM, "no memory to write '%s'", v->name);
        td_read(&v->tensor, data, v->tensor.dtype);
        fwrite(c->names[i].bytes, 1, c->names[i].count, file);
        fwrite(data, 1, td_tensor_bytes(&v->tensor), file);
        free(data);
    }
    return TD_OK;
}

static td_status write_file(const content *c, const char *path, int64_t bytes)
{
    char *temporary;
    FILE *file;
    TD_TRY(td_temporary_begin(path, bytes, &file, &temporary));
    return td_temporary_end(file, temporary, path, bytes, write_content(file, c));
}

/* What the model says of itself. */
static td_proto model_head(const td_onnx_options *o)
{
    td_proto head = { 0 }, opset = { 0 };
    td_proto_integer(&head, MODEL_IR, TD_ONNX_IR_VERSION);
    td_proto_text(&head, MODEL_PRODUCER, "tandem");
    td_proto_text(&head, MODEL_PRODUCER_VERSION, TANDEM_VERSION);
    td_proto_integer(&opset, OPSET_VERSION, TD_ONNX_OPSET);
    td_proto_message(&head, MODEL_OPSET, &opset);
    for (int i = 0; i < o->metadata_count; i++) {
        td_proto pair = { 0 };
        td_proto_text(&pair, PAIR_KEY, o->metadata[i].key);
        td_proto_text(&pair, PAIR_VALUE, o->metadata[i].value);
        td_proto_message(&head, MODEL_METADATA, &pair);
    }
    return head;
}

td_status td_onnx_graph_save(td_onnx_graph *graph, const td_onnx_options *options)
{
    bool dynamic = options->dynamic_batch;
    const td_onnx_trace *trace = graph->trace;
    if (trace->values[trace->output].kind != TD_ONNX_VALUE_RESULT) {
        td_onnx_put(graph, "Identity", "output", TD_IN(td_onnx_name_of(graph, trace->output)),
                    NULL);
    }
    td_proto inside = { 0 };
    td_proto_bytes(&inside, graph->nodes.bytes, graph->nodes.count);
    td_proto_text(&inside, GRAPH_NAME, "tandem");
    td_proto_bytes(&inside, graph->constants.bytes, graph->constants.count);
    for (int i = 0; i < trace->value_count; i++) {
        const td_onnx_value *v = &trace->values[i];
        if (v->kind == TD_ONNX_VALUE_INPUT) {
            put_value_info(&inside, GRAPH_INPUT, v->name, v, dynamic);
        }
    }
    put_value_info(&inside, GRAPH_OUTPUT, "output", &trace->values[trace->output], dynamic);

    content c = { .graph = graph, .head = model_head(options) };
    c.names = td_step_bytes(((size_t)graph->initializer_count + 1) * sizeof *c.names);
    size_t length = inside.count;
    for (int i = 0; i < graph->initializer_count; i++) {
        const td_onnx_value *v = td_onnx_value_of(graph, graph->initializers[i]);
        td_proto head = tensor_head(v->name, v->tensor.dtype, td_shape_of(&v->tensor));
        td_proto_length(&c.names[i], GRAPH_INITIALIZER, head.count + td_tensor_bytes(&v->tensor));
        td_proto_bytes(&c.names[i], head.bytes, head.count);
        length += c.names[i].count + td_tensor_bytes(&v->tensor);
    }
    td_proto_length(&c.head, MODEL_GRAPH, length);
    td_proto_bytes(&c.head, inside.bytes, inside.count);
    TD_CHECK(length <= INT32_MAX - c.head.count, TD_E_UNSUPPORTED,
             "'%s' would have %s; an ONNX file has at most 2 GiB: export parts of the model",
             options->path, td_describe_bytes(length));
    return write_file(&c, options->path, (int64_t)(c.head.count + length));
}
