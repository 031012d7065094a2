/* Modules of your own (docs/your-own.md has a worked example).
 *
 * A type says what its modules do; a constructor makes a module of the type, adds parameters and
 * children under names, and finishes it:
 *
 *     td_module *m = td_module_new(&my_type, sizeof(my_state));
 *     if (m == NULL) return NULL;
 *     my_state *s = m->state;
 *     s->fc = td_module_add(m, "fc", td_nn_linear(8, 8));
 *     s->gain = td_module_new_parameter(m, "gain", TD_SHAPE(8), TD_ROW_MAJOR);
 *     return td_module_finish(m);                                                                */
#pragma once

#include "nn/nn.h"

TD_BEGIN_C

/* A link of a model's chain: a part that takes the part before's result and no other tensor. A
 * pipeline cuts a model between links. */
enum { TD_CHAIN_PARTS = 4 };
typedef struct td_chain_link {
    td_module *parts[TD_CHAIN_PARTS]; /* the modules whose parameters and buffers it uses; NULL:
                                         no more */
    td_module *self;                  /* for run and end */
    td_tensor *(*run)(td_module *self, td_tensor *x, td_site at); /* NULL: td_forward of parts[0] */
    /* Of the last link of a model of two inputs: its result for x and the second input. */
    td_tensor *(*end)(td_module *self, td_tensor *x, td_tensor *second, td_site at);
    double uses; /* how often a sample uses each element of its matrices and filters, next to other
                    links (a filter: pixels). Stages of equal work come from it */
} td_chain_link;

typedef struct td_module_type {
    const char *name; /* "Conv2d", for messages and td_summary */
    /* Computes the result for x with operations and the children's forward. Call them as td_..._at
     * with `at` (td_add_at(x, y, at)), so that messages name the user's line. */
    td_tensor *(*forward)(td_module *self, td_tensor *x, td_site at);
    /* Instead of forward, or beside it, for a module of two inputs: td_forward2 runs it.
     * td_recompute does not take such a module; use it on a module around this one, or on those
     * inside. */
    td_tensor *(*forward2)(td_module *self, td_tensor *a, td_tensor *b, td_site at);
    void (*free)(
        td_module *self); /* frees what the state owns, but no children or tensors; NULL: none */
    /* Writes what distinguishes this module from others of its type ("3, 64, kernel 7x7"); may be
     * NULL. */
    void (*describe)(const td_module *self, char *text, size_t size);
    /* Multiply-adds of one forward, for td_summary; NULL: 0. */
    int64_t (*multiply_adds)(const td_module *self, td_shape in, td_shape out);
    /* For td_module_clone. The library has copied the state, and replaced its pointers to children
     * and tensors by pointers to the children and tensors of `to`. If the state points to anything
     * else, copy that. A type that has `free` needs `copy`. */
    td_status (*copy)(td_module *to, const td_module *from);
    bool takes_indices; /* x holds i64 indices (tokens), not numbers */
    /* For td_module_chain; NULL: the module is one link. */
    int (*chain)(td_module *self, td_chain_link *links);
} td_module_type;

typedef struct td_named_tensor {
    const char *name; /* within its module: "weight"; in td_state_list: the whole path */
    td_tensor *tensor;
    bool buffer; /* not trained */
} td_named_tensor;

struct td_module {
    const td_module_type *type;
    const char *name; /* within its parent; "" at the top */
    td_module **children;
    int child_count;
    td_named_tensor *tensors; /* own parameters and buffers, in the order of registration */
    int tensor_count;
    bool training;
    td_device device;
    td_dtype dtype;
    void *state; /* the type's own struct; freed with the module */
};

/* A module of a type, with state_size bytes of zeroed state. NULL when memory is short. */
td_module *td_module_new(const td_module_type *type, size_t state_size);

/* Add a child, a parameter (it becomes a leaf) or a buffer under a name; the module owns it from
 * then on. They return what was added. Adding NULL is allowed: td_module_finish then frees the
 * module and returns NULL, so a constructor need not check each of them. */
td_module *td_module_add_at(td_module *parent, const char *name, td_module *child, td_site at);
td_tensor *td_module_parameter_at(td_module *m, const char *name, td_tensor *t, td_site at);
td_tensor *td_module_buffer_at(td_module *m, const char *name, td_tensor *t, td_site at);
/* Makes a parameter (f32 on cpu:0, contents undefined) and adds it. */
td_tensor *td_module_new_parameter_at(td_module *m, const char *name, td_shape shape,
                                      td_layout layout, td_site at);
