/* Flat parameters, seen from inside: for optimizers. Users do not include this. */
#pragma once

#include "nn/nn.h"
#include "tensor/kernels/kernel_types.h"

/* Frees the list of parameters. The leaves stay in the flat memory that they share. NULL is fine.
 */
void td_params_free(td_params *params, td_site at);

/* td_parameters without the parameters that are frozen now: what ranks share. */
td_params *td_params_trained(td_module *m);
/* The name of a parameter in the list that is frozen now; NULL: none is. */
const char *td_params_frozen(const td_params *params);
/* A parameter that was frozen and takes gradients again gets its part of the flat gradients. A
 * parameter that takes gradients and is not in the list is a fatal error. Whatever reads all
 * gradients calls it first. */
void td_params_follow(td_params *params);

/* sum |g|^p of a gradient, or of a part of one. */
typedef double (*td_part_sum)(const td_tensor *part, double p);

/* Where the training of these parameters stands. Whoever it concerns changes it: DDP, a loss
 * scaler, and whoever loads a checkpoint. */
typedef struct td_params_training {
    uint64_t spent; /* the latest backward whose gradients have made a step, or were given up */
    bool waits;     /* gradients came from a file, to be added to */
    bool apart;     /* gradients are this rank's alone: the ranks have not exchanged them yet */
    /* What a captured step asks on the device, whether it is skipped: a loss scaler's numbers, f64
     * [TD_SCALE_NUMBERS] (nn/optim/skips.h), in a header of our own; NULL: nothing. */
    td_tensor *scaling;
    /* Where ranks have windows of the gradients: the sum of `of` over all gradients, in an order
     * that does not depend on windows; NULL: rank by rank. */
    double (*sum_parts)(const td_params *params, td_part_sum of, double p);
    /* What whoever trains adds to the checkpoints of a run (tensor/part.h); NULL: nothing. */
    struct td_checkpoint_part *part;
} td_params_training;
td_params_training *td_params_training_of(const td_params *params);
/* The gradients of the backwards so far have made a step of the optimizer, or never will: from now
 * on they are not accumulated any more. */
void td_params_spend(td_params *params);
/* Parameter i's gradient if it waits for more, in the middle of an accumulation; NULL: it has none,
 * or has made its step. */
td_tensor *td_params_waiting(const td_params *params, int i);

/* The layout of m's parameters; NULL: they are not laid out. */
td_params *td_params_laid_out(const td_module *m);

/* State of optimizers, zeroed. td_params_new_flat: a flat tensor like the parameters', which
 * td_params_reorder rearranges together with them. td_params_new_numbers: numbers on the CPU that
 * do not depend on the order in memory, for example each parameter's step count. NULL when memory
 * is short. Free with td_params_drop_state (NULL is allowed). */
td_tensor *td_params_new_flat(td_params *params);
td_tensor *td_params_new_numbers(td_params *params, int64_t count, td_dtype dtype);
void td_params_drop_state(td_params *params, td_tensor *state);

/* ---- ranks that train the same parameters ----
 *
 * Ranks may share the optimizer's state, gradients and values (nn/shared/shared.h). Without sharing
 * a rank's window is all there is, and nothing below waits or sends. */
typedef struct td_params_peers {
    int rank, count;
    const int64_t *cuts; /* stretch k goes from cuts[k] to cuts[k + 1]; they outlive params' use */
    int stretches;       /* 0: one, as long as the flat memory */
    bool own_values, own_grads; /* td_params_flat, td_params_flat_grad are the window */
    void (*gather)(void *user); /* after a step: brings the other ranks' windows of the values;
                                   NULL: nothing is shared, and only checkpoints ask for ranks */
    void (*meet)(void *user); /* waits for all ranks; NULL: none reads another's window in place */
    void (*sum)(double *numbers, int count, void *user); /* over all ranks */
    td_status (*broadcast)(td_tensor *t, int from, void *user);
    td_status (*agree)(td_status mine,
                       void *user); /* TD_OK if it is on all ranks, with replicas' */
    /* Zeroed memory for windows of state; NULL: td_zeros. */
    td_tensor *(*memory)(int64_t count, td_dtype dtype, void *user);
    const struct td_sharing *sharing; /* set by td_params_set_peers */
    bool spare; /* a replica: other ranks have equal windows, and write the checkpoints */
    void *user;
} td_params_peers;
const td_params_peers *td_params_ranks_of(const td_params *params); /* NULL: there are none */
const td_params_peers *td_params_peers_of(const td_params *params); /* NULL: they share nothing */
/* The length of the flat space. */
int64_t td_params_length(const td_params *params);

