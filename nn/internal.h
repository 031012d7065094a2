/* Modules, seen from inside: for the layers, the summary, the flat parameters and the checkpoints.
 * Users do not include this. */
#pragma once

#include "autograd/fused.h"
#include "nn/around.h"
#include "nn/module.h"
#include "tensor/extend.h"

/* What every td_module really is. */
typedef struct td_module_node {
    td_module module; /* first, so that the two pointers are the same */
    td_module *parent;
    size_t state_size;                /* bytes */
    char *path;                       /* from the top: "layer1.0.conv1" */
    char *label;                      /* for messages: "layer1.0.conv1 (Conv2d)" */
    char **tensor_paths;              /* the tensors' names from the top: "layer1.0.conv1.weight" */
    td_module_part part;              /* td_module_mark */
    uint64_t modes;                   /* `training` before each td_eval_for_now: a bit each */
    bool recompute;                   /* td_recompute */
    bool failed;                      /* something could not be added: td_module_finish gives up */
    td_params *params;                /* of the top of a model; made by td_parameters */
    const struct td_staging *staging; /* of the top; NULL: all its parameters are here */
    const struct td_slicing *slicing; /* of the top; NULL: no rank has only slices of tensors */
    const td_around *around;          /* the outermost; NULL: none */
    /* What td_model made the model with. */
    td_model_record record;
} td_module_node;

static inline td_module_node *td_node_of(const td_module *m)
{
    return (td_module_node *)(uintptr_t)m;
}

/* The first of m, the modules below and those above it whose parameters are laid out flat
 * (td_parameters); NULL: none. */
const td_module *td_module_with_params(td_module *m);

/* td_module_finish of m, whose state becomes a copy of the given one. A constructor that fills a
 * state of its own need not ask whether m is NULL. */
td_module *td_module_finish_with(td_module *m, const void *state);

/* Frees memory after 256 other calls, so that using a freed module or its parameters gives a
 * message. */
void td_free_later(void *memory);
bool td_module_is_freed(const td_module *m);

/* on: turns random initialization off on this thread, so that new parameters are zero: for models
 * whose weights are loaded next. Returns the previous setting. */
bool td_init_blank(bool on);
/* A parameter's tensor (f32 on cpu:0), or the header of a deferred one. */
td_tensor *td_init_new(td_shape shape, td_layout layout);
void td_init_uniform_(td_tensor *t, double bound); /* in [-bound, bound) */
void td_init_normal_(td_tensor *t, double std);
void td_init_zero_row_(td_tensor *t, int64_t row); /* of a matrix that has been drawn */

/* How the values of a deferred parameter (td_defer_init) are drawn; the storage owns it. It has no
 * pointers, so that rank 0 can send it to the others. */
typedef struct td_draw {
    enum { TD_DRAW_ZEROS, TD_DRAW_UNIFORM, TD_DRAW_NORMAL } kind;
    double low, high; /* of a uniform draw; of a normal one mean and standard deviation */
    bool has_zero_row;
    int64_t zero_row;
    td_generator generator; /* as it was before the draw */
} td_draw;
td_draw *td_draw_of(const td_tensor *t); /* NULL: t is not deferred */
void td_draw_now(const td_draw *draw, td_tensor *t);
/* A deferred tensor, whose values `draw` will draw. */
td_tensor *td_draw_later(const td_draw *draw, td_shape shape, td_dtype dtype, td_layout layout,
                         td_device device);

/* forward(self, x), which runs these parts (modules below self) and no others with parameters, kept
 * for backward as its input alone (td_recompute). Where no gradients are wanted, it simply runs. */
td_tensor *td_module_recompute(td_module *self,
                               td_tensor *(*forward)(td_module *self, td_tensor *x, td_site at),
                               td_module *const *parts, int part_count, td_tensor *x, td_site at);

/* Two persistent tensors of equal shape exchange their memory (and dtype and strides), while
 * headers, names and gradients stay. So whoever points to t then sees the values of `other`. */
void td_exchange_memory(td_tensor *t, td_tensor *other);

