/* Runs processes of an elastic run, kills and replaces them. */
#include "tests/dist/elastic_run.h"

#include "dist/comm/collectives.h"
#include "dist/comm/store/tcp.h"
#include "dist/ddp/ddp.h"
#include "dist/leaves/leaves.h"
#include "nn/io/fingerprint.h"
#include "nn/shared/shared.h"
#include "tandem.h"
#include "tensor/clock.h"
#include "tensor/extend.h"
#include "tests/help/dist_procs.h"
#include "tests/help/sanitized.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST = 1200, FEATURES = 16, CLASSES = 5, SAMPLES = 3, LENGTH = 53 };

/* What the processes and the test share. */
typedef struct elastic_board {
    elastic_case c;
    _Atomic int port;
    _Atomic int rank_pids[PROCS_MAX];
    _Atomic int64_t step;
    _Atomic double stepped; /* when the latest step was committed */
    _Atomic bool struck, befriended, again, gave, moved_on, played;
    _Atomic uint64_t hash;
    _Atomic bool differ;
    _Atomic int worlds, adoptions;
    char message[1024];
} elastic_board;

static elastic_board *board;
static void (*player)(td_store *store);

/* ---- a process ---- */

static td_module *elastic_net(void)
{
    td_manual_seed(1);
    td_module *first = td_nn_sequential(td_nn_linear(FEATURES, 40), td_nn_batch_norm2d(40),
                                        td_nn_relu(), td_nn_dropout(0.2));
    td_module *second = td_nn_sequential(td_nn_linear(40, 33), td_nn_gelu());
    return td_nn_sequential(first, second, td_nn_linear(33, CLASSES));
}

static td_batch elastic_samples(int64_t size, uint64_t seed)
{
    td_generator g;
    td_generator_seed(&g, seed);
    td_batch batch = { .x = td_new(TD_SHAPE(size, FEATURES), TD_F32, TD_CPU),
                       .y = td_new(TD_SHAPE(size), TD_I64, TD_CPU),
                       .size = size };
    td_normal_(batch.x, 0, 1, &g);
    int64_t *labels = td_data_rw(batch.y);
    for (int64_t i = 0; i < size; i++) {
        labels[i] = td_random_int(&g, 0, CLASSES);
    }
    return batch;
}

typedef struct elastic_process {
    td_module *net;
    td_optim *optim;
    td_elastic *run;
    td_dataset *data;
    td_loader *loader;  /* of this world; NULL: samples are made */
    td_generator draws; /* the loader's: each loader draws from it */
} elastic_process;

static void strike(elastic_when when, int64_t step)
{
    const elastic_case *c = &board->c;
    int rank = td_dist_rank();
    bool first = board->worlds <= c->ranks; /* all are in their first world */
    bool meant = c->victim == rank || (c->victim < 0 && rank > 0 && first);
    bool with = c->friend > 0 && c->friend == rank;
    if (c->when != when || c->at != step || !(meant || with) ||
        (with && atomic_exchange(&board->befriended, true)) ||
        (!with && c->victim >= 0 && atomic_exchange(&board->struck, true))) {
        return;
    }
    raise(c->stops ? SIGSTOP : SIGKILL);
}

/* ---- td_zero, in which a process may end itself ---- */

typedef struct mortal_zero {
    td_strategy head;
    td_zero_options zero;
} mortal_zero;

static void strike_again(elastic_when then)
{
    const elastic_case *c = &board->c;
    if (c->then == then && c->second == td_dist_rank() && board->struck &&
        !atomic_exchange(&board->again, true)) {
        raise(SIGKILL);
    }
}

static td_divided mortal_check(const td_strategy *self, const td_ddp_options *ddp, td_site at)
{
    const td_strategy *zero = &((const mortal_zero *)self)->zero.strategy;
    return zero->type->check(zero, ddp, at);
}

static void mortal_describe(const td_strategy *self, FILE *out)
{
    const td_strategy *zero = &((const mortal_zero *)self)->zero.strategy;
    zero->type->describe(zero, out);
}

