/* Recomputation: the bits, the hooks and the counts are those of a run without; the memory is not.
 */
#include "nn/internal.h"
#include "nn/module.h"
#include "tests/help/expect_fatal.h"
#include "tests/help/sanitized.h"
#include "tests/nn/train_job.h"
#include "autograd/hooks.h"
#include "autograd/tape.h"
#include "tensor/extend.h"

#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

/* ---- residual nets ---- */

typedef enum places { NOWHERE, STEM = 1, BLOCKS = 2, STAGES = 4, WHOLE = 8 } places;

static void mark(td_module *m, const char *path, places where)
{
    bool block = strncmp(path, "layer", 5) == 0 && strlen(path) == 8;
    bool stage = strncmp(path, "layer", 5) == 0 && strlen(path) == 6;
    td_recompute(m, (where & STEM && strcmp(path, "conv1") == 0) || (where & BLOCKS && block) ||
                        (where & STAGES && stage) || (where & WHOLE && *path == '\0'));
}

/* The bits after a step or two, and the most step memory that they took. */
static uint64_t train(places where, int64_t batch, int steps, size_t *peak)
{
    train_job job;
    train_job_open(&job, batch, 32);
    for (td_module *m = job.net; m != NULL; m = td_module_next(job.net, m)) {
        mark(m, td_module_path(job.net, m), where);
    }
    for (int i = 0; i < steps; i++) {
        train_job_step(&job);
    }
    *peak = td_step_memory(TD_CPU).peak;
    uint64_t hash = train_job_hash(&job);
    train_job_close(&job);
    td_step_release_memory();
    return hash;
}

static void test_resnet_same_bits(void **state)
{
    (void)state;
    size_t without, with;
    uint64_t hash = train(NOWHERE, 4, 2, &without);
    const places cases[] = { BLOCKS, STEM | BLOCKS, STAGES, STEM | BLOCKS | STAGES,
                             WHOLE | BLOCKS };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_true(train(cases[i], 4, 2, &with) == hash);
        assert_true(with < without || cases[i] & WHOLE);
    }
}

/* At batch 64 activations are what memory is for: a quarter of what the large batch takes. */
static void test_resnet_memory(void **state)
{
    (void)state;
    size_t without, with;
    train(NOWHERE, 64, 1, &without);
    train(STEM | BLOCKS, 64, 1, &with);
    print_message("step memory at batch 64: %.1f MiB, %.1f with recomputation\n",
                  (double)without / 1048576, (double)with / 1048576);
    assert_true(with < 24 << 20 && 10 * with < 7 * without);
}

/* ---- each family of models ---- */

typedef struct outcome {
    uint64_t hash;
    size_t peak;
    int parts;
} outcome;

/* Quickly: drawing the weights of a RegNet takes seconds. */
static void set_weights(td_tensor *flat)
{
    float *values = td_data_rw(flat);
    uint32_t word = 1;
    for (int64_t i = 0; i < td_numel(flat); i++) {
        word = word * 1664525u + 1013904223u; /* Numerical Recipes' generator */
        values[i] = 0.1f * ((float)(word >> 8) / 0x1p23f - 0.9f);
    }
}

/* A step of a model with dropout and stochastic depth where it has them. */
static outcome train_model(const char *name, td_module_part part)
{
    enum { SIDE = 32, BATCH = 2 };
    train_job job;
    td_manual_seed(0);
    job.net = td_model(name, .classes = 10, .image_size = SIDE, .blank = true);
    assert_non_null(job.net);
    set_weights(td_params_flat(td_parameters(job.net)));
    job.optim = td_sgd(td_parameters(job.net), .lr = 0.01);
    job.x = td_new_layout(TD_SHAPE(BATCH, 3, SIDE, SIDE), TD_F32, TD_IMAGE, TD_CPU);
    job.y = td_zeros(TD_SHAPE(BATCH), TD_I64, TD_CPU);
    td_normal_(job.x, 0, 1, td_default_generator());
    outcome result = { .parts = td_model_recompute(job.net, part) };
    train_job_step(&job);
    result.peak = td_step_memory(TD_CPU).peak;
    result.hash = train_job_hash(&job);
    train_job_close(&job);
    td_step_release_memory();
    return result;
}

