/* The convolutions of ResNets. */
#include "tests/gpu/convs.h"

#include <string.h>

typedef struct list {
    td_cuda_conv *convs;
    int count;
    int64_t batch, side; /* of what the next convolution gets */
} list;

static void add(list *l, int64_t ic, int64_t oc, int kernel, int stride, bool moves_on)
{
    int pad = kernel / 2;
    int64_t out = (l->side + 2 * pad - kernel) / stride + 1;
    td_cuda_conv c = { .n = l->batch,
                       .ic = ic,
                       .ih = l->side,
                       .iw = l->side,
                       .oc = oc,
                       .oh = out,
                       .ow = out,
                       .kh = kernel,
                       .kw = kernel,
                       .stride = { stride, stride },
                       .pad = { pad, pad },
                       .dilation = { 1, 1 },
                       .groups = 1 };
    bool known = false;
    for (int i = 0; i < l->count; i++) {
        const td_cuda_conv *k = &l->convs[i];
        known = known || (k->ic == ic && k->oc == oc && k->ih == l->side && k->kh == kernel &&
                          k->stride[0] == stride);
    }
    if (!known && l->count < GPU_MAX_CONVS) {
        l->convs[l->count++] = c;
    }
    l->side = moves_on ? out : l->side;
}

/* A residual block; returns its number of output channels. */
static int64_t block(list *l, bool bottleneck, int64_t in, int64_t width, int stride)
{
    int64_t out = bottleneck ? 4 * width : width;
    if (stride != 1 || in != out) {
        add(l, in, out, 1, stride, false);
    }
    if (bottleneck) {
        add(l, in, width, 1, 1, true);
        add(l, width, width, 3, stride, true);
        add(l, width, out, 1, 1, true);
    } else {
        add(l, in, width, 3, stride, true);
        add(l, width, width, 3, 1, true);
    }
    return out;
}

int gpu_resnet_convs(int depth, bool cifar_stem, int64_t batch, int64_t side,
                     td_cuda_conv convs[GPU_MAX_CONVS])
{
    static const int blocks[][4] = { { 2, 2, 2, 2 }, { 3, 4, 6, 3 } };
    list l = { .convs = convs, .batch = batch, .side = side };
    add(&l, 3, 64, cifar_stem ? 3 : 7, cifar_stem ? 1 : 2, true);
    if (!cifar_stem) {
        l.side = (l.side + 1) / 2; /* the max-pooling */
    }
    int64_t channels = 64;
    for (int stage = 0; stage < 4; stage++) {
        for (int i = 0; i < blocks[depth > 18][stage]; i++) {
            channels = block(&l, depth >= 50, channels, 64 << stage, stage > 0 && i == 0 ? 2 : 1);
        }
    }
    return l.count;
}
