/* Operations as nn/ calls them. Not for users.
 *
 * Some do more in the same pass: convolutions and normalisations that follow each other. Users
 * write them one by one; td_nn_sequential and the models fuse them. */
#pragma once

#include "autograd/ops.h"
#include "tensor/kernels/kernel_types.h"

/* Reads a pair (height, width) from an option that is given for both (`both`) or for each (`hw`).
 * Neither given: `usual` for both. Both given, or one below `least`: a mistake of the caller. */
void td_op_pair(int both, const int hw[2], int usual, int least, const char *op, const char *what,
                int pair[2], td_site at);
/* The same of depth, height and width. */
void td_op_triple(int all, const int dhw[3], int usual, int least, const char *op, const char *what,
                  int triple[3], td_site at);

/* What batch normalisation does besides, in the same pass. */
typedef struct td_batch_norm_fusion {
    td_norm_activation activation; /* y = relu(...), gelu(...) */
    td_tensor *add; /* y = bn(x) + add, before the relu; shaped like x; takes gradients; not with
                       gelu */
    bool over_x;    /* x is not needed any more: without gradients y may overwrite it */
    const td_pool2d_options *max_pool; /* with relu, without add: the result is td_max_pool2d(y),
                                          and y is never written; its x is ignored */
} td_batch_norm_fusion;
td_tensor *td_batch_norm_fused_at(td_batch_norm_options options, td_batch_norm_fusion fusion,
                                  td_site at);
/* The shape [N,C,H,W] in which td_batch_norm_fused_at takes x [N,C,...]. [N,C] stays. */
td_shape td_batch_norm_images(const td_tensor *x);
/* A fusion's add in x's dtype: f32 and 16 bits are cast. NULL stays NULL. */
td_tensor *td_batch_norm_addend(const td_tensor *x, td_tensor *add, td_site at);

/* td_add(add, td_linear(x, w, b)); add NULL: td_linear. A GPU's product adds it itself: then the
 * sum is rounded once, to add's dtype. */
td_tensor *td_linear_add_at(td_tensor *x, td_tensor *w, td_tensor *b, td_tensor *add, td_site at);
/* td_rms_norm; for_products as in td_layer_norm_options. */
td_tensor *td_rms_norm_for(bool for_products, td_tensor *x, td_tensor *weight, double eps,
                           td_site at);

/* td_dropout, td_dropout2d and td_stochastic_depth with the counter that is at `counter`, up to the
 * end of the step; in a captured step, when the kernels run: it then is one of td_step_numbers
 * (tensor/hooks.h). */
td_tensor *td_dropout_by(td_tensor *x, double p, td_philox_key key, const uint64_t *counter,
                         td_numbering of, td_site at);
td_tensor *td_dropout2d_by(td_tensor *x, double p, td_philox_key key, const uint64_t *counter,
                           td_site at);
td_tensor *td_stochastic_depth_by(td_tensor *x, double p, td_philox_key key,
                                  const uint64_t *counter, td_site at);
