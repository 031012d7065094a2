/* An elastic run: worlds that follow each other, and what a step commits. */
#include "dist/elastic/internal.h"

#include "dist/comm/collectives.h"
#include "dist/comm/group.h"
#include "dist/ddp/ddp.h"
#include "dist/ddp/extra.h"
#include "dist/leaves/leaves.h"
#include "nn/shared/shared.h"
#include "tensor/clock.h"
#include "tensor/extend.h"
#include "tensor/storage.h"
#include "tensor/system/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Seconds: between looks for arrivals. */
static const double ARRIVALS_EVERY = 0.01, CONNECT = 3, TIMEOUT = 60;

/* ---- beginning and end ---- */

static int number_of(const char *name)
{
    const char *text = getenv(name);
    return text != NULL ? atoi(text) : 0;
}

static td_status elastic_defaults(td_elastic_options *o)
{
    bool launched = getenv("TANDEM_ELASTIC") != NULL;
    if (o->host == NULL && launched) {
        o->host = getenv("MASTER_ADDR");
        o->port = number_of("MASTER_PORT");
        o->first = o->first > 0 ? o->first : number_of("WORLD_SIZE");
        o->least = o->least > 0 ? o->least : number_of("TANDEM_ELASTIC");
    }
    TD_CHECK(o->host != NULL, TD_E_ARG,
             "td_elastic_open: there is no store that outlives the ranks: "
             "start the program by tdrun --elastic MIN:MAX, or give .host and "
             ".port");
    TD_TRY(o->strategy != NULL ? td_elastic_can_divide(o) : TD_OK);
    o->first = o->first > 0 ? o->first : 1;
    o->least = o->least > 0 ? o->least : 1;
    o->timeout = o->timeout > 0 ? o->timeout : TIMEOUT;
    o->connect_timeout = o->connect_timeout > 0 ? o->connect_timeout : CONNECT;
    return TD_OK;
}

static td_status elastic_connect(td_elastic *e)
{
    const td_elastic_options *o = &e->options;
    const char *run = getenv("TANDEM_RUN_ID");
    snprintf(e->name, sizeof e->name, "elastic/%.100s/%d", run != NULL ? run : "",
             number_of("TANDEM_ATTEMPT"));
    TD_TRY(td_tcp_store_open(o->host, o->port, o->timeout, &e->base));
    TD_TRY(td_tcp_store_open(o->host, o->port, o->timeout, &e->worlds));
    TD_TRY(td_prefix_store_open(e->base, e->name, &e->store));
    return td_elastic_number(e);
}

static void elastic_free(td_elastic *e)
{
    td_elastic_keep_close(e);
    td_elastic_free_copies(e);
    td_store_close(e->store);
    td_store_close(e->worlds);
    td_store_close(e->base);
    free(e);
}

td_elastic *td_elastic_open_at(td_elastic_options options, td_site at)
{
    TD_REQUIRE(options.state != NULL && options.state->model != NULL &&
                   !td_is_ddp(options.state->model),
               at, "td_elastic_open: .state needs a .model that has not gone through td_ddp");
    TD_REQUIRE(!td_dist_is_initialized(), at,
               "td_elastic_open: td_elastic_meet calls td_dist_init: the program must not");
    td_elastic *e = calloc(1, sizeof *e);
    TD_CHECK_NULL(e != NULL, TD_E_NOMEM, "td_elastic_open: no memory");
    *e = (td_elastic){ .options = options, .step = options.step, .rank = -1 };
    td_status status = elastic_defaults(&e->options);
    status = status == TD_OK ? td_elastic_keep_open(e) : status;
    if (status != TD_OK || elastic_connect(e) != TD_OK) {
        elastic_free(e);
        return NULL;
    }
    return e;
}

/* Out of the world, with all that the model needs. */
static td_status leave(td_elastic *e)
{
    e->stands = false;
    td_status status = TD_OK;
    if (td_dist_is_initialized()) {
        status = td_ddp_leave(e->options.state->model);
        td_dist_destroy();
    }
    return status;
}

