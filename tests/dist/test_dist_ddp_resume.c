/* A distributed run that is killed in the middle of an epoch and resumed equals one that was not,
 * bit for bit from the first step on, and its buckets are in their final order at once. */
#include "nn/params.h"
#include "dist/ddp/extra.h"
#include "tests/dist/ddp_job.h"
#include "tests/help/dist_procs.h"
#include "tests/help/temp_folder.h"
#include "dist/ddp/codec.h"
#include "nn/extra/ema.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

static const double limit = 60.0;

enum { SAMPLES = 60, BATCH = 4, EPOCHS = 2, MOST_STEPS = 20, MOST_PARAMS = 16 };

/* What the run that is not killed leaves, for the resumed one. In shared memory. */
typedef struct trail {
    uint64_t hash[MOST_STEPS]; /* after each step */
    int order[MOST_PARAMS];    /* of the parameters in memory */
    int64_t bucket_bytes[MOST_PARAMS];
    int buckets;
} trail;

typedef struct resume_case {
    const char *hook;
    bool adam, early; /* early: loaded before the model is wrapped */
    bool ema;         /* with averages of the weights */
    bool powersgd;    /* which remembers what it has not sent */
    char path[512];
    trail *left;
    int stop;     /* killed after so many steps, when rank 0 has saved; 0: not */
    bool resumes; /* from there */
} resume_case;

typedef struct run {
    td_module *net;
    td_optim *optim;
    td_ema *ema;
    td_dataset *data;
    td_loader *loader;
    int step;
} run;

/* Of everything that has state. */
static td_module *make_net(void)
{
    return td_nn_sequential(td_nn_conv2d(3, 6, .kernel = 4, .stride = 4), td_nn_batch_norm2d(6),
                            td_nn_relu(), td_nn_conv2d(6, 8, .kernel = 4, .stride = 4),
                            td_nn_flatten(), td_nn_dropout(0.3), td_nn_linear(32, 10));
}

static void load(const resume_case *c, const run *r)
{
    td_checkpoint_options checkpoint = {
        .path = c->path, .model = r->net, .optim = r->optim, .ema = r->ema, .with_random = true
    };
    REQUIRE_OK(td_checkpoint_load_at(checkpoint, TD_HERE));
}

static void make_ema(const resume_case *c, run *r)
{
    if (c->ema) {
        r->ema = td_ema_new(r->net, .decay = 0.9, .warmup = true);
        REQUIRE(r->ema != NULL);
    }
}

static td_optim *make_optim(const resume_case *c, td_module *net)
{
    td_optim *optim = c->adam ? td_adam(td_parameters(net), .lr = 0.01)
                              : td_sgd(td_parameters(net), .lr = 0.05, .momentum = 0.9);
    REQUIRE(optim != NULL);
    return optim;
}

static void open_run(run *r, const resume_case *c)
{
    *r = (run){ .step = 0 };
    td_manual_seed(c->resumes ? 77 : 5); /* what is resumed must not depend on it */
    r->net = make_net();
    if (c->resumes && c->early) {
        r->optim = make_optim(c, r->net);
        make_ema(c, r);
        load(c, r);
    }
    r->net = td_ddp(r->net, .bucket_cap_mb = 0.001, .comm_hook = c->powersgd ? NULL : c->hook,
                    .codec = c->powersgd ? td_powersgd(.rank = 2, .start = 3) : NULL);
    REQUIRE(r->net != NULL);
    if (r->optim == NULL) {
        r->optim = make_optim(c, r->net);
        make_ema(c, r);
    }
    REQUIRE_OK(td_synthetic_images(SAMPLES, 3, &r->data));
    REQUIRE_OK(td_dataset_set_transform(
        r->data, &(td_image_transform){ .crop_padding = 4, .flip = true, .seed = 9 }));
    td_sampler *sampler = td_distributed_sampler(.shuffle = true);
    r->loader = td_loader_open(r->data, .batch_size = BATCH, .sampler = sampler, .workers = 1);
    REQUIRE(r->loader != NULL);
    if (c->resumes) {
        if (!c->early) {
            load(c, r);
        }
        r->step = c->stop;
    }
}

static void close_run(run *r)
{
    td_loader_close(r->loader);
    td_optim_free(r->optim);
    td_ema_free(r->ema);
    td_module_free(r->net);
    td_dataset_free(r->data);
}

/* Rank 0 saves, or all with what each alone has; and then every process is killed. */
static void stop_here(const resume_case *c, const run *r)
{
    td_checkpoint_options checkpoint = {
        .path = c->path, .model = r->net, .optim = r->optim, .ema = r->ema, .with_random = true
    };
    REQUIRE(td_saves_together(r->net) == c->powersgd);
    if (td_dist_rank() == 0 || c->powersgd) {
        REQUIRE_OK(td_checkpoint_save_at(checkpoint, TD_HERE));
    }
    REQUIRE_OK(td_barrier(NULL));
    kill(getpid(), SIGKILL);
}

