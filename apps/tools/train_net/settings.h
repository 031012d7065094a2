/* The settings of train_net and test_net: the keys of distribuuuu with its defaults, and some of
 * our own. The table in settings.c says what each means and may be. It fills a plain struct from
 * defaults, a YAML file, and pairs KEY VALUE of a command line, in this order.
 *
 * A key stands alone ("OUT_DIR") or in a node ("TRAIN.BATCH_SIZE"); in YAML nodes are mappings:
 *
 *     OUT_DIR: ./exp
 *     TRAIN:
 *       BATCH_SIZE: 32
 *
 * Whatever does not fit (an unknown key, a wrong type, a value out of range, a key given twice in a
 * file) is TD_E_FORMAT with a message that says where, and which key or value is meant. */
#ifndef APPS_TOOLS_SETTINGS_H
#define APPS_TOOLS_SETTINGS_H

#include "tandem.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CONFIG_TEXT_BYTES = 1024,
    CONFIG_MOST_REALS = 16,
    CONFIG_MOST_KEYS = 96,
    CONFIG_MOST_BYTES = 65536, /* of a file */
    CONFIG_NONE = -1,          /* an optional whole number that is not given */
};

typedef struct config_reals {
    double value[CONFIG_MOST_REALS];
    int count;
} config_reals;

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
    settings_text out_dir, cfg_dest, precision, device;
    int64_t rng_seed; /* CONFIG_NONE: drawn */
    bool winograd;
} settings;

/* How a key's value is kept in the struct. */
typedef enum config_kind {
    CONFIG_BOOL,  /* bool: True, False */
    CONFIG_INT,   /* int64_t */
    CONFIG_REAL,  /* double */
    CONFIG_TEXT,  /* char[CONFIG_TEXT_BYTES]; "" is none */
    CONFIG_REALS, /* config_reals: [30, 60] */
} config_kind;

typedef struct config_key {
    const char *name; /* "TRAIN.BATCH_SIZE" */
    config_kind kind;
    size_t offset;        /* of the value in the struct */
    const char *standard; /* the default, as a command line would give it */
    double low, high;     /* of numbers */
    const char *choices;  /* "cos|steps", or NULL; of texts */
    bool optional;        /* may be None: CONFIG_NONE, "" */
    const char *help;     /* one sentence */
} config_key;

extern const config_key config_keys[]; /* those of a node stand together */
extern const int config_key_count;

/* Sets all values to the table's defaults. */
void config_defaults(settings *values);

/* Reads a YAML file over what is in values. TD_E_UNSUPPORTED: built without libyaml. After an error
 * the values before it are set. */
td_status config_read(settings *values, const char *path);
/* The same from memory; name stands for the path in messages. */
td_status config_parse(settings *values, const char *name, const void *bytes, size_t size);

/* Sets one key from text, as a command line gives it; where ("file.yaml:3") begins messages. */
td_status config_set(settings *values, const char *where, const char *key, const char *value);
/* KEY VALUE KEY VALUE ...; the last of equal keys counts. */
td_status config_override(settings *values, char *const *words, int count);

/* The value as text that config_set reads back to the same value; size: CONFIG_TEXT_BYTES is enough
 * for all kinds. */
void config_get(const config_key *key, const settings *values, char *text, size_t size);

/* All values as YAML that config_read reads back to the same values. Written beside and renamed. */
td_status config_write(const settings *values, const char *path);
/* The same to a stream, with each key's help as a comment. */
void config_describe(const settings *values, FILE *out);

/* What no single key can tell: keys that do not go together. TD_E_ARG says which, and what to do.
 */
td_status settings_check(const settings *s);

/* The learning rate of epoch e (from 0). */
double settings_lr(const settings *s, int64_t epoch);

/* ---- for config_yaml.c ---- */

int config_find(const char *name); /* -1: there is none */
bool config_has_node(const char *node);
/* An error that names the nearest key. */
td_status config_unknown(const char *where, const char *name);
/* Sets one key. quoted: the text stood in quotes, and is no number. */
td_status config_set_scalar(const config_key *key, settings *values, const char *where,
                            const char *text, bool quoted);

#endif
