/* ONNX files: what is in them, and what is refused. tests/nn/test_onnx_runtime.sh runs them. */
#include "autograd/tape.h"
#include "nn/extra/layers.h"
#include "nn/module.h"
#include "nn/onnx/onnx.h"
#include "tandem.h"
#include "tensor/extend.h"
#include "tests/help/expect_fatal.h"
#include "tests/help/sanitized.h"
#include "tests/help/temp_folder.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- a file, read as protobuf ---- */

typedef struct message {
    const unsigned char *at, *end;
} message;

static uint64_t varint(message *m)
{
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        assert_true(m->at < m->end && shift < 64);
        value |= (uint64_t)(*m->at & 127) << shift;
        if (*m->at++ < 128) {
            return value;
        }
    }
}

/* The next field: its number (0: the end), and its value or its bytes. */
static int next_field(message *m, uint64_t *value, message *bytes)
{
    if (m->at == m->end) {
        return 0;
    }
    uint64_t key = varint(m);
    assert_true((key & 7) == 0 || (key & 7) == 2 || (key & 7) == 5);
    if ((key & 7) == 0) {
        *value = varint(m);
        return (int)(key >> 3);
    }
    uint64_t length = (key & 7) == 2 ? varint(m) : 4;
    assert_true(length <= (uint64_t)(m->end - m->at));
    *bytes = (message){ m->at, m->at + length };
    m->at += length;
    return (int)(key >> 3);
}

/* Field `wanted`, the i-th of its kind, as a message; empty if there is none. */
static message field(message m, int wanted, int i)
{
    uint64_t value;
    message bytes;
    for (int number; (number = next_field(&m, &value, &bytes)) != 0;) {
        if (number == wanted && i-- == 0) {
            return bytes;
        }
    }
    return (message){ NULL, NULL };
}

static uint64_t integer(message m, int wanted)
{
    uint64_t value = 0;
    message bytes;
    for (int number; (number = next_field(&m, &value, &bytes)) != 0 && number != wanted;) {
    }
    return value;
}

static void assert_text(message m, const char *text)
{
    if ((size_t)(m.end - m.at) != strlen(text) || memcmp(m.at, text, strlen(text)) != 0) {
        fail_msg("'%.*s' is not '%s'", (int)(m.end - m.at), (const char *)m.at, text);
    }
}

static unsigned char *file_bytes;

static message read_file(const char *path)
{
    free(file_bytes);
    size_t room = 1 << 20;
    file_bytes = malloc(room);
    FILE *in = fopen(path, "rb");
    assert_non_null(file_bytes);
    assert_non_null(in);
    size_t count = fread(file_bytes, 1, room, in);
    fclose(in);
    return (message){ file_bytes, file_bytes + count };
}

static int free_file(void **state)
{
    free(file_bytes);
    file_bytes = NULL;
    return temp_folder_teardown(state);
}

/* ---- what is in a file ---- */

static td_module *tower(td_module *activation)
{
    return td_nn_sequential(td_nn_conv2d(3, 4, .kernel = 3), td_nn_batch_norm2d(4), activation,
                            td_nn_max_pool2d(2), td_nn_flatten(), td_nn_dropout(0.5),
                            td_nn_linear(36, 5));
}

static void check_file(td_module *net, const char *activation)
{
    const char *const types[] = { "Conv", "BatchNormalization", activation, "MaxPool", "Reshape",
                                  "Gemm" };
    const char *const names[] = { "0.weight",       "0.bias",        "1.weight", "1.bias",
                                  "1.running_mean", "1.running_var", "6.weight", "6.bias" };
    assert_true(td_onnx_export(net, TD_SHAPE(2, 3, 8, 8), temp_path("net.onnx"),
                               .dynamic_batch = true) == TD_OK);
    message model = read_file(temp_path("net.onnx"));
    assert_true(integer(model, 1) == 9);               /* ir_version */
    assert_true(integer(field(model, 8, 0), 2) == 20); /* opset_import.version */
    message graph = field(model, 7, 0);
    for (int i = 0; i < 6; i++) { /* the fused ones as their parts */
        assert_text(field(field(graph, 1, i), 4, 0), types[i]);
    }
    assert_null(field(graph, 1, 6).at);
    assert_text(field(field(graph, 1, 5), 2, 0), "output");
    int found = 0;
    for (int i = 0; field(graph, 5, i).at != NULL; i++) {
        message name = field(field(graph, 5, i), 8, 0);
        for (int k = 0; k < 8; k++) {
            found += (size_t)(name.end - name.at) == strlen(names[k]) &&
                     memcmp(name.at, names[k], strlen(names[k])) == 0;
        }
    }
    assert_int_equal(found, 8);
    message input = field(graph, 11, 0);
    message shape = field(field(field(input, 2, 0), 1, 0), 2, 0);
    assert_text(field(input, 1, 0), "input");
    assert_text(field(field(shape, 1, 0), 2, 0), "N");
    assert_true(integer(field(shape, 1, 1), 1) == 3);
    assert_true(net->training && net->children[1]->training);
    td_module_free(net);
}

