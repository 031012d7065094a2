/* Runs single operations by oneDNN. */
#include "bench/onednn.h"

#include "bench/memory.h"

#include <stdlib.h>
#include <unistd.h>

#if TD_HAVE_ONEDNN

#include <oneapi/dnnl/dnnl.h>

enum { MAX_OPERANDS = 3 };

void onednn_prepare(char **argv)
{
    if (!getenv("GOMP_SPINCOUNT") && setenv("GOMP_SPINCOUNT", "1000", 1) == 0) {
        execv("/proc/self/exe", argv); /* returns only if it fails: then it spins */
    }
}

struct onednn {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_desc_t description;
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t operands[MAX_OPERANDS];
    void *data[MAX_OPERANDS];
    int count;
    /* The weights as forward has them, where this pass wants another layout. */
    void *kept_data;
    dnnl_memory_t kept;
    dnnl_primitive_t convert; /* from or to the pass's layout */
    bool convert_first;
};

static onednn *make(void)
{
    onednn *o = calloc(1, sizeof *o);
    if (o &&
        (dnnl_engine_create(&o->engine, dnnl_cpu, 0) != dnnl_success ||
         dnnl_stream_create(&o->stream, o->engine, dnnl_stream_default_flags) != dnnl_success)) {
        onednn_free(o);
        return NULL;
    }
    return o;
}

/* Memory of a layout, filled with small numbers; NULL if there is none. The caller frees both. */
static void *make_memory(onednn *o, const dnnl_memory_desc_t *layout, dnnl_memory_t *memory)
{
    size_t bytes = (dnnl_memory_desc_get_size(layout) + 63) / 64 * 64;
    float *data = bench_memory(bytes);
    if (!data || dnnl_memory_create(memory, layout, o->engine, data) != dnnl_success) {
        free(data);
        return NULL;
    }
    for (size_t i = 0; i < bytes / sizeof *data; i++) {
        data[i] = (float)(i % 17) * 0.125f - 1;
    }
    return data;
}

static const dnnl_memory_desc_t *layout_of(dnnl_primitive_desc_t description, int argument)
{
    return dnnl_primitive_desc_query_md(description, dnnl_query_exec_arg_md, argument);
}

/* An operand in the layout that the primitive asks for. */
static bool add_operand(onednn *o, int argument)
{
    dnnl_memory_t memory;
    void *data = make_memory(o, layout_of(o->description, argument), &memory);
    if (!data) {
        return false;
    }
    o->data[o->count] = data;
    o->operands[o->count++] = (dnnl_exec_arg_t){ argument, memory };
    return true;
}

/* Prepares what converts between the pass's layout of the weights, its operand `i`, and the one
 * that forward likes best. Where oneDNN cannot, nothing is converted. */
static void keep_as_forward(onednn *o, dnnl_primitive_desc_t forward, int i, bool convert_first)
{
    const dnnl_memory_desc_t *kept = layout_of(forward, DNNL_ARG_WEIGHTS);
    const dnnl_memory_desc_t *used = layout_of(o->description, o->operands[i].arg);
    if (dnnl_memory_desc_equal(kept, used)) {
        return;
    }
    dnnl_primitive_desc_t description;
    o->convert_first = convert_first;
    o->kept_data = make_memory(o, kept, &o->kept);
    if (!o->kept_data || dnnl_reorder_primitive_desc_create(
                             &description, convert_first ? kept : used, o->engine,
                             convert_first ? used : kept, o->engine, NULL) != dnnl_success) {
        return;
    }
    if (dnnl_primitive_create(&o->convert, description) != dnnl_success) {
        o->convert = NULL;
    }
    dnnl_primitive_desc_destroy(description);
}

/* The operation of a description, or NULL. */
static onednn *finish(onednn *o, const_dnnl_op_desc_t op, const int arguments[MAX_OPERANDS],
                      dnnl_primitive_desc_t hint)
{
    bool made =
        dnnl_primitive_desc_create(&o->description, op, NULL, o->engine, hint) == dnnl_success &&
        dnnl_primitive_create(&o->primitive, o->description) == dnnl_success;
    for (int i = 0; made && i < MAX_OPERANDS; i++) {
        made = add_operand(o, arguments[i]);
    }
    if (!made) {
        onednn_free(o);
        return NULL;
    }
    return o;
}

