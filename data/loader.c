/* The loader's side towards the caller: epochs, order, positions. */
#include "data/inspect.h"
#include "data/loader_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_WORKERS = 256, MOST_PREFETCH = 256 };

/* ---- opening ---- */

static td_status check_options(const td_dataset *dataset, const td_loader_options *o)
{
    TD_CHECK(dataset->length >= 1, TD_E_ARG, "loader: the dataset has no samples");
    TD_CHECK(o->batch_size >= 0, TD_E_ARG, "loader: batch size %lld; give 1 or more",
             (long long)o->batch_size);
    TD_CHECK(o->workers >= 0 && o->workers <= MOST_WORKERS, TD_E_ARG,
             "loader: %d workers; give 0 to %d", o->workers, MOST_WORKERS);
    TD_CHECK(o->prefetch >= 0 && o->prefetch <= MOST_PREFETCH, TD_E_ARG,
             "loader: %d batches ahead; give 0 to %d", o->prefetch, MOST_PREFETCH);
    td_device found;
    td_status status = td_device_parse(td_device_name(o->device), &found);
    return status == TD_OK ? TD_OK : td_fail_context(status, "loader");
}

int64_t td_loader_room(const td_loader *loader)
{
    /* A sampler of the program's own may draw few of many: windows of a long text. */
    int64_t length = loader->known != NULL ? loader->plan.dataset->length : 0;
    int64_t most = loader->drawn > loader->given ? loader->drawn : loader->given;
    return most > length ? most : length;
}

static td_status plan_epoch(td_loader *loader, const td_loader_options *o)
{
    loader->given = loader->sampler->count(loader->sampler, o->dataset->length);
    if (loader->given < 0) {
        return td_fail_context((td_status)loader->given, "loader");
    }
    loader->drawn = loader->deals ? td_deal_count(&loader->deal, loader->given) : loader->given;
    int64_t size = o->batch_size > 0 ? o->batch_size : 1;
    TD_CHECK(!o->drop_last || loader->drawn <= 0 || loader->drawn >= size, TD_E_ARG,
             "loader: %lld samples give no batch of %lld, and drop_last leaves out what "
             "is not full: use a smaller batch size",
             (long long)loader->drawn, (long long)size);
    if (size > loader->drawn && loader->drawn > 0) {
        size = loader->drawn;
    }
    loader->drop_last = o->drop_last;
    loader->plan = (td_batch_plan){
        .dataset = o->dataset,
        .batch_size = size,
        .workers = o->workers,
        .prefetch = o->prefetch > 0 ? o->prefetch : 2,
        .device = o->device,
        .streamed = o->streamed,
    };
    td_loader_fit(loader, loader->drawn);
    int64_t room = td_loader_room(loader);
    loader->order.index = calloc((size_t)room + 1, sizeof *loader->order.index);
    TD_CHECK(loader->order.index != NULL, TD_E_NOMEM,
             "loader: no memory for the order of %lld samples", (long long)room);
    return TD_OK;
}

td_loader *td_loader_open_at(td_loader_options o, td_site at)
{
    (void)at;
    const td_dataset *dataset = o.dataset;
    if (dataset == NULL) {
        td_sampler_free(o.sampler);
        td_fail(TD_E_ARG, "td_loader_open: the dataset is NULL: %s", td_last_reason());
        return NULL;
    }
    td_loader *loader = calloc(1, sizeof *loader);
    td_sampler *sampler = o.sampler != NULL ? o.sampler
                          : o.shuffle       ? td_random_sampler(o.generator)
                                            : td_sequential_sampler();
    if (loader == NULL || sampler == NULL) {
        free(loader);
        td_sampler_free(sampler);
        td_fail(TD_E_NOMEM, "loader: no memory");
        return NULL;
    }
    loader->part = td_loader_in_checkpoints;
    loader->plan.dataset = dataset;
    loader->sampler = sampler;
    loader->known = td_known_sampler_of(sampler);
    loader->deal = loader->known != NULL ? loader->known->deal : o.deal;
    loader->deals = loader->known == NULL && o.deal.world_size > 0;
    loader->generator = o.generator;
    td_dataset_count_loader(dataset, 1);
    if (check_options(dataset, &o) != TD_OK || plan_epoch(loader, &o) != TD_OK ||
        (loader->maker = td_batch_maker_new(&loader->plan)) == NULL) {
        td_loader_close(loader);
        return NULL;
    }
    return loader;
}

