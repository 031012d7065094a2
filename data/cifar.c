/* CIFAR-10 and CIFAR-100 in the official binary layout. */
#include "data/cifar_files.h"
#include "data/images_memory.h"
#include "data/parse.h"
#include "tensor/files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* cifar_resnet18 is installed with the library. */
#define DOWNLOAD "download (cifar_resnet18 --download, or td_cifar_download)"

enum { COARSE_CLASSES = 20, CHUNK = 64 /* records read at a time */ };

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
                         const char *name, int64_t first, uint8_t *pixels, uint8_t *labels)
{
    int labels_first = label_bytes(kind);
    for (int64_t r = 0; r < records; r++) {
        const uint8_t *record = bytes + r * td_cifar_record_bytes(kind);
        uint8_t label = record[labels_first - 1]; /* of CIFAR-100's two, the fine one */
        bool bad_coarse = kind == TD_CIFAR100 && record[0] >= COARSE_CLASSES;
        if (bad_coarse || label >= (int)kind) {
            return td_fail(
                TD_E_FORMAT,
                "%s: record %lld has %slabel %d, the largest is %d: the file is damaged. "
                "Delete it and " DOWNLOAD,
                name, (long long)(first + r), bad_coarse ? "coarse " : "",
                bad_coarse ? record[0] : label, bad_coarse ? COARSE_CLASSES - 1 : (int)kind - 1);
        }
        labels[r] = label;
        memcpy(pixels + r * TD_PICTURE_BYTES, record + labels_first, TD_PICTURE_BYTES);
    }
    return TD_OK;
}

/* ---- files ---- */

typedef struct cifar_file {
    FILE *stream;
    char path[TD_CIFAR_PATH];
    int64_t records;
} cifar_file;

static td_status open_file(cifar_file *file, const char *where, const char *name,
                           td_cifar_kind kind, int64_t most)
{
    TD_TRY(td_join_path(file->path, where, name));
    td_status status = td_open_to_read(file->path, &file->stream);
    if (status == TD_E_NOTFOUND) { /* of a set that is there otherwise */
        return td_fail(status, "%s. Delete the set and " DOWNLOAD, td_last_error());
    }
    TD_TRY(status);
    struct stat info;
    if (fstat(fileno(file->stream), &info) != 0) {
        return td_fail(TD_E_IO, "%s: %s", file->path, strerror(errno));
    }
    return td_cifar_check_size(info.st_size, kind, most, file->path, &file->records);
}

static td_status read_file(cifar_file *file, td_cifar_kind kind, uint8_t *pixels, uint8_t *labels)
{
    uint8_t chunk[CHUNK * (TD_PICTURE_BYTES + 2)];
    size_t record = (size_t)td_cifar_record_bytes(kind);
    for (int64_t done = 0; done < file->records;) {
        int64_t left = file->records - done;
        size_t want = left < CHUNK ? (size_t)left : CHUNK;
        if (fread(chunk, record, want, file->stream) != want) {
            return td_fail(TD_E_IO, "%s: reading failed at record %lld of %lld: %s", file->path,
                           (long long)done, (long long)file->records,
                           ferror(file->stream) ? strerror(errno) : "the file became shorter");
        }
        TD_TRY(td_cifar_parse(chunk, (int64_t)want, kind, file->path, done,
                              pixels + done * TD_PICTURE_BYTES, labels + done));
        done += (int64_t)want;
    }
    return TD_OK;
}

static const td_dataset_vtable cifar10_vtable = { "cifar10", td_images_memory_fetch,
                                                  td_images_memory_free };
static const td_dataset_vtable cifar100_vtable = { "cifar100", td_images_memory_fetch,
                                                   td_images_memory_free };

static td_status load_files(cifar_file *file, int count, td_cifar_kind kind, td_dataset **dataset)
{
    int64_t records = 0;
    for (int i = 0; i < count; i++) {
        records += file[i].records;
    }
    td_images_memory *images =
        td_images_memory_new(kind == TD_CIFAR10 ? &cifar10_vtable : &cifar100_vtable, records);
    if (images == NULL) {
        return TD_E_NOMEM;
    }
    images->base.classes = (int)kind;
    images->base.class_names = td_cifar_files_of(kind)->classes;
    int64_t done = 0;
    for (int i = 0; i < count; i++) {
        td_status status = read_file(&file[i], kind, images->pixels + done * TD_PICTURE_BYTES,
                                     images->labels + done);
        if (status != TD_OK) {
            td_dataset_free(&images->base);
            return status;
        }
        done += file[i].records;
    }
    *dataset = &images->base;
    return TD_OK;
}

td_status td_cifar_open(const char *folder, td_cifar_kind kind, bool train, td_dataset **dataset)
{
    *dataset = NULL;
    const td_cifar_files *files = td_cifar_files_of(kind);
    if (files == NULL) {
        return TD_E_ARG;
    }
    const char *const *names = train ? files->train : files->test;
    char where[TD_CIFAR_PATH];
    TD_TRY(td_cifar_locate(folder, files, names, where));

    cifar_file file[5] = { 0 };
    int count = 0;
    td_status status = TD_OK;
    for (; status == TD_OK && names[count] != NULL; count++) {
        status = open_file(&file[count], where, names[count], kind,
                           train ? files->train_records : files->test_records);
    }
    if (status == TD_OK) {
        status = load_files(file, count, kind, dataset);
    }
    for (int i = 0; i < count; i++) {
        if (file[i].stream != NULL) {
            fclose(file[i].stream);
        }
    }
    return status;
}

td_status td_cifar_or_synthetic_at(td_cifar_or_synthetic_options options, td_site at)
{
    TD_REQUIRE(options.train != NULL && options.test != NULL && options.limit >= 0, at,
               "td_cifar_or_synthetic: train or test is NULL, or limit is negative");
    const char *named = options.folder != NULL ? options.folder : getenv("TANDEM_DATA");
    const char *place = named != NULL ? named : "data/cifar10";
    int64_t most = options.limit > 0 ? options.limit : INT64_MAX;
    uint64_t seed = 2 * options.seed; /* and the next: no test image is a training image */
    td_status status = td_cifar_open(place, TD_CIFAR10, true, options.train);
    bool draw = status == TD_E_NOTFOUND && named == NULL;
    TD_TRY(draw ? td_synthetic_images(most < 50000 ? most : 50000, seed, options.train) : status);
    status = draw ? td_synthetic_images(most < 10000 ? most : 10000, seed + 1, options.test)
                  : td_cifar_open(place, TD_CIFAR10, false, options.test);
    if (status != TD_OK) {
        td_dataset_free(*options.train);
    }
    return status;
}