static void (*zero_meet)(void *user);

/* Before and after windows are brought. */
static void mortal_meet(void *user)
{
    static int meetings;
    strike_again(++meetings % 2 == 1 ? ELASTIC_JOINED : ELASTIC_BROUGHT);
    if (zero_meet != NULL) {
        zero_meet(user);
    }
}

static td_status mortal_open(const td_strategy *self, td_ddp_state *s)
{
    const td_strategy *zero = &((const mortal_zero *)self)->zero.strategy;
    TD_TRY(zero->type->open(zero, s));
    strike_again(ELASTIC_JOINING);
    if (board->struck) {
        zero_meet = s->params->peers.meet;
        s->params->peers.meet = mortal_meet;
    }
    return TD_OK;
}

static const td_strategy_type mortal_type = { mortal_check, mortal_describe, mortal_open };

/* Ends itself while copies are exchanged. */
static void strike_in_exchange(elastic_process *p, int64_t step)
{
    strike(ELASTIC_UPDATED, step);
    const elastic_case *c = &board->c;
    int rank = td_dist_rank(), ranks = td_dist_world_size(), before = (rank + ranks - 1) % ranks;
    bool takes = c->when == ELASTIC_EXCHANGED;
    if ((!takes && c->when != ELASTIC_SENT) || c->at != step || c->victim != rank ||
        board->struck) {
        return;
    }
    td_params *params = td_parameters(p->net);
    td_tensor *own = td_new(TD_SHAPE(td_params_export_bytes(params)), TD_U8, TD_CPU);
    td_tensor *come = td_new(TD_SHAPE(td_params_export_bytes(params)), TD_U8, TD_CPU);
    td_work *sent, *taken;
    td_params_export(params, td_data_rw(own));
    REQUIRE_OK(td_send(NULL, own, (rank + 1) % ranks, &sent));
    if (takes) {
        REQUIRE_OK(td_recv(NULL, come, before, &taken));
        REQUIRE_OK(td_work_wait(taken, 0));
    }
    REQUIRE_OK(td_work_wait(sent, 0));
    strike(c->when, step);
}

static void open_loader(elastic_process *p)
{
    td_deal deal = td_leaf_deal(p->net, SAMPLES);
    td_generator_seed(&p->draws, 5);
    p->loader =
        td_loader_open(p->data, .batch_size = SAMPLES * deal.parts, .generator = &p->draws,
                       .sampler = td_distributed_sampler(.deal = deal, .shuffle = true, .seed = 3));
    REQUIRE(p->loader != NULL);
    int64_t batches = td_loader_batches(p->loader), step = td_elastic_step(p->run);
    td_loader_seek(p->loader, (uint64_t)(step / batches), step % batches);
}

static void next_batch(elastic_process *p, td_batch *all)
{
    while (!td_loader_next(p->loader, all)) {
        REQUIRE_OK(td_loader_status(p->loader));
    }
}

static void learn_step(elastic_process *p)
{
    int64_t step = td_elastic_step(p->run);
    td_batch all;
    (void)td_random_i63(td_default_generator()); /* as a module's forward may */
    if (p->loader != NULL) {
        next_batch(p, &all);
    }
    strike(ELASTIC_BEFORE_STEP, step);
    for (int leaf; (leaf = td_leaf_next(p->net)) >= 0;) {
        td_batch own = { 0 };
        if (p->loader == NULL) {
            own = elastic_samples(SAMPLES, (uint64_t)(step * 1000 + leaf));
        }
        TD_STEP {
            td_batch batch = p->loader != NULL ? td_leaf_batch(p->net, &all) : own;
            td_backward(td_cross_entropy(td_forward(p->net, batch.x), batch.y));
        }
        td_free(own.x);
        td_free(own.y);
    }
    if (board->c.pause > 0) {
        td_sleep(board->c.pause);
    }
    if (board->c.differs && step == board->c.at) {
        double numbers[2] = { 0 };
        (void)td_all_reduce_numbers(NULL, numbers, td_dist_rank() == 0 ? 1 : 2);
    }
    strike(ELASTIC_BEFORE_COMMIT, step);
    if (td_elastic_commit(p->run)) {
        strike(ELASTIC_BEFORE_UPDATE, step);
        td_optim_step(p->optim);
        strike_in_exchange(p, step);
        if (!td_elastic_settle(p->run)) {
            return;
        }
        board->step = step + 1;
        board->stepped = td_clock();
        strike(ELASTIC_AFTER_STEP, step);
    }
}

