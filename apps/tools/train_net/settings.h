/* The settings of train_net and test_net: the keys of distribuuuu with its defaults, and some of
 * our own. keys.def says what each means and may be, and where its value goes: into the training
 * loop's options, or into a settings. Values come from defaults, a YAML file, and pairs KEY VALUE
 * of a command line, in this order. Keys stand among a train_args' options; their names are
 * capitals.
 *
 * A key stands alone ("OUT_DIR") or in a node ("TRAIN.BATCH_SIZE"); in YAML nodes are mappings:
 *
 *     OUT_DIR: ./exp
 *     TRAIN:
 *       BATCH_SIZE: 32
 *
 * Whatever does not fit (an unknown key, a wrong type, a value out of range, a key given twice in a
 * file) is TD_E_FORMAT with a message that says where, and which key or value is meant. */
#pragma once

#include "apps/tools/common/train.h"

enum {
    CONFIG_MOST_BYTES = 65536, /* of a file */
    CONFIG_NONE = -1,          /* an optional whole number that is not given */
};

/* What is not the training loop's. Texts are never NULL, but for an optional one that is None. */
typedef struct settings {
    struct {
        const char *arch, *weights;
        int64_t num_classes, dummy_samples;
        bool pretrained, syncbn, dummy_input;
    } model;
    struct {
        const char *dataset, *split;
        int64_t im_size, workers, print_freq, topk, keep_checkpoints;
        double min_area, color_jitter;
        bool auto_resume, load_opt, pin_memory, flip;
    } train;
    struct {
        const char *dataset, *split;
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
        const char *lr_policy;
        int64_t warmup_epochs;
        double min_lr, lr_mult, momentum, dampening, warmup_factor, weight_decay;
        cli_reals steps;
        bool nesterov, after_warmup;
    } optim;
    const char *out_dir, *cfg_dest;
} settings;

/* Adds the keys to r's options, with their defaults. */
void settings_keys(settings *s, train_run *r);

/* What no single key can tell: keys that do not go together. TD_E_ARG says which, and what to do.
 */
td_status settings_check(const settings *s, const train_args *args);

/* The learning rate of epoch e (from 0). */
double settings_lr(const settings *s, const train_args *args, int64_t epoch);

/* ---- config.c, config_yaml.c: keys by their names ---- */

/* Reads a YAML file over what is in the keys. TD_E_UNSUPPORTED: built without libyaml. After an
 * error the values before it are set. */
td_status config_read(train_args *keys, const char *path);
/* The same from memory; name stands for the path in messages. */
td_status config_parse(train_args *keys, const char *name, const void *bytes, size_t size);

/* Sets one key from text, as a command line gives it; where ("file.yaml:3") begins messages. */
td_status config_set(train_args *keys, const char *where, const char *key, const char *value);
/* KEY VALUE KEY VALUE ...; the last of equal keys counts. */
td_status config_override(train_args *keys, char *const *words, int count);

/* The value as text that config_set reads back to the same value; size: CLI_TEXT_BYTES is enough
 * for all kinds. */
void config_get(const cli_option *key, char *text, size_t size);

/* All values as YAML that config_read reads back to the same values. Written under another name,
 * then renamed. */
td_status config_write(const train_args *keys, const char *path);
/* The same to a stream, with each key's help as a comment. */
void config_describe(const train_args *keys, FILE *out);

/* ---- for config_yaml.c ---- */

int config_find(const train_args *keys, const char *name); /* its place among options; -1: none */
bool config_has_node(const train_args *keys, const char *node);
/* An error that names the nearest key. */
td_status config_unknown(const train_args *keys, const char *where, const char *name);
/* Sets key i. quoted: the text stood in quotes, and is no number. */
td_status config_set_scalar(train_args *keys, int i, const char *where, const char *text,
                            bool quoted);
