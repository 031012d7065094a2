/* A replica of DataParallel: a copy of the model on a device, run by a thread of its own. */
#include "dist/dp/replica.h"

#include "autograd/tape.h"
#include "tensor/system/thread.h"
#include "nn/internal.h"
#include "tensor/storage.h"
#include "autograd/hooks.h"
#include "tensor/extend.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

typedef enum replica_command { IDLE, FORWARD, BACKWARD, QUIT } replica_command;

/* The versions (td_storage) of the model's tensor and of the copy's, after the last load. */
typedef struct loaded {
    uint32_t from, to;
} loaded;

/* Inputs of this step that need gradients. */
typedef struct replica_leaves {
    td_tensor **list;
    int count;
} replica_leaves;

struct td_replica {
    int number;
    td_device device;
    td_module *model;
    td_state_list state; /* of the copy, in the same order as the model's */
    loaded *loaded;      /* of each tensor of the state */

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    replica_command command; /* IDLE: the last command is done */

    /* The command's data: written by the caller before the command, by the thread during it. */
    uint64_t step, last_step; /* the caller's step number in this and in the last forward */
    bool with_grad;
    int outstanding; /* forwards of this step whose backward has not run */
    td_tensor batch, gradient;
    td_tensor *input, *output;
    replica_leaves leaves;

    jmp_buf jump; /* where a programming mistake jumps to */
    char message[4096];
};

/* ---- in the thread ---- */

static void free_leaves(td_replica *r)
{
    for (int i = 0; i < r->leaves.count; i++) {
        td_free(r->leaves.list[i]);
    }
    r->leaves.count = 0;
}

/* Begins a step if the caller's step is a new one. The thread's step lives as long as the caller's,
 * so that a backward may follow. */
static void follow_step(td_replica *r)
{
    if (td_in_step() && r->step != r->last_step) {
        td_step_end();
        free_leaves(r);
    }
    if (!td_in_step()) {
        td_step_begin();
    }
    r->last_step = r->step;
}

static td_layout layout_of(const td_tensor *t)
{
    return t->ndim == 4 ? TD_IMAGE : TD_ROW_MAJOR;
}

static td_tensor *new_leaf(td_replica *r, const td_tensor *x)
{
    size_t bytes = (size_t)(r->leaves.count + 1) * sizeof(td_tensor *);
    td_tensor **leaves = realloc(r->leaves.list, bytes);
    TD_REQUIRE(leaves != NULL, TD_HERE, "no memory for the inputs of a replica");
    r->leaves.list = leaves;
    td_tensor *leaf = td_new_layout(td_shape_of(x), x->dtype, layout_of(x), r->device);
    TD_REQUIRE(leaf != NULL, TD_HERE, "the input of a replica: %s", td_last_error());
    r->leaves.list[r->leaves.count++] = leaf;
    return leaf;
}

static void run_forward(td_replica *r)
{
    follow_step(r);
    const td_tensor *x = &r->batch;
    bool wants_grad = r->with_grad && x->grad != NULL;
    td_tensor *input =
        wants_grad ? new_leaf(r, x)
                   : td_step_new(td_shape_of(x), x->dtype, layout_of(x), r->device, TD_HERE);
    td_copy_across(input, x);
    if (wants_grad) {
        td_requires_grad(input, true);
    }
    if (!r->with_grad) {
        td_no_grad_begin();
    }
    r->output = td_forward(r->model, input);
    if (!r->with_grad) {
        td_no_grad_end();
    }
    r->input = wants_grad ? input : NULL;
}

static void run_backward(td_replica *r)
{
    for (int i = 0; i < r->state.count; i++) {
        if (td_is_leaf(r->state.items[i].tensor)) {
            td_zero_grad_of(r->state.items[i].tensor);
        }
    }
    if (td_needs_grad(r->output)) {
        int64_t scope = td_scope_begin();
        td_tensor *gradient = td_step_new_like(r->output, TD_HERE);
        td_copy_across(gradient, &r->gradient);
        td_backward(r->output, .gradient = gradient);
        td_scope_end(scope, NULL);
    }
}

static void catch_mistake(const char *message, void *user)
{
    td_replica *r = user;
    snprintf(r->message, sizeof r->message, "%s", message);
    longjmp(r->jump, 1);
}

/* Ends the step, also in the middle of it. */
static void recover(td_replica *r)
{
    td_step_abandon();
    free_leaves(r);
}

static void run_command(td_replica *r, replica_command command)
{
    if (setjmp(r->jump) != 0) {
        recover(r);
    } else if (command == FORWARD) {
        run_forward(r);
    } else {
        run_backward(r);
    }
}

static replica_command next_command(td_replica *r)
{
    pthread_mutex_lock(&r->lock);
    while (r->command == IDLE) {
        pthread_cond_wait(&r->changed, &r->lock);
    }
    replica_command next = r->command;
    pthread_mutex_unlock(&r->lock);
    return next;
}

static void *work(void *user)
{
    td_replica *r = user;
    td_set_thread_fatal_handler(catch_mistake, r);
    for (replica_command next; (next = next_command(r)) != QUIT;) {
        run_command(r, next);
        pthread_mutex_lock(&r->lock);
        r->command = IDLE;
        pthread_cond_broadcast(&r->changed);
        pthread_mutex_unlock(&r->lock);
    }
    recover(r);
    return NULL;
}

/* ---- beginning and end ---- */

