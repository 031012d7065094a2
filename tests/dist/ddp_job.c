/* Small training jobs whose data can be cut into ranks' shares. */
#include "tests/dist/ddp_job.h"

#include "tests/help/dist_procs.h"
#include "tensor/extend.h"
#include "nn/module.h"
#include "dist/comm/collectives.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE = 6, CLASSES = 5, FEATURES = 13 };

/* With dropout, and with a layer that begins in no block. */
static td_module *mlp_block(void)
{
    return td_nn_sequential(td_nn_linear(16, 24), td_nn_gelu(), td_nn_dropout(0.2),
                            td_nn_linear(24, 16), td_nn_layer_norm(16));
}

static td_module *conv_block(int64_t from, int64_t to)
{
    return td_nn_sequential(td_nn_conv2d(from, to, .kernel = 3, .padding = 1),
                            td_nn_batch_norm2d(to), td_nn_relu());
}

static td_device used; /* {0}: the CPU */

void job_use_device(td_device device)
{
    used = device;
}

td_module *job_net(job_kind kind, uint64_t seed, td_dtype dtype)
{
    td_module *net = NULL;
    td_manual_seed(seed);
    switch (kind) {
    case JOB_MLP:
        net = td_nn_sequential(td_nn_linear(FEATURES, 32), td_nn_relu(), td_nn_linear(32, 24),
                               td_nn_gelu(), td_nn_linear(24, CLASSES));
        break;
    case JOB_CONV:
        net = td_nn_sequential(td_nn_conv2d(3, 8, .kernel = 3, .padding = 1), td_nn_relu(),
                               td_nn_conv2d(8, 8, .kernel = 3, .padding = 1), td_nn_relu(),
                               td_nn_max_pool2d(2), td_nn_flatten(), td_nn_linear(72, CLASSES));
        break;
    case JOB_BATCH_NORM:
        net = td_nn_sequential(td_nn_conv2d(3, 8, .kernel = 3, .padding = 1), td_nn_batch_norm2d(8),
                               td_nn_relu(), td_nn_conv2d(8, 8, .kernel = 3, .padding = 1),
                               td_nn_batch_norm2d(8), td_nn_flatten(), td_nn_linear(288, CLASSES));
        break;
    case JOB_BLOCKS:
        net = td_nn_sequential(td_nn_linear(FEATURES, 16), mlp_block(), mlp_block(), mlp_block(),
                               mlp_block(), td_nn_linear(16, CLASSES));
        break;
    case JOB_CONV_BLOCKS:
        net = td_nn_sequential(conv_block(3, 8), conv_block(8, 6), conv_block(6, 8),
                               td_nn_flatten(), td_nn_linear(288, CLASSES));
        break;
    }
    REQUIRE(net != NULL);
    REQUIRE_OK(td_module_to(net, used, dtype));
    return net;
}

td_module *job_small_net(bool batch_norm, int64_t classes)
{
    return batch_norm
               ? td_nn_sequential(td_nn_conv2d(3, 8, .kernel = 3, .padding = 1),
                                  td_nn_batch_norm2d(8), td_nn_relu(), td_nn_max_pool2d(2),
                                  td_nn_flatten(), td_nn_linear(128, classes))
               : td_nn_sequential(td_nn_conv2d(3, 8, .kernel = 3, .padding = 1), td_nn_relu(),
                                  td_nn_max_pool2d(2), td_nn_flatten(), td_nn_linear(128, classes));
}

/* All data are drawn, and a share kept, so that it does not depend on the number of ranks. */
void job_data(ddp_job *job, job_kind kind, td_dtype dtype, int64_t from, int64_t to)
{
    enum { SAMPLES = 64 };
    bool flat = kind == JOB_MLP || kind == JOB_BLOCKS;
    int64_t count = to - from, size = flat ? FEATURES : (int64_t)3 * SIDE * SIDE;
    td_generator g;
    td_generator_seed(&g, 99);
    double *all = malloc((size_t)(SAMPLES * size) * sizeof *all);
    for (int64_t i = 0; i < SAMPLES * size; i++) {
        all[i] = td_random_normal(&g);
    }
    td_shape shape = flat ? TD_SHAPE(count, FEATURES) : TD_SHAPE(count, 3, SIDE, SIDE);
    job->x = td_new_layout(shape, dtype, flat ? TD_ROW_MAJOR : TD_IMAGE, used);
    job->y = td_new(TD_SHAPE(count), TD_I64, used);
    REQUIRE(to <= SAMPLES && job->x != NULL && job->y != NULL);
    td_write(job->x, all + from * size, TD_F64);
    for (int64_t i = 0; i < count; i++) {
        td_set(job->y, &i, (double)((from + i) * 7 % CLASSES));
    }
    free(all);
}

