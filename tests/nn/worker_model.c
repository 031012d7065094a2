/* For test_apps_predict.sh and test_onnx_runtime.sh: writes models that have learned nothing.
 *
 * usage: worker_model NAME CLASSES PATH [KEY VALUE]...     the pairs become metadata
 *        worker_model onnx FOLDER SIDE NAME...   td_model's, for images of side x side
 *        worker_model onnx FOLDER layers         nn/extra's layers
 *        worker_model onnx FOLDER cases          the cases of tests/autograd/ops_cases.def
 *
 * onnx: FOLDER gets NAME.onnx, and NAME.safetensors with the inputs "input" (and "input2", for
 * cases of several inputs) and tandem's result "output". For models and layers the batch size is
 * dynamic, and 3 in place of the 2 that was exported. A line "NAME: why" tells what has no ONNX
 * form.
 */
#include "nn/extra/layers.h"
#include "nn/io/safetensors.h"
#include "nn/module.h"
#include "nn/onnx/onnx.h"
#include "tandem.h"
#include "tensor/extend.h"
#include "tests/autograd/ops_cases.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 8 };

static void *row_major(const td_tensor *t)
{
    size_t bytes = (size_t)td_numel(t) * td_dtype_size(t->dtype);
    void *data = malloc(bytes + 1);
    if (data == NULL) {
        exit(1);
    }
    td_read(t, data, t->dtype);
    return data;
}

static td_safetensors_entry entry(const char *name, const td_tensor *t)
{
    return (td_safetensors_entry){ name, t->dtype, td_shape_of(t), row_major(t),
                                   (size_t)td_numel(t) * td_dtype_size(t->dtype) };
}

/* The file, its inputs (x2 NULL: one) and the result. */
static void export(td_module *net, const char *folder, const char *name, td_onnx_options options,
                   td_tensor *x, td_tensor *x2)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s.onnx", folder, name);
    options.model = net;
    options.path = path;
    if (td_onnx_export_at(options, TD_HERE) != TD_OK) {
        printf("%s: %s\n", name, td_last_error());
        return;
    }
    td_eval(net);
    td_step_begin();
    td_no_grad_begin();
    td_tensor *y = x2 != NULL ? td_forward2(net, x, x2) : td_forward(net, x);
    td_safetensors_entry all[] = { entry("input", x), entry("output", y),
                                   x2 != NULL ? entry("input2", x2) : entry("input2", x) };
    td_no_grad_end();
    td_step_end();
    snprintf(path, sizeof path, "%s/%s.safetensors", folder, name);
    if (td_safetensors_write(path, all, x2 != NULL ? 3 : 2, NULL, 0) != TD_OK) {
        td_die();
    }
    for (int i = 0; i < 3; i++) {
        free((void *)(uintptr_t)all[i].data);
    }
}

static td_tensor *uniform(td_shape shape)
{
    uint64_t state = 5;
    td_tensor *x = td_new(shape, TD_F32, TD_CPU);
    float *values = td_data_rw(x);
    for (int64_t i = 0; i < td_numel(x); i++) {
        values[i] = (float)test_uniform(&state);
    }
    return x;
}

/* Statistics and biases that a wrong one would not go unnoticed beside. */
static void disturb(td_module *net)
{
    td_state_list list = td_module_state(net);
    for (int i = 0; i < list.count; i++) {
        td_tensor *t = list.items[i].tensor;
        float *values = t->ndim == 1 ? td_data_rw(t) : NULL;
        for (int64_t k = 0; values != NULL && k < td_numel(t); k++) {
            values[k] += 0.03f * (float)(k % 7);
        }
    }
    td_state_list_free(&list);
}

static td_tensor *some_tokens(td_shape shape, int64_t vocabulary)
{
    td_tensor *x = td_arange(td_shape_numel(shape), TD_I64, TD_CPU);
    int64_t *values = td_data_rw(x);
    for (int64_t i = 0; i < td_numel(x); i++) {
        values[i] = i * 7 % vocabulary;
    }
    td_tensor *shaped = td_from(values, shape, TD_I64, TD_CPU);
    td_free(x);
    return shaped;
}

/* net is freed. Models of tokens have shape [N,T]. */
static void export_dynamic(td_module *net, const char *folder, const char *name, td_shape shape)
{
    td_shape larger = shape;
    larger.dim[0] = 3;
    if (net == NULL) {
        td_die();
    }
    disturb(net);
    bool tokens = strncmp(name, "gpt", 3) == 0;
    td_tensor *x = tokens ? some_tokens(larger, 10) : uniform(larger);
    export(net, folder, name, (td_onnx_options){ .shape = shape, .dynamic_batch = true }, x, NULL);
    td_free(x);
    td_module_free(net);
}

