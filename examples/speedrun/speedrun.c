/* The recipes of the CIFAR-10 speed run: model, optimizers, schedule and test. */
#include "examples/speedrun/speedrun.h"
#include "examples/speedrun/airbench.h"
#include "nn/extra/muon.h"
#include "examples/speedrun/whitening.h"
#include "nn/module.h"
#include "data/inspect.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the recipes ---- */

static const speedrun_recipe recipes[] = {
    { .name = "sgd",
      .batch_size = 1024,
      .epochs = 9.9,
      .whiten_epochs = 3,
      .lookahead = true,
      .smoothing = 0.2 },
    { .name = "muon",
      .batch_size = 2000,
      .epochs = 8,
      .whiten_epochs = 3,
      .muon = true,
      .smoothing = 0.2 },
};

const speedrun_recipe *speedrun_recipe_of(const char *name)
{
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
        if (strcmp(recipes[i].name, name) == 0) {
            return &recipes[i];
        }
    }
    return NULL;
}

/* ---- the optimizers ---- */

static bool is_whiten_bias(const td_param *p, void *user)
{
    (void)user;
    return strcmp(p->name, "whiten.bias") == 0;
}

static bool is_norm_bias(const td_param *p, void *user)
{
    (void)user;
    return strstr(p->name, "norm") != NULL;
}

static bool is_head(const td_param *p, void *user)
{
    (void)user;
    return strcmp(p->name, "head.weight") == 0;
}

/* The loss is a sum over the batch. A momentum of 0.85 makes each gradient count 1/(1 - 0.85)
 * times, and once more by Nesterov's look ahead: learning rate and decay are given for 1024
 * images and all that. PyTorch's SGD multiplies the decay by the learning rate, so it is divided
 * by it here. */
static void begin_sgd(speedrun *s)
{
    enum { BIASES = 64 }; /* times the learning rate */
    const double momentum = 0.85, scale = 1024.0 * (1.0 + 1.0 / (1.0 - momentum));
    s->lr = 11.5 / scale;
    double decay = 0.0153 * (double)s->batch_size / scale / s->lr;
    s->optim = td_sgd(td_parameters(s->net), .lr = s->lr, .momentum = momentum, .nesterov = true,
                      .weight_decay = decay);
    if (s->optim != NULL) {
        td_optim_group(s->optim, is_norm_bias, NULL, BIASES, decay / BIASES);
    }
}

static void begin_muon(speedrun *s)
{
    const double bias_lr = 0.053, head_lr = 0.67, decay = 2e-6 * (double)s->batch_size;
    s->lr = 0.24;
    s->optim = td_muon(td_parameters(s->net), .lr = s->lr, .momentum = 0.6, .rounds = 3,
                       .sgd_momentum = 0.85);
    if (s->optim != NULL) {
        s->whiten_scale = bias_lr / s->lr;
        s->whiten_group =
            td_optim_group(s->optim, is_whiten_bias, NULL, s->whiten_scale, decay / bias_lr);
        td_optim_group(s->optim, is_norm_bias, NULL, bias_lr / s->lr, decay / bias_lr);
        td_optim_group(s->optim, is_head, NULL, head_lr / s->lr, decay / head_lr);
    }
}

/* SGD: a triangle, from 0.2 to 1 at 23 % of the run, then to 0.07. Muon: from 1 to 0, and for the
 * whitening bias to 0 when it is frozen. */
static void set_learning_rate(speedrun *s)
{
    td_schedule schedule = { .kind = TD_SCHEDULE_LINEAR,
                             .base_lr = s->lr,
                             .total = (double)s->steps };
    if (!s->recipe->muon) {
        schedule.min_lr = 0.07 * s->lr;
        schedule.warmup = floor(0.23 * (double)s->steps);
        schedule.warmup_factor = 0.2;
    }
    td_optim_set_lr(s->optim, td_schedule_lr(&schedule, (double)s->step));
    if (s->recipe->muon && s->step < s->whiten_steps) {
        double now = 1.0 - (double)s->step / (double)s->steps;
        double wanted = 1.0 - (double)s->step / (double)s->whiten_steps;
        td_optim_set(s->optim, s->whiten_group, .lr_scale = s->whiten_scale * wanted / now);
    }
}

