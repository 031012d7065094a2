/* DataParallel: one process, several devices. The first replica is the model itself and runs on the
 * calling thread. Each other replica has a thread of its own (replica.h).
 *
 * On the caller's tape the other replicas are two nodes around the model's own nodes:
 *
 *     parameters -> [collect] -> token -> [replicas] -> y of the others
 *                                                        cat -> y
 *     parameters -> the model's own nodes  -> y of the first
 *
 * Backward runs in reverse: `replicas` gives the gradients of the outputs to the threads and starts
 * them. The model's own nodes run meanwhile. `collect` waits for the threads and adds their
 * gradients to the parameters' gradients, in the order of the replicas. */
#include "autograd/tape.h"
#include "dist/dist.h"
#include "dist/dp/replica.h"
#include "nn/internal.h"
#include "tensor/backend.h"
#include "tensor/hooks.h"
#include "tensor/storage.h"
#include "tensor/extend.h"

#include <stdlib.h>
#include <string.h>

typedef struct parallel_state {
    td_module *model;
    td_device devices[TD_MAX_DEVICES];
    int count;                            /* number of devices */
    td_replica *replicas[TD_MAX_DEVICES]; /* [i]: on devices[i], from 1 on */
    td_state_list list;                   /* the model's tensors */
    td_tensor **inputs;                   /* `collect`'s inputs: the tensors of list, the batch */
    int threads;                          /* number of threads of devices[0] before */
} parallel_state;

/* The data of one forward, which its two nodes share. In step memory. */
typedef struct parallel_call {
    parallel_state *state;
    int pieces;                         /* replicas that have samples, the first included */
    int64_t chunk;                      /* samples of each replica but the last */
    td_tensor *outputs[TD_MAX_DEVICES]; /* step tensors of the replicas' threads */
    td_tensor *batch[TD_MAX_DEVICES];   /* the same; NULL: the batch needs no gradient */
    td_tensor gradient;                 /* of the other replicas' outputs, read by threads */
} parallel_call;

/* Replica i's samples (rest: those of replicas 1 and higher), as a view by value. */
static td_tensor dp_piece_of(const td_tensor *rest, const parallel_call *call, int i)
{
    td_tensor view = *rest;
    int64_t begin = (i - 1) * call->chunk, left = rest->shape[0] - begin;
    view.shape[0] = left < call->chunk ? left : call->chunk;
    view.offset += begin * rest->stride[0];
    return view;
}

/* Waits for all replicas before it reports the first mistake, so that no thread still runs. */
static void dp_wait_for_all(const parallel_call *call, td_site at)
{
    const char *first = NULL;
    int failed = 0;
    for (int i = 1; i < call->pieces; i++) {
        const char *message = td_replica_wait(call->state->replicas[i]);
        if (message != NULL && first == NULL) {
            first = message;
            failed = i;
        }
    }
    TD_REQUIRE(first == NULL, at, "DataParallel: replica %d on %s: %s", failed,
               td_device_name(call->state->devices[failed]), first);
}

/* ---- backward ---- */

static void replicas_backward(td_node *node, const td_tensor *dy)
{
    parallel_call *call = *(parallel_call *const *)td_params_of(node);
    td_hold(dy->storage);
    call->gradient = *dy;
    for (int i = 1; i < call->pieces; i++) {
        td_tensor piece = dp_piece_of(&call->gradient, call, i);
        td_replica_backward(call->state->replicas[i], call->outputs[i], &piece);
    }
    td_grad_slot token = td_input_grad(node, 0);
    if (token.grad != NULL) {
        td_kernels_of(td_device_of(token.grad))->fill(token.grad, 0.0);
    }
}

/* sum += grad, which may lie on another device. */
static void add_from(td_tensor *sum, const td_tensor *grad, td_site at)
{
    const td_kernels *kernels = td_kernels_of(td_device_of(sum));
    if (td_backend_of(td_device_of(sum)) == NULL) {
        kernels->axpy(sum, 1.0, grad);
        return;
    }
    int64_t scope = td_scope_begin();
    td_tensor *here = td_step_new_like(sum, at);
    td_copy_across(here, grad);
    kernels->axpy(sum, 1.0, here);
    td_scope_end(scope, NULL);
}

/* Adds the replicas' gradients of tensor i of the list. */
static void collect_tensor(td_node *node, const parallel_call *call, int i)
{
    td_grad_slot slot = { NULL, false };
    for (int k = 1; k < call->pieces; k++) {
        const td_tensor *grad = td_replica_grad(call->state->replicas[k], i);
        if (grad == NULL) {
            continue;
        }
        if (slot.grad == NULL) {
            slot = td_input_grad(node, i);
        }
        if (slot.grad == NULL) {
            return;
        }
        if (slot.accumulate) {
            add_from(slot.grad, grad, td_node_site(node));
        } else {
            td_copy_across(slot.grad, grad);
        }
        slot.accumulate = true;
    }
}

