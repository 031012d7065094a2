/* The recipes of the CIFAR-10 speed run (Jordan 2024, airbench94, and its variant with Muon): what
 * is trained how, and how it is tested. */
#pragma once

#include "apps/tools/common/runner.h"
#include "tandem.h"
#include "examples/speedrun/lookahead.h"
#include "tensor/graph/captured.h"

enum { SPEEDRUN_CLASSES = 10 };

/* How a recipe trains. Learning rates and decay are "decoupled": each may be tuned without the
 * others, and speedrun_begin turns them into what the optimizers take. */
typedef struct speedrun_recipe {
    const char *name;
    int64_t batch_size;
    double epochs;
    double whiten_epochs; /* after which the whitening convolution's bias is frozen */
    bool muon, lookahead;
    double smoothing; /* of labels */
} speedrun_recipe;

/* "sgd", "muon"; NULL: there is none of that name. */
const speedrun_recipe *speedrun_recipe_of(const char *name);

/* A net in training by a recipe. */
typedef struct speedrun {
    /* Set by the program. */
    const speedrun_recipe *recipe;
    const td_tensor *images; /* [N,3,32,32], on a CPU: the first layer is whitened with them */
    td_device device;        /* of the net */
    double width;            /* multiplies the blocks' channels (1: the recipe's) */
    double epochs;
    td_loader *loader; /* of the batches; it must live as long */
    int64_t batch_size;
    bool graph; /* steps are captured (tensor/graph/captured.h) */

    td_module *net;
    td_optim *optim;
    lookahead *lookahead; /* NULL: the recipe has none */
    bool ahead;           /* the running step updates it */
    runner runner;
    td_tensor *loss; /* of all samples since it was zeroed; on the net's device */
    int64_t step, steps, whiten_steps;
    double lr; /* the base that groups are scaled against */
    int whiten_group;
    double whiten_scale;
} speedrun;

/* A new net; the images are no longer needed. TD_E_NOMEM: speedrun_free is needed then, too. */
td_status speedrun_begin(speedrun *s);
/* One step on a batch. */
td_status speedrun_step(speedrun *s, const td_batch *batch);
/* After the last step: the weights are what is tested. Says how many steps were replayed. */
td_status speedrun_finish(speedrun *s);
void speedrun_free(speedrun *s);

/* Accuracy of a net on images in memory, seen once or (views) six times: as they are and shifted
 * by a pixel up left and down right, each of the three also mirrored; the first two views weigh 1/4
 * each, the others 1/8. The transform gives mean and std, and stays. */
td_status speedrun_test(td_module *net, td_dataset *whole, const td_dataset *test,
                        const td_image_transform *transform, bool views, double *accuracy);