static void test_each_family(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int blocks, stages;
    } cases[] = {
        { "botnet50", 16, 4 },
        { "densenet121", 58, 7 },
        { "efficientnet_b0", 16, 9 },
        { "regnet_x_16gf", 22, 4 },
    };
    for (size_t i = TD_SANITIZED; i < sizeof cases / sizeof *cases - TD_SANITIZED; i++) {
        const char *name = cases[i].name; /* the largest, first and last, without sanitizers only */
        outcome plain = train_model(name, TD_PART_NONE);
        outcome blocks = train_model(name, TD_PART_BLOCK);
        outcome stages = train_model(name, TD_PART_STAGE);
        print_message("# %s: %d blocks, %d stages; step memory %.1f MiB, %.1f, %.1f\n", name,
                      blocks.parts, stages.parts, (double)plain.peak / 1048576,
                      (double)blocks.peak / 1048576, (double)stages.peak / 1048576);
        assert_true(blocks.hash == plain.hash && stages.hash == plain.hash);
        assert_true(blocks.peak < plain.peak && stages.peak < plain.peak);
        assert_int_equal(plain.parts, 0);
        assert_int_equal(blocks.parts, cases[i].blocks);
        assert_int_equal(stages.parts, cases[i].stages);
    }
}

/* ---- a small net with dropout, a shared weight and an input that wants a gradient ---- */

typedef struct mlp_state {
    td_module *first, *second;
} mlp_state;

/* y = x + second(x + first(x)): x is used three times. */
static td_tensor *mlp_forward(td_module *self, td_tensor *x, td_site at)
{
    const mlp_state *s = self->state;
    td_tensor *h = td_add_at(x, td_forward_at(s->first, x, at), at);
    return td_add_at(x, td_forward_at(s->second, h, at), at);
}

static const td_module_type mlp_type = { .name = "Mlp", .forward = mlp_forward };

static td_module *mlp(void)
{
    td_module *m = td_module_new(&mlp_type, sizeof(mlp_state));
    mlp_state *s = m->state;
    s->first = td_module_add(
        m, "first", td_nn_sequential(td_nn_linear(8, 8), td_nn_gelu(), td_nn_dropout(0.3)));
    s->second = td_module_add(m, "second",
                              td_nn_sequential(td_nn_linear(8, 8), td_nn_dropout(0.5),
                                               td_nn_linear(8, 8, .no_bias = true)));
    return td_module_finish(m);
}

enum { FIRST = 1, SECOND = 2, ALL = 4 };

typedef struct ready_list {
    const td_tensor *leaf[16];
    int count;
} ready_list;

static void on_ready(td_tensor *leaf, void *user)
{
    ready_list *list = user;
    list->leaf[list->count++] = leaf;
}

/* Runs the net twice in one forward (each leaf has two uses), over two steps; the gradients of all
 * steps, the input's at the end, and the dropouts' counts go to `bits`. */
