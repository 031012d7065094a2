#include "apps/tools/common/notes.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Names of classes, one a line. */
static char *join_names(const td_dataset *data)
{
    size_t size = 1;
    for (int i = 0; i < data->classes; i++) {
        size += strlen(data->class_names[i]) + 1;
    }
    char *text = calloc(size, 1), *at = text;
    for (int i = 0; text != NULL && i < data->classes; i++) {
        at += sprintf(at, "%s%s", i > 0 ? "\n" : "", data->class_names[i]);
    }
    return text;
}

td_status model_notes_make(model_notes *notes, const model_input *input, const td_dataset *data,
                           int64_t classes)
{
    static const char *const keys[MODEL_NOTES] = { "size", "resize", "mean", "std", "classes" };
    size_t bytes = sizeof notes->text[0];
    *notes = (model_notes){ .count = MODEL_NOTES - 1 };
    snprintf(notes->text[0], bytes, "%" PRId64, input->size);
    snprintf(notes->text[1], bytes, "%" PRId64, input->resize);
    for (int k = 0; k < 2; k++) {
        const float *v = k == 0 ? input->mean : input->std;
        snprintf(notes->text[2 + k], bytes, "%g %g %g", (double)v[0], (double)v[1], (double)v[2]);
    }
    for (int k = 0; k < notes->count; k++) {
        notes->items[k] = (td_metadata){ keys[k], notes->text[k] };
    }
    if (data->class_names != NULL && data->classes == classes) {
        notes->classes = join_names(data);
        if (notes->classes == NULL) {
            return td_fail(TD_E_NOMEM, "no memory for the names of %d classes", data->classes);
        }
        notes->items[notes->count++] = (td_metadata){ keys[MODEL_NOTES - 1], notes->classes };
    }
    return TD_OK;
}

void model_notes_free(model_notes *notes)
{
    free(notes->classes);
    *notes = (model_notes){ 0 };
}

td_status model_notes_save(const char *path, td_module *net, td_ema *ema, const model_notes *notes,
                           const td_metadata *more, int more_count)
{
    td_metadata all[MODEL_NOTES + 8];
    int count = notes->count;
    TD_REQUIRE(more_count <= 8, TD_HERE, "no room for %d notes", more_count);
    memcpy(all, notes->items, (size_t)count * sizeof *all);
    for (int i = 0; i < more_count; i++) {
        all[count++] = more[i];
    }
    if (ema != NULL) {
        td_ema_swap(ema);
    }
    td_status status = td_checkpoint_save(path, net, .metadata = all, .metadata_count = count);
    if (ema != NULL) {
        td_ema_swap(ema);
    }
    return status;
}
