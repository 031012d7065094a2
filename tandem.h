/* tandem: a small deep-learning framework in C11 with data parallelism built in.
 *
 * Include this header; most programs need no other. It includes the public headers of the five
 * rooms of the library (tensor, autograd, nn, data, dist) in the order in which the rooms build on
 * each other. Losses, attention, and more normalisations and pooling, are in autograd/losses.h,
 * attention.h, norms.h and windows.h, which it includes, too. Extensions and tools find more
 * functions in these headers:
 *
 *   own operations and modules    autograd/tape.h, tensor/extend.h, nn/module.h, nn/around.h (runs
 *                                 something around a module's forward)
 *   gradients: hooks, checks      autograd/hooks.h, autograd/gradcheck.h
 *   files, other frameworks       nn/io/safetensors.h, nn/onnx/onnx.h, tensor/extra/dlpack.h
 *   datasets and loaders          data/inspect.h, data/text/tokenizer.h
 *   profiles, captured steps      tensor/observe/profile.h, tensor/observe/memory_plan.h,
 *                                 tensor/graph/captured.h, tensor/tune/tune.h
 *   averaged weights, fp16        nn/extra/ema.h, nn/extra/scaler.h
 *   more optimizers, schedules     nn/extra/optimizers.h, nn/extra/compact.h, nn/extra/muon.h,
 *                                 nn/extra/schedules.h, nn/extra/inspect.h
 *   more layers and models        nn/extra/layers.h
 *   communication                 dist/comm/collectives.h, dist/comm/mesh.h, dist/comm/store.h,
 * dist/ddp/codec.h, dist/ddp/extra.h, dist/graph/captured.h, dist/trace.h */
#ifndef TANDEM_H
#define TANDEM_H

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

#endif
