/* Datasets, transforms, samplers and the loader: the data module. It needs tensor/ only.
 *
 * A dataset gives numbered samples: an input of fixed shape and an i64 label. A sampler gives the
 * order of an epoch. A loader assembles batches ahead of time in worker threads; a batch's contents
 * depend on (dataset, seed, epoch, position) only, never on the number of workers. */
#ifndef TD_DATA_DATA_H
#define TD_DATA_DATA_H

#include "tensor/tensor.h"

/* ---- datasets ---- */

typedef struct td_dataset td_dataset;

/* What a kind of dataset implements. */
typedef struct td_dataset_vtable {
    const char *kind; /* "cifar10", for messages */
    /* Writes samples index[0..n-1] into x (shape [n, sample...], dtype and layout of the dataset)
     * and y [n] i64. Called from several threads at once; draws depend on (epoch, index) alone. */
    td_status (*fetch)(const td_dataset *dataset, const int64_t *index, int64_t n, uint64_t epoch,
                       td_tensor *x, td_tensor *y);
    void (*free)(td_dataset *dataset);
} td_dataset_vtable;

struct td_dataset {
    const td_dataset_vtable *vtable;
    int64_t length;
    td_shape sample_shape; /* without the batch dimension: [13], [3,32,32] */
    td_dtype dtype;        /* f32 */
    td_layout layout;      /* of a batch: TD_IMAGE for pictures */
    int classes;
    const char *const *class_names; /* [classes] or NULL; owned by the dataset */
    bool synthetic;                 /* made up, not the real thing: apps must say so */
};

void td_dataset_free(td_dataset *dataset); /* NULL is fine */

/* The first n samples of another dataset (which it does not own). n larger than its length: all. */
td_dataset *td_dataset_head(const td_dataset *dataset, int64_t n);

/* ---- wine: 178 rows, 13 features, 3 classes (UCI, CC BY 4.0) ---- */

typedef struct td_standard_scaler {
    double mean[64], scale[64];
    int features;
} td_standard_scaler;

/* Reads the CSV (header line; 13 features; target 0..2), splits it as scikit-learn's
 * train_test_split(test_size, random_state=seed) does, and standardises by the training rows
 * (StandardScaler). scaler may be NULL. Errors name the file and line. */
td_status td_wine_split(const char *csv_path, double test_size, uint32_t seed, td_dataset **train,
                        td_dataset **test, td_standard_scaler *scaler);

/* ---- pictures in memory ---- */

/* CIFAR-10 and -100 in the official binary layout: FOLDER/data_batch_1.bin ... test_batch.bin (or
 * train.bin, test.bin for 100), or FOLDER/cifar-10-batches-bin/ (cifar-100-binary/). Every file's
 * size and labels are checked; errors name file, record and what to do. */
typedef enum td_cifar_kind { TD_CIFAR10 = 10, TD_CIFAR100 = 100 } td_cifar_kind;
td_status td_cifar_open(const char *folder, td_cifar_kind kind, bool train, td_dataset **dataset);

/* Fetches the official archive, checks its MD5 and unpacks it into folder. Resumes a partial
 * transfer; shows progress on stderr when that is a terminal. url NULL: the official home. Needs
 * libcurl: otherwise TD_E_UNSUPPORTED with what to install. */
td_status td_cifar_download(const char *folder, td_cifar_kind kind, const char *url);

/* Ten classes of 32x32 pictures drawn procedurally (shapes, colours, noise) from a seed: something
 * to train on where there is no data and no network. synthetic is set: it is not CIFAR. */
td_status td_synthetic_images(int64_t length, uint64_t seed, td_dataset **dataset);

/* Transforms of u8 pictures, applied while a batch is written: random crop after padding by
 * `crop_padding` pixels (0: no crop), horizontal flip with probability 1/2, (x/255 - mean) / std.
 * Draws by Philox, key (seed, "augment"), counter (epoch, sample). Without it: scaled to [0,1].
 * For test-time augmentation there is a fixed cut beside the drawn one. */
