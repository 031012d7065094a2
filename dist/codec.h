/* What travels in a bucket's place: a communication hook. One codec a td_ddp, one state a rank.
 * Without a codec the gradients themselves travel, averaged by the engine. */
#ifndef TD_DIST_CODEC_H
#define TD_DIST_CODEC_H

#include "dist/dist.h"
#include "nn/module.h"

/* Gradients that are reduced together. */
typedef struct td_bucket {
    td_tensor *grad;      /* 1-d, a part of the flat gradients */
    int64_t begin, count; /* elements of flat memory */
    const int *params;    /* their numbers, in the order of memory */
    int param_count;
} td_bucket;

/* What a round sums over the ranks. */
typedef struct td_wire {
    td_tensor *tensor; /* NULL: nothing, the rounds are over */
    bool scaled;       /* by `scale` already; otherwise the sum becomes an average */
} td_wire;

typedef struct td_bucket_codec {
    const char *name; /* "bf16" */
    td_status (*open)(td_group *group, td_params *params, const td_ddp_options *options,
                      void **state);
    void (*close)(void *state);
    /* The buckets are laid out (anew), and go. *part: what the codec keeps of this one. */
    td_status (*attach)(void *state, const td_bucket *b, void **part);
    void (*detach)(void *state, void *part);
    /* Round 0 while backward runs; round n + 1 when round n of this bucket has been summed.
     * Gradients count as multiplied by scale. */
    td_status (*encode)(void *state, void *part, const td_bucket *b, int round, double scale,
                        td_wire *wire);
    td_status (*decode)(void *state, void *part, const td_bucket *b); /* into b->grad */
    void (*stepped)(void *state); /* all buckets of a backward are decoded. May be NULL, and so: */
    /* For checkpoints, a collective if `save`: rank 0's list then has all ranks' tensors. */
    td_status (*list)(void *state, bool save, const td_named_tensor **tensors, int *count);
    /* State that lies with the parameters' (td_params_new_flat) and differs from rank to rank. */
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

#endif
