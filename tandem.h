/* tandem: a small deep-learning framework in C11 with data parallelism built in.
 *
 * This header is all that most programs need: the public headers of the six rooms, in the order in
 * which they build on each other. What extensions and tools need besides lies in headers of its
 * own:
 *
 *   own operations, modules       autograd/tape.h, tensor/extend.h, nn/module.h, nn/around.h
 *   gradients, when they are ready   autograd/hooks.h, autograd/gradcheck.h
 *   files                         nn/safetensors.h
 *   measuring, captured steps     tensor/observe/profile.h, tensor/graph/captured.h,
 * tensor/autotune.h more of nn                    nn/optim/muon.h, nn/optim/lookahead.h,
 * nn/models/airbench.h communication                 dist/store.h, dist/codec.h, dist/trace.h
 */
#ifndef TANDEM_H
#define TANDEM_H

#define TANDEM_VERSION "0.1.0"

#include "tensor/tensor.h"
#include "autograd/autograd.h"
#include "nn/nn.h"
#include "data/data.h"
#include "dist/dist.h"

#endif