/* The memory descriptions and the geometry of a convolution. */
typedef struct conv_args {
    dnnl_memory_desc_t x, w, y;
    dnnl_dims_t strides, dilates, pad_low, pad_high;
} conv_args;

static conv_args describe(const td_conv2d_desc *d)
{
    const dnnl_dims_t x = { d->n, d->ic, d->ih, d->iw }, y = { d->n, d->oc, d->oh, d->ow };
    const dnnl_dims_t w = { d->oc, d->ic, d->kh, d->kw };
    const dnnl_dims_t grouped = { d->groups, d->oc / d->groups, d->ic / d->groups, d->kh, d->kw };
    conv_args a = { .strides = { d->stride_h, d->stride_w },
                    .dilates = { d->dil_h - 1, d->dil_w - 1 },
                    .pad_low = { d->pad_h, d->pad_w } };
    a.pad_high[0] = (d->oh - 1) * d->stride_h + (d->kh - 1) * d->dil_h + 1 - d->ih - d->pad_h;
    a.pad_high[1] = (d->ow - 1) * d->stride_w + (d->kw - 1) * d->dil_w + 1 - d->iw - d->pad_w;
    dnnl_memory_desc_init_by_tag(&a.x, 4, x, dnnl_f32, dnnl_format_tag_any);
    dnnl_memory_desc_init_by_tag(&a.y, 4, y, dnnl_f32, dnnl_format_tag_any);
    bool groups = d->groups > 1;
    dnnl_memory_desc_init_by_tag(&a.w, groups ? 5 : 4, groups ? grouped : w, dnnl_f32,
                                 dnnl_format_tag_any);
    return a;
}

/* Direct, or what oneDNN takes for best, which may be Winograd's transform. */
static dnnl_alg_kind_t algorithm(const td_conv2d_desc *d)
{
    return d->winograd ? dnnl_convolution_auto : dnnl_convolution_direct;
}

static bool forward_op(dnnl_convolution_desc_t *op, const td_conv2d_desc *d, const conv_args *a)
{
    return dnnl_dilated_convolution_forward_desc_init(
               op, dnnl_forward_training, algorithm(d), &a->x, &a->w, NULL, &a->y, a->strides,
               a->dilates, a->pad_low, a->pad_high) == dnnl_success;
}

static bool backward_op(dnnl_convolution_desc_t *op, const td_conv2d_desc *d, const conv_args *a,
                        td_conv2d_pass pass)
{
    if (pass == TD_CONV2D_BACKWARD_DATA) {
        return dnnl_dilated_convolution_backward_data_desc_init(
                   op, algorithm(d), &a->x, &a->w, &a->y, a->strides, a->dilates, a->pad_low,
                   a->pad_high) == dnnl_success;
    }
    return dnnl_dilated_convolution_backward_weights_desc_init(
               op, algorithm(d), &a->x, &a->w, NULL, &a->y, a->strides, a->dilates, a->pad_low,
               a->pad_high) == dnnl_success;
}

onednn *onednn_conv(const td_conv2d_desc *desc, td_conv2d_pass pass)
{
    static const int arguments[][MAX_OPERANDS] = {
        [TD_CONV2D_FORWARD] = { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST },
        [TD_CONV2D_BACKWARD_DATA] = { DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST },
        [TD_CONV2D_BACKWARD_WEIGHTS] = { DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST },
    };
    onednn *o = make();
    conv_args a = describe(desc);
    dnnl_convolution_desc_t op;
    if (!o || !forward_op(&op, desc, &a)) {
        onednn_free(o);
        return NULL;
    }
    if (pass == TD_CONV2D_FORWARD) {
        return finish(o, &op, arguments[pass], NULL);
    }
    dnnl_primitive_desc_t hint = NULL;
    if (dnnl_primitive_desc_create(&hint, &op, NULL, o->engine, NULL) != dnnl_success ||
        !backward_op(&op, desc, &a, pass)) {
        dnnl_primitive_desc_destroy(hint);
        onednn_free(o);
        return NULL;
    }
    o = finish(o, &op, arguments[pass], hint);
    if (o) {
        keep_as_forward(o, hint, 1, pass == TD_CONV2D_BACKWARD_DATA);
    }
    dnnl_primitive_desc_destroy(hint);
    return o;
}

