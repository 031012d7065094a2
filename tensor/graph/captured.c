/* Captured steps: which form of a step is recorded, replayed or run eagerly. */
#include "tensor/graph/captured.h"

#include "tensor/graph/capture_state.h"
#include "tensor/graph/captured_results.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEAST_WARMUPS = 3, /* one that grows memory, and two to be compared */
    MOST_WARMUPS = 12, /* of a step that is never the same twice */
    USUAL_DEPTH = 8,
    NUMBERS = TD_CAPTURED_RESULTS + 2 * TD_INDEX_CHECKS, /* results, then the faults */
};

/* A kind of step, for inputs of certain shapes. */
typedef struct form {
    td_capture capture; /* of the latest warm-up, or of the recording; first: abandoned() */
    td_captured *owner;
    int kind;
    int count;
    td_shape shape[TD_CAPTURED_INPUTS];
    td_dtype dtype[TD_CAPTURED_INPUTS];
    td_tensor
        *inputs[TD_CAPTURED_INPUTS]; /* of the graph; its own, or (inputs_stay) the caller's */
    td_trace before;                 /* of the warm-up before */
    int warmups;                     /* steps of this form that ran eagerly */
    bool same;                       /* the last two warm-ups took the same memory */
    bool given_up;                   /* steps of this form stay eager */
    void *graph;                     /* NULL: not recorded */
} form;

struct td_captured {
    td_captured_options options;
    const td_graphs *graphs; /* NULL: nothing can be recorded */
    td_results results;
    form forms[TD_CAPTURED_FORMS];
    int form_count;
    td_captured_stats stats;
    char why[640];
};

/* ---- beginning and end ---- */

static void captured_free_graph(td_captured *c, form *f)
{
    if (f->graph != NULL) {
        c->graphs->free(c->options.device, f->graph);
        f->graph = NULL;
    }
}

/* Frees a graph that pins this thread's step memory. */
static void drop_graph(td_captured *c, form *f)
{
    if (f->graph != NULL) {
        captured_free_graph(c, f);
        td_step_pin(-1);
    }
}

static void free_form(td_captured *c, form *f)
{
    if (td_recorder_now() == &f->capture.recorder) {
        td_recorder_abandon(); /* a fatal error has left its step */
    }
    drop_graph(c, f);
    for (int i = 0; i < f->count && !c->options.inputs_stay; i++) {
        td_free(f->inputs[i]);
    }
    td_capture_close(&f->capture);
    free(f->before.blocks);
    *f = (form){ .count = 0 };
}

static void free_forms(td_captured *c)
{
    for (int i = 0; i < c->form_count; i++) {
        free_form(c, &c->forms[i]);
    }
    c->form_count = 0;
}

static int or_usual(int wanted, int usual)
{
    return wanted > 0 ? wanted : usual;
}

td_captured *td_captured_new(const td_captured_options *options)
{
    TD_REQUIRE(options->step != NULL && options->results >= 0 &&
                   options->results <= TD_CAPTURED_RESULTS && options->depth >= 0 &&
                   options->depth <= TD_RESULTS_MOST_DEPTH,
               TD_HERE, "td_captured_new: a step is needed, of up to %d results, %d deep",
               TD_CAPTURED_RESULTS, TD_RESULTS_MOST_DEPTH);
    td_captured *c = calloc(1, sizeof *c);
    TD_CHECK_NULL(c != NULL, TD_E_NOMEM, "no memory for a captured step");
    const td_backend *backend = td_backend_of(options->device);
    c->options = *options;
    c->options.depth = or_usual(options->depth, USUAL_DEPTH);
    c->options.warmups = options->warmups > LEAST_WARMUPS ? options->warmups : LEAST_WARMUPS;
    c->graphs = backend != NULL ? backend->graphs : NULL;
    c->stats.why = c->why;
    if (td_results_open(&c->results, options->device, NUMBERS, c->options.depth) != TD_OK) {
        free(c);
        return NULL;
    }
    return c;
}

void td_captured_forget(td_captured *c)
{
    /* Results name their forms, and graphs may still run. */
    TD_REQUIRE(c->results.waiting == 0, TD_HERE,
               "td_captured_forget: results of %d steps have not been read", c->results.waiting);
    free_forms(c);
    c->why[0] = '\0';
}

