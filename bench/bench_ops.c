/* Single operations, forward and backward, as the profiler sees them: one line a kernel, separated
 * by tabs, the first line names the columns.
 *
 *     bench_ops [threads] [seconds for each case] */
#include "tandem.h"
#include "tensor/kernels/kernels.h"
#include "autograd/hooks.h"
#include "tensor/extend.h"
#include "tensor/observe/profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct inputs {
    td_tensor *x, *w, *b;
} inputs;

typedef struct op_case {
    const char *name;
    td_shape x, w; /* w, b: leaves; ndim 0: not used */
    td_layout layout;
    td_tensor *(*run)(const struct op_case *c, inputs *in);
    int stride;
} op_case;

/* ---- the operations ---- */

static td_tensor *conv(const op_case *c, inputs *in)
{
    int pad = (int)(c->w.dim[2] / 2);
    return td_conv2d(in->x, in->w, NULL, .stride = c->stride, .padding = pad);
}

static td_tensor *matmul(const op_case *c, inputs *in)
{
    (void)c;
    return td_matmul(in->x, in->w);
}

static td_tensor *norm(const op_case *c, inputs *in)
{
    (void)c;
    return td_relu(td_batch_norm(in->x, in->w, in->b, NULL, NULL, .training = true));
}

static td_tensor *softmax(const op_case *c, inputs *in)
{
    (void)c;
    return td_softmax(in->x, -1);
}

static td_tensor *softmax_columns(const op_case *c, inputs *in)
{
    (void)c;
    return td_softmax(in->x, 0);
}

static td_tensor *gelu(const op_case *c, inputs *in)
{
    (void)c;
    return td_gelu(in->x);
}

static td_tensor *silu(const op_case *c, inputs *in)
{
    (void)c;
    return td_silu(in->x);
}

static td_tensor *tangent(const op_case *c, inputs *in)
{
    (void)c;
    return td_tanh(in->x);
}

static td_tensor *dropout(const op_case *c, inputs *in)
{
    (void)c;
    return td_dropout(in->x, 0.5, (td_philox_key){ 0 }, 1);
}

static td_tensor *layer_norm(const op_case *c, inputs *in)
{
    (void)c;
    return td_layer_norm(in->x, in->w, in->b, 1e-5);
}

static td_tensor *add(const op_case *c, inputs *in)
{
    (void)c;
    return td_add(in->x, in->w);
}

#define IMAGE(n, c, s)                                                                             \
    {                                                                                              \
        4,                                                                                         \
        {                                                                                          \
            n, c, s, s                                                                             \
        }                                                                                          \
    }
static const op_case cases[] = {
    { "conv 7x7/2 3-64 at 32, n 256", IMAGE(256, 3, 32), IMAGE(64, 3, 7), TD_IMAGE, conv, 2 },
    { "conv 3x3 64 at 8, n 256", IMAGE(256, 64, 8), IMAGE(64, 64, 3), TD_IMAGE, conv, 1 },
    { "conv 3x3 128 at 4, n 256", IMAGE(256, 128, 4), IMAGE(128, 128, 3), TD_IMAGE, conv, 1 },
    { "conv 3x3 256 at 2, n 256", IMAGE(256, 256, 2), IMAGE(256, 256, 3), TD_IMAGE, conv, 1 },
    { "conv 3x3 512 at 1, n 256", IMAGE(256, 512, 1), IMAGE(512, 512, 3), TD_IMAGE, conv, 1 },
    { "conv 3x3 64 at 56, n 16", IMAGE(16, 64, 56), IMAGE(64, 64, 3), TD_IMAGE, conv, 1 },
    { "conv 1x1 64-256 at 56, n 16", IMAGE(16, 64, 56), IMAGE(256, 64, 1), TD_IMAGE, conv, 1 },
    { "conv 3x3 256 at 14, n 16", IMAGE(16, 256, 14), IMAGE(256, 256, 3), TD_IMAGE, conv, 1 },
    { "conv 3x3/2 128-256 at 28, n 16", IMAGE(16, 128, 28), IMAGE(256, 128, 3), TD_IMAGE, conv, 2 },
    { "matmul 1024^3", { 2, { 1024, 1024 } }, { 2, { 1024, 1024 } }, TD_ROW_MAJOR, matmul, 0 },
    { "matmul 256x512x1000", { 2, { 256, 512 } }, { 2, { 512, 1000 } }, TD_ROW_MAJOR, matmul, 0 },
    { "batch norm+relu 64 at 16, n 256", IMAGE(256, 64, 16), { 1, { 64 } }, TD_IMAGE, norm, 0 },
    { "batch norm+relu 256 at 2, n 256", IMAGE(256, 256, 2), { 1, { 256 } }, TD_IMAGE, norm, 0 },
    { "layer norm 4096x1024", { 2, { 4096, 1024 } }, { 1, { 1024 } }, TD_ROW_MAJOR, layer_norm, 0 },
    { "softmax 4096x1024", { 2, { 4096, 1024 } }, { 0 }, TD_ROW_MAJOR, softmax, 0 },
    { "softmax, columns of 1024x4096",
      { 2, { 1024, 4096 } },
      { 0 },
      TD_ROW_MAJOR,
      softmax_columns,
      0 },
    { "add 4 M", { 1, { 1 << 22 } }, { 1, { 1 << 22 } }, TD_ROW_MAJOR, add, 0 },
    { "gelu 4 M", { 1, { 1 << 22 } }, { 0 }, TD_ROW_MAJOR, gelu, 0 },
    { "silu 4 M", { 1, { 1 << 22 } }, { 0 }, TD_ROW_MAJOR, silu, 0 },
    { "tanh 4 M", { 1, { 1 << 22 } }, { 0 }, TD_ROW_MAJOR, tangent, 0 },
    { "dropout 4 M", { 1, { 1 << 22 } }, { 0 }, TD_ROW_MAJOR, dropout, 0 },
};