td_module *td_module_finish(td_module *m);
#define td_module_add(...) td_module_add_at(__VA_ARGS__, TD_HERE)
#define td_module_parameter(...) td_module_parameter_at(__VA_ARGS__, TD_HERE)
#define td_module_buffer(...) td_module_buffer_at(__VA_ARGS__, TD_HERE)
#define td_module_new_parameter(...) td_module_new_parameter_at(__VA_ARGS__, TD_HERE)

/* What a module is in its model. Whoever builds a model marks its parts; recomputation
 * (td_model_recompute) and sharding (td_zero) treat the model accordingly. The models of td_model
 * are marked. */
typedef enum td_module_part {
    TD_PART_NONE,
    TD_PART_BLOCK, /* a residual block, a layer of a transformer */
    TD_PART_STAGE, /* blocks of one size */
    TD_PART_STEM,  /* what comes before the first block */
} td_module_part;
/* Returns m. m NULL: nothing happens. */
td_module *td_module_mark(td_module *m, td_module_part part);
td_module_part td_module_part_of(const td_module *m);

/* Writes the links of a module, in the order in which they run, to links unless that is NULL;
 * returns their number. Running one link after the other is the module's forward, bit for bit. A
 * part around which functions run (nn/around.h) is one link. */
int td_module_chain(td_module *m, td_chain_link *links);

/* ---- initial values, drawn from the default generator as PyTorch draws them ---- */

void td_init_kaiming_uniform_(td_tensor *weight); /* a = sqrt(5): what Linear and Conv2d do */
void td_init_bias_uniform_(td_tensor *bias, int64_t fan_in);
void td_init_kaiming_normal_fan_out_(td_tensor *weight); /* gain of relu */
void td_init_kaiming_normal_fan_in_(td_tensor *weight);

/* ---- walking a model ---- */

/* The module after m, of top and all below, parents first; NULL: m is the last one.
 *
 *     for (td_module *m = top; m != NULL; m = td_module_next(top, m)) { ... }                    */
td_module *td_module_next(const td_module *top, const td_module *m);

/* The path of m below top ("layer1.0.conv1"); "" for top itself. */
const char *td_module_path(const td_module *top, const td_module *m);

/* The module below m with this path ("layer1.0.conv1"), or NULL. */
td_module *td_module_find(td_module *m, const char *path);

/* All parameters and buffers with their paths, in the order of PyTorch's state_dict: a module's own
 * first, then its children's. A shared tensor appears under each of its names. count is -1 when
 * memory is short. Free the list with td_state_list_free. */
typedef struct td_state_list {
    td_named_tensor *items; /* the list owns the names */
    int count;
} td_state_list;
td_state_list td_module_state(const td_module *m);
void td_state_list_free(td_state_list *list);

/* A second model with the same structure and values, on the same device. Pointers in modules'
 * states to modules and tensors of the model become pointers to their copies. Gradients, hooks and
 * td_parameters are not copied. NULL with td_last_error(): no memory, or a type without `copy`. */
td_module *td_module_clone(const td_module *m);

/* ---- models by name ---- */

const char *td_model_name(int i); /* the names, i from 0; NULL past the last */

/* The arguments with which td_model made a model. td_checkpoint_save and
 * td_save write the record as metadata ("model.arch", ...), and td_load_model makes the model again
 * from it. */
typedef struct td_model_record {
    const char *arch; /* "resnet50"; NULL: the model was made in another way */
    int64_t classes;
    td_stem stem;
    int64_t image_size; /* 0: the default */
} td_model_record;
td_model_record td_model_record_of(const td_module *m);

/* Switches td_recompute on for a model's stem and every block (TD_PART_BLOCK) or every stage
 * (TD_PART_STAGE), and off for all else; TD_PART_NONE: for all. Returns the number of blocks or
 * stages; 0 if the model has none. */
int td_model_recompute(td_module *net, td_module_part part);

/* Puts the parameters into another order in memory: parameter order[k] is placed k-th (order is
 * a permutation). Each parameter keeps its index, values, gradient and optimizer state; only
 * td_param.begin changes. TD_E_NOMEM: nothing has changed. */
td_status td_params_reorder(td_params *params, const int *order);

/* The long array of all parameters, and the array of their gradients; both are 1-d and equally long
 * (td_parameters). The model owns them. */
td_tensor *td_params_flat(const td_params *params);
td_tensor *td_params_flat_grad(const td_params *params);

TD_END_C