static void test_file(void **state)
{
    (void)state;
    check_file(tower(td_nn_relu()), "Relu");
    check_file(tower(td_nn_gelu()), "Gelu");
}

/* A weight is written row-major, however it lies in memory. */
static void test_weights(void **state)
{
    (void)state;
    td_module *net = td_nn_linear(3, 2, .no_bias = true);
    const float values[] = { 1, 2, 3, 4, 5, 6 };
    td_write(net->tensors[0].tensor, values, TD_F32);
    assert_true(td_onnx_export(net, TD_SHAPE(1, 3), temp_path("net.onnx")) == TD_OK);
    message weight = field(field(read_file(temp_path("net.onnx")), 7, 0), 5, 0);
    message data = field(weight, 9, 0);
    assert_text(field(weight, 8, 0), "weight");
    assert_true(data.end - data.at == sizeof values);
    assert_memory_equal(data.at, values, sizeof values);
    td_module_free(net);
}

/* ---- what is refused ---- */

typedef td_tensor *(*step_fn)(td_tensor *x);

static td_tensor *call_forward(td_module *self, td_tensor *x, td_site at)
{
    (void)at;
    return (*(step_fn *)self->state)(x);
}

static const td_module_type call_type = { .name = "Call", .forward = call_forward };

static td_status export_batch(step_fn forward, int64_t batch, bool dynamic)
{
    td_module *m = td_module_new(&call_type, sizeof forward);
    assert_non_null(m);
    *(step_fn *)m->state = forward;
    td_status status = td_onnx_export(td_module_finish(m), TD_SHAPE(batch, 3),
                                      temp_path("call.onnx"), .dynamic_batch = dynamic);
    td_module_free(m);
    return status;
}

static td_status export_call(step_fn forward, bool dynamic)
{
    return export_batch(forward, 2, dynamic);
}

static td_tensor *by_value(td_tensor *x)
{
    return td_mul_scalar(x, td_item(td_sum(x)));
}

static td_tensor *by_branch(td_tensor *x)
{
    return td_item(td_max(x)) > 0.0 ? td_relu(x) : td_neg(x);
}

static td_tensor *constant_by_value(td_tensor *x)
{
    td_tensor *y = td_step_new_like(x, TD_HERE);
    td_copy_(y, x);
    return td_add(y, x);
}

static td_tensor *in_place(td_tensor *x)
{
    td_tensor *y = td_exp(x);
    td_mul_scalar_(y, 2.0);
    return td_neg(y);
}

static td_tensor *dropped(td_tensor *x)
{
    return td_dropout(x, 0.5, (td_philox_key){ .seed = 1 }, 0);
}

static td_tensor *by_batch(td_tensor *x)
{
    return td_mul_scalar(x, (double)x->shape[0]);
}

static td_tensor *identity(td_tensor *x)
{
    return x;
}

static td_tensor *mean_of_rows(td_tensor *x)
{
    return td_mean_dim(x, 1, false);
}

static td_tensor *beside(td_tensor *x)
{
    dropped(x); /* nobody needs the result */
    return td_relu(x);
}

static void test_refusals(void **state)
{
    (void)state;
    const struct {
        step_fn forward;
        bool dynamic;
        const char *says;
    } refused[] = {
        { by_value, false, "mul_scalar in Call, or a number that it uses, depends on" },
        { by_branch, false, "depends on the values of the input" },
        { constant_by_value, false, "add in Call, or a number" },
        { in_place, false, "was written in place" },
        { dropped, false, "dropout in Call has no form in ONNX" },
        { by_batch, true, "or on the batch size" },
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        assert_true(export_call(refused[i].forward, refused[i].dynamic) == TD_E_UNSUPPORTED);
        assert_error_says(refused[i].says, NULL);
    }
    assert_true(export_call(by_batch, false) == TD_OK);
    assert_true(export_call(identity, true) == TD_OK);
    assert_true(export_call(beside, true) == TD_OK);
    assert_true(export_batch(mean_of_rows, 1, true) == TD_OK);
}

