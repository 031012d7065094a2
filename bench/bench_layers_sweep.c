/*
 * The convolutions of the registry's models, all three passes in f32, next to oneDNN's. Each layer
 * is measured once, and counted as often as a model has it: so the table says how long a training
 * step of each model spends in convolutions. The last line adds up all models.
 *
 *     bench_layers_sweep [batch [ms per measurement [most GFLOP of a pass [model...]]]]
 *
 * Layers of more GFLOP are left out on both sides; the column "of all" says what part of the
 * model's multiply-adds the others are. Without a list: all models; batch 32, 10 ms, no limit.
 */
#include "bench/sweep_conv.h"

#include "nn/module.h"
#include "tandem.h"
#include "tensor/cpu/cpus.h"
#include "tensor/cpu/isa.h"
#include "tensor/extend.h"
#include "tensor/kernels/kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE = 224, MAX_MODELS = 24, MAX_LAYERS = 1000 };

static const double ERROR_LIMIT = 1e-6;

typedef struct layer {
    td_conv2d_desc desc;
    int count[MAX_MODELS]; /* in each model */
} layer;

static layer layers[MAX_LAYERS];
static int layer_count, model; /* model: that which is being listed */

/* ---- the layers of the models ---- */

/* Stands for the kernel: notes what it is asked for. What y holds does not matter. */
static void note_layer(td_tensor *y, const td_tensor *x, const td_tensor *w, const td_tensor *bias,
                       const td_conv2d_params *p)
{
    (void)bias;
    td_conv2d_desc d;
    memset(&d, 0, sizeof d); /* compared as a whole */
    td_shape from = td_shape_of(x), kernel = td_shape_of(w), to = td_shape_of(y);
    d.dtype = TD_F32;
    d.ic = from.dim[1];
    d.ih = from.dim[2];
    d.iw = from.dim[3];
    d.oc = to.dim[1];
    d.oh = to.dim[2];
    d.ow = to.dim[3];
    d.kh = (int)kernel.dim[2];
    d.kw = (int)kernel.dim[3];
    d.stride_h = p->stride[0];
    d.stride_w = p->stride[1];
    d.pad_h = p->pad[0];
    d.pad_w = p->pad[1];
    d.dil_h = p->dilation[0];
    d.dil_w = p->dilation[1];
    d.groups = p->groups;
    int at = 0;
    while (at < layer_count && memcmp(&layers[at].desc, &d, sizeof d) != 0) {
        at++;
    }
    if (at == MAX_LAYERS) {
        fprintf(stderr, "bench_layers_sweep: more than %d layers\n", MAX_LAYERS);
        exit(1);
    }
    layers[at].desc = d;
    layers[at].count[model]++;
    layer_count = at == layer_count ? at + 1 : layer_count;
    td_cpu_kernels()->fill(y, 0);
}

static const td_kernels *noting(td_device device, const td_kernels *own)
{
    static td_kernels table;
    (void)device;
    table = *own;
    table.conv2d = note_layer;
    return &table;
}

static bool list_layers(const char *name)
{
    td_module *net = td_model(name, .blank = true);
    if (!net) {
        fprintf(stderr, "bench_layers_sweep: %s\n", td_last_error());
        return false;
    }
    td_eval(net);
    td_tensor *x = td_new_layout(TD_SHAPE(1, 3, SIDE, SIDE), TD_F32, TD_IMAGE, TD_CPU);
    td_fill_(x, 0);
    td_kernels_set_wrap(noting);
    td_step_begin();
    td_no_grad_begin();
    td_forward(net, x);
    td_no_grad_end();
    td_step_end();
    td_kernels_set_wrap(NULL);
    td_free(x);
    td_module_free(net);
    return true;
}

/* ---- measuring ---- */

/* Milliseconds of all its layers, and their multiply-adds, twice. */
typedef struct total {
    double ours, peer, step, flops, all_flops;
} total;

static void add(total *t, const sweep_row *row, double count)
{
    t->ours += count * row->ours_ms;
    t->peer += count * row->peer_ms;
    t->step += count * row->step_ms;
    t->flops += count * row->flops;
}

static void print_total(const char *name, const total *t)
{
    printf("%-20s %10.2f %8.1f %10.2f %7.2f %7.2f %7.0f %%\n", name, t->ours,
           t->flops / t->ours * 1e-6, t->peer, t->peer / t->ours, t->step / t->ours,
           100 * t->flops / t->all_flops);
}

/* All passes of a layer; false if a result is wrong. */
static bool measure_layer(const layer *l, int64_t batch, double ms, double most, td_pool *pool,
                          total *totals, int models)
{
    td_conv2d_desc d = l->desc;
    d.n = batch;
    double flops = sweep_conv_flops(&d);
    bool right = true;
    for (int m = 0; m < models; m++) {
        totals[m].all_flops += SWEEP_PASSES * l->count[m] * flops;
    }
    for (int pass = 0; pass < SWEEP_PASSES && flops <= most * 1e9; pass++) {
        sweep_row row = sweep_conv_measure(&d, (td_conv2d_pass)pass, pool, ms, 1);
        if (!(row.error <= ERROR_LIMIT)) {
            printf("WRONG: %s\n", row.name);
            right = false;
        }
        for (int m = 0; m < models && row.peer_ms > 0; m++) {
            add(&totals[m], &row, l->count[m]);
        }
    }
    return right;
}

int main(int argc, char **argv)
{
    onednn_prepare(argv);
    int64_t batch = argc > 1 ? atoll(argv[1]) : 32;
    double ms = argc > 2 ? atof(argv[2]) : 10, most = argc > 3 ? atof(argv[3]) : INFINITY;
    const char *names[MAX_MODELS];
    int models = 0;
    for (; models < MAX_MODELS; models++) {
        names[models] = argc <= 4           ? td_model_name(models)
                        : 4 + models < argc ? argv[4 + models]
                                            : NULL;
        if (!names[models] || strncmp(names[models], "gpt", 3) == 0) { /* those take tokens */
            break;
        }
        model = models;
        if (!list_layers(names[models])) {
            return 2;
        }
    }
    td_pool *pool = td_pool_new(td_default_threads());
    if (!pool || batch <= 0 || !(ms > 0)) {
        fprintf(stderr, "usage: bench_layers_sweep [batch [ms [GFLOP [model...]]]]\n");
        return 2;
    }
    printf("%d models, %d layers, batch %d, %d threads, %s\n", models, layer_count, (int)batch,
           td_pool_threads(pool), td_isa_name(td_isa_current()));
    printf("%-20s %10s %8s %10s %7s %7s %9s\n", "", "ours ms", "GFLOP/s", "oneDNN ms", "ratio",
           "step", "of all");
    total totals[MAX_MODELS] = { 0 }, sum = { 0 };
    bool right = true;
    for (int i = 0; i < layer_count; i++) {
        right = measure_layer(&layers[i], batch, ms, most, pool, totals, models) && right;
    }
    for (int m = 0; m < models; m++) {
        print_total(names[m], &totals[m]);
        sum.ours += totals[m].ours;
        sum.peer += totals[m].peer;
        sum.step += totals[m].step;
        sum.flops += totals[m].flops;
        sum.all_flops += totals[m].all_flops;
    }
    print_total("all", &sum);
    td_pool_free(pool);
    return right ? 0 : 1;
}