void td_captured_free(td_captured *c)
{
    if (c == NULL) {
        return;
    }
    free_forms(c); /* first: closing the results waits, which no recording allows */
    td_results_close(&c->results);
    free(c);
}

/* ---- forms ---- */

static bool is_of(const form *f, int kind, td_tensor *const *inputs, int count)
{
    bool fits = f->kind == kind && f->count == count;
    for (int i = 0; fits && i < count; i++) {
        td_shape shape = td_shape_of(inputs[i]);
        fits = f->dtype[i] == inputs[i]->dtype && f->shape[i].ndim == shape.ndim &&
               memcmp(f->shape[i].dim, shape.dim, (size_t)shape.ndim * sizeof *shape.dim) == 0;
    }
    return fits;
}

/* The form of this kind and these inputs, perhaps a new one; NULL: there are too many. */
static td_status form_of(td_captured *c, int kind, td_tensor *const *inputs, int count,
                         form **found)
{
    *found = NULL;
    for (int i = 0; i < c->form_count; i++) {
        if (is_of(&c->forms[i], kind, inputs, count)) {
            *found = &c->forms[i];
            return TD_OK;
        }
    }
    if (c->form_count == TD_CAPTURED_FORMS) {
        return TD_OK;
    }
    form *f = &c->forms[c->form_count];
    *f = (form){ .owner = c, .kind = kind, .count = count };
    double *values = td_ptr(c->results.values);
    TD_TRY(td_capture_open(&f->capture, c->options.device, values + TD_CAPTURED_RESULTS));
    for (int i = 0; i < count; i++) {
        f->shape[i] = td_shape_of(inputs[i]);
        f->dtype[i] = inputs[i]->dtype;
    }
    c->form_count++;
    *found = f;
    return TD_OK;
}

static const char *shape_text(const form *f)
{
    return f->count > 0 ? td_describe_shape(f->shape[0]) : "";
}

static void explain(td_captured *c, const form *f, const char *reason)
{
    snprintf(c->why, sizeof c->why, "a step with input%s: %s", shape_text(f), reason);
}

/* ---- the end of a recording ---- */

static td_status tell(const td_captured *c, td_captured_event event)
{
    const td_captured_peers *peers = c->options.peers;
    return peers != NULL ? peers->event(peers->user, event) : TD_OK;
}

static td_status end_recording(td_captured *c, form *f)
{
    td_status ended = c->graphs->end(c->options.device, &f->graph);
    td_status told = tell(c, TD_CAPTURED_ENDS);
    return ended != TD_OK ? ended : told;
}

/* A fatal error has left a step: the device must not go on recording. */
static void abandoned(td_recorder *r)
{
    form *f = (form *)r;
    if (r->recording) {
        (void)end_recording(f->owner, f);
        captured_free_graph(f->owner, f); /* a part of a step */
    }
}

/* ---- a step ---- */

/* Calls the step, and puts its results where they are fetched from. */
static td_status call(td_captured *c, td_tensor *const *inputs)
{
    td_tensor *results[TD_CAPTURED_RESULTS] = { NULL };
    TD_TRY(c->options.step(c->options.user, inputs, results));
    for (int i = 0; i < c->options.results; i++) {
        td_tensor *from = results[i], to = *c->results.values;
        td_check_alive(from, TD_HERE);
        TD_REQUIRE(td_numel(from) == 1 && td_same_device(td_device_of(from), c->options.device),
                   TD_HERE, "captured step: result %d is %s, and must be one number on %s", i,
                   td_describe(from), td_device_name(c->options.device));
        to.ndim = from->ndim;
        to.offset += i;
        for (int d = 0; d < from->ndim; d++) {
            to.shape[d] = to.stride[d] = 1;
        }
        td_kernels_of(c->options.device)->copy(&to, from);
    }
    return TD_OK;
}

static td_status call_in_step(td_captured *c, td_tensor *const *inputs)
{
    td_step_begin();
    td_status status = call(c, inputs);
    td_step_end();
    return status;
}

