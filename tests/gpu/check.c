/* check PART [--device NAME] [ARGUMENTS]: one part of tests/gpu/check.sh; see check.h. */
#include "tests/gpu/check.h"

#include "tensor/backend.h"
#include "tensor/extend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

double check_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void check_wait(td_device device)
{
    const td_backend *backend = td_backend_of(device);
    if (backend != NULL) {
        backend->wait(device);
    }
}

static int usage(void)
{
    fprintf(
        stderr,
        "usage: check [--device cuda:0] PART...\n"
        "  info FILE                 versions, libraries; the device's description\n"
        "  ceilings N                copying, products of N x N\n"
        "  ops PRECISION [NAMES]     every operation against the CPU in f64; conv2d,linear: these\n"
        "  bits                      optimizers and random numbers, bit for bit\n"
        "  large TIMES               more than 2^31 elements; TIMES times the same bits\n"
        "  train PRECISION BATCH STEPS    ResNet-18 against the CPU\n"
        "  graph PRECISION BATCH STEPS    captured steps against eager ones, bit for bit\n"
        "  serve|serve-graph PRECISION MODEL STEM SIZE CLASSES BATCH    steps, for "
        "throughput.py\n");
    return 64;
}

/* A precision that the device has. */
static td_precision read_precision(td_device device, const char *name)
{
    td_precision precision;
    if (!td_precision_parse(name, &precision)) {
        fprintf(stderr, "check: '%s' is no precision\n", name);
        exit(64);
    }
    if (td_precision_check(device, precision) != TD_OK) {
        printf("not here: %s\n", td_last_error());
        exit(77); /* not failed: skipped */
    }
    return precision;
}

static int run(td_device device, int argc, char **argv)
{
    bool good;
    if (argc == 2 && strcmp(argv[0], "info") == 0) {
        good = check_info(device, argv[1]);
    } else if (argc == 2 && strcmp(argv[0], "ceilings") == 0) {
        good = check_ceilings(device, atol(argv[1]));
    } else if ((argc == 2 || argc == 3) && strcmp(argv[0], "ops") == 0) {
        good = check_ops(device, read_precision(device, argv[1]), argc == 3 ? argv[2] : NULL);
    } else if (argc == 1 && strcmp(argv[0], "bits") == 0) {
        good = check_bits(device);
    } else if (argc == 2 && strcmp(argv[0], "large") == 0) {
        good = check_large(device, atoi(argv[1]));
    } else if (argc == 4 && strcmp(argv[0], "train") == 0) {
        good = check_train(device, read_precision(device, argv[1]), atol(argv[2]), atoi(argv[3]));
    } else if (argc == 4 && strcmp(argv[0], "graph") == 0) {
        good = check_graph(device, read_precision(device, argv[1]), atol(argv[2]), atoi(argv[3]));
    } else if (argc == 7 && strncmp(argv[0], "serve", 5) == 0) {
        good = check_serve(device, read_precision(device, argv[1]), argv + 2,
                           strcmp(argv[0], "serve-graph") == 0);
    } else {
        return usage();
    }
    return good ? 0 : 1;
}

int main(int argc, char **argv)
{
    const char *name = "cuda:0";
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 2 && strcmp(argv[1], "--device") == 0) {
        name = argv[2];
        argc -= 2;
        argv += 2;
    }
    td_device device;
    if (td_device_parse(name, &device) != TD_OK) {
        fprintf(stderr, "check: %s\n", td_last_error());
        return 1;
    }
    return run(device, argc - 1, argv + 1);
}
