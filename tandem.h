/* tandem: a small deep-learning framework in C11 with data parallelism built in.
 * The public face: one header for each module, in the order in which they build on each other. */
#ifndef TANDEM_H
#define TANDEM_H

#include "tensor/version.h"
#include "tensor/tensor.h"
#include "tensor/graph/captured.h"
#include "tensor/observe/profile.h"
#include "autograd/autograd.h"
#include "nn/nn.h"
#include "data/data.h"
#include "dist/dist.h"

#endif
