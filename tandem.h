/* tandem: a small deep-learning framework in C11 with data parallelism built in.
 *
 * This header is all that most programs need: the public headers of the six rooms, in the order in
 * which they build on each other. Extensions and tools find more in these headers:
 *
 *   own operations and modules    autograd/tape.h, tensor/extend.h, nn/module.h, nn/around.h
 *   gradients: ready, checked     autograd/hooks.h, autograd/gradcheck.h
 *   files, other frameworks       nn/safetensors.h, tensor/dlpack.h
 *   profiles, captured steps      tensor/observe/profile.h, tensor/observe/memory_plan.h,
 *                                 tensor/graph/captured.h, tensor/autotune.h
 *   more optimizers and models    nn/optim/muon.h, nn/optim/lookahead.h, nn/models/airbench.h
 *   communication                 dist/store.h, dist/codec.h, dist/captured.h, dist/trace.h */
#ifndef TANDEM_H
#define TANDEM_H

#include "tensor/version.h"
#include "tensor/tensor.h"
#include "autograd/autograd.h"
#include "nn/nn.h"
#include "data/data.h"
#include "dist/dist.h"

#endif
