/* A stand-in for CUDA's runtime under kernels that nvcc has compiled: nothing runs, every launch is
 * counted with the bytes of memory that it reads and writes. Memory of the device is addresses
 * alone. cuDNN and cuBLASLt are replaced at the level of tensor/cuda/products.h (ld's --wrap). */
#pragma once

#include <stdint.h>

typedef struct count_totals {
    int launches; /* kernels, calls of cuDNN and cuBLASLt, copies */
    int waits;    /* of the host, for all that it has asked for */
    double bytes;
    int64_t most_scalars; /* elements of the largest launch that moves single elements */
    char scalar[128];     /* its kernel */
    char unknown[128];    /* a kernel whose bytes bytes.c does not know; "": none */
} count_totals;

void count_begin(void);
count_totals count_end(void); /* the totals since */
void count_print(void);       /* of those, a line for each kind of launch */

/* For the stand-in's own files: a launch, if it is counted now. scalars: elements that are moved
 * one by one, 0: none are. */
void count_launch(const char *name, double bytes, int64_t scalars);
/* The host waits. */
void count_wait(void);
/* A kernel, by its symbol, with the addresses of its arguments. */
void count_kernel(const char *symbol, void **arguments);
