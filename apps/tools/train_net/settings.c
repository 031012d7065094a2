/* The table of train_net's keys: defaults, ranges and help. */
#include "apps/tools/train_net/settings.h"
#include "tensor/extend.h"

#include <string.h>

/* A row of the table: the key, where its value lies in the struct (the value's type says what the
 * key takes), its default, its help, and what else holds for it. */
#define KEY(NAME, MEMBER, STANDARD, ...)                                                           \
    {                                                                                              \
        .name = (NAME), .kind = KIND(&((settings *)0)->MEMBER),                                    \
        .offset = offsetof(settings, MEMBER), .standard = (STANDARD), .help = __VA_ARGS__          \
    }
#define KIND(PLACE)                                                                                \
    _Generic((PLACE), bool *: CONFIG_BOOL, int64_t *: CONFIG_INT, double *: CONFIG_REAL,           \
             settings_text *: CONFIG_TEXT, config_reals *: CONFIG_REALS)
#define NUMBER(NAME, MEMBER, STANDARD, LOW, HIGH, ...)                                             \
    KEY(NAME, MEMBER, STANDARD, __VA_ARGS__, .low = (LOW), .high = (HIGH))

const config_key config_keys[] = {
    KEY("OUT_DIR", out_dir, "./exp", "Folder of checkpoints, metrics and this configuration"),
    KEY("CFG_DEST", cfg_dest, "config.yaml", "File in OUT_DIR that gets all keys' values"),
    NUMBER("RNG_SEED", rng_seed, "None", 0, 9e15,
           "Seed of all that is random: equal seeds give equal runs, bit for bit; None: drawn",
           .optional = true),
    KEY("PRECISION", precision, "fp32", "Arithmetic of convolutions and matrix products",
        .choices = "fp32|bf16|bf16x3|tf32|fp16"),
    KEY("WINOGRAD", winograd, "False",
        "3x3 convolutions in fp32 may use Winograd's transform: faster, relative error 2e-6"),
    KEY("DEVICE", device, "cpu",
        "Where to compute: cpu, cpu:1, cuda, cuda:1; cuda is the GPU of a process's local rank"),

    KEY("MODEL.ARCH", model.arch, "resnet18", "The model by its name: resnet50, regnety_160"),
    NUMBER("MODEL.NUM_CLASSES", model.num_classes, "1000", 1, 1000000,
           "Outputs of the model; the data may have fewer classes"),
    KEY("MODEL.PRETRAINED", model.pretrained, "False",
        "Begin with the weights $TANDEM_MODELS/ARCH.safetensors (or data/models/...)"),
    KEY("MODEL.SYNCBN", model.syncbn, "False",
        "Batch normalisation over the batches of all processes"),
    KEY("MODEL.WEIGHTS", model.weights, "None", "File whose weights to begin with, or to test",
        .optional = true),
    KEY("MODEL.DUMMY_INPUT", model.dummy_input, "False",
        "Noise in place of images: how fast is the machine without its disks?"),
    NUMBER("MODEL.DUMMY_SAMPLES", model.dummy_samples, "1024", 1, 1000000000,
           "How many samples of noise make an epoch"),
    KEY("MODEL.RECOMPUTE", model.recompute, "none",
        "Keep inputs of blocks or stages only, and run them again in backward: less memory",
        .choices = "none|block|stage"),

    NUMBER("TRAIN.BATCH_SIZE", train.batch_size, "32", 1, 1048576, "Images of a process's batch"),
    NUMBER("TRAIN.ACCUM_STEPS", train.accum_steps, "1", 1, 1048576,
           "Batches whose gradients are averaged for one step of the optimizer"),
    NUMBER("TRAIN.IM_SIZE", train.im_size, "224", 1, 8192, "Side of a training image"),
    KEY("TRAIN.DATASET", train.dataset, "./data/ILSVRC/", "Folder that holds TRAIN.SPLIT"),
    KEY("TRAIN.SPLIT", train.split, "train", "Folder with one sub-folder for each class"),
    NUMBER("TRAIN.MIN_AREA", train.min_area, "0.08", 1e-4, 1,
           "RandomResizedCrop takes at least this part of an image's area"),
    KEY("TRAIN.FLIP", train.flip, "True", "Flip every other image, at random"),
    NUMBER("TRAIN.COLOR_JITTER", train.color_jitter, "0", 0, 1,
           "How much brightness, contrast and saturation may change"),
    KEY("TRAIN.AUTO_RESUME", train.auto_resume, "True",
        "Go on from the highest checkpoint in OUT_DIR that is not damaged, if there is one"),
    KEY("TRAIN.LOAD_OPT", train.load_opt, "True",
        "Load the optimizer's state with the weights, where the file has it. False: the weights "
        "may begin a model for classes of other names"),
    NUMBER("TRAIN.KEEP_CHECKPOINTS", train.keep_checkpoints, "0", 0, 1000000,
           "So many of the newest checkpoints stay; 0: all"),
    KEY("TRAIN.SAVE_ASYNC", train.save_async, "False",
        "Let training go on while the disk writes a checkpoint"),
    NUMBER("TRAIN.WORKERS", train.workers, "4", 0, 256, "Threads that prepare batches; 0: none"),
    KEY("TRAIN.PIN_MEMORY", train.pin_memory, "True", "Has an effect only on GPUs"),
    KEY("TRAIN.GRAPH", train.graph, "False",
        "GPUs: record a training step as a CUDA graph, and replay it: the same bits, sooner"),
    KEY("TRAIN.AUTOTUNE", train.autotune, "False",
        "Choose convolutions' algorithms by timing, after the first step, and keep the choices: "
        "on GPUs, as a CPU has nothing to choose"),
    NUMBER("TRAIN.PRINT_FREQ", train.print_freq, "30", 1, 1000000000, "Batches between two lines"),
    NUMBER("TRAIN.TOPK", train.topk, "5", 1, 1000,
           "The second accuracy: the right class is among so many most probable"),

    KEY("TEST.DATASET", test.dataset, "./data/ILSVRC/", "Folder that holds TEST.SPLIT"),
    KEY("TEST.SPLIT", test.split, "val",
        "Folder with a sub-folder for each class, of the same name; some may be missing"),
    NUMBER("TEST.BATCH_SIZE", test.batch_size, "200", 1, 1048576, "Images of a process's batch"),
    NUMBER("TEST.IM_SIZE", test.im_size, "256", 1, 8192, "An image's shorter side becomes this"),
    NUMBER("TEST.CROP_SIZE", test.crop_size, "224", 1, 8192, "and its middle is cut out so large"),
    NUMBER("TEST.PRINT_FREQ", test.print_freq, "10", 1, 1000000000, "Batches between two lines"),

    NUMBER("DATA.VAL_FRACTION", data.val_fraction, "0", 0, 0.99,
           "Test on this part of TRAIN.DATASET's images, whose sub-folders are the classes, and "
           "train on the rest: no SPLIT, no TEST.DATASET; 0: not"),
    KEY("DATA.SKIP_BAD", data.skip_bad, "False",
        "Images that cannot be read or are damaged are replaced by others, counted and listed; "
        "False: they end the run"),

    KEY("CUDNN.BENCHMARK", cudnn.benchmark, "True", "Has an effect only on GPUs"),
    KEY("CUDNN.DETERMINISTIC", cudnn.deterministic, "False", "Has an effect only on GPUs"),

    NUMBER("OPTIM.MAX_EPOCH", optim.max_epoch, "100", 1, 1000000, "Passes over the training data"),
    KEY("OPTIM.LR_POLICY", optim.lr_policy, "cos", "How the learning rate falls",
        .choices = "cos|steps"),
    NUMBER("OPTIM.BASE_LR", optim.base_lr, "0.2", 1e-12, 1e6, "Learning rate after the warm-up"),
    NUMBER("OPTIM.MIN_LR", optim.min_lr, "0", 0, 1, "Where cos ends, as a part of BASE_LR"),
    NUMBER("OPTIM.STEPS", optim.steps, "[]", 0, 1e6,
           "Epochs at which steps multiplies the learning rate by LR_MULT"),
    NUMBER("OPTIM.LR_MULT", optim.lr_mult, "0.1", 1e-6, 1e6, "See STEPS"),
    NUMBER("OPTIM.MOMENTUM", optim.momentum, "0.9", 0, 1, "SGD's momentum"),
    NUMBER("OPTIM.DAMPENING", optim.dampening, "0", 0, 1, "SGD's dampening of the momentum"),
    KEY("OPTIM.NESTEROV", optim.nesterov, "True", "SGD looks ahead (Nesterov)"),
    NUMBER("OPTIM.WARMUP_FACTOR", optim.warmup_factor, "0.1", 0, 1,
           "The learning rate begins at this part of itself"),
    NUMBER("OPTIM.WARMUP_EPOCHS", optim.warmup_epochs, "5", 0, 1000000,
           "and is itself after so many epochs"),
    KEY("OPTIM.AFTER_WARMUP", optim.after_warmup, "False",
        "The warm-up leads to BASE_LR, and cos begins then; False: cos begins at epoch 0, and the "
        "warm-up multiplies it"),
    NUMBER("OPTIM.WEIGHT_DECAY", optim.weight_decay, "5e-05", 0, 1e3, "SGD's weight decay"),
    NUMBER("OPTIM.LABEL_SMOOTHING", optim.label_smoothing, "0", 0, 1,
           "Part of the target that is spread over all classes"),
    NUMBER("OPTIM.CLIP_GRAD_NORM", optim.clip_grad_norm, "0", 0, 1e9,
           "Longer gradients are shortened to this norm; 0: not"),
    NUMBER("OPTIM.EMA_DECAY", optim.ema_decay, "0", 0, 0.999999999,
           "Test and keep a moving average of the weights with this decay; 0: not"),
};