td_replica *td_replica_new(const td_module *model, td_device device, int number)
{
    td_replica *r = calloc(1, sizeof *r);
    TD_CHECK_NULL(r != NULL, TD_E_NOMEM, "no memory for a replica");
    r->number = number;
    r->device = device;
    r->model = td_module_clone(model);
    bool made = r->model != NULL && td_module_to(r->model, device, model->dtype) == TD_OK;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    if (made) {
        r->state = td_module_state(r->model);
        made = r->state.count >= 0;
    }
    if (made) {
        r->loaded = calloc((size_t)r->state.count + 1, sizeof *r->loaded);
        made = r->loaded != NULL || td_fail(TD_E_NOMEM, "no memory for a replica") == TD_OK;
    }
    if (made && td_thread_start(&r->thread, work, r) != 0) {
        td_fail(TD_E_NOMEM, "no thread for replica %d on %s", number, td_device_name(device));
        made = false;
    }
    if (!made) {
        r->number = 0; /* there is no thread to end */
        td_replica_free(r);
        return NULL;
    }
    return r;
}

/* After td_replica_wait. */
static void start(td_replica *r, replica_command command)
{
    pthread_mutex_lock(&r->lock);
    r->message[0] = '\0';
    r->command = command;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

const char *td_replica_wait(td_replica *r)
{
    pthread_mutex_lock(&r->lock);
    while (r->command != IDLE) {
        pthread_cond_wait(&r->changed, &r->lock);
    }
    pthread_mutex_unlock(&r->lock);
    if (r->message[0] != '\0') {
        r->outstanding = 0;
        return r->message;
    }
    return NULL;
}

void td_replica_free(td_replica *r)
{
    if (r == NULL) {
        return;
    }
    if (r->number > 0) {
        td_replica_wait(r);
        start(r, QUIT);
        pthread_join(r->thread, NULL);
    }
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->changed);
    td_state_list_free(&r->state);
    free(r->loaded);
    td_module_free(r->model);
    free(r->leaves.list);
    free(r);
}

/* ---- for the caller ---- */

/* Copies modes, and gives Dropout layers a random stream of their own, so that devices draw
 * different masks. */
static void load_modes(td_replica *r, td_module *to, td_module *from)
{
    to->training = from->training;
    const td_dropout_place *place = td_dropout_place_of(from);
    if (place != NULL) {
        *td_dropout_place_of(to) = *place;
        td_dropout_set_replica(to, (uint64_t)r->number);
    }
    for (int i = 0; i < from->child_count; i++) {
        load_modes(r, to->children[i], from->children[i]);
    }
}

/* Makes a parameter of the copy a view of the model's memory, on the copy's own device. The tape of
 * the model's own forward retains that memory for as long as the copy's tape needs it. */
static void replica_share(td_tensor *to, const td_tensor *from)
{
    if (td_ptr(to) == td_ptr(from)) {
        return;
    }
    td_storage *all =
        td_storage_borrow(from->storage->data, from->storage->bytes, td_device_of(to));
    TD_REQUIRE(all != NULL, TD_HERE, "DataParallel: %s", td_last_error());
    td_unhold(to->storage);
    to->storage = all;
    to->offset = from->offset;
    memcpy(to->stride, from->stride, sizeof to->stride);
}

/* Whether a tensor has been written since the last load: the model's, or the replica's own running
 * statistics. */
static bool is_stale(const td_replica *r, int i, const td_named_tensor *from)
{
    const loaded *last = &r->loaded[i];
    return last->from != from->tensor->storage->version ||
           (from->buffer && last->to != r->state.items[i].tensor->storage->version);
}

void td_replica_load(td_replica *r, td_module *model, const td_state_list *state)
{
    td_replica_wait(r);
    if (r->step != td_step_number()) {
        r->outstanding = 0;
    }
    load_modes(r, r->model, model);
    for (int i = 0; i < state->count; i++) {
        td_tensor *to = r->state.items[i].tensor, *from = state->items[i].tensor;
        TD_REQUIRE(to->dtype == from->dtype, TD_HERE,
                   "DataParallel: '%s' is %s, but was %s at td_data_parallel; convert the "
                   "model before td_data_parallel",
                   state->items[i].name, td_dtype_name(from->dtype), td_dtype_name(to->dtype));
        if (!state->items[i].buffer && td_device_of(from).type == TD_DEVICE_CPU &&
            r->device.type == TD_DEVICE_CPU) {
            replica_share(to, from);
        } else if (r->outstanding == 0 || is_stale(r, i, &state->items[i])) {
            td_copy_(to, from);
            r->loaded[i] = (loaded){ from->storage->version, to->storage->version };
        }
        td_requires_grad(to, td_is_leaf(from));
    }
}

void td_replica_forward(td_replica *r, const td_tensor *x)
{
    td_replica_wait(r);
    r->batch = *x;
    r->step = td_step_number();
    r->with_grad = td_grad_enabled();
    r->outstanding += r->with_grad;
    start(r, FORWARD);
}

td_tensor *td_replica_output(const td_replica *r, td_tensor **input)
{
    *input = r->input;
    return r->output;
}

void td_replica_backward(td_replica *r, td_tensor *output, const td_tensor *gradient)
{
    td_replica_wait(r);
    r->output = output;
    r->gradient = *gradient;
    r->outstanding--;
    start(r, BACKWARD);
}

const td_tensor *td_replica_grad(const td_replica *r, int index)
{
    td_tensor *t = r->state.items[index].tensor;
    return td_is_leaf(t) ? td_grad(t) : NULL;
}