/* ---- training ---- */

static int64_t scaled(int64_t channels, double width)
{
    int64_t result = llround((double)channels * width);
    return result > 1 ? result : 1;
}

static td_status make_net(speedrun *s)
{
    double width = s->width;
    s->net = airbench_new(SPEEDRUN_CLASSES,
                          .widths = { scaled(64, width), scaled(256, width), scaled(256, width) },
                          .unit_head = s->recipe->muon);
    if (s->net == NULL) {
        return TD_E_NOMEM;
    }
    TD_TRY(whitening_init(airbench_whiten(s->net, false), s->images, 5e-4));
    return td_module_to(s->net, s->device, TD_F32);
}

static td_status learn(void *user, td_tensor *const *inputs, td_tensor **results);

td_status speedrun_begin(speedrun *s)
{
    double batches = (double)td_loader_batches(s->loader);
    s->steps = (int64_t)ceil(s->epochs * batches);
    s->whiten_steps = (int64_t)ceil(s->recipe->whiten_epochs * batches);
    TD_TRY(make_net(s));
    (s->recipe->muon ? begin_muon : begin_sgd)(s);
    s->loss = td_zeros(TD_SCALAR, TD_F32, s->device);
    s->lookahead = s->recipe->lookahead ? lookahead_new(s->net) : NULL;
    s->runner = (runner){ .step = learn, .user = s };
    if (s->optim == NULL || s->loss == NULL || (s->lookahead == NULL && s->recipe->lookahead)) {
        return TD_E_NOMEM;
    }
    return s->graph ? runner_capture(&s->runner, s->device, s->loader, NULL) : TD_OK;
}

/* Whether the step that comes ends with an update of the slow weights. Their share grows from
 * nothing to 0.95^5. */
static bool looks_ahead(speedrun *s)
{
    enum { EVERY = 5 };
    if (s->lookahead == NULL || (s->step + 1) % EVERY != 0) {
        return false;
    }
    double done = (double)(s->step + 1) / (double)s->steps;
    lookahead_set_decay(s->lookahead, pow(0.95, EVERY) * pow(done, 3));
    return true;
}

/* What the device does in a step. */
static td_status learn(void *user, td_tensor *const *inputs, td_tensor **results)
{
    speedrun *s = user;
    (void)results;
    td_loader_make(s->loader);
    td_tensor *mean = td_cross_entropy(td_forward(s->net, inputs[0]), inputs[1],
                                       .label_smoothing = s->recipe->smoothing);
    td_tensor *sum = td_mul_scalar(mean, (double)inputs[0]->shape[0]);
    td_zero_grad(s->optim);
    td_backward(sum);
    td_optim_step(s->optim);
    td_add_(s->loss, td_detach(sum));
    if (s->ahead) {
        lookahead_update(s->lookahead);
    }
    return TD_OK;
}

static td_status wait_for_steps(speedrun *s, bool all)
{
    while (runner_full(&s->runner) || (all && runner_waiting(&s->runner) > 0)) {
        TD_TRY(runner_next(&s->runner, NULL));
    }
    return TD_OK;
}

/* From now on it is another step. */
static td_status freeze_whitening(speedrun *s)
{
    td_requires_grad(airbench_whiten(s->net, true), false);
    TD_TRY(wait_for_steps(s, true));
    if (s->runner.captured != NULL) {
        td_captured_forget(s->runner.captured);
    }
    return TD_OK;
}

td_status speedrun_step(speedrun *s, const td_batch *batch)
{
    if (s->step == s->whiten_steps) {
        TD_TRY(freeze_whitening(s));
    }
    set_learning_rate(s);
    s->ahead = looks_ahead(s);
    TD_TRY(wait_for_steps(s, false));
    TD_TRY(runner_step(&s->runner, s->ahead, batch));
    s->step++;
    return TD_OK;
}

