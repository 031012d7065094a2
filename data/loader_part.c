/* A loader in checkpoints: where it is in its epoch, and how the epoch's samples are ordered.
 *
 *  - loader.epoch: counted from 0
 *  - loader.dataset: the samples of the dataset
 *  - loader.done: the samples of the epoch that have come, on all ranks together
 *  - loader.samples: the samples of the epoch, on all ranks together
 *  - loader.order: "in order", "shuffled SEED EPOCH LENGTH", or "own", by the program's sampler
 *  - loader.before: for "own", the loader's generator when the epoch began
 *  - loader.generator: the loader's generator now, if the loader has one of its own
 *
 * The last four are there where they are needed: between two epochs (done is 0) no order has been
 * drawn. With equally many ranks and samples a batch, what is dealt to a rank from `done` on is
 * what it would have got in the run that was saved. */
#include "data/loader_internal.h"

#include <inttypes.h>
#include <stdlib.h>

static const int64_t MOST_EPOCHS = 10000000; /* a sampler of the program's own is asked for each */

/* Samples that all ranks take together in a batch. */
static int64_t width(const td_loader *l)
{
    int64_t one = l->plan.batch_size / (l->deal.parts > 0 ? l->deal.parts : 1);
    return one * (l->deal.world_size > 0 ? l->deal.world_size : 1);
}

/* The samples of an epoch on all ranks together. */
static int64_t samples_of(const td_loader *l)
{
    return l->known != NULL ? l->plan.dataset->length : l->given;
}

/* Where the loader is now. */
static void note(const td_loader *l, td_loader_place *p)
{
    const td_loader_order *o = &l->order;
    p->epoch = (int64_t)l->epoch;
    p->dataset = l->plan.dataset->length;
    p->samples = o->whole > 0 ? o->whole : samples_of(l);
    p->done = 0;
    if (o->there && l->position > 0) {
        int64_t done = o->begin + (l->position - o->first) * width(l);
        bool over = l->position == l->plan.batches || done > p->samples;
        p->done = over ? p->samples : done;
        p->order = o->kind;
        p->before = o->before;
    }
    p->generator = *td_loader_generator(l);
}

/* While loading: notes what does not fit this loader. */
static void check(const td_loader *l, const td_loader_place *p, td_part_list *list)
{
    int64_t length = l->plan.dataset->length;
    bool own = p->order.kind == TD_ORDER_OWN, shuffled = p->order.kind == TD_ORDER_SHUFFLED;
    if (p->dataset != length) {
        list->differ(list, "the dataset has %" PRId64 " samples in the file, %" PRId64 " here",
                     p->dataset, length);
    } else if (p->epoch > MOST_EPOCHS) {
        list->differ(list, "loader.epoch is %" PRId64 ", of at most %" PRId64, p->epoch,
                     MOST_EPOCHS);
    } else if (p->done > p->samples) {
        list->differ(list, "loader.done is %" PRId64 ", of %" PRId64 " samples", p->done,
                     p->samples);
    } else if (p->done > 0 && p->order.kind == TD_ORDER_UNKNOWN) {
        list->differ(list, "loader.order (metadata) is missing");
    } else if (p->done > 0 && own && l->known != NULL) {
        list->differ(list, "the epoch's order is that of a sampler of the program's own, and the "
                           "loader has none here");
    } else if (p->done > 0 && own && p->samples != samples_of(l)) {
        list->differ(list,
                     "the sampler gives %" PRId64 " samples an epoch in the file, %" PRId64
                     " here: to go on with another number of ranks, let it give all samples to "
                     "each, and the loader deal them (.deal)",
                     p->samples, samples_of(l));
    } else if (p->done > 0 && !own &&
               (p->samples != length || (shuffled && p->order.length != length))) {
        list->differ(list, "loader.samples is %" PRId64 ", of a dataset of %" PRId64, p->samples,
                     length);
    }
}

