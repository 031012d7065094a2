/* A training job that runs eagerly or as a captured step. */
#include "tests/tensor/captured_job.h"

#include "nn/extra/inspect.h"
#include "nn/extra/muon.h"
#include "nn/optim/optim_internal.h"
#include "dist/graph/captured.h"
#include "tensor/extend.h"
#include "nn/module.h"
#include "data/inspect.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SIDE = 4, FEATURES = 9, HIDDEN = 8 };

static const int64_t batches[2] = { CAPTURED_JOB_BATCH, CAPTURED_JOB_TAIL };

/* Of pictures of SIDE, or of a loader's, which are brought down to it, or of any size (maps). */
static td_module *new_net(const captured_kind *kind)
{
    if (kind->maps) {
        return td_nn_sequential(td_nn_conv2d(3, 4, .kernel = 3, .padding = 1),
                                td_nn_batch_norm2d(4), td_nn_relu(), td_nn_global_avg_pool2d(),
                                td_nn_flatten(), td_nn_linear(4, CAPTURED_JOB_CLASSES));
    }
    if (kind->loader) {
        return td_nn_sequential(td_nn_conv2d(3, 4, .kernel = 8, .stride = 8), td_nn_batch_norm2d(4),
                                td_nn_relu(), td_nn_flatten(), td_nn_linear(4 * SIDE * SIDE, 10));
    }
    return kind->pictures
               ? td_nn_sequential(td_nn_conv2d(3, 4, .kernel = 3, .padding = 1),
                                  td_nn_batch_norm2d(4), td_nn_relu(), td_nn_max_pool2d(2),
                                  td_nn_flatten(),
                                  td_nn_linear(4 * SIDE * SIDE / 4, CAPTURED_JOB_CLASSES))
               : td_nn_sequential(td_nn_linear(FEATURES, HIDDEN), td_nn_gelu(), td_nn_dropout(0.25),
                                  td_nn_linear(HIDDEN, HIDDEN), td_nn_stochastic_depth(0.25),
                                  td_nn_dropout(0.5), td_nn_linear(HIDDEN, CAPTURED_JOB_CLASSES));
}

static td_optim *new_optim(captured_optim kind, td_params *params)
{
    switch (kind) {
    case CAPTURED_SGD:
        return td_sgd(params, .lr = 0.05, .momentum = 0.9, .nesterov = true);
    case CAPTURED_ADAM:
        return td_adam(params);
    case CAPTURED_MUON:
        break;
    }
    return td_muon(params, .lr = 0.1, .momentum = 0.6, .rounds = 2);
}

static td_shape shape_of(const captured_job *job, int tail)
{
    int side = job->kind.maps && tail ? 1 : SIDE;
    return job->kind.pictures ? TD_SHAPE(batches[tail], 3, side, side)
                              : TD_SHAPE(batches[tail], FEATURES);
}

static void open_loader(captured_job *job)
{
    enum { PICTURES = 4 * CAPTURED_JOB_BATCH + CAPTURED_JOB_TAIL };
    td_image_transform transform = { .crop_padding = 4, .flip = true, .seed = 7 };
    assert_int_equal(td_synthetic_images(PICTURES, 3, &job->data), TD_OK);
    assert_int_equal(td_dataset_set_transform(job->data, &transform), TD_OK);
    td_generator_seed(&job->order, 11 + (uint64_t)td_dist_rank());
    job->loader = td_loader_open(job->data, .batch_size = CAPTURED_JOB_BATCH, .shuffle = true,
                                 .device = job->kind.device, .generator = &job->order);
    assert_non_null(job->loader);
}

static bool is_linear(const td_module *m, const char *path, void *user)
{
    (void)path, (void)user;
    return strcmp(m->type->name, "Linear") == 0;
}

