/* What the files of layers share: the weights and the bias of a module with one operation. */
#include "nn/layer.h"

void td_layer_weights(td_module *m, td_tensor **weight, td_tensor **bias, td_shape shape,
                      int64_t outputs)
{
    bool filters = shape.ndim == 2 || shape.ndim == 4;
    *weight = td_module_new_parameter(m, "weight", shape, filters ? TD_FILTER : TD_ROW_MAJOR);
    if (*weight != NULL) {
        td_init_kaiming_uniform_(*weight);
    }
    if (bias != NULL) {
        *bias = td_module_new_parameter(m, "bias", TD_SHAPE(outputs), TD_ROW_MAJOR);
    }
    if (bias != NULL && *bias != NULL) {
        td_init_bias_uniform_(*bias, td_shape_numel(shape) / shape.dim[0]);
    }
}

void td_layer_scales(td_module *m, td_tensor **weight, td_tensor **bias, td_shape shape)
{
    if (weight != NULL) {
        *weight = td_module_parameter(m, "weight", td_full(shape, 1.0, TD_F32, TD_CPU));
    }
    if (bias != NULL) {
        *bias = td_module_parameter(m, "bias", td_zeros(shape, TD_F32, TD_CPU));
    }
}
