/* CIFAR-10 and CIFAR-100 in the official binary layout. */
#include "data/cifar_files.h"
#include "data/images_memory.h"
#include "data/parse.h"
#include "tensor/system/files.h"

#include <stdlib.h>
#include <string.h>

/* cifar_resnet18 is installed with the library. */
#define DOWNLOAD "download (cifar_resnet18 --download, or td_cifar_download)"

enum { COARSE_CLASSES = 20, MOST_BYTES = 1 << 28 /* the largest file has 154 million */ };

/* ---- the format, from memory ---- */

static int label_bytes(td_cifar_kind kind)
{
    return kind == TD_CIFAR100 ? 2 : 1;
}

int64_t td_cifar_record_bytes(td_cifar_kind kind)
{
    return label_bytes(kind) + TD_PICTURE_BYTES;
}

td_status td_cifar_check_size(int64_t bytes, td_cifar_kind kind, int64_t most, const char *name,
                              int64_t *records)
{
    int64_t record = td_cifar_record_bytes(kind);
    *records = bytes / record;
    const char *what = bytes == 0              ? "is empty"
                       : bytes > most * record ? "is too long"
                       : bytes % record != 0   ? "is cut off, or has bytes too many"
                                               : NULL;
    if (what == NULL) {
        return TD_OK;
    }
    return td_fail(
        TD_E_FORMAT,
        "%s %s: %lld bytes, expected %lld (%lld records of %lld bytes). Delete it and " DOWNLOAD,
        name, what, (long long)bytes, (long long)(most * record), (long long)most,
        (long long)record);
}

td_status td_cifar_parse(const uint8_t *bytes, int64_t records, td_cifar_kind kind,
                         const char *name, uint8_t *pixels, uint8_t *labels)
{
    int labels_first = label_bytes(kind);
    for (int64_t r = 0; r < records; r++) {
        const uint8_t *record = bytes + r * td_cifar_record_bytes(kind);
        uint8_t label = record[labels_first - 1]; /* of CIFAR-100's two, the fine one */
        bool bad_coarse = kind == TD_CIFAR100 && record[0] >= COARSE_CLASSES;
        TD_CHECK(!bad_coarse && label < (int)kind, TD_E_FORMAT,
                 "%s: record %lld has %slabel %d, the largest is %d: the file is damaged. "
                 "Delete it and " DOWNLOAD,
                 name, (long long)r, bad_coarse ? "coarse " : "", bad_coarse ? record[0] : label,
                 bad_coarse ? COARSE_CLASSES - 1 : (int)kind - 1);
        labels[r] = label;
        memcpy(pixels + r * TD_PICTURE_BYTES, record + labels_first, TD_PICTURE_BYTES);
    }
    return TD_OK;
}

/* ---- files ---- */

/* Puts a file's records behind the dataset's, which has room for `most` more. */
static td_status add_file(td_images_memory *images, const char *where, const char *name,
                          td_cifar_kind kind, int64_t most)
{
    char path[TD_CIFAR_PATH], *bytes;
    size_t size;
    int64_t records, done = images->base.length;
    TD_TRY(td_join_path(path, where, name));
    td_status status = td_read_file(path, "a file of CIFAR", MOST_BYTES, &bytes, &size);
    /* A file is missing in a set that is there otherwise. */
    TD_CHECK(status != TD_E_NOTFOUND, status, "%s. Delete the set and " DOWNLOAD, td_last_error());
    TD_TRY(status);
    status = td_cifar_check_size((int64_t)size, kind, most, path, &records);
    if (status == TD_OK) {
        status = td_cifar_parse((const uint8_t *)bytes, records, kind, path,
                                images->pixels + done * TD_PICTURE_BYTES, images->labels + done);
        images->base.length += records;
    }
    free(bytes);
    return status;
}

td_status td_cifar_open(const char *folder, td_cifar_kind kind, bool train, td_dataset **dataset)
{
    *dataset = NULL;
    const td_cifar_files *files = td_cifar_files_of(kind);
    if (files == NULL) {
        return TD_E_ARG;
    }
    const char *const *names = train ? files->train : files->test;
    int64_t count = 0, most = train ? files->train_records : files->test_records;
    char where[TD_CIFAR_PATH];
    TD_TRY(td_cifar_locate(folder, files, names, where));
    while (names[count] != NULL) {
        count++;
    }
    /* Room for whole files; what shorter ones leave is never touched. */
    td_images_memory *images =
        td_images_memory_new(kind == TD_CIFAR10 ? "cifar10" : "cifar100", count * most);
    if (images == NULL) {
        return TD_E_NOMEM;
    }
    images->base.length = 0;
    images->base.classes = (int)kind;
    images->base.class_names = files->classes;
    td_status status = TD_OK;
    for (; status == TD_OK && *names != NULL; names++) {
        status = add_file(images, where, *names, kind, most);
    }
    if (status == TD_OK) {
        *dataset = &images->base;
    } else {
        td_dataset_free(&images->base);
    }
    return status;
}

td_status td_cifar_or_synthetic_at(td_cifar_or_synthetic_options options, td_site at)
{
    TD_REQUIRE(options.train != NULL && options.test != NULL && options.limit >= 0, at,
               "td_cifar_or_synthetic: train or test is NULL, or limit is negative");
    const char *named = td_cifar_named(options.folder);
    const char *place = named != NULL ? named : "data/cifar10";
    int64_t most = options.limit > 0 ? options.limit : INT64_MAX;
    uint64_t seed = 2 * options.seed; /* and the next: no test image is a training image */
    *options.train = *options.test = NULL;
    td_status status = td_cifar_open(place, TD_CIFAR10, true, options.train);
    bool draw = status == TD_E_NOTFOUND && named == NULL;
    TD_TRY(draw ? td_synthetic_images(most < 50000 ? most : 50000, seed, options.train) : status);
    status = draw ? td_synthetic_images(most < 10000 ? most : 10000, seed + 1, options.test)
                  : td_cifar_open(place, TD_CIFAR10, false, options.test);
    if (status != TD_OK) {
        td_dataset_free(*options.train);
        *options.train = NULL;
    }
    return status;
}
