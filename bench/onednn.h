/* oneDNN as a peer for single operations (make deps-bench; only bench/ uses it). Each operation
 * takes the layouts that oneDNN likes best for it; onednn_run does not count what converting to
 * them costs. */
#pragma once

#include "tensor/cpu/conv.h"
#include "tensor/cpu/gemm.h"

typedef struct onednn onednn;

/* Call first in main. OpenMP's threads spin for some 20 ms after their work, and would take a core
 * from whoever is measured next; how long they spin can only be said when a program starts, so this
 * starts it again. */
void onednn_prepare(char **argv);

/* An operation on data of its own; NULL where oneDNN is not there or cannot do it. Passes are the
 * three with products: forward, backward-data, backward-weights. */
onednn *onednn_conv(const td_conv2d_desc *desc, td_conv2d_pass pass);

/* C = A B of the description's sizes and strides. */
onednn *onednn_gemm(const td_gemm_desc *desc);

/* Computes it once, on OMP_NUM_THREADS threads. */
void onednn_run(onednn *operation);

/*
 * The same as a training step has to: between steps the weights have one layout, here the one that
 * forward likes best. Backward-data takes its weights from there and backward-weights leaves its
 * result there, which costs a conversion where they like another (onednn_converts) and nothing
 * where not. Activations keep the layout that each pass likes best.
 */
void onednn_run_step(onednn *operation);
bool onednn_converts(const onednn *operation);

/* NULL is fine. */
void onednn_free(onednn *operation);
