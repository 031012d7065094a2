/* Convolutions by Winograd's transform; conv.c decides where. */
#pragma once

#include "tensor/cpu/conv_internal.h"

/* Whether the transform can compute this convolution at all. */
bool td_wino_possible(const td_conv2d_desc *desc);
/* Whether it is also faster than the direct way, on machines like those that were measured. */
bool td_wino_wins(const td_conv2d_desc *desc, td_conv2d_pass pass);

void td_wino_run(td_pool *pool, const td_conv2d_call *call, td_conv_space *space);