const int config_key_count = (int)(sizeof config_keys / sizeof *config_keys);
_Static_assert(sizeof config_keys / sizeof *config_keys <= CONFIG_MOST_KEYS, "CONFIG_MOST_KEYS");

static td_status check_optim(const settings *s)
{
    if (s->optim.nesterov && (s->optim.momentum == 0 || s->optim.dampening != 0)) {
        return td_fail(TD_E_ARG,
                       "OPTIM.NESTEROV True needs a MOMENTUM and no DAMPENING, and they "
                       "are %g and %g: set OPTIM.NESTEROV False, or change these",
                       s->optim.momentum, s->optim.dampening);
    }
    if (s->optim.after_warmup && s->optim.max_epoch <= s->optim.warmup_epochs) {
        return td_fail(TD_E_ARG,
                       "OPTIM.AFTER_WARMUP True needs epochs after the warm-up, and MAX_EPOCH is "
                       "%lld and WARMUP_EPOCHS %lld: set OPTIM.AFTER_WARMUP False, or change these",
                       (long long)s->optim.max_epoch, (long long)s->optim.warmup_epochs);
    }
    for (int i = 1; i < s->optim.steps.count; i++) {
        if (s->optim.steps.value[i] <= s->optim.steps.value[i - 1]) {
            return td_fail(TD_E_ARG,
                           "OPTIM.STEPS: %g does not come after %g: give epochs in "
                           "ascending order",
                           s->optim.steps.value[i], s->optim.steps.value[i - 1]);
        }
    }
    return TD_OK;
}

