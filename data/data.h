/* Datasets, transforms of images, samplers and the loader.
 *
 * A dataset holds numbered samples. A sample is an input of fixed shape and a label. A sampler
 * decides in which order an epoch visits the samples. A loader assembles batches; worker threads
 * can assemble batches ahead of time. The contents of a batch depend on the dataset, the seed, the
 * epoch and the batch's position in the epoch, and never on the number of workers.
 *
 *     td_dataset *all = td_csv_dataset("iris.csv", .label = "species"), *train, *test;
 *     if (td_split(all, 0.2, 42, &train, &test) != TD_OK ||
 *         td_standardize(train, test, NULL) != TD_OK) { ... td_last_error() ... }
 *     td_loader *loader = td_loader_open(train, ...);
 *     for (int epoch = 0; epoch < 10; epoch++) {
 *         for (td_batch batch; td_loader_next(loader, &batch);) { ... batch.x, batch.y ... }
 *         if (td_loader_status(loader) != TD_OK) { ... td_last_error() ... }
 *     }
 *     td_loader_close(loader);
 *     td_dataset_free(train), td_dataset_free(test), td_dataset_free(all);
 *
 * Close every loader before you free its dataset. */
#pragma once

#include "tensor/extern_c.h"
#include "tensor/random.h"

TD_BEGIN_C

/* ---- datasets ---- */

typedef struct td_dataset td_dataset;

/* What a kind of dataset implements. */
typedef struct td_dataset_vtable {
    const char *kind; /* "cifar10", for messages */
    /* Writes the samples index[0], ..., index[n-1] into x [n, sample_shape...] and y [n,
     * target_shape...], both in CPU memory. With `float *p = td_data_rw(x)` element [i,j,...] of x
     * is p[i * x->stride[0] + j * x->stride[1] + ...], in the dataset's layout (TD_ROW_MAJOR: one
     * element after the other). Random draws must depend only on epoch, index and a fixed seed, not
     * on earlier calls or the thread. Workers call fetch at the same time from several threads. On
     * failure fetch returns td_fail(...). */
    td_status (*fetch)(const td_dataset *dataset, const int64_t *index, int64_t n, uint64_t epoch,
                       td_tensor *x, td_tensor *y);
    /* Frees the struct and what it holds. Not NULL: an empty function if there is nothing. */
    void (*free)(td_dataset *dataset);
} td_dataset_vtable;

/* A dataset of your own is a struct that begins with a td_dataset:
 *
 *     typedef struct squares { td_dataset base; double scale; } squares;
 *
 * Set vtable, length, sample_shape, and the kind of y, which is to be predicted:
 *
 *     a class    .classes = 10                                             y is i64 [n]
 *     numbers    .target_shape = TD_SHAPE(1)                               y is f32 [n,1]
 *     tokens     .classes = the vocabulary's size, .target_shape = TD_SHAPE(T)    i64 [n,T]
 *
 * Pass &mine->base to the loader. fetch and free cast the pointer that they get back to your
 * struct. All other fields may be zero. Do not declare the struct const, although functions take a
 * const pointer: the library counts its loaders and parts in it. */
struct td_dataset {
    const td_dataset_vtable *vtable;
    int64_t length;
    td_shape sample_shape; /* without the batch dimension: [13], [3,32,32] */
    td_dtype dtype;        /* of x; 0: f32 */
    td_layout layout;      /* of x: TD_IMAGE for images [C,H,W] */
    int classes;
    const char *const *class_names; /* [classes] or NULL; the dataset owns the names */
    bool synthetic;                 /* the samples are generated, not real: programs must say so */
    td_shape target_shape;          /* of one sample's y; y is [n, target_shape...] */
    td_dtype target_dtype;          /* of y, if it has a target_shape and no classes; otherwise y
                                       is i64 */

    /* The library's own. */
    bool scalars;              /* y is [n] of target_dtype: td_tensor_dataset's numbers */
    int loaders, parts;        /* open loaders; parts (td_split, td_dataset_head) not freed yet */
    bool freed;                /* td_dataset_free was called, and parts keep the dataset */
    struct td_dataset *scaled; /* the samples as td_standardize made them, or NULL */
};

