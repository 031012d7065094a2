/* Files of a model alone, and models made from files. */
#include "nn/io/records.h"
#include "nn/models/models.h"

#include <inttypes.h>
#include <string.h>

enum { MOST_CLASSES = 100000, MOST_SIDE = 8192 };

/* ---- opening ---- */

/* A number of a file's metadata; `missing` where there is none. */
static td_status read_number(const td_safetensors *file, const char *path, const char *key,
                             int64_t most, int64_t missing, int64_t *number)
{
    const char *text = td_safetensors_metadata(file, key);
    *number = missing;
    TD_CHECK(text == NULL || td_read_count(text, most, number), TD_E_FORMAT,
             "'%s': %s is '%.20s', not a number from 0 to %" PRId64, path, key, text, most);
    return TD_OK;
}

td_status td_checkpoint_open(const char *path, td_safetensors **file)
{
    int64_t format = 0;
    TD_TRY(td_safetensors_open(path, file));
    td_status status = read_number(*file, path, TD_KEY_FORMAT, INT64_MAX, 0, &format);
    if (status == TD_OK && format > TD_CHECKPOINT_FORMAT) {
        status = td_fail(TD_E_FORMAT,
                         "'%s' was written by a newer tandem (format %" PRId64
                         "); this one reads up to %d",
                         path, format, TD_CHECKPOINT_FORMAT);
    }
    if (status != TD_OK) {
        td_safetensors_close(*file);
        *file = NULL;
    }
    return status;
}

td_status td_checkpoint_metadata(const char *path, const char *key, char *value, size_t size)
{
    td_safetensors *file;
    TD_TRY(td_checkpoint_open(path, &file));
    const char *text = td_safetensors_metadata(file, key);
    td_status status = TD_OK;
    if (text == NULL) {
        status = td_fail(TD_E_NOTFOUND, "'%s' has no metadata value '%s'", path, key);
    } else if (strlen(text) >= size) {
        status = td_fail(TD_E_ARG,
                         "the metadata value '%s' of '%s' has %zu bytes; there is room for %zu",
                         key, path, strlen(text) + 1, size);
    } else {
        memcpy(value, text, strlen(text) + 1);
    }
    td_safetensors_close(file);
    return status;
}

/* ---- a model alone ---- */

td_status td_save_at(const char *path, td_module *net, td_site at)
{
    TD_REQUIRE(path != NULL && net != NULL, at, "td_save: there is no path or no model");
    return td_checkpoint_save_at((td_checkpoint_options){ .path = path, .model = net }, at);
}

td_status td_load_at(const char *path, td_module *net, td_site at)
{
    TD_REQUIRE(path != NULL && net != NULL, at, "td_load: there is no path or no model");
    return td_checkpoint_load_model(&(td_checkpoint_options){ .path = path, .model = net }, true,
                                    at);
}

/* ---- a model from its file ---- */

/* What the shapes tell where the metadata do not: the last matrix that is no table of positions is
 * the classifier's weight, and BoTNet has a vector for each distance in a map of 1/16 of its image,
 * or 1/4 behind CIFAR's stem. */
static void look_at_shapes(const td_safetensors *file, td_model_record *r)
{
    int64_t stride = r->stem == TD_STEM_IMAGENET ? 16 : 4;
    for (int i = 0; i < td_safetensors_count(file); i++) {
        const td_safetensors_entry *e = td_safetensors_get(file, i);
        if (strncmp(e->name, TD_KEY_OPTIMIZER, strlen(TD_KEY_OPTIMIZER)) == 0 ||
            strncmp(e->name, TD_KEY_EXTRA, strlen(TD_KEY_EXTRA)) == 0 || e->shape.ndim != 2) {
            continue;
        }
        if (strstr(e->name, "pos_emb.rel_height") != NULL) {
            r->image_size = (e->shape.dim[0] + 1) / 2 * stride;
        } else if (strstr(e->name, "pos_emb") == NULL) {
            r->classes = e->shape.dim[0];
        }
    }
}

static td_status read_record(const td_safetensors *file, const td_load_model_options *o,
                             td_model_record *r)
{
    const char *arch = td_safetensors_metadata(file, TD_KEY_ARCH);
    const char *stem = td_safetensors_metadata(file, TD_KEY_STEM);
    *r = (td_model_record){ .arch = o->arch != NULL ? o->arch : arch };
    TD_CHECK(r->arch != NULL, TD_E_ARG,
             "'%s' does not say which model it is: give its arch (\"resnet50\"); a model of your "
             "own: make it, then td_load the file into it",
             o->path);
    r->stem = stem != NULL && strcmp(stem, "cifar") == 0 ? TD_STEM_CIFAR : TD_STEM_IMAGENET;
    look_at_shapes(file, r);
    TD_TRY(read_number(file, o->path, TD_KEY_CLASSES, MOST_CLASSES, r->classes, &r->classes));
    TD_TRY(read_number(file, o->path, TD_KEY_IMAGE_SIZE, MOST_SIDE, r->image_size, &r->image_size));
    TD_CHECK(r->classes >= 1 && r->classes <= MOST_CLASSES, TD_E_FORMAT,
             "'%s': no weights of a classifier in it: is this a model's file?", o->path);
    TD_CHECK(r->image_size <= MOST_SIDE, TD_E_FORMAT, /* by the shapes */
             "'%s': its positions are for images of side %" PRId64 "; at most %d is possible",
             o->path, r->image_size, MOST_SIDE);
    return TD_OK;
}

td_module *td_load_model_at(td_load_model_options options, td_site at)
{
    TD_REQUIRE(options.path != NULL, at, "td_load_model: there is no path");
    td_safetensors *file;
    if (td_checkpoint_open(options.path, &file) != TD_OK) {
        return NULL;
    }
    td_model_record r;
    td_module *m = NULL;
    if (read_record(file, &options, &r) == TD_OK) {
        m = td_model(r.arch, .classes = r.classes, .stem = r.stem, .image_size = r.image_size,
                     .blank = true);
    }
    td_safetensors_close(file);
    if (m != NULL && td_load_at(options.path, m, at) != TD_OK) {
        td_module_free(m);
        return NULL;
    }
    if (m != NULL) {
        td_eval(m);
    }
    return m;
}
