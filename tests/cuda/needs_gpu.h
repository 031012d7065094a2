/* For tests of GPUs, real or emulated. */
#pragma once

#include "tensor/device.h"

/* Opens a GPU; false if there is none of this number. */
static inline bool have_gpu(int number)
{
    td_device device;
    return td_device_parse(td_device_name(TD_CUDA_N(number)), &device) == TD_OK;
}

/* At the beginning of a test: skips the test unless there is this GPU. */
#define NEEDS_GPU(number)                                                                          \
    do {                                                                                           \
        (void)state;                                                                               \
        if (!have_gpu(number)) {                                                                   \
            skip();                                                                                \
        }                                                                                          \
    } while (0)
