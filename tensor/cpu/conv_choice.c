#include "tensor/cpu/conv_choice.h"

#include "tensor/cpu/conv_wino.h"
#include "tensor/cpu/cpu_device.h"
#include "tensor/cpu/isa.h"
#include "tensor/clock.h"
#include "tensor/tune/store.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    KERNELS = 4,          /* to be raised when either way becomes faster: timings are kept */
    MOST_BYTES = 1 << 30, /* of pictures, beside those of the run; larger ones go by the rules */
};

typedef struct problem {
    td_device device;
    td_conv2d_desc desc;
    td_conv2d_pass pass;
} problem;

static const char *const names[] = { "direct", "winograd" };

/* ---- names ---- */

/* "AMD EPYC 9B45 128-Core Processor"; "CPU" where the system does not say. Linux looks at all CPUs
 * to tell it, which takes many milliseconds. */
static char model[128];
static pthread_once_t model_once = PTHREAD_ONCE_INIT;

static void find_model(void)
{
    char line[256];
    snprintf(model, sizeof model, "CPU");
    FILE *file = fopen("/proc/cpuinfo", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        char *value = strchr(line, ':');
        if (value != NULL && strncmp(line, "model name", 10) == 0) {
            value += 1 + strspn(value + 1, " \t");
            value[strcspn(value, "\n")] = '\0';
            snprintf(model, sizeof model, "%.*s", (int)sizeof model - 1, value);
            break;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
}

void td_conv2d_choice_owner(td_device device, char owner[TD_CONV_NAME_MAX])
{
    pthread_once(&model_once, find_model);
    snprintf(owner, TD_CONV_NAME_MAX, "%s, %s, kernels %d, %d threads", model,
             td_isa_name(td_isa_vectors()), KERNELS, td_cpu_threads(device));
}

void td_conv2d_choice_key(const td_conv2d_desc *d, td_conv2d_pass pass, char key[TD_CONV_NAME_MAX])
{
    static const char *const passes[] = { "forward", "backward-data", "backward-weights", "bias" };
    snprintf(key, TD_CONV_NAME_MAX,
             "cpu conv %s f32 x%lldx%lldx%lldx%lld y%lldx%lldx%lld k%dx%d s%d,%d p%d,%d d%d,%d "
             "g%lld",
             passes[pass], (long long)d->n, (long long)d->ic, (long long)d->ih, (long long)d->iw,
             (long long)d->oc, (long long)d->oh, (long long)d->ow, d->kh, d->kw, d->stride_h,
             d->stride_w, d->pad_h, d->pad_w, d->dil_h, d->dil_w, (long long)d->groups);
}

/* A choice's first word; what follows is for people. TD_WINOGRAD_BY_RULES: it is none. */
static td_winograd read_choice(const char *text)
{
    for (int way = 0; way < 2; way++) {
        size_t length = strlen(names[way]);
        if (strncmp(text, names[way], length) == 0 &&
            (text[length] == '\0' || text[length] == ' ')) {
            return way == 1 ? TD_WINOGRAD_ALWAYS : TD_WINOGRAD_NEVER;
        }
    }
    return TD_WINOGRAD_BY_RULES;
}

/* ---- timing ---- */

/* What a pass runs on: memory of its own, since that of the step is gone. */
typedef struct bench {
    const problem *p;
    float *x, *w, *y;
    void *workspace;
} bench;

/* Numbers in [-0.5, 0.5), as good as any others. NULL: out of memory. */
static float *make_numbers(int64_t count)
{
    float *numbers = aligned_alloc(64, ((size_t)count * sizeof *numbers + 63) / 64 * 64);
    for (int64_t i = 0; numbers != NULL && i < count; i++) {
        uint32_t bits = (uint32_t)i * 2654435761u;
        numbers[i] = (float)(bits >> 8) / (float)(1 << 24) - 0.5f;
    }
    return numbers;
}

static bool open_bench(bench *b, const problem *p)
{
    td_conv2d_desc d = p->desc;
    size_t most = 64;
    for (int way = 0; way < 2; way++) {
        d.winograd = way == 1 ? TD_WINOGRAD_ALWAYS : TD_WINOGRAD_NEVER;
        size_t bytes = td_conv2d_workspace(&d, p->pass);
        most = bytes > most ? bytes : most;
    }
    *b = (bench){ .p = p,
                  .x = make_numbers(d.n * d.ic * d.ih * d.iw),
                  .w = make_numbers(d.oc * d.ic * d.kh * d.kw),
                  .y = make_numbers(d.n * d.oc * d.oh * d.ow),
                  .workspace = aligned_alloc(64, (most + 63) / 64 * 64) };
    return b->x != NULL && b->w != NULL && b->y != NULL && b->workspace != NULL;
}

static void close_bench(bench *b)
{
    free(b->x);
    free(b->w);
    free(b->y);
    free(b->workspace);
}

static double time_once(const bench *b, int way)
{
    td_conv2d_desc d = b->p->desc;
    d.winograd = way == 1 ? TD_WINOGRAD_ALWAYS : TD_WINOGRAD_NEVER;
    td_pool *pool = td_cpu_pool(b->p->device);
    double begin = td_clock();
    switch (b->p->pass) {
    case TD_CONV2D_FORWARD:
        td_conv2d_forward(pool, &d, b->x, b->w, NULL, b->y, b->workspace);
        break;
    case TD_CONV2D_BACKWARD_DATA:
        td_conv2d_backward_data(pool, &d, b->y, b->w, b->x, false, b->workspace);
        break;
    default:
        td_conv2d_backward_weights(pool, &d, b->x, b->y, b->w, false, b->workspace);
        break;
    }
    return td_clock() - begin;
}

/* The least of several runs of each way, in turns, so that both have the same neighbours; fewer
 * where they are far apart or slow. */
static void time_both(const bench *b, double least[2])
{
    enum { RUNS = 8, SURE = 2 };
    const double far_apart = 1.5, patience = 1.0; /* times; seconds */
    (void)time_once(b, 0);
    (void)time_once(b, 1); /* the first ones warm up */
    double begin = td_clock();
    for (int run = 0; run < RUNS; run++) {
        for (int way = 0; way < 2; way++) {
            double taken = time_once(b, way);
            least[way] = run == 0 || taken < least[way] ? taken : least[way];
        }
        double ratio = least[0] > least[1] ? least[0] / least[1] : least[1] / least[0];
        if (run + 1 >= SURE && (ratio > far_apart || td_clock() - begin > patience)) {
            break;
        }
    }
}

/* The direct way is the more precise one: where they are alike it is taken. */
static bool time_problem(const problem *p, char *text, size_t size)
{
    const double alike = 1.03;
    bench b;
    double least[2] = { 0 };
    const td_conv2d_desc *d = &p->desc;
    if ((d->ic * d->ih * d->iw + d->oc * d->oh * d->ow) * d->n >
        MOST_BYTES / (int64_t)sizeof(float)) {
        return false;
    }
    bool opened = open_bench(&b, p);
    if (opened) {
        time_both(&b, least);
        snprintf(text, size, "%s (direct %.3f ms, winograd %.3f ms)",
                 names[least[0] > alike * least[1]], 1e3 * least[0], 1e3 * least[1]);
    }
    close_bench(&b);
    return opened;
}

/* ---- choosing ---- */

/* Timings stay in the file: equal choices are equal text in checkpoints. */
static char *choose(const void *noted, size_t *bytes, bool *timed)
{
    const problem *p = noted;
    char owner[TD_CONV_NAME_MAX], key[TD_CONV_NAME_MAX], text[128] = "";
    td_conv2d_choice_owner(p->device, owner);
    td_conv2d_choice_key(&p->desc, p->pass, key);
    td_plan_store *store = td_plan_store_of(owner);
    char *kept = td_plan_store_get(store, key, bytes);
    td_winograd choice = kept != NULL ? read_choice(kept) : TD_WINOGRAD_BY_RULES;
    free(kept);
    *timed = choice == TD_WINOGRAD_BY_RULES;
    if (*timed && time_problem(p, text, sizeof text)) {
        td_plan_store_put(store, key, text, strlen(text));
        choice = read_choice(text);
    }
    if (choice == TD_WINOGRAD_BY_RULES) {
        return NULL; /* too large to time it */
    }
    const char *name = names[choice == TD_WINOGRAD_ALWAYS];
    *bytes = strlen(name);
    return strdup(name);
}

void td_conv2d_choose(td_device device, td_conv2d_desc *desc, td_conv2d_pass pass)
{
    if (!td_autotune() || desc->winograd != TD_WINOGRAD_BY_RULES || !td_wino_possible(desc)) {
        return;
    }
    char key[TD_CONV_NAME_MAX];
    size_t bytes;
    td_conv2d_choice_key(desc, pass, key);
    problem p = { device, *desc, pass };
    char *text = td_autotune_choice(key, &bytes, choose, &p, sizeof p);
    desc->winograd = text != NULL ? read_choice(text) : TD_WINOGRAD_BY_RULES;
    free(text);
}
