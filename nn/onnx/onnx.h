/* Writes a model as an ONNX file, for onnxruntime and other runtimes. docs/onnx.md has the
 * operations. */
#ifndef TD_NN_ONNX_ONNX_H
#define TD_NN_ONNX_ONNX_H

#include "nn/nn.h"

TD_BEGIN_C

enum { TD_ONNX_OPSET = 20 };

typedef struct td_onnx_options {
    int begin_; /* for the library: lets the macro take an empty list */
    td_module *model;
    td_shape shape;           /* of the input, with the batch size: [N,C,H,W] */
    const char *path;         /* of the file that is written */
    const td_tensor *example; /* an input of this shape, for a model that does not take the one that
                                 is made: floats of the model's dtype, or 0 where its first layer is
                                 an embedding */
    bool dynamic_batch;       /* the inputs' first dimension is "N", any size; otherwise shape's */
    td_shape shape2; /* of a module of two inputs: the second's, with the same batch size if
                        that is dynamic. A GPT is written as its logits; with shape2, as its loss */
    const td_tensor *example2; /* a second input, or NULL: floats of the model's dtype */
} td_onnx_options;

/* td_onnx_export(model, shape, path, ...): runs the model's forward in evaluation mode and in f32
 * arithmetic, and writes its operations, opset 20. The graph's input is "input" (a second one
 * "input2"), its result "output"; parameters and buffers have their paths as names. Outside of a
 * step. The file is replaced whole or not at all.
 *
 * Forward runs twice, on different values, and with dynamic_batch on two batch sizes: a model whose
 * operations, or whose numbers that are no tensors, depend on the input would be written wrongly,
 * and is refused (TD_E_UNSUPPORTED). So are an operation that ONNX does not have, which is named,
 * and a file above protobuf's 2 GiB. TD_E_IO: writing failed. */
td_status td_onnx_export_at(td_onnx_options options, td_site at);

TD_END_C

#define td_onnx_export(...)                                                                        \
    td_onnx_export_at((td_onnx_options){ .begin_ = 0, __VA_ARGS__ }, TD_HERE)

#endif
