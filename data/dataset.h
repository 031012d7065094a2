/* What datasets, parts of datasets and loaders share. Not for users. */
#pragma once

#include "data/data.h"
#include "tensor/extend.h"

/* Counts the loaders and the parts that use a dataset, which datasets are const for; by is 1 or
 * -1. When a dataset that its owner has freed loses its last part, it ends. */
void td_dataset_count_loader(const td_dataset *dataset, int by);
void td_dataset_count_part(const td_dataset *dataset, int by);

/* Samples held in tensors: td_tensor_dataset's, and those of a CSV file. */
typedef struct td_rows {
    td_dataset base;
    td_dataset_vtable vtable; /* base.vtable */
    td_tensor *x, *y;         /* [length, sample...]; [length] i64 or [length, target...] */
    char **names;             /* of classes; base.class_names, or NULL */
} td_rows;

/* Samples of another dataset: its first `length`, or those that index names. */
typedef struct td_part {
    td_dataset base;
    const td_dataset *whole;
    int64_t *index; /* [length], or NULL: sample i is the whole's sample i */
} td_part;

/* A dataset of x and y, which it takes over, also when it fails; base is filled in from them, but
 * for the classes. y is i64 [length] or a float tensor. NULL with td_last_error(). */
td_rows *td_rows_new(const char *kind, td_tensor *x, td_tensor *y);

/* Sample i as doubles, standardised if the dataset is; false: the samples are not held in tensors.
 * values NULL: only says whether they are. */
bool td_rows_read(const td_dataset *dataset, int64_t i, double *values);
/* Such a dataset's samples, standardised; NULL with td_last_error(). */
td_rows *td_rows_scaled(const td_dataset *dataset, const td_standard_scaler *scaler);

/* The part behind a dataset, or NULL if it is none. */
const td_part *td_part_of(const td_dataset *dataset);

/* The samplers of a loader that was given none. The order of the random one is that of PyTorch's
 * RandomSampler. For each epoch, (1) the loader takes two words from its own generator (PyTorch's
 * base seed), (2) the sampler takes a seed of two words from g, and (3) a new generator of that
 * seed permutes the samples. g NULL: the default generator of the thread that calls
 * td_loader_next. */
td_sampler *td_sequential_sampler(void);
td_sampler *td_random_sampler(td_generator *g);

/* How many samples a rank gets of an epoch of `length`, and which: index gets them. all: the order
 * of the epoch, or NULL for one after the other; the first `begin` of it are not dealt any more. */
int64_t td_deal_count(const td_deal *deal, int64_t length);
void td_deal_samples(const td_deal *deal, const int64_t *all, int64_t length, int64_t begin,
                     int64_t *index);

/* The library's samplers: an epoch's order is known by its kind and seed, and how ranks share it.
 * td_known_sampler_of: NULL for one of the program's own. */
typedef struct td_known_sampler {
    td_sampler base; /* its free is td_known_sampler_free */
    td_deal deal;
    td_epoch_order drawn;    /* the last order; at first only its kind */
    td_generator *generator; /* of the random sampler; NULL: the default one */
    uint64_t seed;           /* of the distributed one */
} td_known_sampler;
void td_known_sampler_free(td_sampler *sampler);
td_known_sampler *td_known_sampler_of(td_sampler *sampler);

/* [n, sample...] */
td_shape td_batch_shape(const td_dataset *dataset, int64_t n);
/* The shape and dtype of the y of a batch of n. */
td_shape td_batch_y_shape(const td_dataset *dataset, int64_t n);
td_dtype td_batch_y_dtype(const td_dataset *dataset);