/* Frees a dataset; NULL is fine. It is a fatal error to free a dataset while one of its loaders is
 * open. If td_split or td_dataset_head made parts of the dataset, its memory stays until the last
 * part is freed: free a dataset and its parts in any order. */
void td_dataset_free_at(td_dataset *dataset, td_site at);
#define td_dataset_free(...) td_dataset_free_at(__VA_ARGS__, TD_HERE)

/* The first n samples of a dataset, or all if it has fewer. NULL with td_last_error(): n is
 * negative, or no memory. */
td_dataset *td_dataset_head(const td_dataset *dataset, int64_t n);

/* Splits any dataset into training and test samples as scikit-learn's train_test_split(test_size,
 * random_state=seed) does: the same samples in the same order. test_size is the test samples'
 * share, between 0 and 1. Free both parts, and the dataset. TD_E_ARG: test_size is out of range, or
 * leaves no sample for training. A NULL dataset is an error, too, with its constructor's message.
 */
td_status td_split(const td_dataset *dataset, double test_size, uint32_t seed, td_dataset **train,
                   td_dataset **test);

/* ---- samples in tensors ---- */

/* A dataset of your own tensors: sample i is x[i], its label y[i].
 *
 *     x  any float dtype or i64, [samples, ...]; images are [samples,C,H,W]
 *     y  i64 [samples], class numbers from 0; classes becomes the largest label + 1. Or numbers to
 *        predict, any float dtype or i64, [samples, ...]: a batch's y has that dtype and shape.
 *
 * Both are persistent tensors in CPU memory. The dataset shares their memory: you may td_free both
 * immediately afterwards. If td_borrow made them, your own memory must live on, and what you write
 * into it later is in the next batches. Shapes that do not fit are a fatal error. NULL with
 * td_last_error(): no memory. */
td_dataset *td_tensor_dataset_at(const td_tensor *x, const td_tensor *y, td_site at);
#define td_tensor_dataset(...) td_tensor_dataset_at(__VA_ARGS__, TD_HERE)

/* ---- CSV files ---- */

typedef enum td_csv_header {
    TD_CSV_AUTO = 0,      /* the first line is a header if some column has a word in line 1 ("nan"
                             and "null" are none) and a number in line 2 */
    TD_CSV_HEADER = 1,    /* the first line is a header */
    TD_CSV_NO_HEADER = 2, /* the first line is a sample */
} td_csv_header;

typedef struct td_csv_options {
    int begin_; /* for the library: lets the macro take an empty list */
    const char *path;
    const char *label;    /* the header's name for the label's column */
    int label_column;     /* or its number, counted from 1; 0 (and no label): the last column */
    td_csv_header header; /* 0: TD_CSV_AUTO; a label means that there is a header */
    char separator;       /* 0: ',' */
    bool regression;      /* the label is a number to predict: y is f32 [n,1] */
    const td_dataset *classes_of; /* number the classes as this dataset does: give the training set
                                     when you open the file of the test set */
} td_csv_options;

/* Reads a file of numbers, one sample a line: td_csv_dataset("iris.csv", .label = "species").
 *
 * One column is the label, every other column is a feature: x is f32 [n, columns - 1]. Labels are
 * class numbers 0, 1, ... (classes becomes the largest one + 1), or words if the first sample's
 * label is no number. Words become class_names in alphabetical order, as in scikit-learn's
 * LabelEncoder. A field may stand in "quotes", where two quotes mean one; a quoted field ends on
 * its line. Blanks around a field do not count, and lines of blanks alone are skipped. A number has
 * a point before its decimals, whatever the program's locale.
 *
 * NULL with td_last_error(): no such file, or "file:line: column N: ..." for a line with more or
 * fewer columns, a feature that is not a finite number in the range of f32, or a label that is no
 * class number. */
td_dataset *td_csv_dataset_at(td_csv_options options, td_site at);
#define td_csv_dataset(...)                                                                        \
    td_csv_dataset_at((td_csv_options){ TD_OPT1(path, __VA_ARGS__) }, TD_HERE)

/* Mean and scale of each feature: a standardised value is (value - mean) / scale. */
enum { TD_SCALER_FEATURES = 1024 };
typedef struct td_standard_scaler {
    double mean[TD_SCALER_FEATURES], scale[TD_SCALER_FEATURES];
    int features;
} td_standard_scaler;

