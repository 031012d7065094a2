/* Finds, downloads or replaces CIFAR-10, and opens its training and test images. */
#include "apps/tools/common/cifar_data.h"

#include "apps/tools/common/ranks.h"
#include "data/cifar_files.h"
#include "tensor/extend.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEFAULT_FOLDER "data/cifar10"

static void announce_synthetic(FILE *out, const char *folder)
{
    fprintf(out,
            "*** This is NOT CIFAR-10: there is none in %s.\n"
            "*** Training on generated images of shapes instead; do not compare the accuracies.\n"
            "*** To train on CIFAR-10 (170 MB): --download, or --data FOLDER if you have it.\n",
            folder);
    fflush(out);
}

/* Whether stdout and stderr go to one file or pipe. */
static bool same_file(void)
{
    struct stat out, err;
    return fstat(STDOUT_FILENO, &out) == 0 && fstat(STDERR_FILENO, &err) == 0 &&
           out.st_dev == err.st_dev && out.st_ino == err.st_ino;
}

/* May fail if no folder was named: there are still synthetic images. */
static td_status download(const char *named)
{
    td_status status = td_cifar_download(named != NULL ? named : DEFAULT_FOLDER, TD_CIFAR10, NULL);
    if (status == TD_OK) {
        return TD_OK;
    }
    td_fail_context(status, "CIFAR-10 cannot be downloaded");
    if (named == NULL) {
        fprintf(stderr, "%s\n", td_last_error());
        return TD_OK;
    }
    return status;
}

static td_status find(const cifar_source *source, cifar_data *data)
{
    if (source->download) {
        TD_TRY(download(td_cifar_named(source->folder)));
    }
    TD_TRY(td_cifar_or_synthetic(source->folder, &data->whole_train, &data->whole_test,
                                 .limit = source->limit, .seed = source->seed));
    if (data->whole_train->synthetic && ranks_first()) {
        announce_synthetic(stdout, DEFAULT_FOLDER);
        if (!isatty(STDOUT_FILENO) && !same_file()) { /* then whoever started it sees only this */
            announce_synthetic(stderr, DEFAULT_FOLDER);
        }
    }
    return TD_OK;
}

const td_image_transform cifar_normalise = { .mean = { 0.4914f, 0.4822f, 0.4465f },
                                             .std = { 0.2023f, 0.1994f, 0.2010f } };

static td_status open_sets(const cifar_source *source, cifar_data *data)
{
    int64_t limit = source->limit > 0 ? source->limit : INT64_MAX;
    td_image_transform transform = cifar_normalise;
    TD_TRY(find(source, data));
    transform.seed = source->seed;
    TD_TRY(td_dataset_set_transform(data->whole_test, &transform));
    transform.crop_padding = 4;
    transform.flip = true;
    TD_TRY(td_dataset_set_transform(data->whole_train, &transform));
    data->train = td_dataset_head(data->whole_train, limit);
    data->test = td_dataset_head(data->whole_test, limit);
    TD_TRY(data->train != NULL && data->test != NULL ? TD_OK : TD_E_NOMEM);
    snprintf(data->name, sizeof(data->name), "%s, %" PRId64 " images",
             data->train->synthetic ? "synthetic" : "cifar10", data->train->length);
    return TD_OK;
}

td_status cifar_data_open(const cifar_source *source, cifar_data *data)
{
    *data = (cifar_data){ 0 };
    td_status status = open_sets(source, data);
    if (status != TD_OK) {
        cifar_data_close(data);
    }
    return status;
}

void cifar_data_close(cifar_data *data)
{
    td_dataset_free(data->train);
    td_dataset_free(data->test);
    td_dataset_free(data->whole_train);
    td_dataset_free(data->whole_test);
    *data = (cifar_data){ 0 };
}
