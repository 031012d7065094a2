#include "nn/onnx/onnx.h"

#include "nn/internal.h"
#include "nn/onnx/graph.h"
#include "tensor/extend.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- inputs ---- */

/* The first input: the example, or numbers between -1 and 1 that are all different. */
static td_tensor *first_input(const td_onnx_options *o, td_site at)
{
    td_module *m = o->model;
    bool indices = td_takes_indices(m);
    td_dtype dtype = o->example != NULL ? o->example->dtype : indices ? TD_I64 : m->dtype;
    td_tensor *x = td_step_new(o->shape, dtype, TD_ROW_MAJOR, m->device, at);
    if (o->example != NULL) {
        td_copy_(x, o->example);
        return x;
    }
    int64_t count = td_numel(x);
    double *values = td_step_bytes((size_t)count * sizeof *values);
    for (int64_t i = 0; i < count && !indices; i++) {
        values[i] = sin((double)i);
    }
    td_write(x, values, TD_F64);
    return x;
}

/* The second: zeros, of another batch size if that is to be dynamic. */
static td_tensor *second_input(const td_onnx_options *o, const td_tensor *first, td_site at)
{
    td_shape shape = o->shape;
    shape.dim[0] += o->dynamic_batch;
    td_tensor *x = td_step_new(shape, first->dtype, TD_ROW_MAJOR, o->model->device, at);
    td_fill_(x, 0.0);
    return x;
}

/* ---- the graph ---- */

static td_status depends(const td_onnx_call *call)
{
    return td_fail(TD_E_UNSUPPORTED,
                   "%s, or a number that it uses, depends on the values of the input or on the "
                   "batch size, which a file cannot repeat: use operations of tensors (where, "
                   "gather) instead of the program's own, or export without dynamic_batch",
                   td_onnx_where(call));
}

/* Writes both traces, which must give the same graph, call by call. */
static td_status write_both(const td_onnx_options *o, td_onnx_trace *a, td_onnx_trace *b)
{
    td_onnx_graph first, second;
    int differs;
    td_onnx_trace_compare(a, b, &differs);
    td_onnx_graph_begin(&first, a, o->shape.dim[0]);
    td_onnx_graph_begin(&second, b, o->shape.dim[0] + o->dynamic_batch);
    for (int i = 0; i < a->call_count; i++) {
        int constants = first.initializer_count;
        if (i == differs) {
            return depends(&a->calls[i]);
        }
        TD_TRY(td_onnx_graph_add(&first, i));
        TD_TRY(td_onnx_graph_add(&second, i));
        if (!td_onnx_graph_same(&first, &second, constants)) {
            return depends(&a->calls[i]);
        }
    }
    return td_onnx_graph_save(&first, o->path, o->dynamic_batch);
}

/* ---- the whole ---- */

static td_status export_in_step(const td_onnx_options *o, const td_state_list *state, td_site at)
{
    td_tensor *x = first_input(o, at);
    td_onnx_trace *a = td_onnx_trace_forward(o->model, state, x, at);
    td_onnx_trace *b = td_onnx_trace_forward(o->model, state, second_input(o, x, at), at);
    td_status status = write_both(o, a, b);
    td_onnx_trace_end(a);
    td_onnx_trace_end(b);
    return status;
}

static void check(const td_onnx_options *o, td_site at)
{
    const td_tensor *x = o->example;
    TD_REQUIRE(o->model != NULL, at,
               "td_onnx_export: the model is NULL: its constructor failed (%s)", td_last_reason());
    TD_REQUIRE(o->path != NULL && *o->path != '\0', at, "td_onnx_export: there is no path");
    TD_REQUIRE(!td_in_step(), at, "td_onnx_export: call it outside of a step");
    TD_REQUIRE(o->model->type->forward != NULL, at,
               "td_onnx_export: %s takes two inputs; only models of one input are exported",
               o->model->type->name);
    TD_REQUIRE(o->shape.ndim > 0 && o->shape.ndim <= TD_MAX_DIMS && td_shape_numel(o->shape) > 0,
               at,
               "td_onnx_export: the input's shape is %s: give the batch size and what follows, all "
               "above 0",
               td_describe_shape(o->shape));
    TD_REQUIRE(x == NULL || td_shape_equal(td_shape_of(x), o->shape), at,
               "td_onnx_export: the example is %s, and the shape %s", td_describe(x),
               td_describe_shape(o->shape));
}

td_status td_onnx_export_at(td_onnx_options options, td_site at)
{
    check(&options, at);
    td_state_list state = td_module_state(options.model);
    bool *modes = state.count >= 0 ? td_eval_for_now(options.model) : NULL;
    td_status status = TD_E_NOMEM;
    if (modes != NULL) {
        td_math math = td_math_now();
        td_set_math((td_math){ .precision = TD_PRECISION_FP32 });
        td_step_begin();
        status = export_in_step(&options, &state, at);
        td_step_end();
        td_set_math(math);
        td_give_modes_back(options.model, modes);
    }
    td_state_list_free(&state);
    return status;
}
