/* Slices of tensors: ranks that each keep a part of a parameter and compute with that part alone
 * (dist/slices/). Checkpoints, clipping and checks ask here what the whole tensor is. */
#pragma once

#include "nn/params.h"

enum { TD_CUT_PARTS = 3 };

/* A parameter of which this rank has a slice. The whole tensor is cut along `dim`. It may have
 * several parts there, one after the other (queries, keys, values): each part is cut by itself,
 * and a rank's slice has the rank's piece of each. Two ranks and the parts q, k, v:
 *
 *     whole    q q q q k k v v        rank 0    q q k v        rank 1    q q k v         */
typedef struct td_cut {
    const td_tensor *tensor;     /* the parameter: this rank's slice */
    int dim;                     /* of the whole tensor and of the slice */
    int64_t parts[TD_CUT_PARTS]; /* their lengths in the whole tensor; 0: there is no such part */
} td_cut;

typedef struct td_slicing td_slicing;
/* The functions below, for who must build without nn/shared/. */
typedef struct td_slicing_type {
    const td_cut *(*of)(const td_slicing *slicing, const td_tensor *parameter);
    td_shape (*whole)(const td_slicing *slicing, const td_cut *cut);
    void (*copy)(const td_slicing *slicing, const td_cut *cut, int rank, const td_tensor *whole,
                 const td_tensor *slice, bool put);
    td_status (*gather)(const td_slicing *slicing, const td_cut *cut, const td_tensor *slice,
                        const td_tensor *whole);
    bool (*add)(const td_slicing *slicing, const td_tensor *parameter, const td_tensor *grad,
                td_part_sum of, double p);
    double (*total)(const td_slicing *slicing);
} td_slicing_type;

/* The ranks that have the slices of a model. Parameters without a cut are equal on all ranks. */
struct td_slicing {
    const td_slicing_type *type; /* set by td_module_set_slicing */
    int rank, ranks;
    int slices; /* a multiple of `ranks`: each rank has `slices` / `ranks` neighbouring ones */
    bool rows;  /* modules spread rows over the ranks */
    td_cut *cuts;
    int count;
    /* all: [ranks, mine...], on the model's device. */
    td_status (*all_gather)(td_tensor *all, const td_tensor *mine, void *user);
    void (*sum)(double *numbers, int count, void *user); /* over the ranks; or the program ends */
    td_status (*agree)(td_status mine, void *user);      /* TD_OK if it is that on all ranks */
    double *sums; /* [slices], all 0 but while a norm is computed */
    void *user;
};

/* Tells a model's checkpoints and optimizers; `slicing` stays the caller's. NULL: no slices. */
void td_module_set_slicing(td_module *model, td_slicing *slicing);
/* The cut of a parameter; NULL: every rank has all of it. slicing NULL: NULL. */
const td_cut *td_cut_of(const td_slicing *slicing, const td_tensor *parameter);

/* A stretch along a dimension. */
typedef struct td_run {
    int64_t begin, count;
} td_run;
/* Where piece `piece` of `pieces` of a part is, along dim of the whole tensor. */
td_run td_cut_piece(const td_cut *cut, int part, int piece, int pieces);
/* Where slice s (of this rank's, from 0 on) of a part is, along dim of this rank's tensor. */
td_run td_cut_here(const td_slicing *slicing, const td_cut *cut, int part, int s);
/* t, but along dim only the run: a header by value. */
td_tensor td_cut_view(const td_tensor *t, int dim, td_run run);

td_shape td_cut_whole(const td_slicing *slicing, const td_cut *cut);
/* Copies rank's slice out of the whole tensor, or (put) into it. */
void td_cut_copy(const td_slicing *slicing, const td_cut *cut, int rank, const td_tensor *whole,
                 const td_tensor *slice, bool put);
/* Collective: whole becomes the tensor of which `slice` is this rank's slice. */
td_status td_cut_gather(const td_slicing *slicing, const td_cut *cut, const td_tensor *slice,
                        const td_tensor *whole);

/* For the norm of all gradients. Adds `of` a gradient to the sums of its slices; false: the
 * parameter is not cut. grad: of all that this rank has of the parameter, or 1-d, of a window. The
 * total is taken over all slices, in an order that does not depend on the number of ranks, and the
 * sums are 0 again. */
bool td_slicing_add(const td_slicing *slicing, const td_tensor *parameter, const td_tensor *grad,
                    td_part_sum of, double p);
double td_slicing_total(const td_slicing *slicing);
