/* More normalisations; td_batch_norm and td_layer_norm are in autograd/ops.h. 16-bit inputs are
 * computed in f32, and the result is f32. Only the result of td_instance_norm has x's dtype, like
 * the result of td_batch_norm. */
#pragma once

#include "autograd/ops.h"

TD_BEGIN_C

/* F.group_norm of x [N,C,...], weight and bias [C] or NULL, eps 0: 1e-5. The channels are divided
 * into groups, and mean and variance are taken over each group of each sample: y = (x - mean) /
 * sqrt(var + eps) * weight + bias, with weight and bias of the channel. */
td_tensor *td_group_norm_at(td_tensor *x, int64_t groups, td_tensor *weight, td_tensor *bias,
                            double eps, td_site at);
/* F.instance_norm without running statistics: td_group_norm with a group for each channel. */
td_tensor *td_instance_norm_at(td_tensor *x, td_tensor *weight, td_tensor *bias, double eps,
                               td_site at);
/* F.rms_norm: x / sqrt(mean(x^2) + eps) * weight over the last dimensions, as many as weight has,
 * or the last one if weight is NULL. eps 0: x's machine epsilon, as in PyTorch. */
td_tensor *td_rms_norm_at(td_tensor *x, td_tensor *weight, double eps, td_site at);

TD_END_C

#define td_group_norm(...) td_group_norm_at(__VA_ARGS__, TD_HERE)
#define td_instance_norm(...) td_instance_norm_at(__VA_ARGS__, TD_HERE)
#define td_rms_norm(...) td_rms_norm_at(__VA_ARGS__, TD_HERE)
