/* Recomputation of a model's marked parts. */
#include "nn/module.h"

int td_model_recompute(td_module *net, td_module_part part)
{
    int count = 0;
    for (td_module *m = net; m != NULL; m = td_module_next(net, m)) {
        td_module_part own = td_module_part_of(m);
        bool wanted = part != TD_PART_NONE && own == part;
        td_recompute(m, wanted || (part != TD_PART_NONE && own == TD_PART_STEM));
        count += wanted;
    }
    return count;
}