static void finish_run(elastic_process *p)
{
    td_fingerprints bits;
    uint64_t none = 0;
    td_status status =
        td_fingerprint(&bits, .model = p->net, .optim = p->optim, .with_random = true);
    if (status != TD_OK && td_elastic_failed(p->run)) {
        return; /* ranks take it together */
    }
    REQUIRE_OK(status);
    if (!atomic_compare_exchange_strong(&board->hash, &none, bits.all) && none != bits.all) {
        board->differ = true;
    }
    td_fingerprints_free(&bits);
    strike(ELASTIC_FINISHED, board->c.at);
    (void)td_elastic_finish(p->run);
}

/* In a process that has taken up the state. */
static td_status on_adopted(const char *path, void *user)
{
    (void)path, (void)user;
    int number = board->adoptions++;
    if (number < board->c.stillborn) {
        struct itimerval soon = { .it_value.tv_usec = 1 + 150 * number };
        setitimer(ITIMER_REAL, &soon, NULL); /* SIGALRM ends it */
    }
    if (board->c.donor && !atomic_exchange(&board->gave, true)) {
        kill(board->rank_pids[0], SIGKILL);
    }
    return TD_OK;
}

static int run_process(void)
{
    const elastic_case *c = &board->c;
    elastic_process p = { .net = elastic_net() };
    p.optim = td_sgd(td_parameters(p.net), .lr = 0.05, .momentum = 0.9, .nesterov = true);
    td_checkpoint_options state = { .model = p.net, .optim = p.optim };
    mortal_zero mortal = { { &mortal_type },
                           { { &td_zero_type }, (td_shard)c->stage, .gathers = c->gathers } };
    p.run = td_elastic_open(&state, .strategy = c->stage > 0 ? &mortal.head : NULL,
                            .leaves = c->leaves, .host = "127.0.0.1", .port = board->port,
                            .first = c->ranks, .timeout = c->timeout > 0 ? c->timeout : 20,
                            .connect_timeout = TD_SANITIZED ? 10 : 3, .backend = c->backend,
                            .adopted = on_adopted);
    REQUIRE(p.run != NULL);
    td_batch samples = elastic_samples(LENGTH, 7);
    p.data = td_tensor_dataset(samples.x, samples.y);
    while (td_elastic_meet(p.run)) {
        board->rank_pids[td_dist_rank()] = getpid();
        board->worlds++;
        if (c->loads) {
            open_loader(&p);
        }
        while (td_elastic_stands(p.run) && td_elastic_step(p.run) < c->steps) {
            learn_step(&p);
        }
        if (td_elastic_stands(p.run)) {
            finish_run(&p);
        }
        td_loader_close(p.loader);
        p.loader = NULL;
    }
    td_status status = td_elastic_close(p.run);
    if (status != TD_OK) {
        snprintf(board->message, sizeof board->message, "%s", td_last_error());
        fprintf(stderr, "%s\n", td_last_error());
    }
    td_optim_free(p.optim);
    td_module_free(p.net);
    td_dataset_free(p.data);
    td_free(samples.x);
    td_free(samples.y);
    return status == TD_OK ? 0 : 7;
}

/* ---- the store, in a process of its own: a test that forks has no threads ---- */

static int run_store(void)
{
    td_token token;
    td_tcp_server *server;
    REQUIRE_OK(td_token_of_environment(&token));
    REQUIRE_OK(td_tcp_server_open("127.0.0.1", 0, &token, &server));
    board->port = td_tcp_server_port(server);
    while (pause() < 0) {
    }
    return 0;
}

