/* What train_net and test_net are told: the articles' trainer's keys with its defaults, and some of
 * our own. The table in settings.c says what each means and may be. */
#ifndef APPS_TOOLS_SETTINGS_H
#define APPS_TOOLS_SETTINGS_H

#include "apps/tools/train_net/config.h"

typedef char settings_text[CONFIG_TEXT_BYTES]; /* "" is None */

typedef struct settings {
    struct {
        settings_text arch, weights, recompute;
        int64_t num_classes, dummy_samples;
        bool pretrained, syncbn, dummy_input;
    } model;
    struct {
        settings_text dataset, split;
        int64_t batch_size, accum_steps, im_size, workers, print_freq, topk, keep_checkpoints;
        double min_area, color_jitter;
        bool auto_resume, load_opt, pin_memory, flip, graph, autotune, save_async;
    } train;
    struct {
        settings_text dataset, split;
        int64_t batch_size, im_size, crop_size, print_freq;
    } test;
    struct {
        double val_fraction;
        bool skip_bad;
    } data;
    struct {
        bool benchmark, deterministic;
    } cudnn;
    struct {
        settings_text lr_policy;
        int64_t max_epoch, warmup_epochs;
        double base_lr, min_lr, lr_mult, momentum, dampening, warmup_factor, weight_decay;
        double label_smoothing, clip_grad_norm, ema_decay;
        config_reals steps;
        bool nesterov, after_warmup;
    } optim;
    settings_text out_dir, cfg_dest, precision, device, mesh;
    int64_t rng_seed; /* CONFIG_NONE: drawn */
    bool winograd;
} settings;

extern const config_schema settings_schema;

/* What no single key can tell: keys that do not go together. TD_E_ARG says which, and what to do.
 */
td_status settings_check(const settings *s);

/* The learning rate of epoch e (from 0). */
double settings_lr(const settings *s, int64_t epoch);

#endif
