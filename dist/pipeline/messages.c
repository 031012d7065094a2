/* What the stages of a pipeline send each other: results forward, their gradients back.
 *
 * Every rank derives all ranks' lists of actions, and so knows in which order another rank sends.
 * It asks for messages in that order, some of them ahead of time: no rank waits for a message that
 * is behind another one, and nothing is computed while a message could already travel. Every
 * message carries its name, "F0.3" (input of the receiver's chunk 0, micro-batch 3) or "B0.3". */
#include "dist/pipeline/stages.h"

#include "autograd/hooks.h"
#include "tensor/clock.h"
#include "tensor/extend.h"

#include <string.h>

td_pipe_text td_pipe_name(td_action message)
{
    td_pipe_text name;
    snprintf(name.text, sizeof name.text, "%c%d.%d", message.kind, message.chunk, message.micro);
    return name;
}

/* The message before a chunk's first: what results look like. */
static td_action shape_of(td_action message)
{
    return (td_action){ .kind = 'S', message.chunk };
}

/* ---- shapes: told once, and again when the batch has another shape ---- */

static void pipe_write_shape(td_tensor *to, const td_tensor *t)
{
    int64_t *n = td_data_rw(to);
    memset(n, 0, TD_PIPE_SHAPE * sizeof *n);
    n[0] = t->dtype;
    n[1] = td_is_layout(t, TD_IMAGE);
    n[2] = t->ndim;
    memcpy(n + 3, t->shape, (size_t)t->ndim * sizeof *n);
}

/* A tensor of the shape, and of the memory order, that was told. */
static td_tensor *pipe_new_of_shape(const td_tensor *told, td_device device)
{
    const int64_t *n = td_data(told);
    td_shape shape = { .ndim = (int)n[2] };
    memcpy(shape.dim, n + 3, sizeof shape.dim);
    return td_new_layout(shape, (td_dtype)n[0], n[1] ? TD_IMAGE : TD_ROW_MAJOR, device);
}

/* Makes slots' tensors: `in`, leaves, or copies of results and their gradients. */
static td_status pipe_make_buffers(const td_pipe *p, td_pipe_chunk *c, bool in)
{
    for (int k = 0; k < c->count; k++) {
        td_pipe_slot *s = &c->slots[k];
        td_tensor **to[] = { in ? &s->in : &s->out, in ? NULL : &s->gradient };
        for (int i = 0; i < 2 && to[i] != NULL; i++) {
            td_free(*to[i]);
            *to[i] = pipe_new_of_shape(in ? c->shape_in : c->shape_out, p->model->device);
            TD_TRY(*to[i] != NULL ? TD_OK : TD_E_NOMEM);
        }
        if (in) {
            td_requires_grad(s->in, true);
        }
    }
    return TD_OK;
}

/* The message of an action of a rank; *to: its receiver, -1: there is none. */
static td_action pipe_message(const td_pipe *p, td_action a, int rank, int *to)
{
    int ranks = p->plan.ranks, stage = a.chunk * ranks + rank;
    int next = a.kind == 'F' ? stage + 1 : a.kind == 'W' ? -1 : stage - 1;
    *to = next >= 0 && next < td_pipe_stages(p) ? next % ranks : -1;
    return (td_action){ .kind = a.kind == 'F' ? 'F' : 'B', next / ranks, a.micro };
}

static bool has_shape(const td_tensor *told, const td_tensor *t)
{
    const int64_t *n = td_data(told);
    return n[0] == t->dtype && n[2] == t->ndim &&
           memcmp(n + 3, t->shape, (size_t)t->ndim * sizeof *n) == 0;
}

/* ---- asking for messages ---- */

/* The messages of rank `from` to this one, in the order of that rank's actions. */
static void fill_stream(const td_pipe *p, int from, td_action *list, td_pipe_stream *s)
{
    int count = td_plan_count(&p->plan);
    s->count = s->posted = s->taken = 0;
    td_plan_actions(&p->plan, from, list);
    for (int i = 0; i < count; i++) {
        int to;
        td_action message = pipe_message(p, list[i], from, &to);
        if (to == p->rank) {
            s->items[s->count] = message;
            s->works[s->count++] = NULL;
        }
        for (int k = 0; k < p->ties.count && list[i].kind == 'B'; k++) {
            if (td_pipe_sends_shared(p, k, from) == p->rank) {
                s->items[s->count] = (td_action){ .kind = 'G', k, list[i].micro };
                s->works[s->count++] = NULL;
            }
        }
    }
}

