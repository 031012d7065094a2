/* Modules, layers, models and parameters.
 *
 * A module is a layer or a network: it owns its parameters (trained), its buffers (not trained, for
 * example running statistics) and its children (other modules). Names are PyTorch's, so that
 * "layer1.0.conv1.weight" means the same tensor here and there.
 *
 * You call functions without the ending _at and without their last argument: macros at the end of
 * this file supply the file and line of your call. A constructor returns NULL when memory is short,
 * and td_last_error() says so; passing NULL on to another constructor is fine, and gives NULL
 * again. Options that do not make sense are a mistake of the program: it stops with a message that
 * names the caller's line.
 *
 * For modules of your own: nn/module.h. For safetensors files: nn/io/safetensors.h. */
#pragma once

#include "autograd/autograd.h"

TD_BEGIN_C

typedef struct td_module td_module;

/* Runs a module on x and returns its result, a step tensor. Other tensors that are made inside the
 * forward are released when it returns, unless backward needs them. */
td_tensor *td_forward_at(td_module *m, td_tensor *x, td_site at);
/* The same for a module of two inputs. To write such a module, set forward2 instead of forward in
 * its type (nn/module.h). */
td_tensor *td_forward2_at(td_module *m, td_tensor *a, td_tensor *b, td_site at);

/* Frees a module and all below. Free its optimizers and its td_ema first; otherwise the program
 * stops with a message. NULL is fine. */
void td_module_free_at(td_module *m, td_site at);

/* Sets the mode of a module and all modules inside it: training, in which modules are made, or
 * evaluation. Only dropout and batch normalisation compute something else in evaluation. */
void td_train(td_module *m);
void td_eval(td_module *m);

/* Moves parameters and buffers to a device and converts them to a float dtype. Call it before
 * td_parameters. */
td_status td_module_to_at(td_module *m, td_device device, td_dtype dtype, td_site at);

int64_t td_parameter_count(const td_module *m); /* elements; shared parameters count once */

/* Prints a table of layers with output shape, parameters and multiply-adds, and the totals. Runs
 * one forward in evaluation mode on zeros of the given input shape. */
td_status td_summary_at(td_module *m, td_shape input, FILE *out, td_site at);

/* Keeps only the input of m for backward, and runs m's forward a second time in backward: less
 * memory, more time, the same bits. In the second forward Dropout draws the same mask, and
 * BatchNorm does not count the batch again. A forward of your own must not draw random numbers or
 * count its calls. Use it for modules that contain others; it may be nested. */
void td_recompute(td_module *m, bool on);

/* ---- layers; initialised as PyTorch's layer of the same name ---- */

/* td_nn_linear(in, out, ...): y = x w^T + b; weight [out,in], bias [out]. */
typedef struct td_nn_linear_options {
    int begin_; /* for the library: lets the macro take an empty list */
    int64_t in, out;
    bool no_bias;
} td_nn_linear_options;
td_module *td_nn_linear_at(td_nn_linear_options options, td_site at);

/* td_nn_conv2d(in, out, ...): td_conv2d with weight [out,in/groups,KH,KW] and bias [out]. An option
 * is given for height and width together (.kernel = 3) or for each (.kernel_hw = { 7, 1 }). */
typedef struct td_nn_conv2d_options {
    int begin_;
    int64_t in, out;
    int kernel, stride, padding, dilation; /* defaults, if 0: 1, 1, 0, 1 */
    int kernel_hw[2], stride_hw[2], padding_hw[2], dilation_hw[2];
    int groups; /* 0: 1 */
    bool no_bias;
    bool same;   /* instead of padding: as td_conv2d's */
    int pads[4]; /* instead of padding: top, left, bottom, right */
} td_nn_conv2d_options;
td_module *td_nn_conv2d_at(td_nn_conv2d_options options, td_site at);

/* td_nn_batch_norm2d(channels, ...): td_batch_norm of [N,C,...]: PyTorch's BatchNorm1d, BatchNorm2d
 * and BatchNorm3d. */
typedef struct td_nn_batch_norm2d_options {
    int begin_;
    int64_t channels;
    double eps, momentum; /* 0: 1e-5 and 0.1; running = (1 - momentum) running + momentum batch */
    bool no_weight;       /* the scale is 1 and not trained */
    bool cumulative;      /* instead of momentum: the running statistics are averages over all
                             batches (PyTorch: momentum=None). A buffer "num_batches_tracked" counts
                             the batches */
} td_nn_batch_norm2d_options;
td_module *td_nn_batch_norm2d_at(td_nn_batch_norm2d_options options, td_site at);

/* td_nn_layer_norm(features, ...): td_layer_norm over the last dimension, or, with .shape instead
 * of features, over the last dimensions, of that shape. */
