/* Records the operations of one forward, and compares two traces. */
#include "nn/onnx/trace.h"

#include "tensor/storage.h"

#include <string.h>

/* Room for one more, in the step's memory. */
static void *grown(void *items, int count, int *room, size_t size)
{
    if (count < *room) {
        return items;
    }
    *room = 2 * count + 64;
    void *more = td_step_bytes((size_t)*room * size);
    return count > 0 ? memcpy(more, items, (size_t)count * size) : more;
}

static int add_value(td_onnx_trace *trace, const td_tensor *t, td_onnx_value_kind kind,
                     const char *name)
{
    trace->values =
        grown(trace->values, trace->value_count, &trace->value_room, sizeof(td_onnx_value));
    td_onnx_value *v = &trace->values[trace->value_count];
    *v =
        (td_onnx_value){ .tensor = *t, .version = t->storage->version, .kind = kind, .name = name };
    v->tensor.let_go = false;
    td_hold(t->storage);
    return trace->value_count++;
}

/* Whether two tensors are the same elements in the same memory. */
static bool same_place(const td_tensor *a, const td_tensor *b)
{
    bool same = a->storage == b->storage && a->offset == b->offset && a->dtype == b->dtype &&
                td_same_shape(a, b);
    for (int d = 0; same && d < a->ndim; d++) {
        same = a->shape[d] <= 1 || a->stride[d] == b->stride[d];
    }
    return same;
}

/* The number of a tensor that a call uses; over: the call has written its result there. */
static int trace_find(td_onnx_trace *trace, const td_tensor *t, bool over)
{
    if (t == NULL) {
        return -1;
    }
    td_onnx_value_kind kind = TD_ONNX_VALUE_CONSTANT;
    for (int i = trace->value_count - 1; i >= 0; i--) {
        const td_onnx_value *v = &trace->values[i];
        if (same_place(&v->tensor, t) && (over || v->version == t->storage->version)) {
            return i;
        }
        if (v->tensor.storage == t->storage && v->kind != TD_ONNX_VALUE_STATE &&
            v->kind != TD_ONNX_VALUE_CONSTANT) {
            kind = TD_ONNX_VALUE_UNSEEN;
        }
    }
    return add_value(trace, t, kind, NULL);
}

static void find_all(td_onnx_trace *trace, td_tensor *const *tensors, int count,
                     const td_tensor *out, int *numbers)
{
    for (int i = 0; i < count; i++) {
        numbers[i] =
            tensors[i] == out ? trace_find(trace, out, true) : trace_find(trace, tensors[i], false);
    }
}

static void note_call(const td_record_args *args, td_site at, void *user)
{
    td_onnx_trace *trace = user;
    trace->calls = grown(trace->calls, trace->call_count, &trace->call_room, sizeof(td_onnx_call));
    td_onnx_call *call = &trace->calls[trace->call_count++];
    bool listed = args->input_list != NULL;
    *call = (td_onnx_call){ .op = args->op,
                            .module = td_context_top(),
                            .at = at,
                            .input_count = listed ? args->input_count : TD_MAX_INPUTS };
    call->inputs = td_step_bytes((size_t)call->input_count * sizeof *call->inputs);
    find_all(trace, listed ? args->input_list : args->inputs, call->input_count, args->out,
             call->inputs);
    find_all(trace, args->reads, TD_MAX_READS, args->out, call->reads);
    for (int i = 0; i < TD_MAX_SAVED; i++) { /* a saved result is no input */
        bool result = args->saved[i] == args->out;
        call->saved[i] = result ? -1 : trace_find(trace, args->saved[i], false);
    }
    if (args->params_size > 0) {
        void *params = td_step_bytes(args->params_size);
        call->params = memcpy(params, args->params, args->params_size);
    }
    call->out = add_value(trace, args->out, TD_ONNX_VALUE_RESULT, NULL);
}

static void mark(bool *needed, const int *numbers, int count)
{
    for (int k = 0; k < count; k++) {
        if (numbers[k] >= 0) {
            needed[numbers[k]] = true;
        }
    }
}

