/* The convolutions of ResNets, as cuDNN is asked for them: for tests and checks of plans. */
#pragma once

#include "tensor/cuda/products.h"

enum { GPU_MAX_CONVS = 64 };

/* All convolutions of ResNet-18, 34 or 50 that differ, forward, for `batch` pictures of side x
 * side; cifar_stem: the 3x3 one without pooling. Returns how many. */
int gpu_resnet_convs(int depth, bool cifar_stem, int64_t batch, int64_t side,
                     td_cuda_conv convs[GPU_MAX_CONVS]);