/* ---- measuring ---- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A leaf of normal numbers, or NULL for a shape of no dimensions. */
static td_tensor *leaf(td_shape shape, td_layout layout)
{
    if (shape.ndim == 0) {
        return NULL;
    }
    td_tensor *t = td_new_layout(shape, TD_F32, layout, TD_CPU);
    td_normal_(t, 0, 1, td_default_generator());
    td_requires_grad(t, true);
    return t;
}

static void one_step(const op_case *c, inputs *in)
{
    td_tensor *leaves[] = { in->x, in->w, in->b };
    for (int i = 0; i < 3; i++) {
        if (leaves[i] != NULL) {
            td_zero_grad_of(leaves[i]);
        }
    }
    td_step_begin();
    td_tensor *y = c->run(c, in);
    td_backward(y, .gradient = y);
    td_step_end();
}

static void print_rows(const char *name)
{
    td_profile_totals totals = td_profile_result();
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < totals.rows; i++) {
            td_profile_row r = td_profile_get(i);
            if (r.backward == (pass == 1)) {
                printf("%s\t%s\t%.3f\t%.1f\t%.1f\t%.0f\n", name, r.kernel,
                       1e3 * r.seconds / (double)r.calls, 1e-9 * r.flops / r.seconds,
                       1e-9 * r.bytes / r.seconds, 100 * r.least / r.seconds);
            }
        }
    }
    fflush(stdout);
}

static void measure(const op_case *c, const td_profile_options *limits, double seconds)
{
    inputs in = { leaf(c->x, c->layout),
                  leaf(c->w, c->layout == TD_IMAGE && c->w.ndim == 4 ? TD_FILTER : TD_ROW_MAJOR),
                  c->run == norm || c->run == layer_norm ? leaf(c->w, TD_ROW_MAJOR) : NULL };
    for (int i = 0; i < 3; i++) {
        one_step(c, &in);
    }
    if (td_profile_start(limits) == TD_OK) {
        for (double end = now() + seconds; now() < end;) {
            one_step(c, &in);
        }
        td_profile_stop();
        print_rows(c->name);
    }
    td_free(in.x);
    td_free(in.w);
    td_free(in.b);
}

/* The optimizers, over the parameters of a ResNet-18. */
static void measure_optimizers(const td_profile_options *limits, double seconds)
{
    td_module *net = td_model("resnet18", .classes = 10);
    td_params *params = td_parameters(net);
    for (int i = 0; i < td_params_count(params); i++) {
        td_mark_grad(td_params_get(params, i)->tensor);
    }
    td_optim *optims[] = { td_sgd(params, .lr = 1e-3, .momentum = 0.9), td_adam(params) };
    for (int i = 0; i < 2; i++) {
        td_optim_step(optims[i]);
        if (td_profile_start(limits) == TD_OK) {
            for (double end = now() + seconds; now() < end;) {
                td_optim_step(optims[i]);
            }
            td_profile_stop();
            print_rows("optimizer, 11.2 M parameters");
        }
        td_optim_free(optims[i]);
    }
    td_module_free(net);
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 2;
    double seconds = argc > 2 ? strtod(argv[2], NULL) : 0.5;
    td_limits limits;
    if (threads < 1 || td_set_threads(TD_CPU, threads) != TD_OK ||
        td_kernels_of(TD_CPU)->measure_limits(TD_CPU, &limits) != TD_OK) {
        fprintf(stderr, "bench_ops: %s\n", td_last_error());
        return 1;
    }
    const td_profile_options given = { .flops_f32 = limits.f32,
                                       .flops_f64 = limits.f64,
                                       .bytes = limits.memory };
    td_manual_seed(0);
    printf("# %s, %d threads; limits: %.0f GFLOP/s f32, %.1f GB/s\n", td_kernels_of(TD_CPU)->name,
           td_threads(TD_CPU), 1e-9 * limits.f32, 1e-9 * limits.memory);
    printf("case\tkernel\tms\tGFLOP/s\tGB/s\t%% of limit\n");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        measure(&cases[i], &given, seconds);
    }
    measure_optimizers(&given, seconds);
    return 0;
}