/* Which calls the output needs. */
static void mark_needed(td_onnx_trace *trace)
{
    bool *needed = td_step_bytes((size_t)trace->value_count * sizeof *needed);
    needed[trace->output] = true;
    for (int i = trace->call_count - 1; i >= 0; i--) {
        td_onnx_call *call = &trace->calls[i];
        call->needed = needed[call->out];
        if (call->needed) {
            mark(needed, call->inputs, call->input_count);
            mark(needed, call->saved, TD_MAX_SAVED);
            mark(needed, call->reads, TD_MAX_READS);
        }
    }
}

td_onnx_trace *td_onnx_trace_forward(td_module *model, const td_state_list *state,
                                     td_tensor *const inputs[2], td_site at)
{
    static const char *const own[][2] = { /* names of the graph, and in their place: */
                                          { "input", "/input" },
                                          { "input2", "/input2" },
                                          { "output", "/output" }
    };
    td_onnx_trace *trace = td_step_bytes(sizeof *trace);
    for (int i = 0; i < state->count; i++) {
        const char *name = state->items[i].name;
        for (int k = 0; k < 3; k++) {
            name = strcmp(name, own[k][0]) == 0 ? own[k][1] : name;
        }
        add_value(trace, state->items[i].tensor, TD_ONNX_VALUE_STATE, name);
    }
    for (int i = 0; i < 2 && inputs[i] != NULL; i++) {
        add_value(trace, inputs[i], TD_ONNX_VALUE_INPUT, own[i][0]);
    }
    td_no_grad_begin();
    td_observe_operations(note_call, trace);
    const td_tensor *y = inputs[1] == NULL ? td_forward_at(model, inputs[0], at)
                                           : td_forward2_at(model, inputs[0], inputs[1], at);
    td_observe_operations(NULL, NULL);
    td_no_grad_end();
    trace->output = trace_find(trace, y, false);
    mark_needed(trace);
    return trace;
}

void td_onnx_trace_end(td_onnx_trace *trace)
{
    for (int i = 0; i < trace->value_count; i++) {
        td_unhold(trace->values[i].tensor.storage);
    }
}

/* Whether two values can be one, but for sizes, which are noted. */
static bool trace_match(td_onnx_value *a, td_onnx_value *b)
{
    if (a->kind != b->kind || a->tensor.ndim != b->tensor.ndim ||
        a->tensor.dtype != b->tensor.dtype) {
        return false;
    }
    for (int d = 0; d < a->tensor.ndim; d++) {
        a->follows[d] = b->follows[d] = a->tensor.shape[d] != b->tensor.shape[d];
    }
    return true;
}

static bool same_numbers(const int *a, const int *b, int count)
{
    return memcmp(a, b, (size_t)count * sizeof *a) == 0;
}

void td_onnx_trace_compare(td_onnx_trace *a, td_onnx_trace *b, int *differs)
{
    int count = a->call_count < b->call_count ? a->call_count : b->call_count;
    bool *matched = td_step_bytes((size_t)a->value_count * sizeof *matched);
    for (int v = 0; v < a->value_count; v++) {
        matched[v] = v < b->value_count && trace_match(&a->values[v], &b->values[v]);
    }
    for (int i = 0; i < count; i++) {
        const td_onnx_call *x = &a->calls[i], *y = &b->calls[i];
        if (strcmp(x->op, y->op) != 0 || x->input_count != y->input_count || x->out != y->out ||
            !matched[x->out] || !same_numbers(x->inputs, y->inputs, x->input_count) ||
            !same_numbers(x->saved, y->saved, TD_MAX_SAVED) ||
            !same_numbers(x->reads, y->reads, TD_MAX_READS)) {
            *differs = i;
            return;
        }
    }
    bool same = a->call_count == b->call_count && a->output == b->output;
    *differs = same ? -1 : count > 0 ? count - 1 : 0;
}
