/* Convolutions by cuDNN: each shape's plan is chosen when the shape is met first, and kept. */
#include "tensor/cuda/cuda.h"
#include "tensor/clock.h"
#include "tensor/cuda/cudnn_plan.h"
#include "tensor/cuda/library.h"
#include "tensor/kernels/element.h"
#include "tensor/system/text.h"
#include "tensor/cuda/vendor.h"
#include "tensor/tune/tune.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The memory that a plan runs on: cuDNN wants it as a descriptor, which is worth keeping, because a
 * step has the same addresses as the one before. */
typedef struct pack {
    const void *pointers[5]; /* x, w, y, bias, workspace */
    cudnnBackendDescriptor_t descriptor;
} pack;
enum { PACKS = 8 };

typedef struct entry {
    td_cuda_conv conv;
    unsigned round;     /* of td_autotune, that the plan is of */
    bool tuned;         /* the plan was chosen by timing */
    td_cudnn_plan plan; /* none: cuDNN has none for this */
    bool proven;        /* it has run */
    bool kept;          /* on disk: from its first run on */
    pack packs[PACKS];
    int next_pack; /* to be replaced */
    struct entry *next;
} entry;

enum { BUCKETS = 256 };
static struct gpu {
    pthread_mutex_t lock;
    const td_cudnn *lib; /* NULL: not opened yet */
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t description; /* tests: of a GPU that is not there, and no handle */
    entry *entries[BUCKETS];
} gpus[TD_MAX_DEVICES];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_locks(void)
{
    for (int i = 0; i < TD_MAX_DEVICES; i++) {
        pthread_mutex_init(&gpus[i].lock, NULL);
    }
}

static void must(const td_cudnn *lib, cudnnStatus_t status, const char *operation)
{
    if (status != CUDNN_STATUS_SUCCESS) {
        char detail[256] = "";
        lib->cudnnGetLastErrorString(detail, sizeof detail);
        td_fatal(TD_NOWHERE, "cuda: %s: cuDNN failed: %s %s", operation,
                 lib->cudnnGetErrorString(status), detail);
    }
}

/* Under the GPU's lock. false with td_last_error(): there is no cuDNN. */
static bool cudnn_open_gpu(struct gpu *g, td_cuda *gpu)
{
    if (g->lib != NULL) {
        return true;
    }
    const td_cudnn *lib = td_cudnn_open();
    if (lib == NULL) {
        return false;
    }
    must(lib, lib->cudnnCreate(&g->handle), "opening cuDNN");
    must(lib, lib->cudnnSetStream(g->handle, gpu->stream), "opening cuDNN");
    g->lib = lib;
    char owner[384];
    snprintf(owner, sizeof owner, "%s, sm_%d, cuDNN %zu", gpu->name, gpu->sm,
             lib->cudnnGetVersion());
    td_vendor_plans_open(gpu->device, owner);
    return true;
}

static td_cudnn_target cudnn_target_of(const struct gpu *g)
{
    return (td_cudnn_target){ g->lib, g->handle, g->description };
}

/* ---- running ---- */

