/* Adds to a checkpoint's metadata what predict must know of a model. */
#include "apps/tools/common/notes.h"
#include "tensor/system/number.h"

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

td_status notes_read_classes(const char *path, const td_safetensors *file, int64_t most,
                             td_class_names *names)
{
    const char *text = td_safetensors_metadata(file, "classes");
    *names = (td_class_names){ .count = 0 };
    TD_TRY(text != NULL ? td_class_names_parse(path, text, strlen(text), false, names) : TD_OK);
    if (names->count > most) {
        int count = names->count;
        td_class_names_free(names);
        return td_fail(TD_E_MISMATCH, "%s names %d classes, and its model has %" PRId64, path,
                       count, most);
    }
    return TD_OK;
}

/* Names of classes, one a line, that can be read again. */
static td_status join_names(const td_dataset *data, char **text)
{
    size_t size;
    FILE *out = open_memstream(text, &size);
    for (int i = 0; out != NULL && i < data->classes; i++) {
        fprintf(out, "%s%s", i > 0 ? "\n" : "", data->class_names[i]);
    }
    TD_CHECK(out != NULL && fclose(out) == 0, TD_E_NOMEM, "no memory for the names of %d classes",
             data->classes);
    td_class_names names;
    TD_TRY(td_class_names_parse("the data's classes", *text, size, false, &names));
    td_class_names_free(&names);
    return TD_OK;
}

td_status notes_add_model(notes *n, const model_input *input, const td_dataset *data)
{
    notes_add(n, "size", "%" PRId64, input->size);
    notes_add(n, "resize", "%" PRId64, input->resize);
    const float *m = input->mean, *s = input->std;
    notes_add(n, "mean", "%g %g %g", (double)m[0], (double)m[1], (double)m[2]);
    notes_add(n, "std", "%g %g %g", (double)s[0], (double)s[1], (double)s[2]);
    if (data->class_names != NULL) {
        TD_TRY(join_names(data, &n->classes));
        notes_point(n, "classes", n->classes);
    }
    return TD_OK;
}

void notes_swap(td_ema *ema)
{
    if (ema != NULL) {
        td_ema_swap(ema);
    }
}

td_status notes_save_model(const notes *n, const char *path, td_module *net, td_ema *ema)
{
    notes_swap(ema);
    td_status status =
        td_checkpoint_save(path, net, .metadata = n->items, .metadata_count = n->count);
    notes_swap(ema);
    return status;
}
