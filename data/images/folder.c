/* A folder of pictures as a dataset. Decoding and resizing happen in fetch, which the loader's
 * workers call. */
#include "data/augment.h"
#include "data/dataset.h"
#include "data/images/folder_list.h"
#include "data/images/transform.h"
#include "data/inspect.h"
#include "tensor/system/files.h"
#include "tensor/system/list.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { USUAL_MOST_PIXELS = 100000000 };

typedef struct image_folder {
    td_dataset base;
    char *root;
    td_folder_list list;
    td_image_folder_options options;
    td_byte_values values;
    _Atomic bool *intact; /* [length] whether an image was decoded whole, and is good */
    pthread_mutex_t lock; /* of what follows, and nothing else changes */
    char **bad;           /* [length] what is wrong with an image, or NULL; NULL: with none */
    int64_t bad_count;
} image_folder;

/* ---- one file ---- */

/* An uncompressed picture with transparency takes 4 bytes a pixel. */
static int64_t most_bytes(int64_t most_pixels)
{
    enum { BYTES_OF_PIXEL = 4, HEADERS = 1 << 20 };
    return most_pixels < INT64_MAX / BYTES_OF_PIXEL - HEADERS
               ? most_pixels * BYTES_OF_PIXEL + HEADERS
               : INT64_MAX;
}

static td_status load(td_encoded picture, const td_image_folder_transform *t, uint64_t epoch,
                      uint64_t sample, uint8_t *rgb)
{
    char *bytes;
    TD_TRY(td_read_file(picture.name, "an image", most_bytes(picture.most_pixels), &bytes,
                        &picture.size));
    picture.bytes = (const uint8_t *)bytes;
    td_status status = td_picture_load(t, &picture, epoch, sample, rgb);
    free(bytes);
    return status;
}

/* Bytes of a picture into its place in a batch; out is its element [0,0,0]. */
static void write_floats(const td_byte_values *values, const uint8_t *rgb, int size, float *out,
                         const int64_t *stride)
{
    for (int h = 0; h < size; h++) {
        float *row = out + h * stride[2];
        for (int w = 0; w < size; w++, rgb += 3) {
            for (int c = 0; c < 3; c++) {
                row[w * stride[3] + c * stride[1]] = values->of[c][rgb[c]];
            }
        }
    }
}

static void set_values(td_byte_values *values, const td_image_folder_transform *t)
{
    td_image_transform norm = { .crop_padding = 0 };
    memcpy(norm.mean, t->mean, sizeof norm.mean);
    memcpy(norm.std, t->std, sizeof norm.std);
    td_byte_values_set(values, &norm);
}

/* ---- the dataset ---- */

/* Once for each image, however often it is met. */
static td_status note_bad(image_folder *f, int64_t sample)
{
    pthread_mutex_lock(&f->lock);
    if (f->bad == NULL) {
        f->bad = calloc((size_t)f->base.length, sizeof *f->bad);
    }
    if (f->bad != NULL && f->bad[sample] == NULL) {
        f->bad[sample] = strdup(td_last_error());
        f->bad_count += f->bad[sample] != NULL;
    }
    bool noted = f->bad != NULL && f->bad[sample] != NULL;
    pthread_mutex_unlock(&f->lock);
    return noted ? TD_OK : td_fail(TD_E_NOMEM, "no memory for the list of bad images");
}

/* Sample `sample`, or, where that is allowed, the next one that can be read; says which. */
static td_status load_sample(image_folder *f, int64_t *sample, uint64_t epoch, uint8_t *rgb)
{
    for (int64_t tries = 0; tries < f->base.length; tries++) {
        char path[8192];
        snprintf(path, sizeof path, "%s/%s", f->root, f->list.paths[*sample]);
        td_encoded picture = { .name = path,
                               .most_pixels = f->options.most_pixels,
                               .intact = atomic_load(&f->intact[*sample]) };
        td_status status = load(picture, &f->options.transform, epoch, (uint64_t)*sample, rgb);
        if (status == TD_OK) {
            atomic_store(&f->intact[*sample], true);
        }
        if (status == TD_OK || status == TD_E_NOMEM || status == TD_E_UNSUPPORTED) {
            return status;
        }
        TD_CHECK(f->options.skip_bad, status, "%s (skip_bad passes over such images)",
                 td_last_error());
        TD_TRY(note_bad(f, *sample));
        *sample = (*sample + 1) % f->base.length;
    }
    return td_fail(TD_E_FORMAT, "%s: not one image can be read", f->root);
}

static td_status fetch(const td_dataset *dataset, const int64_t *index, int64_t n, uint64_t epoch,
                       td_tensor *x, td_tensor *y)
{
    image_folder *f = (image_folder *)(uintptr_t)dataset;
    int size = f->options.transform.size;
    uint8_t *rgb = malloc((size_t)size * (size_t)size * 3);
    TD_CHECK(rgb != NULL, TD_E_NOMEM, "no memory for an image of %d pixels", size);
    float *out = td_data_rw(x);
    int64_t *label = td_data_rw(y);
    td_status status = TD_OK;
    for (int64_t i = 0; i < n && status == TD_OK; i++) {
        int64_t sample = index[i];
        status = load_sample(f, &sample, epoch, rgb);
        if (status == TD_OK) {
            write_floats(&f->values, rgb, size, out + i * x->stride[0], x->stride);
            label[i * y->stride[0]] = f->list.labels[sample];
        }
    }
    free(rgb);
    return status;
}

