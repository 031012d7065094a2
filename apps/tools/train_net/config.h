/* Configuration: a table of keys that fills a plain struct, from defaults, a YAML file, and pairs
 * KEY VALUE of a command line, in this order.
 *
 * A key stands alone ("OUT_DIR") or in a node ("TRAIN.BATCH_SIZE"); in YAML nodes are mappings:
 *
 *     OUT_DIR: ./exp
 *     TRAIN:
 *       BATCH_SIZE: 32
 *
 * Whatever does not fit (an unknown key, a wrong type, a value out of range, a key given twice in a
 * file) is TD_E_FORMAT with a message that says where, and which key or value is meant. */
#ifndef APPS_TOOLS_CONFIG_H
#define APPS_TOOLS_CONFIG_H

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

typedef struct config_schema {
    const config_key *keys; /* those of a node stand together */
    int count;
} config_schema;

/* Sets all values to the table's defaults. */
void config_defaults(const config_schema *schema, void *values);

/* Reads a YAML file over what is in values. TD_E_UNSUPPORTED: built without libyaml. After an error
 * the values before it are set. */
td_status config_read(const config_schema *schema, void *values, const char *path);
/* The same from memory; name stands for the path in messages. */
td_status config_parse(const config_schema *schema, void *values, const char *name,
                       const void *bytes, size_t size);

/* Sets one key from text, as a command line gives it; where ("file.yaml:3") begins messages. */
td_status config_set(const config_schema *schema, void *values, const char *where, const char *key,
                     const char *value);
/* KEY VALUE KEY VALUE ...; the last of equal keys counts. */
td_status config_override(const config_schema *schema, void *values, char *const *words, int count);

/* The value as text that config_set reads back to the same value; size: CONFIG_TEXT_BYTES is enough
 * for all kinds. */
void config_get(const config_key *key, const void *values, char *text, size_t size);

/* All values as YAML that config_read reads back to the same values. Written beside and renamed. */
td_status config_write(const config_schema *schema, const void *values, const char *path);
/* The same to a stream, with each key's help as a comment. */
void config_describe(const config_schema *schema, const void *values, FILE *out);

/* ---- for config_yaml.c ---- */

int config_find(const config_schema *schema, const char *name); /* -1: there is none */
bool config_has_node(const config_schema *schema, const char *node);
/* An error that names the nearest key. */
td_status config_unknown(const config_schema *schema, const char *where, const char *name);
/* Sets one key. quoted: the text stood in quotes, and is no number. */
td_status config_set_scalar(const config_key *key, void *values, const char *where,
                            const char *text, bool quoted);
#endif
