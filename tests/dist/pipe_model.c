/* Models for tests of pipelines. */
#include "tests/dist/pipe_model.h"
#include "nn/models/gpt.h"
#include "nn/module.h"
#include "tensor/extend.h"
#include "tensor/storage.h"
#include "tests/help/dist_procs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 12 };

static td_module *make_block(void)
{
    return td_nn_sequential(td_nn_layer_norm(WIDTH), td_nn_linear(WIDTH, 2 * WIDTH), td_nn_gelu(),
                            td_nn_linear(2 * WIDTH, WIDTH));
}

/* A chain of eight blocks (Sequential would take each apart). */
static td_tensor *blocks_forward(td_module *self, td_tensor *x, td_site at)
{
    for (int i = 0; i < self->child_count; i++) {
        x = td_forward_at(self->children[i], x, at);
    }
    return x;
}

static int blocks_chain(td_module *self, td_chain_link *links)
{
    for (int i = 0; links != NULL && i < self->child_count; i++) {
        links[i] = (td_chain_link){ .parts = { self->children[i] }, .uses = 1.0 };
    }
    return self->child_count;
}

static const td_module_type blocks_type = { .name = "Blocks",
                                            .forward = blocks_forward,
                                            .chain = blocks_chain };

td_module *pipe_model_with(pipe_kind kind, double dropout)
{
    td_manual_seed(5);
    if (kind == RESNET) {
        return td_model("resnet18", .classes = 10, .stem = TD_STEM_CIFAR);
    }
    if (kind != MLP) {
        return td_gpt(.vocabulary = 17, .context = 6, .layers = 6, .heads = 2, .width = 8,
                      .dropout = dropout, .untied = kind == GPT);
    }
    td_module *m = td_module_new(&blocks_type, 0);
    for (int i = 0; i < PIPE_BLOCKS; i++) {
        char name[8];
        snprintf(name, sizeof name, "%d", i);
        td_module_add(m, name, td_module_mark(make_block(), TD_PART_BLOCK));
    }
    return td_module_finish(m);
}

td_module *pipe_model(pipe_kind kind)
{
    return pipe_model_with(kind, 0.1);
}

void pipe_batch(pipe_kind kind, int rows, int step, td_tensor **x, td_tensor **y)
{
    td_generator g;
    td_generator_seed(&g, 11 + (uint64_t)step);
    bool tokens = kind == GPT || kind == GPT_TIED;
    if (tokens) {
        *x = td_new(TD_SHAPE(rows, 6), TD_I64, TD_CPU);
        *y = td_new(TD_SHAPE(rows, 6), TD_I64, TD_CPU);
        int64_t *a = td_data_rw(*x), *b = td_data_rw(*y);
        for (int i = 0; i < rows * 6; i++) {
            a[i] = (i * 7 + step * 5) % 17;
            b[i] = (i * 3 + step) % 17;
        }
        return;
    }
    *x = td_new(kind == MLP ? TD_SHAPE(rows, WIDTH) : TD_SHAPE(rows, 3, 8, 8), TD_F32, TD_CPU);
    td_normal_(*x, 0.0, 1.0, &g);
    *y = kind == MLP ? td_new(TD_SHAPE(rows, WIDTH), TD_F32, TD_CPU)
                     : td_zeros(TD_SHAPE(rows), TD_I64, TD_CPU);
    if (kind == MLP) {
        td_normal_(*y, 0.0, 1.0, &g);
    }
}

td_tensor *pipe_measure(td_module *net, const td_batch *batch, td_tensor *sums[TD_SUMS], void *user)
{
    (void)user;
    td_tensor *y = td_forward(net, batch->x);
    sums[0] = td_l1_loss(y, batch->y, .reduction = TD_LOSS_SUM);
    return td_mse_loss(y, batch->y);
}

td_tensor *pipe_part(td_tensor *t, int k, int micro)
{
    int64_t rows = t->shape[0] / micro;
    return td_slice(t, 0, k * rows, (k + 1) * rows, 1);
}

int pipe_differences(td_module *net, const td_module *alone, double limit)
{
    td_state_list mine = td_module_state(net), whole = td_module_state(alone);
    int differ = 0;
    bool here = true;
    REQUIRE(mine.count == whole.count);
    for (int i = 0; i < mine.count; i++) {
        const td_tensor *a = mine.items[i].tensor, *b = whole.items[i].tensor;
        here = mine.items[i].buffer ? here : !a->storage->released;
        if (!here) { /* buffers come behind their module's parameters */
            continue;
        }
        size_t count = (size_t)td_numel(a);
        double *va = malloc(count * sizeof *va), *vb = malloc(count * sizeof *vb), most = 0;
        td_read(a, va, TD_F64);
        td_read(b, vb, TD_F64);
        for (size_t k = 0; k < count; k++) {
            most = fmax(most, fabs(va[k] - vb[k]));
        }
        differ += limit > 0 ? most > limit : memcmp(va, vb, count * sizeof *va) != 0;
        free(va);
        free(vb);
    }
    td_state_list_free(&mine);
    td_state_list_free(&whole);
    return differ;
}
