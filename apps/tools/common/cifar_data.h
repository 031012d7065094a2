/* Finding CIFAR-10 for the apps that train on it. */
#pragma once

#include "tandem.h"

typedef struct cifar_source {
    const char *folder; /* --data; NULL: $TANDEM_DATA, else data/cifar10 */
    bool download;      /* fetch it into the folder if it is not there */
    int64_t limit;      /* the most training and test images; 0: all */
    uint64_t seed;      /* of the crops and flips, and of the synthetic set */
} cifar_source;

typedef struct cifar_data {
    td_dataset *train, *test;
    td_dataset *whole_train, *whole_test; /* what those two are the heads of */
    char name[128]; /* "cifar10, 50000 images": which data a checkpoint was trained on */
} cifar_data;

/* CIFAR-10's mean and standard deviation (lesson 5). */
extern const td_image_transform cifar_normalise;

/* Opens training set (random crop with padding 4, flip, normalise) and test set (normalise).
 *
 * If there is nothing at the place where it looks, nor on the network with `download`, and no
 * folder was named, it falls back to the synthetic set, and says on stderr and stdout that this is
 * not CIFAR-10 and how to get it. A named folder without the data is an error. */
td_status cifar_data_open(const cifar_source *source, cifar_data *data);
void cifar_data_close(cifar_data *data);