static void export_layers(const char *folder)
{
    const struct {
        const char *name;
        td_module *net;
        td_shape shape;
    } layers[] = {
        { "conv1d", td_nn_conv1d(6, 8, .kernel = 3, .stride = 2, .groups = 2), TD_SHAPE(2, 6, 11) },
        { "conv2d_pads",
          td_nn_conv2d(4, 6, .kernel_hw = { 3, 2 }, .stride_hw = { 2, 1 }, .dilation_hw = { 1, 2 },
                       .groups = 2, .pads = { 2, 0, 1, 3 }),
          TD_SHAPE(2, 4, 6, 5) },
        { "conv3d", td_nn_conv3d(3, 4, .kernel = 3, .padding = 1), TD_SHAPE(2, 3, 5, 6, 7) },
        { "conv3d_pads",
          td_nn_conv3d(4, 2, .kernel = 2, .stride_dhw = { 2, 1, 3 }, .dilation_dhw = { 1, 2, 1 },
                       .groups = 2, .pads = { 0, 1, 2, 2, 0, 1 }),
          TD_SHAPE(2, 4, 4, 5, 6) },
        { "conv3d_same", td_nn_conv3d(3, 4, .kernel = 2, .same = true), TD_SHAPE(2, 3, 5, 6, 7) },
        { "conv_transpose1d", td_nn_conv_transpose1d(3, 4, .kernel = 3, .stride = 2),
          TD_SHAPE(2, 3, 6) },
        { "conv_transpose2d",
          td_nn_conv_transpose2d(4, 6, .kernel = 3, .stride = 2, .padding = 1, .output_padding = 1,
                                 .groups = 2),
          TD_SHAPE(2, 4, 5, 6) },
        { "group_norm", td_nn_group_norm(.groups = 2, .channels = 6), TD_SHAPE(2, 6, 3, 4) },
        { "instance_norm", td_nn_instance_norm(.channels = 3), TD_SHAPE(2, 3, 4, 5) },
        { "instance_norm_running", td_nn_instance_norm(.channels = 3, .track_running_stats = true),
          TD_SHAPE(2, 3, 4, 5) },
        { "norms_of_images",
          td_nn_sequential(td_nn_conv2d(3, 6, .kernel = 2),
                           td_nn_group_norm(.groups = 2, .channels = 6),
                           td_nn_instance_norm(.channels = 6, .no_weight = true)),
          TD_SHAPE(2, 3, 4, 5) },
        { "rms_norm", td_nn_rms_norm(6), TD_SHAPE(2, 3, 6) },
        { "layer_norm", td_nn_layer_norm(.shape = TD_SHAPE(3, 6)), TD_SHAPE(2, 3, 6) },
        { "batch_norm1d", td_nn_batch_norm2d(5), TD_SHAPE(2, 5, 6) },
        { "batch_norm_cumulative", td_nn_batch_norm2d(5, .cumulative = true),
          TD_SHAPE(2, 5, 3, 2) },
        { "prelu", td_nn_prelu(3), TD_SHAPE(2, 3, 4, 5) },
        { "prelu_one", td_nn_prelu(1), TD_SHAPE(2, 3, 4) },
        { "adaptive_avg_pool1d", td_nn_adaptive_avg_pool1d(3), TD_SHAPE(2, 3, 7) },
        { "adaptive_max_pool1d", td_nn_adaptive_max_pool1d(3), TD_SHAPE(2, 3, 7) },
        { "upsample", td_nn_upsample(.scale = 2.0, .mode = TD_BILINEAR), TD_SHAPE(2, 3, 4, 5) },
        { "adaptive_avg_pool2d", td_nn_adaptive_avg_pool2d(3, 2), TD_SHAPE(2, 3, 7, 5) },
        { "adaptive_max_pool2d", td_nn_adaptive_max_pool2d(3, 2), TD_SHAPE(2, 3, 7, 5) },
        { "perceptron",
          td_nn_sequential(td_nn_flatten(), td_nn_linear(12, 8), td_nn_gelu(), td_nn_dropout(0.5),
                           td_nn_layer_norm(8), td_nn_linear(8, 3, .no_bias = true)),
          TD_SHAPE(2, 3, 4) },
        { "tower",
          td_nn_sequential(td_nn_conv2d(3, 8, .kernel = 3, .same = true), td_nn_batch_norm2d(8),
                           td_nn_relu(), td_nn_max_pool2d(3, .stride = 2, .padding = 1),
                           td_nn_conv2d(8, 8, .kernel = 2, .same = true), td_nn_silu(),
                           td_nn_avg_pool2d(2, .stride = 2, .ceil_mode = true),
                           td_nn_global_avg_pool2d()),
          TD_SHAPE(2, 3, 9, 8) },
    };
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        export_dynamic(layers[i].net, folder, layers[i].name, layers[i].shape);
    }
}

