/* The graph that is written: nodes and initializers, made from a trace call by call. */
#pragma once

#include "tensor/extra/protobuf.h"
#include "nn/onnx/onnx.h"
#include "nn/onnx/trace.h"

enum { TD_ONNX_IR_VERSION = 9 };

typedef struct td_onnx_graph {
    td_onnx_trace *trace;
    int64_t batch;      /* of the trace */
    td_proto nodes;     /* GraphProto's nodes */
    td_proto constants; /* its small initializers, whole */
    int *initializers;  /* numbers of values whose data are written from their tensors */
    int initializer_count;
    const td_onnx_call *call; /* the one that is written */
    const char *out;          /* the name of its result */
    int temporary_count;      /* of this call */
    int constant_count;       /* of all */
    td_status status;         /* the first failure */
} td_onnx_graph;

void td_onnx_graph_begin(td_onnx_graph *graph, td_onnx_trace *trace, int64_t batch);
/* Adds call i, if the output needs it. */
td_status td_onnx_graph_add(td_onnx_graph *graph, int i);
/* Whether two graphs are equal; constants are compared from number `from` on. */
bool td_onnx_graph_same(const td_onnx_graph *a, const td_onnx_graph *b, int from);
/* Writes the file that the options name. */
td_status td_onnx_graph_save(td_onnx_graph *graph, const td_onnx_options *options);

/* "net.c:12: conv2d in layer1.0.conv1 (Conv2d)", for messages. */
const char *td_onnx_where(const td_onnx_call *call);

/* ---- for operators.c, which knows how a call is written ---- */

/* graph->status becomes TD_E_UNSUPPORTED: the call, and why it cannot be written. */
void td_onnx_refuse(td_onnx_graph *graph, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Writes graph->call. false: ONNX has no such operation. */
bool td_onnx_write_call(td_onnx_graph *graph);

/* Attributes of a node, as messages. */
td_proto td_onnx_integer(const char *name, int64_t value);
td_proto td_onnx_real(const char *name, double value);
td_proto td_onnx_text(const char *name, const char *value);
td_proto td_onnx_list(const char *name, const int64_t *values, int count);
/* Lists that end with NULL, and with an empty message. */
#define TD_IN(...) ((const char *const[]){ __VA_ARGS__, NULL })
#define TD_WITH(...) ((const td_proto[]){ __VA_ARGS__, { .count = 0 } })

/* Adds a node of these inputs (a list that ends with NULL; "": an input that is not given) and
 * attributes (NULL: none) with one result called `out`; NULL: a name of its own. Returns the name.
 */
const char *td_onnx_put(td_onnx_graph *graph, const char *type, const char *out,
                        const char *const *inputs, const td_proto *attributes);
/* A name of its own. */
const char *td_onnx_temporary(td_onnx_graph *graph);
/* The same with several results, whose names are given. */
void td_onnx_put_many(td_onnx_graph *graph, const char *type, const char *const *outputs,
                      const char *const *inputs, const td_proto *attributes);

/* The tensor of a value, which may be NULL, and its name, NULL likewise. */
const td_onnx_value *td_onnx_value_of(const td_onnx_graph *graph, int number);
const char *td_onnx_name_of(td_onnx_graph *graph, int number);

/* Initializers: integers [count]; and elements of one value, of a shape. */
const char *td_onnx_integers(td_onnx_graph *graph, const int64_t *values, int count);
const char *td_onnx_filled(td_onnx_graph *graph, td_dtype dtype, td_shape shape, double value);
/* A value's shape as a tensor of integers, computed from the input's where it follows the batch. */
const char *td_onnx_shape_name(td_onnx_graph *graph, const td_onnx_value *value);
/* ONNX's number of a dtype. */
int td_onnx_dtype(td_dtype dtype);