static pack *pack_of(const td_cudnn *lib, entry *e, const void *const pointers[5])
{
    for (int i = 0; i < PACKS; i++) {
        if (e->packs[i].descriptor != NULL &&
            memcmp(e->packs[i].pointers, pointers, sizeof e->packs[i].pointers) == 0) {
            return &e->packs[i];
        }
    }
    pack *p = &e->packs[e->next_pack];
    e->next_pack = (e->next_pack + 1) % PACKS;
    if (p->descriptor != NULL) {
        lib->cudnnBackendDestroyDescriptor(p->descriptor);
    }
    td_cudnn_build b = { .lib = lib };
    int64_t names[4] = { TD_CUDNN_X, TD_CUDNN_W, TD_CUDNN_Y, TD_CUDNN_BIAS };
    int64_t count = e->conv.bias ? 4 : 3;
    cudnnBackendDescriptor_t d = td_cudnn_make(&b, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    td_cudnn_set(&b, d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count,
                 pointers);
    td_cudnn_set(&b, d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, names);
    td_cudnn_set(&b, d, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &pointers[4]);
    td_cudnn_finish(&b, d, "a plan's memory");
    TD_REQUIRE(b.status == CUDNN_STATUS_SUCCESS, TD_NOWHERE, "cuda: conv2d: cuDNN: %s", b.message);
    memcpy(p->pointers, pointers, sizeof p->pointers);
    p->descriptor = d; /* no longer b's */
    return p;
}

static void drop_packs(const td_cudnn *lib, entry *e)
{
    for (int i = 0; i < PACKS; i++) {
        if (e->packs[i].descriptor != NULL) {
            lib->cudnnBackendDestroyDescriptor(e->packs[i].descriptor);
        }
        e->packs[i] = (pack){ .descriptor = NULL };
    }
}

/* memory: x, w, y, bias. */
static cudnnStatus_t cudnn_run(const struct gpu *g, td_device device, entry *e,
                               const void *const *memory)
{
    void *scratch;
    void *workspace = td_vendor_workspace(device, (size_t)e->plan.workspace, &scratch);
    const void *pointers[5] = { memory[0], memory[1], memory[2], memory[3], workspace };
    const pack *p = pack_of(g->lib, e, pointers);
    cudnnStatus_t status = g->lib->cudnnBackendExecute(g->handle, e->plan.plan, p->descriptor);
    td_scratch_free(device, scratch);
    return status;
}

/* ---- choosing ---- */

enum { NEVER = 1 << 30 }; /* seconds */

/* The least of several runs; NEVER where the plan does not run. */
static double time_plan(const struct gpu *g, td_cuda *gpu, entry *e, const void *const *memory)
{
    enum { RUNS = 5, REPEATS = 4 };
    double best = NEVER;
    for (int i = 0; i <= RUNS; i++) {
        td_cuda_wait(gpu, "autotuning");
        double start = td_clock();
        for (int k = 0; k < REPEATS; k++) {
            if (cudnn_run(g, gpu->device, e, memory) != CUDNN_STATUS_SUCCESS) {
                (void)td_cuda_tried(cudaPeekAtLastError());
                return NEVER;
            }
        }
        td_cuda_wait(gpu, "autotuning");
        double taken = td_clock() - start;
        best = i > 0 && taken < best ? taken : best; /* the first run warms up */
    }
    return best;
}

/* The fastest plan; none if no one runs. The others are ended. */
static td_cudnn_plan tune(const struct gpu *g, td_cuda *gpu, const entry *like,
                          const void *const *memory, td_cudnn_plan *plans, int count)
{
    int best = -1;
    double least = NEVER;
    for (int i = 0; i < count; i++) {
        entry trial = { .conv = like->conv, .plan = plans[i] };
        double taken = time_plan(g, gpu, &trial, memory);
        drop_packs(g->lib, &trial);
        if (taken < least) {
            least = taken;
            best = i;
        }
    }
    td_cudnn_plan chosen = best >= 0 ? plans[best] : (td_cudnn_plan){ .plan = NULL };
    for (int i = 0; i < count; i++) {
        if (i != best) {
            td_cudnn_plan_end(g->lib, &plans[i]);
        }
    }
    return chosen;
}

/* ---- choosing by timing (tensor/tune/tune.h) ---- */

typedef struct problem {
    td_device device;
    td_cuda_conv conv;
} problem;

/* Random numbers in [-1, 1), a piece of them again and again: zeros would take less power, and so
 * less time. false: no memory. */
static bool fill_for_timing(td_device device, char *memory, td_dtype dtype, int64_t count)
{
    enum { PIECE = 1 << 16 };
    size_t size = td_dtype_size(dtype);
    void *host = malloc(PIECE * size);
    uint64_t random = 1;
    for (int64_t i = 0; host != NULL && i < PIECE; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        td_store_element(host, dtype, i, (double)(int64_t)random * 0x1p-63);
    }
    for (int64_t at = 0; host != NULL && at < count; at += PIECE) {
        size_t bytes = (size_t)(count - at < PIECE ? count - at : PIECE) * size;
        td_cuda_upload(device, memory + (size_t)at * size, host, bytes);
    }
    free(host);
    return host != NULL;
}

/* Under the GPU's lock: times the plans for a problem on memory of its own. */
static td_cudnn_plan tune_problem(const struct gpu *g, td_cuda *gpu, const problem *p)
{
    enum { TUNED = 10 };
    const td_cuda_conv *c = &p->conv;
    int64_t counts[4] = { c->n * c->ic * c->ih * c->iw, c->oc * (c->ic / c->groups) * c->kh * c->kw,
                          c->n * c->oc * c->oh * c->ow, c->bias ? c->oc : 0 };
    void *memory[4] = { NULL };
    bool taken = true;
    for (int i = 0; i < 4 && taken; i++) {
        size_t bytes = (size_t)counts[i] * td_dtype_size(c->dtype);
        memory[i] = bytes > 0 ? td_cuda_take(p->device, bytes) : NULL;
        taken = bytes == 0 ||
                (memory[i] != NULL && fill_for_timing(p->device, memory[i], c->dtype, counts[i]));
    }
    td_cudnn_target target = cudnn_target_of(g);
    td_cudnn_plan plans[TUNED], chosen = { .plan = NULL };
    int count = taken ? td_cudnn_candidates(&target, c, TUNED, plans) : 0;
    if (count > 0) {
        chosen = tune(g, gpu, &(entry){ .conv = *c }, (const void *const *)memory, plans, count);
    }
    for (int i = 0; i < 4; i++) {
        if (memory[i] != NULL) {
            td_cuda_give(p->device, memory[i]);
        }
    }
    return chosen;
}

static char *choose_by_timing(const void *noted, size_t *bytes, bool *timed)
{
    const problem *p = noted;
    td_cuda *gpu = td_cuda_of(p->device);
    struct gpu *g = &gpus[p->device.index];
    char key[TD_PLAN_KEY_MAX];
    td_cudnn_plan_key(&p->conv, true, key);
    pthread_mutex_lock(&g->lock);
    td_cudnn_target target = cudnn_target_of(g);
    td_cudnn_plan plan;
    char *text = td_vendor_plan_get(p->device, key, bytes);
    *timed = text == NULL || !td_cudnn_plan_read(&target, text, *bytes, &plan);
    if (*timed) {
        free(text);
        plan = tune_problem(g, gpu, p);
        text = plan.plan != NULL ? td_cudnn_plan_write(g->lib, &plan, bytes) : NULL;
        if (text != NULL) {
            td_vendor_plan_put(p->device, key, text, *bytes);
        }
    }
    td_cudnn_plan_end(g->lib, &plan);
    pthread_mutex_unlock(&g->lock);
    return text;
}

/* The plan that was chosen by timing; none if the rules decide. */
static td_cudnn_plan chosen_plan(const struct gpu *g, td_device device, const td_cuda_conv *conv)
{
    td_cudnn_target target = cudnn_target_of(g);
    td_cudnn_plan plan = { .plan = NULL };
    problem p = { device, *conv };
    char key[TD_PLAN_KEY_MAX];
    size_t bytes;
    td_cudnn_plan_key(conv, true, key);
    char *text = td_autotune_choice(key, &bytes, choose_by_timing, &p, sizeof p);
    if (text != NULL && !td_cudnn_plan_read(&target, text, bytes, &plan)) {
        plan.plan = NULL;
        td_notice("cuDNN's rules decide here: a choice by --autotune was made on another GPU, or "
                  "by another cuDNN: %s",
                  key);
    }
    free(text);
    return plan;
}

/* ---- choosing by cuDNN's rules ---- */

static void cudnn_choose(const struct gpu *g, td_device device, entry *e)
{
    td_cudnn_target target = cudnn_target_of(g);
    char key[TD_PLAN_KEY_MAX];
    td_cudnn_plan_key(&e->conv, false, key);
    size_t bytes;
    char *text = td_vendor_plan_get(device, key, &bytes);
    e->kept = text != NULL && td_cudnn_plan_read(&target, text, bytes, &e->plan);
    free(text);
    if (!e->kept && td_cudnn_candidates(&target, &e->conv, 1, &e->plan) == 0) {
        e->plan = (td_cudnn_plan){ .plan = NULL };
    }
}

/* The choices have changed: the entry takes its own, if there is one. */
static void update(const struct gpu *g, td_device device, entry *e)
{
    e->round = td_autotune_round();
    td_cudnn_plan plan =
        td_autotune() ? chosen_plan(g, device, &e->conv) : (td_cudnn_plan){ .plan = NULL };
    if (plan.plan == NULL && !e->tuned) {
        return;
    }
    drop_packs(g->lib, e);
    td_cudnn_plan_end(g->lib, &e->plan);
    e->plan = plan;
    e->tuned = e->kept = plan.plan != NULL;
    e->proven = false;
    if (!e->tuned) {
        cudnn_choose(g, device, e);
    }
}

/* ---- the first run ---- */

static void keep(const struct gpu *g, td_device device, entry *e)
{
    char key[TD_PLAN_KEY_MAX];
    td_cudnn_plan_key(&e->conv, e->tuned, key);
    size_t bytes;
    char *text = td_cudnn_plan_write(g->lib, &e->plan, &bytes);
    if (text != NULL) {
        td_vendor_plan_put(device, key, text, bytes);
        free(text);
    }
    e->kept = true;
}

/* A plan that could be made and does not run is forgotten, here and on disk. */
static void give_up(const struct gpu *g, td_device device, entry *e, cudnnStatus_t status)
{
    char key[TD_PLAN_KEY_MAX];
    td_cudnn_plan_key(&e->conv, e->tuned, key);
    td_notice("a plan of cuDNN's does not run, and another is tried: %s: %s", key,
              g->lib->cudnnGetErrorString(status));
    (void)td_cuda_tried(cudaPeekAtLastError());
    td_vendor_plan_remove(device, key);
    drop_packs(g->lib, e);
    td_cudnn_plan_end(g->lib, &e->plan);
    e->tuned = e->kept = false;
}

/* The first of cuDNN's plans that runs becomes the entry's. */
static cudnnStatus_t try_others(const struct gpu *g, td_device device, entry *e,
                                const void *const *memory)
{
    enum { TRIED = 10 };
    td_cudnn_target target = cudnn_target_of(g);
    td_cudnn_plan plans[TRIED];
    int count = td_cudnn_candidates(&target, &e->conv, TRIED, plans);
    cudnnStatus_t status = CUDNN_STATUS_NOT_SUPPORTED;
    for (int i = 0; i < count; i++) {
        if (status == CUDNN_STATUS_SUCCESS) {
            td_cudnn_plan_end(g->lib, &plans[i]);
            continue;
        }
        e->plan = plans[i];
        status = cudnn_run(g, device, e, memory);
        if (status != CUDNN_STATUS_SUCCESS) {
            give_up(g, device, e, status);
        }
    }
    return status;
}

/* A plan that has run before and fails now has no successor: that is no question of what cuDNN can
 * do. */
static cudnnStatus_t execute_plan(const struct gpu *g, td_device device, entry *e,
                                  const void *const *memory)
{
    cudnnStatus_t status = cudnn_run(g, device, e, memory);
    if (status != CUDNN_STATUS_SUCCESS && !e->proven) {
        give_up(g, device, e, status);
        status = try_others(g, device, e, memory);
    }
    if (status == CUDNN_STATUS_SUCCESS) {
        e->proven = true;
        if (!e->kept) {
            keep(g, device, e);
        }
    }
    return status;
}

/* ---- the table of plans ---- */

static bool same_conv(const td_cuda_conv *a, const td_cuda_conv *b)
{
    return a->pass == b->pass && a->dtype == b->dtype && a->tf32 == b->tf32 && a->bias == b->bias &&
           a->accumulate == b->accumulate && a->n == b->n && a->ic == b->ic && a->ih == b->ih &&
           a->iw == b->iw && a->oc == b->oc && a->oh == b->oh && a->ow == b->ow && a->kh == b->kh &&
           a->kw == b->kw && memcmp(a->stride, b->stride, sizeof a->stride) == 0 &&
           memcmp(a->pad, b->pad, sizeof a->pad) == 0 &&
           memcmp(a->dilation, b->dilation, sizeof a->dilation) == 0 && a->groups == b->groups;
}

static unsigned cudnn_bucket_of(const td_cuda_conv *c)
{
    uint64_t h = (uint64_t)c->pass * 4 + (uint64_t)c->dtype;
    const int64_t numbers[] = { c->n,  c->ic, c->ih,        c->iw,    c->oc,
                                c->kh, c->kw, c->stride[0], c->groups };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        h = (h ^ (uint64_t)numbers[i]) * 0x9e3779b97f4a7c15u;
    }
    return (unsigned)(h >> 56);
}

