/* DistributedDataParallel: stretches of gradients that are zero on all ranks do not travel, and
 * nothing else changes by that. */
#include "tests/dead_taps.h"
#include "tests/ddp_job.h"
#include "tests/dist_procs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Two filters, whose first and last four taps meet only padding on 1x1 pictures: 65,536 elements.
 */
enum { CHANNELS = 128, MOST_STEPS = 7, LIVE = 2 * (CHANNELS * CHANNELS + CHANNELS) * 4 };

static const double limit = 60.0;

typedef struct live_case {
    int sizes[2][MOST_STEPS]; /* of the pictures of even and odd ranks; 0: the end */
    int backwards;            /* a step; all but the last without a reduction */
    double clip;              /* 0: no */
    bool stays;               /* until the end only LIVE bytes travel */
    bool at_once;             /* from the first step on */
    dead_taps_optim optim;
    td_ddp_options options;
} live_case;

static void ignore(td_tensor *leaf, void *user)
{
    (void)leaf, (void)user;
}

/* watched: by somebody who may write gradients, so that nothing is known of them. */
static ddp_job open_net(const live_case *c, bool watched)
{
    td_manual_seed(5);
    td_nn_conv2d_options conv = { .kernel = { 3, 3 }, .padding = { 1, 1 } };
    td_module *layers[] = { td_nn_conv2d(CHANNELS, CHANNELS, &conv), td_nn_relu(),
                            td_nn_conv2d(CHANNELS, CHANNELS, &conv) };
    ddp_job job = { .net = td_ddp(td_nn_sequential_list(layers, 3), &c->options) };
    td_params *params = td_parameters(job.net);
    for (int i = 0; watched && i < td_params_count(params); i++) {
        td_on_grad_ready(td_params_get(params, i)->tensor, ignore, NULL);
    }
    job.optim = dead_taps_open(params, c->optim);
    return job;
}

static void train(ddp_job *job, const live_case *c, int size, int number)
{
    td_zero_grad(job->optim);
    for (int k = 1; k <= c->backwards; k++) {
        if (k < c->backwards) {
            td_ddp_no_sync_begin(job->net);
        }
        dead_taps_backward(job->net, 2, CHANNELS, size, number * 8 + k);
        if (k < c->backwards) {
            td_ddp_no_sync_end(job->net);
        }
    }
    if (c->clip > 0.0) {
        td_clip_grad_norm(td_parameters(job->net), c->clip);
    }
    td_optim_step(job->optim);
}

static int64_t travelled(const ddp_job *job)
{
    td_ddp_figures f = td_ddp_last_figures(job->net);
    int64_t bytes = 0;
    for (int i = 0; i < f.buckets; i++) {
        bytes += f.bucket_bytes[i];
    }
    return bytes;
}

static bool bits_equal(ddp_job jobs[2])
{
    td_params *a = td_parameters(jobs[0].net), *b = td_parameters(jobs[1].net);
    for (int i = 0; i < td_params_count(a); i++) { /* -0 or 0: no matter */
        td_tensor *of[2] = { td_params_get(a, i)->tensor, td_params_get(b, i)->tensor };
        for (int grad = 0; grad < 2; grad++) {
            static float values[2][9 * CHANNELS * CHANNELS];
            for (int j = 0; j < 2; j++) {
                td_read(grad ? td_grad(of[j]) : of[j], values[j], TD_F32);
            }
            for (int64_t k = 0; k < td_numel(of[0]); k++) {
                if (values[0][k] != values[1][k]) {
                    return false;
                }
            }
        }
    }
    return true;
}

static int run_case(int rank, int size, void *arg)
{
    const live_case *c = arg;
    procs_init(rank, size, 20.0);
    ddp_job jobs[2] = { open_net(c, false), open_net(c, true) };
    int64_t whole = travelled(&jobs[1]);
    for (int i = 0; i < MOST_STEPS && c->sizes[rank % 2][i] > 0; i++) {
        for (int j = 0; j < 2; j++) {
            train(&jobs[j], c, c->sizes[rank % 2][i], i * size + rank);
            REQUIRE(job_all_same(job_hash(jobs[j].net)));
        }
        REQUIRE(bits_equal(jobs));
        REQUIRE(travelled(&jobs[1]) == whole);
        REQUIRE(!(c->stays || (c->at_once && i == 0)) || travelled(&jobs[0]) < LIVE + 256);
    }
    REQUIRE(c->stays || travelled(&jobs[0]) == whole);
    job_close(&jobs[0]);
    job_close(&jobs[1]);
    td_dist_destroy();
    return 0;
}

