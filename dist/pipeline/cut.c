/* Cutting a model into stages, by index or by work, and running their links. Each rank keeps the
 * parameters of its own stages, and takes the others' memory away. */
#include "dist/pipeline/stages.h"

#include "autograd/tape.h"
#include "nn/internal.h"
#include "nn/shared/shared.h"
#include "tensor/extend.h"
#include "tensor/storage.h"

#include <stdlib.h>
#include <string.h>

void *td_pipe_new(td_pipe *p, int64_t count, size_t size)
{
    td_pipe_room *room = calloc(1, sizeof *room + (size_t)count * size);
    if (room == NULL) {
        (void)td_fail(TD_E_NOMEM, "td_pipeline: no memory for %lld x %zu bytes", (long long)count,
                      size);
        return NULL;
    }
    room->next = p->rooms;
    p->rooms = room;
    return room->bytes;
}

/* ---- links ---- */

td_tensor *td_pipe_run(td_pipe *p, int chunk, td_tensor *x, td_tensor *second, td_site at)
{
    const td_tensor *input = x;
    int stage = td_pipe_stage(p, chunk);
    int64_t scope = td_scope_begin();
    for (int i = p->cuts[stage]; i < p->cuts[stage + 1]; i++) {
        const td_chain_link *link = &p->links[i];
        if (i == p->link_count - 1 && second != NULL) {
            x = link->end(link->self, x, second, at);
        } else {
            x = link->run != NULL ? link->run(link->self, x, at)
                                  : td_forward_at(link->parts[0], x, at);
        }
        td_scope_keep(scope, x);
    }
    td_scope_end(scope, x == input ? NULL : x);
    return x;
}

/* The module after m (NULL: the first) in a link, of whose parts *k is the running one. */
static td_module *link_next(const td_chain_link *link, int *k, const td_module *m)
{
    td_module *next = m != NULL ? td_module_next(link->parts[*k], m) : NULL;
    *k += m != NULL && next == NULL;
    return next != NULL || *k == TD_CHAIN_PARTS ? next : link->parts[*k];
}

/* About how many multiply-adds a link needs: each element of its matrices and filters is used
 * `uses` times. */
static double cut_work(const td_chain_link *link)
{
    double elements = 0.0;
    int k = 0;
    for (const td_module *m = NULL; (m = link_next(link, &k, m)) != NULL;) {
        for (int i = 0; i < m->tensor_count; i++) {
            const td_tensor *t = m->tensors[i].tensor;
            elements += t->ndim > 1 ? (double)td_numel(t) : 0.0;
        }
    }
    return elements * link->uses;
}

static td_status cut_list_links(td_pipe *p)
{
    p->link_count = td_module_chain(p->model, NULL);
    TD_CHECK(p->link_count != 0, TD_E_ARG,
             "td_pipeline: a %s is no chain: its type does not say of which links it "
             "consists (td_module_type.chain)",
             p->model->type->name);
    p->links = td_pipe_new(p, p->link_count, sizeof *p->links);
    TD_TRY(p->links != NULL ? TD_OK : TD_E_NOMEM);
    td_module_chain(p->model, p->links);
    return p->link_count >= td_pipe_stages(p)
               ? TD_OK
               : td_fail(TD_E_ARG,
                         "td_pipeline: %d stages are more than the model's %d links (blocks, and "
                         "what is before and behind them)",
                         td_pipe_stages(p), p->link_count);
}

/* ---- where stages begin ---- */

/* Whether `stages` stages suffice if none has more work than `most`; writes their cuts, as late as
 * possible, but so that no stage is empty. */
static bool cut_fits(const double *work, int links, int stages, double most, int *cuts)
{
    int link = 0;
    for (int s = 0; s < stages; s++) {
        double sum = work[link];
        cuts[s] = link++;
        while (link < links - (stages - s - 1) && sum + work[link] <= most) {
            sum += work[link++];
        }
        if (sum > most) {
            return false;
        }
    }
    return link == links;
}

/* The cuts with the least work in the largest stage: by bisection of its work. */
static td_status cut_by_work(td_pipe *p)
{
    int stages = td_pipe_stages(p);
    double *work = td_pipe_new(p, p->link_count, sizeof *work), low = 0.0, high = 0.0;
    TD_TRY(work != NULL ? TD_OK : TD_E_NOMEM);
    for (int i = 0; i < p->link_count; i++) {
        work[i] = cut_work(&p->links[i]);
        high += work[i];
    }
    for (int k = 0; k < 64; k++) {
        double most = (low + high) / 2.0;
        *(cut_fits(work, p->link_count, stages, most, p->cuts) ? &high : &low) = most;
    }
    (void)cut_fits(work, p->link_count, stages, high, p->cuts);
    return TD_OK;
}

static td_status cut_by_text(td_pipe *p, const char *text)
{
    int stages = td_pipe_stages(p), s = 1;
    const char *at = text;
    for (char *end; s < stages && *at != '\0'; s++) {
        long link = strtol(at, &end, 10);
        if (end == at || (*end != ',' && *end != '\0') || link <= p->cuts[s - 1] ||
            link >= p->link_count) {
            break;
        }
        p->cuts[s] = (int)link;
        at = *end == ',' ? end + 1 : end;
    }
    return s == stages && *at == '\0'
               ? TD_OK
               : td_fail(TD_E_ARG,
                         "td_pipeline: the cut '%s' does not make %d stages of %d links: give %d "
                         "ascending numbers from 1 to %d, as \"3,7\"",
                         text, stages, p->link_count, stages - 1, p->link_count - 1);
}

/* ---- who has what ---- */