/* Under the GPU's lock. */
static entry *entry_of(struct gpu *g, td_device device, const td_cuda_conv *conv)
{
    entry **bucket = &g->entries[cudnn_bucket_of(conv) % BUCKETS], *e = *bucket;
    while (e != NULL && !same_conv(&e->conv, conv)) {
        e = e->next;
    }
    if (e == NULL) {
        e = calloc(1, sizeof *e);
        TD_REQUIRE(e != NULL, TD_NOWHERE, "out of memory for a plan of cuDNN's");
        e->conv = *conv;
        cudnn_choose(g, device, e);
        update(g, device, e);
        e->next = *bucket;
        *bucket = e;
    } else if (e->round != td_autotune_round()) {
        update(g, device, e);
    }
    return e;
}

/* cuDNN's engines count elements in 32 bits. */
static void check_size(const td_cuda_conv *c)
{
    int64_t x = c->n * c->ic * c->ih * c->iw, y = c->n * c->oc * c->oh * c->ow;
    TD_REQUIRE(
        x <= INT32_MAX && y <= INT32_MAX, TD_NOWHERE,
        "cuda: conv2d: images of %lld and %lld elements; cuDNN takes up to %d: use a smaller "
        "batch",
        (long long)x, (long long)y, INT32_MAX);
}

