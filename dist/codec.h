/* Communication hooks: what travels in place of a bucket's gradients. A td_ddp has at most one
 * codec, with one state on each rank. Without a codec the gradients travel, and the engine averages
 * them. */
#ifndef TD_DIST_CODEC_H
#define TD_DIST_CODEC_H

#include "dist/dist.h"
#include "nn/module.h"
#include "tensor/extern_c.h"

TD_BEGIN_C

/* Gradients that are reduced together. */
typedef struct td_bucket {
    td_tensor *grad;      /* 1-d, a part of the flat gradients */
    int64_t begin, count; /* elements of flat memory */
    const int *params;    /* the parameters' numbers, in the order of memory */
    int param_count;
} td_bucket;

/* What one round of a bucket sums over the ranks. */
typedef struct td_wire {
    td_tensor *tensor; /* NULL: the bucket has no further round */
    bool scaled;       /* encode has multiplied by `scale`; false: the engine averages */
} td_wire;

typedef struct td_bucket_codec {
    const char *name; /* "bf16" */
    td_status (*open)(td_group *group, td_params *params, const td_ddp_options *options,
                      void **state);
    void (*close)(void *state);
    /* A bucket was made; before it is freed it is detached. *part: the codec's state of the bucket.
     */
    td_status (*attach)(void *state, const td_bucket *b, void **part);
    void (*detach)(void *state, void *part);
    /* Writes what a round sums. Round 0 comes while backward runs, round n + 1 after the sum of
     * round n. scale: 1 / number of ranks, by which gradients are to be multiplied. */
    td_status (*encode)(void *state, void *part, const td_bucket *b, int round, double scale,
                        td_wire *wire);
    td_status (*decode)(void *state, void *part, const td_bucket *b); /* into b->grad */
    void (*stepped)(void *state); /* all buckets of a backward are decoded; may be NULL, as: */
    /* For checkpoints. A collective if `save`: rank 0's list then has all ranks' tensors. */
    td_status (*list)(void *state, bool save, const td_named_tensor **tensors, int *count);
    /* The state among the parameters' states (td_params_new_flat) that differs from rank to rank.
     */
    const td_tensor *(*own)(void *state);
} td_bucket_codec;

extern const td_bucket_codec td_codec_bf16, td_codec_fp16, td_codec_powersgd;

/* What a communication hook remembers, for td_checkpoint's `extra`: PowerSGD's factors and what
 * each rank has not sent so far; with other hooks nothing. The list is ddp's and holds until the
 * next call. A resumed run with as many ranks then equals one that was not stopped. To save: every
 * rank calls it at the same place between two steps (it is collective), and rank 0, which saves, is
 * given all ranks'. That takes memory there: the model's size for each rank. To load: every rank
 * calls it after td_ddp and loads at once, giving td_checkpoint_load the list: another load, or a
 * backward, may move what it names. */
td_status td_ddp_state_to_save(td_module *ddp, const td_named_tensor **tensors, int *count);
td_status td_ddp_state_to_load(td_module *ddp, const td_named_tensor **tensors, int *count);

TD_END_C

#endif