static void list_place(td_checkpoint_part *part, td_part_list *list)
{
    td_loader *l = (td_loader *)part;
    td_loader_place *p = &l->place;
    td_text_kind first = td_text_count, order = td_text_order;
    order.optional = false;
    first.missing = "the place of a loader (loader.*); the file was saved without .loader";
    note(l, p);
    if (!list->text(list, "loader.epoch", &first, &p->epoch)) {
        return;
    }
    bool there = list->text(list, "loader.dataset", &td_text_count, &p->dataset) &&
                 list->text(list, "loader.done", &td_text_count, &p->done);
    if (there && p->done > 0) {
        there = list->text(list, "loader.samples", &td_text_count, &p->samples) &&
                list->text(list, "loader.order", &order, &p->order);
        if (there && p->order.kind == TD_ORDER_OWN) {
            there = list->text(list, "loader.before", &td_text_generator, &p->before);
        }
    }
    if (l->generator != NULL) {
        there = list->text(list, "loader.generator", &td_text_generator, &p->generator) && there;
    }
    if (list->loading && there) {
        check(l, p, list);
    }
}

/* ---- going on ---- */

/* Writes this rank's part of what is left of the epoch. */
static td_status deal_rest(td_loader *l, const td_loader_place *p, int64_t *index)
{
    if (p->order.kind == TD_ORDER_OWN) {
        *td_loader_generator(l) = p->before;
        return td_loader_draw(l, p->done, index);
    }
    int64_t *all = NULL;
    if (p->order.kind == TD_ORDER_SHUFFLED) {
        td_generator fresh;
        all = malloc((size_t)p->samples * sizeof *all);
        TD_CHECK(all != NULL, TD_E_NOMEM, "loader: no memory for the order of %" PRId64 " samples",
                 p->samples);
        td_generator_seed(&fresh, p->order.seed);
        td_random_permutation(&fresh, all, p->samples);
    }
    td_deal_samples(&l->deal, all, p->samples, p->done, index);
    free(all);
    return TD_OK;
}

/* Goes on in the middle of an epoch, or at its end. */
static td_status go_on(td_loader *l, const td_loader_place *p)
{
    int64_t before = p->done / width(l) * l->plan.batch_size;
    int64_t rest = td_deal_count(&l->deal, p->samples - p->done);
    TD_CHECK(before + rest <= td_loader_room(l), TD_E_ARG,
             "loader: the sampler gives a rank fewer samples than its part");
    l->position = l->plan.batches;
    if (p->done < p->samples) {
        l->position = p->done / width(l);
        td_loader_fit(l, before + rest);
    }
    l->order = (td_loader_order){ .index = l->order.index,
                                  .whole = p->samples,
                                  .begin = p->done,
                                  .first = l->position,
                                  .kind = p->order,
                                  .before = p->before };
    td_status status = deal_rest(l, p, l->order.index + before);
    l->order.there = status == TD_OK;
    return status;
}

static td_status take_place(td_checkpoint_part *part)
{
    td_loader *l = (td_loader *)part;
    td_loader_place *p = &l->place;
    td_generator *g = td_loader_generator(l);
    td_generator now = l->generator != NULL ? p->generator : *g;
    td_status status = TD_OK;
    td_loader_rest(l);
    td_loader_fit(l, l->drawn);
    l->epoch = (uint64_t)p->epoch;
    l->position = 0;
    l->order.there = l->failure.unread = false;
    l->order.whole = 0;
    l->failure.status = TD_OK;
    for (uint64_t k = l->asked; l->known == NULL && k < l->epoch && status == TD_OK; k++) {
        status = td_loader_ask(l, k, l->order.index);
    }
    status = status == TD_OK && p->done > 0 ? go_on(l, p) : status;
    *g = now;
    return status;
}

const td_checkpoint_part td_loader_in_checkpoints = { .list = list_place, .loaded = take_place };