static void collect_batch(td_node *node, const parallel_call *call, int i)
{
    if (!td_input_needs_grad(node, i)) {
        return;
    }
    td_tensor *whole = td_step_new_like(td_node_input(node, i), td_node_site(node));
    for (int k = 1; k < call->pieces; k++) {
        td_tensor piece = dp_piece_of(whole, call, k);
        const td_tensor *grad = call->batch[k] != NULL ? td_grad(call->batch[k]) : NULL;
        if (grad != NULL) {
            td_copy_across(&piece, grad);
        } else {
            td_kernels_of(td_device_of(whole))->fill(&piece, 0.0);
        }
    }
    td_input_grad_is(node, i, whole);
}

static void collect_backward(td_node *node, const td_tensor *dy)
{
    (void)dy;
    parallel_call *call = *(parallel_call *const *)td_params_of(node);
    dp_wait_for_all(call, td_node_site(node));
    td_unhold(call->gradient.storage);
    int count = call->state->list.count;
    for (int i = 0; i < count; i++) {
        collect_tensor(node, call, i);
    }
    collect_batch(node, call, count);
}

/* ---- forward ---- */

/* Some samples of a batch. If the batch needs no gradient, the piece is dense, for fast kernels. */
static td_tensor *scatter(td_tensor *x, int64_t begin, int64_t end, td_site at)
{
    td_tensor *piece = td_slice_at(x, 0, begin, end, 1, at);
    if (td_needs_grad(x) || td_is_dense(piece)) {
        return piece;
    }
    td_layout layout = x->ndim == 4 ? TD_IMAGE : TD_ROW_MAJOR;
    td_tensor *dense =
        td_step_new(td_shape_of(piece), piece->dtype, layout, td_device_of(piece), at);
    td_kernels_of(td_device_of(dense))->copy(dense, piece);
    return dense;
}

static td_tensor *record_collect(parallel_call *call, td_tensor *rest, td_site at)
{
    parallel_state *s = call->state;
    for (int i = 0; i < s->list.count; i++) {
        s->inputs[i] = s->list.items[i].tensor;
    }
    s->inputs[s->list.count] = rest;
    td_tensor *token = td_step_new(TD_SHAPE(1), s->model->dtype, TD_ROW_MAJOR, s->devices[0], at);
    td_kernels_of(s->devices[0])->fill(token, 0.0);
    return TD_RECORD(at, .op = "collect", .backward = collect_backward, .out = token,
                     .input_list = s->inputs, .input_count = s->list.count + 1, .params = &call,
                     .params_size = sizeof call);
}

static void check_output(const parallel_call *call, const td_tensor *y, int i, int64_t samples,
                         td_site at)
{
    TD_REQUIRE(y->ndim > 0 && y->shape[0] == samples, at,
               "DataParallel: replica %d got %lld samples and gave %s; the outputs can only be put "
               "together when their first dimension is the batch",
               i, (long long)samples, td_describe_shape(td_shape_of(y)));
    const td_tensor *first = call->outputs[1];
    td_shape shape = td_shape_of(y);
    shape.dim[0] = first->shape[0];
    TD_REQUIRE(td_shape_equal(shape, td_shape_of(first)) && y->dtype == first->dtype, at,
               "DataParallel: replica %d gave %s where replica 1 gave %s", i, td_describe(y),
               td_describe(first));
}

/* Copies the outputs of replicas 1 and higher, one after the other, to the first device. */
static td_tensor *dp_gather(parallel_call *call, td_tensor *token, const td_tensor *rest,
                            td_site at)
{
    parallel_state *s = call->state;
    for (int i = 1; i < call->pieces; i++) {
        call->outputs[i] = td_replica_output(s->replicas[i], &call->batch[i]);
        check_output(call, call->outputs[i], i, dp_piece_of(rest, call, i).shape[0], at);
    }
    const td_tensor *first = call->outputs[1];
    td_shape shape = td_shape_of(first);
    shape.dim[0] = rest->shape[0];
    td_layout layout = td_is_layout(first, TD_IMAGE) ? TD_IMAGE : TD_ROW_MAJOR;
    td_tensor *y = td_step_new(shape, first->dtype, layout, s->devices[0], at);
    for (int i = 1; i < call->pieces; i++) {
        td_tensor piece = dp_piece_of(y, call, i);
        td_copy_across(&piece, call->outputs[i]);
    }
    return TD_RECORD(at, .op = "replicas", .backward = replicas_backward, .out = y,
                     .inputs = { token }, .params = &call, .params_size = sizeof call);
}

