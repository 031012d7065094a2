/* What the files of dist/slices share. */
#pragma once

#include "autograd/tape.h"
#include "dist/slices/slices.h"
#include "nn/internal.h"
#include "nn/shared/slices.h"

/* A model's slices; the innermost function around the model frees them. */
typedef struct td_slices {
    td_module *model;
    td_group *group; /* NULL: this rank alone */
    td_slicing slicing;
    int here;       /* slices of this rank */
    td_shape shape; /* of the tensor whose rows are spread over the ranks now */
} td_slices;

/* A module that a rule has cut: the user of the function around it. */
typedef struct td_sliced {
    td_slices *slices;
    const td_cut *cut;        /* of the weight */
    td_tensor *weight, *bias; /* bias NULL: none */
    bool rows;                /* inside a SEQUENCE module */
} td_sliced;

/* Fatal unless a collective of a step has worked. */
void td_slices_require(const td_slices *s, td_status status, td_site at);
/* Adds t of all ranks. */
void td_slices_sum(const td_slices *s, td_tensor *t, td_site at);
/* Backward of what gives its input another name: the input's gradient is dy. */
void td_slices_pass_on(td_node *node, const td_tensor *dy);
/* out = the sum over this rank's slices of x_s w_s, each from zero, added in the tree: x [N,K],
 * whose columns are cut as rows of w [K,M] are; both as this rank has them. */
void td_slices_product(const td_sliced *m, td_tensor *out, const td_tensor *x, const td_tensor *w,
                       td_math math, td_site at);

/* td_tensor_parallel_check. */
td_status td_slices_compare(td_slices *s);

/* td_around.run of the styles; user: a td_sliced. */
td_tensor *td_slices_column(const td_around_rest *rest, td_tensor *x, void *user);
td_tensor *td_slices_row(const td_around_rest *rest, td_tensor *x, void *user);
td_tensor *td_slices_vocabulary(const td_around_rest *rest, td_tensor *x, void *user);

td_tensor *td_slices_sequence(const td_around_rest *rest, td_tensor *x, void *user);
/* Of a module in a SEQUENCE module that has parameters and is not cut. */
td_tensor *td_slices_rows(const td_around_rest *rest, td_tensor *x, void *user);

/* ---- rows: each rank has an equal part ---- */

enum { TD_SLICES_HERE = 64, TD_SLICES_ROW_PARAMETERS = 2 };
td_tensor *td_slices_gather_rows(const td_slices *s, td_tensor *rows, td_site at);
/* This rank's rows of the sum of all ranks' tensors. */
td_tensor *td_slices_sum_rows(const td_slices *s, td_tensor *all, td_site at);
td_tensor *td_slices_add_bias(const td_slices *s, td_tensor *x, td_tensor *b, td_site at);
