/* Modules, models, initialisation, optimizers, checkpoints: the nn module. It knows nothing of data
 * or dist. */
#ifndef TD_NN_NN_H
#define TD_NN_NN_H

#include "autograd/autograd.h"

/* ---- modules ----
 *
 * A module has a type, named children, named parameters and buffers, and a forward. Names build the
 * paths that PyTorch's state_dict has: "layer1.0.conv1.weight". A module owns its children,
 * parameters and buffers; td_module_free ends them all. Constructors return NULL with
 * td_last_error() when memory is short; passing such a NULL on as a child passes the failure on. */

typedef struct td_module td_module;

typedef struct td_module_type {
    const char *name; /* "Conv2d" */
    td_tensor *(*forward)(td_module *self, td_tensor *x, td_site at);
    void (*free)(td_module *self);                                    /* own extras; may be NULL */
    void (*describe)(const td_module *self, char *text, size_t size); /* "3, 64, kernel 7x7"; may be
                                                                         NULL */
    /* Multiply-adds of one forward for the shapes seen; NULL: 0. */
    int64_t (*multiply_adds)(const td_module *self, td_shape in, td_shape out);
    /* For td_module_clone, where state holds more than plain values and pointers to children and
     * tensors: makes to's state its own; to has it byte by byte so far. A type with free needs it.
     */
    td_status (*copy)(td_module *to, const td_module *from);
    /* A wrapper of one child: the child's paths do not show it, so that checkpoints of the wrapped
     * and of the bare model are the same. */
    bool transparent;
} td_module_type;

typedef struct td_named_tensor {
    const char *name; /* within its module: "weight"; in lists: the whole path */
    td_tensor *tensor;
    bool buffer; /* not trained: running statistics */
} td_named_tensor;

struct td_module {
    const td_module_type *type;
    const char *name; /* within its parent; "" at the top; owned */
    td_module **children;
    int child_count;
    td_named_tensor *tensors; /* own parameters and buffers, in the order of registration */
    int tensor_count;
    bool training; /* starts true */
    td_device device;
    td_dtype dtype;
    void *state; /* the type's own: a struct per type; freed by the module */
};

/* For writing modules: a module of a type with zeroed state of the given size; children and tensors
 * are added under names. Adding NULL marks the module as failed: td_module_finish then frees it and
 * returns NULL. */
td_module *td_module_new(const td_module_type *type, size_t state_size);
td_module *td_module_add(td_module *parent, const char *name, td_module *child); /* -> child */
td_tensor *td_module_parameter(td_module *m, const char *name, td_tensor *t);    /* -> t, a leaf */
td_tensor *td_module_buffer(td_module *m, const char *name, td_tensor *t);
td_module *td_module_finish(td_module *m);
void td_module_free(td_module *m); /* NULL is fine */

/* Runs a module: names it for messages, opens a scope so that what it makes on the way is given
 * back, and calls its forward. */
td_tensor *td_forward(td_module *m, td_tensor *x, td_site at);
#define td_forward(...) td_forward(__VA_ARGS__, TD_HERE)

/* Recomputation: a module keeps nothing for backward but its input, and backward runs its forward a
 * second time. Memory for time: the same bits, gradients and running statistics as without. For
 * modules that contain others, also inside of each other; a module without children has nothing
 * to save, and only its mark is kept (a ResNet's conv1 stands for its whole stem: conv1, bn1, the
 * pool). A module's forward must depend on its input and parameters alone. */
void td_recompute(td_module *m, bool on);

void td_train(td_module *m); /* the module and all below */
void td_eval(td_module *m);

/* Moves parameters and buffers to a device and float dtype (before the first td_parameters). */
td_status td_module_to(td_module *m, td_device device, td_dtype dtype);

/* All parameters and buffers with their paths, in PyTorch's state_dict order (a module's own first,
 * then its children's). A shared tensor appears under each of its names. Memory short: count -1. */
typedef struct td_state_list {
    td_named_tensor *items; /* names owned by the list */
    int count;
} td_state_list;
td_state_list td_module_state(const td_module *m);
void td_state_list_free(td_state_list *list);

/* Calls fn for the module and all below, parents first, with the path ("" at the top). */
void td_module_each(td_module *m, void (*fn)(td_module *m, const char *path, void *user),
                    void *user);
td_module *td_module_find(td_module *m, const char *path); /* NULL: there is none */

/* A model of its own with the same structure and values, on the same device: for replicas. Pointers
 * in the modules' states to modules and tensors of the model become pointers to their copies; what
 * is shared within the model is shared within the copy. Gradients, hooks and td_parameters are not
 * copied. NULL with td_last_error(): memory, or a type that cannot be copied. */
td_module *td_module_clone(const td_module *m);

int64_t td_parameter_count(const td_module *m); /* elements of all parameters; shared ones once */

/* A table of layer, output shape, parameters, multiply-adds, made by one forward in evaluation mode
 * on zeros of the given input shape; then the totals. */
td_status td_summary(td_module *m, td_shape input, FILE *out);

/* ---- layers; each header line gives the PyTorch module whose initialisation it repeats ---- */