/* Compares a warm-up with the warm-up before, and keeps it for the next comparison. */
static void judge(td_captured *c, form *f)
{
    char text[512], reason[600];
    bool first = f->warmups++ == 0;
    bool differs = !first && td_trace_differs(&f->capture.trace, &f->before, text, sizeof text);
    f->same = !first && !differs;
    td_trace kept = f->before;
    f->before = f->capture.trace;
    f->capture.trace = kept;
    if (f->warmups < c->options.warmups) {
        return;
    }
    if (f->capture.note[0] != '\0') {
        explain(c, f, f->capture.note);
        f->given_up = c->graphs != NULL;
    } else if (differs) {
        snprintf(reason, sizeof reason, "%s", text);
        explain(c, f, reason);
        f->given_up = c->graphs != NULL && f->warmups >= MOST_WARMUPS;
    }
}

static td_status warm_up(td_captured *c, form *f, td_tensor *const *inputs)
{
    if (f == NULL || f->given_up) {
        return call_in_step(c, inputs);
    }
    td_capture_begin(&f->capture, abandoned, false);
    td_status status = call_in_step(c, inputs);
    td_recorder_set(NULL);
    if (status == TD_OK) {
        judge(c, f);
    }
    return status;
}

/* ---- with other processes ---- */

/* What a process can do next with a step; the more, the higher. */
typedef enum readiness { EAGER, WARM_UP, RECORD, REPLAY } readiness;

/* What all do. */
static td_status agree(td_captured *c, const form *f, readiness mine, readiness *all)
{
    const td_captured_peers *peers = c->options.peers;
    int least = mine, whose = 0;
    if (peers != NULL) {
        TD_TRY(peers->least(peers->user, mine, &least, &whose));
    }
    *all = (readiness)least;
    if (mine >= RECORD && least == EAGER) {
        char reason[80];
        snprintf(reason, sizeof reason, "rank %d does its step eagerly", whose);
        explain(c, f, reason);
    }
    return TD_OK;
}

/* ---- recording and replaying ---- */

/* The inputs that a graph reads; from its recording on they must not change. */
static void keep_inputs(form *f, td_tensor *const *inputs)
{
    for (int i = 0; i < f->count; i++) {
        TD_REQUIRE(f->inputs[i] == NULL || f->inputs[i] == inputs[i], TD_HERE,
                   "captured step: input %d is another tensor than the one that was recorded, and "
                   "options.inputs_stay promises the same one",
                   i);
        f->inputs[i] = inputs[i];
    }
}

static td_status take_inputs(const td_captured *c, form *f, td_tensor *const *inputs)
{
    if (c->options.inputs_stay) {
        keep_inputs(f, inputs);
        return TD_OK;
    }
    for (int i = 0; i < f->count; i++) {
        if (f->inputs[i] == NULL) {
            f->inputs[i] = td_clone(inputs[i]);
            if (f->inputs[i] == NULL) {
                return TD_E_NOMEM;
            }
        } else {
            td_copy_(f->inputs[i], inputs[i]);
        }
    }
    return TD_OK;
}

static td_status captured_launch(td_captured *c, form *f)
{
    TD_TRY(tell(c, TD_CAPTURED_BEGINS));
    td_capture_send(&f->capture);
    TD_TRY(c->graphs->launch(c->options.device, f->graph));
    return tell(c, TD_CAPTURED_LAUNCHED);
}

/* Between begin and end of the recording no call may fail to come to the end. */
static td_status call_and_record(td_captured *c, form *f)
{
    TD_TRY(c->graphs->begin(c->options.device));
    td_status status = tell(c, TD_CAPTURED_RECORDS);
    if (status == TD_OK) {
        status = call(c, f->inputs);
    }
    if (status == TD_OK) {
        status = tell(c, TD_CAPTURED_RECORDED);
    }
    td_status ended = end_recording(c, f);
    return status != TD_OK ? status : ended;
}

