/* Communication hooks: codecs that decide what DDP sends in place of a bucket's gradients. A td_ddp
 * has at most one codec (td_ddp_options.comm_hook or .codec), with one state on each rank. Without
 * a codec DDP sends the gradients themselves. */
#pragma once

#include "dist/dist.h"
#include "nn/module.h"
#include "tensor/extern_c.h"

TD_BEGIN_C

struct td_part_list;

/* A bucket: gradients that are reduced together. DDP owns everything in it. */
typedef struct td_bucket {
    td_tensor *grad;      /* 1-d, a part of the flat gradients */
    int64_t begin, count; /* the bucket's elements in td_params_flat_grad; gaps between parameters
                             are part of it, and 0 */
    const int *params;    /* numbers of its parameters (td_params_get), in memory order */
    int param_count;
} td_bucket;

/* What one round of a bucket sums over the ranks: any persistent tensor without gaps. A codec may
 * need several rounds. A round can only sum. To combine numbers in another way, give each rank its
 * own element of the tensor. */
typedef struct td_wire {
    td_tensor *tensor; /* the codec owns the tensor; NULL: the bucket needs no further round */
    bool scaled; /* encode has multiplied the values by `scale`; false: the reduction averages */
} td_wire;

typedef struct td_bucket_codec {
    const char *name; /* "bf16" */
    /* options->codec is this codec as the user gave it, perhaps in a struct of its own. If open
     * fails after it has set *state, close is called. */
    td_status (*open)(td_group *group, td_params *params, const td_ddp_options *options,
                      void **state);
    void (*close)(void *state);
    /* attach is called when a bucket is made, and detach before the bucket is freed. *part is the
     * codec's state of the bucket; if attach fails after it has set *part, detach is called. */
    td_status (*attach)(void *state, const td_bucket *b, void **part);
    void (*detach)(void *state, void *part);
    /* Sets *wire to what this round sums. *wire comes with tensor NULL: leave it so when the bucket
     * needs no further round. Round 0 is encoded while backward runs, the others when backward is
     * over: round n + 1 when the sums of round n are there. scale is 1 / number of ranks. b->grad
     * may be changed; it is on the model's device. */
    td_status (*encode)(void *state, void *part, const td_bucket *b, int round, double scale,
                        td_wire *wire);
    /* Writes the mean gradients into b->grad. */
    td_status (*decode)(void *state, void *part, const td_bucket *b);
    /* Called when all buckets of a backward are decoded; may be NULL. */
    void (*stepped)(void *state);
    /* Lists the codec's state for the checkpoints of a training run (tensor/part.h), under names
     * that begin with "extra."; may be NULL. */
    void (*list)(void *state, struct td_part_list *list);
    /* The codec's flat state (td_params_new_flat) that differs from rank to rank; may be NULL. */
    const td_tensor *(*own)(void *state);
} td_bucket_codec;

/* PowerSGD with its options; td_ddp copies them. */
typedef struct td_powersgd_options {
    td_bucket_codec codec; /* for the library */
    int rank;              /* of the factors; 0: 1 */
    int64_t start;         /* the number of steps with a plain all-reduce before; 0: 1000 */
    int end_;              /* for the library */
} td_powersgd_options;
extern const td_bucket_codec td_codec_powersgd; /* with usual options */

/* A program gives its own codec to td_ddp (.codec = &my_codec). A codec of the library is a file in
 * ddp/extra/, a line in ddp/extra/parts.h and one in the table of ddp/extra/parts.c; the programs'
 * --comm-hook lists its names in apps/tools/common/train_hook.c.
 *
 * The library's codec of a name; NULL with td_last_error(): there is none. */
const td_bucket_codec *td_codec_find(const char *name);

TD_END_C

/* td_ddp(net, .codec = td_powersgd(.rank = 4, .start = 10)) */
#define td_powersgd(...)                                                                           \
    (&TD_LVALUE(td_powersgd_options,                                                               \
                (td_powersgd_options){ .codec = td_codec_powersgd, __VA_ARGS__, .end_ = 0 })       \
          .codec)
