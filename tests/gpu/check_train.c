/* make gpu-check: optimizers, random numbers and training against the CPU. */
#include "tests/gpu/check.h"
#include "tests/nn/train_job.h"

#include "tensor/extend.h"
#include "tensor/kernels/kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- optimizers and random numbers, bit for bit ---- */

enum { FLAT = 10007, OPTIM_STEPS = 4, MOST_TENSORS = 4 };

typedef struct flat {
    td_tensor *t[MOST_TENSORS]; /* parameters, gradients, two of state */
} flat;

static flat make_flat(td_device device)
{
    flat f;
    td_generator generator;
    td_generator_seed(&generator, 5);
    for (int i = 0; i < MOST_TENSORS; i++) {
        td_tensor *host = td_zeros(TD_SHAPE(FLAT), TD_F32, TD_CPU);
        if (i < 2) {
            td_normal_(host, 0.0, 1.0, &generator);
        }
        f.t[i] = td_clone_as(host, TD_F32, device);
        td_free(host);
    }
    return f;
}

/* Three slices with something between them, of different settings. */
static int make_slices(td_optim_slice slices[3], int step)
{
    for (int i = 0; i < 3; i++) {
        slices[i] = (td_optim_slice){
            .begin = 16 + 3000 * (int64_t)i,
            .count = 2977 + i,
            .first = step == 1,
            .lr = 0.01 * (i + 1),
            .weight_decay = i == 1 ? 1e-4 : 0.0,
            .momentum = i == 2 ? 0.5 : 0.9,
            .nesterov = i != 2,
            .beta1 = 0.9,
            .beta2 = 0.999,
            .eps = 1e-8,
            .bias1 = 1.0 - pow(0.9, step),
            .bias2 = 1.0 - pow(0.999, step),
            .decoupled = i == 1,
        };
    }
    return 3;
}

static bool same_bits(const td_tensor *a, const td_tensor *b, const char *what)
{
    size_t bytes = (size_t)td_numel(a) * td_dtype_size(a->dtype);
    void *x = malloc(bytes), *y = malloc(bytes);
    bool same = false;
    if (x != NULL && y != NULL) {
        td_read(a, x, a->dtype);
        td_read(b, y, b->dtype);
        same = memcmp(x, y, bytes) == 0;
    }
    free(x);
    free(y);
    printf("%s %s: %s\n", same ? "ok" : "FAIL", what,
           same ? "the CPU's bits" : "differs from the CPU");
    return same;
}

static bool check_optimizer(td_device device, bool adam)
{
    flat cpu = make_flat(TD_CPU), gpu = make_flat(device);
    td_optim_slice slices[3];
    flat *both[2] = { &cpu, &gpu };
    for (int step = 1; step <= OPTIM_STEPS; step++) {
        int count = make_slices(slices, step);
        for (int i = 0; i < 2; i++) {
            td_tensor **t = both[i]->t;
            const td_kernels *kernels = td_kernels_of(td_device_of(t[0]));
            if (adam) {
                kernels->update(TD_UPDATE_ADAM, t[0], t[1], (td_tensor *[]){ t[2], t[3], NULL },
                                slices, count);
            } else {
                kernels->sgd(t[0], t[1], t[2], slices, count);
            }
        }
    }
    bool good = same_bits(cpu.t[0], gpu.t[0], adam ? "adam: parameters" : "sgd: parameters");
    good = same_bits(cpu.t[2], gpu.t[2], adam ? "adam: first moment" : "sgd: momentum") && good;
    for (int i = 0; i < MOST_TENSORS; i++) {
        td_free(cpu.t[i]);
        td_free(gpu.t[i]);
    }
    return good;
}

static bool check_dropout(td_device device)
{
    td_philox_key key = { .seed = 42, .stream = 7 };
    td_device devices[2] = { TD_CPU, device };
    td_tensor *y[2];
    for (int i = 0; i < 2; i++) {
        td_tensor *x = td_full(TD_SHAPE(3, FLAT), 1.5, TD_F32, devices[i]);
        y[i] = td_zeros(TD_SHAPE(3, FLAT), TD_F32, devices[i]);
        td_kernels_of(devices[i])
            ->dropout(y[i], x, 0.3, key, &(uint64_t){ 11 }, (td_numbering){ 0 }, false);
        td_free(x);
    }
    bool good = same_bits(y[0], y[1], "dropout");
    td_free(y[0]);
    td_free(y[1]);
    return good;
}

bool check_bits(td_device device)
{
    bool good = check_optimizer(device, false);
    good = check_optimizer(device, true) && good;
    return check_dropout(device) && good;
}

/* ---- training ---- */

/* Small, so that what is compared is arithmetic: with the job's 0.01 the loss falls from 2.6 to 0.2
 * in two steps, and then also two CPUs' bf16 are 20 % apart. With this and 32 pictures, below 1 %.
 */
static const double TRAIN_LR = 3e-4;

/* The job of train_job.h, on a device: the same seed gives the same weights. */
static void open_on(train_job *job, td_device device, const train_job *like)
{
    td_manual_seed(0);
    job->net = td_model("resnet18", .classes = 10);
    if (job->net == NULL || td_module_to(job->net, device, TD_F32) != TD_OK) {
        fprintf(stderr, "check: %s\n", td_last_error());
        exit(1);
    }
    job->optim = td_sgd(td_parameters(job->net), .lr = TRAIN_LR, .momentum = 0.9,
                        .weight_decay = 1e-4, .nesterov = true);
    job->x = td_clone_as(like->x, TD_F32, device);
    job->y = td_clone_as(like->y, TD_I64, device);
}

/* Rounding grows with the steps: what is allowed at step i, relative to the loss. */
static double allowed(td_precision precision, int step)
{
    double first = precision == TD_PRECISION_FP32   ? 1e-5
                   : precision == TD_PRECISION_TF32 ? 1e-3
                                                    : 1e-2;
    double growth = pow(1.5, step);
    return fmin(first * growth, 0.25);
}

bool check_train(td_device device, td_precision precision, int64_t batch, int steps)
{
    train_job cpu, gpu;
    train_job_open(&cpu, batch, 32);
    td_optim_set_lr(cpu.optim, TRAIN_LR);
    open_on(&gpu, device, &cpu);
    bool good = true, both = td_precision_check(TD_CPU, precision) == TD_OK;
    td_precision on_cpu = both ? precision : TD_PRECISION_FP32;
    double worst = 0.0;
    for (int i = 0; i < steps; i++) {
        td_set_math((td_math){ .precision = on_cpu });
        double want = train_job_step(&cpu);
        td_set_math((td_math){ .precision = precision });
        double got = train_job_step(&gpu);
        double error = fabs(got - want) / fabs(want);
        bool fine = error <= allowed(precision, i);
        printf("%s step %2d: loss %.6f, CPU %.6f, off by %.1e (allowed %.1e)\n",
               fine ? "ok" : "FAIL", i + 1, got, want, error, allowed(precision, i));
        good = good && fine;
        worst = error > worst ? error : worst;
    }
    printf("%d steps in %s against the CPU in %s: worst loss off by %.1e\n", steps,
           td_precision_name(precision), td_precision_name(on_cpu), worst);
    train_job_close(&cpu);
    train_job_close(&gpu);
    return good;
}
