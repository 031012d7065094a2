/* What the files of layers share: a module with one operation, its weights and its bias. */
#include "nn/layer.h"

#include <string.h>

td_module *td_layer_new(const td_module_type *type, const void *state, size_t size)
{
    td_module *m = td_module_new(type, size);
    if (m != NULL) {
        memcpy(m->state, state, size);
    }
    return m;
}

/* Where the state points to its weight and its bias. */
static td_tensor **places(const td_module *m, size_t place)
{
    return (td_tensor **)(void *)((char *)m->state + place);
}

td_module *td_layer_weights(td_module *m, size_t place, td_shape shape, int64_t outputs,
                            bool no_bias)
{
    if (m == NULL) {
        return NULL;
    }
    td_tensor **to = places(m, place);
    bool filters = shape.ndim == 2 || shape.ndim == 4;
    to[0] = td_module_new_parameter(m, "weight", shape, filters ? TD_FILTER : TD_ROW_MAJOR);
    if (to[0] != NULL) {
        td_init_kaiming_uniform_(to[0]);
    }
    if (!no_bias) { /* otherwise the state may have no place for it */
        to[1] = td_module_new_parameter(m, "bias", TD_SHAPE(outputs), TD_ROW_MAJOR);
    }
    if (!no_bias && to[1] != NULL) {
        td_init_bias_uniform_(to[1], td_shape_numel(shape) / shape.dim[0]);
    }
    return td_module_finish(m);
}

td_module *td_layer_scales(td_module *m, size_t place, td_shape shape, bool no_weight, bool no_bias)
{
    if (m == NULL) {
        return NULL;
    }
    td_tensor **to = places(m, place);
    if (!no_weight) {
        to[0] = td_module_parameter(m, "weight", td_full(shape, 1.0, TD_F32, TD_CPU));
    }
    if (!no_bias) {
        to[1] = td_module_parameter(m, "bias", td_zeros(shape, TD_F32, TD_CPU));
    }
    return td_module_finish(m);
}