static td_status record_graph(td_captured *c, form *f)
{
    TD_TRY(tell(c, TD_CAPTURED_BEGINS));
    td_step_begin(); /* first: after an error here there is no recording to end */
    td_capture_begin(&f->capture, abandoned, true);
    td_status status = call_and_record(c, f);
    td_step_end();
    td_recorder_set(NULL);
    if (f->graph != NULL && status != TD_OK) { /* a part of a step */
        captured_free_graph(c, f);
        f->given_up = true;
    } else if (f->graph != NULL) {
        td_step_pin(1);
    }
    return status != TD_OK
               ? td_fail_context(status, "recording the training step as a graph (without --graph "
                                         "it runs eagerly)")
               : TD_OK;
}

/* What is recorded is right, and is done once, even if its memory turns out not to be what the next
 * step would take: then it is not kept. */
static td_status captured_record(td_captured *c, form *f, td_tensor *const *inputs)
{
    char text[512];
    drop_graph(c, f); /* another process records again */
    TD_TRY(take_inputs(c, f, inputs));
    TD_TRY(record_graph(c, f));
    TD_TRY(captured_launch(c, f));
    c->stats.recorded++;
    if (td_trace_differs(&f->capture.trace, &f->before, text, sizeof text) ||
        f->capture.note[0] != '\0') {
        explain(c, f, f->capture.note[0] != '\0' ? f->capture.note : text);
        drop_graph(c, f);
        f->given_up = true;
    }
    return TD_OK;
}

static td_status replay(td_captured *c, form *f, td_tensor *const *inputs)
{
    TD_TRY(take_inputs(c, f, inputs));
    td_capture_fill_again(&f->capture);
    c->stats.replayed++;
    return captured_launch(c, f);
}

static readiness readiness_of(const td_captured *c, const form *f)
{
    if (f == NULL || f->given_up) {
        return EAGER;
    }
    if (f->graph != NULL) {
        return REPLAY;
    }
    bool ready = c->graphs != NULL && f->same && f->warmups >= c->options.warmups;
    return ready ? RECORD : WARM_UP;
}

static td_status step_as_agreed(td_captured *c, form *f, readiness all, td_tensor *const *inputs)
{
    if (all == REPLAY) {
        return replay(c, f, inputs);
    }
    if (all == RECORD) {
        return captured_record(c, f, inputs);
    }
    c->stats.eager++;
    return f != NULL && f->graph != NULL ? call_in_step(c, inputs) : warm_up(c, f, inputs);
}

td_status td_captured_run_kind(td_captured *c, int kind, td_tensor *const *inputs, int count)
{
    form *f;
    readiness all;
    TD_REQUIRE(count >= 0 && count <= TD_CAPTURED_INPUTS, TD_HERE,
               "td_captured_run: %d inputs; there is room for %d", count, TD_CAPTURED_INPUTS);
    TD_REQUIRE(!td_captured_full(c), TD_HERE,
               "td_captured_run: the results of %d steps are waiting; read some with "
               "td_captured_next",
               c->results.waiting);
    TD_TRY(form_of(c, kind, inputs, count, &f));
    TD_TRY(agree(c, f, readiness_of(c, f), &all));
    TD_TRY(step_as_agreed(c, f, all, inputs));
    return td_results_post(&c->results, f);
}

td_status td_captured_run(td_captured *c, td_tensor *const *inputs, int count)
{
    return td_captured_run_kind(c, 0, inputs, count);
}

/* ---- results ---- */

static void check_faults(const form *f, const double *faults)
{
    for (int i = 0; i < f->capture.check_count; i++) {
        td_report_index(&f->capture.checks[i], faults + 2 * i);
    }
}

td_status td_captured_next(td_captured *c, double *results)
{
    const double *numbers;
    const void *f;
    TD_REQUIRE(c->results.waiting > 0, TD_HERE, "td_captured_next: no step's results are waiting");
    TD_TRY(td_results_next(&c->results, &numbers, &f));
    TD_TRY(tell(c, TD_CAPTURED_READ));
    for (int i = 0; i < c->options.results; i++) {
        results[i] = numbers[i];
    }
    if (f != NULL) {
        check_faults(f, numbers + TD_CAPTURED_RESULTS);
    }
    return TD_OK;
}

int td_captured_waiting(const td_captured *c)
{
    return c->results.waiting;
}

bool td_captured_full(const td_captured *c)
{
    return c->results.waiting == c->options.depth;
}

td_captured_stats td_captured_now(const td_captured *c)
{
    return c->stats;
}