typedef struct td_image_transform {
    int crop_padding; /* 0 to 31 */
    bool reflect;     /* padding mirrors the picture (its border once) instead of being 0 */
    bool flip;
    bool alternate_flip; /* flip: whether a sample is flipped is drawn for epoch 0, and alternates
                            from then on (Jordan 2024): two epochs see each side once */
    int shift[2];        /* down, right: all pictures are cut from so far off; with crop_padding 31
                            at most */
    bool mirror;         /* all pictures are flipped */
    float mean[3], std[3]; /* all zero: no normalisation */
    uint64_t seed;
} td_image_transform;
/* For datasets of pictures in memory (CIFAR, synthetic); otherwise TD_E_UNSUPPORTED. */
td_status td_dataset_set_transform(td_dataset *dataset, const td_image_transform *transform);

/* The raw u8 pictures [length,3,32,32] row-major and labels of such a dataset, or NULL. */
const uint8_t *td_dataset_pixels(const td_dataset *dataset);
const uint8_t *td_dataset_labels(const td_dataset *dataset);

/* ---- folders of pictures ---- */

/* What is done to a picture of any size, as torchvision does it with PIL (its antialiased bilinear
 * filter, byte for byte). For training: RandomResizedCrop, flip, ColorJitter, drawn by Philox, key
 * (seed, "picture"), counter (epoch, sample). For evaluation (resize > 0): the shorter side becomes
 * `resize`, and the middle is cut out. Then (x/255 - mean) / std. */
typedef struct td_picture_transform {
    int size;                  /* of both sides of the result; 0: 224 */
    int resize;                /* 0: training; otherwise at least size */
    double scale[2], ratio[2]; /* RandomResizedCrop's; 0: { 0.08, 1 } and { 3/4, 4/3 } */
    bool flip;                 /* horizontally with probability 1/2 */
    double brightness, contrast, saturation, hue; /* ColorJitter's; 0: not */
    float mean[3], std[3];                        /* all zero: scaled to [0,1] */
    uint64_t seed;
} td_picture_transform;

typedef struct td_image_folder_options {
    td_picture_transform transform;
    bool skip_bad; /* a picture that cannot be read is replaced by the next sample that can, counted
                      and listed; otherwise it is an error that names it */
    const char *index;   /* a file that remembers the folder's list; NULL: none. It is used while no
                            folder in it has changed, and written anew otherwise */
    int64_t most_pixels; /* larger pictures are refused before they are decoded; 0: 100 million */
} td_image_folder_options;

/* FOLDER/CLASS/.../picture: one class for each sub-folder, numbered by the order of their names;
 * the samples sorted as torchvision's ImageFolder sorts them. Files are taken by their suffix (jpg,
 * jpeg, png, bmp, gif, in any case) and decoded by their content: JPEG, PNG, BMP, GIF. Symbolic
 * links are followed. TD_E_NOTFOUND, TD_E_FORMAT: no such folder, no class, a class without
 * pictures, a link that leads in a circle; the message names it. */
td_status td_image_folder_open(const char *folder, const td_image_folder_options *options,
                               td_dataset **dataset);

/* What decodes JPEGs: "libjpeg" where it was found when this was built, otherwise "stb_image";
 * the environment's TANDEM_JPEG=stb_image chooses that one. */
const char *td_jpeg_decoder(void);

/* The path of a sample's file, relative to the folder. */
const char *td_image_folder_path(const td_dataset *dataset, int64_t sample);

/* How many pictures could not be read so far (skip_bad). The i-th of them, in the order of samples:
 * its number, and what was wrong, with its path (the dataset's, until it is freed); or NULL. */
int64_t td_image_folder_bad(const td_dataset *dataset);
const char *td_image_folder_bad_at(const td_dataset *dataset, int64_t i, int64_t *sample);

/* One picture file as a batch of one: x [1,3,size,size], f32, TD_IMAGE. */
td_status td_picture_read(const char *path, const td_picture_transform *transform, td_tensor *x);

/* ---- samplers ---- */

/* The order of one epoch: writes as many indices as count says and returns how many, or a negative
 * td_status with td_last_error(). */
