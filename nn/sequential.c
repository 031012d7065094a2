/* Sequential: one module after the other. */
#include "nn/module.h"

static bool is_batch_norm_and_relu(const td_module *self, int i)
{
    return i + 1 < self->child_count && td_is_batch_norm2d(self->children[i]) &&
           td_is_relu(self->children[i + 1]);
}

static td_tensor *sequential_forward(td_module *self, td_tensor *x, td_site at)
{
    for (int i = 0; i < self->child_count; i++) {
        if (is_batch_norm_and_relu(self, i)) {
            x = td_nn_batch_norm2d_fused(self->children[i], x, NULL, true, at);
            i++;
            td_module_tell(self->children[i], x, x);
        } else {
            x = (td_forward)(self->children[i], x, at);
        }
    }
    return x;
}

static const td_module_type sequential_type = { .name = "Sequential",
                                                .forward = sequential_forward };

td_module *td_nn_sequential_list(td_module *const *children, int count)
{
    td_module *m = td_module_new(&sequential_type, 0);
    for (int i = 0; i < count; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        td_module_add(m, name, children[i]);
    }
    return td_module_finish(m);
}
