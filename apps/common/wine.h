/* The wine lessons' model and their first lines of output. */
#ifndef APPS_COMMON_WINE_H
#define APPS_COMMON_WINE_H

#include "tandem.h"

enum { WINE_FEATURES = 13 };

/* Linear(13, 64) - ReLU - Linear(64, 3): 1,091 parameters, drawn first for fc1, then for fc2. */
td_module *wine_net(void);

/* The first training sample, as the article prints it. */
td_status wine_print_first_sample(const td_dataset *train);

#endif
