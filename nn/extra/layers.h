/* More layers than nn/nn.h has, with PyTorch's parameter names and initial values: convolutions of
 * one and three dimensions, transposed convolutions, pooling, resizing, group norms. */
#pragma once

#include "nn/nn.h"

TD_BEGIN_C

/* ---- convolutions: weight and bias as td_conv1d's and so on (autograd/windows.h) ---- */

/* nn.Conv1d: td_nn_conv1d(in, out, .kernel = 3, ...). */
typedef struct td_nn_conv1d_options {
    int begin_; /* for the library: lets the macro take an empty list */
    int64_t in, out;
    int kernel, stride, padding, dilation; /* 0: 1, 1, 0, 1 */
    int groups;                            /* 0: 1 */
    int pads[2];                           /* instead of padding: before, after */
    bool same;                             /* instead of padding */
    bool no_bias;
} td_nn_conv1d_options;
td_module *td_nn_conv1d_at(td_nn_conv1d_options options, td_site at);

/* nn.Conv3d: td_nn_conv3d(in, out, .kernel = 3, ...). */
typedef struct td_nn_conv3d_options {
    int begin_;
    int64_t in, out;
    int kernel, stride, padding, dilation; /* 0: 1, 1, 0, 1 */
    int kernel_dhw[3], stride_dhw[3], padding_dhw[3], dilation_dhw[3];
    int groups;  /* 0: 1 */
    int pads[6]; /* instead of padding: front, top, left, back, bottom, right */
    bool same;   /* instead of padding */
    bool no_bias;
} td_nn_conv3d_options;
td_module *td_nn_conv3d_at(td_nn_conv3d_options options, td_site at);

/* nn.ConvTranspose1d, nn.ConvTranspose2d. */
typedef struct td_nn_conv_transpose1d_options {
    int begin_;
    int64_t in, out;
    int kernel, stride, padding, dilation, output_padding; /* 0: 1, 1, 0, 1, 0 */
    int groups;                                            /* 0: 1 */
    bool no_bias;
} td_nn_conv_transpose1d_options;
td_module *td_nn_conv_transpose1d_at(td_nn_conv_transpose1d_options options, td_site at);
typedef struct td_nn_conv_transpose2d_options {
    int begin_;
    int64_t in, out;
    int kernel, stride, padding, dilation, output_padding; /* 0: 1, 1, 0, 1, 0 */
    int kernel_hw[2], stride_hw[2], padding_hw[2], dilation_hw[2], output_padding_hw[2];
    int groups; /* 0: 1 */
    bool no_bias;
} td_nn_conv_transpose2d_options;
td_module *td_nn_conv_transpose2d_at(td_nn_conv_transpose2d_options options, td_site at);

/* ---- pooling and resizing ---- */

/* nn.MaxPool1d, nn.AvgPool1d: td_nn_max_pool1d(.kernel = 2). x of the options stays empty. */
td_module *td_nn_max_pool1d_at(td_pool1d_options options, td_site at);
td_module *td_nn_avg_pool1d_at(td_pool1d_options options, td_site at);
td_module *td_nn_adaptive_avg_pool1d_at(int64_t length, td_site at);
td_module *td_nn_adaptive_max_pool1d_at(int64_t length, td_site at);
td_module *td_nn_adaptive_avg_pool2d_at(int64_t height, int64_t width, td_site at);
td_module *td_nn_adaptive_max_pool2d_at(int64_t height, int64_t width, td_site at);
/* nn.Upsample: td_nn_upsample(.scale = 2, .mode = TD_BILINEAR). */
td_module *td_nn_upsample_at(td_interpolate_options options, td_site at);

/* ---- normalisation ---- */

/* nn.GroupNorm; nn.InstanceNorm1d, 2d and 3d with affine = True or, with no_weight, False;
 * nn.RMSNorm. */
typedef struct td_nn_group_norm_options {
    int begin_;
    int64_t groups, channels;
    double eps; /* 0: 1e-5 */
    bool no_weight;
} td_nn_group_norm_options;
td_module *td_nn_group_norm_at(td_nn_group_norm_options options, td_site at);
typedef struct td_nn_instance_norm_options {
    int begin_;
    int64_t channels;
    double eps; /* 0: 1e-5 */
    bool no_weight;
    bool track_running_stats; /* evaluation takes running_mean and running_var */
    double momentum;          /* of running_mean and running_var; 0: 0.1 */
} td_nn_instance_norm_options;
td_module *td_nn_instance_norm_at(td_nn_instance_norm_options options, td_site at);
typedef struct td_nn_rms_norm_options {
    int begin_;
    int64_t channels; /* the last dimension */
    double eps;       /* 0: x's machine epsilon */
    bool no_weight;
    bool for_products; /* as td_nn_layer_norm_options has it */
} td_nn_rms_norm_options;
td_module *td_nn_rms_norm_at(td_nn_rms_norm_options options, td_site at);

/* ---- activation ---- */

td_module *td_nn_leaky_relu(void); /* nn.LeakyReLU: slope 0.01 */
/* nn.PReLU: td_prelu with a weight [channels] that begins as 0.25; 1: the same for all. */
td_module *td_nn_prelu_at(int64_t channels, td_site at);

TD_END_C

/* ---- what you call ---- */

#define td_nn_conv1d(...) TD_CALL(td_nn_conv1d, TD_OPT2(in, out, __VA_ARGS__))
#define td_nn_conv3d(...) TD_CALL(td_nn_conv3d, TD_OPT2(in, out, __VA_ARGS__))
#define td_nn_conv_transpose1d(...) TD_CALL(td_nn_conv_transpose1d, TD_OPT2(in, out, __VA_ARGS__))
#define td_nn_conv_transpose2d(...) TD_CALL(td_nn_conv_transpose2d, TD_OPT2(in, out, __VA_ARGS__))
#define td_nn_max_pool1d(...)                                                                      \
    td_nn_max_pool1d_at((td_pool1d_options){ .begin_ = 0, __VA_ARGS__ }, TD_HERE)
#define td_nn_avg_pool1d(...)                                                                      \
    td_nn_avg_pool1d_at((td_pool1d_options){ .begin_ = 0, __VA_ARGS__ }, TD_HERE)
#define td_nn_adaptive_avg_pool1d(...) td_nn_adaptive_avg_pool1d_at(__VA_ARGS__, TD_HERE)
#define td_nn_adaptive_max_pool1d(...) td_nn_adaptive_max_pool1d_at(__VA_ARGS__, TD_HERE)
#define td_nn_adaptive_avg_pool2d(...) td_nn_adaptive_avg_pool2d_at(__VA_ARGS__, TD_HERE)
#define td_nn_adaptive_max_pool2d(...) td_nn_adaptive_max_pool2d_at(__VA_ARGS__, TD_HERE)
#define td_nn_upsample(...)                                                                        \
    td_nn_upsample_at((td_interpolate_options){ .begin_ = 0, __VA_ARGS__ }, TD_HERE)
#define td_nn_group_norm(...) TD_CALL(td_nn_group_norm, TD_OPT2(groups, channels, __VA_ARGS__))
#define td_nn_instance_norm(...) TD_CALL(td_nn_instance_norm, TD_OPT1(channels, __VA_ARGS__))
#define td_nn_rms_norm(...) TD_CALL(td_nn_rms_norm, TD_OPT1(channels, __VA_ARGS__))
#define td_nn_prelu(...) td_nn_prelu_at(__VA_ARGS__, TD_HERE)