/* Standardises both datasets by the mean and the standard deviation of the training samples, as
 * scikit-learn's StandardScaler does (a constant feature gets scale 1). For CSV files, for tensors
 * [samples, features] and for parts of them, at most TD_SCALER_FEATURES features, before a loader
 * is opened. The tensors of td_tensor_dataset keep their values; batches are standardised. test may
 * be NULL. scaler, unless NULL, receives mean and scale: standardise new samples with them, too.
 * TD_E_UNSUPPORTED: another kind of dataset. TD_E_MISMATCH: test has other features than train.
 * TD_E_ARG: a second call, or test is train. */
td_status td_standardize(td_dataset *train, td_dataset *test, td_standard_scaler *scaler);

/* The wine set of UCI (CC BY 4.0): 178 rows, 13 features, 3 classes. Reads the CSV file (a header
 * line; 13 features; the target, 0 to 2), splits as td_split and standardises as td_standardize.
 * scaler may be NULL. Free train and test. Errors name the file and the line. */
td_status td_wine_split(const char *csv_path, double test_size, uint32_t seed, td_dataset **train,
                        td_dataset **test, td_standard_scaler *scaler);

/* ---- images in memory ---- */

/* CIFAR-10 and CIFAR-100 in the official binary layout. The files are in FOLDER or in
 * FOLDER/cifar-10-batches-bin (FOLDER/cifar-100-binary): data_batch_1.bin to data_batch_5.bin and
 * test_batch.bin (CIFAR-100: train.bin and test.bin). x is f32 [n,3,32,32]. The size and the labels
 * of every file are checked; errors name the file and the record, and say what to do. */
typedef enum td_cifar_kind { TD_CIFAR10 = 10, TD_CIFAR100 = 100 } td_cifar_kind;
td_status td_cifar_open(const char *folder, td_cifar_kind kind, bool train, td_dataset **dataset);

/* Downloads the official archive, checks its MD5 sum and unpacks it into folder; does nothing if
 * all files of the set are there already, with possible sizes. A download that was interrupted
 * continues where it ended. Progress is shown on stderr if stderr is a terminal. url NULL: the
 * official address. TD_E_UNSUPPORTED: there is something to download, and tandem was built without
 * libcurl, libarchive or libmd. */
td_status td_cifar_download(const char *folder, td_cifar_kind kind, const char *url);
/* Downloads tinyshakespeare, 1.1 MB of Shakespeare's plays in the public domain, which small
 * language models are tried with, to a file, and checks its MD5 sum; does nothing if the file is
 * there. url NULL: that of karpathy/char-rnn. TD_E_FORMAT: another file has this name.
 * TD_E_UNSUPPORTED: tandem was built without libcurl, libarchive or libmd. */
td_status td_shakespeare_download(const char *path, const char *url);

/* Images [3,32,32] of ten classes of shapes, drawn from a seed, to train on without data and
 * network. Image i has class i % 10. The dataset's `synthetic` is set, because it is not CIFAR. */
td_status td_synthetic_images(int64_t length, uint64_t seed, td_dataset **dataset);
typedef struct td_cifar_or_synthetic_options {
    int begin_; /* for the library: lets the macro take an empty list */
    const char *folder;
    td_dataset **train, **test;
    int64_t limit; /* of synthetic images; 0: 50,000 for training and 10,000 for tests */
    uint64_t seed; /* of synthetic images */
} td_cifar_or_synthetic_options;
/* Opens CIFAR-10's training and test images in folder; folder NULL: in $TANDEM_DATA, or, if that is
 * not set or empty, in data/cifar10. If no folder is named and data/cifar10 has no CIFAR-10, makes
 * synthetic images, whose datasets have `synthetic` set. Free train and test; after an error both
 * are NULL. */
td_status td_cifar_or_synthetic_at(td_cifar_or_synthetic_options options, td_site at);

/* How images in memory are changed while a batch is written: a random crop, a random flip, then
 * (value/255 - mean) / std. A dataset without a transform gives value/255. The random numbers
 * depend only on seed, epoch and sample (Philox, tensor/random.h: key (seed, "augment"), counter
 * (epoch, sample)). shift and mirror change all images in the same way, for test-time augmentation.
 */
