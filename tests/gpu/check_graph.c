/* make gpu-check: captured steps against eager steps, bits and time. */
#include "tests/gpu/check.h"
#include "tests/nn/train_job.h"
#include "nn/extra/scaler.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* The job of train_job.h on a device: the same seed gives the same weights. */
static void open_on(train_job *job, td_device device, int64_t batch)
{
    train_job here;
    train_job_open(&here, batch, 32);
    job->x = td_clone_as(here.x, TD_F32, device);
    job->y = td_clone_as(here.y, TD_I64, device);
    train_job_close(&here);
    td_manual_seed(0);
    job->net = td_model("resnet18", .classes = 10);
    if (job->x == NULL || job->y == NULL || job->net == NULL ||
        td_module_to(job->net, device, TD_F32) != TD_OK) {
        fprintf(stderr, "check: %s\n", td_last_error());
        exit(1);
    }
    job->optim = td_sgd(td_parameters(job->net), .lr = 1e-3, .momentum = 0.9, .weight_decay = 1e-4,
                        .nesterov = true);
}

typedef struct graph_job {
    train_job train;
    td_scaler *scaler; /* of fp16, whose first steps are left out; NULL: no need */
} graph_job;

static void open_job(graph_job *job, td_device device, td_precision precision, int64_t batch)
{
    *job = (graph_job){ 0 };
    open_on(&job->train, device, batch);
    if (precision == TD_PRECISION_FP16) {
        job->scaler = td_scaler_new(.scale = 0x1p24, .patience = 2);
    }
}

static void close_job(graph_job *job)
{
    td_scaler_free(job->scaler);
    train_job_close(&job->train);
}

static td_status step(void *user, td_tensor *const *inputs, td_tensor **results)
{
    graph_job *job = user;
    td_optim *optim = job->train.optim;
    results[0] = td_cross_entropy(td_forward(job->train.net, inputs[0]), inputs[1]);
    td_zero_grad(optim);
    td_backward(td_scaler_loss(job->scaler, results[0]));
    if (td_scaler_unscale(job->scaler, td_parameters(job->train.net))) {
        td_optim_step(optim);
    }
    return TD_OK;
}

static double eager_step(graph_job *job)
{
    td_tensor *loss;
    td_step_begin();
    (void)step(job, (td_tensor *[]){ job->train.x, job->train.y }, &loss);
    double value = td_item(loss);
    td_step_end();
    return value;
}

td_captured *check_captured_job(td_device device, td_captured_step run, void *job)
{
    td_captured *captured = td_captured_new(
        &(td_captured_options){ .device = device, .step = run, .user = job, .results = 1 });
    if (captured == NULL) {
        fprintf(stderr, "check: %s\n", td_last_error());
        exit(1);
    }
    return captured;
}

bool check_graph(td_device device, td_precision precision, int64_t batch, int steps)
{
    graph_job eager, job;
    td_set_math((td_math){ .precision = precision });
    open_job(&eager, device, precision, batch);
    open_job(&job, device, precision, batch);
    td_captured *captured = check_captured_job(device, step, &job);
    bool good = true;
    for (int i = 0; i < steps; i++) {
        double rate = 1e-4 * (1 + i % 5), want, got;
        td_optim_set_lr(eager.train.optim, rate);
        td_optim_set_lr(job.train.optim, rate);
        want = eager_step(&eager);
        td_tensor *inputs[] = { job.train.x, job.train.y };
        if (td_captured_run(captured, inputs, 2) != TD_OK ||
            td_captured_next(captured, &got) != TD_OK) {
            printf("FAIL step %d: %s\n", i + 1, td_last_error());
            return false;
        }
        if (want != got) {
            printf("FAIL step %d: loss %.9g captured, %.9g eager\n", i + 1, got, want);
            good = false;
        }
    }
    td_captured_stats figures = td_captured_now(captured);
    bool same = train_job_hash(&eager.train) == train_job_hash(&job.train),
         all = figures.replayed == steps - 4;
    printf("%s %d steps, %" PRId64 " replayed%s%s: weights and gradients %s the eager step's\n",
           good && same && all ? "ok" : "FAIL", steps, figures.replayed,
           figures.why[0] != '\0' ? ", " : "", figures.why, same ? "are" : "are not");
    td_captured_free(captured);
    close_job(&eager);
    close_job(&job);
    return good && same && all;
}