static bool link_has(const td_chain_link *link, const td_tensor *t)
{
    bool found = false;
    int k = 0;
    for (const td_module *m = NULL; (m = link_next(link, &k, m)) != NULL;) {
        for (int i = 0; i < m->tensor_count; i++) {
            found = found || m->tensors[i].tensor == t;
        }
    }
    return found;
}

static bool stage_has(const td_pipe *p, int stage, const td_tensor *t)
{
    bool found = false;
    for (int i = p->cuts[stage]; i < p->cuts[stage + 1] && !found; i++) {
        found = link_has(&p->links[i], t);
    }
    return found;
}

int td_pipe_chunk_of(void *pipe, const td_tensor *parameter)
{
    const td_pipe *p = pipe;
    int chunk = 0;
    while (chunk + 1 < p->plan.chunks && !stage_has(p, td_pipe_stage(p, chunk), parameter)) {
        chunk++;
    }
    return chunk;
}

/* Sets has[rank] for the ranks with a stage that uses t; returns how many they are. */
static int cut_owners(td_pipe *p, const td_tensor *t, unsigned char *has)
{
    int owners = 0, stages = 0;
    memset(has, 0, (size_t)p->plan.ranks);
    for (int s = 0; s < td_pipe_stages(p); s++) {
        unsigned char *it = &has[s % p->plan.ranks];
        bool uses = stage_has(p, s, t);
        owners += uses && *it == 0;
        stages += uses;
        *it = *it || uses;
    }
    p->ties.several = p->ties.several || (stages > 1 && td_is_leaf(t));
    return owners;
}

/* t has no memory any more, and takes no gradients. */
static td_status cut_away(td_tensor *t)
{
    td_layout layout = td_is_layout(t, TD_FILTER) ? TD_FILTER : TD_ROW_MAJOR;
    td_tensor *away = td_new_away(td_shape_of(t), t->dtype, layout, td_device_of(t), NULL);
    if (away == NULL) {
        return TD_E_NOMEM;
    }
    td_parameter_exchange(t, away, false);
    return TD_OK;
}

static td_status cut_share(td_pipe *p, td_tensor *t, const unsigned char *has)
{
    td_pipe_shared *w = &p->ties.list[p->ties.count];
    int ranks = p->plan.ranks;
    *w = (td_pipe_shared){ .weight = t,
                           .has = td_pipe_new(p, ranks, 1),
                           .parts = td_pipe_new(p, ranks, sizeof *w->parts),
                           .sends = td_pipe_new(p, ranks, sizeof *w->sends) };
    TD_TRY(w->has != NULL && w->parts != NULL && w->sends != NULL ? TD_OK : TD_E_NOMEM);
    memcpy(w->has, has, (size_t)ranks);
    p->ties.count++;
    p->ties.here += has[p->rank];
    return TD_OK;
}

/* One tensor of the model. */
static td_status cut_place(td_pipe *p, const td_named_tensor *item, unsigned char *has)
{
    td_tensor *t = item->tensor;
    td_staging *all = &p->staging;
    int owners = cut_owners(p, t, has), first = 0;
    while (owners > 0 && !has[first]) {
        first++;
    }
    all->tensors[all->count] = t;
    all->owners[all->count++] = first;
    if (item->buffer) {
        return TD_OK;
    }
    TD_CHECK(owners != 0, TD_E_ARG, "td_pipeline: no link of the model's chain uses '%s'",
             item->name);
    TD_TRY(owners > 1 && td_is_leaf(t) ? cut_share(p, t, has) : TD_OK);
    return has[p->rank] ? td_parameter_draw(t) : cut_away(t);
}

static td_status cut_place_all(td_pipe *p)
{
    td_state_list list = td_module_state(p->model);
    int64_t count = list.count + 1;
    unsigned char *has = td_pipe_new(p, p->plan.ranks, 1);
    p->ties.list = td_pipe_new(p, count, sizeof *p->ties.list);
    p->staging.tensors = td_pipe_new(p, count, sizeof(td_tensor *));
    p->staging.owners = td_pipe_new(p, count, sizeof(int));
    p->staging.numbers = td_pipe_new(p, count, sizeof(double));
    bool room = list.count >= 0 && has != NULL && p->ties.list != NULL &&
                p->staging.tensors != NULL && p->staging.owners != NULL &&
                p->staging.numbers != NULL;
    td_status status = room ? TD_OK : TD_E_NOMEM;
    for (int i = 0; i < list.count && status == TD_OK; i++) {
        if (td_staging_place(&p->staging, list.items[i].tensor) < 0) { /* not under another name */
            status = cut_place(p, &list.items[i], has);
        }
    }
    td_state_list_free(&list);
    return status;
}

static void link_skip(const td_chain_link *link, int micro)
{
    int k = 0;
    for (td_module *m = NULL; (m = link_next(link, &k, m)) != NULL;) {
        td_dropout_place *place = td_dropout_place_of(m);
        if (place != NULL && m->training) {
            place->calls += (uint64_t)micro;
        }
    }
}

void td_pipe_skip_draws(const td_pipe *p, int micro)
{
    for (int s = 0; s < td_pipe_stages(p); s++) {
        for (int i = p->cuts[s]; i < p->cuts[s + 1] && s % p->plan.ranks != p->rank; i++) {
            link_skip(&p->links[i], micro);
        }
    }
}

td_status td_pipe_cut(td_pipe *p, const char *cut)
{
    TD_TRY(cut_list_links(p));
    p->cuts = td_pipe_new(p, td_pipe_stages(p) + 1, sizeof *p->cuts);
    TD_TRY(p->cuts != NULL ? TD_OK : TD_E_NOMEM);
    TD_TRY(cut != NULL ? cut_by_text(p, cut) : cut_by_work(p));
    p->cuts[td_pipe_stages(p)] = p->link_count;
    return cut_place_all(p);
}