/* ---- a case as a module: its first inputs are x and x2, the others are buffers ---- */

typedef struct case_state {
    const ops_case *c;
    td_tensor *inputs[OPS_MAX_INPUTS];
    int count;
} case_state;

static td_tensor *case_forward2(td_module *self, td_tensor *x, td_tensor *x2, td_site at)
{
    (void)at;
    const case_state *s = self->state;
    td_tensor *in[OPS_MAX_INPUTS] = { x, x2 };
    memcpy(in + 2, s->inputs + 2, (OPS_MAX_INPUTS - 2) * sizeof *in);
    return s->c->fn(in, NULL);
}

static td_tensor *case_forward(td_module *self, td_tensor *x, td_site at)
{
    return case_forward2(self, x, ((const case_state *)self->state)->inputs[1], at);
}

static const td_module_type case_type = { .name = "Case", .forward = case_forward };
static const td_module_type case2_type = { .name = "Case", .forward2 = case_forward2 };

static bool is_input(const td_tensor *t)
{
    return t != NULL && t->ndim > 0 && td_numel(t) > 0;
}

static void export_case(const ops_case *c, const char *folder)
{
    char name[128];
    snprintf(name, sizeof name, "%s", c->name);
    for (char *slash; (slash = strchr(name, '/')) != NULL;) {
        *slash = '-';
    }
    td_tensor *in[OPS_MAX_INPUTS] = { NULL };
    int count = ops_case_inputs(c, TD_F32, in);
    bool two = count > 1 && is_input(in[0]) && is_input(in[1]);
    td_module *net = td_module_new(two ? &case2_type : &case_type, sizeof(case_state));
    case_state *s = net->state;
    s->c = c;
    memcpy(s->inputs, in, sizeof in);
    for (int i = 1 + two; i < count; i++) {
        char number[16];
        snprintf(number, sizeof number, "in%d", i);
        td_module_buffer(net, number, in[i]);
    }
    net = td_module_finish(net);
    if (net == NULL) {
        td_die();
    }
    if (is_input(in[0])) {
        td_onnx_options options = { .shape = td_shape_of(in[0]), .example = in[0] };
        options.shape2 = two ? td_shape_of(in[1]) : TD_SCALAR;
        options.example2 = two ? in[1] : NULL;
        export(net, folder, name, options, in[0], two ? in[1] : NULL);
    }
    td_free(in[0]);
    td_free(two ? in[1] : NULL);
    td_module_free(net);
}

static int export_all(int argc, char **argv)
{
    const char *folder = argv[2];
    if (strcmp(argv[3], "layers") == 0) {
        export_layers(folder);
    } else if (strcmp(argv[3], "cases") == 0) {
        for (int i = 0; i < ops_case_count; i++) {
            export_case(&ops_cases[i], folder);
        }
    } else {
        int64_t side = atoi(argv[3]);
        for (int i = 4; i < argc; i++) {
            td_module *net = td_model(argv[i], .classes = 10, .image_size = side);
            bool tokens = strncmp(argv[i], "gpt", 3) == 0;
            export_dynamic(net, folder, argv[i],
                           tokens ? TD_SHAPE(2, side) : TD_SHAPE(2, 3, side, side));
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    td_metadata metadata[MOST];
    int count = 0;
    td_manual_seed(1);
    if (argc >= 4 && strcmp(argv[1], "onnx") == 0) {
        return export_all(argc, argv);
    }
    if (argc < 4 || argc > 4 + 2 * MOST) {
        return 64;
    }
    for (int i = 4; i + 1 < argc; i += 2) {
        metadata[count++] = (td_metadata){ argv[i], argv[i + 1] };
    }
    td_module *net = td_model(argv[1], .classes = atoi(argv[2]));
    if (net == NULL ||
        td_checkpoint_save(argv[3], net, .metadata = metadata, .metadata_count = count) != TD_OK) {
        fprintf(stderr, "worker_model: %s\n", td_last_error());
        return 1;
    }
    td_module_free(net);
    return 0;
}
