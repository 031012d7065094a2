/* Convolutions under --autotune: by Winograd's transform or without it, as tensor/tune/tune.h says.
 * The file of earlier runs is that of this processor's kind, its instruction set and the number of
 * threads; what holds in a run, and goes into checkpoints, knows the shape and the pass alone. */
#ifndef TD_TENSOR_CPU_CONV_CHOICE_H
#define TD_TENSOR_CPU_CONV_CHOICE_H

#include "tensor/tune/tune.h"
#include "tensor/cpu/conv.h"
#include "tensor/device.h"

/* Where Winograd's transform is allowed and can compute the pass: replaces the rules in
 * desc->winograd by a choice, if there is one. */
void td_conv2d_choose(td_device device, td_conv2d_desc *desc, td_conv2d_pass pass);

/* For tests: how a file names its owner and a pass. */
enum { TD_CONV_NAME_MAX = 200 };
void td_conv2d_choice_owner(td_device device, char owner[TD_CONV_NAME_MAX]);
void td_conv2d_choice_key(const td_conv2d_desc *desc, td_conv2d_pass pass,
                          char key[TD_CONV_NAME_MAX]);

#endif