typedef struct td_image_transform {
    int crop_padding;      /* pixels added on each side before the crop, 0 to 31; 0: no crop */
    bool reflect;          /* the added pixels mirror the image; otherwise they are 0 */
    bool flip;             /* horizontally, with probability 1/2 */
    bool alternate_flip;   /* with flip: whether a sample is flipped is drawn in epoch 0, and
                              alternates from epoch to epoch (Jordan 2024) */
    int shift[2];          /* moves the crop of every image down and to the right, in pixels;
                              |shift| + crop_padding is at most 31 */
    bool mirror;           /* flips every image */
    float mean[3], std[3]; /* of each channel; all zero: no normalisation */
    uint64_t seed;
} td_image_transform;
/* Sets the transform of CIFAR or synthetic images. TD_E_UNSUPPORTED: another kind of dataset, or a
 * part (set the transform of the whole dataset). TD_E_ARG: a field is out of range. */
td_status td_dataset_set_transform(td_dataset *dataset, const td_image_transform *transform);

/* ---- samplers ---- */

/* Decides the order of the samples in an epoch. A sampler of your own is a struct that begins with
 * a td_sampler.
 *
 * To resume a run, the loader calls order() again for all epochs before, each once and in their
 * order, and then for the epoch in which the run was saved, with the loader's generator in the
 * state that it had when that epoch began. So an order may depend on how the sampler was made, the
 * epoch, that generator, and the calls before, and on nothing else. If a sampler itself gives each
 * rank another part, a run can only be resumed on the same number of ranks; let the loader divide
 * the order among the ranks instead (.deal). */
typedef struct td_sampler {
    /* Writes the order of an epoch, count() numbers from 0 to length - 1, and returns how many; or
     * a negative td_status with td_last_error(). The loader calls it at the start of each epoch. */
    int64_t (*order)(struct td_sampler *sampler, uint64_t epoch, int64_t length, int64_t *index);
    /* How many samples an epoch gives; or a negative td_status with td_last_error(). With 0 the
     * loader's epochs have no batch: a rank without samples takes part in an evaluation. */
    int64_t (*count)(const struct td_sampler *sampler, int64_t length);
    void (*free)(struct td_sampler *sampler);
} td_sampler;
/* Frees a sampler that was not given to a loader. NULL is fine. */
void td_sampler_free(td_sampler *sampler);

/* ---- the loader ---- */

/* How ranks share the samples of an epoch: rank r gets the samples r, r + world_size, ... of the
 * order. */
typedef struct td_deal {
    int rank, world_size; /* world_size 0: there is one rank */
    bool drop_last;       /* drop the last samples instead of repeating the first ones */
    bool no_padding;      /* neither repeat nor drop samples: ranks may differ by one sample */
    /* parts > 0: this rank gets the shares of several: of rank, rank + stride, and so on (or of the
     * last rank, where there are no more), and none is no_padding. Its order has `each` samples of
     * every share in turn, so that a batch of parts * each has `each` of every share. parts 0 and
     * each > 0: with no_padding, whole batches of `each` samples are dealt instead of samples. */
    int parts, stride;
    int64_t each;
} td_deal;

typedef struct td_loader td_loader;
typedef struct td_loader_options {
    int begin_; /* for the library: lets the macro take an empty list */
    const td_dataset *dataset;
    int64_t batch_size;  /* 0: 1 */
    bool shuffle;        /* in PyTorch's random order; otherwise one after the other */
    td_sampler *sampler; /* instead of shuffle; NULL: none. The loader frees it, even if opening
                            fails */
    td_deal deal;        /* for a sampler of your own that gives every rank the same order of all
                            samples: the loader gives this rank its part of the order */
    bool drop_last;      /* skip a last batch that is not full */
    int workers;         /* threads; 0: batches are assembled in td_loader_next */
    int prefetch;        /* batches ahead per worker; 0: 2 */
    td_device device;    /* of the batches; 0: cpu:0 */
    bool streamed;       /* never keep the images on the GPU (data/inspect.h says when the loader
                            keeps them there otherwise) */
    td_generator *generator; /* each epoch draws one number from it, even without shuffle, as
                                PyTorch's DataLoader does; NULL: this thread's default generator */
} td_loader_options;

