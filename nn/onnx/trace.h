/* A trace: the operations of one forward, as td_record reports them. The trace recognizes a tensor
 * by its address, and retains the memory so that no other tensor gets the address. The trace's own
 * memory belongs to the running step. */
#pragma once

#include "autograd/tape.h"
#include "nn/module.h"

typedef enum td_onnx_value_kind {
    TD_ONNX_VALUE_INPUT,
    TD_ONNX_VALUE_STATE,    /* a parameter or buffer of the model */
    TD_ONNX_VALUE_CONSTANT, /* no operation has made it */
    TD_ONNX_VALUE_RESULT,   /* of a call */
    TD_ONNX_VALUE_UNSEEN, /* a result's memory, written or seen in a way that no operation tells */
} td_onnx_value_kind;

typedef struct td_onnx_value {
    td_tensor tensor; /* a copy of the header */
    uint32_t version; /* the storage's */
    td_onnx_value_kind kind;
    const char *name;          /* in the file; a result's: NULL until it is written */
    bool follows[TD_MAX_DIMS]; /* this size depends on the batch's */
    bool listed;               /* among the file's initializers */
} td_onnx_value;

typedef struct td_onnx_call {
    const char *op, *module; /* module: "layer1.0.conv1 (Conv2d)" or NULL */
    td_site at;
    const void *params;
    int *inputs; /* numbers of values; -1: none */
    int input_count;
    int saved[TD_MAX_SAVED], reads[TD_MAX_READS];
    int out;
    bool needed; /* for the trace's output */
} td_onnx_call;

typedef struct td_onnx_trace {
    td_onnx_value *values;
    td_onnx_call *calls;
    int value_count, value_room, call_count, call_room;
    int output; /* the number of the forward's result */
} td_onnx_trace;

/* Runs forward, or forward2, without gradients. state: the model's parameters and buffers. */
td_onnx_trace *td_onnx_trace_forward(td_module *model, const td_state_list *state,
                                     td_tensor *const inputs[2], td_site at);
/* Releases the tensors' memory. */
void td_onnx_trace_end(td_onnx_trace *trace);

/* Compares two traces of one model and notes in both which sizes follow the batch. *differs: the
 * first call that differs, -1: none. */
void td_onnx_trace_compare(td_onnx_trace *a, td_onnx_trace *b, int *differs);
