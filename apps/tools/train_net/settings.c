/* The table of train_net's keys, which is keys.def, and what no single key can tell. */
#include "apps/tools/train_net/settings.h"

#define KEY(NAME, PLACE, STANDARD, ...)                                                            \
    {                                                                                              \
        .name = (NAME), .kind = KIND(&(PLACE)), .value = &(PLACE), .standard = (STANDARD),         \
        .help = __VA_ARGS__                                                                        \
    }
#define KIND(PLACE)                                                                                \
    _Generic((PLACE), bool *: CLI_FLAG, int64_t *: CLI_INT, double *: CLI_REAL,                    \
             const char **: CLI_TEXT, cli_reals *: CLI_REALS)
#define NUMBER(NAME, PLACE, STANDARD, LOW, HIGH, ...)                                              \
    KEY(NAME, PLACE, STANDARD, __VA_ARGS__, .low = (LOW), .high = (HIGH))

void settings_keys(settings *s, train_run *r)
{
    train_args *args = &r->args;
    train_recipe *recipe = &r->args.recipe;
    const cli_option keys[] = {
#include "apps/tools/train_net/keys.def"
        { 0 }
    };
    train_args_add(args, keys);
    for (const cli_option *key = keys; key->name != NULL; key++) {
        td_status status = config_set(args, "default", key->name, key->standard);
        TD_REQUIRE(status == TD_OK, TD_HERE, "keys.def is wrong: %s", td_last_error());
    }
}

static td_status check_optim(const settings *s, const train_args *args)
{
    if (s->optim.nesterov && (s->optim.momentum == 0 || s->optim.dampening != 0)) {
        return td_fail(TD_E_ARG,
                       "OPTIM.NESTEROV True needs a MOMENTUM and no DAMPENING, and they are %g and "
                       "%g: set OPTIM.NESTEROV False, or change these",
                       s->optim.momentum, s->optim.dampening);
    }
    TD_CHECK(!s->optim.after_warmup || args->epochs > s->optim.warmup_epochs, TD_E_ARG,
             "OPTIM.AFTER_WARMUP True needs epochs after the warm-up, and MAX_EPOCH is %lld and "
             "WARMUP_EPOCHS %lld: set OPTIM.AFTER_WARMUP False, or change these",
             (long long)args->epochs, (long long)s->optim.warmup_epochs);
    for (int i = 1; i < s->optim.steps.count; i++) {
        TD_CHECK(s->optim.steps.value[i] > s->optim.steps.value[i - 1], TD_E_ARG,
                 "OPTIM.STEPS: %g does not come after %g: give epochs in ascending order",
                 s->optim.steps.value[i], s->optim.steps.value[i - 1]);
    }
    return TD_OK;
}

td_status settings_check(const settings *s, const train_args *args)
{
    bool on_gpus = strcmp(args->compute.precision_name, "tf32") == 0 ||
                   strcmp(args->compute.precision_name, "fp16") == 0;
    TD_CHECK(!on_gpus || strncmp(args->compute.device_name, "cpu", 3) != 0, TD_E_ARG,
             "PRECISION %s is arithmetic of GPUs, and DEVICE is %s: on CPUs there are fp32, bf16 "
             "and bf16x3",
             args->compute.precision_name, args->compute.device_name);
    td_precision precision;
    TD_CHECK(td_precision_parse(args->compute.precision_name, &precision), TD_E_UNSUPPORTED,
             "PRECISION %s: this build has no such arithmetic", args->compute.precision_name);
    TD_CHECK(!s->model.pretrained || s->model.weights == NULL, TD_E_ARG,
             "MODEL.PRETRAINED True and MODEL.WEIGHTS %s: the model can begin with one of them",
             s->model.weights);
    TD_CHECK(s->test.crop_size <= s->test.im_size, TD_E_ARG,
             "TEST.CROP_SIZE %lld cannot be cut out of TEST.IM_SIZE %lld",
             (long long)s->test.crop_size, (long long)s->test.im_size);
    TD_CHECK(strchr(s->cfg_dest, '/') == NULL, TD_E_ARG,
             "CFG_DEST '%s' is the name of a file in OUT_DIR, without folders", s->cfg_dest);
    return check_optim(s, args);
}

double settings_lr(const settings *s, const train_args *args, int64_t epoch)
{
    td_schedule schedule = { .kind = TD_SCHEDULE_COSINE,
                             .base_lr = args->lr,
                             .min_lr = s->optim.min_lr * args->lr,
                             .total = (double)args->epochs,
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