typedef struct td_nn_layer_norm_options {
    int begin_;
    int64_t features;
    td_shape shape;
    double eps;              /* 0: 1e-5 */
    bool no_weight, no_bias; /* without a weight there is no bias either */
    bool for_products; /* only products (linear, convolutions, matmul) take the result: under a
                          16-bit precision of td_set_math a GPU writes it in 16 bits at once */
} td_nn_layer_norm_options;
td_module *td_nn_layer_norm_at(td_nn_layer_norm_options options, td_site at);

/* td_nn_max_pool2d(kernel, ...) and td_nn_avg_pool2d(kernel, ...): td_max_pool2d, td_avg_pool2d
 * (autograd/ops.h). */
typedef struct td_nn_pool2d_options {
    int begin_;
    int kernel, stride, padding; /* stride 0: the kernel */
    int kernel_hw[2], stride_hw[2], padding_hw[2];
    bool exclude_pad; /* average: divide by the number of places inside the image */
    bool ceil_mode;
    int dilation; /* of the maximum; 0: 1 */
} td_nn_pool2d_options;
td_module *td_nn_max_pool2d_at(td_nn_pool2d_options options, td_site at);
td_module *td_nn_avg_pool2d_at(td_nn_pool2d_options options, td_site at);
td_module *td_nn_global_avg_pool2d(void); /* nn.AdaptiveAvgPool2d(1) */

td_module *td_nn_relu(void);
td_module *td_nn_gelu(void);
td_module *td_nn_silu(void);
td_module *td_nn_sigmoid(void);
td_module *td_nn_tanh(void);
td_module *td_nn_softmax(void); /* over dimension 1, the classes; not before td_cross_entropy */
td_module *td_nn_flatten(void); /* [N,...] -> [N,d] */

/* Dropout draws from a stream of its own, which depends on td_manual_seed and on its place in the
 * model. StochasticDepth drops whole samples (torchvision's, mode "row"). */
td_module *td_nn_dropout_at(double p, td_site at);
td_module *td_nn_dropout2d_at(double p, td_site at); /* whole channels */
td_module *td_nn_stochastic_depth_at(double p, td_site at);

/* td_nn_embedding(rows, features, ...): weights normal(0, 1). */
typedef struct td_nn_embedding_options {
    int begin_;
    int64_t rows, features;
    bool has_padding;    /* row padding_idx begins as 0 and gets no gradient */
    int64_t padding_idx; /* negative: from the end */
} td_nn_embedding_options;
td_module *td_nn_embedding_at(td_nn_embedding_options options, td_site at);

/* td_nn_sequential(a, b, ...) runs its children one after the other; they are named "0", "1", ...
 * Neighbouring Conv2d, BatchNorm2d, ReLU and MaxPool2d are fused: computed in fewer passes over
 * memory. td_nn_sequential_list(children, count) takes an array.
 *
 * Children draw their initial weights when the call's arguments are evaluated. C does not define
 * the order; gcc and clang go from left to right. */
td_module *td_nn_sequential_at(td_module *const *children, int count, td_site at);

/* ---- models ---- */

/* A ResNet's first layers: 7x7 with stride 2 and a max-pool, or 3x3 with stride 1. */
typedef enum td_stem { TD_STEM_IMAGENET = 0, TD_STEM_CIFAR = 1 } td_stem;

/* td_model(name, ...): a model by torchvision's name ("resnet50", "regnet_y_16gf"; "regnety_160" is
 * accepted, too), for images [N,3,H,W] -> logits [N,classes], with torchvision's parameter names
 * and initial weights. Unlike the layers, td_model returns NULL with td_last_error() also for an
 * unknown name (the message suggests the nearest) and for options out of range. */
typedef struct td_model_options {
    int begin_;
    const char *name;
    int64_t classes;    /* 0: 1000 */
    td_stem stem;       /* ResNets and BoTNet; others have ImageNet's only */
    int64_t image_size; /* BoTNet: the side of its images, 0: 224. Other models take any size */
    bool blank;         /* weights are 0, not random: for a model whose weights are loaded next */
    double dropout, stochastic_depth; /* EfficientNet; 0: the model's own */
} td_model_options;
td_module *td_model_at(td_model_options options, td_site at);

/* ---- a model that is larger than a process's memory ---- */

/* Between td_defer_init(true) and td_defer_init(false) this thread's modules get deferred
 * parameters: matrices and filters (two or more dimensions) without memory and values. A deferred
 * parameter records how to draw its values, and the default generator skips those draws.
 * td_ddp(net, .strategy = td_zero(3)) then draws one parameter at a time, and each rank keeps only
 * its part (docs/sharding.md calls it the rank's window). So no rank ever has the whole model in
 * memory. The values, and the generator's state afterwards, are the same as without td_defer_init.
 *
 * Before td_ddp only td_module_to and the initialisations of
 * nn/module.h that draw may use a deferred parameter; another use is a fatal
 * error that names the parameter. Returns the setting before the
 * call. */
bool td_defer_init(bool on);

/* ---- parameters ---- */