td_status settings_check(const settings *s)
{
    bool on_gpus = strcmp(s->precision, "tf32") == 0 || strcmp(s->precision, "fp16") == 0;
    if (on_gpus && strncmp(s->device, "cpu", 3) == 0) {
        return td_fail(TD_E_ARG,
                       "PRECISION %s is arithmetic of GPUs, and DEVICE is %s: on CPUs "
                       "there are fp32, bf16 and bf16x3",
                       s->precision, s->device);
    }
    td_precision precision;
    if (!td_precision_parse(s->precision, &precision)) {
        return td_fail(TD_E_UNSUPPORTED, "PRECISION %s: this build has no such arithmetic",
                       s->precision);
    }
    if (s->model.pretrained && s->model.weights[0] != '\0') {
        return td_fail(TD_E_ARG,
                       "MODEL.PRETRAINED True and MODEL.WEIGHTS %s: the model can begin "
                       "with one of them",
                       s->model.weights);
    }
    if (s->test.crop_size > s->test.im_size) {
        return td_fail(TD_E_ARG, "TEST.CROP_SIZE %lld cannot be cut out of TEST.IM_SIZE %lld",
                       (long long)s->test.crop_size, (long long)s->test.im_size);
    }
    if (strchr(s->cfg_dest, '/') != NULL) {
        return td_fail(TD_E_ARG, "CFG_DEST '%s' is the name of a file in OUT_DIR, without folders",
                       s->cfg_dest);
    }
    return check_optim(s);
}

double settings_lr(const settings *s, int64_t epoch)
{
    td_schedule schedule = { .kind = TD_SCHEDULE_COSINE,
                             .base_lr = s->optim.base_lr,
                             .min_lr = s->optim.min_lr * s->optim.base_lr,
                             .total = (double)s->optim.max_epoch,
                             .warmup = (double)s->optim.warmup_epochs,
                             .warmup_factor = s->optim.warmup_factor,
                             .after_warmup = s->optim.after_warmup };
    if (strcmp(s->optim.lr_policy, "steps") == 0) {
        schedule.kind = TD_SCHEDULE_MULTI_STEP;
        schedule.gamma = s->optim.lr_mult;
        for (int i = 0; i < s->optim.steps.count; i++) {
            if (s->optim.steps.value[i] > 0) { /* distribuuuu's lists begin with epoch 0 */
                schedule.milestones[schedule.milestone_count++] = s->optim.steps.value[i];
            }
        }
    }
    return td_schedule_lr(&schedule, (double)epoch);
}
