/* tandem: a small deep-learning framework in C11 with data parallelism built in.
 *
 * Include this header; most programs need no other. It includes the public headers of the library's
 * five parts: tensor, autograd, nn, data, dist. Each part is a folder, and uses only the parts
 * before it. Four headers that it includes, too, have more operations: autograd/losses.h,
 * autograd/attention.h, autograd/norms.h, and autograd/windows.h (convolutions, pooling, resizing).
 * Extensions and tools find more functions in these headers:
 *
 *   own operations and modules    autograd/tape.h, tensor/extend.h, nn/module.h, nn/around.h (a
 *                                 function that runs before and after a module's forward)
 *   gradients: hooks, checks      autograd/hooks.h, autograd/gradcheck.h
 *   files, other frameworks       nn/io/safetensors.h, nn/io/fingerprint.h, nn/onnx/onnx.h,
 *                                 tensor/extra/dlpack.h
 *   datasets and loaders          data/inspect.h, data/text/tokenizer.h
 *   profiles, captured steps      tensor/observe/profile.h, tensor/observe/memory_plan.h,
 *                                 tensor/graph/captured.h, tensor/tune/tune.h
 *   averaged weights, fp16        nn/extra/ema.h, nn/extra/scaler.h
 *   more optimizers, schedules     nn/extra/optimizers.h, nn/extra/compact.h, nn/extra/muon.h,
 *                                 nn/extra/schedules.h, nn/extra/inspect.h
 *   more layers and models        nn/extra/layers.h, nn/extra/lora.h
 *   communication                 dist/comm/collectives.h, dist/comm/mesh.h, dist/comm/store.h,
 * dist/ddp/codec.h, dist/ddp/extra.h, dist/graph/captured.h, dist/trace.h */
#pragma once

#include "tensor/version.h"
#include "apps/library/command_line.h"
#include "tensor/tensor.h"
#include "autograd/autograd.h"
#include "autograd/ops/elements.h"
#include "autograd/ops/shapes.h"
#include "nn/nn.h"
#include "nn/optim/optim.h"
#include "nn/io/checkpoint.h"
#include "nn/models/gpt.h"
#include "data/data.h"
#include "data/images/images.h"
#include "data/text/text.h"
#include "dist/dist.h"
#include "dist/shard/zero.h"
#include "dist/slices/slices.h"