/* Ranks that each have some of the model's parameters: stages (dist/pipeline/). */
typedef struct td_staging {
    int rank, ranks, count;
    td_tensor **tensors; /* the model's parameters and buffers, each once, in the order of
                            registration; those of other stages have no memory here */
    int *owners;         /* the first rank that has each: it counts and saves it */
    double *numbers;     /* count: room for a number for each */
    td_status (*sum)(double *numbers, int count, void *user); /* over the ranks */
    td_status (*broadcast)(td_tensor *t, int from, void *user);
    td_status (*agree)(td_status mine, void *user); /* TD_OK if it is that on all ranks */
    void *user;
} td_staging;
/* Which of staging's tensors t is; -1: none. */
static inline int td_staging_place(const td_staging *staging, const td_tensor *t)
{
    int i = staging->count - 1;
    while (i >= 0 && staging->tensors[i] != t) {
        i--;
    }
    return i;
}

/* ---- the list ---- */

/* Bytes: a cache line, and the widest vector register; every parameter begins on one. */
enum { TD_PARAMS_LINE = 64 };

typedef struct td_params_extra {
    td_tensor *state;
    bool flat;   /* of the parameters' form, so it is rearranged along with them */
    bool window; /* td_params_new_window's */
} td_params_extra;

struct td_params {
    td_param *items; /* in the order of registration */
    int count;
    int *order;       /* order[k]: the index of the k-th in memory */
    int reorders;     /* how often the order has changed */
    td_tensor **left; /* frozen when the list was made, and not in it */
    int left_count;
    bool trained_only; /* td_params_trained */
    td_tensor **grads; /* headers over flat_grad, one for each leaf */
    td_tensor *flat, *flat_grad;
    td_params_extra *extra; /* optimizer state, in the same order on all ranks */
    int extra_count;
    td_params_peers peers;
    td_params_training training;
    const td_staging *staging;        /* NULL: there is one stage */
    const struct td_slicing *slicing; /* nn/shared/slices.h; NULL: there are no slices */
    bool deferred;                    /* there is no memory yet: td_params_spread makes it */
    bool freed;                       /* with its model */
};

/* Where each parameter begins, in the given order, and how long the whole becomes. */
int64_t td_params_place(const td_params *p, td_dtype dtype, const int *order, int64_t *begin);

/* State of this rank's window, zeroed; of all parameters if no ranks share it. dtype: the
 * parameters', or TD_BF16 or TD_U8, packed (tensor/kernels/packed.h) next to f32. */
td_tensor *td_params_new_window(td_params *params, td_dtype dtype);
/* The part of a parameter that is in this rank's window: `count` elements from `begin` of the flat
 * space, whose state begins at `place`. Without peers: the whole parameter. */
typedef struct td_window {
    int64_t begin, count, place;
    int64_t to_values, to_grads; /* place + these: where its values and gradients begin */
} td_window;
td_window td_params_here(const td_params *params, int i);
/* What windows are (nn/shared/windows.c): rank's window of parameter i; see td_params_owner,
 * td_params_collect and td_params_read. */
typedef struct td_sharing {
    td_window (*window)(const td_params *params, int i, int rank);
    int (*owner)(const td_params *params, int i);
    td_status (*collect)(const td_params *params, td_tensor *window, int i, td_tensor *whole);
    void (*read)(const td_tensor *from, const td_tensor *form, int64_t begin,
                 const td_tensor *part);
} td_sharing;
/* What this rank has of a parameter's gradient: all of it, or its window, of which `part` becomes
 * the header. NULL: the parameter has no gradient, or none of it is in the window. */
td_tensor *td_params_grad_here(const td_params *params, int i, td_tensor *part);
/* Call it before and after you write values outside of td_optim_step. Waits for all ranks if they
 * read each other's values in place. */
void td_params_meet(const td_params *params);
/* Whether a rank has its window of the gradients alone, or some stages of the model: then
 * td_params_sum adds numbers over all ranks; otherwise they stay. */
bool td_params_sums(const td_params *params);
void td_params_sum(const td_params *params, double *numbers, int count);
/* The rank whose window has the whole of parameter i; -1: it lies in several windows. */
int td_params_owner(const td_params *params, int i);
/* Where ranks share. Collective: brings parameter i's state together from the windows of all ranks.
 * whole: 1-d, its elements in memory order, of the parameters' dtype. */
td_status td_params_collect(const td_params *params, td_tensor *window, int i, td_tensor *whole);
/* Copies this rank's window of parameter i's state to `part`: 1-d, of the parameters' dtype. */
td_status td_params_take(const td_params *params, td_tensor *window, int i, td_tensor *part);
/* Copies `part` to this rank's window of parameter i's state. */
td_status td_params_keep(const td_params *params, td_tensor *window, int i, td_tensor *part);

/* Copies this rank's window of parameter i from `from`, all of the parameter's values (row-major,
 * on the CPU), to `part`, 1-d, in the memory order of the parameter. */
void td_params_read(const td_params *params, const td_tensor *from, int i, const td_tensor *part);

/* A view of one parameter's part of such a tensor, in the parameter's shape and memory order. The
 * caller's to free; NULL when memory is short. */
td_tensor *td_params_view(const td_params *params, td_tensor *flat, int i);
/* Elements of a dense tensor in memory order, by value: a 1-d header that does not
 * retain the storage. */
td_tensor td_params_part(const td_tensor *t, int64_t begin, int64_t count);