td_status td_elastic_close(td_elastic *e)
{
    TD_CHECK(e != NULL, TD_E_ARG, "td_elastic_close: there is no run");
    td_status status = leave(e);
    if (e->status != TD_OK) {
        status = td_fail(e->status, "%s", e->message);
    } else if (!e->over) {
        status = td_fail(TD_E_INTERRUPTED, "the run was closed before it was over");
    }
    elastic_free(e);
    return status;
}

/* ---- worlds ---- */

static void on_error(td_status status, const char *message, void *user)
{
    (void)status, (void)message;
    ((td_elastic *)user)->failed = true;
}

/* td_ddp with the leaves. Optimizers are there already: td_elastic_divide gives them windows. */
static td_status join_world(td_elastic *e)
{
    const td_elastic_options *o = &e->options;
    td_module *model = o->state->model;
    td_ddp_options options = { .model = model,
                               .strategy = td_leaves(o->leaves, .strategy = o->strategy) };
    td_params *params = o->strategy != NULL ? td_params_trained(model) : NULL;
    int hidden = params != NULL ? td_params_hide_state(params) : 0;
    td_status status = td_ddp_join(options, TD_HERE);
    td_status shown = params != NULL ? td_params_show_state(params, hidden) : TD_OK;
    TD_TRY(status);
    td_ddp_on_error(model, on_error, e);
    return shown;
}

static td_status make_world(td_elastic *e)
{
    const td_elastic_options *o = &e->options;
    char name[sizeof e->name + 16];
    snprintf(name, sizeof name, "%s/%d", e->name, e->world);
    td_gathering gathering = {
        .name = name, .connect_timeout = o->connect_timeout, .look = td_elastic_look, .user = e
    };
    TD_TRY(td_dist_init(.store = e->worlds, .rank = e->rank, .world_size = e->members.count,
                        .backend = o->backend, .timeout = o->timeout, .gathering = &gathering));
    TD_TRY(td_elastic_share(e));
    e->step = e->members.step;
    TD_TRY(o->strategy != NULL ? td_elastic_settle_copies(e) : TD_OK);
    TD_TRY(join_world(e));
    return o->strategy != NULL ? td_elastic_divide(e) : TD_OK;
}

static td_status state_lost(const td_elastic *e)
{
    return td_fail(TD_E_PEER,
                   "all processes that had the state of the run have died before world %d; %d new "
                   "one%s cannot go on without it: start the run again from its latest checkpoint "
                   "(tdrun --max-restarts N does)",
                   e->world, e->members.count, e->members.count == 1 ? "" : "s");
}

/* The same processes at the same step: none has died, and a failure that comes again and again is
 * the program's own. */
static td_status check_repeats(td_elastic *e)
{
    enum { MOST = 5 };
    const td_elastic_members *m = &e->members, *b = &e->before;
    bool same = m->count == b->count && m->step == b->step &&
                memcmp(m->ids, b->ids, (size_t)m->count * sizeof *m->ids) == 0;
    e->repeats = same ? e->repeats + 1 : 0;
    e->before = *m;
    TD_CHECK(e->repeats < MOST, TD_E_PEER,
             "the run has failed %d times after step %" PRId64 ", and no process has died: %s",
             MOST, m->step, e->message);
    return TD_OK;
}

/* Whether a collective of the world has failed: a caller that has lost its status, as one that
 * makes a tensor of the group's memory, says TD_E_NOMEM. */
static bool world_is_broken(void)
{
    return td_dist_is_initialized() && td_group_check(td_dist_world()) != TD_OK;
}

