/* What the models' files share: blocks, and how a family of models is listed. Users do not include
 * this. */
#pragma once

#include "nn/internal.h"

/* ---- families ---- */

/* Models that differ by a plan, a row of a table: `count` plans of `size` bytes, each of which
 * begins with the model's name. */
typedef struct td_model_family {
    const void *plans;
    size_t size;
    int count;
    /* options are checked, classes set */
    td_module *(*make)(const void *plan, const td_model_options *options);
    bool stems; /* has each td_stem, not ImageNet's alone */
} td_model_family;
#define TD_PLANS(TABLE)                                                                            \
    .plans = (TABLE), .size = sizeof *(TABLE), .count = sizeof(TABLE) / sizeof *(TABLE)

extern const td_model_family td_resnet_family, td_densenet_family, td_efficientnet_family,
    td_regnet_family, td_botnet_family, td_gpt_family;

/* Notes what a model was made with, and returns the model. m NULL: nothing happens. */
td_module *td_model_set_record(td_module *m, td_model_record record);

/* ---- ResNet's frame: stem, four layers of blocks, classifier ---- */

typedef struct td_resnet_plan {
    const char *name;
    bool bottleneck;
    int blocks[4];          /* in each of the four layers */
    int groups, base_width; /* of the 3x3 convolutions; a width of 64 is ResNet's own */
    /* The fourth layer, if it is not like the others. */
    td_module *(*last_layer)(int64_t in, int64_t out, int blocks, const td_model_options *options);
} td_resnet_plan;
/* A family's make, with a td_resnet_plan. */
td_module *td_resnet_build(const void *resnet_plan, const td_model_options *options);

/* ---- blocks ---- */

typedef enum td_activation {
    TD_NO_ACTIVATION,
    TD_RELU_ACTIVATION,
    TD_SILU_ACTIVATION
} td_activation;

/* A square convolution without bias that keeps the image's size but for the stride. */
td_module *td_block_conv(int64_t in, int64_t out, int kernel, int stride, int groups);

/* torchvision's Conv2dNormActivation: convolution "0", BatchNorm2d "1", activation "2". */
td_module *td_block_conv_norm(int64_t in, int64_t out, int kernel, int stride, int groups,
                              td_activation activation);

/* Runs one without activation, and what follows it in the same pass: [+ add] [relu]. */
td_tensor *td_block_conv_norm_fused(td_module *m, td_tensor *x, td_tensor *add, bool relu,
                                    td_site at);

/* Squeeze-and-excitation (Hu et al. 2017): x * sigmoid(fc2(act(fc1(mean of x over the image)))),
 * with torchvision's names. */
td_module *td_block_squeeze_excitation(int64_t channels, int64_t squeezed,
                                       td_activation activation);