static void leave_layout(trail *t, td_module *net)
{
    td_ddp_stats f = td_ddp_last_stats(net);
    td_params *params = td_parameters(net);
    t->buckets = f.buckets;
    memcpy(t->bucket_bytes, f.bucket_bytes, sizeof t->bucket_bytes);
    memcpy(t->order, params->order, (size_t)td_params_count(params) * sizeof(int));
}

/* It is as the other run left it. */
static void check_layout(const trail *t, td_module *net)
{
    trail here;
    memset(&here, 0, sizeof here);
    leave_layout(&here, net);
    REQUIRE(td_ddp_last_stats(net).rebuilt);
    REQUIRE(here.buckets == t->buckets && here.buckets > 2);
    REQUIRE(memcmp(here.bucket_bytes, t->bucket_bytes, sizeof here.bucket_bytes) == 0);
    REQUIRE(memcmp(here.order, t->order, sizeof here.order) == 0);
}

/* What comes from a checkpoint has its buckets from the first backward on. */
static void train(const resume_case *c, run *r, const td_batch *batch)
{
    td_step_begin();
    td_zero_grad(r->optim);
    td_tensor *loss = td_cross_entropy(td_forward(r->net, batch->x), batch->y);
    if (c->resumes) {
        check_layout(c->left, r->net);
    }
    td_backward(loss);
    td_clip_grad_norm(td_parameters(r->net), 0.5);
    td_optim_step(r->optim);
    if (r->ema != NULL) {
        td_ema_update(r->ema);
    }
    td_step_end();
    r->step++;
}

/* Of weights and averages. */
static uint64_t hash_of(run *r)
{
    uint64_t hash = job_hash(r->net);
    if (r->ema != NULL) {
        td_ema_swap(r->ema);
        hash = hash * 31 + job_hash(r->net);
        td_ema_swap(r->ema);
    }
    return hash;
}

static void after_step(const resume_case *c, run *r)
{
    uint64_t hash = hash_of(r);
    REQUIRE(job_all_same(hash));
    if (c->resumes) {
        if (hash != c->left->hash[r->step]) {
            fprintf(stderr, "other bits after step %d\n", r->step);
            exit(1);
        }
    } else if (c->stop == 0 && td_dist_rank() == 0) {
        c->left->hash[r->step] = hash;
        leave_layout(c->left, r->net);
    }
    if (!c->resumes && r->step == c->stop) {
        stop_here(c, r);
    }
}

static int run_rank(int rank, int size, void *arg)
{
    const resume_case *c = arg;
    procs_init(rank, size, 20.0);
    run r;
    open_run(&r, c);
    int each = (int)td_loader_batches(r.loader);
    REQUIRE(EPOCHS * each < MOST_STEPS);
    for (int epoch = r.step / each; epoch < EPOCHS; epoch++) {
        td_loader_seek(r.loader, (uint64_t)epoch, r.step % each);
        for (td_batch batch; td_loader_next(r.loader, &batch);) {
            train(c, &r, &batch);
            after_step(c, &r);
        }
        REQUIRE_OK(td_loader_status(r.loader));
    }
    REQUIRE(r.step == EPOCHS * each);
    close_run(&r);
    td_dist_destroy();
    return 0;
}

static void check_resume(int size, resume_case c, int stop)
{
    static procs_end ends[PROCS_MAX];
    c.left = mmap(NULL, sizeof *c.left, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(c.left != MAP_FAILED);
    snprintf(c.path, sizeof c.path, "%s", temp_path("run.safetensors"));
    procs_succeed(size, limit, run_rank, &c); /* in one go */
    c.stop = stop;
    procs_run(size, limit, run_rank, &c, ends);
    for (int r = 0; r < size; r++) {
        assert_int_equal(ends[r].signal, SIGKILL);
    }
    c.resumes = true;
    procs_succeed(size, limit, run_rank, &c);
    munmap(c.left, sizeof *c.left);
}

static void test_two_ranks(void **state)
{
    (void)state;
    check_resume(2, (resume_case){ .adam = false }, 3);
    check_resume(2, (resume_case){ .adam = true, .ema = true }, 11); /* in the second epoch */
}

static void test_three_ranks(void **state)
{
    (void)state;
    check_resume(3, (resume_case){ .adam = true }, 2);
    check_resume(3, (resume_case){ .hook = "bf16" }, 7);
}

/* Each rank's own error, the factors and the count of steps: before PowerSGD begins, at its first
 * step and later. */
static void test_powersgd(void **state)
{
    (void)state;
    check_resume(2, (resume_case){ .powersgd = true, .adam = true }, 1);
    check_resume(2, (resume_case){ .powersgd = true }, 3);
    check_resume(2, (resume_case){ .powersgd = true }, 6);
    check_resume(3, (resume_case){ .powersgd = true }, 8);
}

static void test_loaded_before_it_is_wrapped(void **state)
{
    (void)state;
    check_resume(2, (resume_case){ .early = true, .ema = true }, 1);
}

#define IN_FOLDER(test)                                                                            \
    cmocka_unit_test_setup_teardown(test, temp_folder_setup, temp_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_two_ranks),
        IN_FOLDER(test_three_ranks),
        IN_FOLDER(test_powersgd),
        IN_FOLDER(test_loaded_before_it_is_wrapped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
