/* Says what is in an image: a trained model's most probable classes.
 *
 *     apps/predict MODEL.safetensors IMAGE...
 *     apps/predict MODEL.safetensors --onnx MODEL.onnx      writes the model as ONNX
 *
 * The model is a checkpoint of tandem or torchvision's weights, saved as safetensors. A checkpoint
 * says which model it is, how images are resized and normalised, and what the classes are called;
 * for a file that does not, there are options. Images are resized and cropped as in torchvision's
 * evaluation. */
#include "apps/tools/common/notes.h"
#include "nn/module.h"
#include "nn/onnx/onnx.h"
#include "tensor/extend.h"
#include "tensor/system/files.h"
#include "tensor/system/number.h"
#include "tensor/system/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CLASSES = 100000, MOST_SIDE = 8192, MOST_BYTES = 1 << 26 };

typedef struct predictor {
    const char *model, *arch, *names_file, *onnx; /* of the command line */
    int64_t top, size, resize;
    bool sizes_given;
    td_image_folder_transform transform;
    int64_t classes;
    td_class_names names; /* of the first classes, or of none */
    td_module *net;
} predictor;

/* ---- what the model sees ---- */

static void find_sizes(predictor *p, const td_safetensors *file)
{
    const char *size = td_safetensors_metadata(file, "size");
    const char *resize = td_safetensors_metadata(file, "resize");
    int64_t own = size != NULL ? strtoll(size, NULL, 10) : 0;
    int64_t own_resize = resize != NULL ? strtoll(resize, NULL, 10) : 0;
    bool use = own >= 1 && own <= MOST_SIDE && own_resize >= own && own_resize <= MOST_SIDE &&
               !p->sizes_given;
    p->transform.size = (int)(use ? own : p->size);
    p->transform.resize = (int)(use ? own_resize : p->resize);
}

/* Three numbers of the metadata; `missing` where there are none. */
static td_status find_channels(const predictor *p, const td_safetensors *file, const char *key,
                               const float missing[3], float channels[3])
{
    const char *text = td_safetensors_metadata(file, key);
    memcpy(channels, missing, 3 * sizeof *channels);
    const char *at = text;
    bool right = true;
    char *end;
    for (int i = 0; at != NULL && i < 3; at = end, i++) {
        channels[i] = (float)td_strtod(at, &end);
        right = right && end != at && isfinite(channels[i]);
    }
    TD_CHECK(right, TD_E_FORMAT, "%s: %s is '%.60s', not three numbers", p->model, key, text);
    return TD_OK;
}

/* Without metadata: ImageNet's, as all of torchvision's models want. */
static td_status find_transform(predictor *p, const td_safetensors *file)
{
    static const float mean[] = { 0.485f, 0.456f, 0.406f }, spread[] = { 0.229f, 0.224f, 0.225f };
    find_sizes(p, file);
    TD_TRY(find_channels(p, file, "mean", mean, p->transform.mean));
    return find_channels(p, file, "std", spread, p->transform.std);
}

/* ---- names of classes ---- */

/* The file's own names may be replaced by others, but not be given to other classes. */
static td_status check_not_moved(const predictor *p, const td_class_names *given)
{
    const char *const *own = (const char *const *)p->names.name;
    const char *const *new = (const char *const *)given->name;
    for (int i = 0; i < given->count; i++) {
        int place = td_class_names_find(own, p->names.count, given->name[i], i);
        if (place >= 0 && place != i) {
            char before[TD_CLASS_LIST], now[TD_CLASS_LIST];
            return td_fail(TD_E_MISMATCH,
                           "%s: line %d is '%s', which the model knows as class %d. The model has "
                           "%s. The list has %s. Leave out --classes, or put the names in the "
                           "model's order",
                           p->names_file, i + 1, given->name[i], place,
                           td_class_names_show(own, p->names.count, before),
                           td_class_names_show(new, given->count, now));
        }
    }
    return TD_OK;
}

/* *given becomes what there was before. */
static td_status take_given(predictor *p, td_class_names *given)
{
    TD_CHECK(given->count == p->classes, TD_E_FORMAT, "%s names %d classes, and the model has %lld",
             p->names_file, given->count, (long long)p->classes);
    TD_TRY(check_not_moved(p, given));
    td_class_names own = p->names;
    p->names = *given;
    *given = own;
    return TD_OK;
}

static td_status read_given(predictor *p)
{
    char *text;
    size_t size;
    td_class_names given;
    TD_TRY(td_read_file(p->names_file, "a list of names", MOST_BYTES, &text, &size));
    td_status status = td_class_names_parse(p->names_file, text, size, true, &given);
    free(text);
    TD_TRY(status);
    status = take_given(p, &given);
    td_class_names_free(&given);
    return status;
}

/* ---- opening ---- */

static bool open_model(predictor *p)
{
    p->net = td_load_model(p->model, .arch = p->arch);
    if (p->net == NULL) {
        return false;
    }
    if (p->net->type->takes_indices) {
        return td_fail(TD_E_ARG, "%s: the model takes tokens, not images", p->model) == TD_OK;
    }
    p->classes = td_model_record_of(p->net).classes;
    td_safetensors *file;
    td_status status = td_safetensors_open(p->model, &file);
    status = status == TD_OK ? find_transform(p, file) : status;
    status = status == TD_OK ? notes_read_classes(p->model, file, p->classes, &p->names) : status;
    status = status == TD_OK && p->names_file != NULL ? read_given(p) : status;
    td_safetensors_close(file);
    return status == TD_OK;
}

