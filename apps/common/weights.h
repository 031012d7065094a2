/* Weights of a trained model, for use. */
#ifndef APPS_COMMON_WEIGHTS_H
#define APPS_COMMON_WEIGHTS_H

#include "tandem.h"

/* Loads a file's weights into a model: their averages (nn/optim/ema.h) where it has some, since
 * those are what its run tested and called best. *averages (NULL: not asked) says which. Errors are
 * td_checkpoint_load's. */
td_status weights_load(td_module *net, const char *path, bool *averages);

#endif
