/* Lesson 23: fine-tuning: a model that has learned one thing learns another from 40 images.
 *
 *     fine_tuning                          trains a small checkpoint itself first, and saves it
 *     fine_tuning resnet18.safetensors     begins with the weights of a ResNet-18 of torchvision's
 *
 * docs/tutorial/23-fine-tuning.md explains the ideas. */
#include <nn/module.h>
#include <tandem.h>

#include <stdlib.h>
#include <string.h>

enum { SHAPES = 10, IMAGE = 3 * 32 * 32, KNOWN = 6, EPOCHS = 15 };

static const char *file; /* the option */
static const td_option options[] = { { "CHECKPOINT", .text = &file }, { 0 } };

static void must(bool fine)
{
    if (!fine) {
        td_die();
    }
}

/* Drawn images of the shapes first, first + 1, ..., as many of each. Their colours are normalised
 * as those that torchvision's models were trained with. */
static td_dataset *open_shapes(int first, int count, int each, uint64_t seed)
{
    td_dataset *all;
    must(td_synthetic_images(SHAPES * each, seed, &all) == TD_OK);
    td_image_transform colours = { .mean = { 0.485f, 0.456f, 0.406f },
                                   .std = { 0.229f, 0.224f, 0.225f } };
    must(td_dataset_set_transform(all, &colours) == TD_OK);
    td_tensor *x = td_new(TD_SHAPE(each * count, 3, 32, 32), TD_F32, TD_CPU);
    td_tensor *y = td_new(TD_SHAPE(each * count), TD_I64, TD_CPU);
    td_loader *loader = td_loader_open(all, .batch_size = SHAPES); /* a batch: one of each shape */
    float *pixels = malloc((size_t)SHAPES * IMAGE * sizeof *pixels);
    must(x != NULL && y != NULL && loader != NULL && pixels != NULL);
    for (td_batch batch; td_loader_next(loader, &batch);) {
        td_read(batch.x, pixels, TD_F32);
        memcpy((float *)td_data_rw(x) + batch.index * count * IMAGE, pixels + first * IMAGE,
               (size_t)count * IMAGE * sizeof *pixels);
        for (int shape = 0; shape < count; shape++) {
            ((int64_t *)td_data_rw(y))[batch.index * count + shape] = shape;
        }
    }
    must(td_loader_status(loader) == TD_OK);
    td_dataset *chosen = td_tensor_dataset(x, y);
    must(chosen != NULL);
    free(pixels);
    td_loader_close(loader);
    td_free(y);
    td_free(x);
    td_dataset_free(all);
    return chosen;
}

/* The head is the last layer: its outputs are the classes. All before it is the body. */
static bool is_body(const td_param *param, void *unused)
{
    (void)unused;
    return strncmp(param->name, "fc.", 3) != 0;
}

/* Trains and prints how much of the test is right. The body learns at body_rate times the rate. */
static void train(td_module *net, td_dataset *set, td_dataset *test_set, double rate,
                  double body_rate, int epochs)
{
    td_optim *optim = td_adam(td_parameters(net), .lr = rate);
    td_loader *loader = td_loader_open(set, .batch_size = 20, .shuffle = true);
    td_loader *test_loader = td_loader_open(test_set, .batch_size = 50);
    must(optim != NULL && loader != NULL && test_loader != NULL);
    td_optim_group(optim, is_body, NULL, body_rate, 0);
    for (int epoch = 1; epoch <= epochs; epoch++) {
        for (td_batch batch; td_loader_next(loader, &batch);) {
            TD_STEP {
                td_tensor *loss = td_cross_entropy(td_forward(net, batch.x), batch.y);
                td_zero_grad(optim);
                td_backward(loss);
                td_optim_step(optim);
            }
        }
        must(td_loader_status(loader) == TD_OK);
        if (epoch == 1 || epoch == 5 || epoch == epochs) {
            td_evaluation test = td_evaluate(net, test_loader);
            must(test.status == TD_OK);
            printf(" %5.0f %%", 100 * test.accuracy);
        }
    }
    printf("\n");
    td_loader_close(test_loader);
    td_loader_close(loader);
    td_optim_free(optim);
}

/* A checkpoint to begin with, where none is given: a ResNet-18 that knows six shapes. */
static void make_checkpoint(const char *path)
{
    printf("no checkpoint is given: training one on %d shapes; right after epoch 1, 2:", KNOWN);
    td_dataset *set = open_shapes(0, KNOWN, 600, 1), *test_set = open_shapes(0, KNOWN, 30, 2);
    td_module *net = td_model("resnet18", .classes = KNOWN);
    must(net != NULL);
    train(net, set, test_set, 1e-3, 1, 2);
    must(td_save(path, net) == TD_OK);
    printf("saved %s\n", path);
    td_module_free(net);
    td_dataset_free(test_set);
    td_dataset_free(set);
}

/* Gives net's body the values of a trained one. net's head has other classes: it keeps its random
 * values. */
static void take_body(td_module *net, const td_module *trained, bool freeze)
{
    td_state_list to = td_module_state(net), from = td_module_state(trained);
    must(to.count > 0 && from.count == to.count);
    for (int i = 0; i < to.count; i++) {
        td_tensor *t = to.items[i].tensor;
        if (is_body(&(td_param){ .name = to.items[i].name }, NULL)) {
            td_copy_(t, from.items[i].tensor);
            if (freeze) {
                td_requires_grad(t, false);
            }
        }
    }
    td_state_list_free(&from);
    td_state_list_free(&to);
}

static const struct {
    const char *name;
    bool random, frozen;
    double body_rate; /* times the head's rate */
} ways[] = {
    { "all learns, from random values", .random = true, .body_rate = 1 },
    { "the head learns, the body is frozen", .frozen = true, .body_rate = 1 },
    { "all learns, the body at the same rate", .body_rate = 1 },
    { "all learns, the body at a tenth", .body_rate = 0.1 },
};

int main(int argc, char **argv)
{
    td_read_options(argc, argv, "[CHECKPOINT.safetensors]", options);
    td_manual_seed(0);
    if (file == NULL) {
        file = "shapes.safetensors";
        make_checkpoint(file);
    }
    td_module *trained = td_load_model(file, .arch = "resnet18");
    must(trained != NULL);
    td_dataset *set = open_shapes(KNOWN, SHAPES - KNOWN, 10, 3);
    td_dataset *test_set = open_shapes(KNOWN, SHAPES - KNOWN, 50, 4);
    printf("%-40s %5d %7d %7d\n", "other shapes: right after epoch", 1, 5, EPOCHS);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        td_manual_seed(1);
        td_module *net = td_model("resnet18", .classes = SHAPES - KNOWN);
        must(net != NULL);
        if (!ways[i].random) {
            take_body(net, trained, ways[i].frozen); /* before td_parameters */
        }
        if (ways[i].frozen) {
            td_eval(net); /* BatchNorms keep their statistics, too */
        }
        printf("%-40s", ways[i].name);
        train(net, set, test_set, 4e-4, ways[i].body_rate, EPOCHS);
        td_module_free(net);
    }
    td_module_free(trained);
    td_dataset_free(test_set);
    td_dataset_free(set);
    return td_finish();
}