onednn *onednn_gemm(const td_gemm_desc *d)
{
    const dnnl_dims_t a = { d->batch.count, d->m, d->k }, b = { d->batch.count, d->k, d->n };
    const dnnl_dims_t c = { d->batch.count, d->m, d->n };
    const dnnl_dims_t a_strides = { d->batch.a, d->a_row, d->a_col };
    const dnnl_dims_t b_strides = { d->batch.b, d->b_row, d->b_col };
    const dnnl_dims_t c_strides = { d->batch.c, d->c_row, 1 };
    static const int arguments[] = { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST };
    dnnl_memory_desc_t md_a, md_b, md_c;
    dnnl_matmul_desc_t op;
    onednn *o = make();
    dnnl_memory_desc_init_by_strides(&md_a, 3, a, dnnl_f32, a_strides);
    dnnl_memory_desc_init_by_strides(&md_b, 3, b, dnnl_f32, b_strides);
    dnnl_memory_desc_init_by_strides(&md_c, 3, c, dnnl_f32, c_strides);
    if (!o || dnnl_matmul_desc_init(&op, &md_a, &md_b, NULL, &md_c) != dnnl_success) {
        onednn_free(o);
        return NULL;
    }
    return finish(o, &op, arguments, NULL);
}

void onednn_run(onednn *o)
{
    dnnl_primitive_execute(o->primitive, o->stream, o->count, o->operands);
    dnnl_stream_wait(o->stream);
}

bool onednn_converts(const onednn *o)
{
    return o->convert;
}

void onednn_run_step(onednn *o)
{
    dnnl_memory_t used = o->operands[1].memory;
    const dnnl_exec_arg_t both[] = {
        { DNNL_ARG_FROM, o->convert_first ? o->kept : used },
        { DNNL_ARG_TO, o->convert_first ? used : o->kept },
    };
    if (o->convert && o->convert_first) {
        dnnl_primitive_execute(o->convert, o->stream, 2, both);
    }
    dnnl_primitive_execute(o->primitive, o->stream, o->count, o->operands);
    if (o->convert && !o->convert_first) {
        dnnl_primitive_execute(o->convert, o->stream, 2, both);
    }
    dnnl_stream_wait(o->stream);
}

void onednn_free(onednn *o)
{
    if (!o) {
        return;
    }
    for (int i = 0; i < o->count; i++) {
        dnnl_memory_destroy(o->operands[i].memory);
        free(o->data[i]);
    }
    if (o->kept_data) {
        dnnl_memory_destroy(o->kept);
        free(o->kept_data);
    }
    dnnl_primitive_destroy(o->convert);
    dnnl_primitive_destroy(o->primitive);
    dnnl_primitive_desc_destroy(o->description);
    dnnl_stream_destroy(o->stream);
    dnnl_engine_destroy(o->engine);
    free(o);
}

#else

void onednn_prepare(char **argv)
{
    (void)argv;
}

onednn *onednn_conv(const td_conv2d_desc *desc, td_conv2d_pass pass)
{
    (void)desc;
    (void)pass;
    return NULL;
}

onednn *onednn_gemm(const td_gemm_desc *desc)
{
    (void)desc;
    return NULL;
}

void onednn_run(onednn *operation)
{
    (void)operation;
}

bool onednn_converts(const onednn *operation)
{
    (void)operation;
    return false;
}

void onednn_run_step(onednn *operation)
{
    (void)operation;
}

void onednn_free(onednn *operation)
{
    (void)operation;
}

#endif
