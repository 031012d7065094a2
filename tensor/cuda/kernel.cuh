/* For .cu files: what a kernel needs to be compiled by nvcc, or by g++ for the emulated device
 * (tests/emulate/), which runs it on the CPU.
 *
 * Conventions that make both work: kernels are started by TD_LAUNCH alone; __shared__ arrays have a
 * fixed size; every thread of a block reaches each __syncthreads() or has returned; no part of the
 * C++ library; no atomics on floats (sums must have one order). */
#pragma once

#include <stdint.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

/* TD_ROLLED before a loop: its body once. Loops that are seldom long, with much in them, are most
 * of a kernel's code otherwise, and there are hundreds of kernels in a program. TD_UNROLLED(n): its
 * body n times, so that n loads are under way at once.
 * TD_LAUNCH((fill<float>), blocks, threads, stream, arguments...): the name in parentheses; blocks
 * and threads are numbers or dim3.
 *
 * TD_TILE_THREADS: of a block that moves a tile, which may have any number. Each emulated thread
 * that waits for others costs a switch of stacks. */
#define TD_UNPARENTHESISED(...) __VA_ARGS__
#ifdef __CUDACC__
#define TD_LAUNCH(kernel, blocks, threads, stream, ...)                                            \
    TD_UNPARENTHESISED kernel<<<blocks, threads, 0, stream>>>(__VA_ARGS__)
#define TD_TILE_THREADS TD_CUDA_THREADS
#define TD_ROLLED _Pragma("unroll 1")
#define TD_PRAGMA(text) _Pragma(#text)
#define TD_UNROLLED(n) TD_PRAGMA(unroll n)
#define TD_MOST_BLOCKS(most) (most)
#else
#define TD_TILE_THREADS 32
#define TD_ROLLED
#define TD_UNROLLED(n)
#define TD_MOST_BLOCKS(most) td_emulate_most_blocks(most)
#define TD_LAUNCH(kernel, blocks, threads, stream, ...)                                            \
    td_emulate_launch(TD_UNPARENTHESISED kernel, blocks, threads, stream, __VA_ARGS__)
#endif

/* Blocks for n elements, one a thread: at most `most`, and kernels walk on by gridDim * blockDim.
 */
static inline unsigned td_blocks(int64_t n, int threads, unsigned most)
{
    int64_t blocks = (n + threads - 1) / threads;
    most = TD_MOST_BLOCKS(most);
    return blocks < 1 ? 1 : blocks < most ? (unsigned)blocks : most;
}

/* The first element of a thread, and how far it is to its next, in a walk over n of them. */
#define TD_WALK_BEGIN ((int64_t)blockIdx.x * blockDim.x + threadIdx.x)
#define TD_WALK_STEP ((int64_t)gridDim.x * blockDim.x)
