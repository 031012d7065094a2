/* td_onnx_export: traces a model twice, and writes the file. */
#include "nn/onnx/onnx.h"

#include "nn/internal.h"
#include "nn/onnx/graph.h"

#include <math.h>

/* ---- inputs ---- */

/* Of a module with both forwards, the one whose shapes are given. */
static int export_count_of(const td_onnx_options *o)
{
    const td_module_type *type = o->model->type;
    return type->forward2 != NULL && (type->forward == NULL || o->shape2.ndim > 0) ? 2 : 1;
}

/* The examples, or numbers between -1 and 1 that are all different. */
static void first_inputs(const td_onnx_options *o, td_tensor *inputs[2], td_site at)
{
    const td_tensor *examples[] = { o->example, o->example2 };
    td_shape shapes[] = { o->shape, o->shape2 };
    for (int i = 0; i < export_count_of(o); i++) {
        bool indices = i == 0 && td_takes_indices(o->model);
        td_dtype dtype = examples[i] != NULL ? examples[i]->dtype
                         : indices           ? TD_I64
                                             : o->model->dtype;
        inputs[i] = td_step_new(shapes[i], dtype, TD_ROW_MAJOR, o->model->device, at);
        int64_t count = td_numel(inputs[i]);
        double *values = td_step_bytes((size_t)count * sizeof *values);
        for (int64_t k = 0; k < count && !indices; k++) {
            values[k] = sin((double)(k + i));
        }
        if (examples[i] != NULL) {
            td_tensor example = *examples[i];
            td_copy_(inputs[i], td_expand_at(&example, shapes[i], at));
        } else {
            td_write(inputs[i], values, TD_F64);
        }
    }
}

/* Zeros, of another batch size if that is to be dynamic. */
static void second_inputs(const td_onnx_options *o, td_tensor *const first[2], td_tensor *inputs[2],
                          td_site at)
{
    for (int i = 0; i < export_count_of(o); i++) {
        td_shape shape = td_shape_of(first[i]);
        shape.dim[0] += o->dynamic_batch;
        inputs[i] = td_step_new(shape, first[i]->dtype, TD_ROW_MAJOR, o->model->device, at);
        td_fill_(inputs[i], 0.0);
    }
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
    return td_onnx_graph_save(&first, o);
}

/* ---- the whole ---- */

static td_status export_in_step(const td_onnx_options *o, const td_state_list *state, td_site at)
{
    td_tensor *first[2] = { NULL, NULL }, *second[2] = { NULL, NULL };
    first_inputs(o, first, at);
    second_inputs(o, first, second, at);
    td_onnx_trace *a = td_onnx_trace_forward(o->model, state, first, at);
    td_onnx_trace *b = td_onnx_trace_forward(o->model, state, second, at);
    td_status status = write_both(o, a, b);
    td_onnx_trace_end(a);
    td_onnx_trace_end(b);
    return status;
}

static void check_input(td_shape shape, const td_tensor *x, const char *what, td_site at)
{
    TD_REQUIRE(shape.ndim > 0 && shape.ndim <= TD_MAX_DIMS && td_shape_numel(shape) > 0, at,
               "td_onnx_export: the %s is %s: give the batch size and what follows, all above 0",
               what, td_describe_shape(shape));
    TD_REQUIRE(x == NULL || td_shape_equal(td_shape_of(x), shape), at,
               "td_onnx_export: the example is %s, and the %s %s", td_describe(x), what,
               td_describe_shape(shape));
}

static void check(const td_onnx_options *o, td_site at)
{
    TD_REQUIRE(o->model != NULL, at,
               "td_onnx_export: the model is NULL: its constructor failed (%s)", td_last_reason());
    TD_REQUIRE(o->path != NULL && *o->path != '\0', at, "td_onnx_export: there is no path");
    TD_REQUIRE(!td_in_step(), at, "td_onnx_export: call it outside of a step");
    check_input(o->shape, o->example, "input's shape", at);
    TD_REQUIRE(export_count_of(o) == 1 || o->shape2.ndim > 0, at,
               "td_onnx_export: %s takes two inputs: give the second one's .shape2",
               o->model->type->name);
    TD_REQUIRE(export_count_of(o) == 2 || (o->shape2.ndim == 0 && o->example2 == NULL), at,
               "td_onnx_export: %s takes one input: .shape2 and .example2 are for two",
               o->model->type->name);
    if (export_count_of(o) == 2) {
        check_input(o->shape2, o->example2, "second input's shape", at);
        TD_REQUIRE(!o->dynamic_batch || o->shape2.dim[0] == o->shape.dim[0], at,
                   "td_onnx_export: the inputs %s and %s have different batch sizes: export "
                   "without dynamic_batch",
                   td_describe_shape(o->shape), td_describe_shape(o->shape2));
    }
}

td_status td_onnx_export_at(td_onnx_options options, td_site at)
{
    check(&options, at);
    if (options.dynamic_batch && options.shape.dim[0] == 1) {
        options.shape.dim[0] = 2; /* in a batch of 1 a sum over the batch looks like none */
        options.shape2.dim[0] = 2;
    }
    td_state_list state = td_module_state(options.model);
    td_status status = TD_E_NOMEM;
    if (state.count >= 0) {
        td_eval_for_now(options.model);
        td_math math = td_math_now();
        td_set_math((td_math){ .precision = TD_PRECISION_FP32 });
        td_step_begin();
        status = export_in_step(&options, &state, at);
        td_step_end();
        td_set_math(math);
        td_give_modes_back(options.model);
    }
    td_state_list_free(&state);
    return status;
}
