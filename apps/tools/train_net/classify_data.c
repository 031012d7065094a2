/* The folders of images (or noise) that a classifier is trained and tested on. */
#include "apps/tools/train_net/classify.h"

#include <stdlib.h>
#include <unistd.h>

static const td_image_folder_transform plain = { .mean = { 0.485f, 0.456f, 0.406f },
                                                 .std = { 0.229f, 0.224f, 0.225f } };

static td_image_folder_transform transform_of(const classify_run *c, bool tests)
{
    const settings *s = &c->s;
    td_image_folder_transform t = plain;
    if (tests) {
        t.size = (int)s->test.crop_size;
        t.resize = (int)s->test.im_size;
    } else {
        t.size = (int)s->train.im_size;
        t.scale[0] = s->train.min_area;
        t.scale[1] = 1.0;
        t.flip = s->train.flip;
        t.brightness = t.contrast = t.saturation = s->train.color_jitter;
        t.seed = (uint64_t)c->base.args.seed;
    }
    return t;
}

/* Opens the data for training, or for tests. With DATA.VAL_FRACTION both come from TRAIN.DATASET
 * itself. */
static td_status data_open(const classify_run *c, bool tests, const td_class_names *names,
                           td_dataset **out)
{
    const settings *s = &c->s;
    char path[2 * CLI_TEXT_BYTES + 2];
    bool one_folder = s->data.val_fraction > 0.0;
    const char *dataset = tests && !one_folder ? s->test.dataset : s->train.dataset;
    const char *split = one_folder ? "" : tests ? s->test.split : s->train.split;
    size_t length = strlen(dataset);
    td_image_folder_transform transform = transform_of(c, tests);
    if (s->model.dummy_input) {
        return noise_open(s->model.dummy_samples, transform.size, (int)s->model.num_classes, out);
    }
    snprintf(path, sizeof path, "%s%s%s", dataset,
             length > 0 && dataset[length - 1] == '/' ? "" : "/", split);
    *out = td_image_folder_open(path, .transform = transform, .val_fraction = s->data.val_fraction,
                                .val = tests && one_folder, .skip_bad = s->data.skip_bad,
                                .class_names = (const char *const *)names->name,
                                .classes = names->count);
    if (*out != NULL) {
        return TD_OK;
    }
    td_status status = TD_E_FORMAT;
    if (access(path, F_OK) != 0) {
        status = td_fail(
            TD_E_NOTFOUND,
            "there is no folder '%s'. If your folder PHOTOS has a sub-folder for each class, "
            "and none for training and testing, give TRAIN.DATASET PHOTOS DATA.VAL_FRACTION 0.2",
            path);
    }
    return td_fail_context(status, "%s",
                           one_folder ? "TRAIN.DATASET and DATA.VAL_FRACTION"
                           : tests    ? "TEST.DATASET and TEST.SPLIT"
                                      : "TRAIN.DATASET and TRAIN.SPLIT");
}

/* ---- classes ---- */

enum { USUAL_CLASSES = 1000 }; /* ImageNet's: of weights that do not say how many, and of noise */

/* MODEL.NUM_CLASSES, where it is None. */
static void set_classes(classify_run *c, int64_t classes)
{
    train_args *args = &c->base.args;
    if (c->s.model.num_classes == CONFIG_NONE) {
        c->s.model.num_classes = classes > 0 ? classes : USUAL_CLASSES;
    }
    args->options[config_find(args, "MODEL.NUM_CLASSES")].given = true; /* no longer None */
}

/* The names in the file that the model comes from. */
static td_status read_known(classify_run *c)
{
    char weights[TRAIN_PATH_BYTES];
    bool begins = c->base.args.files.resume == NULL;
    const char *key = begins ? classify_weights(c, weights) : "OUT_DIR";
    const char *path = begins ? weights : c->base.args.files.resume;
    td_safetensors *file;
    if (c->s.model.dummy_input || key == NULL) {
        return TD_OK;
    }
    td_status status = td_safetensors_open(path, &file);
    if (status != TD_OK && !c->tests_only) {
        return TD_OK; /* loading it says why */
    }
    if (status == TD_OK) {
        const char *classes = td_safetensors_metadata(file, "model.classes");
        set_classes(c, classes != NULL ? strtoll(classes, NULL, 10) : 0);
        status = notes_read_classes(path, file, c->s.model.num_classes, &c->known);
        td_safetensors_close(file);
    }
    return status == TD_OK ? TD_OK : td_fail_context(status, "%s", key);
}

/* Weights without their optimizer may begin a model of other classes. */
static bool may_rename(const classify_run *c)
{
    return !c->tests_only && c->base.args.files.resume == NULL && !c->s.train.load_opt;
}

static bool are_known(const classify_run *c, const td_dataset *data)
{
    int place = -1;
    for (int i = 0; i < data->classes; i++) {
        place = td_class_names_find((const char *const *)c->known.name, c->known.count,
                                    data->class_names[i], place + 1);
        if (place < 0) {
            return false;
        }
    }
    return true;
}

/* The training data of a model of other classes, opened without the names: these are new. */
static td_status open_renamed(classify_run *c)
{
    TD_TRY(data_open(c, false, &(td_class_names){ .count = 0 }, &c->train_data));
    if (!are_known(c, c->train_data)) {
        char before[TD_CLASS_LIST], now[TD_CLASS_LIST];
        (void)td_class_names_show((const char *const *)c->known.name, c->known.count, before);
        (void)td_class_names_show(c->train_data->class_names, c->train_data->classes, now);
        if (ranks_first()) {
            td_printf_rank0("new names: the weights are of %s; they begin %s\n", before, now);
        }
        return TD_OK;
    }
    td_dataset_free(c->train_data);
    c->train_data = NULL;
    return data_open(c, false, &c->known, &c->train_data);
}