void job_open(ddp_job *job, job_kind kind, td_dtype dtype, const td_ddp_options *options,
              int64_t from, int64_t to)
{
    job->net = job_net(kind, 1, dtype);
    if (options != NULL) {
        td_ddp_options given = *options;
        given.model = job->net;
        job->net = td_ddp_at(given, TD_HERE);
        REQUIRE(job->net != NULL);
    }
    job->optim = td_sgd(td_parameters(job->net), .lr = 0.05, .momentum = 0.9);
    REQUIRE(job->optim != NULL);
    job_data(job, kind, dtype, from, to);
}

void job_close(ddp_job *job)
{
    td_optim_free(job->optim);
    td_module_free(job->net);
    td_free(job->x);
    td_free(job->y);
}

double job_backward(ddp_job *job, double scale)
{
    td_step_begin();
    td_tensor *loss = td_cross_entropy(td_forward(job->net, job->x), job->y);
    td_backward(td_mul_scalar(loss, scale));
    double value = td_item(loss);
    td_step_end();
    return value;
}

double job_step(ddp_job *job)
{
    td_zero_grad(job->optim);
    double loss = job_backward(job, 1.0);
    td_optim_step(job->optim);
    return loss;
}

typedef struct sums {
    double difference, norm;
} sums;

static void add_sums(sums *s, const td_tensor *a, const td_tensor *b)
{
    int64_t n = td_numel(a);
    double *va = malloc((size_t)n * sizeof *va), *vb = malloc((size_t)n * sizeof *vb);
    REQUIRE(td_same_shape(a, b));
    td_read(a, va, TD_F64);
    td_read(b, vb, TD_F64);
    for (int64_t i = 0; i < n; i++) {
        s->difference += (va[i] - vb[i]) * (va[i] - vb[i]);
        s->norm += vb[i] * vb[i];
    }
    free(va);
    free(vb);
}

double job_distance(const td_module *a, const td_module *b, bool with_buffers)
{
    td_state_list la = td_module_state(a), lb = td_module_state(b);
    sums s = { 0.0, 0.0 };
    REQUIRE(la.count == lb.count);
    for (int i = 0; i < la.count; i++) {
        REQUIRE(strcmp(la.items[i].name, lb.items[i].name) == 0);
        if (with_buffers || !la.items[i].buffer) {
            add_sums(&s, la.items[i].tensor, lb.items[i].tensor);
        }
    }
    td_state_list_free(&la);
    td_state_list_free(&lb);
    return sqrt(s.difference / s.norm);
}

double job_grad_distance(td_module *a, td_module *b)
{
    td_params *pa = td_parameters(a), *pb = td_parameters(b);
    sums s = { 0.0, 0.0 };
    for (int i = 0; i < td_params_count(pa); i++) {
        td_tensor *ga = td_grad(td_params_get(pa, i)->tensor);
        td_tensor *gb = td_grad(td_params_get(pb, i)->tensor);
        REQUIRE((ga == NULL) == (gb == NULL));
        if (ga != NULL) {
            add_sums(&s, ga, gb);
        }
    }
    return sqrt(s.difference / s.norm);
}

uint64_t job_hash(const td_module *net)
{
    td_state_list list = td_module_state(net);
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (int i = 0; i < list.count; i++) {
        const td_tensor *t = list.items[i].tensor;
        size_t bytes = list.items[i].buffer ? 0 : (size_t)td_numel(t) * td_dtype_size(t->dtype);
        unsigned char *values = malloc(bytes + 1);
        if (bytes > 0) {
            td_read(t, values, t->dtype);
        }
        for (size_t k = 0; k < bytes; k++) {
            hash = (hash ^ values[k]) * UINT64_C(0x100000001b3);
        }
        free(values);
    }
    td_state_list_free(&list);
    return hash;
}

bool job_all_same(uint64_t hash)
{
    int64_t mine = (int64_t)hash, all[PROCS_MAX];
    int size = td_dist_world_size();
    td_tensor *in = td_borrow(&mine, TD_SHAPE(1), TD_I64, TD_CPU);
    td_tensor *out = td_borrow(all, TD_SHAPE(size, 1), TD_I64, TD_CPU);
    REQUIRE_OK(td_all_gather(NULL, out, in, NULL));
    td_free(in);
    td_free(out);
    for (int i = 0; i < size; i++) {
        if (all[i] != mine) {
            return false;
        }
    }
    return true;
}