void td_loader_close(td_loader *loader)
{
    if (loader == NULL) {
        return;
    }
    if (loader->failure.unread) {
        fprintf(stderr,
                "tandem: error: an epoch ended early, and td_loader_status was not called: %s\n",
                loader->failure.message);
    }
    td_dataset_count_loader(loader->plan.dataset, -1);
    if (loader->maker != NULL) {
        loader->maker->type->free(loader->maker);
    }
    td_sampler_free(loader->sampler);
    free(loader->order.index);
    free(loader);
}

/* ---- batches ---- */

void td_loader_rest(td_loader *loader)
{
    loader->running = false;
    if (loader->maker->type->rest != NULL) {
        loader->maker->type->rest(loader->maker);
    }
}

/* If `take` only draws (images kept on the GPU): fills the tensors of the batch. */
static void loader_make(td_loader *loader)
{
    if (loader->maker->type->make != NULL) {
        loader->maker->type->make(loader->maker);
    }
}

static bool fail(td_loader *loader, td_status status)
{
    td_loader_rest(loader);
    loader->failure.status = status;
    loader->failure.unread = true;
    strncpy(loader->failure.message, td_last_error(), sizeof loader->failure.message - 1);
    return false;
}

td_generator *td_loader_generator(const td_loader *loader)
{
    return loader->generator != NULL ? loader->generator : td_default_generator();
}

void td_loader_fit(td_loader *loader, int64_t samples)
{
    int64_t size = loader->plan.batch_size;
    td_batch_plan_fit(&loader->plan, loader->drop_last ? samples / size * size : samples);
}

td_status td_loader_ask(td_loader *loader, uint64_t epoch, int64_t *index)
{
    int64_t length = loader->plan.dataset->length;
    int64_t drawn = loader->sampler->order(loader->sampler, epoch, length, index);
    loader->asked = epoch + 1;
    if (drawn < 0) {
        return td_fail_context((td_status)drawn, "loader: the order of epoch %llu",
                               (unsigned long long)epoch);
    }
    TD_CHECK(drawn == loader->given, TD_E_ARG,
             "loader: the sampler gave %lld samples for epoch %llu, but had said %lld: "
             "order and count must agree",
             (long long)drawn, (unsigned long long)epoch, (long long)loader->given);
    for (int64_t i = 0; i < drawn; i++) {
        TD_CHECK(index[i] >= 0 && index[i] < length, TD_E_ARG,
                 "loader: the sampler gave sample %lld of a dataset of %lld", (long long)index[i],
                 (long long)length);
    }
    return TD_OK;
}

/* Whether the generator knows the running epoch's order: it does in a run that was resumed. */
static bool knows_order(const td_loader *loader, const td_generator *g)
{
    return loader->position > 0 && loader->known != NULL && loader->deal.world_size == 0 &&
           loader->known->drawn.kind == TD_ORDER_SHUFFLED && g->order.kind == TD_ORDER_SHUFFLED &&
           g->order.epoch == loader->epoch && g->order.length == loader->plan.dataset->length;
}

/* PyTorch's loader takes a base seed for its workers at every epoch's start, whether it shuffles or
 * not; nothing here needs one, but drawing it keeps what follows equal to PyTorch's. */
td_status td_loader_draw(td_loader *loader, int64_t begin, int64_t *index)
{
    td_random_i63(td_loader_generator(loader));
    if (!loader->deals && begin == 0) {
        return td_loader_ask(loader, loader->epoch, index);
    }
    int64_t *all = malloc((size_t)(loader->given + 1) * sizeof *all);
    td_status status = all != NULL ? td_loader_ask(loader, loader->epoch, all)
                                   : td_fail(TD_E_NOMEM, "loader: no memory for an epoch's order");
    if (status == TD_OK) {
        td_deal_samples(&loader->deal, all, loader->given, begin, index);
    }
    free(all);
    return status;
}

/* Draws the order of the epoch on the caller's thread. */
static td_status draw_order(td_loader *loader)
{
    td_generator *g = td_loader_generator(loader);
    td_loader_order *o = &loader->order;
    *o = (td_loader_order){ .index = o->index, .kind.kind = TD_ORDER_OWN, .before = *g };
    if (knows_order(loader, g)) {
        td_generator fresh;
        td_generator_seed(&fresh, g->order.seed);
        td_random_permutation(&fresh, o->index, loader->drawn);
        loader->known->drawn = g->order;
    } else {
        TD_TRY(td_loader_draw(loader, 0, o->index));
    }
    o->kind = loader->known != NULL ? loader->known->drawn : o->kind;
    o->there = true;
    return TD_OK;
}

