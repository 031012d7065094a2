/* Lesson 10: ImageNet (the articles' "imagenet").
 *
 * Against cifar_ddp_slurm.c: the pictures are files in folders, one folder a class, of all sizes;
 * the loader's threads decode them, cut out a random part and resize it (RandomResizedCrop 224).
 * And whoever starts the processes, the launcher or Slurm, the program is the same. At the end rank
 * 0 saves, all wait for it, and all load what it has saved.
 *
 *   tdrun --nproc-per-node 8 imagenet --data ILSVRC/train
 *   srun --ntasks 32 imagenet --data ILSVRC/train */
#include "apps/common/cifar.h"
#include "apps/common/pictures.h"

#include <inttypes.h>
#include <stdio.h>

typedef struct imagenet_run {
    cifar_run cifar; /* prints, logs and saves as the CIFAR lessons do */
    train_task task;
    int64_t classes, size;
    bool skip_bad;
    td_dataset *pictures;
} imagenet_run;

static const float mean[] = { 0.485f, 0.456f, 0.406f }, spread[] = { 0.229f, 0.224f, 0.225f };

static td_status imagenet_open(train_run *r)
{
    imagenet_run *m = (imagenet_run *)r;
    td_image_folder_options options = { .transform = { .size = (int)m->size,
                                                       .flip = true,
                                                       .mean = { mean[0], mean[1], mean[2] },
                                                       .std = { spread[0], spread[1], spread[2] },
                                                       .seed = (uint64_t)r->args.seed },
                                        .skip_bad = m->skip_bad };
    TD_TRY(td_image_folder_open(r->args.data, &options, &m->pictures));
    if (m->pictures->classes > m->classes) {
        return td_fail(TD_E_ARG, "%s has %d classes, and the model --classes %" PRId64,
                       r->args.data, m->pictures->classes, m->classes);
    }
    r->train = m->pictures;
    snprintf(r->data_name, sizeof r->data_name, "%" PRId64 " pictures in %d classes",
             m->pictures->length, m->pictures->classes);
    return model_notes_make(&r->notes, &(model_input){ m->size, m->size * 256 / 224, mean, spread },
                            r->train, m->classes);
}

static void imagenet_close(train_run *r)
{
    imagenet_run *m = (imagenet_run *)r;
    td_dataset_free(m->pictures);
}

static td_module *imagenet_net(const train_run *r)
{
    td_module *net = td_resnet(18, ((const imagenet_run *)r)->classes, TD_STEM_IMAGENET);
    if (net != NULL && td_module_to(net, r->args.device, TD_F32) != TD_OK) {
        td_module_free(net);
        return NULL;
    }
    return net;
}

static td_status lesson(train_run *r)
{
    TD_TRY(train_begin(r));
    r->net = imagenet_net(r);
    if (r->net != NULL && td_dist_is_initialized()) {
        r->net = train_ddp(r, r->net);
    }
    r->optim = cifar_optim(r);
    r->loader = train_loader(
        r, td_distributed_sampler(.rank = td_dist_rank(), .world_size = td_dist_world_size(),
                                  .shuffle = true, .seed = (uint64_t)r->args.seed));
    TD_TRY(train_loop(r));
    return ((imagenet_run *)r)->skip_bad ? pictures_report_bad(r->train) : TD_OK;
}

static void add_options(imagenet_run *m)
{
    train_args *args = &m->cifar.base.args;
    train_args_options(args, "Folder with one sub-folder of pictures for each class",
                       "Checkpoint to write after each epoch");
    train_args_rank_options(args);
    train_args_add_count(args, "print-every", &m->cifar.print_every, 1, 1000000000,
                         "Steps between two lines of loss and accuracy");
    train_args_add(args, (cli_option){ .name = "classes",
                                       .argument = "N",
                                       .help = "Outputs of the model",
                                       .kind = CLI_INT,
                                       .value = &m->classes,
                                       .low = 1,
                                       .high = 1e6,
                                       .resume = CLI_FIXED });
    train_args_add(args, (cli_option){ .name = "size",
                                       .argument = "N",
                                       .help = "Pixels of a side of what the model sees",
                                       .kind = CLI_INT,
                                       .value = &m->size,
                                       .low = 32,
                                       .high = 8192,
                                       .resume = CLI_FIXED });
    train_args_add(args, (cli_option){ .name = "skip-bad",
                                       .help = "Replace pictures that cannot be read, and list "
                                               "them at the end",
                                       .kind = CLI_FLAG,
                                       .value = &m->skip_bad });
}

int main(int argc, char **argv)
{
    static imagenet_run m;
    train_run *r = &m.cifar.base;
    m = (imagenet_run){ .cifar = { .print_every = 40, .stem = "imagenet" },
                        .task = cifar_task,
                        .classes = 1000,
                        .size = 224 };
    m.task.name = "ResNet-18 on folders of pictures";
    m.task.open = imagenet_open;
    m.task.close = imagenet_close;
    m.task.sample = TD_SHAPE(1, 3, 224, 224);
    r->task = &m.task;
    r->app = "imagenet";
    r->args = (train_args){ .data = "data/ILSVRC/train",
                            .epochs = 1,
                            .batch_size = 256,
                            .lr = 0.1,
                            .workers = train_default_workers(),
                            .save = "imagenet.safetensors",
                            .save_every = 1 };
    add_options(&m);
    cli_parse(argc, argv,
              "Trains ResNet-18 on folders of pictures: alone, or as one of the processes that "
              "tdrun, srun or mpirun has started.",
              r->args.options, r->args.option_count);
    return td_dist_is_launched() ? train_rank(r, NULL, lesson) : train_alone(r, lesson);
}
