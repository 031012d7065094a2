/* The notes of a checkpoint: its metadata, which also say what a model's input and output are, so
 * that predict needs no flags. */
#pragma once

#include "apps/tools/common/cli.h"
#include "data/class_names.h"
#include "nn/extra/ema.h"
#include "nn/io/safetensors.h"
#include "tandem.h"

/* Keys and texts. items point into the struct, so it is not copied. Zero: empty. */
enum { NOTES_MOST = CLI_MAX_OPTIONS + 24 };
typedef struct notes {
    td_metadata items[NOTES_MOST];
    int count;
    char keys[NOTES_MOST][64], texts[NOTES_MOST][CLI_TEXT_BYTES];
    char *classes; /* names of classes, one a line; NULL: none */
} notes;

void notes_add(notes *n, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* A text of any length that lives as long as the notes, as it is. */
void notes_point(notes *n, const char *key, const char *text);
/* All of another one's, which lives as long. */
void notes_append(notes *n, const notes *more);
void notes_free(notes *n);

/* Whether a file has such a note. */
bool notes_has(const char *path, const char *key);

/* Images are resized so that the shorter side has `resize` pixels, cut to size x size, and
 * normalised: (x/255 - mean) / std. */
typedef struct model_input {
    int64_t size, resize;
    const float *mean, *std; /* [3] */
} model_input;

/* Adds "size", "resize", "mean", "std" and, if the data have names for their classes, "classes",
 * one name a line; the model may have more classes. TD_E_FORMAT: a name that could not be read
 * again. */
td_status notes_add_model(notes *n, const model_input *input, const td_dataset *data);

/* The names that a file has; none: count 0. TD_E_MISMATCH: more than `most`; TD_E_FORMAT. */
td_status notes_read_classes(const char *path, const td_safetensors *file, int64_t most,
                             td_class_names *names);

/* Saves the model alone (nn/io/checkpoint.h: td_save), with these notes. ema (NULL: none): the file
 * has the averages as its weights. */
void notes_swap(td_ema *ema); /* td_ema_swap, if there are averages */
td_status notes_save_model(const notes *n, const char *path, td_module *net, td_ema *ema);
