/* Lesson 14: model parallelism. A model that is too large for one device is put on two: the first
 * half of ResNet-18 on one, the second half on the other.
 *
 *   model_parallel                     cpu:0 and cpu:1
 *   TANDEM_DEVICE=cuda model_parallel  cuda:0 and cuda:1
 *
 * New is td_to: a differentiable copy to another device. A function around the first module of the
 * second half brings that module's input over. So the model's own code does not change, and
 * backward takes the gradient the same way back.
 *
 * While one half computes, the other one waits. So the program then cuts the batch into pieces: the
 * second half can compute with a piece while the first half has the next. docs/tutorial/14-model.md
 * shows where that happens. */
#include <nn/around.h>
#include <nn/module.h>
#include <tandem.h>
#include <tensor/extend.h>

enum { BATCH = 32, STEPS = 3, MOST_PARTS = 16 };

static const char half_way[] = "layer3"; /* the first module of the second half */

/* Brings a module's input to the module's device. */
static td_tensor *bring(const td_around_rest *rest, td_tensor *x, void *user)
{
    (void)user;
    return td_run_rest(rest, td_to(x, rest->m->device));
}

/* ResNet-18 with its second half on another device. */
static td_module *make_net(td_device first, td_device second)
{
    td_manual_seed(1);
    td_module *net = td_model("resnet18", .classes = 10, .stem = TD_STEM_CIFAR);
    if (net == NULL || td_module_to(net, first, TD_F32) != TD_OK) {
        td_die();
    }
    bool is_second = false;
    for (int i = 0; i < net->child_count; i++) {
        td_module *part = net->children[i];
        is_second = is_second || part == td_module_find(net, half_way);
        if (is_second && td_module_to(part, second, TD_F32) != TD_OK) {
            td_die();
        }
    }
    td_around around = { .run = bring };
    if (td_module_surround(td_module_find(net, half_way), &around) != TD_OK) {
        td_die();
    }
    return net;
}

/* An optimizer for each part: td_parameters lays a list of parameters out flat, on one device. */
static int make_optimizers(td_module *net, td_optim **optim)
{
    int count = 0;
    for (int i = 0; i < net->child_count; i++) {
        if (td_parameter_count(net->children[i]) > 0) {
            optim[count] = td_sgd(td_parameters(net->children[i]), .lr = 0.01, .momentum = 0.9);
            if (optim[count++] == NULL) {
                td_die();
            }
        }
    }
    return count;
}

/* One step: forward of all pieces, then backward of all pieces. The gradients of the pieces add up,
 * so each piece's loss counts as its part of the mean. Where devices compute by themselves (GPUs),
 * the first half begins with the next piece while the second half has this one. */
static double run_step(td_module *net, td_tensor *images, td_tensor *labels, int pieces)
{
    td_tensor *loss[BATCH];
    double sum = 0.0;
    td_device second = td_module_find(net, half_way)->device;
    for (int k = 0; k < pieces; k++) {
        int64_t begin = (int64_t)k * BATCH / pieces, end = (int64_t)(k + 1) * BATCH / pieces;
        td_tensor *logits = td_forward(net, td_slice(images, 0, begin, end, 1));
        td_tensor *label = td_to(td_slice(labels, 0, begin, end, 1), second);
        loss[k] = td_mul_scalar(td_cross_entropy(logits, label), (double)(end - begin) / BATCH);
    }
    for (int k = 0; k < pieces; k++) {
        td_backward(loss[k]);
        sum += td_item(loss[k]);
    }
    return sum;
}

static double mib(size_t bytes)
{
    return (double)bytes / 1048576.0;
}

/* Trains the model a few steps, prints a row, and returns the last loss. */
static double train(const char *name, td_device first, td_device second, int pieces)
{
    td_module *net = make_net(first, second);
    td_optim *optim[MOST_PARTS];
    int count = make_optimizers(net, optim);
    td_tensor *images = td_new(TD_SHAPE(BATCH, 3, 32, 32), TD_F32, first);
    td_tensor *labels = td_zeros(TD_SHAPE(BATCH), TD_I64, first);
    if (images == NULL || labels == NULL) {
        td_die();
    }
    td_generator generator;
    td_generator_seed(&generator, 7);
    td_normal_(images, 0.0, 1.0, &generator);
    for (int64_t i = 0; i < BATCH; i++) {
        td_set(labels, &i, (double)(i % 10));
    }
    double loss = 0.0;
    for (int step = 0; step < STEPS; step++) {
        TD_STEP {
            for (int i = 0; i < count; i++) {
                td_zero_grad(optim[i]);
            }
            loss = run_step(net, images, labels, pieces);
            for (int i = 0; i < count; i++) {
                td_optim_step(optim[i]);
            }
        }
    }
    size_t here = td_step_memory(first).peak;
    size_t there = second.index != first.index ? td_step_memory(second).peak : 0;
    printf("%-24s %8.0f %8.0f   %.3f\n", name, mib(here), mib(there), loss);
    for (int i = 0; i < count; i++) {
        td_optim_free(optim[i]);
    }
    td_free(images);
    td_free(labels);
    td_module_free(net);
    return loss;
}

int main(int argc, char **argv)
{
    td_read_options(argc, argv, "", (td_option[]){ { 0 } });
    td_device first = td_default_device();
    td_device second = { first.type, (unsigned char)(first.index + 1) };
    printf("MiB of a step's tensors    device 0 device 1   loss\n");
    double one = train("one device", first, first, 1);
    double two = train("two devices", first, second, 1);
    train("two devices, 4 pieces", first, second, 4);
    printf("one device or two: %s\n", one == two ? "the same bits" : "other numbers");
    return one == two ? td_finish() : 1;
}