void captured_job_open(captured_job *job, captured_kind kind)
{
    *job = (captured_job){ .kind = kind, .more_at = -1 };
    td_manual_seed(0);
    job->net = new_net(&kind);
    assert_non_null(job->net);
    assert_int_equal(td_module_to(job->net, kind.device, TD_F32), TD_OK);
    if (kind.ddp) {
        if (kind.replicas) {
            assert_int_equal(td_mesh_new("rep=*", &job->mesh), TD_OK);
        }
        job->net = td_ddp(job->net, .bucket_cap_mb = 0.001, .mesh = job->mesh,
                          .strategy = td_zero(kind.shard, .unit = is_linear, .wire = kind.wire,
                                              .offload = kind.offload));
        assert_non_null(job->net);
    }
    job->optim = new_optim(kind.optim, td_parameters(job->net));
    assert_non_null(job->optim);
    if (kind.ema) {
        job->ema = td_ema_new(job->net, .decay = 0.9, .warmup = true);
        assert_non_null(job->ema);
    }
    if (kind.loader) {
        open_loader(job);
    }
    if (kind.lookahead) {
        job->lookahead = lookahead_new(job->net);
        assert_non_null(job->lookahead);
    }
    if (kind.scaler) {
        job->scaler = td_scaler_new(.scale = 0x1p24, .patience = 2);
        assert_non_null(job->scaler);
    }
    for (int tail = 0; tail < 2; tail++) {
        td_layout layout = kind.pictures ? TD_IMAGE : TD_ROW_MAJOR;
        job->x[tail] = td_new_layout(shape_of(job, tail), TD_F32, layout, kind.device);
        job->y[tail] = td_new(TD_SHAPE(batches[tail]), TD_I64, kind.device);
        assert_non_null(job->x[tail]);
        assert_non_null(job->y[tail]);
    }
}

void captured_job_close(captured_job *job)
{
    td_ema_free(job->ema);
    td_scaler_free(job->scaler);
    lookahead_free(job->lookahead);
    td_optim_free(job->optim);
    td_module_free(job->net);
    td_mesh_free(job->mesh);
    td_loader_close(job->loader);
    td_dataset_free(job->data);
    for (int tail = 0; tail < 2; tail++) {
        td_free(job->x[tail]);
        td_free(job->y[tail]);
    }
}

static void write_batch(captured_job *job, int tail)
{
    float x[CAPTURED_JOB_BATCH * 3 * SIDE * SIDE];
    int64_t y[CAPTURED_JOB_BATCH], n = td_numel(job->x[tail]);
    uint64_t rank = (uint64_t)td_dist_rank();
    for (int64_t i = 0; i < n; i++) {
        uint32_t words[4];
        td_philox((td_philox_key){ 77, 1 + rank }, (uint64_t)job->steps, (uint64_t)i, words);
        x[i] = (float)words[0] * 0x1p-31f - 1.0f;
    }
    for (int64_t i = 0; i < batches[tail]; i++) {
        y[i] = (i + job->steps + (int64_t)rank) % CAPTURED_JOB_CLASSES;
    }
    if (job->kind.scaler && !job->kind.pictures && job->steps % 5 == 4) {
        x[0] = INFINITY; /* statistics of pictures would keep it */
    }
    if (job->bad_label != 0) {
        y[2] = job->bad_label;
    }
    td_write(job->x[tail], x, TD_F32);
    td_write(job->y[tail], y, TD_I64);
}

static void take_batch(captured_job *job, int tail)
{
    if (!td_loader_next(job->loader, &job->batch)) { /* the end of an epoch */
        assert_true(td_loader_next(job->loader, &job->batch));
    }
    assert_int_equal(job->batch.size, batches[tail]);
}

/* The batch and the learning rate of the step that comes. */
static void prepare(captured_job *job, int tail)
{
    (job->kind.loader ? take_batch : write_batch)(job, tail);
    td_schedule schedule = { .kind = TD_SCHEDULE_COSINE,
                             .base_lr = job->kind.optim == CAPTURED_ADAM ? 0.01 : 0.05,
                             .total = 40,
                             .warmup = 4,
                             .warmup_factor = 0.1 };
    td_optim_set_lr(job->optim, td_schedule_lr(&schedule, (double)job->steps));
    if (job->lookahead != NULL) {
        lookahead_set_decay(job->lookahead, 0.9 - 0.01 * (double)job->steps);
    }
    job->steps++;
}

typedef struct turn {
    bool first, last, ahead;
} turn;

/* Where the latest step that was prepared stands among those of which the optimizer makes one. */
static turn turn_of(const captured_job *job)
{
    int64_t count = job->kind.accumulate > 0 ? job->kind.accumulate : 1;
    int64_t at = (job->steps - 1) % count;
    return (turn){ at == 0, at == count - 1, job->lookahead != NULL && job->steps % 3 == 0 };
}

/* Gradients are added up, and averaged over the ranks, in one step. */
static void learn(captured_job *job, td_tensor *loss)
{
    turn now = turn_of(job);
    if (now.first) {
        td_zero_grad(job->optim);
    }
    td_backward(td_scaler_loss(job->scaler, loss));
    if (!now.last || !td_scaler_unscale(job->scaler, td_parameters(job->net))) {
        return;
    }
    if (job->kind.clip > 0) {
        double norm = td_clip_grad_norm(td_parameters(job->net), job->kind.clip);
        assert_true(isnan(norm) || norm > job->kind.clip); /* it has something to do */
    }
    td_optim_step(job->optim);
    if (job->ema != NULL) {
        td_ema_update(job->ema);
    }
    if (now.ahead) {
        lookahead_update(job->lookahead);
    }
}