td_status td_pipe_finish(td_work **work)
{
    td_work *w = *work;
    *work = NULL;
    return w != NULL ? td_work_wait(w, 0) : TD_OK;
}

static void finish_one(td_work **work, td_status *status)
{
    td_status one = td_pipe_finish(work);
    *status = *status == TD_OK ? one : *status;
}

/* Whether the next message of a stream can be asked for without waiting for anything. */
static bool can_post(const td_pipe *p, const td_pipe_stream *s)
{
    td_action a = s->items[s->posted];
    if (a.kind == 'G') {
        return false; /* the memory of gradients may belong to another micro-batch yet */
    }
    const td_pipe_chunk *c = &p->chunks[a.chunk];
    const td_pipe_slot *slot = td_pipe_slot_of(p, a.chunk, a.micro);
    bool knows = a.kind == 'F' ? c->knows_in : c->knows_out;
    bool sent = slot->sends_in == NULL || td_work_test(slot->sends_in);
    return knows && c->done > a.micro - c->count && (a.kind == 'B' || sent);
}

static td_status post(td_pipe *p, td_pipe_stream *s, int from)
{
    td_action a = s->items[s->posted];
    if (a.kind == 'G') {
        return td_recv_named(p->group, td_grad_buffer(p->ties.list[a.chunk].weight), from,
                             td_pipe_name(a).text, &s->works[s->posted++]);
    }
    td_pipe_chunk *c = &p->chunks[a.chunk];
    td_pipe_slot *slot = td_pipe_slot_of(p, a.chunk, a.micro);
    if (a.kind == 'F' && !c->knows_in) {
        TD_TRY(td_recv_named(p->group, c->shape_in, from, td_pipe_name(shape_of(a)).text, NULL));
        c->knows_in = true;
        TD_TRY(pipe_make_buffers(p, c, true));
    }
    TD_TRY(a.kind == 'F' ? td_pipe_finish(&slot->sends_in) : TD_OK);
    return td_recv_named(p->group, a.kind == 'F' ? slot->in : slot->gradient, from,
                         td_pipe_name(a).text, &s->works[s->posted++]);
}

/* Asks for messages up to number `until`, and for some more where that needs no waiting. */
static td_status post_until(td_pipe *p, int from, int until)
{
    td_pipe_stream *s = &p->streams[from];
    while (s->posted < s->count &&
           (s->posted <= until || (s->posted <= until + TD_PIPE_AHEAD && can_post(p, s)))) {
        TD_TRY(post(p, s, from));
    }
    return TD_OK;
}

td_status td_pipe_need(td_pipe *p, td_action what, int from)
{
    td_pipe_stream *s = &p->streams[from];
    int i = s->taken;
    while (i < s->count && (s->items[i].kind != what.kind || s->items[i].chunk != what.chunk ||
                            s->items[i].micro != what.micro)) {
        i++;
    }
    TD_REQUIRE(i < s->count, TD_NOWHERE, "td_pipeline: rank %d sends no %c%d.%d", from, what.kind,
               what.chunk, what.micro);
    TD_TRY(post_until(p, from, i));
    TD_TRY(td_pipe_finish(&s->works[i]));
    p->arrived = td_clock();
    while (s->taken < s->posted && s->works[s->taken] == NULL) {
        s->taken++;
    }
    return TD_OK;
}

/* ---- sending ---- */

td_status td_pipe_send(td_pipe *p, td_action a, td_tensor *y)
{
    int to;
    td_pipe_chunk *c = &p->chunks[a.chunk];
    td_pipe_slot *s = td_pipe_slot_of(p, a.chunk, a.micro);
    td_action message = pipe_message(p, a, p->rank, &to);
    if (!c->knows_out) {
        pipe_write_shape(c->shape_out, y);
        c->knows_out = true;
        TD_TRY(pipe_make_buffers(p, c, false));
        TD_TRY(td_send_named(p->group, c->shape_out, to, td_pipe_name(shape_of(message)).text,
                             &c->tells));
    }
    TD_CHECK(has_shape(c->shape_out, y), TD_E_MISMATCH,
             "td_pipeline: the result of stage %d is %s for micro-batch %d, of another "
             "shape than before: all micro-batches of a step must have one shape",
             td_pipe_stage(p, a.chunk), td_describe(y), a.micro);
    TD_TRY(td_pipe_finish(&s->sends_out));
    td_copy_(s->out, y);
    return td_send_named(p->group, s->out, to, td_pipe_name(message).text, &s->sends_out);
}