td_status speedrun_finish(speedrun *s)
{
    TD_TRY(wait_for_steps(s, true));
    if (s->lookahead != NULL) {
        lookahead_set_decay(s->lookahead, 1.0);
        lookahead_update(s->lookahead);
    }
    runner_end(&s->runner);
    return TD_OK;
}

void speedrun_free(speedrun *s)
{
    td_captured_free(s->runner.captured);
    td_free(s->loss);
    lookahead_free(s->lookahead);
    td_optim_free(s->optim);
    td_module_free(s->net);
    *s = (speedrun){ 0 };
}

/* ---- the test ---- */

typedef struct view {
    int shift;
    bool mirror;
    double weight;
} view;

static const view six_views[] = {
    { 0, false, 0.25 },  { 0, true, 0.25 },   { -1, false, 0.125 },
    { -1, true, 0.125 }, { 1, false, 0.125 }, { 1, true, 0.125 },
};
static const view one_view = { 0, false, 1.0 };

/* Adds the logits of all samples, weighed. */
static td_status add_logits(td_module *net, const td_dataset *test, double weight, double *logits)
{
    enum { BATCH = 500 };
    td_loader *loader = td_loader_open(test, .batch_size = BATCH, .device = net->device);
    if (loader == NULL) {
        return TD_E_NOMEM;
    }
    for (td_batch batch; td_loader_next(loader, &batch);) {
        double values[BATCH * SPEEDRUN_CLASSES];
        td_step_begin();
        td_read(td_forward(net, batch.x), values, TD_F64);
        td_step_end();
        double *to = logits + batch.index * BATCH * SPEEDRUN_CLASSES;
        for (int64_t i = 0; i < batch.size * SPEEDRUN_CLASSES; i++) {
            to[i] += weight * values[i];
        }
    }
    td_status status = td_loader_status(loader);
    td_loader_close(loader);
    return status;
}

/* -1: a logit is not finite. */
static int64_t count_right(const td_dataset *test, const uint8_t *labels, const double *logits)
{
    int64_t right = 0;
    for (int64_t i = 0; i < test->length * SPEEDRUN_CLASSES; i++) {
        if (!isfinite(logits[i])) {
            return -1;
        }
    }
    for (int64_t i = 0; i < test->length; i++) {
        const double *row = logits + i * SPEEDRUN_CLASSES;
        int best = 0;
        for (int k = 1; k < SPEEDRUN_CLASSES; k++) {
            best = row[k] > row[best] ? k : best;
        }
        right += best == labels[i];
    }
    return right;
}

td_status speedrun_test(td_module *net, td_dataset *whole, const td_dataset *test,
                        const td_image_transform *transform, bool views, double *accuracy)
{
    double *logits = calloc((size_t)(test->length * SPEEDRUN_CLASSES), sizeof *logits);
    td_status status = logits != NULL ? TD_OK : td_fail(TD_E_NOMEM, "no memory for the test");
    int count = views ? (int)(sizeof six_views / sizeof *six_views) : 1;
    td_eval(net);
    td_no_grad_begin();
    for (int v = 0; v < count && status == TD_OK; v++) {
        view seen = views ? six_views[v] : one_view;
        td_image_transform cut = { .reflect = true,
                                   .mirror = seen.mirror,
                                   .shift = { seen.shift, seen.shift } };
        memcpy(cut.mean, transform->mean, sizeof cut.mean);
        memcpy(cut.std, transform->std, sizeof cut.std);
        status = td_dataset_set_transform(whole, &cut);
        if (status == TD_OK) {
            status = add_logits(net, test, seen.weight, logits);
        }
    }
    td_no_grad_end();
    td_train(net);
    if (status == TD_OK) {
        int64_t right = count_right(test, td_dataset_labels(whole), logits);
        *accuracy = (double)right / (double)test->length;
        status = right >= 0 ? td_dataset_set_transform(whole, transform)
                            : td_fail(TD_E_ARG, "the test gives logits that are not finite: the "
                                                "weights are broken");
    }
    free(logits);
    return status;
}
