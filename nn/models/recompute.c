/* Recomputation of a model's marked parts. */
#include "nn/module.h"

typedef struct marked {
    td_module_part wanted;
    int count;
} marked;

static void recompute_part(td_module *m, const char *path, void *user)
{
    (void)path;
    marked *all = user;
    td_module_part part = td_module_part_of(m);
    bool is_wanted = all->wanted != TD_PART_NONE && part == all->wanted;
    td_recompute(m, is_wanted || (all->wanted != TD_PART_NONE && part == TD_PART_STEM));
    all->count += is_wanted;
}

int td_model_recompute(td_module *net, td_module_part part)
{
    marked all = { .wanted = part };
    td_module_each(net, recompute_part, &all);
    return all.count;
}