td_module *td_nn_linear(int64_t in, int64_t out); /* nn.Linear: weight, then bias */
td_module *td_nn_linear_no_bias(int64_t in, int64_t out);
typedef struct td_nn_conv2d_options {
    int kernel[2], stride[2], padding[2], dilation[2]; /* as td_conv2d_options; kernel 0: 1 */
    int groups;
    bool no_bias;
} td_nn_conv2d_options;
td_module *td_nn_conv2d(int64_t in, int64_t out,
                        const td_nn_conv2d_options *options); /* nn.Conv2d */
td_module *td_nn_batch_norm2d(int64_t channels); /* nn.BatchNorm2d: eps 1e-5, momentum 0.1 */
typedef struct td_nn_batch_norm2d_options {
    double eps, momentum; /* 0: 1e-5 and 0.1; running = (1 - momentum) running + momentum batch */
    bool no_weight;       /* the scale is 1 and is no parameter */
} td_nn_batch_norm2d_options;
td_module *td_nn_batch_norm2d_with(int64_t channels, const td_nn_batch_norm2d_options *options);
td_module *td_nn_layer_norm(int64_t features); /* nn.LayerNorm */
td_module *td_nn_relu(void);
td_module *td_nn_gelu(void);
td_module *td_nn_silu(void);
td_module *td_nn_scale(double factor); /* x * factor */
td_module *td_nn_max_pool2d(int kernel, int stride, int padding);
td_module *td_nn_avg_pool2d(int kernel, int stride, int padding);
td_module *td_nn_global_avg_pool2d(void); /* nn.AdaptiveAvgPool2d(1) */
td_module *td_nn_flatten(void);           /* from dimension 1 */
td_module *td_nn_dropout(double p);       /* its own Philox stream, by its place in the model */
/* torchvision's StochasticDepth of mode "row": in training whole samples become 0 with probability
 * p, the rest is scaled; its own Philox stream, like Dropout's. */
td_module *td_nn_stochastic_depth(double p);
td_module *td_nn_embedding(int64_t rows, int64_t features); /* nn.Embedding: normal(0,1) */

/* Children named "0", "1", ...: td_nn_sequential(td_nn_linear(13, 64), td_nn_relu(), ...). It fuses
 * a BatchNorm2d with a Conv2d before it and with a ReLU, or a ReLU and a MaxPool2d, behind it. C
 * leaves the order open in which the macro's arguments draw their initial values; gcc and clang go
 * from left to right, which a test holds them to. */
td_module *td_nn_sequential_list(td_module *const *children, int count);
#define td_nn_sequential(...)                                                                      \
    td_nn_sequential_list((td_module *[]){ __VA_ARGS__ },                                          \
                          (int)(sizeof((td_module *[]){ __VA_ARGS__ }) / sizeof(td_module *)))

/* BatchNorm2d's forward with what can be fused into its pass: [+ add] and relu. */
td_tensor *td_nn_batch_norm2d_fused(td_module *bn, td_tensor *x, td_tensor *add, bool relu,
                                    td_site at);

/* What follows a BatchNorm2d and is done in its pass. */
typedef struct td_nn_batch_norm_then {
    td_tensor *add; /* is added */
    bool relu;
    td_module *max_pool; /* a MaxPool2d that comes after all that; NULL: none */
} td_nn_batch_norm_then;

/* bn(conv(x)) and what follows (NULL: nothing): in bf16 training the statistics are taken while
 * the convolution writes its result, and with max_pool and relu the normalised images are never
 * written. What cannot be fused (SyncBatchNorm, a summary that watches) runs one by one, with the
 * same result. */
td_tensor *td_nn_conv2d_batch_norm(td_module *conv, td_module *bn, td_tensor *x,
                                   const td_nn_batch_norm_then *then, td_site at);

/* ---- initialisation (PyTorch's, from the default generator) ---- */

void td_init_kaiming_uniform_(td_tensor *weight); /* a = sqrt(5): Linear's and Conv2d's */
void td_init_bias_uniform_(td_tensor *bias, int64_t fan_in);
void td_init_kaiming_normal_fan_out_(td_tensor *weight); /* gain of relu */
void td_init_kaiming_normal_fan_in_(td_tensor *weight);
/* nn.init.dirac_ of the first `filters` filters of weight [O,I,KH,KW] (as many as there are inputs,
 * if that is fewer): filter i hands input i on. The others stay. */
void td_init_dirac_(td_tensor *weight, int64_t filters);
/* Filters [2 I KH KW, I,KH,KW] that whiten patches of images [N,I,H,W] (f32, on the CPU): the
 * eigenvectors of the patches' covariance (about 0) over sqrt(eigenvalue + eps), the largest first;
 * then their negatives, so that what comes behind a relu or gelu loses nothing. */
td_status td_init_whitening_(td_tensor *weight, const td_tensor *images, double eps);

/* ---- models ---- */

