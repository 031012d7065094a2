/* For tests of leaves: runs whose hash does not depend on the layout. */
#pragma once

#include "dist/leaves/leaves.h"
#include "dist/shard/zero.h"

/* The next after TD_SHARD_PARAMETERS is the same with .gathers. */
enum { LEAF_GATHERED = TD_SHARD_PARAMETERS + 1, LEAF_WAYS };

/* Of LEAF_ROUTED most leaves skip a layer. */
typedef enum leaf_model { LEAF_MLP, LEAF_RESNET, LEAF_ROUTED } leaf_model;

typedef struct leaf_case {
    leaf_model model;
    int leaves; /* 0: td_ddp without leaves, whose ranks have the leaves' data */
    int way;    /* what ranks divide: td_shard, or LEAF_GATHERED */
    int steps;
    td_dtype dtype;
    bool adam, clips, averages, scales, recomputes;
    double norm; /* of clipping; 0: 2 */
    int empty;   /* this leaf has no samples; 0: all have */
    bool loads;  /* samples come from a loader, of an epoch whose last batch is small */
    const char *resume, *save; /* checkpoints, at the run's begin and end; NULL: none */
} leaf_case;

/* The hash of weights, running statistics, averages and losses after a run on so many ranks. */
uint64_t leaf_hash(const leaf_case *c, int ranks);
