/* Parts of a checkpoint: how a loader, averages of weights, a loss scaler or DDP puts its state
 * into the file of a training run (nn/io), without either side including the other. The owner of a
 * state is a struct that begins with a td_checkpoint_part; the checkpoint's option (.loader, .ema,
 * ...) is a pointer to it, and DDP's part is with the model's parameters (td_params_training). A
 * program needs this header only for a communication hook with a state of its own
 * (dist/ddp/codec.h). */
#pragma once

#include "tensor/random.h"

TD_BEGIN_C

/* How a value becomes text in the file's metadata, and a value again. */
typedef struct td_text_kind {
    char *(*put)(const void *of);             /* malloc'ed; NULL with td_last_error() */
    bool (*read)(const char *text, void *to); /* false: the text does not fit; *to is undefined */
    const char *unfit;                        /* what a text that does not fit is, for messages */
    bool optional;                            /* no text: the value stays */
    const char *missing; /* what is missing without it, for messages; NULL: its key says that */
} td_text_kind;

extern const td_text_kind td_text_count;     /* int64_t, 0 to TD_MOST_COUNT */
extern const td_text_kind td_text_generator; /* td_generator, without `order` */
extern const td_text_kind td_text_order;     /* td_epoch_order */

/* The largest count (of steps, samples, ...) that a file may have: sums of some counts do not
 * overflow. */
#define TD_MOST_COUNT ((int64_t)1 << 48)

/* Reads a whole number from 0 to `most`; false: the text is no such number. */
bool td_read_count(const char *text, int64_t most, int64_t *count);

/* Formats into new memory; NULL with td_last_error() when it is short. */
char *td_format(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A checkpoint that is being saved or loaded, as its parts see it. */
typedef struct td_part_list td_part_list;
struct td_part_list {
    bool loading;
    /* Saving: adds *value under a key; true. Loading: reads the file's text into *value; false: it
     * has none, or one that does not fit, which has been noted. */
    bool (*text)(td_part_list *list, const char *key, const td_text_kind *kind, void *value);
    /* A tensor that is saved under prefix + name, or filled when the whole file fits. */
    void (*tensor)(td_part_list *list, const char *prefix, const char *name, td_tensor *tensor);
    /* A tensor that is different on each rank; rank 1 of 4 saves it as PREFIX1/4.NAME. On another
     * number of ranks each gets the mean of the tensors in the file. Loading: false if the file has
     * none. */
    bool (*own)(td_part_list *list, const char *prefix, const char *name, td_tensor *tensor);
    /* Loading: whether the file has prefix + name, in the tensor's shape. */
    bool (*has)(td_part_list *list, const char *prefix, const char *name, const td_tensor *tensor);
    /* Loading: notes what does not fit here. Nothing is loaded then. */
    void (*differ)(td_part_list *list, const char *format, ...)
        __attribute__((format(printf, 2, 3)));
};

typedef struct td_checkpoint_part td_checkpoint_part;
struct td_checkpoint_part {
    /* NULL, or why the part can be neither saved nor loaded now; may be NULL. */
    const char *(*unready)(const td_checkpoint_part *part);
    /* Whether ranks have tensors of their own, so that all of them save; may be NULL. */
    bool (*apart)(const td_checkpoint_part *part);
    /* Lists the texts and tensors of the part. While loading, the part keeps texts aside until
     * `loaded`, so that nothing changes yet. */
    void (*list)(td_checkpoint_part *part, td_part_list *list);
    /* The whole file has been read: the part takes over what was read. May be NULL. */
    td_status (*loaded)(td_checkpoint_part *part);
};

TD_END_C