static int run_mlp(int where, float *bits, ready_list *ready)
{
    td_manual_seed(3);
    td_module *net = mlp();
    td_tensor *x = td_new(TD_SHAPE(5, 8), TD_F32, TD_CPU);
    td_normal_(x, 0, 1, td_default_generator());
    td_requires_grad(x, true);
    mlp_state *s = net->state;
    td_recompute(s->first, where & FIRST);
    td_recompute(s->second, where & SECOND);
    td_recompute(net, where & ALL);
    td_params *params = td_parameters(net);
    ready->count = 0;
    for (int i = 0; i < td_params_count(params); i++) {
        td_on_grad_ready(td_params_get(params, i)->tensor, on_ready, ready);
    }
    int count = 0;
    for (int step = 0; step < 2; step++) {
        td_step_begin();
        td_tensor *y = td_forward(net, td_forward(net, td_mul_scalar(x, 0.5)));
        td_backward(td_mean(td_mul(y, td_add(y, x))));
        td_step_end();
    }
    assert_int_equal(ready->count, 2 * td_params_count(params));
    for (int i = 0; i < ready->count; i++) { /* numbers instead of addresses */
        for (int k = 0; k < td_params_count(params); k++) {
            if (td_params_get(params, k)->tensor == ready->leaf[i]) {
                bits[count++] = (float)k;
            }
        }
    }
    for (int i = 0; i <= td_params_count(params); i++) {
        const td_tensor *g =
            td_grad(i < td_params_count(params) ? td_params_get(params, i)->tensor : x);
        td_read(g, bits + count, TD_F32);
        count += (int)td_numel(g);
    }
    bits[count++] = (float)td_dropout_place_of(s->first->children[2])->calls;
    bits[count++] = (float)td_dropout_place_of(s->second->children[1])->calls;
    assert_int_equal(bits[count - 1], 4); /* two forwards in two steps */
    td_module_free(net);
    td_free(x);
    return count;
}

static void test_mlp_same_bits(void **state)
{
    (void)state;
    static float without[512], with[512];
    ready_list ready;
    int count = run_mlp(0, without, &ready);
    assert_true(count > 200 && count <= 512);
    const int cases[] = { FIRST, SECOND, FIRST | SECOND, ALL, ALL | FIRST, ALL | FIRST | SECOND };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(run_mlp(cases[i], with, &ready), count);
        assert_memory_equal(with, without, (size_t)count * sizeof(float));
    }
}

/* Running statistics move once a step, evaluation is as it was, and so is a copy of the model. */
static void test_running_statistics(void **state)
{
    (void)state;
    uint64_t hash[2];
    for (int on = 0; on < 2; on++) {
        td_manual_seed(5);
        td_module *net = td_nn_sequential(
            td_nn_sequential(td_nn_conv2d(2, 4, .kernel = 3), td_nn_batch_norm2d(4)), td_nn_relu());
        td_recompute(net->children[0], on);
        td_module *copy = td_module_clone(net);
        td_tensor *x = td_new(TD_SHAPE(3, 2, 6, 6), TD_F32, TD_CPU);
        td_normal_(x, 0, 1, td_default_generator());
        td_module *nets[] = { net, copy };
        hash[on] = 0;
        for (int k = 0; k < 2; k++) {
            td_step_begin();
            td_backward(td_sum(td_forward(nets[k], x)));
            td_eval(nets[k]);
            double value = td_item(td_sum(td_forward(nets[k], x)));
            td_step_end();
            uint64_t bits;
            memcpy(&bits, &value, sizeof bits);
            hash[on] = hash[on] * 31 + bits;
        }
        assert_int_equal(td_node_of(copy->children[0])->recompute, on);
        td_module_free(net);
        td_module_free(copy);
        td_free(x);
    }
    assert_true(hash[0] == hash[1]);
}

/* A module that returns a parameter has computed nothing: the gradient goes to the parameter. */
static td_tensor *returns_weight(td_module *self, td_tensor *x, td_site at)
{
    (void)x, (void)at;
    return self->children[0]->tensors[0].tensor;
}

static const td_module_type table_type = { .name = "Table", .forward = returns_weight };

static void test_parameter_as_result(void **state)
{
    (void)state;
    td_module *net = td_module_new(&table_type, 0);
    td_module_add(net, "0", td_nn_linear(2, 2));
    td_recompute(net, true);
    td_tensor *x = td_zeros(TD_SHAPE(2), TD_F32, TD_CPU);
    td_step_begin();
    td_backward(td_sum(td_forward(net, x)));
    td_step_end();
    const td_tensor *gradient = td_grad(net->children[0]->tensors[0].tensor);
    assert_non_null(gradient);
    assert_true(td_get(gradient, (int64_t[]){ 1, 0 }) == 1.0);
    td_module_free(net);
    td_free(x);
}

