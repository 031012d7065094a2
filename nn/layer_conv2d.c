/* Conv2d: a convolution over [N,C,H,W]. */
#include "nn/layer.h"

#include <string.h>

/* ", stride 2x2" where the two differ from what is usual. */
static int describe_pair(char *text, size_t size, const char *what, const int pair[2], int usual)
{
    if (pair[0] == usual && pair[1] == usual) {
        return 0;
    }
    return snprintf(text, size, ", %s %dx%d", what, pair[0], pair[1]);
}

static void conv2d_describe(const td_module *self, char *text, size_t size)
{
    const td_conv2d_options *o = self->state;
    const int64_t *w = o->w->shape;
    char stride[48] = "", padding[48] = "", dilation[48] = "", groups[32] = "";
    describe_pair(stride, sizeof stride, "stride", o->stride_hw, 1);
    describe_pair(padding, sizeof padding, "padding", o->padding_hw, 0);
    describe_pair(dilation, sizeof dilation, "dilation", o->dilation_hw, 1);
    if (o->groups > 1) {
        snprintf(groups, sizeof groups, ", groups %d", o->groups);
    }
    if (o->same) {
        snprintf(padding, sizeof padding, ", same padding");
    } else if (o->pads[0] != 0 || o->pads[1] != 0 || o->pads[2] != 0 || o->pads[3] != 0) {
        snprintf(padding, sizeof padding, ", pads %d,%d,%d,%d", o->pads[0], o->pads[1], o->pads[2],
                 o->pads[3]);
    }
    snprintf(text, size, "%lld, %lld, kernel %lldx%lld%s%s%s%s%s", (long long)(w[1] * o->groups),
             (long long)w[0], (long long)w[2], (long long)w[3], stride, padding, dilation, groups,
             o->b == NULL ? ", no bias" : "");
}

static int64_t conv2d_multiply_adds(const td_module *self, td_shape in, td_shape out)
{
    (void)in;
    const td_tensor *w = ((const td_conv2d_options *)self->state)->w;
    return td_shape_numel(out) * (td_numel(w) / w->shape[0]);
}

TD_LAYER(conv2d, td_conv2d_options, x, "Conv2d", .describe = conv2d_describe,
         .multiply_adds = conv2d_multiply_adds);

bool td_is_conv2d(const td_module *m)
{
    return m->type == &conv2d_type;
}

td_tensor *td_conv2d_module_run(td_module *conv, td_tensor *x, td_site at)
{
    td_conv2d_options options = *(const td_conv2d_options *)conv->state;
    options.x = x;
    td_context_push(td_node_of(conv)->label);
    td_tensor *y = td_conv2d_at(options, at);
    td_context_pop();
    return y;
}

td_module *td_nn_conv2d_at(td_nn_conv2d_options o, td_site at)
{
    const char *name = "td_nn_conv2d";
    int64_t groups = o.groups != 0 ? o.groups : 1;
    TD_REQUIRE(o.in > 0 && o.out > 0, at, "%s(%lld, %lld): both channel counts must be positive",
               name, (long long)o.in, (long long)o.out);
    TD_REQUIRE(groups > 0 && o.in % groups == 0 && o.out % groups == 0, at,
               "%s(%lld, %lld): %lld groups do not divide both channel counts", name,
               (long long)o.in, (long long)o.out, (long long)groups);
    TD_REQUIRE(o.kernel != 0 || o.kernel_hw[0] != 0, at,
               "%s(%lld, %lld): the kernel size is missing: .kernel = 3 (or 1, for single pixels)",
               name, (long long)o.in, (long long)o.out);
    td_conv2d_options s = { .groups = (int)groups, .same = o.same };
    int kernel[2];
    memcpy(s.pads, o.pads, sizeof s.pads);
    td_op_pair(o.kernel, o.kernel_hw, 1, 1, name, "kernel", kernel, at);
    td_op_pair(o.stride, o.stride_hw, 1, 1, name, "stride", s.stride_hw, at);
    td_op_pair(o.padding, o.padding_hw, 0, 0, name, "padding", s.padding_hw, at);
    td_op_pair(o.dilation, o.dilation_hw, 1, 1, name, "dilation", s.dilation_hw, at);
    td_module *m = td_module_new(&conv2d_type, sizeof s);
    td_layer_weights(m, &s.w, o.no_bias ? NULL : &s.b,
                     TD_SHAPE(o.out, o.in / groups, kernel[0], kernel[1]), o.out);
    return td_module_finish_with(m, &s);
}
