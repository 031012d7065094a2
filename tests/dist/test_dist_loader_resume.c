/* Checkpoints in mid-epoch on several ranks: on equally many the resumed run makes the same bits;
 * on more or fewer, each sample of the epoch comes exactly once. */
#include "tensor/extend.h"
#include "tests/dist/ddp_job.h"
#include "tests/help/dist_procs.h"
#include "tests/help/temp_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

static const double limit = 60.0;

enum { SAMPLES = 48, BATCH = 2, EPOCHS = 2, MOST_STEPS = EPOCHS * SAMPLES / BATCH, RANKS = 4 };

/* SHUFFLED: as a program that was begun alone has it; on several ranks it is DISTRIBUTED. */
typedef enum order_kind { DISTRIBUTED, SHUFFLED, OWN, ORDERS } order_kind;

/* In shared memory. */
typedef struct trail {
    _Atomic int seen[EPOCHS][SAMPLES];
    uint64_t hash[RANKS][MOST_STEPS]; /* of weights and what accumulates, after each batch */
} trail;

typedef struct job_case {
    order_kind order;
    int workers, accumulate;
    int stop;    /* batches until all save and end; 0: not */
    int resumes; /* after so many batches of the run that was saved; 0: not */
    bool same;   /* on as many ranks as were saved */
    char path[512];
    trail *left;
} job_case;

/* Every rank has the same order of all samples. */
static int64_t own_order(td_sampler *sampler, uint64_t epoch, int64_t length, int64_t *index)
{
    (void)sampler, (void)epoch;
    td_random_permutation(td_default_generator(), index, length);
    return length;
}

static int64_t own_count(const td_sampler *sampler, int64_t length)
{
    (void)sampler;
    return length;
}

static void own_free(td_sampler *sampler)
{
    free(sampler);
}

static td_loader *open_loader(const job_case *c, const td_dataset *data)
{
    td_deal deal = { .rank = td_dist_rank(), .world_size = td_dist_world_size() };
    if (c->order == OWN) {
        td_sampler *s = malloc(sizeof *s);
        REQUIRE(s != NULL);
        *s = (td_sampler){ .order = own_order, .count = own_count, .free = own_free };
        return td_loader_open(data, .batch_size = BATCH, .workers = c->workers, .sampler = s,
                              .deal = deal);
    }
    if (c->order == SHUFFLED && deal.world_size == 1) {
        return td_loader_open(data, .batch_size = BATCH, .workers = c->workers, .shuffle = true);
    }
    return td_loader_open(data, .batch_size = BATCH, .workers = c->workers,
                          .sampler = td_distributed_sampler(.shuffle = true, .seed = 3));
}

typedef struct run {
    td_module *net;
    td_optim *optim;
    td_dataset *data;
    td_loader *loader;
} run;

static void open_run(run *r, const job_case *c)
{
    td_manual_seed(c->resumes > 0 ? 77 : 5);
    r->net = td_ddp(td_nn_sequential(td_nn_flatten(), td_nn_linear(3072, 6), td_nn_relu(),
                                     td_nn_dropout(0.2), td_nn_linear(6, 10)));
    REQUIRE(r->net != NULL);
    r->optim = td_sgd(td_parameters(r->net), .lr = 0.05, .momentum = 0.9);
    REQUIRE_OK(td_synthetic_images(SAMPLES, 3, &r->data));
    r->loader = open_loader(c, r->data);
    REQUIRE(r->optim != NULL && r->loader != NULL);
}

static void close_run(run *r)
{
    td_loader_close(r->loader);
    td_optim_free(r->optim);
    td_module_free(r->net);
    td_dataset_free(r->data);
}

/* All ranks save if each has something of its own. */
static void save(const run *r, const job_case *c)
{
    td_checkpoint_options o = {
        .path = c->path, .model = r->net, .optim = r->optim, .loader = r->loader
    };
    if (td_dist_rank() == 0 || td_saves_together(r->net)) {
        REQUIRE_OK(td_checkpoint_save_at(o, TD_HERE));
    }
    REQUIRE_OK(td_barrier(NULL));
}

static void load(const run *r, const job_case *c)
{
    td_checkpoint_options o = {
        .path = c->path, .model = r->net, .optim = r->optim, .loader = r->loader
    };
    REQUIRE_OK(td_checkpoint_load_at(o, TD_HERE));
}