/* The loader leaves out what is no full batch, or batch normalisation might get a single image. */
static td_status check_fills_a_batch(const classify_run *c)
{
    int64_t ranks = td_dist_world_size(), batch = c->base.args.batch_size;
    int64_t most = c->train_data != NULL ? (c->train_data->length + ranks - 1) / ranks : batch;
    TD_CHECK(batch <= most || c->base.args.ranks.leaves > 0, TD_E_ARG,
             "TRAIN.BATCH_SIZE %" PRId64 ": there are %" PRId64 " training images%s; give %" PRId64
             " or fewer",
             batch, c->train_data->length, ranks > 1 ? " for all ranks" : "", most);
    return TD_OK;
}

static td_status check_count(const classify_run *c)
{
    const td_dataset *data = c->train_data != NULL ? c->train_data : c->test_data;
    int64_t classes = c->s.model.num_classes;
    TD_CHECK(data->classes <= classes, TD_E_ARG,
             "the data have %d classes, and the model gets MODEL.NUM_CLASSES %" PRId64
             ": set it to %d",
             data->classes, classes, data->classes);
    if (c->tests_only && c->known.count == 0 && data->classes < classes) {
        char there[TD_CLASS_LIST];
        return td_fail(TD_E_MISMATCH,
                       "the model's file has no names for its %" PRId64
                       " classes, so sub-folders are numbered in the order of their names, and all "
                       "must be there; the folder has %s",
                       classes, td_class_names_show(data->class_names, data->classes, there));
    }
    return TD_OK;
}

static td_status open_data(classify_run *c)
{
    if (c->s.model.dummy_input) {
        set_classes(c, USUAL_CLASSES);
    }
    TD_TRY(read_known(c));
    td_status status = c->tests_only ? TD_OK
                       : may_rename(c) && c->known.count > 0
                           ? open_renamed(c)
                           : data_open(c, false, &c->known, &c->train_data);
    if (status != TD_OK && c->known.count > 0 && c->base.args.files.resume == NULL) {
        return td_fail_context(status, "the weights are of named classes (TRAIN.LOAD_OPT False "
                                       "begins a model of others)");
    }
    TD_TRY(status);
    const td_dataset *train = c->train_data;
    set_classes(c, train != NULL ? train->classes : 0);
    td_class_names names = c->known;
    if (train != NULL && train->class_names != NULL) {
        names = (td_class_names){ (char **)(uintptr_t)train->class_names, train->classes };
    }
    TD_TRY(data_open(c, true, &names, &c->test_data));
    return check_count(c);
}

/* ---- opening and closing ---- */

td_status classify_open(train_run *r)
{
    classify_run *c = (classify_run *)r;
    r->args.workers = c->s.train.workers;
    TD_TRY(open_data(c));
    TD_TRY(check_fills_a_batch(c));
    r->args.recipe.top_k =
        c->s.train.topk < c->s.model.num_classes ? c->s.train.topk : c->s.model.num_classes;
    r->train = c->train_data;
    r->tests.data = c->test_data;
    const td_dataset *data = r->train != NULL ? r->train : r->tests.data;
    snprintf(r->data_name, sizeof r->data_name, "%" PRId64 " %s in %d classes", data->length,
             data->synthetic ? "samples of noise" : "images", data->classes);
    return notes_add_model(&r->notes,
                           &(model_input){ .size = c->s.test.crop_size,
                                           .resize = c->s.test.im_size,
                                           .mean = plain.mean,
                                           .std = plain.std },
                           data);
}

/* Marks the images that this rank could not read; of the ranks that met an image the first has the
 * largest mark, and names the image. */
td_status images_report_bad(const td_dataset *folder)
{
    double met = (double)td_image_folder_bad(folder);
    TD_TRY(ranks_sum(&met, 1));
    if (met == 0) {
        return TD_OK;
    }
    td_tensor *marks = td_zeros(TD_SHAPE(folder->length), TD_I32, TD_CPU);
    if (marks == NULL) {
        return TD_E_NOMEM;
    }
    int32_t *mark = td_data_rw(marks), own = td_dist_world_size() - td_dist_rank();
    for (int64_t i = 0; i < folder->length; i++) {
        mark[i] = td_image_folder_bad_at(folder, i) != NULL ? own : 0;
    }
    td_status status = td_dist_is_initialized() ? td_all_reduce(NULL, marks, TD_MAX, NULL) : TD_OK;
    int64_t count = 0;
    for (int64_t i = 0; i < folder->length && status == TD_OK; i++) {
        count += mark[i] != 0;
        if (mark[i] == own) {
            fprintf(stderr, "skipped: %s\n", td_image_folder_bad_at(folder, i));
        }
    }
    if (status == TD_OK) {
        td_printf_rank0("%" PRId64 " of %" PRId64
                        " images could not be read; others took their places (see stderr)\n",
                        count, folder->length);
    }
    td_free(marks);
    return status;
}

/* What DATA.SKIP_BAD has passed over. */
td_status classify_report_bad(const classify_run *c)
{
    if (!c->s.data.skip_bad || c->s.model.dummy_input) {
        return TD_OK;
    }
    if (c->train_data != NULL) {
        TD_TRY(images_report_bad(c->train_data));
    }
    return images_report_bad(c->test_data);
}

void classify_close(train_run *r)
{
    classify_run *c = (classify_run *)r;
    td_dataset_free(c->train_data);
    td_dataset_free(c->test_data);
    td_class_names_free(&c->known);
}