/* Failures are told after the lock is released: a caller's fatal handler may jump away. */
bool td_cuda_vendor_conv(td_device device, const td_cuda_conv *conv, void *x, void *w, void *y,
                         const void *bias)
{
    check_size(conv);
    td_cuda *gpu = td_cuda_of(device);
    pthread_once(&once, make_locks);
    struct gpu *g = &gpus[device.index];
    const void *memory[4] = { x, w, y, bias };
    cudnnStatus_t status = CUDNN_STATUS_NOT_SUPPORTED;
    pthread_mutex_lock(&g->lock);
    bool opened = cudnn_open_gpu(g, gpu);
    entry *e = opened ? entry_of(g, device, conv) : NULL;
    if (opened && e->plan.plan != NULL) {
        status = execute_plan(g, device, e, memory);
    }
    bool possible = opened && e->plan.plan != NULL; /* plans that do not run are given up */
    pthread_mutex_unlock(&g->lock);
    TD_REQUIRE(opened, TD_NOWHERE,
               "cuda: conv2d: %s (pip install nvidia-cudnn-cu%d, or NVIDIA's libcudnn9-cuda-%d)",
               td_last_error(), CUDART_VERSION / 1000, CUDART_VERSION / 1000);
    if (possible) {
        must(g->lib, status, "conv2d");
        return true;
    }
    char key[TD_PLAN_KEY_MAX];
    td_cudnn_plan_key(conv, false, key);
    TD_REQUIRE(conv->bias, TD_NOWHERE,
               "cuda: conv2d: cuDNN has no deterministic plan that runs for %s: %s", key,
               g->lib->cudnnGetErrorString(status));
    return false; /* perhaps without the bias */
}
