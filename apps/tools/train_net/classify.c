/* Reads the settings of train_net and test_net, and makes their model and optimizer. */
#include "apps/tools/train_net/classify.h"

#include "dist/comm/collectives.h"
#include "tensor/system/folders.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>

/* ---- settings ---- */

/* What the training loop gets besides its keys. */
static void take_settings(classify_run *c)
{
    const settings *s = &c->s;
    train_run *r = &c->base;
    r->args.files.log_dir = s->out_dir;
    r->args.files.save_every = 1;
    r->args.words = (train_words){ "OPTIM.BASE_LR", "TRAIN.DATASET and TRAIN.SPLIT", "DEVICE",
                                   "PRECISION", "TRAIN.GRAPH" };
    r->args.recipe.drop_last = true;
}

static td_status read_settings(classify_run *c, const cli_rest *rest)
{
    train_args *args = &c->base.args;
    settings_keys(&c->s, &c->base);
    if (c->cfg != NULL) {
        char name[CLI_TEXT_BYTES], source[CLI_TEXT_BYTES + 16], path[TD_SHARED_PATH];
        bool word = strpbrk(c->cfg, "./") == NULL && access(c->cfg, F_OK) != 0;
        snprintf(name, sizeof name, "config/%.200s.yaml", c->cfg);
        snprintf(source, sizeof source, "apps/tools/%s", name);
        bool shared = word && td_shared_file(name, source, path);
        TD_TRY(config_read(args, shared ? path : c->cfg));
    }
    TD_TRY(config_override(args, rest->values, rest->count));
    return settings_check(&c->s, args);
}

/* Options, --cfg FILE, KEY VALUE pairs. */
static td_status classify_read_command_line(classify_run *c, const char *description, int argc,
                                            char **argv)
{
    train_args *args = &c->base.args;
    cli_rest rest = { .name = "[KEY VALUE]...", .least = 0 };
    const cli_option table[] = { cli_text(
                                     "cfg", "FILE", &c->cfg,
                                     "Settings: a file (YAML), or the name of one that comes with "
                                     "tandem (resnet18); KEY VALUE pairs are set after it"),
                                 cli_flag("keys", &c->keys,
                                          "Print all keys with the values that the run would have, "
                                          "as YAML with explanations, and end"),
                                 { 0 } };
    train_args_add(args, table);
    train_args_machine_options(args);
    if (!c->tests_only) {
        train_report_options(args);
    }
    train_args_rank_options(args);
    cli_parse_rest(argc, argv, description, args->options, args->option_count, &rest);
    TD_TRY(read_settings(c, &rest));
    if (c->keys) {
        config_describe(args, stdout);
        exit(0);
    }
    take_settings(c);
    return TD_OK;
}

int classify_main(classify_run *c, train_program program, const char *description, int argc,
                  char **argv)
{
    c->base.task = &classify_task;
    td_status status = classify_read_command_line(c, description, argc, argv);
    return status == TD_OK ? train_main(&c->base, program) : app_failed(c->base.app);
}

/* ---- beginning ---- */

/* The last feature map has a 32nd of the image's side. */
static td_status check_batch(const classify_run *c)
{
    const settings *s = &c->s;
    int64_t side = (s->train.im_size + 31) / 32;
    int64_t ranks = s->model.syncbn ? td_dist_world_size() : 1;
    TD_CHECK(!s->model.syncbn || c->base.args.ranks.leaves <= 0, TD_E_ARG,
             "--leaves, and MODEL.SYNCBN True, whose statistics are those of all samples at once: "
             "with MODEL.SYNCBN False they are a leaf's");
    TD_CHECK(c->base.args.batch_size * side * side * ranks >= 2, TD_E_ARG,
             "TRAIN.BATCH_SIZE 1 with images of TRAIN.IM_SIZE %" PRId64
             ": batch normalisation needs two values of a channel to have a variance; give batches "
             "of 2 or more",
             s->train.im_size);
    return TD_OK;
}

