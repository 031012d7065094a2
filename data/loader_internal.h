/* A loader, seen from inside: for loader.c, and for what it has in checkpoints (loader_part.c). */
#pragma once

#include "data/maker.h"
#include "tensor/part.h"

/* What a checkpoint holds of a loader (loader_part.c). */
typedef struct td_loader_place {
    int64_t epoch, dataset, done, samples;
    td_epoch_order order;
    td_generator before, generator;
} td_loader_place;

/* The order of the running epoch. It begins where the samples begin that this loader gives: after a
 * run was resumed on another number of ranks, in the middle. */
typedef struct td_loader_order {
    bool there;          /* it has been drawn */
    int64_t *index;      /* this rank's; batch b begins at b * batch_size */
    int64_t whole;       /* samples of all ranks, where the epoch was begun elsewhere */
    int64_t begin;       /* so many of `whole` came before batch `first` */
    int64_t first;       /* the first batch that is there */
    td_epoch_order kind; /* how `whole` is ordered */
    td_generator before; /* the loader's generator when the epoch began */
} td_loader_order;

/* What has ended an epoch early. */
typedef struct td_loader_failure {
    td_status status; /* TD_OK: nothing */
    bool unread;      /* the program has not asked td_loader_status since */
    char message[1024];
} td_loader_failure;

struct td_loader {
    td_checkpoint_part part; /* first: checkpoints see it alone */
    td_loader_place place;   /* while a checkpoint is saved or loaded */
    td_batch_plan plan;
    td_sampler *sampler;
    td_known_sampler *known; /* the same; NULL: it is the program's own, */
    bool deals;              /* of which this rank gets a part here */
    td_deal deal;
    td_generator *generator; /* NULL: the default one of the thread that asks */
    bool drop_last;
    int64_t given; /* samples of an epoch, by the sampler's count */
    int64_t drawn; /* those of this rank */
    td_loader_order order;
    uint64_t asked; /* the sampler was asked for the epochs before this one */
    td_batch_maker *maker;
    bool deferred; /* td_loader_make makes the batches */

    uint64_t epoch;
    bool running;     /* the maker makes the epoch's batches */
    int64_t position; /* the next batch */
    td_loader_failure failure;
};

td_generator *td_loader_generator(const td_loader *loader);

/* How many samples order.index has room for. */
int64_t td_loader_room(const td_loader *loader);

/* Pauses the workers, if there are any. The epoch goes on with a start of the maker. */
void td_loader_rest(td_loader *loader);

/* Sets how many samples the running epoch has on this rank, before drop_last. */
void td_loader_fit(td_loader *loader, int64_t samples);

/* Asks the sampler for an epoch's order: `given` samples. */
td_status td_loader_ask(td_loader *loader, uint64_t epoch, int64_t *index);
/* Draws the order of the running epoch from the sampler, and writes this rank's part of it to
 * index, without the first `begin` samples of all ranks. */
td_status td_loader_draw(td_loader *loader, int64_t begin, int64_t *index);

extern const td_checkpoint_part td_loader_in_checkpoints;
