/* Chooses, keeps and runs cuDNN's plans of convolutions. */
#include "tensor/cuda/cudnn_plan.h"

#include <stdio.h>
#include <stdlib.h>

/* More than what a plan may ask for: the step's own tensors come first. */
static const int64_t MAX_WORKSPACE = INT64_C(1) << 30;

/* ---- engines ---- */

static bool note_is_allowed(cudnnBackendNumericalNote_t note, const td_cuda_conv *conv)
{
    switch (note) {
    case CUDNN_NUMERICAL_NOTE_TENSOR_CORE:
        return conv->dtype != TD_F32 || conv->tf32;
    case CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP:
        return true;
    case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS: /* f32 factors as TF32 or less */
        return conv->tf32;
    case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC:
    case CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION:
    case CUDNN_NUMERICAL_NOTE_FFT:
    default: /* Winograd's, and what is not known yet */
        return false;
    }
}

static bool engine_is_allowed(const td_cudnn *lib, cudnnBackendDescriptor_t engine,
                              const td_cuda_conv *conv, bool *tensor_cores)
{
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT + 16];
    int64_t count = 0, room = sizeof notes / sizeof notes[0];
    if (lib->cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                      CUDNN_TYPE_NUMERICAL_NOTE, room, &count,
                                      notes) != CUDNN_STATUS_SUCCESS ||
        count > room) {
        return false;
    }
    *tensor_cores = false;
    for (int64_t i = 0; i < count; i++) {
        if (!note_is_allowed(notes[i], conv)) {
            return false;
        }
        *tensor_cores |= notes[i] == CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
    }
    return true;
}

static int64_t number_of(const td_cudnn *lib, cudnnBackendDescriptor_t d,
                         cudnnBackendAttributeName_t name)
{
    int64_t value = -1, count = 0;
    cudnnStatus_t status =
        lib->cudnnBackendGetAttribute(d, name, CUDNN_TYPE_INT64, 1, &count, &value);
    return status == CUDNN_STATUS_SUCCESS && count == 1 ? value : -1;
}

/* Whether a configuration's engine is allowed; its number, and whether it uses tensor cores. */
static bool configuration_is_allowed(const td_cudnn *lib, cudnnBackendDescriptor_t configuration,
                                     const td_cuda_conv *conv, int64_t *number, bool *tensor_cores)
{
    cudnnBackendDescriptor_t engine = NULL;
    if (lib->cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine) !=
        CUDNN_STATUS_SUCCESS) {
        return false;
    }
    int64_t count = 0;
    bool good = lib->cudnnBackendGetAttribute(configuration, CUDNN_ATTR_ENGINECFG_ENGINE,
                                              CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count,
                                              &engine) == CUDNN_STATUS_SUCCESS &&
                engine_is_allowed(lib, engine, conv, tensor_cores);
    *number = good ? number_of(lib, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX) : -1;
    lib->cudnnBackendDestroyDescriptor(engine);
    return good;
}

/* ---- plans ---- */

static void set_target(td_cudnn_build *b, cudnnBackendDescriptor_t d, const td_cudnn_target *target,
                       cudnnBackendAttributeName_t handle, cudnnBackendAttributeName_t description)
{
    if (target->handle != NULL) {
        td_cudnn_set(b, d, handle, CUDNN_TYPE_HANDLE, 1, &target->handle);
    } else {
        td_cudnn_set(b, d, description, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &target->description);
    }
}