td_status td_pipe_send_gradient(td_pipe *p, td_action a)
{
    int to;
    td_pipe_slot *s = td_pipe_slot_of(p, a.chunk, a.micro);
    td_action message = pipe_message(p, a, p->rank, &to);
    const td_tensor *gradient = td_grad(s->in);
    return gradient != NULL
               ? td_send_named(p->group, gradient, to, td_pipe_name(message).text, &s->sends_in)
               : td_fail(TD_E_ARG,
                         "td_pipeline: no gradient flows through stage %d (td_detach, or "
                         "td_no_grad)",
                         td_pipe_stage(p, a.chunk));
}

/* ---- a step ---- */

td_status td_pipe_begin_messages(td_pipe *p)
{
    td_action *list = td_step_bytes((size_t)td_plan_count(&p->plan) * sizeof *list);
    for (int c = 0; c < p->plan.chunks; c++) {
        p->chunks[c].done = 0;
    }
    for (int r = 0; r < p->plan.ranks; r++) {
        fill_stream(p, r, list, &p->streams[r]);
    }
    for (int r = 0; r < p->plan.ranks; r++) {
        TD_TRY(post_until(p, r, -1));
    }
    return TD_OK;
}

/* Waits for all that is under way, also after a failure: then it has failed, too. */
td_status td_pipe_end_messages(td_pipe *p)
{
    td_status status = TD_OK;
    if (p->actions == NULL) { /* memory was short before the first message */
        return TD_OK;
    }
    for (int r = 0; r < p->plan.ranks; r++) {
        for (int i = p->streams[r].taken; i < p->streams[r].posted; i++) {
            finish_one(&p->streams[r].works[i], &status);
        }
    }
    for (int c = 0; c < p->plan.chunks; c++) {
        td_pipe_chunk *chunk = &p->chunks[c];
        finish_one(&chunk->tells, &status);
        for (int k = 0; k < chunk->count; k++) {
            finish_one(&chunk->slots[k].sends_out, &status);
            finish_one(&chunk->slots[k].sends_in, &status);
        }
    }
    for (int k = 0; k < p->ties.count * p->plan.ranks; k++) {
        finish_one(&p->ties.list[k / p->plan.ranks].sends[k % p->plan.ranks], &status);
    }
    return status;
}

/* ---- a forward alone ---- */

/* From one rank to another, or (to -1) to all. */
static td_status hand_one(const td_pipe *p, td_tensor *t, int from, int to, const char *name)
{
    return to < 0            ? td_broadcast(p->group, t, from, NULL)
           : from == p->rank ? td_send_named(p->group, t, to, name, NULL)
                             : td_recv_named(p->group, t, from, name, NULL);
}

/* The tensor of rank `from` on rank `to` (-1: on all), of the step; t: on the sender. */
static td_status hand_over(td_pipe *p, td_tensor *t, int from, int to, td_tensor **out, td_site at)
{
    bool sends = from == p->rank;
    td_tensor *told = td_zeros(TD_SHAPE(TD_PIPE_SHAPE), TD_I64, TD_CPU);
    TD_TRY(told != NULL ? TD_OK : TD_E_NOMEM);
    if (sends) {
        pipe_write_shape(told, t);
    }
    td_status status = hand_one(p, told, from, to, "shape");
    td_tensor *copy = status == TD_OK ? pipe_new_of_shape(told, p->model->device) : NULL;
    if (sends && copy != NULL) {
        td_copy_(copy, t);
    }
    status = status == TD_OK && copy == NULL ? TD_E_NOMEM : status;
    status = status == TD_OK ? hand_one(p, copy, from, to, "values") : status;
    *out = sends || status != TD_OK ? t : td_step_new_like(copy, at);
    if (!sends && status == TD_OK) {
        td_copy_(*out, copy);
    }
    td_free(copy);
    td_free(told);
    return status;
}

td_status td_pipe_evaluate(td_pipe *p, td_tensor *x, td_tensor *second, td_site at, td_tensor **y)
{
    int last = td_pipe_stages(p) - 1, ranks = p->plan.ranks;
    *y = x;
    for (int s = 0; s <= last; s++) {
        int rank = s % ranks, next = (s + 1) % ranks;
        if (rank == p->rank) {
            *y = td_pipe_run(p, s / ranks, *y, s == last ? second : NULL, at);
        }
        if (s < last && (rank == p->rank || next == p->rank)) {
            TD_TRY(hand_over(p, *y, rank, next, y, at));
        }
    }
    return ranks > 1 ? hand_over(p, *y, last % ranks, -1, y, at) : TD_OK;
}