static bool begin_epoch(td_loader *loader)
{
    td_status status = loader->order.there ? TD_OK : draw_order(loader);
    if (status != TD_OK) {
        return fail(loader, status);
    }
    loader->running = true;
    loader->maker->type->start(loader->maker, loader->order.index, loader->plan.samples,
                               loader->epoch, loader->position);
    return true;
}

/* A loop that begins another epoch without asking for the status would train on a part of the data
 * without notice. */
static void require_read(const td_loader *loader, const char *what)
{
    TD_REQUIRE(!loader->failure.unread, TD_HERE,
               "%s: the epoch before ended early, and td_loader_status was not called (call it "
               "after each epoch): %s",
               what, loader->failure.message);
}

static void forget_order(td_loader *loader)
{
    loader->order.there = false;
    td_loader_fit(loader, loader->drawn);
}

bool td_loader_next(td_loader *loader, td_batch *batch)
{
    TD_REQUIRE(loader != NULL, TD_HERE,
               "td_loader_next: the loader is NULL: td_loader_open failed: %s", td_last_reason());
    *batch = (td_batch){ 0 };
    require_read(loader, "td_loader_next");
    if (loader->failure.status != TD_OK) {
        td_fail(loader->failure.status, "%s", loader->failure.message);
        return false;
    }
    if (!loader->running && !begin_epoch(loader)) {
        return false;
    }
    if (loader->position == loader->plan.batches) {
        loader->running = false;
        forget_order(loader);
        loader->position = 0;
        loader->epoch++;
        return false;
    }
    td_tensor *x, *y;
    td_status status = loader->maker->type->take(loader->maker, loader->position, &x, &y);
    if (status != TD_OK) {
        return fail(loader, td_fail_context(status, "epoch %llu, batch %lld",
                                            (unsigned long long)loader->epoch,
                                            (long long)loader->position));
    }
    if (!loader->deferred) {
        loader_make(loader);
    }
    *batch = (td_batch){
        .x = x,
        .y = y,
        .size = td_batch_samples(&loader->plan, loader->position),
        .index = loader->position,
        .samples = loader->order.index + loader->position * loader->plan.batch_size,
    };
    loader->position++;
    return true;
}

bool td_loader_defer(td_loader *loader)
{
    loader->deferred = td_loader_is_resident(loader);
    return loader->deferred;
}

void td_loader_make(td_loader *loader)
{
    if (loader->deferred) {
        loader_make(loader);
    }
}

td_status td_loader_status(const td_loader *loader)
{
    ((td_loader *)(uintptr_t)loader)->failure.unread = false;
    return loader->failure.status;
}

/* ---- statistics and positions ---- */

int64_t td_loader_batches(const td_loader *loader)
{
    return loader->plan.batches;
}

double td_loader_share(const td_loader *loader, int64_t batch, int64_t group)
{
    const td_batch_plan *plan = &loader->plan;
    TD_REQUIRE(batch >= 0 && batch < plan->batches && group > 0, TD_HERE,
               "td_loader_share: batch %lld of %lld, in groups of %lld", (long long)batch,
               (long long)plan->batches, (long long)group);
    int64_t first = batch - batch % group;
    int64_t left = plan->batches - first, samples = 0;
    for (int64_t i = 0; i < group && i < left; i++) {
        samples += td_batch_samples(plan, first + i);
    }
    return (double)td_batch_samples(plan, batch) / (double)samples;
}

const td_dataset *td_loader_dataset(const td_loader *loader)
{
    return loader->plan.dataset;
}

int64_t td_loader_samples(const td_loader *loader)
{
    return loader->plan.samples;
}

double td_loader_wait_seconds(const td_loader *loader)
{
    return loader->maker->waited;
}

bool td_loader_is_resident(const td_loader *loader)
{
    return loader->maker->type->make != NULL;
}

uint64_t td_loader_epoch(const td_loader *loader)
{
    return loader->epoch;
}

int64_t td_loader_position(const td_loader *loader)
{
    return loader->position;
}

void td_loader_seek(td_loader *loader, uint64_t epoch, int64_t batch)
{
    require_read(loader, "td_loader_seek");
    TD_REQUIRE(batch >= 0, TD_HERE, "td_loader_seek: batch %lld", (long long)batch);
    td_loader_rest(loader);
    bool keeps = epoch == loader->epoch && batch > 0 && batch >= loader->order.first;
    if (!keeps) {
        forget_order(loader);
    }
    loader->position = batch < loader->plan.batches ? batch : loader->plan.batches;
    loader->epoch = epoch;
    loader->failure.status = TD_OK;
}
