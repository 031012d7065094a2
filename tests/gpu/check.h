/* The parts of build/VARIANT/tests/gpu/check, the program of `make gpu-check` (tests/gpu/check.sh):
 * each runs on a device, real or emulated, and returns whether all was well. docs/gpu-check.md says
 * what they mean. */
#pragma once

#include "tandem.h"
#include "tensor/graph/captured.h"

/* Versions, libraries and where they were found; cuDNN's description of the device goes to a file.
 */
bool check_info(td_device device, const char *description_path);

/* What the GPU can do at most: copying in its memory, matrix products of n x n. */
bool check_ceilings(td_device device, int64_t n);

/* Every case of tests/autograd/ops_cases.def, and odd shapes of products: value and gradients
 * against the CPU in f64, in a precision. Results are written into memory that is full of NaN.
 * named: of the operations of these names alone, with commas; NULL: of all. */
bool check_ops(td_device device, td_precision precision, const char *named);

/* Optimizers and dropout against the CPU's, bit for bit. */
bool check_bits(td_device device);

/* Operations on more than 2^31 elements, where 32-bit numbers overflow (24 GB); and batch
 * normalisation of one input so many times, whose blocks race for who adds up their sums: the same
 * bits. Ends the program with 77 where memory is short. */
bool check_large(td_device device, int times);

/* Steps of ResNet-18 at 32x32 against the CPU's from the same weights; the CPU computes in the same
 * precision if it has it, otherwise in fp32. */
bool check_train(td_device device, td_precision precision, int64_t batch, int steps);

/* Captured steps of ResNet-18 at 32x32 beside eager ones, with learning rates that change: the same
 * bits. */
bool check_graph(td_device device, td_precision precision, int64_t batch, int steps);
/* A captured step with one result; ends the program where that fails. */
td_captured *check_captured_job(td_device device, td_captured_step run, void *job);

/* Serves training steps for tests/gpu/throughput.py. arguments: MODEL imagenet|cifar SIZE CLASSES
 * BATCH; MODEL is resnet18 or resnet50. captured: as a graph. */
bool check_serve(td_device device, td_precision precision, char **arguments, bool captured);

/* Seconds of the monotonic clock. */
double check_seconds(void);

/* Waits until the device has done all that it was given. */
void check_wait(td_device device);