/* A batch. x, y and samples belong to the loader and are valid until the next td_loader_next,
 * td_loader_seek or td_loader_close: td_clone what you want to keep, and do not td_free them. On a
 * GPU the next batch of the same size is in the same tensors. */
typedef struct td_batch {
    td_tensor *x;  /* [n, sample_shape...] of the dataset's dtype and layout */
    td_tensor *y;  /* [n, target_shape...]: class numbers (i64), or of the dataset's target_dtype */
    int64_t size;  /* n */
    int64_t index; /* of the batch: 0, 1, ... within the epoch */
    const int64_t *samples; /* [n] numbers of these samples in the dataset */
} td_batch;

/* td_loader_open(dataset, ...). NULL with td_last_error(): the dataset is NULL or empty, an option
 * is out of range, no memory, no threads. */
td_loader *td_loader_open_at(td_loader_options options, td_site at);

/* Gives the next batch of the epoch. false: the epoch is over, or there was an error; ask
 * td_loader_status. After the end of an epoch the next call starts the next epoch. A loop that was
 * left in mid-epoch leaves the rest of the epoch to the next loop: call td_loader_seek(loader,
 * epoch, 0) to begin an epoch from its first batch. After an error, ask td_loader_status before the
 * next call; otherwise the next call is a fatal error. */
bool td_loader_next(td_loader *loader, td_batch *batch);
/* TD_OK, or the error that ended the epoch; td_loader_next has put its message into
 * td_last_error(). */
td_status td_loader_status(const td_loader *loader);

/* The number of batches of the running epoch; 0 if the sampler gives no samples. All epochs have
 * the same number, with one exception: if a run was resumed on another number of ranks, the rest of
 * that epoch may have fewer batches. */
int64_t td_loader_batches(const td_loader *loader);

/* For gradient accumulation, if each `group` batches of an epoch make one step of the optimizer:
 * the number of a batch's samples divided by the number of samples in its group. The last group of
 * an epoch may be smaller. batch is td_batch.index. Multiply each loss by its share; then the
 * gradients add up to the gradient of the mean over all samples of the group:
 *     td_backward(td_mul_scalar(loss, td_loader_share(loader, batch.index, 4)));
 * With equal batches the share is 1/group. */
double td_loader_share(const td_loader *loader, int64_t batch, int64_t group);

/* The epoch of the next td_loader_next, counted from 0. The loader counts epochs and tells its
 * sampler. */
uint64_t td_loader_epoch(const td_loader *loader);

/* To resume a run, give the loader to td_checkpoint_save and td_checkpoint_load (.loader,
 * nn/io/checkpoint.h), with the same dataset and the same kind of sampler. Then the next batch is
 * the batch that would have come next, for any number of workers. On another number of ranks, or
 * with another batch size, the ranks divide the samples of the epoch that had not come yet. Each
 * sample of the epoch comes exactly once, unless the sampler repeats samples to give all ranks
 * equally many (padding) or drops some. So a run may begin in one process with .shuffle, and go on
 * under a launcher with td_distributed_sampler, or the other way round.
 *
 * td_loader_seek makes the next td_loader_next return the given batch of the given epoch, both
 * counted from 0. The batches before it are not assembled, and batches that were assembled ahead
 * are dropped. If the epoch has no such batch, it is over. In the middle of an epoch td_loader_seek
 * uses the order that was drawn for this epoch, if the loader's generator remembers it (a
 * checkpoint saves that: .with_random); otherwise it draws an order now. */
void td_loader_seek(td_loader *loader, uint64_t epoch, int64_t batch);

/* Stops the workers, also in the middle of an epoch, and frees the loader. NULL is fine. If an
 * error ended an epoch and td_loader_status was never called, its message goes to stderr. */
void td_loader_close(td_loader *loader);

#define td_cifar_or_synthetic(...)                                                                 \
    td_cifar_or_synthetic_at(                                                                      \
        (td_cifar_or_synthetic_options){ TD_OPT3(folder, train, test, __VA_ARGS__) }, TD_HERE)
#define td_loader_open(...)                                                                        \
    td_loader_open_at((td_loader_options){ TD_OPT1(dataset, __VA_ARGS__) }, TD_HERE)

TD_END_C
