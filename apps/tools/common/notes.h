/* What a checkpoint says about a model's input and output, so that predict needs no flags. */
#ifndef APPS_TOOLS_NOTES_H
#define APPS_TOOLS_NOTES_H

#include "nn/extra/ema.h"
#include "tandem.h"

/* Images are resized so that the shorter side has `resize` pixels, cut to size x size, and
 * normalised: (x/255 - mean) / std. */
typedef struct model_input {
    int64_t size, resize;
    const float *mean, *std; /* [3] */
} model_input;

enum { MODEL_NOTES = 5 };

/* Metadata "size", "resize", "mean", "std" and, if the data have names for all of the model's
 * classes, "classes", one name a line. */
typedef struct model_notes {
    td_metadata items[MODEL_NOTES];
    int count;
    char text[MODEL_NOTES - 1][64];
    char *classes; /* NULL: none */
} model_notes;

td_status model_notes_make(model_notes *notes, const model_input *input, const td_dataset *data,
                           int64_t classes);
void model_notes_free(model_notes *notes);

/* Saves the model alone (nn/io/checkpoint.h: td_save), with these notes and `more` (NULL: none).
 * ema (NULL: none): the file has the averages as its weights. */
td_status model_notes_save(const char *path, td_module *net, td_ema *ema, const model_notes *notes,
                           const td_metadata *more, int more_count);

#endif
