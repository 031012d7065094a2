/* Convolutions and pooling of [N,C,L], as images of height 1; and of [N,C,D,H,W], as images. */
#include "autograd/fused.h"
#include "autograd/ops/op.h"

/* ---- one dimension ---- */

/* [a,b,l] as [a,b,1,l]. */
static td_tensor *heighten(td_tensor *x, const char *op, const char *what, td_site at)
{
    td_check_tensor(x, op, what, at);
    TD_REQUIRE(x->ndim == 3, at, "%s: %s%s must have three dimensions", op, what, TD_SHAPE_TEXT(x));
    return td_reshape_at(x, TD_SHAPE(x->shape[0], x->shape[1], 1, x->shape[2]), at);
}

static td_tensor *flatten(td_tensor *y, td_site at)
{
    return td_reshape_at(y, TD_SHAPE(y->shape[0], y->shape[1], y->shape[3]), at);
}

td_tensor *td_conv1d_at(td_conv1d_options o, td_site at)
{
    td_conv2d_options wide = {
        .x = heighten(o.x, "conv1d", "x", at),
        .w = heighten(o.w, "conv1d", "weight", at),
        .b = o.b,
        .stride_hw = { 1, o.stride != 0 ? o.stride : 1 },
        .padding_hw = { 0, o.padding },
        .dilation_hw = { 1, o.dilation != 0 ? o.dilation : 1 },
        .groups = o.groups,
        .pads = { 0, o.pads[0], 0, o.pads[1] },
        .same = o.same,
    };
    return flatten(td_conv2d_at(wide, at), at);
}

td_tensor *td_conv_transpose1d_at(td_conv_transpose1d_options o, td_site at)
{
    td_conv_transpose2d_options wide = {
        .x = heighten(o.x, "conv_transpose1d", "x", at),
        .w = heighten(o.w, "conv_transpose1d", "weight", at),
        .b = o.b,
        .stride_hw = { 1, o.stride != 0 ? o.stride : 1 },
        .padding_hw = { 0, o.padding },
        .dilation_hw = { 1, o.dilation != 0 ? o.dilation : 1 },
        .output_padding_hw = { 0, o.output_padding },
        .groups = o.groups,
    };
    return flatten(td_conv_transpose2d_at(wide, at), at);
}

static td_pool2d_options wide_pool(const td_pool1d_options *o, const char *op, td_site at)
{
    return (td_pool2d_options){
        .x = heighten(o->x, op, "x", at),
        .kernel_hw = { 1, o->kernel },
        .stride_hw = { 1, o->stride != 0 ? o->stride : o->kernel },
        .padding_hw = { 0, o->padding },
        .dilation_hw = { 1, o->dilation != 0 ? o->dilation : 1 },
        .ceil_mode = o->ceil_mode,
        .exclude_pad = o->exclude_pad,
    };
}

td_tensor *td_max_pool1d_at(td_pool1d_options o, td_site at)
{
    return flatten(td_max_pool2d_at(wide_pool(&o, "max_pool1d", at), at), at);
}

td_tensor *td_avg_pool1d_at(td_pool1d_options o, td_site at)
{
    return flatten(td_avg_pool2d_at(wide_pool(&o, "avg_pool1d", at), at), at);
}

td_tensor *td_adaptive_avg_pool1d_at(td_tensor *x, int64_t length, td_site at)
{
    x = heighten(x, "adaptive_avg_pool1d", "x", at);
    return flatten(td_adaptive_avg_pool2d_at(x, 1, length, at), at);
}

td_tensor *td_adaptive_max_pool1d_at(td_tensor *x, int64_t length, td_site at)
{
    x = heighten(x, "adaptive_max_pool1d", "x", at);
    return flatten(td_adaptive_max_pool2d_at(x, 1, length, at), at);
}

/* ---- three dimensions ---- */

typedef struct conv3d_params {
    int stride[3], pad[3], dilation[3];
    int64_t before, after; /* padding of the depth */
    int64_t groups, depth; /* of the result */
} conv3d_params;

