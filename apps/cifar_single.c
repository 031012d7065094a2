/* Lesson 5: ResNet-18 learns CIFAR-10 on one device.
 *
 * The job is larger than wine: images instead of measurements, a network of 11 million parameters,
 * stochastic gradient descent with momentum. The loop is the same as in lesson 1. */
#include <tandem.h>

static const char *data_folder; /* the options; NULL: $TANDEM_DATA, or data/cifar10 */
static int epochs = 5, batch_size = 256, limit = 50000;
static const td_option options[] = {
    { "data", .text = &data_folder },
    { "epochs", .number = &epochs, .least = 1 },
    { "batch-size", .number = &batch_size, .least = 1 },
    { "limit", .number = &limit, .least = 1 },
    { 0 },
};
static const char usage[] = "[--data FOLDER] [--epochs N] [--batch-size N] [--limit IMAGES]";

int main(int argc, char **argv)
{
    td_read_options(argc, argv, usage, options);
    td_device device = td_default_device(); /* TANDEM_DEVICE=cuda: a GPU; otherwise the CPU */

    /* The data: 50,000 images of ten classes to train on, 10,000 to test with. Each time a training
     * image is read, it is padded by 4 pixels, randomly cropped to 32 x 32, randomly mirrored. */
    td_dataset *train_set, *test_set;
    if (td_cifar_or_synthetic(data_folder, &train_set, &test_set) != TD_OK) {
        td_die(); /* prints what went wrong, and exits with 1 */
    }
    if (train_set->synthetic) {
        printf(
            "*** This is NOT CIFAR-10: there is none in data/cifar10. These are drawn images.\n");
    }
    td_image_transform transform = { .mean = { 0.4914f, 0.4822f, 0.4465f },
                                     .std = { 0.2023f, 0.1994f, 0.2010f } };
    td_status status = td_dataset_set_transform(test_set, &transform);
    transform.crop_padding = 4;
    transform.flip = true;
    if (status != TD_OK || td_dataset_set_transform(train_set, &transform) != TD_OK) {
        td_die();
    }
    td_dataset *train_part = td_dataset_head(train_set, limit);
    td_dataset *test_part = td_dataset_head(test_set, limit);

    /* The model: torchvision's ResNet-18, for ten classes. */
    td_manual_seed(0);
    td_module *net = td_model("resnet18", .classes = 10);
    if (net == NULL || td_module_to(net, device, TD_F32) != TD_OK) {
        td_die();
    }

    td_optim *optim = td_sgd(td_parameters(net), .lr = 0.01, .momentum = 0.9, .nesterov = true,
                             .weight_decay = 1e-4);
    /* Four threads read ahead. Each epoch has an order of its own. */
    td_loader *loader = td_loader_open(train_part, .batch_size = batch_size, .workers = 4,
                                       .device = device, .shuffle = true);
    td_loader *test_loader = td_loader_open(test_part, .batch_size = batch_size, .device = device);
    if (optim == NULL || loader == NULL || test_loader == NULL) {
        td_die();
    }

    printf("\n=======  Training  =======\n\n");
    int64_t steps = td_loader_batches(loader);
    for (int epoch = 0; epoch < epochs; epoch++) {
        double loss_sum = 0, right = 0, seen = 0;
        for (td_batch batch; td_loader_next(loader, &batch);) {
            TD_STEP {
                td_tensor *logits = td_forward(net, batch.x);
                td_tensor *loss = td_cross_entropy(logits, batch.y);
                td_zero_grad(optim);
                td_backward(loss);
                td_optim_step(optim);
                loss_sum += td_item(loss);
                right += td_item(td_count_top(logits, batch.y, 1));
                seen += (double)batch.size;
            }
            int64_t step = batch.index + 1;
            if (step % 50 == 0 || step == steps) { /* means over the epoch so far */
                printf("== step: [%3lld/%lld] [%d/%d] | loss: %.3f | acc: %6.3f%%\n",
                       (long long)step, (long long)steps, epoch + 1, epochs,
                       loss_sum / (double)step, 100 * right / seen);
            }
        }
        if (td_loader_status(loader) != TD_OK) { /* the loop ends on an error, too */
            td_die();
        }
    }

    td_evaluation test = td_evaluate(net, test_loader);
    if (test.status != TD_OK) {
        td_die();
    }
    printf("\n== test: %d images | loss: %.3f | acc: %6.3f%%\n", (int)test.seen, test.loss,
           100 * test.accuracy);
    if (td_save("cifar_single.safetensors", net) != TD_OK) {
        td_die();
    }
    printf("== saved: cifar_single.safetensors\n");

    td_loader_close(test_loader);
    td_loader_close(loader);
    td_optim_free(optim);
    td_module_free(net);
    td_dataset_free(test_part);
    td_dataset_free(train_part);
    td_dataset_free(test_set);
    td_dataset_free(train_set);
    return td_finish();
}