static void free_folder(td_dataset *dataset)
{
    image_folder *f = (image_folder *)dataset;
    td_free_texts(f->bad, f->base.length);
    free((void *)f->intact);
    td_folder_list_free(&f->list);
    pthread_mutex_destroy(&f->lock);
    free(f->root);
    free(f);
}

static const td_dataset_vtable folder_vtable = { "folder of images", fetch, free_folder };

static td_status list_part(image_folder *f)
{
    double fraction = f->options.val_fraction;
    TD_CHECK(fraction >= 0.0 && fraction < 1.0 && (!f->options.val || fraction > 0.0), TD_E_ARG,
             "%s: the validation part is to be %g of the images; %s", f->root, fraction,
             f->options.val ? "give more than 0 and less than 1"
                            : "give less than 1, or 0 for no split");
    TD_TRY(td_folder_list_read(f->root, f->options.class_names, f->options.classes, &f->list));
    if (fraction > 0.0) {
        TD_TRY(td_folder_list_split(&f->list, f->root, fraction, f->options.val,
                                    f->options.split_seed));
    }
    f->intact = calloc((size_t)f->list.count, sizeof *f->intact);
    return f->intact != NULL ? TD_OK : td_fail(TD_E_NOMEM, "%s: no memory for its list", f->root);
}

td_dataset *td_image_folder_open_at(td_image_folder_options options, td_site at)
{
    TD_REQUIRE(options.folder != NULL, at, "td_image_folder_open: the folder is NULL");
    image_folder *f = calloc(1, sizeof *f);
    char *root = realpath(options.folder, NULL);
    if (f == NULL || root == NULL) {
        td_fail(TD_E_NOTFOUND, "cannot open the folder '%s': %s", options.folder, strerror(errno));
        free(f);
        free(root);
        return NULL;
    }
    pthread_mutex_init(&f->lock, NULL);
    f->base.vtable = &folder_vtable;
    f->root = root;
    f->options = options;
    if (f->options.most_pixels == 0) {
        f->options.most_pixels = USUAL_MOST_PIXELS;
    }
    td_image_folder_transform *t = &f->options.transform;
    if (td_image_folder_transform_check(t) != TD_OK || list_part(f) != TD_OK) {
        free_folder(&f->base);
        return NULL;
    }
    set_values(&f->values, t);
    f->base.length = f->list.count;
    f->base.sample_shape = TD_SHAPE(3, t->size, t->size);
    f->base.dtype = TD_F32;
    f->base.layout = TD_IMAGE;
    f->base.classes = f->list.classes.count;
    f->base.class_names = (const char *const *)f->list.classes.name;
    return &f->base;
}

static image_folder *folder_of(const td_dataset *dataset, int64_t sample, const char *what)
{
    TD_REQUIRE(dataset->vtable == &folder_vtable, TD_HERE, "%s: the dataset is a %s", what,
               dataset->vtable->kind);
    TD_REQUIRE(sample >= 0 && sample < dataset->length, TD_HERE,
               "%s: there is no sample %lld of %lld", what, (long long)sample,
               (long long)dataset->length);
    return (image_folder *)(uintptr_t)dataset;
}

const char *td_image_folder_path(const td_dataset *dataset, int64_t sample)
{
    return folder_of(dataset, sample, "td_image_folder_path")->list.paths[sample];
}

int64_t td_image_folder_bad(const td_dataset *dataset)
{
    image_folder *f = folder_of(dataset, 0, "td_image_folder_bad");
    pthread_mutex_lock(&f->lock);
    int64_t count = f->bad_count;
    pthread_mutex_unlock(&f->lock);
    return count;
}

const char *td_image_folder_bad_at(const td_dataset *dataset, int64_t sample)
{
    image_folder *f = folder_of(dataset, sample, "td_image_folder_bad_at");
    pthread_mutex_lock(&f->lock);
    const char *message = f->bad != NULL ? f->bad[sample] : NULL;
    pthread_mutex_unlock(&f->lock);
    return message;
}

td_status td_image_read(const char *path, const td_image_folder_transform *transform, td_tensor *x)
{
    td_image_folder_transform t = *transform;
    TD_TRY(td_image_folder_transform_check(&t));
    TD_REQUIRE(x->ndim == 4 && x->shape[0] == 1 && x->shape[1] == 3 && x->shape[2] == t.size &&
                   x->shape[3] == t.size && x->dtype == TD_F32,
               TD_HERE, "td_image_read: %s must be f32[1,3,%d,%d]", td_describe(x), t.size, t.size);
    uint8_t *rgb = malloc((size_t)t.size * (size_t)t.size * 3);
    TD_CHECK(rgb != NULL, TD_E_NOMEM, "%s: no memory for an image of %d pixels", path, t.size);
    td_encoded picture = { .name = path, .most_pixels = USUAL_MOST_PIXELS };
    td_status status = load(picture, &t, 0, 0, rgb);
    if (status == TD_OK) {
        td_byte_values values;
        set_values(&values, &t);
        write_floats(&values, rgb, t.size, td_data_rw(x), x->stride);
    }
    free(rgb);
    return status;
}
