#include "apps/tools/common/cifar_data.h"

#include "apps/tools/common/ranks.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define DEFAULT_FOLDER "data/cifar10"
enum { SYNTHETIC_TRAIN = 50000, SYNTHETIC_TEST = 10000 };

static void announce_synthetic(FILE *out, const char *folder)
{
    fprintf(out,
            "*** This is NOT CIFAR-10: there is none in %s.\n"
            "*** Training on synthetic pictures instead; accuracies mean nothing beside others'.\n"
            "*** To get the real one (170 MB): --download, or --data FOLDER if you have it.\n",
            folder);
    fflush(out);
}

static td_status open_synthetic(const cifar_source *source, const char *folder, cifar_data *data)
{
    int64_t limit = source->limit > 0 ? source->limit : SYNTHETIC_TRAIN;
    if (ranks_first()) {
        announce_synthetic(stdout, folder);
        if (!isatty(STDOUT_FILENO)) { /* then whoever started it sees only this */
            announce_synthetic(stderr, folder);
        }
    }
    /* Two seeds: the test pictures are none of the training pictures. */
    TD_TRY(td_synthetic_images(limit < SYNTHETIC_TRAIN ? limit : SYNTHETIC_TRAIN, 2 * source->seed,
                               &data->whole_train));
    return td_synthetic_images(limit < SYNTHETIC_TEST ? limit : SYNTHETIC_TEST,
                               2 * source->seed + 1, &data->whole_test);
}

static td_status open_cifar(const char *folder, cifar_data *data)
{
    TD_TRY(td_cifar_open(folder, TD_CIFAR10, true, &data->whole_train));
    return td_cifar_open(folder, TD_CIFAR10, false, &data->whole_test);
}

static td_status find(const cifar_source *source, cifar_data *data)
{
    const char *variable = getenv("TANDEM_DATA");
    const char *named = source->folder != NULL ? source->folder : variable;
    const char *folder = named != NULL ? named : DEFAULT_FOLDER;
    td_status status = open_cifar(folder, data);
    if (status != TD_E_NOTFOUND) {
        return status;
    }
    if (source->download) {
        status = td_cifar_download(folder, TD_CIFAR10, NULL);
        if (status == TD_OK) {
            return open_cifar(folder, data);
        }
        td_fail_context(status, "CIFAR-10 cannot be downloaded");
        if (named == NULL) {
            fprintf(stderr, "%s\n", td_last_error());
        }
    }
    return named != NULL ? status : open_synthetic(source, folder, data);
}

const td_image_transform cifar_normalise = { .mean = { 0.4914f, 0.4822f, 0.4465f },
                                             .std = { 0.2023f, 0.1994f, 0.2010f } };

static td_status set_transforms(const cifar_source *source, cifar_data *data)
{
    td_image_transform transform = cifar_normalise;
    transform.seed = source->seed;
    TD_TRY(td_dataset_set_transform(data->whole_test, &transform));
    transform.crop_padding = 4;
    transform.flip = true;
    return td_dataset_set_transform(data->whole_train, &transform);
}

static td_status take_heads(const cifar_source *source, cifar_data *data)
{
    int64_t limit = source->limit > 0 ? source->limit : INT64_MAX;
    data->train = td_dataset_head(data->whole_train, limit);
    data->test = td_dataset_head(data->whole_test, limit);
    if (data->train == NULL || data->test == NULL) {
        return TD_E_NOMEM;
    }
    snprintf(data->name, sizeof(data->name), "%s, %" PRId64 " images",
             data->train->synthetic ? "synthetic" : "cifar10", data->train->length);
    return TD_OK;
}

td_status cifar_data_open(const cifar_source *source, cifar_data *data)
{
    *data = (cifar_data){ 0 };
    td_status status = find(source, data);
    if (status == TD_OK) {
        status = set_transforms(source, data);
    }
    if (status == TD_OK) {
        status = take_heads(source, data);
    }
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