/* Gradients of a group of batches add up on each rank; the last batch of a group exchanges them. */
static void train(run *r, const job_case *c, const td_batch *batch, int number)
{
    bool last = (number + 1) % c->accumulate == 0;
    if (!last) {
        td_ddp_no_sync_begin(r->net);
    }
    TD_STEP {
        td_backward(td_cross_entropy(td_forward(r->net, batch->x), batch->y));
    }
    if (!last) {
        td_ddp_no_sync_end(r->net);
    } else {
        td_optim_step(r->optim);
        td_zero_grad(r->optim);
    }
}

static int run_rank(int rank, int size, void *arg)
{
    const job_case *c = arg;
    procs_init(rank, size, 20.0);
    run r;
    open_run(&r, c);
    int number = c->resumes;
    if (c->resumes > 0) {
        load(&r, c);
    }
    while (td_loader_epoch(r.loader) < EPOCHS && (c->stop == 0 || number < c->stop)) {
        uint64_t epoch = td_loader_epoch(r.loader);
        for (td_batch b; (c->stop == 0 || number < c->stop) && td_loader_next(r.loader, &b);) {
            for (int64_t i = 0; i < b.size; i++) {
                c->left->seen[epoch][b.samples[i]]++;
            }
            train(&r, c, &b, number++);
            uint64_t hash = job_hash(r.net);
            REQUIRE(job_all_same(hash));
            if (c->same && c->resumes > 0) {
                REQUIRE(hash == c->left->hash[rank][number - 1]);
            } else if (c->same && c->stop == 0) {
                c->left->hash[rank][number - 1] = hash;
            }
        }
        REQUIRE_OK(td_loader_status(r.loader));
    }
    if (c->stop > 0) {
        save(&r, c);
    }
    close_run(&r);
    td_dist_destroy();
    return 0;
}

static void check_seen(trail *t, int from, int to, const job_case *c)
{
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        for (int i = 0; i < SAMPLES; i++) {
            if (t->seen[epoch][i] != 1) {
                fail_msg("%d to %d ranks, order %d: sample %d came %d times in epoch %d", from, to,
                         c->order, i, (int)t->seen[epoch][i], epoch);
            }
            t->seen[epoch][i] = 0;
        }
    }
}

/* A run in one go on `from` ranks, if it is to be compared; one that stops, and goes on on `to`. */
static void check(int from, int to, job_case c)
{
    c.same = from == to;
    c.left = mmap(NULL, sizeof *c.left, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(c.left != MAP_FAILED);
    snprintf(c.path, sizeof c.path, "%s", temp_path("run.safetensors"));
    int stop = c.stop;
    if (c.same) {
        c.stop = 0;
        procs_succeed(from, limit, run_rank, &c);
        check_seen(c.left, from, to, &c);
    }
    c.stop = stop;
    procs_succeed(from, limit, run_rank, &c);
    c.stop = 0;
    c.resumes = stop;
    procs_succeed(to, limit, run_rank, &c);
    check_seen(c.left, from, to, &c);
    munmap(c.left, sizeof *c.left);
}

static void test_any_number_of_ranks(void **state)
{
    (void)state;
    static const int ranks[] = { 1, 2, 4 };
    for (int i = 0; i < 9; i++) {
        int from = ranks[i / 3], to = ranks[i % 3];
        for (int order = 0; order < ORDERS; order++) {
            check(from, to,
                  (job_case){ .order = order,
                              .workers = (i + order) % 2 * 4,
                              .accumulate = 1,
                              .stop = order == OWN ? SAMPLES / BATCH / from + 2
                                                   : (from == 4 ? 4 : 6) });
        }
    }
}

static void test_in_an_accumulation(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks *= 2) {
        check(ranks, ranks, (job_case){ .accumulate = 3, .workers = 4, .stop = 4 });
        check(ranks, ranks, (job_case){ .accumulate = 3, .order = SHUFFLED, .stop = 5 });
    }
    for (int i = 0; i < 9; i++) {
        int from = 1 << i / 3, to = 1 << i % 3;
        if (from != to) {
            check(from, to, (job_case){ .accumulate = 3, .stop = 4, .order = i % 2 });
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_any_number_of_ranks, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_in_an_accumulation, temp_folder_setup,
                                        temp_folder_teardown),
    };
    return cmocka_run_group_tests_name("dist: loaders that go on", tests, NULL, NULL);
}