typedef struct td_sampler {
    int64_t (*order)(struct td_sampler *sampler, uint64_t epoch, int64_t length, int64_t *index);
    int64_t (*count)(const struct td_sampler *sampler,
                     int64_t length); /* how many an epoch gives */
    void (*free)(struct td_sampler *sampler);
    /* Told by td_loader_set_epoch; NULL: does not care to know that the epoch was set. */
    void (*set_epoch)(struct td_sampler *sampler, uint64_t epoch);
} td_sampler;
td_sampler *td_sequential_sampler(void);
/* As PyTorch's RandomSampler: an epoch draws a seed from g (two words) and permutes with a fresh
 * generator. g NULL: the default generator. The loader around it draws its base seed before. */
td_sampler *td_random_sampler(td_generator *g);
void td_sampler_free(td_sampler *sampler);

/* ---- the loader ---- */

typedef struct td_loader td_loader;
typedef struct td_loader_options {
    int begin_; /* lets the macro take an empty list; not for you */
    const td_dataset *dataset;
    int64_t batch_size;      /* 0: 1 */
    bool shuffle;            /* a random sampler; otherwise sequential */
    td_sampler *sampler;     /* instead of shuffle; the loader takes it over */
    bool drop_last;          /* leave out a last batch that is not full */
    int workers;             /* threads; 0: batches are assembled in td_loader_next */
    int prefetch;            /* batches ahead per worker; 0: 2 */
    td_device device;        /* zero: cpu:0 */
    bool streamed;           /* on a GPU: see td_loader_is_resident */
    td_generator *generator; /* for shuffling and the base seed; NULL: the default one */
} td_loader_options;

typedef struct td_batch {
    td_tensor *x;  /* [n, sample...]; the loader's, valid until the next td_loader_next; on a
                      GPU all batches of a size have the same tensors */
    td_tensor *y;  /* [n] i64 */
    int64_t size;  /* n */
    int64_t index; /* 0, 1, ... within the epoch */
    const int64_t *samples; /* [n] the dataset's numbers of these samples */
} td_batch;

/* NULL with td_last_error(): bad options, no memory, no threads. The dataset must outlive it. */
td_loader *td_loader_open_at(td_loader_options options, td_site at);

/* The next batch of the epoch. false at its end (the call after starts the next epoch) or on an
 * error, which td_loader_status tells apart. */
bool td_loader_next(td_loader *loader, td_batch *batch);
td_status td_loader_status(const td_loader *loader);

/* Whether the pictures lie on the loader's GPU, as bytes, and batches are cut from them there: so
 * it is with pictures in memory (CIFAR, synthetic) that fit there, unless the options say
 * `streamed`. Otherwise workers assemble batches in CPU memory, which are sent. The batches are the
 * same, bit for bit. */
bool td_loader_is_resident(const td_loader *loader);

/* From now on td_loader_next only draws how a batch is cut (if the loader is resident; false: it
 * goes on as ever), and td_loader_make cuts it: then this can be a part of a captured step
 * (tensor/graph/captured.h), whose replays cut what was drawn last. Until it is called, the batch's
 * tensors hold an earlier one. */
bool td_loader_defer(td_loader *loader);
void td_loader_make(td_loader *loader); /* nothing to do if td_loader_next has done it */

/* The number of batches of an epoch, and of samples that they hold. */
int64_t td_loader_batches(const td_loader *loader);
int64_t td_loader_samples(const td_loader *loader);

/* The epoch that the next td_loader_next belongs to. set_epoch drops what was prefetched and starts
 * the given epoch at its first batch; skip_batches starts it later (resume in mid-epoch): the
 * skipped batches are not assembled, and the order is the same as ever. */
uint64_t td_loader_epoch(const td_loader *loader);
void td_loader_set_epoch(td_loader *loader, uint64_t epoch);
void td_loader_skip_batches(td_loader *loader, int64_t batches);

/* Seconds that td_loader_next has waited for workers since the loader was opened. */
double td_loader_wait_seconds(const td_loader *loader);

/* Stops the workers, also in mid-epoch. NULL is fine. */
void td_loader_close(td_loader *loader);

#define td_loader_open(...)                                                                        \
    td_loader_open_at((td_loader_options){ .begin_ = 0, __VA_ARGS__ }, TD_HERE)

#endif