/* All ranks need one seed: rank 0's. Below 2^32, so that sums of doubles carry it. */
static td_status draw_seed(classify_run *c)
{
    uint32_t seed = 0;
    TD_CHECK(!ranks_elastic(), TD_E_ARG,
             "tdrun --elastic, and no seed: processes that come later need the same: set RNG_SEED");
    TD_CHECK(!ranks_first() || getrandom(&seed, sizeof seed, 0) == sizeof seed, TD_E_IO,
             "the system gives no random number; set RNG_SEED");
    double shared = seed;
    TD_TRY(ranks_sum(&shared, 1));
    c->base.args.seed = (int64_t)shared;
    return TD_OK;
}

/* The highest whole checkpoint that rank 0 sees; all must see it. */
static td_status find_resume(classify_run *c)
{
    int64_t epochs = 0, steps = 0;
    bool looks = ranks_first() || ranks_elastic(); /* these may begin at other times */
    td_status status = looks ? classify_highest(c, &epochs, &steps) : TD_OK;
    TD_TRY(td_dist_is_initialized() ? td_group_agree(td_dist_world(), status) : status);
    double place[] = { (double)epochs, (double)steps };
    TD_TRY(ranks_sum(place, 2));
    if (place[0] < 0) {
        return TD_OK;
    }
    classify_step_path(c, (int64_t)place[0], (int64_t)place[1], c->resume);
    TD_CHECK(access(c->resume, R_OK) == 0, TD_E_NOTFOUND,
             "%s is seen by rank 0 and not here, by rank %d: OUT_DIR must be a folder that all "
             "hosts share",
             c->resume, td_dist_rank());
    c->base.args.files.resume = c->resume;
    return TD_OK;
}

static td_status make_out_dir(const classify_run *c)
{
    char path[TRAIN_PATH_BYTES];
    snprintf(path, sizeof path, "%s/checkpoints", c->s.out_dir);
    td_status status = td_make_folders(path);
    if (status == TD_OK) {
        classify_epoch_path(c, 1, path);
        status = check_can_save(path);
    }
    return status == TD_OK ? TD_OK : td_fail_context(status, "OUT_DIR");
}

/* Two runs in one folder would go on from each other's checkpoints. The lock ends with the process;
 * where a file system has no locks there is none. */
static td_status lock_out_dir(const classify_run *c)
{
    char path[TRAIN_PATH_BYTES], pid[32] = "";
    snprintf(path, sizeof path, "%s/lock", c->s.out_dir);
    int fd = ranks_first() ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (fd < 0) {
        return TD_OK;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        ssize_t length = read(fd, pid, sizeof pid - 1);
        close(fd);
        return td_fail(
            TD_E_IO,
            "OUT_DIR %s: another run (pid %.*s) writes there; wait for it, or give another OUT_DIR",
            c->s.out_dir, length > 0 ? (int)strcspn(pid, "\n") : 1, length > 0 ? pid : "?");
    }
    return ftruncate(fd, 0) == 0 && dprintf(fd, "%ld\n", (long)getpid()) > 0
               ? TD_OK
               : td_fail(TD_E_IO, "%s: cannot be written: %s", path, strerror(errno));
}

td_status classify_begin(classify_run *c)
{
    train_run *r = &c->base;
    TD_TRY(train_mesh(r));
    TD_TRY(check_batch(c));
    TD_TRY(make_out_dir(c));
    TD_TRY(c->tests_only ? TD_OK : lock_out_dir(c));
    if (c->base.args.seed == CONFIG_NONE) {
        TD_TRY(draw_seed(c));
    }
    if (c->s.train.auto_resume) {
        TD_TRY(find_resume(c));
    }
    r->args.files.fresh_optim = !c->s.train.load_opt;
    return train_begin(r);
}

/* ---- model, optimizer, loader ---- */

