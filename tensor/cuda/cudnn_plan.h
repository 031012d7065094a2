/* Plans of convolutions: choosing among cuDNN's engines, keeping, running. */
#pragma once

#include "tensor/cuda/cudnn_graph.h"
#include "tensor/tune/store.h"

typedef struct td_cudnn_plan {
    cudnnBackendDescriptor_t plan; /* NULL: there is none */
    int64_t workspace;             /* bytes */
    int64_t engine;                /* its number, for people; -1: unknown */
} td_cudnn_plan;

/* The best plans that the rules allow, in the heuristic's order; up to max. Returns how many there
 * are. Not allowed: engines that are not deterministic; Winograd, FFT and sums of less than f32;
 * for f32 without tf32, tensor cores. */
int td_cudnn_candidates(const td_cudnn_target *target, const td_cuda_conv *conv, int max,
                        td_cudnn_plan *plans);

/* Destroys it; fine for none. */
void td_cudnn_plan_end(const td_cudnn *lib, td_cudnn_plan *plan);

/* What a plan cache calls it: "first conv forward bf16 ...". tuned: chosen by timing. */
void td_cudnn_plan_key(const td_cuda_conv *conv, bool tuned, char key[TD_PLAN_KEY_MAX]);

/* A plan as text, to be freed; NULL if cuDNN cannot give it. And back: false if it cannot be used
 * (the text is not of this version, or for another device). */
char *td_cudnn_plan_write(const td_cudnn *lib, const td_cudnn_plan *plan, size_t *bytes);
bool td_cudnn_plan_read(const td_cudnn_target *target, const char *text, size_t bytes,
                        td_cudnn_plan *plan);