/* ---- predicting ---- */

static td_status run(predictor *p, const char *path, double *probability)
{
    int64_t size = p->transform.size;
    td_tensor *x = td_new_layout(TD_SHAPE(1, 3, size, size), TD_F32, TD_IMAGE, TD_CPU);
    td_status status = x != NULL ? td_image_read(path, &p->transform, x) : TD_E_NOMEM;
    if (status == TD_OK) {
        td_step_begin();
        td_no_grad_begin();
        td_read(td_softmax(td_forward(p->net, x), 1), probability, TD_F64);
        td_no_grad_end();
        td_step_end();
    }
    td_free(x);
    for (int64_t i = 0; i < p->classes && status == TD_OK; i++) {
        if (!isfinite(probability[i])) {
            status = td_fail(TD_E_ARG,
                             "%s: the model gives no numbers (%g): its weights or running "
                             "statistics are broken: %s",
                             path, probability[i], p->model);
        }
    }
    return status;
}

/* Prints the most probable classes; what has been printed is marked by -1. */
static void print_top(const predictor *p, char *path, double *probability)
{
    td_clean_text(path);
    printf("%s\n", path);
    for (int64_t k = 0; k < p->top && k < p->classes; k++) {
        int64_t best = 0;
        for (int64_t i = 1; i < p->classes; i++) {
            best = probability[i] > probability[best] ? i : best;
        }
        printf("  %6.2f %%  ", 100 * probability[best]);
        if (best < p->names.count) {
            printf("%s\n", p->names.name[best]);
        } else {
            printf("class %lld\n", (long long)best);
        }
        probability[best] = -1.0;
    }
}

static int predict_all(predictor *p, char *const *pictures, int count)
{
    double *probability = calloc((size_t)p->classes, sizeof *probability);
    int failed = probability == NULL ? 1 : 0;
    for (int i = 0; i < count && probability != NULL;
         i++) { /* a bad one does not stop the others */
        if (run(p, pictures[i], probability) == TD_OK) {
            print_top(p, pictures[i], probability);
        } else {
            failed = app_failed("predict");
        }
    }
    free(probability);
    return failed;
}

/* For images of the size that the model sees, as many at once as one likes. The file says how
 * images are resized and normalised, and what the classes are called. */
static int export_onnx(const predictor *p)
{
    const td_image_folder_transform *t = &p->transform;
    const td_dataset named = { .classes = p->names.count,
                               .class_names =
                                   p->names.count > 0 ? (const char *const *)p->names.name : NULL };
    notes n = { .count = 0 };
    td_status status =
        notes_add_model(&n, &(model_input){ t->size, t->resize, t->mean, t->std }, &named);
    if (status == TD_OK) {
        status =
            td_onnx_export(p->net, TD_SHAPE(1, 3, t->size, t->size), p->onnx, .dynamic_batch = true,
                           .metadata = n.items, .metadata_count = n.count);
    }
    notes_free(&n);
    return status != TD_OK ? app_failed("predict") : 0;
}

int main(int argc, char **argv)
{
    predictor p = { .top = 5, .size = 224, .resize = 256 };
    enum { SIZE = 3, RESIZE };
    cli_option options[] = {
        cli_text("arch", "NAME", &p.arch, "The model's architecture, where its file does not say"),
        cli_text("classes", "FILE", &p.names_file,
                 "Names of the classes, one a line, in UTF-8; blank lines at "
                 "the end and blanks around a name do not count"),
        cli_int("top", &p.top, 1, MOST_CLASSES, "How many classes are shown"),
        [SIZE] = cli_int("size", &p.size, 1, MOST_SIDE,
                         "Pixels of a side of what the model sees; otherwise its file's"),
        [RESIZE] = cli_int("resize", &p.resize, 1, MOST_SIDE,
                           "Pixels of an image's shorter side before the middle is cut out"),
        cli_text("onnx", "FILE", &p.onnx,
                 "Writes the model as an ONNX file; images may then be omitted"),
    };
    cli_rest rest = { .name = "MODEL.safetensors IMAGE...",
                      .wanted = "one model and one image",
                      .least = 1 };
    cli_parse_rest(argc, argv, "Says what is in an image: a model's most probable classes.",
                   options, sizeof options / sizeof *options, &rest);
    p.model = rest.values[0];
    CLI_CHECK(rest.count >= 2 || p.onnx != NULL, "give at least %s: %s", rest.wanted, rest.name);
    p.sizes_given = options[SIZE].given || options[RESIZE].given;
    bool open = open_model(&p);
    int failed = !open ? app_failed("predict") : p.onnx != NULL ? export_onnx(&p) : 0;
    failed |= open ? predict_all(&p, rest.values + 1, rest.count - 1) : 0;
    td_class_names_free(&p.names);
    td_module_free(p.net);
    return failed;
}