td_module *classify_net(const classify_run *c)
{
    const settings *s = &c->s;
    td_defer_init(train_defers(&c->base) && !c->tests_only);
    td_module *net = td_model(s->model.arch, .classes = s->model.num_classes,
                              .image_size = c->tests_only ? s->test.crop_size : s->train.im_size,
                              .blank = c->tests_only || c->base.args.files.resume != NULL);
    td_defer_init(false);
    if (net == NULL) {
        (void)td_fail_context(TD_E_ARG, "MODEL.ARCH");
    } else if (net->type->takes_indices) {
        (void)td_fail(TD_E_ARG, "MODEL.ARCH: %s takes tokens, not images", s->model.arch);
        td_module_free(net);
        return NULL;
    }
    if (net != NULL && td_module_to(net, c->base.args.device, TD_F32) != TD_OK) {
        td_module_free(net);
        return NULL;
    }
    if (net == NULL || !td_dist_is_initialized()) {
        return net;
    }
    if (s->model.syncbn) {
        net = td_convert_sync_batch_norm(net, NULL);
    }
    return net != NULL && !c->tests_only ? train_ddp(&c->base, net) : net;
}

td_optim *classify_optim(const classify_run *c)
{
    const settings *s = &c->s;
    if (c->base.net == NULL) {
        return NULL;
    }
    return td_sgd(td_parameters(c->base.net), .lr = settings_lr(s, &c->base.args, 0),
                  .momentum = s->optim.momentum, .dampening = s->optim.dampening,
                  .weight_decay = s->optim.weight_decay, .nesterov = s->optim.nesterov);
}

/* ---- weights to begin with ---- */

const char *classify_weights(const classify_run *c, char *path)
{
    const settings *s = &c->s;
    const char *folder = getenv("TANDEM_MODELS");
    if (s->model.weights != NULL) {
        snprintf(path, TRAIN_PATH_BYTES, "%s", s->model.weights);
        return "MODEL.WEIGHTS";
    }
    if (s->model.pretrained) {
        snprintf(path, TRAIN_PATH_BYTES, "%s/%s.safetensors",
                 folder != NULL ? folder : "data/models", s->model.arch);
        return "MODEL.PRETRAINED";
    }
    snprintf(path, TRAIN_PATH_BYTES, "%s/best", s->out_dir);
    return c->tests_only ? "OUT_DIR" : NULL;
}

/* A file of tandem says how many classes its model has; other files show it by their shapes. */
static td_status check_file(const classify_run *c, const char *path)
{
    char text[64];
    td_status status = td_checkpoint_metadata(path, "model.classes", text, sizeof text);
    if (status != TD_OK) {
        return status == TD_E_NOTFOUND && access(path, F_OK) == 0 ? TD_OK : status;
    }
    TD_CHECK(strtoll(text, NULL, 10) == c->s.model.num_classes, TD_E_MISMATCH,
             "%s is of a model with %s classes, and MODEL.NUM_CLASSES is %" PRId64, path, text,
             c->s.model.num_classes);
    return TD_OK;
}

/* With the optimizer's state if that is asked for and there. */
static td_status load_file(const classify_run *c, const char *key, const char *path)
{
    td_optim *optim = c->tests_only || !c->s.train.load_opt ? NULL : c->base.optim;
    td_status status = check_file(c, path);
    if (status != TD_OK) {
        return td_fail_context(status, "%s", key);
    }
    bool averages = c->tests_only && notes_has(path, "ema.updates");
    optim = optim != NULL && notes_has(path, "optimizer.kind") ? optim : NULL;
    status = c->tests_only ? td_load(path, c->base.net)
                           : td_checkpoint_load(path, c->base.net, .optim = optim);
    if (status != TD_OK) {
        return td_fail_context(status, "%s, and MODEL.ARCH %s with %" PRId64 " classes", key,
                               c->s.model.arch, c->s.model.num_classes);
    }
    if (ranks_first()) {
        td_printf_rank0("%s%s from %s\n", averages ? "averages of the weights" : "weights",
                        optim != NULL ? " and optimizer" : "", path);
    }
    return TD_OK;
}

td_status classify_load_weights(classify_run *c)
{
    char path[TRAIN_PATH_BYTES];
    const char *key = classify_weights(c, path);
    if (key == NULL) {
        return TD_OK;
    }
    TD_CHECK(strcmp(key, "MODEL.PRETRAINED") != 0 || access(path, R_OK) == 0, TD_E_NOTFOUND,
             "MODEL.PRETRAINED: there is no %s: save torchvision's weights there as safetensors, "
             "set $TANDEM_MODELS to where they are, or name a file by MODEL.WEIGHTS",
             path);
    return load_file(c, key, path);
}