static void test_mistakes(void **state)
{
    (void)state;
    td_module *net = td_nn_linear(3, 2);
    td_tensor *x = td_zeros(TD_SHAPE(1, 3), TD_F32, TD_CPU);
    td_shape shape = TD_SHAPE(1, 3);
    const char *path = temp_path("net.onnx");
    expect_fatal("the model is NULL", td_onnx_export(NULL, shape, path));
    expect_fatal("there is no path", td_onnx_export(net, shape, NULL));
    expect_fatal("all above 0", td_onnx_export(net, TD_SCALAR, path));
    expect_fatal("all above 0", td_onnx_export(net, TD_SHAPE(0, 3), path));
    expect_fatal("the example is f32[1,3]",
                 td_onnx_export(net, TD_SHAPE(2, 3), path, .example = x));
    if (!TD_SANITIZED) { /* the jump out of a forward loses what the export holds */
        expect_fatal("does not fit weight[2,3]", td_onnx_export(net, TD_SHAPE(1, 4), path));
        td_step_abandon();
    }
    TD_STEP {
        expect_fatal("outside of a step", td_onnx_export(net, shape, path));
    }
    temp_write("old", "old", 3);
    assert_true(td_onnx_export(net, shape, temp_path("none/net.onnx")) == TD_E_IO);
    assert_error_says("none/net.onnx", "create the folder first", NULL);
    assert_true(td_onnx_export(net, shape, path) == TD_OK);
    td_free(x);
    td_module_free(net);
}

static td_tensor *add_forward(td_module *self, td_tensor *x, td_site at)
{
    (void)at;
    return td_add(x, td_slice(self->tensors[0].tensor, 0, 0, 3, 1));
}

static const td_module_type add_type = { .name = "Add", .forward = add_forward };

static td_status export_with(int64_t numbers)
{
    td_module *m = td_module_new(&add_type, 0);
    assert_non_null(m);
    td_module_parameter(m, "input", td_zeros(TD_SHAPE(numbers), TD_F32, TD_CPU));
    td_status status = td_onnx_export(td_module_finish(m), TD_SHAPE(2, 3), temp_path("net.onnx"));
    td_module_free(m);
    return status;
}

/* A name that the graph has already; and 2 GiB of zeros, which take no memory. */
static void test_parameters(void **state)
{
    (void)state;
    assert_true(export_with(3) == TD_OK);
    message graph = field(read_file(temp_path("net.onnx")), 7, 0);
    int found = 0;
    for (int i = 0; field(graph, 5, i).at != NULL; i++) {
        message name = field(field(graph, 5, i), 8, 0);
        found += name.end - name.at == 6 && memcmp(name.at, "/input", 6) == 0;
    }
    assert_int_equal(found, 1);
    assert_true(export_with((int64_t)1 << 29) == TD_E_UNSUPPORTED);
    assert_error_says("would have 2.0 GiB", "at most 2 GiB", NULL);
}

static td_tensor *difference(td_module *self, td_tensor *a, td_tensor *b, td_site at)
{
    (void)self;
    return td_sub_at(a, b, at);
}

static const td_module_type difference_type = { .name = "Difference", .forward2 = difference };

/* The inputs are told apart by their names, and both have a dynamic batch. */
static void test_two_inputs(void **state)
{
    (void)state;
    td_module *net = td_module_finish(td_module_new(&difference_type, 0));
    td_shape shape = TD_SHAPE(2, 3);
    const char *path = temp_path("net.onnx");
    assert_true(td_onnx_export(net, shape, path, .shape2 = shape, .dynamic_batch = true) == TD_OK);
    message graph = field(read_file(path), 7, 0);
    const char *const names[] = { "input", "input2" };
    for (int i = 0; i < 2; i++) {
        message input = field(graph, 11, i);
        assert_text(field(input, 1, 0), names[i]);
        assert_text(field(field(graph, 1, 0), 1, i), names[i]);
        message sizes = field(field(field(input, 2, 0), 1, 0), 2, 0);
        assert_text(field(field(sizes, 1, 0), 2, 0), "N");
    }
    assert_null(field(graph, 11, 2).at);
    td_tensor *x = td_zeros(TD_SHAPE(1, 3), TD_F32, TD_CPU);
    expect_fatal("Difference takes two inputs: give the second one's .shape2",
                 td_onnx_export(net, shape, path));
    expect_fatal("the second input's shape [2,3]",
                 td_onnx_export(net, shape, path, .shape2 = shape, .example2 = x));
    expect_fatal("the inputs [2,3] and [1,3] have different batch sizes",
                 td_onnx_export(net, shape, path, .shape2 = TD_SHAPE(1, 3), .dynamic_batch = true));
    assert_true(td_onnx_export(net, shape, path, .shape2 = TD_SHAPE(1, 3)) == TD_OK);
    td_module *one = td_nn_relu();
    expect_fatal("ReLU takes one input", td_onnx_export(one, shape, path, .shape2 = shape));
    td_free(x);
    td_module_free(one);
    td_module_free(net);
}