/* A step that is given up in the middle of a rerun leaves nothing behind. */
static td_tensor *fails_again(td_module *self, td_tensor *x, td_site at)
{
    td_tensor *y = td_forward_at(self->children[0], x, at);
    return td_recomputing() ? td_matmul_at(y, x, at) : y; /* shapes that do not fit */
}

static const td_module_type failing_type = { .name = "Failing", .forward = fails_again };

static void test_abandoned_in_a_rerun(void **state)
{
    (void)state;
    td_module *net = td_module_new(&failing_type, 0);
    td_module_add(net, "0", td_nn_linear(8, 8));
    td_recompute(net, true);
    td_tensor *x = td_zeros(TD_SHAPE(3, 8), TD_F32, TD_CPU);
    td_step_begin();
    expect_fatal("matmul", td_backward(td_sum(td_forward(net, x))));
    assert_true(td_recomputing());
    td_step_abandon();
    assert_false(td_recomputing());
    assert_int_equal(td_leaf_uses(net->children[0]->tensors[0].tensor), 0);
    td_module_free(net);
    td_free(x);
}

static td_tensor *returns_nothing(td_module *self, td_tensor *x, td_site at)
{
    (void)self, (void)x, (void)at;
    return NULL;
}

static const td_module_type nothing_type = { .name = "Nothing", .forward = returns_nothing };

static void test_nothing_as_result(void **state)
{
    (void)state;
    td_module *net = td_module_new(&nothing_type, 0);
    td_module_add(net, "0", td_nn_linear(2, 2));
    td_recompute(net, true);
    td_tensor *x = td_zeros(TD_SHAPE(2), TD_F32, TD_CPU);
    td_step_begin();
    expect_fatal("Nothing: its forward returned NULL", td_forward(net, x));
    td_step_abandon();
    td_module_free(net);
    td_free(x);
}

static void backward_again(td_tensor *leaf, void *user)
{
    (void)user;
    td_backward(td_sum(leaf));
}

static td_tensor *first_child(td_module *self, td_tensor *x, td_site at)
{
    return td_forward_at(self->children[0], x, at);
}

static const td_module_type first_type = { .name = "First", .forward = first_child };

/* The second child takes no part in the stretch, so its weight is ready when the rerun is done and
 * its tape is not walked yet. */
static void test_backward_in_a_hook_is_refused(void **state)
{
    (void)state;
    td_module *net = td_module_new(&first_type, 0);
    td_module_add(net, "0", td_nn_linear(2, 2));
    td_module_add(net, "1", td_nn_linear(2, 2));
    td_recompute(net, true);
    td_tensor *weight = net->children[1]->tensors[0].tensor;
    assert_true(td_on_grad_ready(weight, backward_again, NULL) > 0);
    td_tensor *x = td_zeros(TD_SHAPE(2, 2), TD_F32, TD_CPU);
    td_step_begin();
    td_tensor *y = td_forward(net, x), *other = td_mul(weight, weight);
    expect_fatal("inside a backward", td_backward(td_sum(td_add(y, other))));
    td_step_abandon();
    td_module_free(net);
    td_free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resnet_same_bits),
        cmocka_unit_test(test_resnet_memory),
        cmocka_unit_test(test_each_family),
        cmocka_unit_test(test_mlp_same_bits),
        cmocka_unit_test(test_running_statistics),
        cmocka_unit_test(test_abandoned_in_a_rerun),
        cmocka_unit_test(test_parameter_as_result),
        cmocka_unit_test(test_nothing_as_result),
        cmocka_unit_test(test_backward_in_a_hook_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
