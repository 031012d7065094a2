/* For tests of collectives: data that every rank can make for every rank, and serial results. */
#pragma once

#include "tests/help/dist_procs.h"

/* Scrambles bits. */
uint64_t dist_mix(uint64_t x);

/* n elements of every rank's data, and their reduction. */
typedef struct dist_data {
    td_dtype dtype;
    int64_t n;
    int size;
    void *of[PROCS_MAX];
    void *reduced;
} dist_data;

dist_data dist_data_make(td_dtype dtype, int64_t n, int size, uint64_t seed);
/* d->reduced becomes the reduction in the order of ranks, in f32 for bf16 and f16. */
void dist_data_reduce(dist_data *d, td_reduction op);
void dist_data_free(dist_data *d);
size_t dist_data_bytes(const dist_data *d, int64_t n); /* of n elements */
