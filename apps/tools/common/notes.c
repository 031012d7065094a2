/* Adds to a checkpoint's metadata what predict must know of a model. */
#include "apps/tools/common/notes.h"
#include "tensor/number.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void notes_point(notes *n, const char *key, const char *text)
{
    TD_REQUIRE(n->count < NOTES_MOST, TD_HERE, "no room for a note '%s'", key);
    int i = n->count++;
    snprintf(n->keys[i], sizeof n->keys[i], "%s", key);
    n->items[i] = (td_metadata){ n->keys[i], text };
}

void notes_add(notes *n, const char *key, const char *format, ...)
{
    va_list values;
    notes_point(n, key, n->texts[n->count]);
    va_start(values, format);
    td_vsnprintf(n->texts[n->count - 1], sizeof n->texts[0], format, values);
    va_end(values);
}

void notes_append(notes *n, const notes *more)
{
    for (int i = 0; i < more->count; i++) {
        notes_point(n, more->items[i].key, more->items[i].value);
    }
}

void notes_free(notes *n)
{
    free(n->classes);
    n->classes = NULL;
    n->count = 0;
}

bool notes_has(const char *path, const char *key)
{
    char text[256];
    return td_checkpoint_metadata(path, key, text, sizeof text) != TD_E_NOTFOUND;
}

/* Names of classes, one a line. */
static char *join_names(const td_dataset *data)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    for (int i = 0; out != NULL && i < data->classes; i++) {
        fprintf(out, "%s%s", i > 0 ? "\n" : "", data->class_names[i]);
    }
    bool written = out != NULL && fclose(out) == 0;
    return written ? text : NULL;
}

td_status notes_add_model(notes *n, const model_input *input, const td_dataset *data,
                          int64_t classes)
{
    notes_add(n, "size", "%" PRId64, input->size);
    notes_add(n, "resize", "%" PRId64, input->resize);
    const float *m = input->mean, *s = input->std;
    notes_add(n, "mean", "%g %g %g", (double)m[0], (double)m[1], (double)m[2]);
    notes_add(n, "std", "%g %g %g", (double)s[0], (double)s[1], (double)s[2]);
    if (data->class_names != NULL && data->classes == classes) {
        n->classes = join_names(data);
        if (n->classes == NULL) {
            return td_fail(TD_E_NOMEM, "no memory for the names of %d classes", data->classes);
        }
        notes_point(n, "classes", n->classes);
    }
    return TD_OK;
}

td_status notes_save_model(const notes *n, const char *path, td_module *net, td_ema *ema)
{
    if (ema != NULL) {
        td_ema_swap(ema);
    }
    td_status status =
        td_checkpoint_save(path, net, .metadata = n->items, .metadata_count = n->count);
    if (ema != NULL) {
        td_ema_swap(ema);
    }
    return status;
}
