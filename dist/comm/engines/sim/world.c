/* A simulated job: its ranks, which are threads, and their clocks. */
#include "dist/comm/engines/sim/internal.h"

#include "tensor/extend.h"
#include "tensor/hooks.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>

double td_sim_clock(void)
{
    const td_sim_rank *me = td_sim_me();
    TD_REQUIRE(me != NULL, TD_HERE, "td_sim_clock: this thread is no simulated rank");
    return me->times.clock;
}

/* ---- the clock ---- */

/* A step ends where the optimizer begins. */
static void count_step(td_sim_rank *me)
{
    me->backward = false;
    me->last = me->times;
    if (me->steps++ == 0) {
        me->first = me->times;
    }
}

static void kernel_ran(const td_watched_call *call, void *user)
{
    const td_sim_world *w = user;
    td_sim_rank *me = td_sim_me();
    if (me == NULL || call->span) {
        return;
    }
    bool assumed, optimizer = call->module != NULL && strcmp(call->module, "optimizer") == 0;
    me->backward = me->backward || call->backward;
    if (optimizer && me->backward) {
        count_step(me);
    }
    int cores = w->options.cores;
    double share = cores > 0 ? fmax(1.0, (double)w->options.ranks / cores) : 1.0;
    double seconds = share * td_sim_kernel_cost(&w->costs, call, &assumed);
    me->times.clock += seconds;
    me->kernels += seconds;
    me->assumed += assumed ? seconds : 0.0;
}

static void step_ended(double begin, double end, void *user)
{
    (void)begin, (void)end;
    const td_sim_world *w = user;
    td_sim_rank *me = td_sim_me();
    if (me != NULL) {
        me->times.clock += w->costs.rest;
    }
}

/* ---- ranks ---- */

static void note_failure(td_sim_rank *me, int code)
{
    td_sim_world *w = me->world;
    const char *error = td_last_error();
    pthread_mutex_lock(&w->lock);
    bool first = w->failure.rank < 0 || me->times.clock < w->failure.when ||
                 (me->times.clock == w->failure.when && me->place.rank < w->failure.rank);
    if (first) {
        w->failure.rank = me->place.rank;
        w->failure.when = me->times.clock;
        snprintf(w->failure.message, sizeof w->failure.message,
                 "rank %d ended with exit code %d%s%s", me->place.rank, code,
                 error[0] != '\0' ? ": " : "", error);
    }
    pthread_mutex_unlock(&w->lock);
}

static void *run_rank(void *arg)
{
    static const double ADDRESSES = 0x1p46; /* of a process, for steps */
    td_sim_rank *me = arg;
    td_sim_world *w = me->world;
    td_thread_rank_set(&me->place);
    td_step_limit((size_t)(ADDRESSES / w->options.ranks));
    pthread_mutex_lock(&w->lock);
    td_sim_wait_to_run(me);
    pthread_mutex_unlock(&w->lock);
    int code = w->fn(me->place.rank, w->arg);
    if (code != 0) {
        note_failure(me, code);
    }
    td_dist_destroy();
    td_thread_rank_set(NULL);
    pthread_mutex_lock(&w->lock);
    w->alive--;
    td_sim_stop_running(w);
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* All threads are made first; they wait for `running`. */
static void start_ranks(td_sim_world *w)
{
    static const size_t STACK = 1 << 20;
    sigset_t all, before;
    pthread_attr_t attributes;
    int error = 0, made = 0;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_mutex_lock(&w->lock);
    for (; made < w->options.ranks && error == 0; made += error == 0) {
        td_sim_rank *rank = &w->ranks[made];
        *rank = (td_sim_rank){ .place = { made, w->options.ranks, &td_sim_engine, NULL },
                               .world = w,
                               .dies = made == w->options.killed && w->options.killed_at > 0.0
                                           ? w->options.killed_at
                                           : INFINITY };
        pthread_cond_init(&rank->wake, NULL);
        error = pthread_create(&rank->thread, &attributes, run_rank, rank);
        if (error == 0) {
            td_sim_make_ready(rank);
        }
    }
    TD_REQUIRE(error == 0, TD_NOWHERE,
               "sim: the system allows %d threads, and not %d: raise ulimit -u, or "
               "/proc/sys/kernel/pid_max and threads-max (%s)",
               made, w->options.ranks, strerror(error));
    w->alive = made;
    td_sim_run_next(w);
    pthread_mutex_unlock(&w->lock);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
}

/* ---- the result ---- */

static void add_times(td_sim_times *sum, const td_sim_times *t, double weight)
{
    sum->clock += weight * t->clock;
    sum->waited += weight * t->waited;
    sum->sending += weight * t->sending;
    sum->bytes += weight * t->bytes;
}

static void sum_times(const td_sim_world *w, td_sim_result *result)
{
    double kernels = 0.0, assumed = 0.0;
    *result = (td_sim_result){ .steps = w->ranks[0].steps };
    for (const td_sim_rank *r = w->ranks; r < w->ranks + w->options.ranks; r++) {
        result->whole = r->times.clock > result->whole.clock ? r->times : result->whole;
        kernels += r->kernels;
        assumed += r->assumed;
        if (r->steps > 1) {
            double weight = 1.0 / w->options.ranks / (r->steps - 1);
            add_times(&result->step, &r->last, weight);
            add_times(&result->step, &r->first, -weight);
        }
    }
    result->assumed = kernels > 0.0 ? assumed / kernels : 0.0;
}

td_status td_sim_run(const td_sim_options *options, int (*fn)(int rank, void *arg), void *arg,
                     td_sim_result *result)
{
    TD_REQUIRE(options->ranks > 0 && options->bandwidth > 0.0, TD_NOWHERE,
               "td_sim_run: .ranks and .bandwidth must be above 0");
    td_sim_world w = { .options = *options, .fn = fn, .arg = arg, .places = td_count_cpus() };
    w.failure.rank = -1;
    TD_TRY(td_sim_costs_open(options->kernels, &w.costs));
    w.ranks = calloc((size_t)options->ranks, sizeof *w.ranks);
    if (w.ranks == NULL) {
        free(w.costs.rows);
        return td_fail(TD_E_NOMEM, "sim: no memory for %d ranks", options->ranks);
    }
    td_watcher watcher = { .called = kernel_ran, .user = &w };
    td_step_observer observer = { .ended = step_ended, .user = &w };
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) { /* a rank has one */
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    (void)prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0); /* a step would take 2 MiB of each rank */
    td_share_cpus(options->ranks);
    pthread_mutex_init(&w.lock, NULL);
    td_watch(&watcher);
    td_observe_steps(&observer);
    start_ranks(&w);
    for (td_sim_rank *r = w.ranks; r < w.ranks + options->ranks; r++) {
        pthread_join(r->thread, NULL);
        pthread_cond_destroy(&r->wake);
    }
    td_unwatch(&watcher);
    td_ignore_steps(&observer);
    td_share_cpus(1);
    (void)prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
    sum_times(&w, result);
    td_sim_free_rooms(&w);
    pthread_mutex_destroy(&w.lock);
    free(w.costs.rows);
    free(w.ranks);
    return w.failure.rank >= 0 ? td_fail(TD_E_PEER, "%s", w.failure.message) : TD_OK;
}