/* ---- the test ---- */

typedef struct elastic_parent {
    pid_t store;
    pid_t pids[MOST];                          /* 0: has ended, and was waited for */
    int started, alive, owed, killed, waiting; /* owed: replacements that are still to start */
    double deaths[MOST], recovered[MOST];      /* since the death that was waited for */
    elastic_result result;
} elastic_parent;

static pid_t start_child(int (*fn)(void))
{
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        static const int caught[] = { SIGSEGV, SIGILL, SIGFPE, SIGBUS, SIGABRT, SIGSYS };
        for (size_t i = 0; i < sizeof caught / sizeof caught[0]; i++) {
            signal(caught[i], SIG_DFL);
        }
        exit(fn());
    }
    return pid;
}

static void start_process(elastic_parent *p)
{
    assert_true(p->started < MOST);
    p->pids[p->started++] = start_child(run_process);
    p->alive++;
}

static void note_death(elastic_parent *p)
{
    if (p->killed < MOST) {
        p->deaths[p->killed] = td_clock();
        p->recovered[p->killed++] = -1;
    }
}

/* Waits for those that have ended; replaces those that a signal has ended. */
static void reap_all(elastic_parent *p)
{
    for (int i = 0; i < p->started; i++) {
        int status;
        if (p->pids[i] == 0 || waitpid(p->pids[i], &status, WNOHANG) != p->pids[i]) {
            continue;
        }
        p->pids[i] = 0;
        p->alive--;
        p->result.failed += WIFEXITED(status) && WEXITSTATUS(status) != 0;
        if (WIFSIGNALED(status)) {
            note_death(p);
            p->owed += board->c.replaced;
        }
    }
}

static void replace(elastic_parent *p)
{
    for (; p->owed > 0 && (player == NULL || board->played); p->owed--) {
        start_process(p);
    }
}

static void look_at_recovery(elastic_parent *p)
{
    double stepped = board->stepped;
    for (; p->waiting < p->killed && stepped > p->deaths[p->waiting]; p->waiting++) {
        p->recovered[p->waiting] = stepped - p->deaths[p->waiting];
    }
}

/* Continues who has stopped itself when the others have made two more steps. */
static void continue_stopped(elastic_parent *p)
{
    const elastic_case *c = &board->c;
    if (c->stops && board->struck && board->step > c->at + 2 && !board->moved_on) {
        board->moved_on = true;
        for (int i = 0; i < p->started; i++) {
            if (p->pids[i] != 0) {
                kill(p->pids[i], SIGCONT);
            }
        }
    }
}

static bool has_rank(pid_t pid)
{
    bool has = false;
    for (int rank = 0; rank < board->c.ranks; rank++) {
        has = has || board->rank_pids[rank] == pid;
    }
    return has;
}

static void kill_one(elastic_parent *p)
{
    int place = rand() % p->alive; /* the generator of the C library, which only kills use */
    for (int i = 0; i < p->started; i++) {
        if (p->pids[i] != 0 && place-- == 0) {
            kill(p->pids[i], SIGKILL);
            p->result.first_killed += board->rank_pids[0] == p->pids[i];
            return;
        }
    }
}

