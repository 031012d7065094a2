/* Weights on several stages, as a GPT's embedding, which is its head, too. Their gradients are
 * added after a step; but if each micro-batch has gradients of its own, in the order in which
 * backward of a whole model would add them: from the last stage to the first. */
#include "dist/pipeline/stages.h"

#include "autograd/hooks.h"

/* The next rank with the weight after `rank`, or (step -1) before it; -1: there is none. */
static int shared_next(const td_pipe *p, const td_pipe_shared *w, int rank, int step)
{
    do {
        rank += step;
    } while (rank >= 0 && rank < p->plan.ranks && !w->has[rank]);
    return rank < p->plan.ranks ? rank : -1;
}

int td_pipe_sends_shared(const td_pipe *p, int i, int from)
{
    const td_pipe_shared *w = &p->ties.list[i];
    return p->turns && w->has[from] ? shared_next(p, w, from, -1) : -1;
}

td_status td_pipe_begin_shared(td_pipe *p, int micro)
{
    for (int i = 0; i < p->ties.count; i++) {
        td_pipe_shared *w = &p->ties.list[i];
        int later = w->has[p->rank] ? shared_next(p, w, p->rank, 1) : -1;
        if (later >= 0) {
            TD_TRY(td_pipe_need(p, (td_action){ .kind = 'G', i, micro }, later));
            td_mark_grad(w->weight);
        }
    }
    return TD_OK;
}

td_status td_pipe_send_shared(td_pipe *p, int micro)
{
    for (int i = 0; i < p->ties.count; i++) {
        td_pipe_shared *w = &p->ties.list[i];
        int earlier = td_pipe_sends_shared(p, i, p->rank), k = micro % p->plan.ranks;
        if (earlier < 0) {
            continue;
        }
        if (!td_grad_begun(w->weight)) {
            td_fill_(td_grad_buffer(w->weight), 0.0);
        }
        TD_TRY(td_pipe_finish(&w->sends[k]));
        if (w->parts[k] == NULL) {
            w->parts[k] = td_clone(td_grad_buffer(w->weight));
            TD_TRY(w->parts[k] != NULL ? TD_OK : TD_E_NOMEM);
        } else {
            td_copy_(w->parts[k], td_grad_buffer(w->weight));
        }
        td_action message = { .kind = 'G', i, micro };
        TD_TRY(td_send_named(p->group, w->parts[k], earlier, td_pipe_name(message).text,
                             &w->sends[k]));
    }
    return TD_OK;
}

/* The first rank that has a weight adds the others' gradients, in the order of ranks, if they are
 * not there yet, and sends them the sum. */
static td_status share_gradient(const td_pipe *p, const td_pipe_shared *w)
{
    td_tensor *mine = td_grad_buffer(w->weight);
    int first = shared_next(p, w, -1, 1);
    if (p->rank != first) {
        TD_TRY(p->turns ? TD_OK : td_send_named(p->group, mine, first, "part", NULL));
        td_mark_grad(w->weight);
        return td_recv_named(p->group, mine, first, "sum", NULL);
    }
    td_tensor *theirs = p->turns ? NULL : td_clone(mine);
    td_status status = p->turns || theirs != NULL ? TD_OK : TD_E_NOMEM;
    for (int r = first; !p->turns && status == TD_OK && (r = shared_next(p, w, r, 1)) >= 0;) {
        status = td_recv_named(p->group, theirs, r, "part", NULL);
        if (status == TD_OK) {
            td_add_(mine, theirs);
        }
    }
    for (int r = first; status == TD_OK && (r = shared_next(p, w, r, 1)) >= 0;) {
        status = td_send_named(p->group, mine, r, "sum", NULL);
    }
    td_free(theirs);
    return status;
}

td_status td_pipe_share_gradients(const td_pipe *p)
{
    for (int i = 0; i < p->ties.count; i++) {
        if (p->ties.list[i].has[p->rank]) {
            TD_TRY(share_gradient(p, &p->ties.list[i]));
        }
    }
    return TD_OK;
}