static void check(live_case c)
{
    c.backwards = c.backwards > 0 ? c.backwards : 1;
    for (dead_taps_optim optim = DEAD_TAPS_MOMENTUM; optim <= DEAD_TAPS_ADAM; optim++) {
        c.optim = optim;
        procs_succeed(2, limit, run_case, &c);
    }
}

static void test_zeros_stay_at_home(void **state)
{
    (void)state;
    live_case c = { .sizes = { { 1, 1, 1, 1, 1, 1 }, { 1, 1, 1, 1, 1, 1 } }, .stays = true };
    check(c);
    c.backwards = 3;
    check(c);
    c.options = (td_ddp_options){ .comm_hook = "bf16" };
    check(c);
    c.options = (td_ddp_options){ .static_graph = true, .bucket_cap_mb = 0.05 };
    check(c);
}

/* On one rank only: the others must hear of it. */
static void test_one_rank_has_more_later(void **state)
{
    (void)state;
    live_case c = { .sizes = { { 1, 1, 1, 1, 1, 1 }, { 1, 1, 4, 1, 2, 1 } }, .at_once = true };
    check(c);
    c.backwards = 2;
    check(c);
    c.options = (td_ddp_options){ .comm_hook = "bf16" };
    check(c);
    c.options = (td_ddp_options){ .find_unused_parameters = true };
    c.at_once = false; /* the order is another one: the last filter's end travels with `more` */
    check(c);
}

/* Live is what is live on any rank. */
static void test_one_rank_has_more_at_first(void **state)
{
    (void)state;
    check((live_case){ .sizes = { { 4, 1, 1, 4, 1 }, { 1, 1, 4, 1, 1 } } });
}

/* Scaled zeros are zeros. */
static void test_gradients_that_are_clipped(void **state)
{
    (void)state;
    check((live_case){ .sizes = { { 1, 1, 1, 1 }, { 1, 1, 1, 1 } }, .clip = 1e-3, .stays = true });
    check((live_case){ .sizes = { { 1, 1, 1, 1 }, { 1, 1, 4, 1 } }, .clip = 1e-3 });
}

/* Ranks with fewer batches: the others' gradients travel as before. */
static int run_join(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    const live_case c = { .backwards = 1, .optim = DEAD_TAPS_MOMENTUM };
    ddp_job jobs[2] = { open_net(&c, false), open_net(&c, true) };
    for (int epoch = 0; epoch < 3; epoch++) {
        for (int j = 0; j < 2; j++) {
            td_ddp_join_begin(jobs[j].net, false);
            for (int i = 0; i < 2 * rank + epoch % 2; i++) {
                train(&jobs[j], &c, epoch == 2 && i == 1 ? 3 : 1, (epoch * 8 + i) * size + rank);
            }
            REQUIRE_OK(td_ddp_join_end(jobs[j].net));
            REQUIRE(job_all_same(job_hash(jobs[j].net)));
        }
        REQUIRE(job_hash(jobs[0].net) == job_hash(jobs[1].net));
    }
    job_close(&jobs[0]);
    job_close(&jobs[1]);
    td_dist_destroy();
    return 0;
}

static void test_ranks_that_run_out(void **state)
{
    (void)state;
    procs_succeed(2, limit, run_join, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_zeros_stay_at_home),
        cmocka_unit_test(test_one_rank_has_more_later),
        cmocka_unit_test(test_one_rank_has_more_at_first),
        cmocka_unit_test(test_gradients_that_are_clipped),
        cmocka_unit_test(test_ranks_that_run_out),
    };
    return cmocka_run_group_tests_name("ddp: gradients that are zero on all ranks", tests, NULL,
                                       NULL);
}
