/* Says what is in a picture: a trained model's most probable classes.
 *
 *     apps/predict MODEL.safetensors PICTURE...
 *
 * The model is a checkpoint of ours or torchvision's weights, saved as safetensors; its
 * architecture is read from the file's metadata ("arch") or given by --arch, and how many classes
 * it has follows from its last layer; where the file has averages of the weights, those are used.
 * The pictures are resized and cropped as in torchvision's evaluation. */
#include "apps/common/cli.h"
#include "apps/common/weights.h"
#include "tandem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NAME = 256, MOST_CLASSES = 100000, MOST_SIDE = 8192 };

typedef struct predict_args {
    const char *model, *arch, *classes;
    int64_t top, size, resize;
    bool size_given, resize_given;
} predict_args;

typedef struct predictor {
    predict_args args;
    char arch[NAME];
    int64_t classes, image_size;
    char **names; /* [classes] or NULL */
    td_module *net;
} predictor;

/* ---- the model ---- */

/* The rows of the last weight that is a matrix and no table of positions: the classifier's. */
static td_status look_into(predictor *p, const td_safetensors *file)
{
    for (int i = 0; i < td_safetensors_count(file); i++) {
        const td_safetensors_entry *e = td_safetensors_get(file, i);
        if (strncmp(e->name, "optimizer.", 10) == 0 || e->shape.ndim != 2) {
            continue;
        }
        if (strstr(e->name, "pos_emb.rel_height") != NULL) { /* BoTNet's distances; stride 16 */
            p->image_size = (e->shape.dim[0] + 1) / 2 * 16;
        } else if (strstr(e->name, "pos_emb") == NULL) {
            p->classes = e->shape.dim[0];
        }
    }
    if (p->classes < 1 || p->classes > MOST_CLASSES) {
        return td_fail(TD_E_FORMAT, "%s: no weights of a classifier in it: is this a model's file?",
                       p->args.model);
    }
    return TD_OK;
}

static td_status find_arch(predictor *p, const td_safetensors *file)
{
    const char *arch = p->args.arch != NULL ? p->args.arch : td_safetensors_metadata(file, "arch");
    if (arch == NULL) {
        return td_fail(TD_E_ARG,
                       "%s does not say which model it is; name it: --arch resnet50 (or another)",
                       p->args.model);
    }
    snprintf(p->arch, sizeof p->arch, "%s", arch);
    return TD_OK;
}

/* What train_net has tested with is in its files. */
static void find_sizes(predictor *p, const td_safetensors *file)
{
    const char *size = td_safetensors_metadata(file, "size");
    const char *resize = td_safetensors_metadata(file, "resize");
    int64_t own = size != NULL ? strtoll(size, NULL, 10) : 0;
    int64_t own_resize = resize != NULL ? strtoll(resize, NULL, 10) : 0;
    if (own < 1 || own > MOST_SIDE || own_resize < own || own_resize > MOST_SIDE ||
        p->args.size_given || p->args.resize_given) {
        return;
    }
    p->args.size = own;
    p->args.resize = own_resize;
}

/* ---- names of classes ---- */

/* Lines of text, one name each. */
static td_status take_names(predictor *p, const char *text, const char *where)
{
    p->names = calloc((size_t)p->classes, sizeof(char *));
    if (p->names == NULL) {
        return td_fail(TD_E_NOMEM, "no memory for %lld names", (long long)p->classes);
    }
    int64_t count = 0;
    while (*text != '\0') {
        size_t length = strcspn(text, "\r\n");
        if (count < p->classes) {
            p->names[count] = strndup(text, length);
        }
        count++;
        text += length;
        text += strspn(text, "\r");
        text += *text == '\n';
    }
    if (count != p->classes) {
        return td_fail(TD_E_FORMAT, "%s names %lld classes, and the model has %lld", where,
                       (long long)count, (long long)p->classes);
    }
    return TD_OK;
}

static td_status read_names(predictor *p)
{
    FILE *in = fopen(p->args.classes, "r");
    char *text = NULL;
    size_t room = 0;
    ssize_t length = in != NULL ? getdelim(&text, &room, '\0', in) : -1;
    if (in != NULL) {
        fclose(in);
    }
    td_status status = length > 0
                           ? take_names(p, text, p->args.classes)
                           : td_fail(TD_E_IO, "%s: cannot be read, or is empty", p->args.classes);
    free(text);
    return status;
}