td_status captured_job_run(void *user, td_tensor *const *inputs, td_tensor **results)
{
    captured_job *job = user;
    bool alone = job->kind.ddp && !turn_of(job).last;
    if (job->loader != NULL) {
        td_loader_make(job->loader);
    }
    if (alone) {
        td_ddp_no_sync_begin(job->net);
    }
    td_tensor *logits = td_forward(job->net, inputs[0]);
    td_tensor *loss = td_cross_entropy(logits, inputs[1], .label_smoothing = 0.1);
    results[0] = loss;
    results[1] = td_count_top(logits, inputs[1], 1);
    if (job->reads) {
        (void)td_item(loss);
    }
    if (job->steps - 1 == job->more_at) {
        (void)td_step_new(TD_SHAPE(job->more), TD_F32, TD_ROW_MAJOR, job->kind.device, TD_HERE);
    }
    learn(job, loss);
    if (alone) {
        td_ddp_no_sync_end(job->net);
    }
    return TD_OK;
}

static td_tensor *input(const captured_job *job, int which, bool tail)
{
    td_tensor *of_loader = which == 0 ? job->batch.x : job->batch.y;
    td_tensor *own = which == 0 ? job->x[tail] : job->y[tail];
    return job->loader != NULL ? of_loader : own;
}

void captured_job_step(captured_job *job, bool tail, double values[2])
{
    prepare(job, tail);
    td_tensor *inputs[] = { input(job, 0, tail), input(job, 1, tail) }, *results[2];
    td_step_begin();
    assert_int_equal(captured_job_run(job, inputs, results), TD_OK);
    values[0] = td_item(results[0]);
    values[1] = td_item(results[1]);
    td_step_end();
}

td_captured *captured_job_capture(captured_job *job)
{
    if (job->loader != NULL) {
        assert_true(td_loader_defer(job->loader) == (job->kind.device.type != TD_DEVICE_CPU));
    }
    const td_captured_peers *peers = job->kind.ddp ? td_group_captured(NULL) : NULL;
    td_captured *captured = td_captured_new(&(td_captured_options){ .device = job->kind.device,
                                                                    .step = captured_job_run,
                                                                    .user = job,
                                                                    .peers = peers,
                                                                    .inputs_stay = job->kind.loader,
                                                                    .results = 2,
                                                                    .depth = 3 });
    assert_non_null(captured);
    return captured;
}

td_status captured_job_captured_step(captured_job *job, td_captured *captured, bool tail)
{
    prepare(job, tail);
    turn now = turn_of(job);
    return td_captured_run_kind(captured, now.first + 2 * now.last + 4 * now.ahead,
                                (td_tensor *[]){ input(job, 0, tail), input(job, 1, tail) }, 2);
}

/* FNV-1a over bytes. */
static uint64_t hash_tensor(uint64_t hash, const td_tensor *t)
{
    size_t bytes = (size_t)td_numel(t) * sizeof(double);
    unsigned char *values = malloc(bytes + 1);
    assert_non_null(values);
    td_read(t, values, TD_F64);
    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ values[i]) * 0x100000001b3u;
    }
    free(values);
    return hash;
}

static uint64_t hash_state(uint64_t hash, td_module *net)
{
    td_state_list list = td_module_state(net);
    assert_true(list.count > 0);
    for (int i = 0; i < list.count; i++) {
        hash = hash_tensor(hash, list.items[i].tensor);
    }
    td_state_list_free(&list);
    return hash;
}

static uint64_t hash_number(uint64_t hash, double number)
{
    td_tensor *t = td_full(TD_SCALAR, number, TD_F64, TD_CPU);
    hash = hash_tensor(hash, t);
    td_free(t);
    return hash;
}

uint64_t captured_job_hash(const captured_job *job)
{
    assert_int_equal(td_unshard(job->net), TD_OK);
    uint64_t hash = hash_state(0xcbf29ce484222325u, job->net);
    td_reshard(job->net);
    if (job->scaler != NULL) {
        td_optim_settle(job->optim);
        hash = hash_tensor(hash, job->optim->step_counts);
        td_scaler_state now = td_scaler_now(job->scaler);
        hash = hash_number(hash, now.scale);
        hash = hash_number(hash, (double)now.good);
        hash = hash_number(hash, (double)now.skipped);
    }
    if (job->ema != NULL) {
        hash = hash_number(hash, (double)td_ema_updates(job->ema));
        td_ema_swap(job->ema);
        hash = hash_state(hash, job->net);
        td_ema_swap(job->ema);
    }
    return hash;
}