/* td_forward of a Conv2d without a scope of its own: the caller has one. */
td_tensor *td_conv2d_module_run(td_module *conv, td_tensor *x, td_site at);
bool td_is_conv2d(const td_module *m);
bool td_is_linear(const td_module *m);
/* A MaxPool2d's window; NULL if m is of another type, or its window too special to be fused. */
const td_pool2d_options *td_max_pool2d_window(const td_module *m);

/* ---- dropout's place in its stream of draws: what a checkpoint keeps of it ---- */

typedef struct td_dropout_place {
    uint64_t seed;  /* the default generator's when the layer was made */
    uint64_t calls; /* forwards in training so far */
} td_dropout_place;

/* The place of a Dropout or StochasticDepth module; NULL if m is of another type. */
td_dropout_place *td_dropout_place_of(td_module *m);
/* Data parallelism: replica k > 0 of a model draws other masks than replica 0, from the same place.
 * Nothing happens if m is of another type. */
void td_dropout_set_replica(td_module *m, uint64_t replica);
/* From now on x is one of `parts` equal parts of a tensor, cut along its last dimension (columns)
 * or its first: the masks are the whole tensor's. false: m is no Dropout. */
bool td_dropout_set_part(td_module *m, int part, int parts, bool columns);

/* ---- what sequential.c recognises, to fuse it ---- */

bool td_is_batch_norm2d(const td_module *m);
/* The activation that batch normalisation computes in place of m; LINEAR if m is another module, or
 * is surrounded. */
td_norm_activation td_activation_of(const td_module *m);
/* Whether a module takes indices (i64), as its type or, of a Sequential, its first child says. */
bool td_takes_indices(const td_module *m);

/* td_eval until td_give_modes_back, which gives each module the mode that it had. Calls nest. */
void td_eval_for_now(td_module *m);
void td_give_modes_back(td_module *m);

/* ---- BatchNorm2d's normalisation may be exchanged: dist takes statistics over all ranks ---- */

typedef struct td_batch_norm_override {
    /* td_batch_norm_fused_at with the user pointer in front. */
    td_tensor *(*normalise)(void *user, td_batch_norm_options options, td_batch_norm_fusion fusion,
                            td_site at);
    void (*free)(void *user); /* when the module ends */
    void *user;
} td_batch_norm_override;
/* m is a BatchNorm2d. An earlier override is freed. */
void td_batch_norm2d_set_override(td_module *m, td_batch_norm_override override);
/* Its override, normalise NULL if there is none. */
td_batch_norm_override td_batch_norm2d_override(const td_module *m);
/* Whether a BatchNorm2d of the model has one. */
bool td_has_batch_norm_override(td_module *model);

/* ---- fused layers: for td_nn_sequential and the models ---- */

/* BatchNorm2d's forward with what can be computed in its pass: [+ add] and an activation. */
td_tensor *td_nn_batch_norm2d_fused(td_module *bn, td_tensor *x, td_tensor *add,
                                    td_norm_activation activation, td_site at);

/* td_forward of a Linear, + add (NULL: nothing is added), as td_linear_add_at does it. */
td_tensor *td_nn_linear_add(td_module *linear, td_tensor *x, td_tensor *add, td_site at);

/* What follows a BatchNorm2d and is computed in its pass. */
typedef struct td_nn_batch_norm_then {
    td_tensor *add; /* is added; not with gelu */
    td_norm_activation activation;
    td_module *max_pool; /* a MaxPool2d after all that; NULL: none */
} td_nn_batch_norm_then;

/* bn(conv(x)) and what follows (NULL: nothing). In bf16 training the convolution takes the
 * statistics while it writes its result, and with max_pool and relu the normalised images are never
 * written. Modules that cannot be fused (SyncBatchNorm, surrounded ones) run one by one, with the
 * same result. */
td_tensor *td_nn_conv2d_batch_norm(td_module *conv, td_module *bn, td_tensor *x,
                                   const td_nn_batch_norm_then *then, td_site at);