/* [N,C,D,H,W] -> [N OD, G KD C/G, H, W]: for each slice of the result the slices of its window. */
static td_tensor *windows_of_slices(td_tensor *x, const conv3d_params *p, int64_t kernel,
                                    td_site at)
{
    const int64_t *s = x->shape;
    td_tensor *padded = td_op_padded(x, (int64_t[]){ 0, 0, p->before, 0, 0 },
                                     (int64_t[]){ 0, 0, p->after, 0, 0 }, 0.0, at);
    td_tensor **taps = td_step_bytes((size_t)kernel * sizeof *taps);
    for (int64_t k = 0; k < kernel; k++) {
        int64_t first = k * p->dilation[0], last = first + (p->depth - 1) * p->stride[0];
        td_tensor *tap = td_slice_at(padded, 2, first, last + 1, p->stride[0], at);
        tap = td_permute_at(tap, (int[]){ 0, 2, 1, 3, 4 }, at);
        td_shape shape = TD_SHAPE(s[0] * p->depth, p->groups, 1, s[1] / p->groups, s[3], s[4]);
        taps[k] = td_reshape_at(tap, shape, at);
    }
    td_tensor *all = kernel > 1 ? td_cat_at(taps, (int)kernel, 2, at) : taps[0];
    return td_reshape_at(all, TD_SHAPE(s[0] * p->depth, kernel * s[1], s[3], s[4]), at);
}

td_tensor *td_conv3d_at(td_conv3d_options o, td_site at)
{
    const char *op = "conv3d";
    conv3d_params p = { .groups = o.groups != 0 ? o.groups : 1 };
    td_op_triple(o.stride, o.stride_dhw, 1, 1, op, "stride", p.stride, at);
    td_op_triple(o.padding, o.padding_dhw, 0, 0, op, "padding", p.pad, at);
    td_op_triple(o.dilation, o.dilation_dhw, 1, 1, op, "dilation", p.dilation, at);
    td_tensor *x = td_op_input(o.x, op, "x", TD_RULE_OF(conv3d), at), *w = o.w;
    td_check_float(w, op, "the weight", at);
    TD_REQUIRE(x->ndim == 5 && w->ndim == 5 && p.groups > 0 && x->shape[1] % p.groups == 0 &&
                   w->shape[1] * p.groups == x->shape[1] && w->shape[2] > 0,
               at,
               "conv3d: x%s and weight%s, %lld groups, must be [N,C,D,H,W] and "
               "[out,C/groups,KD,KH,KW]",
               TD_SHAPE_TEXT(x), TD_SHAPE_TEXT(w), (long long)p.groups);
    const int64_t *s = w->shape;
    p.before = p.after = p.pad[0];
    bool given = false;
    for (int i = 0; i < 6; i++) {
        given = given || o.pads[i] != 0;
    }
    TD_REQUIRE((p.pad[0] + p.pad[1] + p.pad[2] != 0) + given + o.same <= 1, at,
               "conv3d: give one of .padding, .pads and .same");
    TD_REQUIRE(o.pads[0] >= 0 && o.pads[3] >= 0, at, "conv3d: pads %d,%d must not be negative",
               o.pads[0], o.pads[3]);
    if (given) {
        p.before = o.pads[0];
        p.after = o.pads[3];
    } else if (o.same) {
        td_op_same_padding(x->shape[2], s[2], p.stride[0], p.dilation[0], &p.before, &p.after);
    }
    p.depth = td_op_windows(x->shape[2] + p.before + p.after, s[2], p.stride[0], 0, p.dilation[0]);
    TD_REQUIRE(p.depth > 0, at, "conv3d: the kernel of weight%s is deeper than x%s",
               TD_SHAPE_TEXT(w), TD_SHAPE_TEXT(x));
    td_tensor *filter = td_permute_at(w, (int[]){ 0, 2, 1, 3, 4 }, at);
    td_tensor *y = td_conv2d_at(
        (td_conv2d_options){
            .x = windows_of_slices(x, &p, s[2], at),
            .w = td_reshape_at(filter, TD_SHAPE(s[0], s[2] * s[1], s[3], s[4]), at),
            .b = o.b,
            .stride_hw = { p.stride[1], p.stride[2] },
            .padding_hw = { p.pad[1], p.pad[2] },
            .dilation_hw = { p.dilation[1], p.dilation[2] },
            .groups = (int)p.groups,
            .same = o.same,
            .pads = { o.pads[1], o.pads[2], o.pads[4], o.pads[5] },
        },
        at);
    td_shape shape = TD_SHAPE(x->shape[0], p.depth, s[0], y->shape[2], y->shape[3]);
    return td_permute_at(td_reshape_at(y, shape, at), (int[]){ 0, 2, 1, 3, 4 }, at);
}