static td_tensor *run_parallel(const td_around_rest *own, td_tensor *x, void *user)
{
    parallel_state *s = user;
    td_site at = own->at;
    TD_REQUIRE(own->second == NULL, at, "DataParallel is for models of one input");
    int64_t samples = x->ndim > 0 ? x->shape[0] : 0;
    int64_t chunk = (samples + s->count - 1) / s->count;
    int pieces = chunk > 0 ? (int)((samples + chunk - 1) / chunk) : 1;
    if (pieces <= 1) {
        return td_run_rest(own, x);
    }
    td_not_recordable("DataParallel computes on other threads");
    parallel_call *call = td_step_bytes(sizeof *call);
    call->state = s;
    call->pieces = pieces;
    call->chunk = chunk;
    td_tensor *mine = scatter(x, 0, chunk, at), *rest = td_slice_at(x, 0, chunk, samples, 1, at);
    td_tensor *token = record_collect(call, rest, at);
    for (int i = 1; i < pieces; i++) {
        td_replica_load(s->replicas[i], s->model, &s->list);
    }
    for (int i = 1; i < pieces; i++) {
        td_tensor piece = dp_piece_of(rest, call, i);
        td_replica_forward(s->replicas[i], &piece);
    }
    td_tensor *first = td_run_rest(own, mine);
    dp_wait_for_all(call, at);
    td_tensor *others = dp_gather(call, token, rest, at);
    return td_cat_at((td_tensor *[]){ first, others }, 2, 0, at);
}

/* ---- beginning and end ---- */

static void end_parallel(void *user)
{
    parallel_state *s = user;
    for (int i = 1; i < s->count; i++) {
        td_replica_free(s->replicas[i]);
    }
    if (s->threads > 0) {
        td_set_threads(s->devices[0], s->threads);
    }
    td_state_list_free(&s->list);
    free(s->inputs);
    free(s);
}

static td_status check_devices(const td_module *model, const td_device *devices, int count)
{
    TD_CHECK(count >= 1 && count <= TD_MAX_DEVICES, TD_E_ARG,
             "td_data_parallel: %d devices; give 1 to %d", count, TD_MAX_DEVICES);
    TD_CHECK(td_same_device(model->device, devices[0]), TD_E_ARG,
             "td_data_parallel: the model is on %s, the first device is %s; move the "
             "model there first (td_module_to)",
             td_device_name(model->device), td_device_name(devices[0]));
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < i; j++) {
            TD_CHECK(!td_same_device(devices[i], devices[j]), TD_E_ARG,
                     "td_data_parallel: %s is given twice", td_device_name(devices[i]));
        }
    }
    return TD_OK;
}

/* CPU devices share the processors: each pool gets a part of the threads. */
static td_status share_threads(parallel_state *s)
{
    if (s->devices[0].type != TD_DEVICE_CPU) {
        return TD_OK;
    }
    int all = td_threads(s->devices[0]), each = all / s->count > 0 ? all / s->count : 1;
    s->threads = all;
    for (int i = 0; i < s->count; i++) {
        TD_TRY(td_set_threads(s->devices[i], each));
    }
    return TD_OK;
}

static td_status check_model(td_module *model)
{
    const char *found = NULL;
    for (td_module *m = model; m != NULL && found == NULL; m = td_module_next(model, m)) {
        found = td_module_wrapper(m);
    }
    TD_CHECK(found == NULL, TD_E_ARG,
             "td_data_parallel: the model, or a module in it, went through %s already; "
             "give td_data_parallel the plain model",
             found);
    TD_CHECK(!td_has_batch_norm_override(model), TD_E_ARG,
             "td_data_parallel: the model has SyncBatchNorm, whose statistics "
             "are those of several processes, not of replicas in one: use "
             "td_ddp, or plain BatchNorm");
    return TD_OK;
}

static td_status dp_prepare(parallel_state *s, td_module *model, const td_device *devices,
                            int count)
{
    TD_TRY(check_devices(model, devices, count));
    TD_TRY(check_model(model));
    s->model = model;
    memcpy(s->devices, devices, (size_t)count * sizeof *devices);
    s->list = td_module_state(model);
    if (s->list.count < 0) {
        return TD_E_NOMEM;
    }
    s->inputs = calloc((size_t)s->list.count + 1, sizeof(td_tensor *));
    TD_CHECK(s->inputs != NULL, TD_E_NOMEM, "td_data_parallel: no memory");
    for (s->count = 1; s->count < count; s->count++) {
        s->replicas[s->count] = td_replica_new(model, devices[s->count], s->count);
        if (s->replicas[s->count] == NULL) {
            return TD_E_NOMEM;
        }
    }
    return count > 1 ? share_threads(s) : TD_OK;
}

td_module *td_data_parallel(td_module *model, const td_device *devices, int count)
{
    if (model == NULL) {
        return NULL;
    }
    parallel_state *s = calloc(1, sizeof *s);
    td_status status = s != NULL ? dp_prepare(s, model, devices, count)
                                 : td_fail(TD_E_NOMEM, "td_data_parallel: no memory");
    if (status == TD_OK) {
        status = td_module_surround(model, &(td_around){ .run = run_parallel,
                                                         .free = end_parallel,
                                                         .user = s,
                                                         .wrapper = "td_data_parallel" });
    }
    if (status != TD_OK) {
        if (s != NULL) {
            end_parallel(s);
        }
        td_module_free(model);
        return NULL;
    }
    return model;
}
