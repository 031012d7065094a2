/* More convolutions, pooling and resizing: td_conv2d, td_max_pool2d and td_avg_pool2d are in
 * autograd/ops.h. Options are given by name (tensor/options.h): one number for height and width
 * together (.stride = 2), or one for each (.stride_hw = { 2, 1 }). */
#pragma once

#include "autograd/ops.h"

TD_BEGIN_C

/* ---- convolutions ---- */

/* td_conv1d(x, w, b, ...): F.conv1d. x [N,C,L], w [O,C/groups,K], b [O] or NULL -> [N,O,OL], with
 * OL = (L + 2 padding - dilation (K - 1) - 1) / stride + 1. */
typedef struct td_conv1d_options {
    int begin_; /* for the library: lets the macro take an empty list */
    td_tensor *x, *w, *b;
    int stride, padding, dilation, groups; /* 0: 1, 0, 1, 1 */
    int pads[2]; /* instead of padding: before and after ({ K - 1, 0 }: a causal convolution) */
    bool same;   /* instead of padding: OL = L / stride, rounded up */
} td_conv1d_options;
td_tensor *td_conv1d_at(td_conv1d_options options, td_site at);

/* td_conv3d(x, w, b, ...): F.conv3d. x [N,C,D,H,W], w [O,C/groups,KD,KH,KW] -> [N,O,OD,OH,OW],
 * sizes as above. Computed as a convolution of images whose channels are the KD slices of a window.
 */
typedef struct td_conv3d_options {
    int begin_;
    td_tensor *x, *w, *b;
    int stride, padding, dilation; /* 0: 1, 0, 1 */
    int stride_dhw[3], padding_dhw[3], dilation_dhw[3];
    int groups;  /* 0: 1 */
    bool same;   /* instead of padding: OD = D / stride, rounded up, and so on; PyTorch's "same" */
    int pads[6]; /* instead of padding: front, top, left, back, bottom, right */
} td_conv3d_options;
td_tensor *td_conv3d_at(td_conv3d_options options, td_site at);

/* td_conv_transpose2d(x, w, b, ...): F.conv_transpose2d. It computes what td_conv2d computes for
 * the gradient of its input. x [N,C,H,W], w [C,O/groups,KH,KW], b [O] or NULL -> [N,O,OH,OW], with
 * OH = (H - 1) stride - 2 padding + dilation (KH - 1) + output_padding + 1. A convolution gives the
 * size H for `stride` different sizes OH; output_padding (0 to stride - 1) chooses one of them. */
typedef struct td_conv_transpose2d_options {
    int begin_;
    td_tensor *x, *w, *b;
    int stride, padding, dilation, output_padding; /* 0: 1, 0, 1, 0 */
    int stride_hw[2], padding_hw[2], dilation_hw[2], output_padding_hw[2];
    int groups; /* 0: 1 */
} td_conv_transpose2d_options;
td_tensor *td_conv_transpose2d_at(td_conv_transpose2d_options options, td_site at);

/* td_conv_transpose1d(x, w, b, ...): the same for x [N,C,L], w [C,O/groups,K]. */
typedef struct td_conv_transpose1d_options {
    int begin_;
    td_tensor *x, *w, *b;
    int stride, padding, dilation, output_padding, groups;
} td_conv_transpose1d_options;
td_tensor *td_conv_transpose1d_at(td_conv_transpose1d_options options, td_site at);

/* ---- pooling ---- */

/* td_max_pool1d(x, kernel, ...), td_avg_pool1d(x, kernel, ...): x [N,C,L]; otherwise like
 * td_max_pool2d and td_avg_pool2d. */
typedef struct td_pool1d_options {
    int begin_;
    td_tensor *x;
    int kernel, stride, padding; /* stride 0: the kernel */
    int dilation;                /* of the maximum; 0: 1 */
    bool ceil_mode, exclude_pad;
} td_pool1d_options;
td_tensor *td_max_pool1d_at(td_pool1d_options options, td_site at);
td_tensor *td_avg_pool1d_at(td_pool1d_options options, td_site at);

/* F.adaptive_avg_pool1d, F.adaptive_max_pool1d: [N,C,L] -> [N,C,length]. */
td_tensor *td_adaptive_avg_pool1d_at(td_tensor *x, int64_t length, td_site at);
td_tensor *td_adaptive_max_pool1d_at(td_tensor *x, int64_t length, td_site at);
/* F.adaptive_avg_pool2d, F.adaptive_max_pool2d: [N,C,H,W] -> [N,C,height,width]. Row i of the
 * result is computed from x's rows floor(i H / height) to ceil((i + 1) H / height) - 1; columns
 * likewise. */
td_tensor *td_adaptive_avg_pool2d_at(td_tensor *x, int64_t height, int64_t width, td_site at);
td_tensor *td_adaptive_max_pool2d_at(td_tensor *x, int64_t height, int64_t width, td_site at);

/* ---- resizing ---- */

typedef enum td_interpolation {
    TD_NEAREST,  /* F.interpolate's "nearest" */
    TD_BILINEAR, /* "bilinear" */
} td_interpolation;

/* td_interpolate(x, ...): F.interpolate: resizes images [N,C,H,W] to a size or by a scale. It is
 * computed as two products with matrices, one for rows and one for columns. */
typedef struct td_interpolate_options {
    int begin_;
    td_tensor *x;
    int64_t size, size_hw[2]; /* of the result; or: */
    double scale, scale_hw[2];
    td_interpolation mode;
    bool align_corners; /* bilinear: the centres of the corner pixels stay in the corners */
    bool antialias;     /* bilinear: when shrinking, averages all pixels under an output pixel
                           (PIL's filter) */
} td_interpolate_options;
td_tensor *td_interpolate_at(td_interpolate_options options, td_site at);

TD_END_C

/* ---- what you call ---- */

#define td_conv1d(...) TD_CALL(td_conv1d, TD_OPT3(x, w, b, __VA_ARGS__))
#define td_conv3d(...) TD_CALL(td_conv3d, TD_OPT3(x, w, b, __VA_ARGS__))
#define td_conv_transpose1d(...) TD_CALL(td_conv_transpose1d, TD_OPT3(x, w, b, __VA_ARGS__))
#define td_conv_transpose2d(...) TD_CALL(td_conv_transpose2d, TD_OPT3(x, w, b, __VA_ARGS__))
#define td_max_pool1d(...)                                                                         \
    td_max_pool1d_at((td_pool1d_options){ TD_OPT2(x, kernel, __VA_ARGS__) }, TD_HERE)
#define td_avg_pool1d(...)                                                                         \
    td_avg_pool1d_at((td_pool1d_options){ TD_OPT2(x, kernel, __VA_ARGS__) }, TD_HERE)
#define td_adaptive_avg_pool1d(...) td_adaptive_avg_pool1d_at(__VA_ARGS__, TD_HERE)
#define td_adaptive_max_pool1d(...) td_adaptive_max_pool1d_at(__VA_ARGS__, TD_HERE)
#define td_adaptive_avg_pool2d(...) td_adaptive_avg_pool2d_at(__VA_ARGS__, TD_HERE)
#define td_adaptive_max_pool2d(...) td_adaptive_max_pool2d_at(__VA_ARGS__, TD_HERE)
#define td_interpolate(...) TD_CALL(td_interpolate, TD_OPT1(x, __VA_ARGS__))