/* ---- opening ---- */

static td_status describe(predictor *p)
{
    td_safetensors *file;
    TD_TRY(td_safetensors_open(p->args.model, &file));
    td_status status = look_into(p, file);
    if (status == TD_OK) {
        status = find_arch(p, file);
    }
    find_sizes(p, file);
    const char *names = td_safetensors_metadata(file, "classes");
    if (status == TD_OK && p->args.classes != NULL) {
        status = read_names(p);
    } else if (status == TD_OK && names != NULL) {
        status = take_names(p, names, "the model's file");
    }
    td_safetensors_close(file);
    return status;
}

static td_status open_model(predictor *p)
{
    TD_TRY(describe(p));
    p->net = td_model(
        p->arch,
        &(td_model_options){ .classes = p->classes, .image_size = p->image_size, .blank = true });
    if (p->net == NULL) {
        return TD_E_ARG;
    }
    td_eval(p->net);
    return weights_load(p->net, p->args.model, NULL);
}

/* ---- predicting ---- */

static td_status run(predictor *p, const char *path, double *probability)
{
    const td_picture_transform transform = {
        .size = (int)p->args.size,
        .resize = (int)p->args.resize,
        .mean = { 0.485f, 0.456f, 0.406f }, /* ImageNet's, as all of torchvision's models want */
        .std = { 0.229f, 0.224f, 0.225f },
    };
    td_tensor *x =
        td_new_layout(TD_SHAPE(1, 3, p->args.size, p->args.size), TD_F32, TD_IMAGE, TD_CPU);
    td_status status = x != NULL ? td_picture_read(path, &transform, x) : TD_E_NOMEM;
    if (status == TD_OK) {
        td_step_begin();
        td_no_grad_begin();
        td_read(td_softmax(td_forward(p->net, x), 1), probability, TD_F64);
        td_no_grad_end();
        td_step_end();
    }
    td_free(x);
    return status;
}

/* Prints the most probable classes; what has been printed is marked by -1. */
static void print_top(const predictor *p, const char *path, double *probability)
{
    printf("%s\n", path);
    for (int64_t k = 0; k < p->args.top && k < p->classes; k++) {
        int64_t best = 0;
        for (int64_t i = 1; i < p->classes; i++) {
            best = probability[i] > probability[best] ? i : best;
        }
        printf("  %6.2f %%  ", 100 * probability[best]);
        if (p->names != NULL) {
            printf("%s\n", p->names[best]);
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
            fprintf(stderr, "predict: %s\n", td_last_error());
            failed = 1;
        }
    }
    free(probability);
    return failed;
}

static void close_model(predictor *p)
{
    for (int64_t i = 0; p->names != NULL && i < p->classes; i++) {
        free(p->names[i]);
    }
    free(p->names);
    td_module_free(p->net);
}

int main(int argc, char **argv)
{
    predictor p = { .args = { .top = 5, .size = 224, .resize = 256 } };
    cli_option options[] = {
        { "arch", "NAME", "The model's architecture, where its file does not say", CLI_TEXT,
          .value = &p.args.arch },
        { "classes", "FILE", "Names of the classes, one a line", CLI_TEXT,
          .value = &p.args.classes },
        { "top", "N", "How many classes are shown", CLI_INT, .value = &p.args.top, .low = 1,
          .high = MOST_CLASSES },
        { "size", "N", "Pixels of a side of what the model sees; unless its file says", CLI_INT,
          .value = &p.args.size, .low = 1, .high = 8192 },
        { "resize", "N", "Pixels of a picture's shorter side before the middle is cut out", CLI_INT,
          .value = &p.args.resize, .low = 1, .high = 8192 },
    };
    cli_rest rest = { .name = "MODEL.safetensors PICTURE...",
                      .wanted = "one model and one picture",
                      .least = 2 };
    cli_parse_rest(argc, argv, "Says what is in a picture: a model's most probable classes.",
                   options, sizeof options / sizeof *options, &rest);
    p.args.model = rest.values[0];
    p.args.size_given = options[3].given;
    p.args.resize_given = options[4].given;
    int failed = 1;
    if (open_model(&p) == TD_OK) {
        failed = predict_all(&p, rest.values + 1, rest.count - 1);
    } else {
        fprintf(stderr, "predict: %s\n", td_last_error());
    }
    close_model(&p);
    return failed;
}
