/* Finds the files of CIFAR-10 and CIFAR-100 in a folder. */
#include "data/cifar_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static const char *const classes_10[] = { "airplane", "automobile", "bird",  "cat",  "deer",
                                          "dog",      "frog",       "horse", "ship", "truck" };

static const char *const classes_100[] = {
    "apple",       "aquarium_fish", "baby",      "bear",       "beaver",       "bed",
    "bee",         "beetle",        "bicycle",   "bottle",     "bowl",         "boy",
    "bridge",      "bus",           "butterfly", "camel",      "can",          "castle",
    "caterpillar", "cattle",        "chair",     "chimpanzee", "clock",        "cloud",
    "cockroach",   "couch",         "crab",      "crocodile",  "cup",          "dinosaur",
    "dolphin",     "elephant",      "flatfish",  "forest",     "fox",          "girl",
    "hamster",     "house",         "kangaroo",  "keyboard",   "lamp",         "lawn_mower",
    "leopard",     "lion",          "lizard",    "lobster",    "man",          "maple_tree",
    "motorcycle",  "mountain",      "mouse",     "mushroom",   "oak_tree",     "orange",
    "orchid",      "otter",         "palm_tree", "pear",       "pickup_truck", "pine_tree",
    "plain",       "plate",         "poppy",     "porcupine",  "possum",       "rabbit",
    "raccoon",     "ray",           "road",      "rocket",     "rose",         "sea",
    "seal",        "shark",         "shrew",     "skunk",      "skyscraper",   "snail",
    "snake",       "spider",        "squirrel",  "streetcar",  "sunflower",    "sweet_pepper",
    "table",       "tank",          "telephone", "television", "tiger",        "tractor",
    "train",       "trout",         "tulip",     "turtle",     "wardrobe",     "whale",
    "willow_tree", "wolf",          "woman",     "worm",
};
_Static_assert(sizeof classes_10 / sizeof *classes_10 == 10, "CIFAR-10 has 10 classes");
_Static_assert(sizeof classes_100 / sizeof *classes_100 == 100, "CIFAR-100 has 100 classes");

#define LIST(...) ((const char *const[]){ __VA_ARGS__, NULL })
static const td_cifar_files cifar_10 = {
    .title = "CIFAR-10",
    .subfolder = "cifar-10-batches-bin",
    .train = LIST("data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
                  "data_batch_5.bin"),
    .test = LIST("test_batch.bin"),
    .train_records = 10000,
    .test_records = 10000,
    .url = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    .md5 = "c32a1d4ab5d03f1284b67883e8d87530",
    .classes = classes_10,
};

static const td_cifar_files cifar_100 = {
    .title = "CIFAR-100",
    .subfolder = "cifar-100-binary",
    .train = LIST("train.bin"),
    .test = LIST("test.bin"),
    .train_records = 50000,
    .test_records = 10000,
    .url = "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    .md5 = "03b5dce01913d631647c71ecec9e9cb8",
    .classes = classes_100,
};

const td_cifar_files *td_cifar_files_of(td_cifar_kind kind)
{
    TD_CHECK_NULL(kind == TD_CIFAR10 || kind == TD_CIFAR100, TD_E_ARG,
                  "there is no CIFAR-%d: it is 10 or 100", (int)kind);
    return kind == TD_CIFAR10 ? &cifar_10 : &cifar_100;
}

td_status td_join_path(char path[TD_CIFAR_PATH], const char *a, const char *b)
{
    int length = snprintf(path, TD_CIFAR_PATH, "%s/%s", a, b);
    TD_CHECK(length >= 0 && length < TD_CIFAR_PATH, TD_E_ARG,
             "the path of %s is longer than %d bytes: use a shorter folder", b, TD_CIFAR_PATH - 1);
    return TD_OK;
}

const char *td_cifar_named(const char *folder)
{
    const char *set = getenv("TANDEM_DATA");
    return folder == NULL && set != NULL && *set != '\0' ? set : folder;
}

/* Pickles of the same images, with other names. */
static bool is_for_python(const char *folder)
{
    static const char *const names[] = { "cifar-10-batches-py", "cifar-100-python", "batches.meta",
                                         "meta" };
    char probe[TD_CIFAR_PATH];
    struct stat found;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (td_join_path(probe, folder, names[i]) == TD_OK && stat(probe, &found) == 0) {
            return true;
        }
    }
    return false;
}

td_status td_cifar_locate(const char *folder, const td_cifar_files *files, const char *const *names,
                          char where[TD_CIFAR_PATH])
{
    char probe[TD_CIFAR_PATH];
    struct stat found;
    for (int inside = 1; inside >= 0; inside--) {
        TD_TRY(td_join_path(where, folder, inside ? files->subfolder : "."));
        for (const char *const *name = names; *name != NULL; name++) {
            TD_TRY(td_join_path(probe, where, *name));
            if (stat(probe, &found) == 0) {
                return TD_OK;
            }
        }
    }
    bool exists = stat(folder, &found) == 0;
    return td_fail(
        TD_E_NOTFOUND, "no %s in '%s': %s. Unpack %s there%s", files->title, folder,
        !exists                   ? "there is no such folder"
        : !S_ISDIR(found.st_mode) ? "that is not a folder; unpack an archive"
        : is_for_python(folder) ? "these are the files for Python, and the binary version is needed"
                                : "neither it nor its official subfolder holds the files",
        files->url, files == &cifar_10 ? ", or fetch it (cifar_resnet18 --download)" : "");
}
