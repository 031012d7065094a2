/* A small training job: ResNet-18 or an MLP on fixed random input. */
#include "tests/nn/train_job.h"
#include "tensor/extend.h"
#include "nn/module.h"

#include <stdlib.h>

void train_job_open(train_job *job, int64_t batch, int64_t side)
{
    train_job_open_as(job, batch, side, TD_F32);
}

void train_job_open_as(train_job *job, int64_t batch, int64_t side, td_dtype dtype)
{
    td_manual_seed(0);
    job->net = td_model("resnet18", .classes = 10);
    if (td_module_to(job->net, TD_CPU, dtype) != TD_OK) {
        abort();
    }
    job->optim = td_sgd(td_parameters(job->net), .lr = 0.01, .momentum = 0.9, .weight_decay = 1e-4,
                        .nesterov = true);
    job->x = td_new_layout(TD_SHAPE(batch, 3, side, side), TD_F32, TD_IMAGE, TD_CPU);
    job->y = td_new(TD_SHAPE(batch), TD_I64, TD_CPU);
    td_normal_(job->x, 0, 1, td_default_generator());
    if (dtype != TD_F32) {
        td_tensor *same = td_clone_as(job->x, dtype, TD_CPU);
        td_free(job->x);
        job->x = same;
    }
    for (int64_t i = 0; i < batch; i++) {
        td_set(job->y, &i, (double)(i % 10));
    }
}

double train_job_step(train_job *job)
{
    td_step_begin();
    td_tensor *loss = td_cross_entropy(td_forward(job->net, job->x), job->y);
    td_zero_grad(job->optim);
    td_backward(loss);
    td_optim_step(job->optim);
    double value = td_item(loss);
    td_step_end();
    return value;
}

/* FNV-1a over the bits of a tensor's elements. */
static uint64_t hash_tensor(uint64_t hash, const td_tensor *t)
{
    size_t bytes = (size_t)td_numel(t) * sizeof(float);
    unsigned char *values = malloc(bytes);
    td_read(t, values, TD_F32);
    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ values[i]) * 0x100000001b3u;
    }
    free(values);
    return hash;
}

uint64_t train_job_hash(train_job *job)
{
    uint64_t hash = 0xcbf29ce484222325u;
    td_state_list list = td_module_state(job->net);
    for (int i = 0; i < list.count; i++) {
        hash = hash_tensor(hash, list.items[i].tensor);
        if (!list.items[i].buffer) {
            hash = hash_tensor(hash, td_grad(list.items[i].tensor));
        }
    }
    td_state_list_free(&list);
    return hash;
}

void train_job_close(train_job *job)
{
    td_optim_free(job->optim);
    td_module_free(job->net);
    td_free(job->x);
    td_free(job->y);
}
