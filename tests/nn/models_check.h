/* For tests: models held against torchvision's, by committed numbers and, where a Python with torch
 * is, directly. */
#pragma once

#include "tandem.h"

#include <cjson/cJSON.h>

enum {
    MODELS_CLASSES = 10,
    MODELS_NOISE = 3, /* f32 may be so many times as far from the truth as torch's own f32 */
};

/* Without dropout and stochastic depth, whose draws are our own. */
td_module *models_make(const char *name, int64_t side);

/* A row of tests/golden/models.json: the initial weights of seed 0 bit for bit, then, for some, in
 * f64, where rounding decides nothing, logits and the gradient's norm for 4 pictures of 64x64.
 * BoTNet's rows come from a model of our own in PyTorch.
 */
void models_check_initial(const cJSON *row);
void models_check_numbers(const cJSON *row);

/* false, with a line that says so: there is no Python with torch and torchvision. */
bool models_have_torch(void);

/* Has torch draw a model and write it with pictures and results in f64; loads it, and compares
 * logits in evaluation and training mode and the gradients: in f64 within 1e-9 relative L2; in f32
 * within 1e-5, 1e-4 and 1e-3, or, since deep nets of random weights make rounding grow, within
 * MODELS_NOISE times the distance of torch's own f32 from the same. Needs a temp_folder. */
void models_check_torch(const char *name, int64_t side, int batch);