/* All parameters of a model. The first call moves them into one long array, one after the other in
 * the order of registration, and their gradients into another; every later call returns the same
 * list. td_ddp rearranges both arrays in the order in which backward computes gradients.
 *
 * Frozen parameters (td_requires_grad off) are in the list, too: optimizers skip them, and train
 * them as soon as they take gradients again. td_ddp is stricter: it shares the parameters that take
 * gradients when it is called, and stops if one of them is frozen, or another one is trained,
 * afterwards. m must be the whole model. The list belongs to the model. NULL when memory is short.
 */
typedef struct td_params td_params;
td_params *td_parameters_at(td_module *m, td_site at);

typedef struct td_param {
    const char *name;     /* its path */
    td_tensor *tensor;    /* a leaf, and a view of the long array */
    int64_t begin, count; /* in elements, in both arrays; each begins at a multiple of 64 bytes */
} td_param;
int td_params_count(const td_params *params);
const td_param *td_params_get(const td_params *params, int i);

/* td_clip_grad_norm(params, max_norm, ...): call it between td_backward and td_optim_step. Scales
 * all gradients by max_norm / (norm + 1e-6) if their norm, taken over all of them together, is
 * larger than max_norm. Returns the norm before scaling. In a captured step (a CUDA graph:
 * tensor/graph/captured.h) it returns NAN, because the number is only on the GPU. */
typedef struct td_clip_options {
    int begin_;
    td_params *params;
    double max_norm;
    double norm_type; /* 0: 2. INFINITY: the largest. Others are computed on the CPU, not in
                         captured steps */
} td_clip_options;
double td_clip_grad_norm_at(td_clip_options options, td_site at);
/* Puts each element of the gradients between -limit and limit. */
void td_clip_grad_value_at(td_params *params, double limit, td_site at);

TD_END_C

/* ---- what you call ---- */

#define td_forward(...) td_forward_at(__VA_ARGS__, TD_HERE)
#define td_forward2(...) td_forward2_at(__VA_ARGS__, TD_HERE)
#define td_module_free(...) td_module_free_at(__VA_ARGS__, TD_HERE)
#define td_module_to(...) td_module_to_at(__VA_ARGS__, TD_HERE)
#define td_summary(...) td_summary_at(__VA_ARGS__, TD_HERE)
#define td_parameters(...) td_parameters_at(__VA_ARGS__, TD_HERE)
#define td_clip_grad_norm(...)                                                                     \
    td_clip_grad_norm_at((td_clip_options){ TD_OPT2(params, max_norm, __VA_ARGS__) }, TD_HERE)
#define td_clip_grad_value(...) td_clip_grad_value_at(__VA_ARGS__, TD_HERE)
#define td_nn_linear(...) TD_CALL(td_nn_linear, TD_OPT2(in, out, __VA_ARGS__))
#define td_nn_conv2d(...) TD_CALL(td_nn_conv2d, TD_OPT2(in, out, __VA_ARGS__))
#define td_nn_batch_norm2d(...) TD_CALL(td_nn_batch_norm2d, TD_OPT1(channels, __VA_ARGS__))
#define td_nn_layer_norm(...) TD_CALL(td_nn_layer_norm, TD_OPT1(features, __VA_ARGS__))
#define td_nn_max_pool2d(...)                                                                      \
    td_nn_max_pool2d_at((td_nn_pool2d_options){ TD_OPT1(kernel, __VA_ARGS__) }, TD_HERE)
#define td_nn_avg_pool2d(...)                                                                      \
    td_nn_avg_pool2d_at((td_nn_pool2d_options){ TD_OPT1(kernel, __VA_ARGS__) }, TD_HERE)
#define td_nn_dropout(...) td_nn_dropout_at(__VA_ARGS__, TD_HERE)
#define td_nn_dropout2d(...) td_nn_dropout2d_at(__VA_ARGS__, TD_HERE)
#define td_nn_stochastic_depth(...) td_nn_stochastic_depth_at(__VA_ARGS__, TD_HERE)
#define td_nn_embedding(...) TD_CALL(td_nn_embedding, TD_OPT2(rows, features, __VA_ARGS__))
#ifdef __cplusplus /* g++ takes no address of a temporary array */
extern "C++" template <typename... Modules>
inline td_module *td_nn_sequential_of(td_site at, Modules... children)
{
    td_module *const list[] = { children... };
    return td_nn_sequential_at(list, (int)sizeof...(children), at);
}
#define td_nn_sequential(...) td_nn_sequential_of(TD_HERE, __VA_ARGS__)
#else
#define td_nn_sequential(...)                                                                      \
    td_nn_sequential_at((td_module *[]){ __VA_ARGS__ },                                            \
                        (int)(sizeof((td_module *[]){ __VA_ARGS__ }) / sizeof(td_module *)),       \
                        TD_HERE)
#endif
#define td_nn_sequential_list(...) td_nn_sequential_at(__VA_ARGS__, TD_HERE)
#define td_model(...) TD_CALL(td_model, TD_OPT1(name, __VA_ARGS__))