static td_tensor *smooth_loss(td_module *self, td_tensor *x, td_tensor *labels, td_site at)
{
    td_cross_entropy_options options = { .logits = x,
                                         .labels = labels,
                                         .label_smoothing = *(const double *)self->state };
    return td_cross_entropy_at(options, at);
}

static const td_module_type loss_type = { .name = "Loss", .forward2 = smooth_loss };

static void test_loss(void **state)
{
    (void)state;
    td_module *net = td_module_finish(td_module_new(&loss_type, sizeof(double)));
    const int64_t classes[] = { 2, 0 };
    td_tensor *labels = td_from(classes, TD_SHAPE(2), TD_I64, TD_CPU);
    for (int smooth = 0; smooth < 2; smooth++) {
        *(double *)net->state = 0.1 * smooth;
        td_status status = td_onnx_export(net, TD_SHAPE(2, 3), temp_path("net.onnx"),
                                          .shape2 = TD_SHAPE(2), .example2 = labels);
        assert_true(status == (smooth ? TD_E_UNSUPPORTED : TD_OK));
    }
    assert_error_says("cross_entropy in Loss has no form in ONNX with label smoothing", NULL);
    td_free(labels);
    td_module_free(net);
}

static td_tensor *by_own_statistics(td_tensor *x)
{
    td_tensor *mean = td_mean_dim(x, 0, false), *var = td_mean_dim(td_mul(x, x), 0, false);
    return td_batch_norm(x, NULL, NULL, mean, var);
}

/* Operations that compute the statistics of a normalisation are in the file. */
static void test_statistics(void **state)
{
    (void)state;
    assert_true(export_call(by_own_statistics, false) == TD_OK);
    message graph = field(read_file(temp_path("call.onnx")), 7, 0);
    const char *const types[] = { "ReduceMean", "Reshape", "Mul",
                                  "ReduceMean", "Reshape", "BatchNormalization" };
    for (int i = 0; i < 6; i++) {
        assert_text(field(field(graph, 1, i), 4, 0), types[i]);
    }
    for (int k = 0; k < 2; k++) { /* the results of the two that reshape */
        message from = field(field(graph, 1, 5), 1, 3 + k);
        message result = field(field(graph, 1, k == 0 ? 1 : 4), 2, 0);
        assert_true(from.end - from.at == result.end - result.at);
        assert_memory_equal(from.at, result.at, (size_t)(result.end - result.at));
    }
    assert_null(field(graph, 1, 6).at);
}

/* Tokens, whose values cannot be made up: 0, or the example's. */
static void test_tokens(void **state)
{
    (void)state;
    td_module *net = td_nn_sequential(td_nn_embedding(7, 4), td_nn_linear(4, 3));
    assert_true(td_onnx_export(net, TD_SHAPE(2, 5), temp_path("net.onnx"), .dynamic_batch = true) ==
                TD_OK);
    message input = field(field(read_file(temp_path("net.onnx")), 7, 0), 11, 0);
    assert_true(integer(field(field(input, 2, 0), 1, 0), 1) == 7); /* int64 */
    td_module_free(net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_file, temp_folder_setup, free_file),
        cmocka_unit_test_setup_teardown(test_weights, temp_folder_setup, free_file),
        cmocka_unit_test_setup_teardown(test_refusals, temp_folder_setup, free_file),
        cmocka_unit_test_setup_teardown(test_mistakes, temp_folder_setup, free_file),
        cmocka_unit_test_setup_teardown(test_parameters, temp_folder_setup, free_file),
        cmocka_unit_test_setup_teardown(test_two_inputs, temp_folder_setup, free_file),
        cmocka_unit_test_setup_teardown(test_loss, temp_folder_setup, free_file),
        cmocka_unit_test_setup_teardown(test_statistics, temp_folder_setup, free_file),
        cmocka_unit_test_setup_teardown(test_tokens, temp_folder_setup, free_file),
    };
    return cmocka_run_group_tests_name("onnx: files", tests, NULL, NULL);
}