typedef enum td_stem { TD_STEM_IMAGENET = 0, TD_STEM_CIFAR = 1 } td_stem;
/* torchvision's ResNets: parameter names, initialisation and order of draws. ImageNet stem: 7x7
 * stride 2 and max-pool; CIFAR stem: 3x3 stride 1, no pool. depth 18, 34, 50, 101 or 152; otherwise
 * NULL. */
td_module *td_resnet(int depth, int64_t classes, td_stem stem);

/* The network of airbench94 for pictures of 32x32: whitening convolution, three blocks, logits
 * scaled by 1/9. Its first weight is frozen and wants td_init_whitening_. */
typedef struct td_airbench_options {
    int64_t widths[3]; /* of the blocks; 0: 64, 256, 256 */
    bool unit_head;    /* the Muon recipe's: the last layer starts with standard deviation 1, and
                          logits    are divided by its inputs' number instead of 9 */
} td_airbench_options;
td_module *td_airbench(int64_t classes, const td_airbench_options *options);
td_tensor *td_airbench_whiten(td_module *airbench, bool bias); /* the first weight, or its bias */

typedef struct td_model_options {
    int64_t classes;    /* 0: 1000 */
    td_stem stem;       /* ResNets and BoTNet; the others have ImageNet's only */
    int64_t image_size; /* BoTNet learns a vector for every distance: the side of its pictures; 0:
                           224. The others take any size */
    bool blank; /* weights are 0 instead of drawn, for a model that is loaded next: large ones take
                   seconds to draw */
    double dropout, stochastic_depth; /* EfficientNet; 0: the model's own; below 0: none */
} td_model_options;
/* A model by torchvision's name for it ("resnet50", "regnet_y_16gf") or the article's
 * ("regnety_160"), with torchvision's parameter names, initialisation and order of draws. Pictures
 * [N,3,H,W] -> logits [N,classes]. options NULL: all defaults. NULL with td_last_error(): no such
 * name (the message has the nearest), options out of range, no memory. */
td_module *td_model(const char *name, const td_model_options *options);
/* The names, i from 0; NULL past the last. */
const char *td_model_name(int i);

/* What td_model, td_resnet or td_airbench made a model with. td_checkpoint_save and td_save write
 * the record as metadata ("model.arch", ...), and td_load_model makes the model again from it. */
typedef struct td_model_record {
    const char *arch; /* "resnet50", "airbench94"; NULL: the model was made in another way */
    int64_t classes;
    td_stem stem;
    int64_t image_size; /* 0: the default */
    int64_t widths[3];  /* of td_airbench's blocks */
    bool unit_head;     /* td_airbench's option */
} td_model_record;
td_model_record td_model_record_of(const td_module *m); /* m may be a wrapper: td_ddp's */

/* td_recompute for a model of td_model or td_resnet, or a wrapper of one: for each of its blocks (a
 * residual block, a dense layer), or of its stages, which hold some blocks each; in both cases for
 * its stem as well where that is a module or a ResNet's; or for none any more. Returns how many
 * blocks or stages that are; 0 for another model, which is left as it is. */
typedef enum td_recompute_parts {
    TD_RECOMPUTE_NOTHING,
    TD_RECOMPUTE_BLOCKS,
    TD_RECOMPUTE_STAGES,
} td_recompute_parts;
int td_model_recompute(td_module *net, td_recompute_parts parts);

/* ---- parameters, flat ---- */

typedef struct td_params td_params;
/* Lays a model's parameters, and their gradients, out in one flat buffer each (each slice starts on
 * a 64-byte boundary, gaps are zero), in the order of registration; shared parameters once. Those
 * that are frozen (td_requires_grad off) at the first call stay out. All must be of the model's
 * dtype and device. The model keeps using them as before. Belongs to the model, which must be the
 * whole one; the same list on every call. NULL when memory is short. */
td_params *td_parameters(td_module *m);

typedef struct td_param {
    const char *name;
    td_tensor *tensor;    /* the leaf; its storage is a slice of the flat buffer */
    int64_t begin, count; /* in elements, within the flat buffer */
} td_param;
int td_params_count(const td_params *params);
const td_param *td_params_get(const td_params *params, int i);
td_tensor *td_params_flat(const td_params *params);      /* 1-d */
td_tensor *td_params_flat_grad(const td_params *params); /* 1-d, same length */
/* Lays them out anew: order[k] (a permutation of 0..count-1) is the parameter that becomes the k-th
 * in memory. That is what DDP does once it knows the order in which gradients become ready. Values,
 * gradients, leaves and the numbers i of td_params_get stay, `begin` changes; the state of
 * optimizers over these parameters moves along. TD_E_NOMEM: nothing has changed. */
td_status td_params_reorder(td_params *params, const int *order);

/* The total norm of all gradients; if it is larger than max_norm, they are scaled by
 * max_norm/(norm + 1e-6). Returns the norm before; in a captured step, where only the device knows
 * it, NAN. */
double td_clip_grad_norm(td_params *params, double max_norm);

#include "nn/optim/optim.h"
#include "nn/optim/ema.h"
#include "nn/optim/lookahead.h"
#include "nn/optim/scaler.h"
#include "nn/checkpoint.h"

#endif
