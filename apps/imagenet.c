/* Lesson 10: ImageNet.
 *
 * New compared with cifar_ddp_slurm.c: the images are files of all sizes, in one folder for each
 * class. The loader's threads decode them, cut out a random part and resize it to 224 x 224. A
 * launcher or Slurm starts the processes. At the end rank 0 saves the model, all ranks wait until
 * the file is complete, and all load it.
 *
 *   tdrun --nproc-per-node 8 imagenet --data ILSVRC/train
 *   srun --ntasks 32 imagenet --data ILSVRC/train */
#include <tandem.h>

static const char *folder; /* the options */
static int epochs = 1, batch_size = 256, limit = 0;
static const td_option options[] = {
    { "data", .text = &folder },
    { "epochs", .number = &epochs, .least = 1 },
    { "batch-size", .number = &batch_size, .least = 1 },
    { "limit", .number = &limit },
    { 0 },
};
static const char usage[] = "--data FOLDER [--epochs N] [--batch-size N] [--limit N]";

int main(int argc, char **argv)
{
    td_read_options(argc, argv, usage, options);
    if (folder == NULL) {
        td_refuse_options(usage, "--data FOLDER is missing");
    }
    if (td_dist_init() != TD_OK) { /* all ranks wait for the last one */
        td_die();
    }
    printf("[init] == local rank: %d, global rank: %d ==\n", td_dist_local_rank(), td_dist_rank());
    fflush(stdout);
    td_device device = td_default_device(); /* TANDEM_DEVICE=cuda: a GPU; otherwise the CPU */

    /* The data: a folder with a sub-folder of images for each class. */
    td_manual_seed(0);
    td_dataset *all_train =
        td_image_folder_open(folder, .transform = { .size = 224,
                                                    .flip = true,
                                                    .mean = { 0.485f, 0.456f, 0.406f },
                                                    .std = { 0.229f, 0.224f, 0.225f } });
    if (all_train == NULL) {
        td_die(); /* prints what went wrong, and exits with 1 */
    }
    td_dataset *train_set = td_dataset_head(all_train, limit > 0 ? limit : all_train->length);
    if (train_set == NULL) {
        td_die();
    }

    /* The model. */
    td_module *net = td_model("resnet18");
    if (net == NULL || td_module_to(net, device, TD_F32) != TD_OK) {
        td_die();
    }
    /* DistributedDataParallel: all ranks get rank 0's parameters, and after td_backward every rank
     * has the mean of all ranks' gradients. Gradients travel in buckets while backward goes on. */
    net = td_ddp(net);
    if (net == NULL) {
        td_die();
    }

    td_optim *optim = td_sgd(td_parameters(net), .lr = 0.1, .momentum = 0.9, .nesterov = true,
                             .weight_decay = 1e-4);
    td_loader *loader =
        td_loader_open(train_set, .batch_size = batch_size, .device = device, .workers = 4,
                       .sampler = td_distributed_sampler(.shuffle = true));
    if (optim == NULL || loader == NULL) {
        td_die();
    }

    td_printf_rank0("\n=======  Training  =======\n\n");
    int steps = (int)td_loader_batches(loader);
    for (int epoch = 0; epoch < epochs; epoch++) {
        double sum = 0, right = 0, seen = 0; /* of this epoch: losses, right answers, images */
        int step = 0;
        for (td_batch batch; td_loader_next(loader, &batch);) {
            TD_STEP {
                td_tensor *logits = td_forward(net, batch.x);
                td_tensor *loss = td_cross_entropy(logits, batch.y);
                td_zero_grad(optim);
                td_backward(loss);
                td_optim_step(optim);
                sum += td_item(loss);
                right += td_item(td_count_top(logits, batch.y, 1));
                seen += (double)batch.size;
            }
            if (++step % 40 == 0 || step == steps) {
                double all[] = { sum, right, seen }; /* of all ranks */
                if (td_all_reduce_numbers(NULL, all, 3) != TD_OK) {
                    td_die();
                }
                td_printf_rank0("== step: [%3d/%d] [%d/%d] | loss: %.3f | acc: %6.3f%%\n", step,
                                steps, epoch + 1, epochs, all[0] / td_dist_world_size() / step,
                                100 * all[1] / all[2]);
            }
        }
        if (td_loader_status(loader) != TD_OK) { /* the loop ends on an error, too */
            td_die();
        }
    }

    /* Rank 0 saves, all wait until the file is complete, and all load it. */
    if (td_dist_rank() == 0) {
        if (td_save("resnet18.safetensors", net) != TD_OK) {
            td_die();
        }
        printf("(rank: 0)   == Saved: resnet18.safetensors\n");
    }
    if (td_barrier(NULL) != TD_OK || td_load("resnet18.safetensors", net) != TD_OK) {
        td_die();
    }
    printf("(rank: %d)   == Loaded: resnet18.safetensors\n", td_dist_rank());

    /* The end: free loaders and optimizers first, then models, then datasets. */
    td_loader_close(loader);
    td_optim_free(optim);
    td_module_free(net);
    td_dataset_free(train_set);
    td_dataset_free(all_train);
    td_dist_destroy();
    return td_finish();
}
