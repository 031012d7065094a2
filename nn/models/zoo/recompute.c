/* Which modules of a model are its blocks and its stages, for recomputation and sharding:
 * torchvision's names say it. */
#include "nn/nn.h"
#include "nn/module.h"

#include <string.h>

/* A stage is a module of this many names ("layer1": 1; "features.denseblock1": 2) that begins so, a
 * block one below it. */
typedef struct place {
    const char *begin;
    int depth;
} place;

static const place places[] = {
    { "layer", 1 },               /* ResNets, ResNeXts, BoTNet */
    { "features.denseblock", 2 }, /* DenseNets */
    { "features.transition", 2 },
    { "features.", 2 },          /* EfficientNet */
    { "trunk_output.block", 2 }, /* RegNets */
};

/* What comes before them: a ResNet's conv1 stands for its whole stem. */
static const char *const stems[] = { "conv1", "stem" };

static int names_in(const char *path)
{
    int count = *path != '\0';
    for (; *path != '\0'; path++) {
        count += *path == '.';
    }
    return count;
}

/* 0: neither; 1: a stage; 2: a block. */
static int rank_of(const char *path)
{
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        if (strncmp(path, places[i].begin, strlen(places[i].begin)) == 0) {
            int below = names_in(path) - places[i].depth;
            return below == 0 ? 1 : below == 1 ? 2 : 0;
        }
    }
    return 0;
}

bool td_is_block_of_model(const char *path)
{
    return rank_of(path) == 2;
}

static bool is_stem(const char *path)
{
    for (size_t i = 0; i < sizeof stems / sizeof *stems; i++) {
        if (strcmp(path, stems[i]) == 0) {
            return true;
        }
    }
    return false;
}

typedef struct marking {
    int rank, count;
} marking;

static void mark(td_module *m, const char *path, void *user)
{
    marking *all = user;
    bool part = all->rank > 0 && rank_of(path) == all->rank;
    td_recompute(m, part || (all->rank > 0 && is_stem(path)));
    all->count += part && m->child_count > 0;
}

int td_model_recompute(td_module *net, td_recompute_parts parts)
{
    marking all = { .rank = parts == TD_RECOMPUTE_STAGES   ? 1
                            : parts == TD_RECOMPUTE_BLOCKS ? 2
                                                           : 0 };
    td_module_each(net, mark, &all);
    return all.count;
}
