/* Writes a model as an ONNX file, for onnxruntime and other runtimes. docs/onnx.md has the
 * operations. */
#pragma once

#include "nn/io/checkpoint.h"
#include "nn/nn.h"

TD_BEGIN_C

enum { TD_ONNX_OPSET = 20 };

typedef struct td_onnx_options {
    int begin_; /* for the library: lets the macro take an empty list */
    td_module *model;
    td_shape shape;           /* of the input, with the batch size: [N,C,H,W] */
    const char *path;         /* of the file that is written */
    const td_tensor *example; /* an input of this shape. NULL: floats of the model's dtype, or zeros
                                 if the first layer is an embedding */
    bool dynamic_batch;       /* the inputs' first dimension is "N", of any size; otherwise it has
                                 the size in shape */
    td_shape shape2; /* of the second input of a module of two inputs; with the same batch size, if
                        that is dynamic. A GPT is written with its logits as the result; with
                        shape2, with its loss */
    const td_tensor *example2;   /* a second input; NULL: floats of the model's dtype */
    const td_metadata *metadata; /* texts that a reader finds as the model's metadata_props */
    int metadata_count;
} td_onnx_options;

/* td_onnx_export(model, shape, path, ...): runs the model's forward in evaluation mode and in f32
 * arithmetic, and writes its operations, opset 20. The graph's input is named "input" (a second
 * input "input2"), its result "output"; parameters and buffers have their paths as names. Call it
 * outside of steps. The file is written whole or not at all.
 *
 * Forward runs twice, on different values, and with dynamic_batch on two batch sizes. If the
 * model's operations or their options depend on the input, the file would be wrong, so the model is
 * refused (TD_E_UNSUPPORTED). An operation that ONNX does not have is refused, too, and named, and
 * so is a file of more than 2 GiB, protobuf's limit. TD_E_IO: writing failed. */
td_status td_onnx_export_at(td_onnx_options options, td_site at);

TD_END_C

#define td_onnx_export(...)                                                                        \
    td_onnx_export_at((td_onnx_options){ TD_OPT3(model, shape, path, __VA_ARGS__) }, TD_HERE)