/* Takes a finished plan out of b, if it is one that can be run. */
static bool take_plan(td_cudnn_build *b, td_cudnn_plan *plan)
{
    if (b->status == CUDNN_STATUS_SUCCESS) {
        cudnnBackendDescriptor_t made = b->made[b->count - 1];
        plan->workspace = number_of(b->lib, made, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
        if (plan->workspace >= 0 && plan->workspace <= MAX_WORKSPACE) {
            plan->plan = made;
            b->count--;
        }
    }
    td_cudnn_end(b);
    return plan->plan != NULL;
}

static bool cudnn_make_plan(const td_cudnn_target *target, cudnnBackendDescriptor_t configuration,
                            td_cudnn_plan *plan)
{
    td_cudnn_build b = { .lib = target->lib };
    cudnnBackendDescriptor_t d = td_cudnn_make(&b, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    td_cudnn_set(&b, d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                 &configuration);
    set_target(&b, d, target, CUDNN_ATTR_EXECUTION_PLAN_HANDLE,
               CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
    td_cudnn_finish(&b, d, "a plan");
    return take_plan(&b, plan);
}

void td_cudnn_plan_end(const td_cudnn *lib, td_cudnn_plan *plan)
{
    if (plan->plan != NULL) {
        lib->cudnnBackendDestroyDescriptor(plan->plan);
    }
    *plan = (td_cudnn_plan){ .engine = -1 };
}

/* ---- asking the heuristic ---- */

enum { MAX_CONFIGURATIONS = 64 };

/* The configurations that a heuristic names; the caller destroys all that were made. */
static int ask(const td_cudnn_target *target, cudnnBackendDescriptor_t graph,
               cudnnBackendHeurMode_t mode, cudnnBackendDescriptor_t *configurations, int *made)
{
    const td_cudnn *lib = target->lib;
    td_cudnn_build b = { .lib = lib };
    cudnnBackendDescriptor_t d = td_cudnn_make(&b, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    td_cudnn_set(&b, d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                 &graph);
    td_cudnn_set(&b, d, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (target->handle == NULL) {
        td_cudnn_set(&b, d, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                     &target->description);
    }
    td_cudnn_finish(&b, d, "the heuristic");
    for (*made = 0; *made < MAX_CONFIGURATIONS; (*made)++) {
        if (lib->cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
                                              &configurations[*made]) != CUDNN_STATUS_SUCCESS) {
            break;
        }
    }
    int64_t found = 0;
    if (b.status != CUDNN_STATUS_SUCCESS ||
        lib->cudnnBackendGetAttribute(d, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                      CUDNN_TYPE_BACKEND_DESCRIPTOR, *made, &found,
                                      configurations) != CUDNN_STATUS_SUCCESS) {
        found = 0;
    }
    td_cudnn_end(&b);
    return found < *made ? (int)found : *made;
}

/* In the heuristic's order, those with tensor cores first: it sometimes ranks another one higher.
 */
static int candidates_of(const td_cudnn_target *target, cudnnBackendDescriptor_t graph,
                         cudnnBackendHeurMode_t mode, const td_cuda_conv *conv, int max,
                         td_cudnn_plan *plans)
{
    cudnnBackendDescriptor_t configurations[MAX_CONFIGURATIONS];
    int made, count = 0, found = ask(target, graph, mode, configurations, &made);
    for (int i = 0; i < 2 * found && count < max; i++) {
        td_cudnn_plan next = { .plan = NULL };
        bool cores, first = i < found;
        if (configuration_is_allowed(target->lib, configurations[i % found], conv, &next.engine,
                                     &cores) &&
            cores == first && cudnn_make_plan(target, configurations[i % found], &next)) {
            plans[count++] = next;
        }
    }
    for (int i = 0; i < made; i++) {
        target->lib->cudnnBackendDestroyDescriptor(configurations[i]);
    }
    return count;
}

int td_cudnn_candidates(const td_cudnn_target *target, const td_cuda_conv *conv, int max,
                        td_cudnn_plan *plans)
{
    td_cudnn_build b = { .lib = target->lib };
    cudnnBackendDescriptor_t graph = td_cudnn_conv_graph(&b, target, conv);
    int count = 0;
    if (graph != NULL) {
        count = candidates_of(target, graph, CUDNN_HEUR_MODE_A, conv, max, plans);
        if (count == 0) {
            count = candidates_of(target, graph, CUDNN_HEUR_MODE_FALLBACK, conv, max, plans);
        }
    }
    td_cudnn_end(&b);
    return count;
}

/* ---- keeping ---- */

void td_cudnn_plan_key(const td_cuda_conv *c, bool tuned, char key[TD_PLAN_KEY_MAX])
{
    static const char *const passes[] = { "forward", "backward-data", "backward-weights" };
    snprintf(key, TD_PLAN_KEY_MAX,
             "%s conv %s %s%s%s%s x%lldx%lldx%lldx%lld y%lldx%lldx%lld k%dx%d s%d,%d p%d,%d d%d,%d "
             "g%lld",
             tuned ? "tuned" : "first", passes[c->pass], td_dtype_name(c->dtype),
             c->tf32 ? " tf32" : "", c->bias ? " bias" : "", c->accumulate ? " added" : "",
             (long long)c->n, (long long)c->ic, (long long)c->ih, (long long)c->iw,
             (long long)c->oc, (long long)c->oh, (long long)c->ow, c->kh, c->kw, c->stride[0],
             c->stride[1], c->pad[0], c->pad[1], c->dilation[0], c->dilation[1],
             (long long)c->groups);
}

char *td_cudnn_plan_write(const td_cudnn *lib, const td_cudnn_plan *plan, size_t *bytes)
{
    int64_t size = 0, written = 0;
    if (lib->cudnnBackendGetAttribute(plan->plan, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION,
                                      CUDNN_TYPE_CHAR, 0, &size, NULL) != CUDNN_STATUS_SUCCESS ||
        size <= 0) {
        return NULL;
    }
    char *text = malloc((size_t)size);
    if (text != NULL && lib->cudnnBackendGetAttribute(
                            plan->plan, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION,
                            CUDNN_TYPE_CHAR, size, &written, text) != CUDNN_STATUS_SUCCESS) {
        free(text);
        return NULL;
    }
    *bytes = (size_t)written;
    return text;
}

bool td_cudnn_plan_read(const td_cudnn_target *target, const char *text, size_t bytes,
                        td_cudnn_plan *plan)
{
    *plan = (td_cudnn_plan){ .engine = -1 };
    td_cudnn_build b = { .lib = target->lib };
    cudnnBackendDescriptor_t d = td_cudnn_make(&b, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set_target(&b, d, target, CUDNN_ATTR_EXECUTION_PLAN_HANDLE,
               CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
    td_cudnn_set(&b, d, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                 (int64_t)bytes, text);
    td_cudnn_finish(&b, d, "a plan from its text");
    return take_plan(&b, plan);
}
