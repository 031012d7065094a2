/* make gpu-check: a training job that answers requests for timed steps. */
#include "tests/gpu/check.h"

#include "bench/job.h"
#include "tensor/kernels/kernels.h"
#include "tensor/tune/tune.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool move(job *j, td_device device)
{
    td_tensor *x = td_clone_as(j->x, TD_F32, device), *y = td_clone_as(j->y, TD_I64, device);
    if (x == NULL || y == NULL || td_module_to(j->net, device, TD_F32) != TD_OK) {
        return false;
    }
    td_free(j->x);
    td_free(j->y);
    j->x = x;
    j->y = y;
    return true;
}

/* As train_step of bench/job.h, but nobody asks for the loss at once. */
static td_status run(void *user, td_tensor *const *inputs, td_tensor **results)
{
    const job *j = user;
    results[0] = td_cross_entropy(td_forward(j->net, inputs[0]), inputs[1]);
    td_zero_grad(j->optim);
    td_backward(results[0]);
    td_optim_step(j->optim);
    return TD_OK;
}

static void step(job *j, td_captured *captured)
{
    td_tensor *inputs[] = { j->x, j->y }, *loss;
    double value;
    if (captured == NULL) {
        td_step_begin();
        (void)run(j, inputs, &loss);
        td_step_end();
    } else if ((td_captured_full(captured) && td_captured_next(captured, &value) != TD_OK) ||
               td_captured_run(captured, inputs, 2) != TD_OK) {
        fprintf(stderr, "check: %s\n", td_last_error());
        exit(1);
    }
}

bool check_serve(td_device device, td_precision precision, char **a, bool as_graph)
{
    td_set_math((td_math){ .precision = precision });
    td_stem stem = strcmp(a[1], "cifar") == 0 ? TD_STEM_CIFAR : TD_STEM_IMAGENET;
    job j = { .net = NULL };
    if (!open_job(&j, a[0], stem, atol(a[3]), atol(a[2]), atol(a[4]), TD_F32) ||
        !move(&j, device)) {
        fprintf(stderr, "check: %s\n", td_last_error());
        return false;
    }
    open_optim(&j);
    td_set_autotune(true); /* as PyTorch has cudnn.benchmark */
    step(&j, NULL);
    td_autotune_stats tuned;
    if (td_autotune_choose(&tuned) != TD_OK) {
        fprintf(stderr, "check: %s\n", td_last_error());
        return false;
    }
    td_captured *captured = as_graph ? check_captured_job(device, run, &j) : NULL;
    printf("ready tandem %s, %s, %s%s, %d choices by autotune in %.1f s\n", TANDEM_VERSION,
           td_kernels_of(device)->name, td_precision_name(precision), as_graph ? ", captured" : "",
           tuned.chosen, tuned.seconds);
    char line[64];
    while (fgets(line, sizeof line, stdin) != NULL && strncmp(line, "go ", 3) == 0) {
        int steps = atoi(line + 3);
        double start = check_seconds();
        for (int i = 0; i < steps; i++) {
            step(&j, captured);
        }
        check_wait(device);
        printf("%.6f\n", (check_seconds() - start) / steps); /* seconds a step */
    }
    td_captured_free(captured);
    close_job(&j);
    return true;
}