/* While the run has not gone on: the newest process, if it is in no world yet. */
static bool kill_newcomer(elastic_parent *p)
{
    pid_t newest = p->pids[p->started - 1];
    if (!board->c.replaced || newest == 0 || has_rank(newest)) {
        return false;
    }
    kill(newest, SIGKILL);
    p->result.joining_killed++;
    return true;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void end_all(elastic_parent *p)
{
    kill(p->store, SIGKILL);
    waitpid(p->store, NULL, 0);
    for (int i = 0; i < p->started; i++) {
        if (p->pids[i] != 0) {
            kill(p->pids[i], SIGKILL);
            waitpid(p->pids[i], NULL, 0);
        }
    }
}

static void run_all(elastic_parent *p, double limit)
{
    const elastic_case *c = &board->c;
    double begin = td_clock(), next = 0;
    int kills = 0;
    while (p->alive + p->owed > 0 && td_clock() < begin + limit) {
        reap_all(p);
        replace(p);
        look_at_recovery(p);
        continue_stopped(p);
        bool ready = !c->paced || p->waiting == p->killed;
        bool due = kills < c->kills && board->step > 1 && board->hash == 0 && p->alive > 1;
        if (!ready) {
            next = td_clock() + c->least;
            kills += kills < c->kills && rand() % 256 == 0 && kill_newcomer(p);
        } else if (due && td_clock() > next) {
            if (next > 0) {
                kill_one(p);
                kills++;
            }
            next = td_clock() + c->least + (c->most - c->least) * rand() / RAND_MAX;
        }
        td_sleep(0.0005);
    }
}

void elastic_play(void (*fn)(td_store *store))
{
    player = fn;
}

void elastic_played(void)
{
    board->played = true;
}

static int run_player(void)
{
    td_store *base, *store;
    REQUIRE_OK(td_tcp_store_open("127.0.0.1", board->port, 20, &base));
    REQUIRE_OK(td_prefix_store_open(base, "elastic//0", &store));
    player(store);
    td_store_close(store);
    td_store_close(base);
    return 0;
}

elastic_result elastic_run(const elastic_case *c, double limit)
{
    static elastic_parent p;
    char text[TD_TOKEN_TEXT];
    td_token token;
    assert_int_equal(td_token_make(&token), TD_OK);
    td_token_text(&token, text);
    setenv("TANDEM_TOKEN", text, 1);
    setenv("OMP_NUM_THREADS", "1", 1);
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(board != MAP_FAILED);
    board->c = *c;
    p = (elastic_parent){ .store = start_child(run_store) };
    while (board->port == 0 && waitpid(p.store, NULL, WNOHANG) == 0) {
        td_sleep(0.001);
    }
    assert_true(board->port != 0);
    srand(c->seed);
    if (player != NULL) {
        p.pids[p.started++] = start_child(run_player);
        p.alive++;
    }
    for (int r = 0; r < c->ranks - (player != NULL); r++) {
        start_process(&p);
    }
    run_all(&p, TD_SANITIZED ? 5 * limit : limit);
    int left = p.alive;
    end_all(&p);
    elastic_result result = p.result;
    result.started = p.started;
    result.worlds = board->worlds;
    snprintf(result.message, sizeof result.message, "%s", board->message);
    result.hash = board->hash;
    qsort(p.recovered, (size_t)p.waiting, sizeof(double), by_value);
    result.median = p.waiting > 0 ? p.recovered[p.waiting / 2] : 0;
    result.longest = p.waiting > 0 ? p.recovered[p.waiting - 1] : 0;
    bool differ = board->differ;
    int64_t step = board->step;
    munmap(board, sizeof *board);
    player = NULL;
    if (left > 0) {
        fail_msg("%d processes still run after %g s, at step %lld: %s", left, limit,
                 (long long)step, result.message);
    }
    assert_false(differ);
    procs_assert_nothing_left();
    return result;
}

elastic_result elastic_require_storm(elastic_case c, double limit)
{
    const elastic_case quiet = { .ranks = 1, .leaves = c.leaves, .steps = c.steps };
    uint64_t hash = elastic_run(&quiet, limit).hash;
    elastic_result r = elastic_run(&c, limit);
    print_message("# %d processes in %d memberships, %d kills of rank 0, %d of newcomers without a "
                  "rank; from a death to the next step: median %.0f ms, at most %.0f ms\n",
                  r.started, r.worlds, r.first_killed, r.joining_killed, r.median * 1e3,
                  r.longest * 1e3);
    if (hash == 0 || r.failed > 0 || r.hash != hash || r.started < c.ranks + c.kills / 2) {
        fail_msg("%d processes failed (%s); %016llx, and not %016llx", r.failed, r.message,
                 (unsigned long long)r.hash, (unsigned long long)hash);
    }
    return r;
}