/* *again: processes have died or left meanwhile, and another try may do better. */
static td_status next_world(td_elastic *e, bool *again)
{
    *again = false;
    TD_TRY(leave(e));
    TD_TRY(td_store_check(e->store, "over", &e->over));
    TD_TRY(e->over ? TD_OK : td_elastic_agree(e));
    TD_TRY(td_store_check(e->store, "over", &e->over));
    if (e->over) {
        return TD_OK;
    }
    if (e->rank >= 0 && e->members.step < 0) {
        return state_lost(e);
    }
    TD_TRY(check_repeats(e));
    e->failed = false;
    td_status status = e->rank >= 0
                           ? make_world(e)
                           : td_fail(TD_E_PEER, "world %d was made without this process", e->world);
    *again = !e->shards.lost &&
             ((status != TD_OK && world_is_broken()) || status == TD_E_PEER ||
              status == TD_E_NETWORK || status == TD_E_TIMEOUT || status == TD_E_INTERRUPTED);
    e->stands = status == TD_OK;
    return status;
}

bool td_elastic_meet(td_elastic *e)
{
    enum { TRIES = 100 };
    bool again = !e->over && e->status == TD_OK;
    snprintf(e->message, sizeof e->message, "%s", td_last_error());
    for (int tries = 0; again && tries < TRIES; tries++) {
        e->status = next_world(e, &again);
        snprintf(e->message, sizeof e->message, "%s", td_last_error());
    }
    if (!e->stands) {
        (void)leave(e);
        return false;
    }
    td_elastic_keep(e);
    if (e->rank == 0 && e->world == 1 && e->options.strategy != NULL) {
        td_notice("copies of windows, a process's own and another's: %s in each",
                  td_describe_bytes(td_elastic_copy_bytes(e)));
    }
    if (e->rank == 0 && e->world > 1) {
        td_notice("world %d of %d process%s goes on after step %" PRId64, e->world,
                  e->members.count, e->members.count == 1 ? "" : "es", e->step);
    }
    return true;
}

bool td_elastic_stands(const td_elastic *e)
{
    return e->stands;
}

int64_t td_elastic_step(const td_elastic *e)
{
    return e->step;
}

bool td_elastic_failed(td_elastic *e)
{
    e->failed = e->failed || world_is_broken();
    if (e->failed) {
        td_elastic_restore(e);
        e->stands = false;
    }
    return e->failed;
}

/* ---- steps ---- */

/* Sums over all ranks whether processes have come: a rank that gets the sum knows that all have
 * come to the end of the step. Rank 0 looks for arrivals. */
static td_status sum_arrivals(td_elastic *e, bool *come)
{
    *come = false;
    if (e->rank == 0 && td_clock() > e->looked + ARRIVALS_EVERY) {
        TD_TRY(td_elastic_arrivals(e, come));
        e->looked = td_clock();
    }
    double sum = *come;
    TD_TRY(td_all_reduce_numbers(NULL, &sum, 1));
    *come = sum > 0;
    return TD_OK;
}

static bool undo_step(td_elastic *e)
{
    td_elastic_restore(e);
    e->stands = false;
    e->failed = true;
    return false;
}

static bool elastic_count(td_elastic *e, bool come)
{
    e->step++;
    td_elastic_keep(e);
    e->stands = !come;
    return true;
}

bool td_elastic_commit(td_elastic *e)
{
    bool come = false;
    if (!e->stands || e->failed || sum_arrivals(e, &come) != TD_OK) {
        return undo_step(e);
    }
    e->shards.come = come;
    return e->options.strategy != NULL || elastic_count(e, come);
}

bool td_elastic_settle(td_elastic *e)
{
    if (e->options.strategy == NULL) {
        return true;
    }
    bool copied = e->stands && !e->failed && td_elastic_copy(e, e->step + 1) == TD_OK;
    return copied ? elastic_count(e, e->shards.come) : undo_step(e);
}

bool td_elastic_finish(td_elastic *e)
{
    bool all = e->stands && td_barrier(NULL) == TD_OK;
    e->stands = false;
    e->over = all && td_store_set_text(e->store, "over", "1") == TD_OK;
    return e->over;
}
